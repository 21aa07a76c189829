//! The reaper's state between two periods: limits of groups, the memory that all partitions may
//! hold, what the reaper has done.
//!
//! Not here: what the reaper does with it (`reaper.rs`).

use std::collections::BTreeMap;

use octavo_share::Limits;

use super::alarm::Alarm;
use super::turn::Planning;
use crate::pressure::Total;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The reaper's state between two periods.
pub(crate) struct Ledger {
    /// Limits of groups, by name. Groups without limits are not in it.
    pub(super) groups: Mutex<BTreeMap<String, Limits>>,
    /// How much the cache may hold now, given the state of the system's memory.
    pub(super) total: Mutex<Total>,
    pub alarm: Alarm,
    /// Held while several partitions are resized, or one is created or removed.
    pub planning: Mutex<Planning>,
    /// References shown to the monitors since their counts last decayed.
    pub(super) shown: AtomicU64,
    pub(super) moved_bytes: AtomicU64,
    pub(super) periods: AtomicU64,
}

/// Statistics of the reaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaperStat {
    /// Periods in which the reaper planned sizes.
    pub periods: u64,
    /// Bytes moved away from partitions.
    pub moved_bytes: u64,
    /// Bytes that all partitions and buffers together may hold now: `memory_max`, or less while
    /// the system is short of memory.
    pub allowed_bytes: u64,
    /// Partitions whose resize waits for a store that has not answered in time.
    pub held_up: u64,
}

impl Ledger {
    pub fn new(memory_max_bytes: u64) -> std::io::Result<Ledger> {
        Ok(Ledger {
            groups: Mutex::new(BTreeMap::new()),
            total: Mutex::new(Total::new(memory_max_bytes)),
            alarm: Alarm::new()?,
            planning: Mutex::new(Planning::default()),
            shown: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            periods: AtomicU64::new(0),
        })
    }

    pub fn stat(&self) -> ReaperStat {
        // Relaxed: figures.
        ReaperStat {
            periods: self.periods.load(Ordering::Relaxed),
            moved_bytes: self.moved_bytes.load(Ordering::Relaxed),
            allowed_bytes: lock(&self.total).bytes,
            held_up: 0,
        }
    }

    pub fn groups(&self) -> BTreeMap<String, Limits> {
        lock(&self.groups).clone()
    }

    pub fn set_group(&self, name: &str, limits: Limits) {
        lock(&self.groups).insert(name.into(), limits);
    }
}
