//! SplitMix64: reproducible random numbers from a seed, for simulations, tests and benchmarks.
//!
//! The generator is that of Steele, Lea and Flood ("Fast Splittable Pseudorandom Number
//! Generators", OOPSLA 2014): a counter and a finaliser. It is fast, passes BigCrush, and its whole
//! state is one number that a failing test can print. It is not a source of secrets.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

/// The constant by which the counter advances: 2^64 divided by the golden ratio, odd.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// One stream of random numbers. Equal seeds give equal streams.
///
/// ```
/// use octavo_random::Random;
/// let (mut one, mut other) = (Random::new(7), Random::new(7));
/// assert_eq!(one.next_u64(), other.next_u64());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

/// Returns the first number of the SplitMix64 stream of seed `number`: a bijection that mixes all
/// 64 bits.
pub const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(GAMMA);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// Maps a random number to one below `bound` (Lemire's multiply-and-shift). The bias is at most
/// `bound` / 2^64.
pub const fn scale(random: u64, bound: u64) -> u64 {
    ((random as u128 * bound as u128) >> 64) as u64
}

impl Random {
    /// Starts the stream of `seed`.
    pub const fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// Returns the next number of the stream.
    pub const fn next_u64(&mut self) -> u64 {
        let number = mix(self.state);
        self.state = self.state.wrapping_add(GAMMA);
        number
    }

    /// Returns a number below `bound`. Returns 0 if `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        scale(self.next_u64(), bound)
    }

    /// Returns a number within `range`; its start if the range is empty.
    pub const fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let width = range.end().saturating_sub(*range.start());
        *range.start() + if width == u64::MAX { self.next_u64() } else { self.below(width + 1) }
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub const fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with probability one half.
    pub const fn coin(&mut self) -> bool {
        self.next_u64() & 1 == 1
    }

    /// Returns true with `probability`. Always draws exactly one number, so that a changed
    /// probability does not change the later draws.
    pub const fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns true once in `n` draws on average.
    pub const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of `choices`.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Runs `test` with each of `seeds`. If the test panics, prints the seed that reproduces the panic.
///
/// The environment variable `OCTAVO_SEED` replaces `seeds` by a single seed. `OCTAVO_SEEDS` sets
/// the number of seeds to run, starting with the first of `seeds`.
///
/// # Panics
/// If one of the variables is not a number.
pub fn for_seeds(seeds: std::ops::Range<u64>, test: impl Fn(u64)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with seed {0}; repeat it with OCTAVO_SEED={0}", self.0);
            }
        }
    }
    let number = |variable: &str| -> Option<u64> {
        let value = std::env::var(variable).ok()?;
        Some(value.parse().unwrap_or_else(|_| panic!("{variable} is \"{value}\"; expected a number")))
    };
    let seeds = match (number("OCTAVO_SEED"), number("OCTAVO_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => seeds.start..seeds.start + count,
        (None, None) => seeds,
    };
    for seed in seeds {
        let _named = Named(seed);
        test(seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64s() {
        // The first numbers of the reference implementation for seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(numbers, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_all_of_them() {
        let mut random = Random::new(3);
        let (mut below, mut within) = ([false; 10], [false; 3]);
        for _ in 0..1000 {
            below[random.below(10) as usize] = true;
            within[random.within(&(5..=7)) as usize - 5] = true;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert_eq!((below, within), ([true; 10], [true; 3]));
        assert_eq!((scale(u64::MAX, 10), scale(0, 10), random.below(0)), (9, 0, 0));
        assert_eq!(random.within(&(9..=9)), 9);
        assert!(!random.chance(0.0) && random.chance(1.0) && random.one_in(1));
        assert_eq!((random.bytes(13).len(), random.pick(&[4])), (13, 4));
    }
}
