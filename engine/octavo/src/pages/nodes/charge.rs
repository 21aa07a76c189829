//! Charges accesses for emulated distance: counts what they wait for and move, and spends the
//! difference to local memory if that is wanted. Not here: what distance costs (`numa/cost.rs`).

use std::cell::Cell;
use std::time::{Duration, Instant};

use octavo_table::Tag;

use crate::numa::cost::{BYTES_OF_LETTER, LINE, LINES_OF_BUNDLE, LocalMemory, Traffic, waits_of};
use crate::state::counters::Count;
use crate::state::partition::PartitionInner;
use crate::sync::thread_local;

thread_local! {
    /// Nanoseconds that this thread owes: small sums are spent together, for a clock takes longer to read than some of them.
    static OWED: Cell<f64> = const { Cell::new(0.0) };
}

/// What is owed is spent from here on.
const OWED_MAX_NS: f64 = 500.0;

impl PartitionInner {
    /// Charges an access to so many bytes of a page; so many accesses are looked up together, and
    /// up to twelve of them overlap.
    pub fn charge_access(&self, tag: Tag, bytes: usize, together: u64) {
        let is_here = self.node_of(tag) == self.shared.numa.here();
        self.charge(is_here, waits_of(together), bytes as u64);
    }

    /// Charges the sender's half of a bundle's way, or the server's. The letters' own bytes are
    /// written or read by the server from afar.
    pub fn charge_bundle(&self, letters: u64, bytes: u64) {
        self.charge(false, LINES_OF_BUNDLE / 2 * LINE, letters * BYTES_OF_LETTER / 2 + bytes);
    }

    /// Charges what a copy of a page costs: its main's lines, and the page's bytes.
    pub fn charge_copy(&self) {
        self.charge(false, waits_of(1), self.page_bytes() as u64);
    }

    /// Charges what it costs to bring a page's main here: the sets of its places, and the page's
    /// bytes.
    pub fn charge_switch(&self) {
        self.charge(false, 2 * waits_of(1), self.page_bytes() as u64);
    }

    /// Charges the look for a copy on another node, and its mark.
    pub fn charge_overtaking(&self, nodes: u64) {
        self.charge(false, nodes * waits_of(1), 0);
    }

    /// Charges an access to so many bytes of the thread's own node, or of another's.
    pub fn charge_at(&self, is_here: bool, bytes: usize, together: u64) {
        self.charge(is_here, waits_of(together), bytes as u64);
    }

    fn charge(&self, is_here: bool, waits: u64, bytes: u64) {
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

    /// What was charged.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            local_waits: self.counters.sum(Count::LocalWaits),
            remote_waits: self.counters.sum(Count::RemoteWaits),
            local_bytes: self.counters.sum(Count::LocalBytes),
            remote_bytes: self.counters.sum(Count::RemoteBytes),
        }
    }
}

/// Spins for what the thread owes, once that is worth a look at the clock.
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
    // Spun too long is credit, but not for an interruption.
    OWED.with(|cell| cell.set((owed - spent).max(-OWED_MAX_NS)));
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_spent() {
        let began = Instant::now();
        (0..1000).for_each(|_| spend(2000.0));
        assert!(began.elapsed() >= Duration::from_micros(1990), "{:?}", began.elapsed());
        let LocalMemory { latency_ns, bytes_per_ns } = LocalMemory::here();
        assert!(latency_ns >= 20.0 && bytes_per_ns >= 0.5);
    }
}
