//! Strays: pages that are being read or written without a slot, because no way of their set could
//! be claimed.
//!
//! Not here: the I/O of a stray (`flight/read.rs`, `flight/write.rs`).

use std::collections::HashMap;

use octavo_table::Tag;

use super::Waiter;
use crate::position::PageIndex;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// The pages that are being served without a slot.
///
/// A page is in a slot or in this map, never in both: strays are added and looked up under the lock
/// of their page's set. All operations on one page are therefore ordered, and no fill can publish
/// bytes that a write has made stale.
#[derive(Default)]
pub(crate) struct Strays {
    count: AtomicU32,
    pages: Mutex<HashMap<Tag, Vec<Waiter>>>,
}

impl Strays {
    /// Registers with the page if it is a stray, and returns whether it is. The caller holds the
    /// lock of the page's set.
    pub fn wait(&self, tag: Tag, waiter: impl FnOnce() -> Waiter) -> bool {
        // Relaxed: a stray of this set was added under the lock that the caller holds.
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        lock(&self.pages).get_mut(&tag).map(|waiters| waiters.push(waiter())).is_some()
    }

    /// Whether the page is a stray. The caller holds the lock of the page's set.
    pub fn has(&self, tag: Tag) -> bool {
        // Relaxed: as in `wait`.
        self.count.load(Ordering::Relaxed) > 0 && lock(&self.pages).contains_key(&tag)
    }

    /// Returns the lowest of the pages that `concerned` returns for the strays.
    pub fn lowest(&self, concerned: impl Fn(Tag) -> Option<PageIndex>) -> Option<PageIndex> {
        lock(&self.pages).keys().filter_map(|tag| concerned(*tag)).min()
    }

    /// Adds a page, which is a stray from now on. The caller holds the lock of its set.
    pub fn add(&self, tag: Tag) {
        let before = lock(&self.pages).insert(tag, Vec::new());
        debug_assert!(before.is_none(), "a stray twice");
        // Relaxed: see `wait`.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a page that is done, and wakes the tasks that wait for it.
    pub fn remove(&self, tag: Tag) {
        let waiters = lock(&self.pages).remove(&tag);
        self.count.fetch_sub(1, Ordering::Relaxed);
        waiters.into_iter().flatten().for_each(Waiter::wake);
    }
}
