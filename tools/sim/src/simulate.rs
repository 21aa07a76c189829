//! Runs caches over traces. All caches of one trace are fed from one reading of it
//! (`feed.rs`).
//!
//! What is not here: the caches ([`Cache`]), the sources of accesses ([`Source`]), and the
//! interpretation of results ([`crate::report`]).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::cache::Cache;
use crate::feed::{Fed, Feed, feed};
use crate::footprint::Footprint;
use crate::plan::{Capacity, Policy};
use crate::reference::opt::{Access, Future, Optimum};
use crate::room::{self, Wanted};
use crate::source::{Sample, Source, SourceError};

pub use crate::cache::WAYS;
pub use crate::reading::{Progress, Step, Trace};
pub use crate::row::Row;
pub(crate) use crate::row::ratio;

/// Which caches to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policies, each run at every capacity.
    pub policies: Vec<Policy>,
    /// The capacities.
    pub capacities: Vec<Capacity>,
    /// Pages of a set, for policies inside sets: 8, 16 or 32.
    pub ways: Vec<u32>,
    /// Bytes of a page, for capacities in bytes.
    pub page_bytes: u64,
    /// Places pages in sets.
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
    /// A folder for the scratch files that policies that know the future need for traces of more
    /// than 64 Mi accesses.
    pub scratch: PathBuf,
    /// The memory that all caches together may take, in bytes. None: no limit.
    pub memory_bytes: Option<u64>,
}

/// Memory for the future of a trace, 16 bytes an access; a longer one moves to scratch files.
const FUTURE_BYTES_MAX: u64 = 1 << 30;

/// A sample that leaves nothing out.
pub const WHOLE: Sample = Sample { rate: 1.0, accesses: 0 };

/// Runs all caches of a plan over a trace. If `stop` is set, the rows have the results so far and
/// are marked as incomplete; policies that know the future have rows only if they saw the whole
/// trace.
///
/// # Errors
/// The trace cannot be opened or read, or is malformed or empty. Or one cache of the plan, or all
/// of them together, would be too large; then no cache is created.
pub fn simulate(
    trace: &Trace<'_>,
    plan: &Plan,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Row>, SourceError> {
    // 1. Capacities that are shares of the footprint need the footprint.
    let mut footprint = None;
    if plan.capacities.iter().any(Capacity::is_share) {
        let Some(counted) = Footprint::of(trace, stop, progress)? else { return Ok(Vec::new()) };
        footprint = Some(counted.pages);
    }
    let mut news = |step, requests, share| progress(Progress { trace: &trace.name, step, requests, share });
    let mut source = (trace.open)()?;
    // A sample stands for more pages than its caches see.
    let scale = source.sample().unwrap_or(WHOLE);
    let footprint = footprint.map(|pages| scale.scaled_up(pages));
    plan.check(footprint, &scale)?;
    // 2. One reading for all policies that know only the past.
    let mut models =
        plan.models(trace, footprint, &scale, |policy, ways, pages| policy.cache(ways, pages, plan.seed));
    let mut next = |batch: &mut Vec<u64>| source.next(batch).map(|()| source.progress());
    let fed = feed(&mut next, &mut models, plan.jobs, stop, &mut |requests, share| {
        news(Step::Run, requests, share);
    })?;
    if fed.complete {
        trace.must_have_accesses(fed.requests)?;
    }
    let seen = Seen { fed, skipped: source.skipped(), sample: source.sample() };
    let mut rows: Vec<Row> = models.into_iter().map(|model| seen.row(model.row)).collect();
    // 3. Another reading for policies that know the future.
    let accesses = seen.fed.requests;
    let mut optima = plan.models(trace, footprint, &scale, |policy, ways, pages| {
        let optimum = || Optimum::new(pages, ways, accesses, plan.seed);
        policy.needs_future().then(optimum)
    });
    if optima.is_empty() || !seen.fed.complete {
        return Ok(plan.in_order(rows));
    }
    let mut whole = Interruptible { source: (trace.open)()?, stop };
    let mut future = Future::read(&mut whole, &plan.scratch, FUTURE_BYTES_MAX)?;
    let mut next = |batch: &mut Vec<Access>| future.next(batch).map(|()| None);
    let fed = feed(&mut next, &mut optima, plan.jobs, stop, &mut |requests, _| {
        news(Step::Future, requests, Some(ratio(requests, accesses)));
    })?;
    if fed.complete && fed.requests == accesses {
        rows.extend(optima.into_iter().map(|model| seen.row(model.row)));
    }
    Ok(plan.in_order(rows))
}

impl Trace<'_> {
    /// Refuses a trace that was read to its end and has no access.
    pub(crate) fn must_have_accesses(&self, requests: u64) -> Result<(), SourceError> {
        match requests == 0 {
            true => Err(SourceError(format!("{}: the trace has no accesses", self.name))),
            false => Ok(()),
        }
    }
}

/// A cache in a run, with its results so far.
struct Model<C> {
    cache: C,
    row: Row,
}

impl<C> Model<C> {
    fn run(&mut self, run: impl FnOnce(&mut C) -> u64) {
        let begin = Instant::now();
        self.row.misses += run(&mut self.cache);
        self.row.seconds += begin.elapsed().as_secs_f64();
    }
}

impl Feed<u64> for Model<Box<dyn Cache>> {
    fn feed(&mut self, pages: &[u64]) {
        self.run(|cache| cache.run(pages));
    }
}

impl Feed<Access> for Model<Optimum> {
    fn feed(&mut self, accesses: &[Access]) {
        self.run(|cache| cache.run(accesses));
    }
}

impl Plan {
    /// Refuses caches that cannot be made, or that take more memory than there is. Capacities that
    /// are shares of a trace's pages are checked only where the `footprint` is known.
    ///
    /// # Errors
    /// Names the largest cache that can be made, and the memory that it takes.
    pub fn check(&self, footprint: Option<u64>, sample: &Sample) -> Result<(), SourceError> {
        let known = self.capacities.iter().filter(|capacity| footprint.is_some() || !capacity.is_share());
        let wanted = known.flat_map(|capacity| {
            let pages = sample.scaled_down(capacity.pages(footprint.unwrap_or(0), self.page_bytes));
            Policy::with_ways(&self.policies, &self.ways).map(move |(policy, ways)| Wanted {
                policy,
                ways,
                pages,
            })
        });
        room::check(&wanted.collect::<Vec<_>>(), self.page_bytes, self.memory_bytes)
    }

    /// Makes a model for each combination of policy, ways and capacity for which `cache` creates a
    /// cache. The counts that concern the whole run enter the rows at its end.
    fn models<C>(
        &self,
        trace: &Trace<'_>,
        footprint_pages: Option<u64>,
        sample: &Sample,
        cache: impl Fn(Policy, Option<u32>, u64) -> Option<C>,
    ) -> Vec<Model<C>> {
        let mut models = Vec::new();
        for capacity in &self.capacities {
            let asked_pages = capacity.pages(footprint_pages.unwrap_or(0), self.page_bytes);
            models.extend(Policy::with_ways(&self.policies, &self.ways).filter_map(|(policy, ways)| {
                let pages = sample.scaled_down(asked_pages);
                let cache = cache(policy, ways, pages)?;
                let row = Row {
                    kind: "result",
                    trace: trace.name.clone(),
                    policy: policy.name(),
                    ways,
                    capacity: capacity.to_string(),
                    asked_pages,
                    capacity_pages: policy.capacity_pages(ways, pages),
                    seed: self.seed,
                    footprint_pages,
                    sample: 1.0,
                    ..Row::default()
                };
                Some(Model { cache, row })
            }));
        }
        models
    }

    /// Sorts rows by capacity, then by policy, then by ways.
    fn in_order(&self, mut rows: Vec<Row>) -> Vec<Row> {
        let capacity =
            |row: &Row| self.capacities.iter().position(|capacity| capacity.to_string() == row.capacity);
        let policy = |row: &Row| self.policies.iter().position(|policy| policy.name() == row.policy);
        rows.sort_by_key(|row| (capacity(row), policy(row), row.ways));
        rows
    }
}

/// What all models of a trace have seen.
struct Seen {
    fed: Fed,
    skipped: u64,
    sample: Option<Sample>,
}

impl Seen {
    /// Completes the row of a cache.
    fn row(&self, row: Row) -> Row {
        let row = Row {
            requests: self.fed.requests,
            miss_ratio: ratio(row.misses, self.fed.requests),
            skipped: self.skipped,
            complete: self.fed.complete,
            ..row
        };
        let Some(sample) = self.sample else { return row };
        let miss_ratio = sample.miss_ratio(row.misses);
        Row {
            capacity_pages: sample.scaled_up(row.capacity_pages),
            requests: sample.accesses,
            misses: (miss_ratio * sample.accesses as f64).round() as u64,
            miss_ratio,
            sample: sample.rate,
            ..row
        }
    }
}

/// A source that ends as soon as `stop` is set.
struct Interruptible<'s> {
    source: Box<dyn Source>,
    stop: &'s AtomicBool,
}

impl Source for Interruptible<'_> {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        // Relaxed: the flag orders nothing else.
        if self.stop.load(Ordering::Relaxed) { Ok(()) } else { self.source.next(pages) }
    }

    fn progress(&self) -> Option<f64> {
        self.source.progress()
    }
}

#[cfg(test)]
pub(crate) mod tests;
