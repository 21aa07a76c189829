//! W-TinyLFU. For comparison only.
//!
//! Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy" (ACM
//! Transactions on Storage 13(4), 2017). An LRU window of a hundredth of the cache is followed by a
//! segmented LRU (the main part), a fifth of which is on probation. A page that leaves the window
//! enters the main part only if the sketch counted it more often than the page that it would
//! displace.
//!
//! The paper leaves the sketch to the implementation. This one is libCacheSim's to the last bit: a
//! counting Bloom filter in which one estimate in a thousand is wrong while it holds as many pages
//! as the main part. It counts arrivals, hits in the main part, and departures from the window;
//! after 32 such hits per page of the main part all counts are halved. With another hash, the miss
//! ratios of a cache of 500 pages differ by up to 0.06: once the filter has seen far more pages
//! than it is sized for, its estimates are mostly chance. Caffeine counts every access in four
//! bits, halves after ten accesses per page, and adapts the size of the window; none of these is
//! implemented here.
//!
//! Where the main part does not divide by five, libCacheSim rounds both segments down, and a hit
//! then evicts a page though the cache is not full. Here the segment on probation is rounded up.
//! The miss ratios are the same where it does divide.

use super::lists::Lists;
use crate::cache::Cache;

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// Hits per page of the main part between two halvings.
const HITS_PER_PAGE: u64 = 32;

pub(super) struct WTinyLfu {
    capacity: u64,
    probation_max: u64,
    protected_max: u64,
    pages: Lists,
    sketch: Sketch,
    hits: u64,
}

impl WTinyLfu {
    pub fn new(capacity: u64) -> Self {
        let [_, probation_max, protected_max] = parts(capacity);
        let (pages, sketch) = (Lists::new(3), Sketch::new(probation_max + protected_max));
        WTinyLfu { capacity, probation_max, protected_max, pages, sketch, hits: 0 }
    }

    fn main_max(&self) -> u64 {
        self.probation_max + self.protected_max
    }

    fn main(&self) -> u64 {
        self.pages.len(PROBATION) + self.pages.len(PROTECTED)
    }

    /// Moves a page from the window to the main part, which has room: to probation while it has
    /// room.
    fn admit(&mut self, node: u32) {
        let probation_is_full = self.pages.len(PROBATION) >= self.probation_max;
        let protected = probation_is_full && self.pages.len(PROTECTED) < self.protected_max;
        self.pages.move_to(if protected { PROTECTED } else { PROBATION }, node);
    }

    fn hit_main(&mut self, node: u32) {
        self.pages.move_to(PROTECTED, node);
        if self.pages.len(PROTECTED) > self.protected_max {
            self.pages.move_oldest(PROTECTED, PROBATION);
        }
        self.sketch.count(self.pages.page(node));
        self.hits += 1;
        if self.hits >= HITS_PER_PAGE * self.main_max() {
            self.hits = 0;
            self.sketch.halve();
        }
    }

    fn main_victim(&self) -> Option<u32> {
        self.pages.oldest(PROBATION).or_else(|| self.pages.oldest(PROTECTED))
    }

    /// Makes room for one page in the window.
    fn evict(&mut self) {
        loop {
            let Some(candidate) = self.pages.oldest(WINDOW) else {
                let victim = self.main_victim().expect("the cache is full");
                return self.pages.remove(victim);
            };
            let page = self.pages.page(candidate);
            if self.main() < self.main_max() {
                self.admit(candidate);
                self.sketch.count(page);
                continue;
            }
            let estimate = self.sketch.estimate(page);
            match self.main_victim() {
                Some(victim) if estimate > self.sketch.estimate(self.pages.page(victim)) => {
                    self.pages.remove(victim);
                    self.admit(candidate);
                }
                _ => self.pages.remove(candidate),
            }
            return self.sketch.count(page);
        }
    }
}

/// Returns the pages of the window, on probation, and protected.
pub(super) fn parts(capacity: u64) -> [u64; 3] {
    let window = (capacity / 100).max(1);
    let main = capacity - window;
    let probation = main.div_ceil(5);
    [window, probation, main - probation]
}

impl Cache for WTinyLfu {
    fn access(&mut self, page: u64) -> bool {
        if let Some(node) = self.pages.find(page) {
            match self.pages.list(node) {
                WINDOW => self.pages.move_to(WINDOW, node),
                _ => self.hit_main(node),
            }
            return true;
        }
        while self.pages.known() == self.capacity {
            self.evict();
        }
        self.pages.push(WINDOW, page, ());
        self.sketch.count(page);
        false
    }

    fn resident_pages(&self) -> u64 {
        self.pages.known()
    }
}

/// A counting Bloom filter.
pub(super) struct Sketch {
    counters: Vec<u32>,
}

/// ln(1000) / ln(2)^2: one estimate in a thousand is wrong once the sketch has counted as many
/// pages as it is sized for.
const COUNTERS_PER_PAGE: f64 = 14.377_587;
/// ln(2) times [`COUNTERS_PER_PAGE`]: the optimal number of hashes.
const HASHES: u32 = 10;

/// The seeds that libCacheSim uses.
const SEEDS: [u64; 2] = [0x12345678, 0x12344321];

/// Returns XXH64 of the eight bytes of a number.
fn xxh64(number: u64, seed: u64) -> u64 {
    const P: [u64; 5] = [
        0x9E37_79B1_85EB_CA87,
        0xC2B2_AE3D_27D4_EB4F,
        0x1656_67B1_9E37_79F9,
        0x85EB_CA77_C2B2_AE63,
        0x27D4_EB2F_1656_67C5,
    ];
    let lane = number.wrapping_mul(P[1]).rotate_left(31).wrapping_mul(P[0]);
    let mut hash = seed.wrapping_add(P[4]).wrapping_add(8) ^ lane;
    hash = hash.rotate_left(27).wrapping_mul(P[0]).wrapping_add(P[3]);
    hash = (hash ^ (hash >> 33)).wrapping_mul(P[1]);
    hash = (hash ^ (hash >> 29)).wrapping_mul(P[2]);
    hash ^ (hash >> 32)
}

impl Sketch {
    pub fn new(pages: u64) -> Self {
        let counters = (pages as f64 * COUNTERS_PER_PAGE).ceil().min(f64::from(i32::MAX)) as usize;
        Sketch { counters: vec![0; counters.max(2 * HASHES as usize)] }
    }

    fn places(&self, page: u64) -> impl Iterator<Item = usize> + use<> {
        let (first, step) = (xxh64(page, SEEDS[0]) as u32, xxh64(page, SEEDS[1]) as u32);
        let len = self.counters.len() as u32;
        (0..HASHES).map(move |number| (first.wrapping_add(number.wrapping_mul(step)) % len) as usize)
    }

    pub fn count(&mut self, page: u64) {
        for place in self.places(page) {
            self.counters[place] = self.counters[place].saturating_add(1);
        }
    }

    pub fn estimate(&self, page: u64) -> u32 {
        self.places(page).map(|place| self.counters[place]).min().expect("there are hashes")
    }

    pub fn halve(&mut self) {
        for counter in &mut self.counters {
            *counter /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sketch_never_underestimates_and_seldom_overestimates() {
        let mut sketch = Sketch::new(1000);
        for page in 0..1000 {
            for _ in 0..1 + page % 7 {
                sketch.count(page);
            }
        }
        let wrong = (0..1000).filter(|page| sketch.estimate(*page) != 1 + (*page % 7) as u32).count();
        assert!(wrong <= 10, "{wrong}");
        assert!((0..1000).all(|page| sketch.estimate(page) > (page % 7) as u32));
        sketch.halve();
        assert_eq!(sketch.estimate(6), 3);
    }

    #[test]
    fn a_scan_passes_through_the_window() {
        let mut cache = WTinyLfu::new(200);
        // The scans fill the cache, so that pages used again reach the main part and are counted
        // there.
        for pages in [0..150, 1000..1060, 0..150, 0..150, 0..150, 2000..3000] {
            cache.run(&pages.collect::<Vec<u64>>());
        }
        assert!((0..150).filter(|page| cache.access(*page)).count() >= 145);
    }
}
