//! The one place that chooses between std's and shuttle's synchronisation.

#[cfg(shuttle)]
use shuttle::sync as imp;
#[cfg(not(shuttle))]
use std::sync as imp;

use std::sync::PoisonError;

#[cfg(shuttle)]
pub(crate) use imp::Condvar;
pub(crate) use imp::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(crate) use imp::{Mutex, MutexGuard};

/// Locks, even after another holder has panicked: every critical section of this crate leaves its
/// data consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
