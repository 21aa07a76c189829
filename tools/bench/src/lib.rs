//! Benchmarks of the engine, each beside a bare loop that does the same work without it.
//!
//! A suite is a file of TOML: cases, and the figures that are drawn of them. A case names its
//! contestants, which take turns in short slices (A B C A B C ...), and is reported as ratios of
//! slices that ran next to each other, so that a machine that is busy with other things slows all
//! of them. A row says all that is needed to judge it: how many slices, their spread, the machine,
//! the commit, what was in force.
//!
//! | file | is |
//! |---|---|
//! | `suite.rs`, `case.rs`, `suites/` | what to measure and to draw, as data |
//! | `drivers/` | what the engine and its contestants do in a case |
//! | `reference.rs` | what the engine is measured against: bare loops, all in one file |
//! | `turns.rs`, `clock.rs`, `statistics.rs` | taking turns on pinned threads; the clocks; medians, percentiles, fits |
//! | `stream.rs`, `content.rs`, `scratch.rs`, `fio.rs` | which pages; what they hold; files; fio as a contestant |
//! | `machine.rs` | processor, kernel, huge pages and open files, as the kernel tells them |
//! | `rival.rs` | other people's caches as contestants |
//! | `progress.rs` | what people see while a suite runs: a line for each case, the time left |
//! | `report.rs`, `page.rs`, `chart.rs` | rows, and the table for people; the page; its pictures |
//!
//! What is not here: goals (a row tells, people judge; but those of `partitions` stand in its
//! rows), the command line, and other people's caches (`tools/bench-compare`).

mod case;
mod chart;
mod clock;
mod content;
mod drivers;
mod fio;
mod machine;
mod page;
mod progress;
mod reference;
mod report;
pub mod rival;
mod scratch;
mod statistics;
mod stream;
mod suite;
mod turns;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use case::{Case, Value};
pub use content::PAGE_BYTES;
pub use drivers::bounded::serve as serve_bounded;
pub use octavo::disk::{AlignedBytes, Store};
pub use page::html;
pub use progress::{Begun, Progress};
pub use reference::{DirectFile, PrivateReads};
pub use report::{Machine, Row, Standing, table};
pub use suite::{Figure, Suite, matches};
pub use turns::{Team, Worker};

/// How to run a suite.
#[derive(Default)]
pub struct Options {
    /// Run to see that everything works: little memory, small files, few slices. The figures mean
    /// nothing.
    pub quick: bool,
    /// Time for the slices of each case. None: what the case says.
    pub time: Option<Duration>,
    /// The file to make on the disk, where a case wants one; it must not exist, and is gone
    /// afterwards.
    pub file: PathBuf,
    /// The program `octavo` itself, where a contestant is to run in a process of its own.
    pub program: Option<PathBuf>,
    /// Somebody wants an end: the run stops at the next round, and cleans up.
    pub stop: Arc<AtomicBool>,
    /// Other people's caches that suites may name.
    pub rivals: Vec<Box<dyn rival::Rival>>,
}

impl Options {
    /// Seconds that a case is likely to take, for the estimate of what is left.
    fn expected_s(&self, case: &Case) -> f64 {
        /// Setting up and slices of a case where only the working is tried.
        const QUICK_S: f64 = 1.0;
        /// Most drivers take this long where a suite says nothing.
        const USUAL_S: f64 = 18.0;
        match self.time {
            _ if self.quick => QUICK_S,
            Some(time) => time.as_secs_f64(),
            None => case.seconds.unwrap_or(USUAL_S),
        }
    }

    fn unless_stopped(&self) -> Result<(), Error> {
        // Relaxed: nothing else is told by it.
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::new("interrupted")),
            false => Ok(()),
        }
    }
}

/// Where a suite's rows and news go.
pub trait Listener {
    /// A case begins.
    fn begins(&mut self, case: &Begun);
    /// A case is done.
    fn row(&mut self, row: &Row);
    /// What is going on, for people who wait.
    fn progress(&mut self, news: &str);
    /// Something that makes the figures worth less.
    fn warning(&mut self, warning: &str);
}

/// Runs all cases of a suite, in their order. Refuses a suite that does not fit into memory before
/// it allocates anything.
pub fn run(suite: &Suite, options: &Options, listener: &mut dyn Listener) -> Result<(), Error> {
    let free = octavo::pressure::PressureSource::linux().sample();
    suite.cases.iter().try_for_each(|case| unless_too_large(case, &free))?;
    let expected: Vec<f64> = suite.cases.iter().map(|case| options.expected_s(case)).collect();
    let started = Instant::now();
    let mut set: Option<(String, Box<dyn drivers::Stage>)> = None;
    for (number, case) in suite.cases.iter().enumerate() {
        options.unless_stopped()?;
        let done = (number, suite.cases.len());
        let left_s = progress::left_s(&expected, number, started.elapsed());
        listener.begins(&Begun { case: case.name.clone(), done, left_s });
        let mut run = drivers::Run { suite: &suite.name, options, listener, done };
        let scenery = drivers::scenery(case);
        // The old stage goes before the next one is set: there may not be room for both.
        let same = set.take_if(|(known, _)| *known == scenery);
        set = None;
        let (_, stage) = set.insert(match same {
            Some(same) => same,
            None => (scenery, drivers::set(case, &mut run)?),
        });
        let rows = stage.run(case, &mut run)?;
        rows.iter().for_each(|row| listener.row(row));
    }
    Ok(())
}

/// Checks that a case's memory can be had, by what the kernel says of the machine and of the
/// process's control groups.
fn unless_too_large(case: &Case, free: &octavo::pressure::Sample) -> Result<(), Error> {
    let (needed, available) = (drivers::memory_bytes(case), free.available_bytes.unwrap_or(u64::MAX));
    if needed <= available {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let bound = free.bound_bytes.map_or(String::new(), |bound| format!(" of {:.1} GiB", gib(bound)));
    Err(Error::new(format!(
        "{}: needs {:.1} GiB of memory, but only {:.1} GiB{bound} are available (the least of MemAvailable and what the \
         limits of this process's control groups leave); nothing was allocated. Give the cases less memory, or \
         choose others with --case",
        case.name,
        gib(needed),
        gib(available),
    )))
}

/// Why a suite ended without its figures: a sentence.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// A sentence.
    pub fn new(what: impl Into<String>) -> Error {
        Error(what.into())
    }

    /// For `map_err`: what was being done when `error` came.
    pub fn at<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
        move |error| Error(format!("{what}: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<octavo::Error> for Error {
    fn from(error: octavo::Error) -> Error {
        Error(error.to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Listens to nothing.
    pub(crate) struct Silent;

    impl Listener for Silent {
        fn begins(&mut self, _: &Begun) {}
        fn row(&mut self, _: &Row) {}
        fn progress(&mut self, _: &str) {}
        fn warning(&mut self, _: &str) {}
    }

    /// Panics when a suite gets as far as a case.
    struct NeverBegins;

    impl Listener for NeverBegins {
        fn begins(&mut self, case: &Begun) {
            panic!("{} began", case.case);
        }
        fn row(&mut self, _: &Row) {}
        fn progress(&mut self, _: &str) {}
        fn warning(&mut self, _: &str) {}
    }

    #[test]
    fn memory_that_does_not_fit_is_refused_with_both_figures_before_anything_is_allocated() {
        let suite = Suite::find("resize", true).unwrap().with_memory_bytes(1 << 50).unwrap();
        let error = run(&suite, &Options::default(), &mut NeverBegins).unwrap_err().to_string();
        assert!(error.contains("needs 1331200.1 GiB"), "{error}");
        assert!(error.contains("GiB are available") && error.contains("less memory"), "{error}");
    }

    #[test]
    fn a_limit_of_a_control_group_counts_like_the_machines_own_memory() {
        let case = &Suite::find("hits", false).unwrap().cases[0];
        let left = |available| octavo::pressure::Sample {
            available_bytes: Some(available),
            bound_bytes: Some(4 << 30),
            ..Default::default()
        };
        let error = unless_too_large(case, &left(2 << 30)).unwrap_err().to_string();
        assert!(
            error.contains("single_128: needs 3.6 GiB") && error.contains("2.0 GiB of 4.0 GiB"),
            "{error}"
        );
        assert!(unless_too_large(case, &left(4 << 30)).is_ok());
    }
}
