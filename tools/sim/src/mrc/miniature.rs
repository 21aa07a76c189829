//! Miniatures: small caches that stand for larger ones and see a sample of the pages.

use octavo_table::Mixer;

use super::curve::{CurvePoint, MINIATURE_SAMPLES, Options, PARTS, error_of_mean};
use crate::cache::Cache;
use crate::plan::Policy;
use crate::room::{self, Wanted};
use crate::row::ratio;
use crate::source::SourceError;

/// The smallest number of sets in a miniature of a policy inside sets, whatever the rate.
const MINIATURE_SETS_MIN: u64 = 64;

/// The greatest number of a page, plus one.
const NUMBERS: f64 = (1u64 << 32) as f64;

/// A miniature of a cache of one size, and one for each part of its sample.
pub struct Miniature {
    pub policy: Policy,
    pub ways: Option<u32>,
    /// The size that the miniature stands for.
    pub capacity_pages: u64,
    /// The share of the pages that the miniature sees.
    pub rate: f64,
    mixer: Mixer,
    whole: Sampled,
    /// Empty if the miniature has the size that it stands for: its estimate then has no error.
    parts: Vec<Sampled>,
    sample: Vec<u64>,
}

/// A cache that sees the pages with numbers in a range.
struct Sampled {
    from: u64,
    to: u64,
    cache: Box<dyn Cache>,
    misses: u64,
}

impl Miniature {
    /// Refuses miniatures that take more memory than there is. The parts of a miniature together
    /// have as many pages as the miniature itself.
    pub fn check_room(options: &Options, sizes: &[u64]) -> Result<(), SourceError> {
        let wanted = Policy::with_ways(&options.policies, &options.ways).flat_map(|(policy, ways)| {
            let pages = move |size: &u64| Miniature::pages(policy, ways, *size, options);
            sizes.iter().map(pages).flat_map(move |pages| [Wanted { policy, ways, pages }; 2])
        });
        room::check(&wanted.collect::<Vec<_>>(), options.page_bytes, options.memory_bytes)
    }

    /// Makes the miniatures of all policies, ways and sizes; those of one curve follow each other.
    pub fn all(options: &Options, sizes: &[u64]) -> impl Iterator<Item = Miniature> {
        Policy::with_ways(&options.policies, &options.ways).flat_map(move |(policy, ways)| {
            sizes.iter().map(move |size| Miniature::new(policy, ways, *size, options))
        })
    }

    /// Returns the pages of the miniature of a cache of `capacity_pages`.
    fn pages(policy: Policy, ways: Option<u32>, capacity_pages: u64, options: &Options) -> u64 {
        let least = MINIATURE_SETS_MIN * u64::from(ways.unwrap_or(16));
        let samples = u64::from(options.samples.unwrap_or(MINIATURE_SAMPLES));
        let asked = options.rate.map_or(samples, |rate| (capacity_pages as f64 * rate) as u64);
        policy.capacity_pages(ways, asked.max(least).min(capacity_pages))
    }

    fn new(policy: Policy, ways: Option<u32>, capacity_pages: u64, options: &Options) -> Miniature {
        // All capacities are rounded as the caches round them, so that the rates fit.
        let capacity_pages = policy.capacity_pages(ways, capacity_pages);
        let pages = Self::pages(policy, ways, capacity_pages, options);
        let rate = pages as f64 / capacity_pages as f64;
        let sampled = |from: f64, pages: u64| Sampled {
            from: (from * NUMBERS) as u64,
            to: ((from + pages as f64 / capacity_pages as f64) * NUMBERS) as u64,
            cache: policy.cache(ways, pages, options.seed).expect("a miniature does not know the future"),
            misses: 0,
        };
        let whole = sampled(0.0, pages);
        let part_pages = policy.capacity_pages(ways, pages / u64::from(PARTS));
        let part =
            |number| sampled(f64::from(number) * part_pages as f64 / capacity_pages as f64, part_pages);
        let parts = if rate < 1.0 { (0..PARTS).map(part).collect() } else { Vec::new() };
        // A mixer other than the cache's own: with the same one, the sample would crowd into some
        // of the cache's sets.
        let mixer = Mixer::new(!options.seed);
        Miniature { policy, ways, capacity_pages, rate, mixer, whole, parts, sample: Vec::new() }
    }

    /// Takes the next accesses.
    pub fn feed(&mut self, pages: &[u64]) {
        let mixer = &self.mixer;
        let number = |page: &u64| mixer.tag(*page).0 >> 32;
        if self.parts.is_empty() {
            self.whole.misses += self.whole.cache.run(pages);
            return;
        }
        for sampled in std::iter::once(&mut self.whole).chain(&mut self.parts) {
            self.sample.clear();
            self.sample
                .extend(pages.iter().filter(|page| (sampled.from..sampled.to).contains(&number(page))));
            sampled.misses += sampled.cache.run(&self.sample);
        }
    }

    /// Returns the point of the curve at the size that the miniature stands for.
    pub fn point(&self, requests: u64) -> CurvePoint {
        if self.parts.is_empty() {
            return CurvePoint::new(self.capacity_pages, ratio(self.whole.misses, requests), 0.0);
        }
        let estimate = |sampled: &Sampled| {
            let rate = (sampled.to - sampled.from) as f64 / NUMBERS;
            (sampled.misses as f64 / rate / requests.max(1) as f64).min(1.0)
        };
        let parts: Vec<f64> = self.parts.iter().map(estimate).collect();
        CurvePoint::new(self.capacity_pages, estimate(&self.whole), error_of_mean(&parts, self.rate))
    }
}
