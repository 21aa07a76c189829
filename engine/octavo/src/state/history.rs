//! What a resize of a partition is doing, and what has happened to its table before the first
//! access.

use octavo_recording::Event;
use octavo_table::{SegmentIndex, Table};

use crate::config::PolicyName;
use crate::ways::WAYS;

/// What a resize is doing; its holder may wait for a store.
pub(crate) struct Resizing {
    /// What has happened to the table.
    pub history: History,
    /// Segments without entries that still hold a pinned snapshot.
    pub emptied: Vec<SegmentIndex>,
    /// Moves that were named and are not done, because a page's store refused, or was not waited
    /// for; and the segment that they empty, if they do.
    pub pending: Vec<octavo_table::Move>,
    pub leaving: Option<SegmentIndex>,
}

/// What has happened to a table before its first access. A recording that begins before that access
/// begins with these events, so its replay has the same directory.
pub(crate) struct History {
    /// Segments that it was made with.
    pub segments: u32,
    /// Its policy then.
    pub policy: PolicyName,
    /// What has happened since. None: accesses, or more events than are kept.
    pub events: Option<Vec<Event>>,
}

impl History {
    /// The events take memory that is not charged: some 24 KiB of each partition at most, and none
    /// once it is resized after its first access.
    const EVENTS_MAX: usize = 1 << 10;

    /// Adds what has happened to the table, which is `untouched` before its first access.
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
