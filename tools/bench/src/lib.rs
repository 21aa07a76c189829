//! Benchmarks of the engine, each beside a bare loop that does the same work without it.
//!
//! A suite is a file of TOML: cases, and the figures that are drawn of them. A case names its contestants, which take turns in
//! short slices (A B C A B C ...), and is reported as ratios of slices that ran next to each other, so that a machine that is busy with
//! other things slows all of them. A row says all that is needed to judge it: how many slices, their spread, the machine, the commit, what was
//! in force.
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
//! | `report.rs`, `page.rs`, `chart.rs` | rows, and the table for people; the page; its pictures |
//!
//! What is not here: goals (a row tells, people judge; but those of `partitions` stand in its rows), the command line, and other people's caches (`tools/bench-compare`).

mod case;
mod chart;
mod clock;
mod content;
mod drivers;
mod fio;
mod machine;
mod page;
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
use std::time::Duration;

pub use case::{Case, Value};
pub use content::PAGE_BYTES;
pub use drivers::bounded::serve as serve_bounded;
pub use octavo::disk::{AlignedBytes, Store};
pub use page::html;
pub use reference::{DirectFile, PrivateReads};
pub use report::{Machine, Row, Standing, table};
pub use suite::{Figure, Suite, matches};
pub use turns::{Team, Worker};

/// How to run a suite.
#[derive(Default)]
pub struct Options {
    /// Run to see that everything works: little memory, small files, few slices. The figures mean nothing.
    pub quick: bool,
    /// Time for the slices of each case. None: what the case says.
    pub time: Option<Duration>,
    /// The file to make on the disk, where a case wants one; it must not exist, and is gone afterwards.
    pub file: PathBuf,
    /// The program `octavo` itself, where a contestant is to run in a process of its own.
    pub program: Option<PathBuf>,
    /// Somebody wants an end: the run stops at the next round, and cleans up.
    pub stop: Arc<AtomicBool>,
    /// Other people's caches that suites may name.
    pub rivals: Vec<Box<dyn rival::Rival>>,
}

impl Options {
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
    /// A case is done.
    fn row(&mut self, row: &Row);
    /// What is going on, for people who wait.
    fn progress(&mut self, news: &str);
    /// Something that makes the figures worth less.
    fn warning(&mut self, warning: &str);
}

/// Runs all cases of a suite, in their order.
pub fn run(suite: &Suite, options: &Options, listener: &mut dyn Listener) -> Result<(), Error> {
    let mut set: Option<(String, Box<dyn drivers::Stage>)> = None;
    for (number, case) in suite.cases.iter().enumerate() {
        options.unless_stopped()?;
        let done = (number, suite.cases.len());
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
        fn row(&mut self, _: &Row) {}
        fn progress(&mut self, _: &str) {}
        fn warning(&mut self, _: &str) {}
    }
}
