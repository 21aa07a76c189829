//! Simulations and miss-ratio curves of arrays of page numbers.
//!
//! Not here: the arrays of the results, which `octavo.analysis` makes of lists.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use octavo_sim::mrc::{self as curves, Curve, Method};
use octavo_sim::plan::{Capacity, Policy};
use octavo_sim::simulate::{self as run, Plan, Progress, Row, Step, Trace, WAYS};
use octavo_sim::{CHUNK, Source, SourceError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{Result, config};
use crate::memory::{Memory, with_readable};
use crate::stat::dict;

/// The time between two calls of a progress function, and between two looks for Ctrl-C.
const NEWS_EVERY: Duration = Duration::from_millis(100);

/// Runs caches over the page numbers of a buffer: native 64-bit integers.
#[pyfunction]
#[pyo3(signature = (pages, *, capacities, policies, ways, page_bytes, seed, jobs, progress))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub fn simulate<'py>(
    pages: &Bound<'py, PyAny>,
    capacities: Vec<String>,
    policies: Vec<String>,
    ways: u32,
    page_bytes: u64,
    seed: u64,
    jobs: usize,
    progress: Option<Bound<'py, PyAny>>,
) -> Result<Vec<Bound<'py, PyDict>>> {
    let plan = Plan {
        policies: named(&policies)?,
        capacities: capacities
            .iter()
            .map(|text| text.parse::<Capacity>())
            .collect::<Result<_, _>>()
            .map_err(config)?,
        ways: vec![checked_ways(ways)?],
        page_bytes,
        seed,
        jobs: jobs.max(1),
        scratch: std::env::temp_dir(),
        memory_bytes: None,
    };
    let py = pages.py();
    let rows = over(pages, progress, |trace, stop, news| run::simulate(trace, &plan, stop, news))?;
    let rows = rows.iter().map(|row: &Row| {
        Ok(dict!(py, row; policy, ways, capacity, asked_pages, capacity_pages, seed, requests, misses,
            miss_ratio, footprint_pages, seconds))
    });
    Ok(rows.collect::<PyResult<_>>()?)
}

/// Makes miss-ratio curves of the page numbers of a buffer: native 64-bit integers.
#[pyfunction]
#[pyo3(signature = (pages, *, method, policies, ways, points, samples, rate, page_bytes, seed, jobs, progress))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub fn mrc<'py>(
    pages: &Bound<'py, PyAny>,
    method: &str,
    policies: Vec<String>,
    ways: u32,
    points: usize,
    samples: Option<u32>,
    rate: Option<f64>,
    page_bytes: u64,
    seed: u64,
    jobs: usize,
    progress: Option<Bound<'py, PyAny>>,
) -> Result<Vec<Bound<'py, PyDict>>> {
    let options = curves::Options {
        methods: vec![method_of(method)?],
        policies: named(&policies)?,
        ways: vec![checked_ways(ways)?],
        points: in_range("points", points, 2..=10_000)?,
        samples: samples.map(|samples| in_range("samples", samples, 64..=1 << 24)).transpose()?,
        page_bytes,
        rate: rate.map(checked_rate).transpose()?,
        memory_bytes: None,
        seed,
        jobs: jobs.max(1),
    };
    check_policies(&options)?;
    let py = pages.py();
    let made = over(pages, progress, |trace, stop, news| curves::curves(trace, &options, stop, news))?;
    let made = made.iter().map(|curve| of_curve(py, curve));
    Ok(made.collect::<PyResult<_>>()?)
}

/// Returns the names of all policies that can be simulated.
#[pyfunction]
pub fn policies() -> Vec<&'static str> {
    Policy::all().iter().map(|policy| policy.name()).collect()
}

fn of_curve<'py>(py: Python<'py>, curve: &Curve) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict!(py, curve; policy, ways, method, requests, footprint_pages, page_bytes, rate);
    let points = &curve.points;
    dict.set_item("capacity_pages", points.iter().map(|point| point.capacity_pages).collect::<Vec<_>>())?;
    dict.set_item("miss_ratio", points.iter().map(|point| point.miss_ratio).collect::<Vec<_>>())?;
    let errors = points.iter().map(|point| point.error.unwrap_or(f64::NAN));
    dict.set_item("error", errors.collect::<Vec<_>>())?;
    Ok(dict)
}

/// Runs `work` over the pages without the GIL. Calls `progress(step, requests, share)` ten times a
/// second; Ctrl-C, and what that raises, end the run.
fn over<'py, T: Send>(
    pages: &Bound<'py, PyAny>,
    progress: Option<Bound<'py, PyAny>>,
    work: impl Send + FnOnce(&Trace<'_>, &AtomicBool, &mut dyn FnMut(Progress<'_>)) -> Result<T, SourceError>,
) -> Result<T> {
    let progress = progress.map(Bound::unbind);
    with_readable(pages, |py, memory| {
        let trace = Trace {
            name: "pages".into(),
            open: Box::new(move || Ok(Box::new(Numbers { rest: memory, len: memory.len }))),
        };
        let trace = Shared(trace);
        let (stop, mut raised) = (AtomicBool::new(false), None);
        let result = py.detach(|| {
            let Shared(trace) = &trace;
            let mut next = Instant::now() + NEWS_EVERY;
            let mut news = |now: Progress<'_>| {
                if Instant::now() < next || raised.is_some() {
                    return;
                }
                next = Instant::now() + NEWS_EVERY;
                if let Err(error) = Python::attach(|py| tell(py, progress.as_ref(), &now)) {
                    raised = Some(error);
                    // Relaxed: the flag orders nothing else.
                    stop.store(true, Ordering::Relaxed);
                }
            };
            work(trace, &stop, &mut news)
        });
        match raised {
            Some(error) => Err(error.into()),
            None => result.map_err(|SourceError(sentence)| config(sentence)),
        }
    })
}

fn tell(py: Python<'_>, progress: Option<&Py<PyAny>>, now: &Progress<'_>) -> PyResult<()> {
    py.check_signals()?;
    let Some(progress) = progress else { return Ok(()) };
    let step = match now.step {
        Step::Count => "count",
        Step::Run => "run",
        Step::Future => "future",
    };
    progress.call1(py, (step, now.requests, now.share)).map(drop)
}

/// A trace of memory that lives longer than the run.
struct Shared<T>(T);

// SAFETY: the trace opens sources, each of which reads the lent memory and nothing else.
unsafe impl<T> Sync for Shared<T> {}

/// A source of native 64-bit integers in memory that is lent for the run.
struct Numbers {
    rest: Memory,
    len: usize,
}

impl Source for Numbers {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        let count = (self.rest.len / size_of::<u64>()).min(CHUNK);
        pages.reserve(count);
        let end = pages.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        let bytes = count * size_of::<u64>();
        // SAFETY: the memory is lent for the run, and the vector has room. Bytes that another
        // thread changes meanwhile are some number.
        unsafe { std::ptr::copy_nonoverlapping(self.rest.start, end, bytes) };
        // SAFETY: that many numbers were copied.
        unsafe { pages.set_len(pages.len() + count) };
        self.rest = self.rest.skip(bytes);
        Ok(())
    }

    fn progress(&self) -> Option<f64> {
        Some(1.0 - self.rest.len as f64 / self.len.max(1) as f64)
    }
}

fn named(words: &[String]) -> Result<Vec<Policy>> {
    let mut all = Vec::new();
    for policy in
        words.iter().map(|word| Policy::named(word)).collect::<Result<Vec<_>, _>>().map_err(config)?.concat()
    {
        if !all.contains(&policy) {
            all.push(policy);
        }
    }
    Ok(all)
}

fn checked_ways(ways: u32) -> Result<u32> {
    match WAYS.contains(&ways) {
        true => Ok(ways),
        false => Err(config(format!("ways is {ways}: 8, 16 or 32 is needed"))),
    }
}

fn checked_rate(rate: f64) -> Result<f64> {
    match rate > 0.0 && rate <= 1.0 {
        true => Ok(rate),
        false => Err(config(format!("rate is {rate}: a share above 0 and at most 1 is needed"))),
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(
    name: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T> {
    match range.contains(&value) {
        true => Ok(value),
        false => Err(config(format!("{name} is {value}: {} to {} is needed", range.start(), range.end()))),
    }
}

fn method_of(name: &str) -> Result<Method> {
    let found = Method::ALL.into_iter().find(|method| method.name() == name);
    found.ok_or_else(|| {
        let known = Method::ALL.map(Method::name).join(", ");
        config(format!("method is {name:?}; known: {known}"))
    })
}

/// Refuses policies that the method cannot make a curve of.
fn check_policies(options: &curves::Options) -> Result<()> {
    let is_miniature = options.methods.contains(&Method::Miniature);
    for policy in &options.policies {
        let name = policy.name();
        if is_miniature && policy.needs_future() {
            return Err(config(format!("policy {name:?} knows the future, and has no miniature")));
        }
        if !is_miniature && !["lru", "global-lru"].contains(&name) {
            return Err(config(format!("policy {name:?} needs method \"miniature\"")));
        }
    }
    Ok(())
}
