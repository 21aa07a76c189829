//! [`Bell`]: the set of a node's sleeping receivers, one bit each. A sender uses it to wake exactly
//! one sleeping receiver, and none that is awake (M4).

use crate::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of receivers of a node.
pub const RECEIVERS_MAX: u32 = 64;

pub(crate) struct Bell {
    asleep: AtomicU64,
}

impl Bell {
    pub fn new() -> Bell {
        Bell { asleep: AtomicU64::new(0) }
    }

    /// Sets the bit of a receiver that is about to sleep. The caller issues the fence of M4.
    pub fn announce(&self, receiver: u32) {
        assert!(receiver < RECEIVERS_MAX, "receiver {receiver} is not below {RECEIVERS_MAX}");
        self.asleep.fetch_or(1 << receiver, Ordering::Relaxed);
    }

    /// Clears the bit of a receiver that is awake. A sender may already have cleared it.
    pub fn withdraw(&self, receiver: u32) {
        self.asleep.fetch_and(!(1 << receiver), Ordering::Relaxed);
    }

    /// Clears one bit and returns its receiver, if any receiver sleeps. The caller issues the fence
    /// of M4.
    pub fn take(&self) -> Option<u32> {
        // Repeats only if another sender has taken the same bit, or its receiver has withdrawn it,
        // in between.
        loop {
            let asleep = self.asleep.load(Ordering::Relaxed);
            if asleep == 0 {
                return None;
            }
            let first = asleep.trailing_zeros();
            if self.asleep.fetch_and(!(1 << first), Ordering::Relaxed) >> first & 1 == 1 {
                return Some(first);
            }
        }
    }
}
