//! A curve, its points and their errors; and the options by which curves are made.

use serde::Serialize;

use crate::plan::Policy;
use crate::source::Sample;

/// How a curve is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// From all distances, of LRU.
    Exact,
    /// From the distances of a fixed share of the pages, of LRU.
    Shards,
    /// From the distances of a fixed number of pages, of LRU.
    ShardsSize,
    /// From small caches of any policy that see a share of the pages.
    Miniature,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 4] = [Method::Exact, Method::Shards, Method::ShardsSize, Method::Miniature];

    /// Returns the method's name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Method::Exact => "exact",
            Method::Shards => "shards",
            Method::ShardsSize => "shards-size",
            Method::Miniature => "miniature",
        }
    }
}

/// Which curves to make.
#[derive(Clone, Debug)]
pub struct Options {
    /// The methods, each at most once.
    pub methods: Vec<Method>,
    /// The policies of miniatures.
    pub policies: Vec<Policy>,
    /// Pages of a set, for miniatures of policies inside sets.
    pub ways: Vec<u32>,
    /// The number of sizes of a curve, by equal factors from a thousandth of the footprint to all
    /// of it.
    pub points: usize,
    /// Pages in a sample of fixed size, and in a miniature. None: [`SAMPLES`] and
    /// [`MINIATURE_SAMPLES`].
    pub samples: Option<u32>,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The share of the pages in a sample of fixed rate (None: [`RATE_DEFAULT`]); for miniatures,
    /// in place of `samples`.
    pub rate: Option<f64>,
    /// The memory that miniatures may take, in bytes. None: no limit.
    pub memory_bytes: Option<u64>,
    /// Chooses the sample, and places pages in sets.
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
}

/// The default number of pages in a sample of fixed size: 4 MiB of memory, and as much for its
/// parts.
pub const SAMPLES: u32 = 1 << 16;
/// The default number of pages of a miniature; there is a miniature for each size.
pub const MINIATURE_SAMPLES: u32 = 1 << 13;
/// The default rate of [`Method::Shards`].
pub const RATE_DEFAULT: f64 = 0.01;
/// The most pages in a sample of fixed rate; if more qualify, the rate is lowered.
pub const RATE_SAMPLES_MAX: u32 = 1 << 20;
/// The parts of a sample from which its error is estimated.
pub const PARTS: u32 = 8;

/// The curve of one policy over one trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curve {
    /// Always `curve`.
    pub kind: &'static str,
    /// The name of the trace.
    pub trace: String,
    /// The policy: that of the miniatures, and `lru` for the other methods.
    pub policy: &'static str,
    /// Pages of a set; None for a policy without sets.
    pub ways: Option<u32>,
    /// The name of the method.
    pub method: &'static str,
    /// Accesses.
    pub requests: u64,
    /// Different pages; an estimate for samplers.
    pub footprint_pages: u64,
    /// The same in bytes.
    pub footprint_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The share of the pages that was followed at the end; for miniatures, the lowest share of all
    /// sizes.
    pub rate: f64,
    /// The points, in the order of their sizes.
    pub points: Vec<CurvePoint>,
    /// The mean difference from the exact curve over all points, if that curve was made too and is
    /// of the same policy.
    pub exact_difference_mean: Option<f64>,
    /// The greatest difference from the exact curve of all points.
    pub exact_difference_max: Option<f64>,
    /// Malformed records that were skipped.
    pub skipped: u64,
    /// Whether the trace was read to its end.
    pub complete: bool,
}

/// A size of cache and its misses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The size in pages.
    pub capacity_pages: u64,
    /// Misses / requests.
    pub miss_ratio: f64,
    /// The size in bytes.
    pub capacity_bytes: u64,
    /// Half the length of the error bar: in 19 of 20 points, the true ratio is at most this far
    /// above or below `miss_ratio`. 0 if all pages were followed. None: a cache of this size holds
    /// too few pages of the sample to tell.
    pub error: Option<f64>,
}

impl CurvePoint {
    /// Makes a point with its standard error; bytes come later.
    pub(crate) fn new(capacity_pages: u64, miss_ratio: f64, error: f64) -> CurvePoint {
        CurvePoint { capacity_pages, miss_ratio, capacity_bytes: 0, error: Some(error) }
    }
}

/// How many standard errors an `error` has. Two would do for a normal distribution, but a sample's
/// estimates have heavier tails, since a few popular pages have a large share of all misses, and
/// eight parts give their spread only to within a quarter.
const DEVIATIONS: f64 = 3.0;
/// The standard error of a point is the greatest of those at sizes up to this factor away.
/// Neighbours see the same distances, and where a curve is steep their errors jump from one to the
/// next.
const NEIGHBOUR: f64 = 2.0;
/// The smallest number of sampled pages, in a cache and in total, for which the spread of the parts
/// is meaningful: each part has only an eighth of them.
const SAMPLED_MIN: f64 = 16.0;
const SAMPLE_MIN: f64 = 512.0;

/// Turns the standard errors of a sampled curve into intervals; `rate` returns a point's rate.
pub(super) fn widen(points: &mut [CurvePoint], footprint_pages: u64, rate: impl Fn(&CurvePoint) -> f64) {
    let errors: Vec<(u64, f64)> =
        points.iter().map(|point| (point.capacity_pages, point.error.unwrap_or(0.0))).collect();
    for point in points.iter_mut() {
        let pages = point.capacity_pages as f64;
        let near = |size: u64| (pages / NEIGHBOUR..=pages * NEIGHBOUR).contains(&(size as f64));
        let greatest =
            errors.iter().filter(|(size, _)| near(*size)).map(|(_, error)| *error).fold(0.0, f64::max);
        let rate = rate(point);
        let tells = rate >= 1.0 || pages * rate >= SAMPLED_MIN && footprint_pages as f64 * rate >= SAMPLE_MIN;
        point.error = tells.then_some(if rate >= 1.0 { 0.0 } else { DEVIATIONS * greatest });
    }
}

impl Curve {
    /// Fills in the sizes in bytes.
    pub(super) fn in_bytes(&mut self, page_bytes: u64) {
        self.page_bytes = page_bytes;
        self.footprint_bytes = self.footprint_pages.saturating_mul(page_bytes);
        for point in &mut self.points {
            point.capacity_bytes = point.capacity_pages.saturating_mul(page_bytes);
        }
    }

    /// Turns the curve of a trace that is a sample into the curve of all pages.
    pub(super) fn scale_up(&mut self, sample: &Sample) {
        for point in &mut self.points {
            point.capacity_pages = sample.scaled_up(point.capacity_pages);
            let misses = point.miss_ratio * self.requests as f64;
            point.miss_ratio = sample.miss_ratio(misses.round() as u64);
        }
        self.footprint_pages = sample.scaled_up(self.footprint_pages);
        self.rate *= sample.rate;
        self.requests = sample.accesses;
    }
}

/// Returns the standard error of the mean of estimates from disjoint parts of a sample that has the
/// share `rate` of all pages.
pub(super) fn error_of_mean(estimates: &[f64], rate: f64) -> f64 {
    let count = estimates.len() as f64;
    let mean = estimates.iter().sum::<f64>() / count;
    let variance = estimates.iter().map(|estimate| (estimate - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (variance / count * (1.0 - rate)).sqrt()
}
