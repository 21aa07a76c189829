//! Strays: pages that are being read or written without a slot, because every way of their set was
//! busy.

use std::collections::HashMap;

use octavo_table::Tag;

use super::Waiter;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// The pages that are being served without a slot, because their set had none to give.
///
/// A page is in a slot or here, never in both: one comes here, and is looked for here, under its
/// set's lock. So everything that happens to one page happens in order, and no fill can publish
/// what a write has overtaken.
pub(crate) struct Strays {
    count: AtomicU32,
    pages: Mutex<HashMap<Tag, Vec<Waiter>>>,
}

impl Strays {
    pub fn new() -> Self {
        Strays { count: AtomicU32::new(0), pages: Mutex::new(HashMap::new()) }
    }

    /// Registers with the page if it is a stray. Under its set's lock.
    pub fn wait(&self, tag: Tag, waiter: impl FnOnce() -> Waiter) -> bool {
        // Relaxed: a stray of this set was added under the lock that the caller holds.
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        match lock(&self.pages).get_mut(&tag) {
            Some(waiters) => {
                waiters.push(waiter());
                true
            }
            None => false,
        }
    }

    /// Whether the page is a stray. Under its set's lock.
    pub fn has(&self, tag: Tag) -> bool {
        // Relaxed: as in `wait`.
        self.count.load(Ordering::Relaxed) > 0 && lock(&self.pages).contains_key(&tag)
    }

    /// The lowest of what `concerned` says of the strays that it picks.
    pub fn lowest(&self, concerned: impl Fn(Tag) -> Option<u64>) -> Option<u64> {
        lock(&self.pages).keys().filter_map(|tag| concerned(*tag)).min()
    }

    /// The page is served without a slot from now on. Under its set's lock.
    pub fn add(&self, tag: Tag) {
        let before = lock(&self.pages).insert(tag, Vec::new());
        debug_assert!(before.is_none(), "a stray twice");
        // Relaxed: see `wait`.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The page is done; whoever waited for it may try.
    pub fn remove(&self, tag: Tag) {
        let waiters = lock(&self.pages).remove(&tag);
        self.count.fetch_sub(1, Ordering::Relaxed);
        waiters.into_iter().flatten().for_each(Waiter::wake);
    }
}
