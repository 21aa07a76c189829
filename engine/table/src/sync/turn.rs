//! loom's atomics, with every interleaving of loads and swaps.
//!
//! loom remembers only the last access to an atomic. A load by the thread that then swaps hides an
//! earlier load by another thread from it, and loom never tries the order in which the swap comes
//! first. So "load, look, compare-and-swap", the shape of every step of the slot's protocol, would
//! run in few orders and be called exhaustive. Here each access first takes a turn: a relaxed swap
//! of a flag that has no meaning. All turns conflict with each other, so loom tries them in every
//! order; they are relaxed, so they order nothing that the protocol must order itself.

use std::ops::Deref;

use super::atomic::Ordering;
use loom::sync::atomic::{self, AtomicBool};

/// An atomic of loom. Whoever accesses it takes a turn.
#[derive(Debug, Default)]
pub struct InTurn<A> {
    turn: AtomicBool,
    value: A,
}

pub type AtomicU16 = InTurn<atomic::AtomicU16>;
pub type AtomicU64 = InTurn<atomic::AtomicU64>;

impl AtomicU16 {
    pub fn new(value: u16) -> Self {
        InTurn { turn: AtomicBool::new(false), value: atomic::AtomicU16::new(value) }
    }
}

impl AtomicU64 {
    pub fn new(value: u64) -> Self {
        InTurn { turn: AtomicBool::new(false), value: atomic::AtomicU64::new(value) }
    }
}

impl<A> Deref for InTurn<A> {
    type Target = A;

    fn deref(&self) -> &A {
        // Relaxed: a turn orders nothing.
        self.turn.swap(false, Ordering::Relaxed);
        &self.value
    }
}
