//! Random numbers that repeat from a seed.
#![allow(dead_code, reason = "each checker builds its own part of this program")]

/// The SplitMix64 sequence.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`, which is small: the bias is.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }
}

/// Runs `test` with each of `seeds`, or with the one in `OCTAVO_SEED`; a failure names the seed.
pub fn for_seeds(seeds: std::ops::Range<u64>, test: impl Fn(u64)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with seed {0}: replay it by OCTAVO_SEED={0}", self.0);
            }
        }
    }
    let replayed =
        std::env::var("OCTAVO_SEED").ok().map(|seed| seed.parse().expect("OCTAVO_SEED is a number"));
    let seeds = replayed.map_or(seeds, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let _named = Named(seed);
        test(seed);
    }
}
