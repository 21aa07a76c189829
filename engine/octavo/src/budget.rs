//! `memory_max`: what everything is charged to.
//!
//! A charge is taken before the memory is, and given back after. Nothing in the cache holds memory that grows with load
//! without one. What is not here: what is done when a charge is refused; that is for who asks.

use crate::error::Error;
use crate::sync::{Arc, AtomicU64, Ordering};

/// A hard bound in bytes, and what is taken of it.
pub(crate) struct Budget {
    max_bytes: u64,
    used_bytes: AtomicU64,
}

/// Bytes taken of a budget; they return when it is dropped.
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub fn new(max_bytes: u64) -> Arc<Budget> {
        Arc::new(Budget { max_bytes, used_bytes: AtomicU64::new(0) })
    }

    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    pub fn used_bytes(&self) -> u64 {
        // Relaxed: a figure; nothing is ordered by it.
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
            Ok(_) => Ok(Charge { budget: self.clone(), bytes }),
            Err(used) => Err(Error::NoMemory {
                what: what.into(),
                wanted_bytes: bytes,
                left_bytes: self.max_bytes - used,
            }),
        }
    }
}

impl Charge {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes more, or gives some back.
    pub fn resize(&mut self, bytes: u64, what: &str) -> Result<(), Error> {
        if bytes > self.bytes {
            let mut more = self.budget.charge(bytes - self.bytes, what)?;
            self.bytes += std::mem::take(&mut more.bytes);
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
