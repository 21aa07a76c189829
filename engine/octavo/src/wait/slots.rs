//! Tasks that wait for a slot's busy state to end (P12).
//!
//! A task registers under the lock of the slot's shard. The thread that ends the busy state takes
//! the same lock before it wakes the waiters, so it misses no waiter.

use std::collections::HashMap;

use octavo_table::{SlotIndex, Table, Word};

use super::Waiter;
use crate::sync::{Mutex, lock};
use crate::ways::WAYS;

const SHARDS: usize = 16;

/// The waiters of a partition's slots.
#[derive(Default)]
pub(crate) struct SlotWaiters {
    shards: [Mutex<HashMap<SlotIndex, Vec<Waiter>>>; SHARDS],
}

impl SlotWaiters {
    fn shard(&self, slot: SlotIndex) -> &Mutex<HashMap<SlotIndex, Vec<Waiter>>> {
        &self.shards[slot.0 as usize % SHARDS]
    }

    /// Registers a waiter for the end of the busy state `seen` (P12). Fails with the slot's current
    /// word if that state has already ended: the caller must look again.
    pub fn register(
        &self,
        table: &Table<WAYS>,
        slot: SlotIndex,
        seen: Word,
        waiter: impl FnOnce() -> Waiter,
    ) -> Result<(), Word> {
        let mut shard = lock(self.shard(slot));
        table.slot(slot).wait(seen)?;
        shard.entry(slot).or_default().push(waiter());
        Ok(())
    }

    /// Wakes all tasks registered with the slot. The caller is the thread that ended the busy state
    /// and found the waiters' flag in the slot's word.
    pub fn wake(&self, slot: SlotIndex) {
        let waiters = lock(self.shard(slot)).remove(&slot);
        waiters.into_iter().flatten().for_each(Waiter::wake);
    }
}
