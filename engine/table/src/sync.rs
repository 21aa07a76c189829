//! The source of atomics: the standard library, or a model checker.
//!
//! loom (`--cfg loom`: all interleavings of a small model) and shuttle (`--cfg shuttle`: random
//! schedules of a large one) check the protocols of this crate. Both replace the atomics by their
//! own. Code that takes part in a protocol imports its atomics, its fence, its spin hint and its
//! yield from this module only.
//!
//! Not here: locks (see `lock`), and channels or thread handles, which this crate needs only in
//! tests.
//!
//! The checkers' atomics are larger than the integers that they replace, and zeroed memory is not a
//! valid value of theirs. Under a checker, a structure that otherwise lives in zeroed memory is
//! therefore built element by element.

#![allow(unused_imports, reason = "the names are the same in every build; which of them are used is not")]

#[cfg(loom)]
pub use loom::{hint::spin_loop, thread::yield_now};
#[cfg(shuttle)]
pub use shuttle::{hint::spin_loop, thread::yield_now};
#[cfg(not(any(loom, shuttle)))]
pub use std::{hint::spin_loop, thread::yield_now};

#[cfg(loom)]
mod turn;

/// Atomic integers, their orderings and the fence.
pub mod atomic {
    #[cfg(loom)]
    pub use super::turn::{AtomicU16, AtomicU64};
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
    #[cfg(shuttle)]
    pub use shuttle::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}
