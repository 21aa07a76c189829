//! The tape of a recording: events that were written and not taken yet. Not here: what is written
//! (`pages/record.rs`), who takes it (`api/recording.rs`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use octavo_recording::{Encoder, Header, Totals};

use crate::sync::{Condvar, Mutex};

/// A block is handed on when it has so many bytes: enough to compress well, little to lose.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;

/// What a block takes: its last event, and the totals behind it, may reach over the end.
pub(crate) const BUFFER_BYTES: usize = BLOCK_BYTES + Encoder::EVENT_BYTES_MAX + 64;

/// A partition's side of a recording.
pub(crate) struct Recorder {
    /// Pages whose sample number is below are recorded. 0: nothing is; `WHOLE`: the steps of the
    /// table too.
    pub below: AtomicU32,
    pub tape: Mutex<Option<Tape>>,
    /// Told when there may be something to take.
    pub something: Condvar,
}

/// What was written and not taken.
pub(crate) struct Tape {
    pub encoder: Encoder,
    pub full: VecDeque<Handed>,
    /// Memory for blocks to come.
    pub spare: Vec<Vec<u8>>,
    pub end: Option<RecordingEnd>,
    /// The partition's counts when it began.
    pub began: Totals,
    /// Whoever takes waits for the first event of a block.
    pub waited_for: bool,
    /// What the recording tells of itself.
    pub stat: RecordingStat,
}

/// What is handed on.
pub(crate) enum Handed {
    Block(Vec<u8>),
    /// What follows is of another part.
    Part(Header),
}

/// Why a recording has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingEnd {
    /// Somebody said so.
    Stopped,
    /// The blocks were not taken as fast as they filled.
    FellBehind,
}

/// How far a recording is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingStat {
    /// Accesses written down.
    pub accesses: u64,
    /// Bytes of all events, as they are handed on.
    pub event_bytes: u64,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { below: AtomicU32::new(0), tape: Mutex::new(None), something: Condvar::new() }
    }

    #[inline(always)]
    pub fn below(&self) -> u32 {
        // Relaxed: who sees it too early or too late looks again under the tape's lock, or belongs to
        // before.
        self.below.load(Ordering::Relaxed)
    }
}
