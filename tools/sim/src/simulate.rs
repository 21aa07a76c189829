//! Runs caches over traces.
//!
//! All caches of one trace are fed from one reading of it, a batch at a time: the threads take
//! caches from a queue, each runs a whole batch through the one that it took, and one of them
//! meanwhile reads the next batch. So the trace is never held, every cache has seen the same
//! accesses whenever the run is interrupted, and results do not depend on the number of threads.
//!
//! What is not here: what a cache does ([`Cache`]), where accesses come from ([`Source`]), what
//! results mean ([`crate::report`]).

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use octavo_table::PolicyKind;
use serde::Serialize;

use crate::cache::{Cache, SetCache};
use crate::footprint::Footprint;
use crate::plan::{Capacity, Policy};
use crate::reference::opt::{Access, Future, Optimum, SetOptimum};
use crate::room::{self, Wanted};
use crate::source::{Sample, Source, SourceError};

/// A trace that can be read from its beginning as often as is needed.
pub struct Trace<'t> {
    /// What results call it.
    pub name: String,
    /// Begins to read it.
    pub open: Box<dyn Fn() -> Result<Box<dyn Source>, SourceError> + 't>,
}

/// Which caches to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Each at every capacity.
    pub policies: Vec<Policy>,
    /// Sizes.
    pub capacities: Vec<Capacity>,
    /// For policies inside sets: 8, 16 or 32.
    pub ways: Vec<u32>,
    /// Bytes of a page, for capacities in bytes.
    pub page_bytes: u64,
    /// Places pages in sets.
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
    /// A folder for files that hold what policies that know the future need, if it is much.
    pub scratch: PathBuf,
}

/// The numbers of ways that are compiled in.
pub const WAYS: [u32; 3] = [8, 16, 32];

/// What one cache did with one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `result`.
    pub kind: &'static str,
    /// The trace.
    pub trace: String,
    /// The policy.
    pub policy: &'static str,
    /// Pages of a set; None for a policy without sets.
    pub ways: Option<u32>,
    /// The capacity as it was asked for.
    pub capacity: String,
    /// The pages that this is.
    pub asked_pages: u64,
    /// The pages that the cache had: whole sets.
    pub capacity_pages: u64,
    /// What pages were placed with.
    pub seed: u64,
    /// Accesses.
    pub requests: u64,
    /// Those whose page was not there.
    pub misses: u64,
    /// Misses / requests.
    pub miss_ratio: f64,
    /// Different pages of the trace, where they were counted.
    pub footprint_pages: Option<u64>,
    /// Malformed records that were passed over.
    pub skipped: u64,
    /// The part of the pages that the trace has; of a sample, requests and misses are those that it
    /// stands for.
    pub sample: f64,
    /// Whether the trace was read to its end.
    pub complete: bool,
    /// Time that this cache took, reading not counted.
    pub seconds: f64,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'r> {
    /// The trace.
    pub trace: &'r str,
    /// What is done with it.
    pub step: Step,
    /// Accesses read in this step.
    pub requests: u64,
    /// How much of the trace that is, where it is known.
    pub share: Option<f64>,
}

/// What a trace is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To count its pages.
    Count,
    /// To run caches.
    Run,
    /// To run caches that know the future.
    Future,
}

/// Accesses that are handed to the caches at a time: at first and at least, and at most. Between
/// them, as many as keep the threads busy for [`BATCH_TIME`], so that neither starting threads nor
/// waiting for an interruption takes long.
const BATCH_MIN: usize = 64 << 10;
const BATCH_MAX: usize = 1 << 20;
const BATCH_TIME: Duration = Duration::from_millis(250);

/// Memory for the future of a trace, 16 bytes an access; what is more goes to scratch files.
const FUTURE_BYTES_MAX: u64 = 1 << 30;

/// Runs all caches of a plan over a trace. When `stop` is set, the rows say what happened so far
/// and that they are not complete; policies that know the future have rows only if they saw all of
/// it.
pub fn simulate(
    trace: &Trace<'_>,
    plan: &Plan,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Row>, SourceError> {
    simulate_within(trace, plan, None, stop, progress)
}

/// The same, where the caches may take so many bytes of memory; with more, none is made.
pub fn simulate_within(
    trace: &Trace<'_>,
    plan: &Plan,
    memory_bytes: Option<u64>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Row>, SourceError> {
    let mut news = |step, requests, share| progress(Progress { trace: &trace.name, step, requests, share });
    // 1. Shares of the footprint need the footprint.
    let mut footprint = None;
    if plan.capacities.iter().any(Capacity::is_share) {
        let mut news = |requests, share| news(Step::Count, requests, share);
        let counted = Footprint::of(&mut *(trace.open)()?, stop, &mut news)?;
        if !counted.complete {
            return Ok(Vec::new());
        }
        footprint = Some(counted.pages);
    }
    let mut source = (trace.open)()?;
    // A sample stands for more pages, and is seen by caches as much smaller.
    let scale = source.sample().unwrap_or(WHOLE);
    let footprint = footprint.map(|pages| scale.scaled_up(pages));
    plan.check(footprint, &scale, memory_bytes)?;
    // 2. One reading for all that know the past only.
    let mut models =
        plan.models(footprint, |policy, ways, pages| policy.cache(ways, scale.scaled_down(pages), plan.seed));
    let mut next = |batch: &mut Vec<u64>| source.next(batch).map(|()| source.progress());
    let fed = feed(&mut next, &mut models, plan.jobs, stop, &mut |requests, share| {
        news(Step::Run, requests, share);
    })?;
    if fed.requests == 0 && fed.complete {
        return Err(SourceError(format!("{}: there is no access in it", trace.name)));
    }
    let sample = source.sample();
    let seen =
        Seen { trace: &trace.name, fed, footprint, skipped: source.skipped(), seed: plan.seed, sample };
    let mut rows: Vec<Row> =
        models.into_iter().map(|model| seen.row(model, |cache| cache.capacity_pages())).collect();
    // 3. Another for those that know the future.
    let accesses = seen.fed.requests;
    let mut prophets = plan.models(footprint, |policy, ways, pages| {
        Prophet::new(policy, ways, scale.scaled_down(pages), accesses, plan.seed)
    });
    if prophets.is_empty() || !seen.fed.complete {
        return Ok(plan.in_order(rows));
    }
    let mut whole = Interruptible { source: (trace.open)()?, stop };
    let mut future = Future::read(&mut whole, &plan.scratch, FUTURE_BYTES_MAX)?;
    let mut next = |batch: &mut Vec<Access>| future.next(batch).map(|()| None);
    let fed = feed(&mut next, &mut prophets, plan.jobs, stop, &mut |requests, _| {
        news(Step::Future, requests, Some(ratio(requests, accesses)));
    })?;
    if fed.complete && fed.requests == accesses {
        rows.extend(prophets.into_iter().map(|model| seen.row(model, Prophet::capacity_pages)));
    }
    Ok(plan.in_order(rows))
}

/// A sample that leaves nothing out.
pub const WHOLE: Sample = Sample { rate: 1.0, accesses: 0 };

/// A cache of the engine's.
pub fn engine_cache(kind: PolicyKind, ways: u32, capacity_pages: u64, seed: u64) -> Box<dyn Cache> {
    match ways {
        8 => Box::new(SetCache::<8>::new(kind, capacity_pages, seed)),
        16 => Box::new(SetCache::<16>::new(kind, capacity_pages, seed)),
        32 => Box::new(SetCache::<32>::new(kind, capacity_pages, seed)),
        _ => panic!("sets have 8, 16 or 32 ways, not {ways}"),
    }
}

pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A cache in a run, with what it did.
struct Model<C> {
    policy: Policy,
    ways: Option<u32>,
    capacity: String,
    asked_pages: u64,
    cache: C,
    misses: u64,
    time: Duration,
}

impl Plan {
    /// Refuses caches that cannot be made, or that take more memory than there is; shares of a
    /// trace's pages only where the `footprint` is known.
    ///
    /// # Errors
    /// The largest that can be made, and the memory that it takes.
    pub fn check(
        &self,
        footprint: Option<u64>,
        sample: &Sample,
        memory_bytes: Option<u64>,
    ) -> Result<(), SourceError> {
        let known = self.capacities.iter().filter(|capacity| footprint.is_some() || !capacity.is_share());
        let wanted = known.flat_map(|capacity| {
            let pages = sample.scaled_down(capacity.pages(footprint.unwrap_or(0), self.page_bytes));
            let every = |policy: &Policy| {
                let wanted = move |ways| (*policy, ways);
                policy.ways_among(&self.ways).into_iter().map(wanted).collect::<Vec<_>>()
            };
            self.policies.iter().flat_map(every).map(move |(policy, ways)| Wanted { policy, ways, pages })
        });
        room::check(&wanted.collect::<Vec<_>>(), self.page_bytes, memory_bytes)
    }

    /// A model of each policy, ways and capacity that `cache` has a cache for.
    fn models<C>(
        &self,
        footprint: Option<u64>,
        cache: impl Fn(Policy, Option<u32>, u64) -> Option<C>,
    ) -> Vec<Model<C>> {
        let mut models = Vec::new();
        for capacity in &self.capacities {
            let asked_pages = capacity.pages(footprint.unwrap_or(0), self.page_bytes);
            for policy in self.policies.iter().copied() {
                for ways in policy.ways_among(&self.ways) {
                    let Some(cache) = cache(policy, ways, asked_pages) else { continue };
                    let capacity = capacity.to_string();
                    models.push(Model {
                        policy,
                        ways,
                        capacity,
                        asked_pages,
                        cache,
                        misses: 0,
                        time: Duration::ZERO,
                    });
                }
            }
        }
        models
    }

    /// Rows in the order of capacities, then policies.
    fn in_order(&self, mut rows: Vec<Row>) -> Vec<Row> {
        let capacity =
            |row: &Row| self.capacities.iter().position(|capacity| capacity.to_string() == row.capacity);
        let policy = |row: &Row| self.policies.iter().position(|policy| policy.name() == row.policy);
        rows.sort_by_key(|row| (capacity(row), policy(row), row.ways));
        rows
    }
}

/// What all models of a trace have seen.
struct Seen<'t> {
    trace: &'t str,
    fed: Fed,
    footprint: Option<u64>,
    skipped: u64,
    seed: u64,
    sample: Option<Sample>,
}

impl Seen<'_> {
    fn row<C>(&self, model: Model<C>, capacity_pages: impl Fn(&C) -> u64) -> Row {
        let capacity_pages = capacity_pages(&model.cache);
        let row = Row {
            kind: "result",
            trace: self.trace.to_owned(),
            policy: model.policy.name(),
            ways: model.ways,
            capacity: model.capacity,
            asked_pages: model.asked_pages,
            capacity_pages,
            seed: self.seed,
            requests: self.fed.requests,
            misses: model.misses,
            miss_ratio: ratio(model.misses, self.fed.requests),
            footprint_pages: self.footprint,
            skipped: self.skipped,
            sample: 1.0,
            complete: self.fed.complete,
            seconds: model.time.as_secs_f64(),
        };
        let Some(sample) = self.sample else { return row };
        let miss_ratio = sample.miss_ratio(model.misses);
        Row {
            capacity_pages: sample.scaled_up(capacity_pages),
            requests: sample.accesses,
            misses: (miss_ratio * sample.accesses as f64).round() as u64,
            miss_ratio,
            sample: sample.rate,
            ..row
        }
    }
}

/// Belady's optimum.
enum Prophet {
    Global(Optimum),
    Sets(SetOptimum),
}

impl Prophet {
    /// None for a policy that does not need the future.
    fn new(
        policy: Policy,
        ways: Option<u32>,
        capacity_pages: u64,
        accesses: u64,
        seed: u64,
    ) -> Option<Prophet> {
        policy.needs_future().then(|| match ways {
            None => Prophet::Global(Optimum::new(capacity_pages, accesses)),
            Some(ways) => Prophet::Sets(SetOptimum::new(capacity_pages, ways, seed)),
        })
    }

    fn capacity_pages(&self) -> u64 {
        match self {
            Prophet::Global(cache) => cache.capacity_pages(),
            Prophet::Sets(cache) => cache.capacity_pages(),
        }
    }
}

/// A source that is at its end as soon as somebody says stop.
struct Interruptible<'s> {
    source: Box<dyn Source>,
    stop: &'s AtomicBool,
}

impl Source for Interruptible<'_> {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        // Relaxed: a flag with nothing behind it.
        if self.stop.load(Ordering::Relaxed) { Ok(()) } else { self.source.next(pages) }
    }

    fn progress(&self) -> Option<f64> {
        self.source.progress()
    }
}

/// How much was fed to all models.
pub(crate) struct Fed {
    pub requests: u64,
    pub complete: bool,
}

/// Anything that accesses can be fed to.
pub(crate) trait Feed<T>: Send {
    /// Takes the next accesses.
    fn feed(&mut self, accesses: &[T]);
}

impl Feed<u64> for Model<Box<dyn Cache>> {
    fn feed(&mut self, pages: &[u64]) {
        let begin = Instant::now();
        self.misses += self.cache.run(pages);
        self.time += begin.elapsed();
    }
}

impl Feed<Access> for Model<Prophet> {
    fn feed(&mut self, accesses: &[Access]) {
        let begin = Instant::now();
        self.misses += match &mut self.cache {
            Prophet::Global(cache) => cache.run(accesses),
            Prophet::Sets(cache) => cache.run(accesses),
        };
        self.time += begin.elapsed();
    }
}

/// Appends the next accesses, none at the end, and tells how far that is.
type Next<'n, T> = dyn FnMut(&mut Vec<T>) -> Result<Option<f64>, SourceError> + Send + 'n;

/// Reads accesses to their end, or until `stop`, and hands all of them to every model.
pub(crate) fn feed<T: Sync + Send, M: Feed<T>>(
    next: &mut Next<'_, T>,
    models: &mut [M],
    jobs: usize,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, Option<f64>),
) -> Result<Fed, SourceError> {
    let mut batch_len = BATCH_MIN;
    let (mut batch, mut following) = (Vec::new(), Vec::new());
    let mut requests = 0;
    fill(next, &mut batch, batch_len)?;
    // Relaxed: a flag with nothing behind it.
    while !batch.is_empty() && !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let read = run_batch(&batch, models, jobs, || fill(next, &mut following, batch_len));
        requests += batch.len() as u64;
        progress(requests, read?);
        std::mem::swap(&mut batch, &mut following);
        batch_len = match begin.elapsed() {
            time if time < BATCH_TIME / 2 => (batch_len * 2).min(BATCH_MAX),
            time if time > BATCH_TIME * 2 => (batch_len / 2).max(BATCH_MIN),
            _ => batch_len,
        };
    }
    Ok(Fed { requests, complete: batch.is_empty() })
}

/// Puts at least `len` accesses into a batch, unless there are no more.
fn fill<T>(next: &mut Next<'_, T>, batch: &mut Vec<T>, len: usize) -> Result<Option<f64>, SourceError> {
    batch.clear();
    loop {
        let before = batch.len();
        let share = next(batch)?;
        if batch.len() == before || batch.len() >= len {
            return Ok(share);
        }
    }
}

/// Runs a batch through all models, and `read` beside them; a thread takes what is next. Returns
/// what `read` did.
fn run_batch<T: Sync, M: Feed<T>, R: Send>(
    batch: &[T],
    models: &mut [M],
    jobs: usize,
    read: impl FnOnce() -> R + Send,
) -> R {
    let threads = jobs.clamp(1, models.len() + 1);
    let reading = Mutex::new((Some(read), None));
    let waiting = Mutex::new(models.iter_mut());
    let work = || {
        let read = reading.lock().expect("nobody panics here").0.take();
        if let Some(read) = read {
            let result = read();
            reading.lock().expect("nobody panics here").1 = Some(result);
        }
        loop {
            let Some(model) = waiting.lock().expect("nobody panics here").next() else { break };
            model.feed(batch);
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    reading.into_inner().expect("nobody panics here").1.expect("whoever came first has read")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::source::CHUNK;

    /// A source from memory.
    pub(crate) struct Pages {
        pages: Vec<u64>,
        given: usize,
    }

    impl Pages {
        pub(crate) fn new(pages: Vec<u64>) -> Pages {
            Pages { pages, given: 0 }
        }
    }

    impl Source for Pages {
        fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
            let end = (self.given + CHUNK).min(self.pages.len());
            pages.extend(&self.pages[self.given..end]);
            self.given = end;
            Ok(())
        }

        fn progress(&self) -> Option<f64> {
            Some(self.given as f64 / self.pages.len().max(1) as f64)
        }
    }

    pub(crate) fn trace(name: &str, pages: Vec<u64>) -> Trace<'static> {
        Trace { name: name.into(), open: Box::new(move || Ok(Box::new(Pages::new(pages.clone())))) }
    }

    pub(crate) fn plan(policies: &[&str], capacities: &[&str]) -> Plan {
        Plan {
            policies: policies.iter().flat_map(|name| Policy::named(name).unwrap()).collect(),
            capacities: capacities.iter().map(|text| text.parse().unwrap()).collect(),
            ways: vec![16],
            page_bytes: 4096,
            seed: 1,
            jobs: 1,
            scratch: std::env::temp_dir(),
        }
    }

    fn without_time(mut rows: Vec<Row>) -> Vec<Row> {
        rows.iter_mut().for_each(|row| row.seconds = 0.0);
        rows
    }

    /// A trace that has hits and misses at any size.
    fn mixed(len: u64) -> Vec<u64> {
        (0..len)
            .map(|number| if number % 3 == 0 { number % 4000 } else { number * number % 20_011 })
            .collect()
    }

    #[test]
    fn results_are_exact_and_do_not_depend_on_the_number_of_threads() {
        let trace = trace("mixed", mixed(150_000));
        let mut plan = plan(&["engine"], &["1%", "10%", "500p"]);
        plan.ways = WAYS.to_vec();
        let never = AtomicBool::new(false);
        let one = without_time(simulate(&trace, &plan, &never, &mut |_| ()).unwrap());
        plan.jobs = 5;
        let five = without_time(simulate(&trace, &plan, &never, &mut |_| ()).unwrap());
        assert_eq!(one, five);
        assert_eq!(one.len(), PolicyKind::ALL.len() * 3 * 3);
        for row in &one {
            let Policy::Engine(kind) = Policy::named(row.policy).unwrap()[0] else { panic!("{row:?}") };
            let mut alone = engine_cache(kind, row.ways.unwrap(), row.asked_pages, 1);
            assert_eq!(row.misses, alone.run(&mixed(150_000)), "{row:?}");
            assert_eq!(row.capacity_pages, alone.capacity_pages());
            assert!(row.complete && row.requests == 150_000, "{row:?}");
        }
    }

    #[test]
    fn an_interrupted_run_keeps_what_it_has_and_says_so() {
        let stop = AtomicBool::new(false);
        let mut plan = plan(&["lru", "fifo"], &["1000p"]);
        plan.jobs = 2;
        let mut stop_soon =
            |progress: Progress<'_>| stop.store(progress.requests >= 100_000, Ordering::Relaxed);
        let rows = simulate(&trace("long", mixed(3_000_000)), &plan, &stop, &mut stop_soon).unwrap();
        assert_eq!(rows.len(), 2);
        for row in &rows {
            assert!(!row.complete && row.requests >= 100_000 && row.requests < 3_000_000, "{row:?}");
            assert_eq!(row.requests, rows[0].requests);
        }
        let counting =
            simulate(&trace("long", mixed(3_000_000)), &self::plan(&["lru"], &["1%"]), &stop, &mut |_| ());
        assert_eq!(counting.unwrap(), Vec::new());
    }

    #[test]
    fn policies_that_know_the_future_run_beside_the_others_and_miss_least() {
        let plan = Plan { ways: vec![8, 16], jobs: 2, ..plan(&["all"], &["10%", "500p"]) };
        let rows =
            simulate(&trace("mixed", mixed(100_000)), &plan, &AtomicBool::new(false), &mut |_| ()).unwrap();
        let by_ways = Policy::all().iter().map(|policy| policy.ways_among(&plan.ways).len()).sum::<usize>();
        assert_eq!(rows.len(), 2 * by_ways);
        for capacity in ["10%", "500p"] {
            let of = |policy, ways| {
                let found = |row: &&Row| row.policy == policy && row.ways == ways && row.capacity == capacity;
                rows.iter().find(found).unwrap().misses
            };
            let least = of("global-opt", None);
            for row in rows.iter().filter(|row| row.capacity == capacity) {
                assert!(row.misses >= least || row.capacity_pages > row.asked_pages, "{row:?}");
                let limit =
                    row.ways.filter(|_| row.policy != "set-opt").map(|ways| of("set-opt", Some(ways)));
                assert!(limit.is_none_or(|limit| row.misses >= limit), "{row:?}");
            }
        }
    }

    #[test]
    fn an_error_in_the_middle_of_a_trace_is_told() {
        struct Broken(u32);
        impl Source for Broken {
            fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
                self.0 += 1;
                if self.0 > 9 {
                    return Err(SourceError("broken:7: not a number".into()));
                }
                pages.extend(0..CHUNK as u64);
                Ok(())
            }
            fn progress(&self) -> Option<f64> {
                None
            }
        }
        let trace = Trace { name: "broken".into(), open: Box::new(|| Ok(Box::new(Broken(0)))) };
        for (jobs, capacity) in [(1, "10p"), (3, "10p"), (1, "1%")] {
            let plan = Plan { jobs, ..plan(&["lru"], &[capacity]) };
            let error = simulate(&trace, &plan, &AtomicBool::new(false), &mut |_| ()).unwrap_err();
            assert!(error.0.contains("broken:7"), "{error}");
        }
    }

    #[test]
    fn a_trace_without_accesses_is_an_error() {
        for capacity in ["1%", "10p"] {
            let plan = plan(&["lru"], &[capacity]);
            let empty = simulate(&trace("empty", Vec::new()), &plan, &AtomicBool::new(false), &mut |_| ());
            assert!(empty.unwrap_err().0.contains("no access"));
        }
    }
}
