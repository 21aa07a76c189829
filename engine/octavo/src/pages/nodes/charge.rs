//! Charges accesses for emulated distance: counts the cache lines that they wait for and the bytes
//! that they move. Optionally spins for the time that remote memory takes longer than local memory.
//! Not here: the prices (`numa/cost.rs`).

use std::cell::Cell;
use std::time::{Duration, Instant};

use octavo_table::Tag;

use crate::numa::cost::{BYTES_OF_LETTER, LINE, LINES_OF_BUNDLE, LocalMemory, Traffic, waits_of};
use crate::state::counters::Count;
use crate::state::partition::PartitionInner;
use crate::sync::thread_local;

thread_local! {
    /// Nanoseconds that this thread must still spin. Small amounts are added up and spent together,
    /// because reading a clock takes longer than some of them.
    static OWED: Cell<f64> = const { Cell::new(0.0) };
}

/// A thread that owes at least this many nanoseconds spins for them.
const OWED_MAX_NS: f64 = 500.0;

impl PartitionInner {
    /// Charges an access to `bytes` bytes of a page. The access is one of `together` that are
    /// looked up together, of which up to twelve overlap.
    #[inline(always)]
    pub fn charge_access(&self, tag: Tag, bytes: usize, together: u64) {
        if self.places.charged {
            self.charge_at(self.node_of(tag) == self.shared.numa.here(), bytes, together);
        }
    }

    /// Charges half of a bundle's round trip: that of the sender or that of the server. `bytes` is
    /// the number of bytes that the server reads from the sender's memory or writes to it; 0 for
    /// the sender's half.
    pub fn charge_bundle(&self, letters: u64, bytes: u64) {
        self.charge(false, LINES_OF_BUNDLE / 2 * LINE, letters * BYTES_OF_LETTER / 2 + bytes);
    }

    /// Charges an access to `bytes` bytes of the thread's own node (`is_here`) or of another.
    #[inline(always)]
    pub fn charge_at(&self, is_here: bool, bytes: usize, together: u64) {
        self.charge(is_here, waits_of(together), bytes as u64);
    }

    /// Charges `waits` waits for lines and `bytes` bytes of the thread's own node (`is_here`) or of
    /// another.
    #[inline(always)]
    pub fn charge(&self, is_here: bool, waits: u64, bytes: u64) {
        if self.places.charged {
            self.add_charge(is_here, waits, bytes);
        }
    }

    #[inline(never)]
    fn add_charge(&self, is_here: bool, waits: u64, bytes: u64) {
        let Some(cost) = self.shared.numa.cost else { return };
        let counts = if is_here {
            (Count::LocalWaits, Count::LocalBytes)
        } else {
            (Count::RemoteWaits, Count::RemoteBytes)
        };
        self.counters.add(counts.0, waits);
        self.counters.add(counts.1, bytes);
        if cost.spent && !is_here {
            spend(cost.machine.more_ns(waits, bytes, LocalMemory::here()));
        }
    }

    /// The traffic charged so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            local_waits: self.counters.sum(Count::LocalWaits),
            remote_waits: self.counters.sum(Count::RemoteWaits),
            local_bytes: self.counters.sum(Count::LocalBytes),
            remote_bytes: self.counters.sum(Count::RemoteBytes),
        }
    }
}

/// Adds to the time that the thread owes. Once the sum is worth reading the clock, spins for it.
fn spend(ns: f64) {
    let owed = OWED.with(Cell::get) + ns;
    if owed < OWED_MAX_NS {
        return OWED.with(|cell| cell.set(owed));
    }
    let (began, wanted) = (Instant::now(), Duration::from_nanos(owed as u64));
    while began.elapsed() < wanted {
        std::hint::spin_loop();
    }
    let spent = began.elapsed().as_nanos() as f64;
    // Excess time becomes credit, but at most `OWED_MAX_NS`, so that an interruption does not earn
    // more.
    OWED.with(|cell| cell.set((owed - spent).max(-OWED_MAX_NS)));
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_spins_for_at_least_what_it_owes() {
        let began = Instant::now();
        (0..1000).for_each(|_| spend(2000.0));
        assert!(began.elapsed() >= Duration::from_micros(1990), "{:?}", began.elapsed());
        let LocalMemory { latency_ns, bytes_per_ns } = LocalMemory::here();
        assert!(latency_ns >= 20.0 && bytes_per_ns >= 0.5);
    }
}
