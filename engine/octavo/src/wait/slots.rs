//! Tasks that wait for a slot to leave its busy state (P12).
//!
//! Registration happens under the slot's shard lock, which the thread that ends the busy state
//! also takes before it wakes the waiters. So no waiter is missed.

use std::collections::HashMap;

use octavo_table::{SlotIndex, Table, Word};

use super::Waiter;
use crate::sync::{Mutex, lock};
use crate::ways::WAYS;

const SHARDS: usize = 16;

/// The waiters of a partition's slots.
pub(crate) struct SlotWaiters {
    shards: [Mutex<HashMap<SlotIndex, Vec<Waiter>>>; SHARDS],
}

impl SlotWaiters {
    pub fn new() -> Self {
        SlotWaiters { shards: std::array::from_fn(|_| Mutex::new(HashMap::new())) }
    }

    fn shard(&self, slot: SlotIndex) -> &Mutex<HashMap<SlotIndex, Vec<Waiter>>> {
        &self.shards[slot.0 as usize % SHARDS]
    }

    /// Registers for the end of the busy state `seen` (P12). Fails if it has ended: look again.
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

    /// Wakes all tasks registered with the slot. Called by the thread that ended the busy state
    /// and saw the flag.
    pub fn wake(&self, slot: SlotIndex) {
        let waiters = lock(self.shard(slot)).remove(&slot);
        waiters.into_iter().flatten().for_each(Waiter::wake);
    }
}
