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

/// A thread, as `spawn` gives it.
#[cfg(shuttle)]
pub(crate) type JoinHandle = shuttle::thread::JoinHandle<()>;
#[cfg(not(shuttle))]
pub(crate) type JoinHandle = std::thread::JoinHandle<()>;

/// Starts a thread that the model checker sees, where there is one.
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

/// Locks, also after a panic of another holder: every critical section of this crate leaves its
/// data whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `lock`, if nobody else has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
