//! The progress of a partition's resize, and what happened to its table before the first access.
//!
//! Not here: the resize itself (`control/resize.rs`), recordings (`api/recording.rs`).

use octavo_recording::Event;
use octavo_table::{SegmentIndex, Table};

use crate::config::PolicyName;
use crate::ways::WAYS;

/// The progress of a resize. The lock's holder may wait for a store.
pub(crate) struct Resizing {
    /// What happened to the table before its first access.
    pub history: History,
    /// Segments without entries that still hold a pinned snapshot.
    pub emptied: Vec<SegmentIndex>,
    /// Moves that were named and not done, because a page's store refused or was not waited for;
    /// and the segment that they empty, if any.
    pub pending: Vec<octavo_table::Move>,
    pub leaving: Option<SegmentIndex>,
}

/// What happened to a table before its first access. A recording that begins before that access
/// begins with these events, so its replay has the same directory.
pub(crate) struct History {
    /// Segments that the table was created with.
    pub segments: u32,
    /// Policy that the table was created with.
    pub policy: PolicyName,
    /// Events since then. `None`: there were accesses, or more events than are kept.
    pub events: Option<Vec<Event>>,
}

impl History {
    /// Most events to keep. They take memory that is not charged: about 24 KiB per partition at
    /// most, and none after a resize that follows the first access.
    const EVENTS_MAX: usize = 1 << 10;

    /// Adds events of the table, which is `untouched` before its first access.
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
        Resizing { history, emptied: Vec::new(), pending: Vec::new(), leaving: None }
    }
}
