//! Miss-ratio curves: the misses at every size of cache, from one reading of a trace.
//!
//! - *exact*: LRU's curve, from the distance of every reference (Mattson et al. 1970; a tree over
//!   time as in Olken 1981). Memory is proportional to the different pages, about 50 bytes each;
//!   counts are exact at every size.
//! - *shards*, *shards-size*: LRU's curve, from a sample (`shards.rs`) at a fixed rate or with a
//!   fixed number of pages.
//! - *miniature*: the curve of any policy (Waldspurger et al., "Cache Modeling and Optimization
//!   using Miniature Simulations", USENIX ATC '17). For each size, a small cache with the policy's
//!   own code sees a sample of the pages. As in SHARDS, the miss ratio is the sampled misses
//!   divided by the sampling rate and by the number of all references.
//!
//! *Errors.* The pages of a sample are divided by hash into [`PARTS`] parts, and each part makes
//! its own estimate with its own sampler or miniature. The standard error of the whole is the
//! standard deviation of these estimates, divided by the square root of their number, times the
//! root of (1 - rate): a sample of everything has no error. A point's `error` is three standard
//! errors (`widen`); it covers the luck of the draw, not what small caches do differently from
//! large ones. A sample has no bias: over many seeds its errors have the mean 0. But along one
//! curve the errors have one sign, since they come from the same few popular pages, which are in
//! the sample or not.
//!
//! What is not here: policies and files.

mod curve;
mod exact;
mod miniature;
mod shards;
mod stack;

use std::sync::atomic::AtomicBool;

use octavo_table::Mixer;

use crate::feed::{Feed, feed};
use crate::footprint::Footprint;
use crate::simulate::{Progress, Step, Trace};
use crate::source::SourceError;
use curve::{error_of_mean, widen};
use exact::ExactLru;
use miniature::Miniature;
use shards::{Shards, ShardsOptions};

pub use curve::{
    Curve, CurvePoint, MINIATURE_SAMPLES, Method, Options, PARTS, RATE_DEFAULT, RATE_SAMPLES_MAX, SAMPLES,
};

/// Makes all curves of a trace from one reading; miniatures need an earlier reading, which
/// determines their sizes. Returns no curves if `stop` is set during that reading.
///
/// # Errors
/// The trace cannot be opened or read, is malformed or empty, or the miniatures do not fit into
/// memory.
pub fn curves(
    trace: &Trace<'_>,
    options: &Options,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Curve>, SourceError> {
    // 1. The sizes of miniatures.
    let mut sizes = Vec::new();
    let mut counted_pages = None;
    if options.methods.contains(&Method::Miniature) {
        let Some(counted) = Footprint::of(trace, stop, progress)? else { return Ok(Vec::new()) };
        counted_pages = Some(counted.pages);
        sizes = capacities(counted.pages, options.points);
        Miniature::check_room(options, &sizes)?;
    }
    // 2. One reading for all.
    let mut works: Vec<Work> =
        options.methods.iter().flat_map(|method| Work::of(*method, options, &sizes)).collect();
    let mut source = (trace.open)()?;
    let mut next = |batch: &mut Vec<u64>| source.next(batch).map(|()| source.progress());
    let fed = feed(&mut next, &mut works, options.jobs, stop, &mut |requests, share| {
        progress(Progress { trace: &trace.name, step: Step::Run, requests, share });
    })?;
    if fed.complete {
        trace.must_have_accesses(fed.requests)?;
    }
    // 3. The curves, all at the same sizes. The most accurate count of the footprint determines the
    //    sizes.
    let footprint_pages = counted_pages
        .or(works.iter().find_map(|work| work.exact().map(ExactLru::footprint_pages)))
        .or(works.iter().find_map(|work| work.shards().map(ShardsInParts::footprint_pages)))
        .unwrap_or(0);
    let empty = Curve {
        kind: "curve",
        trace: trace.name.clone(),
        policy: "lru",
        requests: fed.requests,
        footprint_pages,
        rate: 1.0,
        skipped: source.skipped(),
        complete: fed.complete,
        ..Curve::default()
    };
    let sizes = capacities(footprint_pages, options.points);
    let groups = works.chunk_by(Work::is_of_the_same_curve);
    let mut curves: Vec<Curve> = groups.map(|group| Work::curve(group, empty.clone(), &sizes)).collect();
    compare_with_exact(&mut curves);
    for curve in &mut curves {
        if let Some(sample) = source.sample() {
            curve.scale_up(&sample);
        }
        curve.in_bytes(options.page_bytes);
    }
    Ok(curves)
}

/// Returns sizes by equal factors from a thousandth of the footprint to all of it, each once.
fn capacities(footprint_pages: u64, points: usize) -> Vec<u64> {
    let to = footprint_pages.max(1) as f64;
    let from = (to / 1000.0).max(1.0);
    let steps = points.max(2) - 1;
    let mut sizes: Vec<u64> = (0..=steps)
        .map(|step| (from * (to / from).powf(step as f64 / steps as f64)).round() as u64)
        .collect();
    sizes.dedup();
    sizes
}

fn compare_with_exact(curves: &mut [Curve]) {
    let exact =
        curves.iter().find(|curve| curve.method == Method::Exact.name()).map(|curve| curve.points.clone());
    let Some(exact) = exact else { return };
    let samplers = [Method::Shards.name(), Method::ShardsSize.name()];
    for curve in curves.iter_mut().filter(|curve| samplers.contains(&curve.method)) {
        let differences = || {
            exact.iter().zip(&curve.points).map(|(exact, point)| (exact.miss_ratio - point.miss_ratio).abs())
        };
        curve.exact_difference_mean = Some(differences().sum::<f64>() / exact.len() as f64);
        curve.exact_difference_max = Some(differences().fold(0.0, f64::max));
    }
}

/// An estimator that accesses are fed to.
enum Work {
    Exact(ExactLru),
    Shards(Box<ShardsInParts>),
    Miniature(Miniature),
}

impl Work {
    fn of(method: Method, options: &Options, sizes: &[u64]) -> Vec<Work> {
        let shards = |rate, samples_max| {
            let options = ShardsInParts::new(method, ShardsOptions { rate, samples_max }, options.seed);
            vec![Work::Shards(Box::new(options))]
        };
        match method {
            Method::Exact => vec![Work::Exact(ExactLru::new())],
            Method::Shards => shards(options.rate.unwrap_or(RATE_DEFAULT), RATE_SAMPLES_MAX),
            Method::ShardsSize => shards(1.0, options.samples.unwrap_or(SAMPLES)),
            Method::Miniature => Miniature::all(options, sizes).map(Work::Miniature).collect(),
        }
    }

    fn exact(&self) -> Option<&ExactLru> {
        if let Work::Exact(exact) = self { Some(exact) } else { None }
    }

    fn shards(&self) -> Option<&ShardsInParts> {
        if let Work::Shards(shards) = self { Some(shards) } else { None }
    }

    fn miniature(&self) -> Option<&Miniature> {
        if let Work::Miniature(miniature) = self { Some(miniature) } else { None }
    }

    /// Returns whether both are miniatures of one policy with the same ways.
    fn is_of_the_same_curve(&self, other: &Work) -> bool {
        let curve = |work: &Work| work.miniature().map(|miniature| (miniature.policy, miniature.ways));
        curve(self).is_some() && curve(self) == curve(other)
    }

    /// Fills in the curve of estimators that belong together.
    fn curve(group: &[Work], mut curve: Curve, sizes: &[u64]) -> Curve {
        match &group[0] {
            Work::Exact(exact) => {
                curve.method = Method::Exact.name();
                curve.points = sizes.iter().map(|size| exact.point(*size)).collect();
            }
            Work::Shards(shards) => {
                curve.method = shards.method.name();
                curve.footprint_pages = shards.footprint_pages();
                curve.rate = shards.whole.rate();
                curve.points = sizes.iter().map(|size| shards.point(*size)).collect();
                widen(&mut curve.points, curve.footprint_pages, |_| curve.rate);
            }
            Work::Miniature(first) => {
                (curve.method, curve.policy, curve.ways) =
                    (Method::Miniature.name(), first.policy.name(), first.ways);
                let all = || group.iter().filter_map(Work::miniature);
                curve.rate = all().map(|miniature| miniature.rate).fold(1.0, f64::min);
                curve.points = all().map(|miniature| miniature.point(curve.requests)).collect();
                widen(&mut curve.points, curve.footprint_pages, |point| {
                    let mut of = all().filter(|miniature| miniature.capacity_pages == point.capacity_pages);
                    of.next().map_or(1.0, |miniature| miniature.rate)
                });
            }
        }
        curve
    }
}

impl Feed<u64> for Work {
    fn feed(&mut self, pages: &[u64]) {
        match self {
            Work::Exact(exact) => pages.iter().for_each(|page| exact.reference(*page)),
            Work::Shards(shards) => pages.iter().for_each(|page| shards.reference(*page)),
            Work::Miniature(miniature) => miniature.feed(pages),
        }
    }
}

/// A sampler of all pages, and one for each part of the pages.
struct ShardsInParts {
    method: Method,
    mixer: Mixer,
    whole: Shards,
    parts: Vec<Shards>,
}

impl ShardsInParts {
    fn new(method: Method, options: ShardsOptions, seed: u64) -> Self {
        let part = ShardsOptions { samples_max: (options.samples_max / PARTS).max(1), ..options };
        ShardsInParts {
            method,
            mixer: Mixer::new(seed),
            whole: Shards::new(options),
            parts: (0..PARTS).map(|_| Shards::new(part)).collect(),
        }
    }

    fn footprint_pages(&self) -> u64 {
        self.whole.pages().round() as u64
    }

    fn reference(&mut self, page: u64) {
        let tag = self.mixer.tag(page);
        self.whole.reference(tag);
        // The draw of a tag is independent of whether its page is in the sample.
        self.parts[usize::from(tag.draw()) % PARTS as usize].reference(tag);
    }

    fn point(&self, capacity_pages: u64) -> CurvePoint {
        // A part has one eighth of the pages, of the cache's capacity and, on average, of the
        // references.
        let share = f64::from(PARTS);
        let requests = self.whole.references().max(1) as f64;
        let estimate = |part: &Shards| {
            part.misses_among(capacity_pages as f64 / share, requests / share) * share / requests
        };
        let estimates: Vec<f64> = self.parts.iter().map(estimate).collect();
        let miss_ratio = self.whole.miss_ratio(capacity_pages as f64);
        CurvePoint::new(capacity_pages, miss_ratio, error_of_mean(&estimates, self.whole.rate()))
    }
}

#[cfg(test)]
mod tests;
