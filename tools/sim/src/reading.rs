//! Traces that are read more than once, and the progress of a reading.
//!
//! Not here: where accesses come from ([`Source`]).

use crate::source::{Source, SourceError};

/// A trace that can be read from its beginning any number of times.
pub struct Trace<'t> {
    /// The name in results.
    pub name: String,
    /// Begins to read the trace.
    pub open: Box<dyn Fn() -> Result<Box<dyn Source>, SourceError> + 't>,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'r> {
    /// The name of the trace.
    pub trace: &'r str,
    /// What the trace is being read for.
    pub step: Step,
    /// Accesses read in this step.
    pub requests: u64,
    /// The share of the trace that was read, where it is known.
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
