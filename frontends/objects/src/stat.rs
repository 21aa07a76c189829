//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind};
use crate::tier::stat::TierStat;

/// What has happened since the start, and what is there now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectsStat {
    /// Reads of ranges.
    pub reads: u64,
    /// Bytes of reads that were in memory.
    pub hit_bytes: u64,
    /// Bytes of reads that were not.
    pub miss_bytes: u64,
    /// Bytes of reads that passed the cache by, or were read once and not kept.
    pub passed_bytes: u64,
    /// Requests for metadata and listings, every attempt of its own.
    pub heads: u64,
    /// GET requests, every attempt of its own.
    pub gets: u64,
    /// Bytes of bodies that passed all checks.
    pub fetched_bytes: u64,
    /// Attempts after the first one.
    pub retries: u64,
    /// Attempts that ended because the server did not answer in time, or could not.
    pub unavailable: u64,
    /// Answers that contradicted their requests: another range, another length.
    pub wrong: u64,
    /// Objects that turned out to be another version.
    pub changed: u64,
    /// Requests that failed for good.
    pub failed: u64,
    /// Keys in listings that cannot be names of files, and were left out.
    pub keys_left_out: u64,
    /// Objects whose pages are kept now.
    pub objects: u64,
    /// Objects whose pages were dropped because there were too many.
    pub forgotten: u64,
    /// Bytes of pages that are pinned now.
    pub pinned_bytes: u64,
    /// Pages that were not pinned because there was no room.
    pub pins_refused: u64,
    /// The file tier, if there is one.
    pub tier: Option<TierStat>,
}

/// Defines the counters and how they are read.
macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64),* }

        impl Counters {
            /// Reads all counters. Those of one event may differ for a moment.
            pub fn read(&self) -> ObjectsStat {
                ObjectsStat {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    ..ObjectsStat::default()
                }
            }
        }
    };
}

counters!(
    reads,
    hit_bytes,
    miss_bytes,
    passed_bytes,
    heads,
    gets,
    fetched_bytes,
    retries,
    unavailable,
    wrong,
    changed,
    failed,
    keys_left_out,
    forgotten,
    pinned_bytes,
    pins_refused
);

/// Adds to a counter. Relaxed: a figure alone.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    /// Counts how an attempt ended.
    pub fn note(&self, error: &Error) {
        match error.kind() {
            ErrorKind::Unavailable => add(&self.unavailable, 1),
            ErrorKind::Wrong => add(&self.wrong, 1),
            ErrorKind::Changed => add(&self.changed, 1),
            _ => {}
        }
    }
}
