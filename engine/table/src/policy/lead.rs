//! The eviction order currently in use in a partition that learns, and the table of densities. The
//! learner writes both; a set reads them when it needs a victim.

use std::sync::OnceLock;

use crate::sync::atomic::{AtomicU8, AtomicU16, Ordering::Relaxed};

/// An eviction order, which says which page of a set is evicted first. See `octavo`.
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
    /// All orders.
    pub const ALL: [Order; 5] = [Order::Density, Order::Rate, Order::Lrfu, Order::Lfu, Order::Recency];
}

/// Number of classes of histories: eight classes of uses times four of intervals. Hits are counted
/// per class.
pub(crate) const CLASSES: usize = 32;

/// Number of classes of ages: four per doubling.
pub(crate) const BUCKETS: usize = 36;

/// The order of a partition that is too small to learn.
pub(crate) const ONLY_ORDER: Order = Order::Recency;

/// The order and the densities by which victims of one partition are chosen. All accesses are
/// Relaxed: a stale value costs a guess.
pub(crate) struct Lead {
    /// The order in use, as an index of `Order::ALL`.
    order: AtomicU8,
    /// Indexed by `cell`: the upper bits of a float, which compare as the float does. Allocated at
    /// the first use, and kept.
    densities: OnceLock<Box<[AtomicU16]>>,
}

impl Lead {
    pub fn new() -> Lead {
        Lead { order: AtomicU8::new(ONLY_ORDER as u8), densities: OnceLock::new() }
    }

    /// Returns the order in use.
    pub fn order(&self) -> Order {
        Order::ALL[self.order.load(Relaxed) as usize]
    }

    /// Makes another order the one in use.
    pub fn set_order(&self, order: Order) {
        self.order.store(order as u8, Relaxed);
    }

    /// Returns the densities, if they are allocated.
    pub fn densities_made(&self) -> Option<&[AtomicU16]> {
        self.densities.get().map(|densities| &**densities)
    }

    /// Returns the densities by `cell`: the worth of a page of this history and age under
    /// `Order::Density`.
    pub fn densities(&self) -> &[AtomicU16] {
        self.densities.get_or_init(|| {
            // The initial densities, a guess: they rise with uses and fall with age.
            let guess = |cell: usize| (1 + cell / BUCKETS / 4) as f32 / (1 + cell % BUCKETS) as f32;
            (0..CLASSES * BUCKETS).map(|cell| AtomicU16::new(comparable(guess(cell)))).collect()
        })
    }
}

/// Returns sixteen bits that compare as positive floats do.
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
