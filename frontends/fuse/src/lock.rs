//! [`lock`]: locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what a panic of another thread leaves usable.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
