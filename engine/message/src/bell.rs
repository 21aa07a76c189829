//! A bell: which receivers of a node sleep, a bit each, so that a sender wakes exactly one and
//! those who are awake are not called (M4).

use crate::sync::atomic::{AtomicU64, Ordering};

/// Most receivers of a node that sleep by a bell.
pub const RECEIVERS_MAX: u32 = 64;

pub(crate) struct Bell {
    asleep: AtomicU64,
}

impl Bell {
    pub fn new() -> Bell {
        Bell { asleep: AtomicU64::new(0) }
    }

    /// The receiver is about to sleep. The fence is the caller's.
    pub fn announce(&self, receiver: u32) {
        assert!(receiver < RECEIVERS_MAX, "receiver {receiver}");
        self.asleep.fetch_or(1 << receiver, Ordering::Relaxed);
    }

    /// The receiver does not sleep, whether or not somebody took its bit.
    pub fn withdraw(&self, receiver: u32) {
        self.asleep.fetch_and(!(1 << receiver), Ordering::Relaxed);
    }

    /// Takes one down, if any sleeps. The fence is the caller's.
    pub fn take(&self) -> Option<u32> {
        // A turn is repeated when another took the same, which 64 can do.
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
