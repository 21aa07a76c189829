//! What the reaper knows between two periods: limits of groups, the memory that partitions may hold
//! in all, what it did. Not here: what it does with that (`reaper.rs`).

use std::collections::BTreeMap;

use octavo_share::Limits;

use super::alarm::Alarm;
use super::turn::Planning;
use crate::pressure::Total;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// What the reaper knows between two periods.
pub(crate) struct Ledger {
    /// Groups that were given limits, by name.
    pub(super) groups: Mutex<BTreeMap<String, Limits>>,
    /// How much all partitions may hold, by the system's memory.
    pub(super) total: Mutex<Total>,
    pub alarm: Alarm,
    /// Held by who resizes several partitions, or makes one.
    pub planning: Mutex<Planning>,
    /// References that the monitors were shown since their counts last faded.
    pub(super) shown: AtomicU64,
    pub(super) moved_bytes: AtomicU64,
    pub(super) periods: AtomicU64,
}

/// What the reaper did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaperStat {
    /// Times that it looked at all partitions.
    pub periods: u64,
    /// Bytes that partitions gave away.
    pub moved_bytes: u64,
    /// What all together may hold now: `memory_max`, or less while the system is short of memory.
    pub allowed_bytes: u64,
    /// Partitions whose size waits for a store that has not answered in time.
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
