//! Budgets: the memory limits that everything is charged to, `memory_max` and its part
//! `buffers_max`.
//!
//! A charge is taken before its memory is allocated, and returned after the memory is freed.
//! Nothing in the cache holds memory that grows with load without a charge.
//!
//! Not here: what happens when a charge is refused; that is up to the caller.

use crate::error::Error;
use crate::sync::{Arc, AtomicU64, Ordering};

/// A hard limit in bytes, and how much of it is taken.
pub(crate) struct Budget {
    /// The limit's name in errors.
    bound: &'static str,
    max_bytes: u64,
    used_bytes: AtomicU64,
    /// The most that was taken at once since the last [`Budget::forget_peak`].
    peak_bytes: AtomicU64,
}

/// Bytes taken of a budget. Dropping the charge returns them.
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// A budget of `max_bytes`. Errors call it `bound`: `memory_max`, the budget of the whole
    /// cache, or `buffers_max`, the part set aside for buffers.
    pub fn new(bound: &'static str, max_bytes: u64) -> Arc<Budget> {
        Arc::new(Budget { bound, max_bytes, used_bytes: AtomicU64::new(0), peak_bytes: AtomicU64::new(0) })
    }

    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    pub fn used_bytes(&self) -> u64 {
        // Relaxed: a statistic that orders nothing.
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub fn left_bytes(&self) -> u64 {
        self.max_bytes - self.used_bytes()
    }

    /// Takes `bytes`, if that many are left.
    pub fn charge(self: &Arc<Self>, bytes: u64, what: &str) -> Result<Charge, Error> {
        // Relaxed: only the sum matters, and a compare-and-swap keeps it exact.
        let taken = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.max_bytes)
        });
        match taken {
            Ok(used) => {
                // Most charges raise no peak, and then write nothing.
                if used + bytes > self.peak_bytes.load(Ordering::Relaxed) {
                    self.peak_bytes.fetch_max(used + bytes, Ordering::Relaxed);
                }
                Ok(Charge { budget: self.clone(), bytes })
            }
            Err(used) => Err(self.refusal(what.into(), bytes, self.max_bytes - used)),
        }
    }

    /// The most bytes that were taken at once since the last [`Budget::forget_peak`].
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed).max(self.used_bytes())
    }

    pub fn forget_peak(&self) {
        self.peak_bytes.store(self.used_bytes(), Ordering::Relaxed);
    }

    /// The error of a user `what` that wants more than what is left for it.
    pub fn refusal(&self, what: String, wanted_bytes: u64, left_bytes: u64) -> Error {
        let (bound, bound_bytes) = (self.bound, self.max_bytes);
        Error::NoMemory { what, wanted_bytes, left_bytes, bound, bound_bytes }
    }

    /// Returns bytes whose charge was [kept](Charge::keep).
    pub fn uncharge(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Charge {
    /// Leaves the bytes charged until [`Budget::uncharge`].
    pub fn keep(mut self) {
        self.bytes = 0;
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds another charge of the same budget.
    pub fn join(&mut self, mut other: Charge) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget), "charges of one budget");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Changes the charge to `bytes`: takes more, or returns some.
    pub fn resize(&mut self, bytes: u64, what: &str) -> Result<(), Error> {
        if bytes > self.bytes {
            self.join(self.budget.charge(bytes - self.bytes, what)?);
        } else {
            self.budget.used_bytes.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            self.bytes = bytes;
        }
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
