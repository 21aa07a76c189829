//! The gate in front of the length of a file or back end: any number of I/Os pass together, a
//! change of length passes alone. Protects the tail unit. Not here: what a change of length does
//! (`file.rs`, `backend.rs`).
//!
//! The *tail unit* is the 4096-aligned unit that contains the end of the file, if the end is not
//! aligned. Direct I/O cannot end inside a block, and a whole block written there would lengthen
//! the file. The tail unit is therefore read and written through a second, buffered descriptor, to
//! the exact byte. The length decides which unit that is:
//!
//! * L1. An I/O enters the gate before it reads the length, and leaves when its last part is
//!   finished. (Not when its completion is delivered: the delivery may wait for the thread that
//!   changes the length.)
//! * L2. Inside the gate, an I/O uses the tail's descriptor for the tail unit and never the direct
//!   one, and the direct descriptor for everything below. No byte is ever in flight on both.
//! * L3. A change of length closes the gate. From then on, entering blocks. The change waits until
//!   all I/O has left. Meanwhile it drives the rings (submits and harvests), because the I/O that
//!   it waits for may be its own caller's.
//! * L4. Alone inside, the change writes the old tail unit to the device and drops it from the
//!   kernel's page cache.
//! * L5. The change sets the file's length and publishes it. If L4 fails, the old length stays. If
//!   L5 fails, the store takes the length that the file has.
//! * L6. The change writes and drops the new tail unit, whose bytes past the end the kernel has
//!   zeroed in its page cache, and opens the gate. If the write fails, the change fails, and the
//!   new length stays.
//!
//! If another program has changed the file's length, the store can adopt it. That is a change by L3
//! to L6 which sets no length in L5.

use std::time::Duration;

use crate::io::sink::drive_all;
use crate::sync::{
    AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, sleep_on, thread_local,
};

/// The number of counters that rings spread over, so that the I/O of many threads does not share a
/// cache line.
const SHARDS: usize = 16;

/// A store shorter than this when it is opened has one counter: many such stores may be open, and
/// each has few I/Os.
const SHARDED_FROM_BYTES: u64 = 64 << 20;

/// The sleep of a change between two rounds of driving the rings (L3). Only a change of length that
/// meets I/O in flight pays it.
const DRIVE_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    inside: AtomicUsize,
}

/// The counters of a gate, which stay the same for its life.
enum Shards {
    One(AtomicUsize),
    Many(Box<[Shard; SHARDS]>),
}

impl Default for Shards {
    fn default() -> Shards {
        Shards::Many(Box::default())
    }
}

impl Shards {
    fn inside(&self, shard: u8) -> &AtomicUsize {
        match self {
            Shards::One(inside) => inside,
            Shards::Many(shards) => &shards[shard as usize].inside,
        }
    }
}

#[derive(Default)]
pub(crate) struct Gate {
    shards: Shards,
    closed: AtomicBool,
    /// Held throughout a change, so that there is only one change at a time.
    changing: Mutex<()>,
    sleep: Mutex<()>,
    moved: Condvar,
}

/// A closed gate with no I/O inside. Dropping it opens the gate.
pub(crate) struct Closed<'a> {
    gate: &'a Gate,
    _changing: MutexGuard<'a, ()>,
}

impl Gate {
    /// Returns the gate of a store of this length.
    pub(crate) fn of_len(len_bytes: u64) -> Gate {
        let mut gate = Gate::default();
        if len_bytes < SHARDED_FROM_BYTES {
            gate.shards = Shards::One(AtomicUsize::new(0));
        }
        gate
    }

    pub(crate) fn shard_of(ring_id: u64) -> u8 {
        (ring_id % SHARDS as u64) as u8
    }

    /// Returns the shard of the calling thread's I/O that passes through no ring.
    pub(crate) fn shard_of_thread() -> u8 {
        thread_local! {
            static SHARD: u8 = {
                static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
                // Relaxed: only an even spread over the shards matters.
                Gate::shard_of(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
            };
        }
        // A thread that is ending counts in any shard.
        SHARD.try_with(|shard| *shard).unwrap_or(0)
    }

    /// L1: enters the gate. Blocks while a change is under way.
    pub(crate) fn enter(&self, shard: u8) {
        loop {
            // SeqCst: pairs with `close`, which stores `closed` and then reads the counters. At
            // least one of the two threads sees the other's store.
            self.shards.inside(shard).fetch_add(1, Ordering::SeqCst);
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

    /// L1: leaves the gate; the I/O's last part is finished.
    pub(crate) fn leave(&self, shard: u8) {
        // SeqCst: as in `enter`. Everything that the I/O did happens before a change that reads
        // zero from this counter.
        self.shards.inside(shard).fetch_sub(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            let _guard = lock(&self.sleep);
            self.moved.notify_all();
        }
    }

    /// L3: closes the gate and waits until all I/O has left.
    pub(crate) fn close(&self) -> Closed<'_> {
        let changing = lock(&self.changing);
        self.closed.store(true, Ordering::SeqCst);
        let closed = Closed { gate: self, _changing: changing };
        while self.is_occupied() {
            drive_all();
            // Under shuttle a file's I/O is finished as soon as it is submitted.
            #[cfg(shuttle)]
            shuttle::thread::yield_now();
            let guard = lock(&self.sleep);
            if self.is_occupied() {
                drop(sleep_on(&self.moved, guard, Some(DRIVE_INTERVAL)));
            }
        }
        closed
    }

    fn is_occupied(&self) -> bool {
        match &self.shards {
            Shards::One(inside) => inside.load(Ordering::SeqCst) > 0,
            Shards::Many(shards) => shards.iter().any(|shard| shard.inside.load(Ordering::SeqCst) > 0),
        }
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
