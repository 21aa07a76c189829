//! Since when pages may be dirty. No page has a time of its own: that would cost every write a look
//! at the clock. Instead, two times bound the age of the oldest dirty byte from above:
//!
//! - of each object, when the last sync or pass that wrote all its dirty pages began;
//! - of the partition, when the cleaner last saw that it had no dirty page. The first dirty page of
//!   a cache wakes the cleaner, so this time is exact then.
//!
//! The cleaner writes all dirty pages once they are five seconds old. With a store that takes them,
//! the bound is therefore too high by ten seconds at most; with one that does not, it grows as the
//! age does. Without a cleaner, it is the time since the object was synced or opened.
//!
//! Not here: how pages are written (`flight/writeback.rs`), when (`control/cleaner.rs`).

use std::time::{Duration, Instant};

use super::partition::PartitionInner;
use crate::sync::{AtomicU64, Ordering, lock};

/// A time before which nothing is dirty.
pub(crate) struct CleanUntil {
    /// The origin of the times.
    born: Instant,
    /// Nanoseconds after `born`. Only grows. Relaxed, everywhere: a figure.
    ns: AtomicU64,
}

impl CleanUntil {
    /// Nothing is dirty now.
    pub fn now() -> CleanUntil {
        CleanUntil { born: Instant::now(), ns: AtomicU64::new(0) }
    }

    /// Notes that all bytes that were dirty before `at` are written.
    pub fn advance(&self, at: Instant) {
        let ns = at.saturating_duration_since(self.born).as_nanos() as u64;
        self.ns.fetch_max(ns, Ordering::Relaxed);
    }

    pub fn get(&self) -> Instant {
        self.born + Duration::from_nanos(self.ns.load(Ordering::Relaxed))
    }
}

impl PartitionInner {
    /// Returns the age of the oldest dirty byte, at most; zero if no page is dirty.
    pub fn dirty_oldest(&self) -> Duration {
        if self.table.dirty_pages() == 0 {
            return Duration::ZERO;
        }
        let objects = lock(&self.objects);
        let written = objects.open.values().filter(|object| object.writes_back.is_some());
        let written = written.map(|object| object.clean_until.get()).min();
        drop(objects);
        let clean = self.clean_until.get();
        let since = written.map_or(clean, |written| written.max(clean));
        since.elapsed().max(Duration::from_millis(1))
    }
}
