//! The balance of `car` for a whole partition: one number that all its sets read and change.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The share of a partition's slots that pages which came only once should have.
pub(crate) struct Balance {
    /// The bits of a float from 0 to 1. Relaxed: one of two simultaneous changes may be lost, which
    /// costs a guess.
    share: AtomicU64,
    /// Number of slots of the partition. Relaxed: as `share`.
    slots: AtomicU64,
}

impl Balance {
    pub fn new(slots: u64) -> Balance {
        Balance { share: AtomicU64::new(0f64.to_bits()), slots: AtomicU64::new(slots) }
    }

    /// Sets the number of slots; the share stays.
    pub fn set_capacity(&self, slots: u64) {
        self.slots.store(slots, Relaxed);
    }

    /// Returns the target for a set of `ways` ways: how many pages that came only once it should
    /// have.
    pub(super) fn target(&self, ways: usize) -> f64 {
        f64::from_bits(self.share.load(Relaxed)) * ways as f64
    }

    /// Changes the target by `pages` pages of the partition.
    pub(super) fn change(&self, pages: f64) {
        let share = f64::from_bits(self.share.load(Relaxed));
        let share = share + pages / self.slots.load(Relaxed).max(1) as f64;
        self.share.store(share.clamp(0.0, 1.0).to_bits(), Relaxed);
    }
}
