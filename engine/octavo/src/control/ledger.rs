//! The reaper's state between two periods: the limits of groups, the memory that the cache may
//! hold, and the reaper's statistics.
//!
//! Not here: how the reaper uses this state (`reaper.rs`).

use std::collections::BTreeMap;

use octavo_share::Limits;

use super::alarm::Alarm;
use super::turn::Planning;
use crate::pressure::Total;
use crate::sync::{AtomicU64, Mutex, lock};

/// The reaper's state between two periods.
pub(crate) struct Ledger {
    /// Limits of groups, by name. Groups without limits are not in the map.
    pub(super) groups: Mutex<BTreeMap<String, Limits>>,
    /// How much the cache may hold now, given the state of the system's memory.
    pub(super) total: Mutex<Total>,
    pub alarm: Alarm,
    /// Held while several partitions are resized, while one is created or removed, and while limits
    /// change.
    pub planning: Mutex<Planning>,
    /// Sampled accesses that the monitors have processed since their counts last decayed.
    pub(super) shown: AtomicU64,
    /// The counts of periods and of bytes moved; the other figures are those of the moment.
    pub(super) counts: Mutex<ReaperStat>,
}

/// Statistics of the reaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaperStat {
    /// Periods in which the reaper planned sizes.
    pub periods: u64,
    /// Bytes taken from partitions.
    pub moved_bytes: u64,
    /// Bytes that all partitions and buffers together may hold now: `memory_max`, or less while
    /// the system is short of memory.
    pub allowed_bytes: u64,
    /// Partitions whose resize was given up because a store did not answer in time, and is still to
    /// be continued.
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
            counts: Mutex::default(),
        })
    }

    pub fn stat(&self) -> ReaperStat {
        ReaperStat { allowed_bytes: lock(&self.total).bytes, ..*lock(&self.counts) }
    }

    pub fn groups(&self) -> BTreeMap<String, Limits> {
        lock(&self.groups).clone()
    }

    pub fn set_group(&self, name: &str, limits: Limits) {
        lock(&self.groups).insert(name.into(), limits);
    }
}
