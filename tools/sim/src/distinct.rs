//! Counts the different pages of a trace in bounded memory.
//!
//! Up to [`Distinct::EXACT_MAX`] pages the count is exact, from a set of all pages. Beyond, the set
//! becomes a HyperLogLog sketch (Flajolet, Fusy, Gandouet, Meunier, 2007) of 64 KiB with a standard
//! error of 0.4 %. Hashes have 64 bits, so that large counts need no correction.

use std::collections::HashSet;

use octavo_random::mix;

/// Counts different pages.
pub struct Distinct {
    pages: HashSet<u64>,
    sketch: Option<Sketch>,
    exact_max: usize,
}

impl Distinct {
    /// The most pages that are counted exactly: about 150 MiB of memory.
    pub const EXACT_MAX: usize = 8 << 20;

    fn with_exact_max(exact_max: usize) -> Distinct {
        Distinct { pages: HashSet::new(), sketch: None, exact_max }
    }

    /// Counts pages.
    pub fn add(&mut self, pages: &[u64]) {
        if let Some(sketch) = &mut self.sketch {
            pages.iter().for_each(|page| sketch.add(*page));
            return;
        }
        self.pages.extend(pages);
        if self.pages.len() > self.exact_max {
            let mut sketch = Sketch::new();
            std::mem::take(&mut self.pages).into_iter().for_each(|page| sketch.add(page));
            self.sketch = Some(sketch);
        }
    }

    /// Returns the number of different pages.
    pub fn count(&self) -> u64 {
        self.sketch.as_ref().map_or(self.pages.len() as u64, Sketch::count)
    }

    /// Returns whether [`Distinct::count`] is exact.
    pub fn is_exact(&self) -> bool {
        self.sketch.is_none()
    }
}

impl Default for Distinct {
    /// Starts with no page counted.
    fn default() -> Distinct {
        Distinct::with_exact_max(Distinct::EXACT_MAX)
    }
}

const REGISTER_BITS: u32 = 16;

/// The hashes are divided into 2^16 parts. For each part: one more than the most leading zeros of a
/// hash in it.
struct Sketch {
    registers: Box<[u8]>,
}

impl Sketch {
    fn new() -> Sketch {
        Sketch { registers: vec![0; 1 << REGISTER_BITS].into() }
    }

    fn add(&mut self, page: u64) {
        let hash = mix(page);
        let register = &mut self.registers[(hash >> (u64::BITS - REGISTER_BITS)) as usize];
        // The added bit limits the zeros that are counted in a hash whose other bits are all zero.
        let zeros = (hash << REGISTER_BITS | 1 << (REGISTER_BITS - 1)).leading_zeros() as u8;
        *register = (*register).max(zeros + 1);
    }

    fn count(&self) -> u64 {
        let registers = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|zeros| (-f64::from(*zeros)).exp2()).sum();
        let alpha = 0.7213 / (1.0 + 1.079 / registers);
        (alpha * registers * registers / sum).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pages_are_counted_exactly_and_many_within_two_percent() {
        let mut distinct = Distinct::with_exact_max(100_000);
        for round in 0..2 {
            for begin in (0..100_000).step_by(1000) {
                distinct.add(&(begin..begin + 1000).map(|page| page * 4096).collect::<Vec<u64>>());
            }
            assert_eq!((distinct.count(), distinct.is_exact()), (100_000, true), "round {round}");
        }
        for _ in 0..2 {
            for begin in (0..1_000_000).step_by(1000) {
                distinct.add(&(begin..begin + 1000).collect::<Vec<u64>>());
            }
        }
        let expected = 1_000_000 + 100_000 - 245;
        assert!(!distinct.is_exact());
        let error = distinct.count() as f64 / f64::from(expected) - 1.0;
        assert!(error.abs() < 0.02, "{error}");
    }
}
