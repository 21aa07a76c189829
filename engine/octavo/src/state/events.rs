//! The last events of a cache: changes of size, and stores that refuse or hang.
//!
//! A ring and not a callback: events are added under the engine's locks, where a caller's code
//! could wait or call the cache again. A slow reader only misses events, and sees by their numbers
//! how many. Hits add no event; the most frequent ones are changes of size, a few per second.
//!
//! Each event is also logged, with the target [`EVENTS_TARGET`].
//!
//! Not here: requests and their figures (`counters.rs`), recordings (`tape.rs`).

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::sync::{Condvar, Mutex, lock};

/// The target of the log lines that repeat events.
pub const EVENTS_TARGET: &str = "octavo::events";

/// Most events that a cache keeps. They take about 32 KiB, which is not charged.
const KEPT: usize = 256;

/// An event of a cache.
#[derive(Clone, Debug)]
pub struct CacheEvent {
    /// Its number. The first event of a cache has the number 1, and no number is left out: a
    /// reader that finds a gap has missed events.
    pub number: u64,
    /// When it happened.
    pub at: SystemTime,
    /// What happened.
    pub what: Happened,
}

/// What happened to a cache. [`Display`](fmt::Display) gives a sentence.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Happened {
    /// A partition has another size. A resize that takes several turns is several events.
    Resized {
        /// The partition.
        partition: String,
        /// The bytes that were charged to it before.
        from_bytes: u64,
        /// The bytes that are charged to it now.
        to_bytes: u64,
        /// Why its size was changed.
        reason: MoveReason,
    },
    /// The cache may hold more or less than before, because the system has more or less memory.
    Allowed {
        /// The most bytes before.
        from_bytes: u64,
        /// The most bytes now.
        to_bytes: u64,
    },
    /// A store has not answered for several turns of a resize, which cannot continue.
    HeldUp {
        /// The partition that cannot be resized.
        partition: String,
    },
    /// A resize that was held up continues.
    Released {
        /// The partition.
        partition: String,
    },
    /// A store refused to take dirty pages. They stay dirty and will be retried.
    WritebackFailed {
        /// The partition.
        partition: String,
        /// The object.
        object: String,
        /// Bytes of the object's dirty pages.
        dirty_bytes: u64,
        /// The store's error.
        error: Error,
    },
    /// A store that refused dirty pages takes them again, or has none left to take.
    WritebackRecovered {
        /// The partition.
        partition: String,
        /// The object.
        object: String,
    },
    /// A sync of a store failed: data that it had taken may be lost. Every later sync of the object
    /// fails with [`Error::Failed`].
    SyncFailed {
        /// The partition.
        partition: String,
        /// The object.
        object: String,
        /// The store's error.
        error: Error,
    },
    /// The cache was dropped while a partition had dirty pages, which are lost.
    Dropped {
        /// The partition.
        partition: String,
        /// Bytes of its dirty pages.
        dirty_bytes: u64,
    },
}

/// Why a partition's size was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoveReason {
    /// The reaper's plan: memory moves to where it avoids the most misses.
    Utility,
    /// The system is short of memory, or no longer.
    Pressure,
    /// A new partition needs memory.
    NewPartition,
    /// A limit of a partition or of a group was changed.
    Limit,
    /// Buffers or I/O rings need memory.
    Buffers,
    /// A caller resized the partition, or reclaimed memory from it.
    Asked,
}

impl MoveReason {
    /// Returns a short name: `utility`, `pressure`, `new-partition`, `limit`, `buffers` or `asked`.
    pub const fn name(self) -> &'static str {
        match self {
            MoveReason::Utility => "utility",
            MoveReason::Pressure => "pressure",
            MoveReason::NewPartition => "new-partition",
            MoveReason::Limit => "limit",
            MoveReason::Buffers => "buffers",
            MoveReason::Asked => "asked",
        }
    }
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Happened::Resized { partition, from_bytes, to_bytes, reason } => {
                let reason = reason.name();
                write!(f, "partition {partition}: resized from {from_bytes} to {to_bytes} bytes ({reason})")
            }
            Happened::Allowed { from_bytes, to_bytes } => {
                write!(f, "the cache may hold {to_bytes} bytes, after {from_bytes} bytes")
            }
            Happened::HeldUp { partition } => {
                write!(f, "partition {partition}: a resize is held up by a store that does not answer")
            }
            Happened::Released { partition } => {
                write!(f, "partition {partition}: the resize that was held up continues")
            }
            Happened::WritebackFailed { partition, object, dirty_bytes, error } => write!(
                f,
                "partition {partition}: {object}: write-back failed: {error}; \
                 {dirty_bytes} bytes stay dirty and will be retried"
            ),
            Happened::WritebackRecovered { partition, object } => {
                write!(f, "partition {partition}: {object}: write-back works again")
            }
            Happened::SyncFailed { error, .. } => {
                write!(f, "{error}: the object is failed until it is opened again")
            }
            Happened::Dropped { partition, dirty_bytes } => {
                write!(f, "partition {partition}: dropped with {dirty_bytes} dirty bytes")
            }
        }
    }
}

/// The last events of one cache.
pub(crate) struct Events {
    log: Mutex<Kept>,
    news: Condvar,
}

struct Kept {
    /// The number of the next event.
    next: u64,
    events: VecDeque<CacheEvent>,
}

impl Events {
    pub fn new() -> Events {
        Events { log: Mutex::new(Kept { next: 1, events: VecDeque::new() }), news: Condvar::new() }
    }

    /// Adds an event, and logs it. The caller may hold any lock but a leaf.
    pub fn add(&self, what: Happened) {
        match &what {
            Happened::Resized { .. } | Happened::Allowed { .. } => {
                log::debug!(target: EVENTS_TARGET, "{what}")
            }
            Happened::SyncFailed { .. } => log::error!(target: EVENTS_TARGET, "{what}"),
            _ => log::warn!(target: EVENTS_TARGET, "{what}"),
        }
        let mut log = lock(&self.log);
        let event = CacheEvent { number: log.next, at: SystemTime::now(), what };
        log.next += 1;
        if log.events.len() == KEPT {
            log.events.pop_front();
        }
        log.events.push_back(event);
        drop(log);
        self.news.notify_all();
    }

    /// Returns the events whose numbers are above `after`, oldest first.
    pub fn after(&self, after: u64) -> Vec<CacheEvent> {
        lock(&self.log).after(after)
    }

    /// Returns what [`after`](Self::after) returns, and waits up to `time` for a first event.
    pub fn wait(&self, after: u64, time: Duration) -> Vec<CacheEvent> {
        let log = lock(&self.log);
        let has_none = |log: &mut Kept| log.next <= after.saturating_add(1);
        // A lock that another holder poisoned is used like any other (`sync::lock`).
        let waited = self.news.wait_timeout_while(log, time, has_none);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.after(after)
    }
}

impl Kept {
    fn after(&self, after: u64) -> Vec<CacheEvent> {
        self.events.iter().filter(|event| event.number > after).cloned().collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn add(events: &Events, count: u64) {
        (0..count).for_each(|bytes| events.add(Happened::Allowed { from_bytes: 0, to_bytes: bytes }));
    }

    fn numbers(events: &[CacheEvent]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn a_reader_that_was_away_too_long_sees_by_the_numbers_what_it_missed() {
        let events = Events::new();
        add(&events, 3);
        assert_eq!(numbers(&events.after(0)), [1, 2, 3]);
        assert_eq!(numbers(&events.after(2)), [3]);
        assert!(events.after(3).is_empty() && events.after(u64::MAX).is_empty());
        add(&events, KEPT as u64);
        let left = events.after(3);
        assert_eq!((left[0].number, left.len()), (4, KEPT));
        add(&events, 1);
        assert_eq!(events.after(3)[0].number, 5, "the ring is full");
    }

    #[test]
    fn a_reader_that_waits_gets_the_event_that_another_thread_adds() {
        let events = Events::new();
        assert!(events.wait(0, Duration::ZERO).is_empty());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| events.wait(0, Duration::from_secs(600)));
            add(&events, 1);
            assert_eq!(numbers(&reader.join().unwrap()), [1]);
        });
    }
}
