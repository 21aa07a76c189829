//! The one place that chooses between std's and shuttle's synchronisation.

#[cfg(shuttle)]
use shuttle::sync as imp;
#[cfg(not(shuttle))]
use std::sync as imp;

pub(crate) use imp::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use imp::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::thread::yield_now;
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;
pub(crate) use std::sync::Arc;
#[cfg(not(shuttle))]
pub(crate) use std::thread::yield_now;
#[cfg(not(shuttle))]
pub(crate) use std::thread_local;

/// The handle that `spawn` returns.
#[cfg(shuttle)]
pub(crate) type JoinHandle = shuttle::thread::JoinHandle<()>;
#[cfg(not(shuttle))]
pub(crate) type JoinHandle = std::thread::JoinHandle<()>;

/// Starts a thread, visible to the model checker if there is one.
pub(crate) fn spawn(name: &str, act: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle> {
    #[cfg(shuttle)]
    return Ok({
        let _ = name;
        shuttle::thread::spawn(act)
    });
    #[cfg(not(shuttle))]
    std::thread::Builder::new().name(name.into()).spawn(act)
}

use std::sync::{PoisonError, TryLockError};

/// Locks, even after another holder has panicked: every critical section of this crate leaves
/// its data consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks if no other thread holds the lock; else returns `None`.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
