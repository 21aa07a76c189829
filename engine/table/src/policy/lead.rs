//! What leads the sets of a partition whose policy learns: the order of eviction currently in use,
//! and the table of densities. The learner writes both; a set reads them when it needs a victim.

use std::sync::OnceLock;

use crate::sync::atomic::{AtomicU8, AtomicU16, Ordering::Relaxed};

/// Which page leaves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    Density,
    Rate,
    Lrfu,
    Lfu,
    Recency,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 5] = [Order::Density, Order::Rate, Order::Lrfu, Order::Lfu, Order::Recency];
}

/// Histories that are told apart where hits are counted: eight classes of uses, four of intervals.
pub(crate) const CLASSES: usize = 32;

/// Ages that are told apart: four to a doubling.
pub(crate) const BUCKETS: usize = 36;

/// The order that leads where nothing is ever learned.
pub(crate) const ONLY_ORDER: Order = Order::Recency;

/// The order and the densities that victims of one partition are chosen by. All accesses are
/// Relaxed: a stale value costs a guess.
pub(crate) struct Lead {
    /// The order in use, as an index of `Order::ALL`.
    order: AtomicU8,
    /// By `cell`: the upper bits of a float, which compare as the float does. Made when they are
    /// first needed, and kept.
    densities: OnceLock<Box<[AtomicU16]>>,
}

impl Lead {
    pub fn new() -> Lead {
        Lead { order: AtomicU8::new(ONLY_ORDER as u8), densities: OnceLock::new() }
    }

    /// The order in use.
    pub fn order(&self) -> Order {
        Order::ALL[self.order.load(Relaxed) as usize]
    }

    /// Puts another order in use.
    pub fn set_order(&self, order: Order) {
        self.order.store(order as u8, Relaxed);
    }

    /// The densities, if they were made.
    pub fn densities_made(&self) -> Option<&[AtomicU16]> {
        self.densities.get().map(|densities| &**densities)
    }

    /// By `cell`: what a page of this history and age is worth by `Order::Density`. Of a learner
    /// that has them.
    pub fn densities(&self) -> &[AtomicU16] {
        self.densities.get_or_init(|| {
            // Until more is known: more uses are worth more, and age costs.
            let guess = |cell: usize| (1 + cell / BUCKETS / 4) as f32 / (1 + cell % BUCKETS) as f32;
            (0..CLASSES * BUCKETS).map(|cell| AtomicU16::new(comparable(guess(cell)))).collect()
        })
    }
}

/// Sixteen bits that compare as positive floats do.
pub(crate) fn comparable(density: f32) -> u16 {
    (density.max(0.0).to_bits() >> 15) as u16
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn densities_compare_as_floats_do() {
        let floats = [0.0f32, 1e-9, 0.001, 0.0011, 0.5, 1.0, 2.0, 1e9];
        assert!(floats.windows(2).all(|pair| comparable(pair[0]) < comparable(pair[1])));
    }
}
