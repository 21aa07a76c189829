//! [`WritesInFlight`]: the writes of a file that are under way, and the reads that wait for them.
//!
//! Programs that write a file by `write` and through a shared mapping need this order. The kernel
//! drops its page before it sends a write. If another program touches the mapping meanwhile, the
//! kernel reads the page again, and keeps what it gets: bytes from before the write would stay in
//! the mapping, and the page's write-back would put them over what was written.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::Device;

/// A read of this many bytes, or of fewer at the file's end. While it waits for a write, the thread
/// that ends the write answers it.
pub struct Waiting {
    /// On which it is answered.
    pub device: Arc<Device>,
    pub unique: u64,
    /// The thread that reads.
    pub caller: u32,
    pub offset: u64,
    pub size: usize,
}

/// Something that waits for the writes before `next`.
struct Held<W> {
    range: Range<u64>,
    next: u64,
    waiting: W,
}

struct Write<W> {
    number: u64,
    range: Range<u64>,
    held: Vec<Held<W>>,
}

struct Writes<W> {
    next: u64,
    under_way: Vec<Write<W>>,
}

/// The writes of a file that are under way.
pub struct WritesInFlight<W = Waiting> {
    /// So that reads need no lock while there are none.
    count: AtomicUsize,
    writes: Mutex<Writes<W>>,
}

impl<W> Default for WritesInFlight<W> {
    fn default() -> WritesInFlight<W> {
        let writes = Mutex::new(Writes { next: 0, under_way: Vec::new() });
        WritesInFlight { count: AtomicUsize::new(0), writes }
    }
}

impl<W> WritesInFlight<W> {
    fn lock(&self) -> MutexGuard<'_, Writes<W>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a write of this range. Returns its number, for [`Self::end`].
    pub fn begin(&self, range: Range<u64>) -> u64 {
        let mut writes = self.lock();
        let number = writes.next;
        writes.next += 1;
        writes.under_way.push(Write { number, range, held: Vec::new() });
        // SeqCst, and in `any`: a read that comes after this waits.
        self.count.fetch_add(1, SeqCst);
        number
    }

    /// Ends a write, or does nothing if it has ended. Returns what waited for it and for no other
    /// write.
    #[must_use]
    pub fn end(&self, number: u64) -> Vec<W> {
        let mut writes = self.lock();
        let place = writes.under_way.iter().position(|write| write.number == number);
        let Some(place) = place else { return Vec::new() };
        let Write { held, .. } = writes.under_way.swap_remove(place);
        self.count.fetch_sub(1, SeqCst);
        held.into_iter().filter_map(|held| writes.hold(held)).collect()
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    /// Keeps `waiting` until no write of a part of the range that has begun by now is under way.
    /// Returns it if there is none.
    pub fn hold(&self, range: Range<u64>, waiting: W) -> Option<W> {
        let mut writes = self.lock();
        let next = writes.next;
        writes.hold(Held { range, next, waiting })
    }
}

impl<W> Writes<W> {
    fn hold(&mut self, held: Held<W>) -> Option<W> {
        let Held { range, next, .. } = &held;
        let is_before = |write: &&mut Write<W>| {
            write.number < *next && write.range.start < range.end && range.start < write.range.end
        };
        match self.under_way.iter_mut().find(is_before) {
            Some(write) => {
                write.held.push(held);
                None
            }
            None => Some(held.waiting),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_all_writes_of_its_range_that_have_begun() {
        let writes = WritesInFlight::default();
        assert_eq!(writes.hold(0..100, "none under way"), Some("none under way"));
        let (first, second) = (writes.begin(0..8), writes.begin(50..60));
        assert_eq!(writes.hold(8..50, "between them"), Some("between them"));
        assert_eq!(writes.hold(0..100, "both"), None);
        assert_eq!(writes.hold(59..60, "the second"), None);
        let third = writes.begin(0..100);
        assert!(writes.end(first).is_empty(), "one waits for the second, too");
        assert!(writes.end(first).is_empty(), "it has ended");
        let mut free = writes.end(second);
        free.sort_unstable();
        assert_eq!(free, ["both", "the second"], "neither waits for a later write");
        assert!(writes.end(third).is_empty());
        assert_eq!(writes.hold(0..100, "none"), Some("none"));
    }
}
