//! Benchmarks of the engine, each beside a bare loop that does the same work without it.
//!
//! A suite runs its contestants in turn, in short slices (A B C A B C ...), and reports ratios of slices that ran next to
//! each other, so that a machine that is busy with other things slows all of them. A row says all that is needed to judge
//! it: how many slices, their spread, the machine, the commit, what was in force.
//!
//! | file | is |
//! |---|---|
//! | `hits.rs`, `misses.rs` | the suites: what the engine does |
//! | `reference.rs` | what it is measured against: bare loops, all in one file |
//! | `slices.rs`, `clock.rs` | taking turns, medians; the clocks |
//! | `content.rs` | what pages hold, and how a page is checked |
//! | `machine.rs` | processor, kernel, huge pages and open files, as the kernel tells them |
//! | `report.rs` | rows, and the table for people |
//!
//! What is not here: goals (a row tells, people judge), the command line, and claims about other programs.

mod clock;
mod content;
mod hits;
mod machine;
mod misses;
mod reference;
mod report;
mod slices;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use hits::hits;
pub use misses::misses;
pub use report::{Detail, Row, table};

/// What to run, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Run to see that everything works: little memory, small files, few slices. The figures mean nothing.
    pub quick: bool,
    /// Time for the slices of each case. None: what the suite needs for a steady median.
    pub time: Option<Duration>,
    /// `hits`: bytes of frames. None: 1 GiB.
    pub memory_bytes: Option<u64>,
    /// `misses`: the file to make on the disk; it must not exist, and is gone afterwards.
    pub file: PathBuf,
}

impl Options {
    /// Checks the values.
    pub fn validate(&self) -> Result<(), Error> {
        if let Some(bytes) = self.memory_bytes
            && !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&bytes)
        {
            return Err(Error::new(format!(
                "memory of {bytes} bytes: {MEMORY_BYTES_MIN} to {MEMORY_BYTES_MAX} are possible"
            )));
        }
        Ok(())
    }
}

/// Less has no huge page to speak of.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// Offsets are kept as 32-bit multiples of 128 bytes.
const MEMORY_BYTES_MAX: u64 = 128 << 30;

/// Where a suite's rows and news go.
pub trait Listener {
    /// A case is done.
    fn row(&mut self, row: &Row);
    /// What is going on, for people who wait.
    fn progress(&mut self, news: &str);
    /// Something that makes the figures worth less.
    fn warning(&mut self, warning: &str);
}

/// Why a suite ended without its figures: a sentence.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    fn new(what: impl Into<String>) -> Error {
        Error(what.into())
    }

    /// For `map_err`: what was being done when `error` came.
    fn at<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
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
mod tests {
    use super::*;

    #[test]
    fn memory_that_offsets_cannot_name_is_refused() {
        let with = |memory_bytes| Options { quick: true, time: None, memory_bytes, file: PathBuf::new() };
        assert!(with(None).validate().is_ok());
        assert!(with(Some(MEMORY_BYTES_MIN)).validate().is_ok());
        assert!(with(Some(MEMORY_BYTES_MIN - 1)).validate().is_err());
        assert!(with(Some(MEMORY_BYTES_MAX + 1)).validate().is_err());
    }
}
