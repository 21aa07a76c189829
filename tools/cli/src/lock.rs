//! Taking locks, poisoned or not.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, poisoned or not: the guarded data is consistent between any two operations.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
