//! The tape of a recording: events that were written and not yet taken.
//!
//! Not here: what is written (`pages/record.rs`), the caller who takes it (`api/recording.rs`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use octavo_recording::{Encoder, Header, Totals};

use crate::sync::{Condvar, Mutex};

/// Bytes at which a block is handed on: enough to compress well, little to lose.
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
    /// Signalled when there may be something to take.
    pub something: Condvar,
}

/// Events written and not yet taken.
pub(crate) struct Tape {
    pub encoder: Encoder,
    pub full: VecDeque<Handed>,
    /// Memory for later blocks.
    pub spare: Vec<Vec<u8>>,
    pub end: Option<RecordingEnd>,
    /// The partition's counts when the recording began.
    pub began: Totals,
    /// A thread waits for the first event of a block.
    pub waited_for: bool,
    /// Statistics of the recording.
    pub stat: RecordingStat,
}

/// What a recording hands to its caller.
pub(crate) enum Handed {
    Block(Vec<u8>),
    /// Later blocks belong to another part.
    Part(Header),
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingEnd {
    /// It was stopped by a call.
    Stopped,
    /// Blocks were not taken as fast as they filled.
    FellBehind,
}

/// Progress of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingStat {
    /// Accesses recorded.
    pub accesses: u64,
    /// Bytes of all events, as handed on.
    pub event_bytes: u64,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { below: AtomicU32::new(0), tape: Mutex::new(None), something: Condvar::new() }
    }

    #[inline(always)]
    pub fn below(&self) -> u32 {
        // Relaxed: a thread that sees a change too early or too late looks again under the
        // tape's lock, or its access comes before the change.
        self.below.load(Ordering::Relaxed)
    }
}
