//! Seeded random numbers: the seed is printed, and `OCTAVO_SEED` repeats a run.

pub use octavo_random::Random;

/// A generator from `OCTAVO_SEED`, or from the clock. Prints its seed.
pub fn seeded(test: &str) -> Random {
    fixed(test, std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64))
}

/// A generator from `OCTAVO_SEED`, or from this seed: for assertions that hold for nearly all
/// seeds, and for this one. Prints its seed.
pub fn fixed(test: &str, seed: u64) -> Random {
    let seed =
        std::env::var("OCTAVO_SEED").map_or(seed, |seed| seed.parse().expect("OCTAVO_SEED is a number"));
    println!("{test}: OCTAVO_SEED={seed}");
    Random::new(seed)
}
