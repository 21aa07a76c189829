//! The result of one cache over one trace.

use serde::Serialize;

/// What one cache did with one trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Always `result`.
    pub kind: &'static str,
    /// The name of the trace.
    pub trace: String,
    /// The name of the policy.
    pub policy: &'static str,
    /// Pages of a set; None for a policy without sets.
    pub ways: Option<u32>,
    /// The capacity as the user wrote it.
    pub capacity: String,
    /// The same in pages.
    pub asked_pages: u64,
    /// The pages of the cache: whole sets.
    pub capacity_pages: u64,
    /// The seed that placed pages in sets.
    pub seed: u64,
    /// Accesses.
    pub requests: u64,
    /// Accesses whose page was not resident.
    pub misses: u64,
    /// Misses / requests.
    pub miss_ratio: f64,
    /// Different pages of the trace, if they were counted.
    pub footprint_pages: Option<u64>,
    /// Malformed records that were skipped.
    pub skipped: u64,
    /// The share of the pages that the trace contains. If the trace is a sample, requests and
    /// misses are scaled up to all pages.
    pub sample: f64,
    /// Whether the trace was read to its end.
    pub complete: bool,
    /// The time that this cache took, without reading the trace.
    pub seconds: f64,
}

/// Returns `part / whole`, and 0 if `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
