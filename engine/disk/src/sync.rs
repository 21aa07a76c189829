//! Selects the synchronisation primitives: those of shuttle under `cfg(shuttle)`, otherwise those
//! of std. All code that runs under shuttle takes its locks, condition variables and atomics from
//! here. Not here: the pool and the process-wide lists, which use std directly. They and the
//! io_uring engine are compiled under shuttle, and never run there.

#[cfg(shuttle)]
use shuttle::sync as imp;
#[cfg(not(shuttle))]
use std::sync as imp;

pub(crate) use imp::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use imp::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;
pub(crate) use std::sync::{Arc, Weak};
#[cfg(not(shuttle))]
pub(crate) use std::thread_local;

use std::sync::PoisonError;
use std::time::Duration;

/// Locks a mutex, even if an earlier holder panicked: every critical section of this crate leaves
/// its data consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until notified, or for `timeout`. Under shuttle, which has no clock, a timeout expires at
/// once.
pub(crate) fn sleep_on<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Option<Duration>,
) -> MutexGuard<'a, T> {
    match timeout {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        #[cfg(not(shuttle))]
        Some(timeout) => condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
        #[cfg(shuttle)]
        Some(_) => guard,
    }
}
