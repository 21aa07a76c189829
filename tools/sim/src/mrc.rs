//! Miss-ratio curves: how much every size of cache would miss, from one reading of a trace.
//!
//! - *exact*: LRU's, by the distance of every reference (Mattson et al. 1970; a tree over time as
//!   Olken has it). Memory is proportional to the different pages, some 50 bytes each; counts are
//!   exact at every size.
//! - *shards*, *shards-size*: LRU's, by the engine's sampler ([`Shards`]) at a fixed rate or with a
//!   fixed number of samples.
//! - *miniature*: any policy's (Waldspurger et al., "Cache Modeling and Optimization using
//!   Miniature Simulations", USENIX ATC '17). A size is stood for by a small cache, with the
//!   policy's own code, that is shown a sample of the pages; misses are divided by the references
//!   that there were, as SHARDS does it.
//!
//! *Errors.* The pages of a sample are divided by hash into [`PARTS`] parts, each of which makes an
//! estimate of its own with a sampler or a miniature of its own. The standard error of the whole is
//! the standard deviation of these estimates over the square root of their number, times
//! the root of (1 - rate): a sample of everything does not err. A point's `error` is three of them
//! (`widen`); it covers the luck of the draw, not what small caches do otherwise than large ones. A
//! sample has no bias: over many seeds its errors have the mean 0. But along one curve they
//! have one sign, since they come from the same few popular pages, in the sample or not.
//!
//! What is not here: policies, samplers, files.

mod shards;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use octavo_table::Mixer;
use serde::Serialize;

use crate::cache::Cache;
use crate::footprint::{BuildPageHasher, Footprint};
use crate::plan::Policy;
use crate::room::{self, Wanted};
use crate::simulate::{Feed, Progress, Step, Trace, feed, ratio};
use crate::source::{Sample, SourceError};
use shards::{Shards, ShardsOptions, Stack};

/// How a curve comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// All distances, of LRU.
    Exact,
    /// Distances of a fixed share of the pages, of LRU.
    Shards,
    /// Distances of a fixed number of pages, of LRU.
    ShardsSize,
    /// Small caches of any policy that see a share of the pages.
    Miniature,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 4] = [Method::Exact, Method::Shards, Method::ShardsSize, Method::Miniature];

    /// The word for it on command lines.
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
    /// Each once.
    pub methods: Vec<Method>,
    /// For miniatures.
    pub policies: Vec<Policy>,
    /// For miniatures of policies inside sets.
    pub ways: Vec<u32>,
    /// Sizes of a curve, by equal factors from a thousandth of the footprint to all of it.
    pub points: usize,
    /// Pages in a sample of fixed size, and in a miniature. None: [`SAMPLES`], and
    /// [`MINIATURE_SAMPLES`].
    pub samples: Option<u32>,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The share of the pages in a sample of fixed rate; for miniatures, in place of `samples`.
    pub rate: Option<f64>,
    /// Memory that miniatures may take. None: it is not known.
    pub memory_bytes: Option<u64>,
    /// Chooses the sample, and places pages in sets.
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
}

/// Pages in a sample of fixed size where no number is asked for: 4 MiB of memory, and as much for
/// its parts.
pub const SAMPLES: u32 = 1 << 16;
/// Pages of a miniature where no number is asked for: there is one for each size.
pub const MINIATURE_SAMPLES: u32 = 1 << 13;
/// The rate of [`Method::Shards`] where none is asked for.
pub const RATE_DEFAULT: f64 = 0.01;
/// Samples of a fixed rate at most; a trace that has more has its rate lowered.
pub const RATE_SAMPLES_MAX: u32 = 1 << 20;
/// The parts of a sample that its error is judged by.
pub const PARTS: u32 = 8;
/// A miniature of policies inside sets has at least so many of them, whatever the rate.
const MINIATURE_SETS_MIN: u64 = 64;

/// The curve of one policy over one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// `curve`.
    pub kind: &'static str,
    /// The trace.
    pub trace: String,
    /// `lru` for the methods that know no other; else the policy of the miniatures.
    pub policy: &'static str,
    /// Pages of a set; None for a policy without sets.
    pub ways: Option<u32>,
    /// How it came about.
    pub method: &'static str,
    /// Accesses.
    pub requests: u64,
    /// Different pages; of samplers an estimate.
    pub footprint_pages: u64,
    /// The same in bytes.
    pub footprint_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The share of the pages that was followed at the end; of miniatures, the least of all sizes.
    pub rate: f64,
    /// By capacity.
    pub points: Vec<CurvePoint>,
    /// How far it lies from the exact curve, where that was made too and is of the same policy: the
    /// mean over the points.
    pub exact_difference_mean: Option<f64>,
    /// The same: the greatest of all points.
    pub exact_difference_max: Option<f64>,
    /// Malformed records that were passed over.
    pub skipped: u64,
    /// Whether the trace was read to its end.
    pub complete: bool,
}

/// A size, and what it misses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The size.
    pub capacity_pages: u64,
    /// Misses / requests.
    pub miss_ratio: f64,
    /// The same in bytes.
    pub capacity_bytes: u64,
    /// How far the true ratio may lie from this, either way: it does not in 19 of 20 points. 0
    /// where all pages were followed. None: too few pages of the sample are in a cache of this
    /// size to tell.
    pub error: Option<f64>,
}

/// Standard errors that `error` is: three, where two would do for a normal distribution. A sample's
/// estimates have heavier tails, since a few popular pages have a great share of all misses, and
/// eight parts know their spread to a quarter.
const DEVIATIONS: f64 = 3.0;
/// The standard error of a point is the greatest of those at sizes up to this factor away.
/// Neighbours see the same distances, and where a curve is steep their errors jump from one to the
/// other.
const NEIGHBOUR: f64 = 2.0;
/// Below so many pages of the sample in a cache, or so many in all of it, the parts' spread says
/// nothing: an eighth of them is too few.
const SAMPLED_MIN: f64 = 16.0;
const SAMPLE_MIN: f64 = 512.0;

/// Makes standard errors of a curve from a sample into intervals; `rate` is that of a point.
fn widen(points: &mut [CurvePoint], footprint_pages: u64, rate: impl Fn(&CurvePoint) -> f64) {
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

/// Makes all curves of a trace from one reading; miniatures need another before, to know the sizes.
pub fn curves(
    trace: &Trace<'_>,
    options: &Options,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Curve>, SourceError> {
    // 1. The sizes of miniatures.
    let mut sizes = Vec::new();
    let mut footprint_pages = None;
    if options.methods.contains(&Method::Miniature) {
        let mut news = |requests, share| {
            progress(Progress { trace: &trace.name, step: Step::Count, requests, share });
        };
        let counted = Footprint::of(&mut *(trace.open)()?, stop, &mut news)?;
        if !counted.complete {
            return Ok(Vec::new());
        }
        footprint_pages = Some(counted.pages);
        sizes = capacities(counted.pages, options.points);
        check_room(options, &sizes)?;
    }
    // 2. One reading for all.
    let mut works: Vec<Work> =
        options.methods.iter().flat_map(|method| Work::of(*method, options, &sizes)).collect();
    let mut source = (trace.open)()?;
    let mut news =
        |requests, share| progress(Progress { trace: &trace.name, step: Step::Run, requests, share });
    let mut next = |batch: &mut Vec<u64>| source.next(batch).map(|()| source.progress());
    let fed = feed(&mut next, &mut works, options.jobs, stop, &mut news)?;
    if fed.requests == 0 && fed.complete {
        return Err(SourceError(format!("{}: there is no access in it", trace.name)));
    }
    // 3. What they found, at the same sizes for all; who counted all pages knows best how many there
    //    are.
    let exact = works.iter().find_map(|work| match work {
        Work::Exact(exact) => Some(exact.footprint_pages()),
        _ => None,
    });
    let estimate = works.iter().find_map(|work| match work {
        Work::Shards(shards) => Some(shards.whole.pages().round() as u64),
        _ => None,
    });
    let footprint_pages = footprint_pages.or(exact).or(estimate).unwrap_or(0);
    let sizes = capacities(footprint_pages, options.points);
    let mut curves: Vec<Curve> = Vec::new();
    let mut works = works.into_iter().peekable();
    while let Some(work) = works.next() {
        let mut curve = Curve {
            kind: "curve",
            trace: trace.name.clone(),
            policy: "lru",
            ways: None,
            method: "",
            requests: fed.requests,
            footprint_pages,
            footprint_bytes: 0,
            page_bytes: 0,
            rate: 1.0,
            points: Vec::new(),
            exact_difference_mean: None,
            exact_difference_max: None,
            skipped: source.skipped(),
            complete: fed.complete,
        };
        match work {
            Work::Exact(exact) => {
                curve.method = Method::Exact.name();
                curve.points = sizes.iter().map(|size| exact.point(*size)).collect();
            }
            Work::Shards(shards) => {
                curve.method = shards.method.name();
                curve.footprint_pages = shards.whole.pages().round() as u64;
                curve.rate = shards.whole.rate();
                curve.points = sizes.iter().map(|size| shards.point(*size)).collect();
                widen(&mut curve.points, curve.footprint_pages, |_| curve.rate);
            }
            Work::Miniature(first) => {
                (curve.method, curve.policy, curve.ways) =
                    (Method::Miniature.name(), first.policy.name(), first.ways);
                // Those of one policy follow each other.
                let mut all = vec![first];
                while let Some(Work::Miniature(next)) =
                    works.next_if(|work| work.is_miniature_of(all[0].policy, all[0].ways))
                {
                    all.push(next);
                }
                curve.rate = all.iter().map(|miniature| miniature.rate).fold(1.0, f64::min);
                curve.points = all.iter().map(|miniature| miniature.point(fed.requests)).collect();
                widen(&mut curve.points, footprint_pages, |point| {
                    let of = all.iter().find(|miniature| miniature.capacity_pages == point.capacity_pages);
                    of.map_or(1.0, |miniature| miniature.rate)
                });
            }
        }
        curves.push(curve);
    }
    compare_with_exact(&mut curves);
    if let Some(sample) = source.sample() {
        curves.iter_mut().for_each(|curve| curve.scale_up(&sample));
    }
    curves.iter_mut().for_each(|curve| curve.in_bytes(options.page_bytes));
    Ok(curves)
}

impl Curve {
    /// Says every size in bytes, too.
    fn in_bytes(&mut self, page_bytes: u64) {
        self.page_bytes = page_bytes;
        self.footprint_bytes = self.footprint_pages.saturating_mul(page_bytes);
        for point in &mut self.points {
            point.capacity_bytes = point.capacity_pages.saturating_mul(page_bytes);
        }
    }

    /// The trace was a sample: what the curve says of it becomes what it says of all pages.
    fn scale_up(&mut self, sample: &Sample) {
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

/// Sizes by equal factors from a thousandth of the footprint to all of it, each once.
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

/// What accesses are fed to.
enum Work {
    Exact(ExactLru),
    Shards(Box<ShardsInParts>),
    Miniature(Miniature),
}

impl Work {
    fn of(method: Method, options: &Options, sizes: &[u64]) -> Vec<Work> {
        let by_rate =
            ShardsOptions { rate: options.rate.unwrap_or(RATE_DEFAULT), samples_max: RATE_SAMPLES_MAX };
        let by_size = ShardsOptions { rate: 1.0, samples_max: options.samples.unwrap_or(SAMPLES) };
        match method {
            Method::Exact => vec![Work::Exact(ExactLru::new())],
            Method::Shards => vec![Work::Shards(Box::new(ShardsInParts::new(method, by_rate, options.seed)))],
            Method::ShardsSize => {
                vec![Work::Shards(Box::new(ShardsInParts::new(method, by_size, options.seed)))]
            }
            Method::Miniature => {
                let mut miniatures = Vec::new();
                for policy in options.policies.iter().copied() {
                    for ways in policy.ways_among(&options.ways) {
                        let of_size =
                            |size: &u64| Work::Miniature(Miniature::new(policy, ways, *size, options));
                        miniatures.extend(sizes.iter().map(of_size));
                    }
                }
                miniatures
            }
        }
    }

    fn is_miniature_of(&self, policy: Policy, ways: Option<u32>) -> bool {
        matches!(self, Work::Miniature(miniature) if miniature.policy == policy && miniature.ways == ways)
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

/// The distances of all references, exactly.
pub struct ExactLru {
    /// Page -> its number, by first reference.
    numbers: HashMap<u64, u32, BuildPageHasher>,
    /// Number -> its place in the stack.
    places: Vec<u32>,
    stack: Stack,
    /// References by distance.
    distances: Vec<u64>,
    requests: u64,
}

impl ExactLru {
    /// With no page seen.
    pub fn new() -> ExactLru {
        ExactLru {
            numbers: HashMap::default(),
            places: Vec::new(),
            stack: Stack::new(1 << 12),
            distances: Vec::new(),
            requests: 0,
        }
    }

    /// A reference.
    pub fn reference(&mut self, page: u64) {
        self.requests += 1;
        if self.stack.is_full() {
            // So that as many references as twice the pages pass until the next time.
            let room = self.stack.len() + self.stack.len() / 2 + 1;
            let places = &mut self.places;
            self.stack.pack(room, |number, place| places[number as usize] = place);
        }
        let new = u32::try_from(self.places.len()).expect("fewer than 2^32 pages");
        let number = *self.numbers.entry(page).or_insert(new);
        if number == new {
            self.places.push(self.stack.push(number));
            return;
        }
        let place = self.places[number as usize];
        let distance = self.stack.newer(place);
        if distance >= self.distances.len() {
            self.distances.resize(distance + 1, 0);
        }
        self.distances[distance] += 1;
        self.stack.remove(place);
        self.places[number as usize] = self.stack.push(number);
    }

    /// Different pages so far.
    pub fn footprint_pages(&self) -> u64 {
        self.places.len() as u64
    }

    /// How many of the references missed in an LRU cache of so many pages, had it begun empty.
    pub fn misses(&self, capacity_pages: u64) -> u64 {
        let hits = self.distances.iter().take(usize::try_from(capacity_pages).unwrap_or(usize::MAX));
        self.requests - hits.sum::<u64>()
    }

    fn point(&self, capacity_pages: u64) -> CurvePoint {
        CurvePoint {
            capacity_pages,
            capacity_bytes: 0,
            miss_ratio: ratio(self.misses(capacity_pages), self.requests),
            error: Some(0.0),
        }
    }
}

impl Default for ExactLru {
    fn default() -> Self {
        ExactLru::new()
    }
}

/// A sampler, and beside it one for each part of the pages.
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

    fn reference(&mut self, page: u64) {
        let tag = self.mixer.tag(page);
        self.whole.reference(tag);
        // Bits that say nothing about whether a page is in the sample.
        self.parts[tag.node() % PARTS as usize].reference(tag);
    }

    fn point(&self, capacity_pages: u64) -> CurvePoint {
        // A part has its share of the pages, of any cache, and, had luck been even, of the references.
        let share = f64::from(PARTS);
        let requests = self.whole.references().max(1) as f64;
        let estimate = |part: &Shards| {
            part.misses_among(capacity_pages as f64 / share, requests / share) * share / requests
        };
        let estimates: Vec<f64> = self.parts.iter().map(estimate).collect();
        CurvePoint {
            capacity_pages,
            capacity_bytes: 0,
            miss_ratio: self.whole.miss_ratio(capacity_pages as f64),
            error: Some(error_of_mean(&estimates, self.whole.rate())),
        }
    }
}

/// The standard error of the mean of estimates from disjoint parts of a sample that has this share
/// of everything.
fn error_of_mean(estimates: &[f64], rate: f64) -> f64 {
    let count = estimates.len() as f64;
    let mean = estimates.iter().sum::<f64>() / count;
    let variance = estimates.iter().map(|estimate| (estimate - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (variance / count * (1.0 - rate)).sqrt()
}

/// A cache of one size in small, and beside it one for each part of its sample.
struct Miniature {
    policy: Policy,
    ways: Option<u32>,
    /// The size that it stands for.
    capacity_pages: u64,
    rate: f64,
    mixer: Mixer,
    whole: Sampled,
    /// None where the miniature is the cache itself.
    parts: Vec<Sampled>,
    sample: Vec<u64>,
}

/// A cache that sees the pages whose numbers lie in a range.
struct Sampled {
    from: u64,
    to: u64,
    cache: Box<dyn Cache>,
    misses: u64,
}

/// One more than the greatest number of a page.
const NUMBERS: f64 = (1u64 << 32) as f64;

/// Refuses miniatures that take more memory than there is: each with its parts, which have as many
/// pages again.
fn check_room(options: &Options, sizes: &[u64]) -> Result<(), SourceError> {
    let mut wanted = Vec::new();
    for policy in options.policies.iter().copied() {
        for ways in policy.ways_among(&options.ways) {
            let pages = |size: &u64| Miniature::pages(policy, ways, *size, options);
            let with_parts = |pages| [Wanted { policy, ways, pages }; 2];
            wanted.extend(sizes.iter().map(pages).flat_map(with_parts));
        }
    }
    room::check(&wanted, options.page_bytes, options.memory_bytes)
}

impl Miniature {
    /// The pages of the cache that stands for one of `capacity_pages`.
    fn pages(policy: Policy, ways: Option<u32>, capacity_pages: u64, options: &Options) -> u64 {
        let least = MINIATURE_SETS_MIN * u64::from(ways.unwrap_or(16));
        let samples = u64::from(options.samples.unwrap_or(MINIATURE_SAMPLES));
        let asked = options.rate.map_or(samples, |rate| (capacity_pages as f64 * rate) as u64);
        policy.capacity_pages(ways, asked.max(least).min(capacity_pages))
    }

    fn new(policy: Policy, ways: Option<u32>, capacity_pages: u64, options: &Options) -> Miniature {
        // All capacities are those that the caches really have, so that the rates fit.
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
        // Another mix than the cache's own, else a sample would crowd into some of its sets.
        let mixer = Mixer::new(!options.seed);
        Miniature { policy, ways, capacity_pages, rate, mixer, whole, parts, sample: Vec::new() }
    }

    fn feed(&mut self, pages: &[u64]) {
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

    fn point(&self, requests: u64) -> CurvePoint {
        let estimate = |sampled: &Sampled| {
            let rate = (sampled.to - sampled.from) as f64 / NUMBERS;
            (sampled.misses as f64 / rate / requests.max(1) as f64).min(1.0)
        };
        let parts: Vec<f64> = self.parts.iter().map(estimate).collect();
        let error = if parts.is_empty() { 0.0 } else { error_of_mean(&parts, self.rate) };
        let miss_ratio =
            if parts.is_empty() { ratio(self.whole.misses, requests) } else { estimate(&self.whole) };
        CurvePoint { capacity_pages: self.capacity_pages, capacity_bytes: 0, miss_ratio, error: Some(error) }
    }
}

#[cfg(test)]
mod tests;
