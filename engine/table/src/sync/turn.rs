//! loom's atomics, with every interleaving of loads and swaps.
//!
//! loom remembers only the last access to an atomic. A load by the thread that then swaps hides an
//! earlier load by another thread from it, and loom never tries the order in which the swap comes
//! first. So "load, look, compare-and-swap", the shape of every step of the slot's protocol, would
//! run in few orders and be called exhaustive. Here each access first takes a turn: a relaxed swap
//! of a flag that has no meaning. All turns conflict with each other, so loom tries them in every
//! order; they are relaxed, so they order nothing that the protocol must order itself.

use super::atomic::Ordering;
use loom::sync::atomic::AtomicBool;

macro_rules! atomic_with_turns {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        pub struct $name {
            turn: AtomicBool,
            value: loom::sync::atomic::$name,
        }

        // Each is what its namesake in std is.
        #[allow(dead_code)]
        impl $name {
            pub fn new(value: $value) -> Self {
                Self { turn: AtomicBool::new(false), value: loom::sync::atomic::$name::new(value) }
            }

            fn in_turn(&self) -> &loom::sync::atomic::$name {
                // Relaxed: a turn orders nothing.
                self.turn.swap(false, Ordering::Relaxed);
                &self.value
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.in_turn().load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.in_turn().store(value, order);
            }

            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.in_turn().fetch_add(value, order)
            }

            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.in_turn().fetch_sub(value, order)
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.in_turn().fetch_or(value, order)
            }

            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.in_turn().compare_exchange(old, new, success, failure)
            }

            /// Never fails spuriously, as loom's does not.
            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }
        }
    };
}

atomic_with_turns!(AtomicU16, u16);
atomic_with_turns!(AtomicU64, u64);
