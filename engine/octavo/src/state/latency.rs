//! How long I/Os to the stores take. Each thread counts in its own block (`counters.rs`), so an I/O
//! costs two looks at the clock and no locked instruction.
//!
//! Not here: the times of requests, which front ends measure.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

/// The I/Os whose times are counted separately.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Timed {
    /// All I/Os to the store.
    Store,
    /// Among them, those of pages that found no way in their set.
    Bypass,
    Last,
}

pub(crate) const TIMED: usize = Timed::Last as usize;

/// How many I/Os took how long, since the partition was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// By bucket: the I/Os that took less than [`Times::bound`] and are in no earlier bucket. The
    /// last bucket also has all longer ones.
    pub counts: [u64; Times::BUCKETS],
    /// The sum of all times, in nanoseconds.
    pub sum_ns: u64,
    /// The longest time, in nanoseconds.
    pub max_ns: u64,
}

impl Times {
    /// The number of buckets.
    pub const BUCKETS: usize = 28;

    /// Returns where a bucket ends, exclusively: at 1 µs, and each further one at twice the time.
    /// The last bucket ends at 134 s.
    pub fn bound(bucket: usize) -> Duration {
        Duration::from_micros(1 << bucket)
    }

    /// Returns the number of I/Os.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The times of a partition's I/Os; [`Partition::latency`](crate::Partition::latency) returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionLatency {
    /// All reads, writes, syncs and discards of the stores.
    pub store: Times,
    /// Those among them that carried a page past the cache, because its set had no free way.
    pub bypass: Times,
}

/// One thread's times. Only that thread writes them, and readers need sums: Relaxed, everywhere.
pub(crate) struct OwnTimes {
    counts: [AtomicU64; Times::BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl OwnTimes {
    pub const fn new() -> OwnTimes {
        OwnTimes {
            counts: [const { AtomicU64::new(0) }; Times::BUCKETS],
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }

    /// Counts an I/O. Only the thread of the block calls this.
    pub fn add(&self, ns: u64) {
        let add = |cell: &AtomicU64, n: u64| {
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.counts[bucket(ns)], 1);
        add(&self.sum_ns, ns);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    pub fn read(&self, into: &mut Times) {
        for (count, own) in into.counts.iter_mut().zip(&self.counts) {
            *count = count.wrapping_add(own.load(Ordering::Relaxed));
        }
        into.sum_ns = into.sum_ns.wrapping_add(self.sum_ns.load(Ordering::Relaxed));
        into.max_ns = into.max_ns.max(self.max_ns.load(Ordering::Relaxed));
    }
}

fn bucket(ns: u64) -> usize {
    match ns / 1000 {
        0 => 0,
        us => (us.ilog2() as usize + 1).min(Times::BUCKETS - 1),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_ends_after_it() {
        for ns in (0..200_000).chain([133_999_999_999, 134_217_727_999, u64::MAX]) {
            let bucket = bucket(ns);
            let (end, is_last) = (Times::bound(bucket), bucket == Times::BUCKETS - 1);
            assert!(Duration::from_nanos(ns) < end || is_last, "{ns} ns");
            assert!(bucket == 0 || Duration::from_nanos(ns) >= Times::bound(bucket - 1), "{ns} ns");
        }
        assert_eq!(Times::bound(Times::BUCKETS - 1).as_secs(), 134);
    }
}
