//! A seeded generator: the seed is printed, and `OCTAVO_SEED` repeats a run.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA '14).
pub struct Random(u64);

impl Random {
    /// A generator from `OCTAVO_SEED`, or from the clock; prints its seed.
    pub fn seeded(test: &str) -> Random {
        let seed = match std::env::var("OCTAVO_SEED") {
            Ok(seed) => seed.parse().expect("OCTAVO_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64),
        };
        println!("{test}: OCTAVO_SEED={seed}");
        Random(seed)
    }

    /// A generator from `OCTAVO_SEED`, or from this seed: for what is true of nearly all seeds, and
    /// of this one.
    pub fn fixed(test: &str, seed: u64) -> Random {
        let seed =
            std::env::var("OCTAVO_SEED").map_or(seed, |seed| seed.parse().expect("OCTAVO_SEED is a number"));
        println!("{test}: OCTAVO_SEED={seed}");
        Random(seed)
    }

    /// A generator of its own for another thread.
    pub fn split(&mut self) -> Random {
        Random(self.next())
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(count);
        bytes
    }
}
