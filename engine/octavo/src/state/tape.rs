//! The tape of a recording: events that were written and have not been taken yet.
//!
//! Not here: writing events (`pages/record.rs`), taking them (`api/recording.rs`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use octavo_recording::{Encoder, Header, Totals};

use crate::sync::{Condvar, Mutex};

/// Bytes at which a block is full: enough to compress well, and little to lose in a crash.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;

/// Bytes of memory per block: its last event, and the totals after it, may exceed
/// [`BLOCK_BYTES`].
pub(crate) const BUFFER_BYTES: usize = BLOCK_BYTES + Encoder::EVENT_BYTES_MAX + 64;

/// A partition's side of a recording.
pub(crate) struct Recorder {
    /// Pages whose sample number is below this are recorded. 0: no recording; `WHOLE`: all
    /// pages, and the steps of the table too.
    pub below: AtomicU32,
    pub tape: Mutex<Option<Tape>>,
    /// Signalled when there may be a block to take, or the first event of a block.
    pub something: Condvar,
}

/// Events that were written and have not been taken yet.
pub(crate) struct Tape {
    pub encoder: Encoder,
    pub full: VecDeque<Handed>,
    /// Memory for later blocks.
    pub spare: Vec<Vec<u8>>,
    pub end: Option<RecordingEnd>,
    /// The partition's counts when the recording began.
    pub began: Totals,
    /// A thread is waiting for the first event of a block.
    pub waited_for: bool,
    /// Statistics of the recording.
    pub stat: RecordingStat,
}

/// What a recording hands to its caller.
pub(crate) enum Handed {
    Block(Vec<u8>),
    /// The header of a new part, to which the blocks after it belong.
    Part(Header),
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingEnd {
    /// It was stopped by a call.
    Stopped,
    /// The caller took blocks more slowly than they filled.
    FellBehind,
}

/// Progress of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingStat {
    /// Accesses recorded.
    pub accesses: u64,
    /// Bytes of events in all completed blocks.
    pub event_bytes: u64,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { below: AtomicU32::new(0), tape: Mutex::new(None), something: Condvar::new() }
    }

    #[inline(always)]
    pub fn below(&self) -> u32 {
        // Relaxed: a thread that sees a recording begin or end too early checks again under the
        // tape's lock. If a thread sees the change too late, its access counts as earlier than the
        // change.
        self.below.load(Ordering::Relaxed)
    }
}
