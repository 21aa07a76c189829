//! Closed ranges of an object: while a range is being cleared or cut off, no page of it is brought
//! in.

use std::ops::Range;

use super::Waiter;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// The ranges of an object that somebody clears: nothing is brought in there meanwhile.
pub(crate) struct Ranges {
    count: AtomicU32,
    ranges: Mutex<Vec<(Range<u64>, Vec<Waiter>)>>,
}

impl Ranges {
    pub fn new() -> Self {
        Ranges { count: AtomicU32::new(0), ranges: Mutex::new(Vec::new()) }
    }

    /// Registers with the range the page lies in, if there is one. Under the page's set's lock.
    pub fn wait(&self, page: u64, waiter: impl FnOnce() -> Waiter) -> bool {
        // Whoever clears a range takes the lock of every set concerned after it has closed the range. A
        // thread that takes such a lock later sees it; one that took it earlier has claimed before,
        // and is waited for. Acquire: pairs with `open`, whose caller may have changed the length.
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        match lock(&self.ranges).iter_mut().find(|(range, _)| range.contains(&page)) {
            Some((_, waiters)) => {
                waiters.push(waiter());
                true
            }
            None => false,
        }
    }

    /// Whether the page lies in a closed range. Under its set's lock.
    pub fn is_closed(&self, page: u64) -> bool {
        // Acquire: as in `wait`.
        self.count.load(Ordering::Acquire) > 0
            && lock(&self.ranges).iter().any(|(range, _)| range.contains(&page))
    }

    /// Closes a range of pages; or registers with one that overlaps it.
    pub fn close(&self, range: Range<u64>, waiter: impl FnOnce() -> Waiter) -> bool {
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

    /// Opens the end of a range that `close` has closed, from `end` on; all of it if nothing is
    /// left.
    pub fn shorten(&self, range: &Range<u64>, end: u64) {
        if end == range.start {
            return self.open(range);
        }
        let mut ranges = lock(&self.ranges);
        let at = ranges.iter().position(|(r, _)| r == range).expect("a range that was closed");
        ranges[at].0.end = end;
        // Those who wait for what is still closed come again.
        let waiters = std::mem::take(&mut ranges[at].1);
        drop(ranges);
        waiters.into_iter().for_each(Waiter::wake);
    }

    /// Opens a range that `close` has closed.
    pub fn open(&self, range: &Range<u64>) {
        let mut ranges = lock(&self.ranges);
        let at = ranges.iter().position(|(r, _)| r == range).expect("a range that was closed");
        let (_, waiters) = ranges.swap_remove(at);
        drop(ranges);
        // Release: pairs with `wait`.
        self.count.fetch_sub(1, Ordering::Release);
        waiters.into_iter().for_each(Waiter::wake);
    }
}
