//! The progress of a partition's resize, and the history of its table before the first access.
//!
//! Not here: the resize itself (`control/resize.rs`), recordings (`api/recording.rs`).

use octavo_recording::Event;
use octavo_table::{SegmentIndex, Table};

use super::events::MoveReason;
use crate::config::PolicyName;
use crate::ways::WAYS;

/// The progress of a resize. The lock's holder may wait for a store.
pub(crate) struct Resizing {
    /// The history of the table before its first access.
    pub history: History,
    /// Segments without directory entries that are to be taken out of use.
    pub emptied: Vec<SegmentIndex>,
    /// Planned moves of directory entries that are not done yet: a store has refused a page, or a
    /// turn gave up waiting for the store. The last one is the next. `leaving` are the segments
    /// that they empty, in the same order.
    pub pending: Vec<octavo_table::Move>,
    pub leaving: Vec<SegmentIndex>,
    /// Why the last resize began.
    pub why: MoveReason,
}

/// The history of a table before its first access. A recording that begins before that access
/// starts with these events, so its replay has the same directory.
pub(crate) struct History {
    /// Segments that the table was created with.
    pub segments: u32,
    /// Policy that the table was created with.
    pub policy: PolicyName,
    /// Events since the table was created. `None` if there were accesses, or more events than are
    /// kept.
    pub events: Option<Vec<Event>>,
}

impl History {
    /// Most events to keep. They take at most about 24 KiB per partition, which is not charged. The
    /// first resize after the first access frees that memory.
    const EVENTS_MAX: usize = 1 << 10;

    /// Adds events of the table. `untouched` says that the table has had no access yet; if it has,
    /// the history ends.
    pub fn push(&mut self, untouched: bool, happened: impl IntoIterator<Item = Event>) {
        let Some(events) = &mut self.events else { return };
        events.extend(happened);
        if events.len() > History::EVENTS_MAX || !untouched {
            self.events = None;
        }
    }
}

impl Resizing {
    pub fn of(table: &Table<WAYS>) -> Resizing {
        let (segments, policy) = (table.live_segments(), table.policy());
        let history = History { segments, policy, events: Some(Vec::new()) };
        Resizing {
            history,
            emptied: Vec::new(),
            pending: Vec::new(),
            leaving: Vec::new(),
            why: MoveReason::Asked,
        }
    }
}
