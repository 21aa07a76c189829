//! The choice between the atomics of the standard library and those of a model checker.

/// Atomic integers, their orderings and the fence.
pub(crate) mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(shuttle)]
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// The `UnsafeCell` of std with the interface of loom's, which detects unordered accesses by two
/// threads.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub fn with_mut<R>(&self, act: impl FnOnce(*mut T) -> R) -> R {
        act(self.0.get())
    }
}
