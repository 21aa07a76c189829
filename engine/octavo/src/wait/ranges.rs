//! Closed ranges of an object. While a range is closed, to be cleared or cut off, no page of it is
//! brought in.
//!
//! Not here: what happens to the pages of the range (`flight/discard.rs`, `api/lifecycle.rs`).

use std::ops::Range;

use super::Waiter;
use crate::position::PageIndex;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// The closed ranges of an object, in pages, and the tasks that wait for each.
#[derive(Default)]
pub(crate) struct Ranges {
    count: AtomicU32,
    ranges: Mutex<Vec<(Range<PageIndex>, Vec<Waiter>)>>,
}

impl Ranges {
    /// Registers with the closed range that contains `page`, and returns whether there is one. The
    /// caller holds the lock of the page's set.
    pub fn wait(&self, page: PageIndex, waiter: impl FnOnce() -> Waiter) -> bool {
        // The task that closes a range then locks the set of every page in it. A thread that takes
        // such a lock later sees the closed range. A thread that took the lock earlier has already
        // claimed its slot, and the closing task waits for it. Acquire: pairs with `open`, whose
        // caller may have changed the length.
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut ranges = lock(&self.ranges);
        let closed = ranges.iter_mut().find(|(range, _)| range.contains(&page));
        closed.map(|(_, waiters)| waiters.push(waiter())).is_some()
    }

    /// Whether the page lies in a closed range. The caller holds the lock of the page's set.
    pub fn is_closed(&self, page: PageIndex) -> bool {
        // Acquire: as in `wait`.
        self.count.load(Ordering::Acquire) > 0
            && lock(&self.ranges).iter().any(|(range, _)| range.contains(&page))
    }

    /// Closes a range of pages and returns `true`. If a closed range overlaps it, registers with
    /// that range instead and returns `false`.
    pub fn close(&self, range: Range<PageIndex>, waiter: impl FnOnce() -> Waiter) -> bool {
        let mut ranges = lock(&self.ranges);
        if let Some((_, waiters)) =
            ranges.iter_mut().find(|(r, _)| r.start < range.end && range.start < r.end)
        {
            waiters.push(waiter());
            return false;
        }
        ranges.push((range, Vec::new()));
        // Relaxed: see `wait`.
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Closes a range of pages, unless a closed range overlaps it. Returns whether it did.
    pub fn try_close(&self, range: Range<PageIndex>) -> bool {
        let mut ranges = lock(&self.ranges);
        let is_free = !ranges.iter().any(|(r, _)| r.start < range.end && range.start < r.end);
        if is_free {
            ranges.push((range, Vec::new()));
            // Relaxed: see `wait`.
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        is_free
    }

    /// Opens the part of a closed range from page `end` on. If nothing stays closed, opens the
    /// whole range.
    pub fn shorten(&self, range: &Range<PageIndex>, end: PageIndex) {
        if end == range.start {
            return self.open(range);
        }
        let mut ranges = lock(&self.ranges);
        let at = ranges.iter().position(|(r, _)| r == range).expect("a range that was closed");
        ranges[at].0.end = end;
        // All waiters are woken. Tasks whose page is still closed register again.
        let waiters = std::mem::take(&mut ranges[at].1);
        drop(ranges);
        waiters.into_iter().for_each(Waiter::wake);
    }

    /// Opens a closed range.
    pub fn open(&self, range: &Range<PageIndex>) {
        let mut ranges = lock(&self.ranges);
        let at = ranges.iter().position(|(r, _)| r == range).expect("a range that was closed");
        let (_, waiters) = ranges.swap_remove(at);
        drop(ranges);
        // Release: pairs with `wait`.
        self.count.fetch_sub(1, Ordering::Release);
        waiters.into_iter().for_each(Waiter::wake);
    }
}
