//! The gate in front of a file's length: I/O goes through side by side, a change of length goes
//! through alone. Protects the tail unit. Not here: what a change does to the file (`file.rs`).
//!
//! The *tail unit* is the 4096-aligned unit that the file's end cuts. Direct I/O cannot end inside
//! a block, and a whole block written there would lengthen the file; so the tail unit is read and
//! written through a second, buffered descriptor, exact bytes only. Which unit that is depends on
//! the length:
//!
//! * L1. An I/O enters the gate before it reads the length, and leaves when its last part is
//!   finished (not when its completion is delivered: delivery may wait for whoever changes the
//!   length).
//! * L2. While inside, it uses the tail's descriptor for the tail unit and never the direct one,
//!   and the direct one for everything below. No byte is ever in flight on both.
//! * L3. A change closes the gate. From then on entering waits. The change waits until all have
//!   left; it drives the rings meanwhile (submits and harvests), because the I/O it waits for may
//!   be its own caller's.
//! * L4. Alone, it writes the old tail unit to the device and drops it from the kernel's page
//!   cache.
//! * L5. It sets the file's length and publishes it. If L4 fails the old length stays; if this
//!   fails, the one that the file has.
//! * L6. It writes and drops the new tail unit, whose rest the kernel zeroed in its cache, and
//!   opens the gate. If that fails so does the change, and the new length stays all the same.

use std::time::Duration;

use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, sleep_on};

/// Rings spread over this many counters, so that I/O of many threads does not share a cache line.
const SHARDS: usize = 16;

/// How long a change sleeps between two looks at the rings (L3). Only a change of length that meets
/// I/O pays it.
const DRIVE_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    inside: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Gate {
    shards: [Shard; SHARDS],
    closed: AtomicBool,
    /// Held through a change, so that there is one at a time.
    changing: Mutex<()>,
    sleep: Mutex<()>,
    moved: Condvar,
}

/// The gate is closed and nobody is inside. Opens on drop.
pub(crate) struct Closed<'a> {
    gate: &'a Gate,
    _changing: MutexGuard<'a, ()>,
}

impl Gate {
    pub(crate) fn shard_of(ring_id: u64) -> u8 {
        (ring_id % SHARDS as u64) as u8
    }

    /// L1: returns when inside. Waits while a change is under way.
    pub(crate) fn enter(&self, shard: u8) {
        loop {
            // SeqCst: pairs with `close`, which stores `closed` and then reads the counters. One of the two
            // sees the other.
            self.shards[shard as usize].inside.fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return;
            }
            self.leave(shard);
            let mut guard = lock(&self.sleep);
            while self.closed.load(Ordering::SeqCst) {
                guard = sleep_on(&self.moved, guard, None);
            }
        }
    }

    /// L1: the last part is finished.
    pub(crate) fn leave(&self, shard: u8) {
        // SeqCst: as in `enter`. Whatever the I/O did happens before the change that reads zero here.
        self.shards[shard as usize].inside.fetch_sub(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            let _guard = lock(&self.sleep);
            self.moved.notify_all();
        }
    }

    /// L3: returns when nobody is inside. `drive` must make pending I/O progress.
    pub(crate) fn close(&self, drive: impl Fn()) -> Closed<'_> {
        let changing = lock(&self.changing);
        self.closed.store(true, Ordering::SeqCst);
        let closed = Closed { gate: self, _changing: changing };
        while self.is_occupied() {
            drive();
            let guard = lock(&self.sleep);
            if self.is_occupied() {
                drop(sleep_on(&self.moved, guard, Some(DRIVE_INTERVAL)));
            }
        }
        closed
    }

    fn is_occupied(&self) -> bool {
        self.shards.iter().any(|shard| shard.inside.load(Ordering::SeqCst) > 0)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let _guard = lock(&self.gate.sleep);
        // SeqCst: pairs with `enter` (L6).
        self.gate.closed.store(false, Ordering::SeqCst);
        self.gate.moved.notify_all();
    }
}
