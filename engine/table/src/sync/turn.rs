//! loom's atomics, changed so that loom tries every interleaving of loads and swaps.
//!
//! loom remembers only the last access to an atomic. If a thread loads and then swaps, its load
//! hides an earlier load by another thread, and loom never tries the order in which the swap comes
//! before that earlier load. Every step of the slot's protocol has this form (load, look,
//! compare-and-swap), so loom would try few orders and call them exhaustive. Here each access first
//! takes a turn: a relaxed swap of a flag that has no meaning. All turns conflict with each other,
//! so loom tries them in every order. They are relaxed, so they do not add an ordering that the
//! protocol lacks.

use std::ops::Deref;

use super::atomic::Ordering;
use loom::sync::atomic::{self, AtomicBool};

/// An atomic of loom. Each access to it takes a turn first.
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
