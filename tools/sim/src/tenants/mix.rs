//! The input of a comparison (the tenants, and the memory that they share), and its results.

use octavo_share::{Limits, Pace};
use octavo_table::{PolicyKind, SEGMENTS_MAX};
use serde::Serialize;

use crate::simulate::Trace;

/// A tenant: a trace, and the limits of its partition.
pub struct Tenant<'t> {
    /// The tenant's accesses; the trace's name is the tenant's.
    pub trace: Trace<'t>,
    /// The limits of the tenant's partition, which only utility-based sharing keeps.
    pub limits: Limits,
}

/// How the memory is shared.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Pages of memory.
    pub pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The policy of all partitions.
    pub policy: PolicyKind,
    /// The number of pieces into which hindsight divides the memory.
    pub chunks: u32,
    /// Accesses between two plans. 0: 1/500 of all accesses.
    pub period: u64,
    /// The seed of the hash that places pages in sets.
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
    /// How fast sizes follow the plan.
    pub pace: Pace,
    /// The memory that the simulation may take, in bytes. None: no limit.
    pub memory_bytes: Option<u64>,
}

/// The result of one way of sharing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Always `plan`.
    pub kind: &'static str,
    /// `unified`, `equal`, `utility` or `hindsight`.
    pub way: &'static str,
    /// Accesses of all tenants.
    pub requests: u64,
    /// Accesses whose page was resident.
    pub hits: u64,
    /// Hits / requests.
    pub hit_ratio: f64,
    /// The results of the tenants, in the order given.
    pub tenants: Vec<TenantOutcome>,
    /// For utility-based sharing: the sizes at the end of each period, and the pages that moved in
    /// it. Empty for the other ways.
    pub sizes: Vec<Sizes>,
}

/// The result of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantOutcome {
    /// The tenant's name.
    pub name: String,
    /// The tenant's accesses.
    pub requests: u64,
    /// Accesses whose page was resident.
    pub hits: u64,
    /// Hits / requests.
    pub hit_ratio: f64,
    /// Pages of the tenant's partition: at the end, or the mean for utility-based sharing. None
    /// where all tenants share one cache.
    pub pages: Option<u64>,
    /// `pages` in bytes, without metadata.
    pub pages_bytes: Option<u64>,
}

/// Sizes at the end of a period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sizes {
    /// Accesses of all tenants so far.
    pub requests: u64,
    /// Pages of each tenant's partition.
    pub pages: Vec<u64>,
    /// `pages` in bytes, without metadata.
    pub pages_bytes: Vec<u64>,
    /// Pages that partitions lost in this period.
    pub moved: u64,
}

/// The minimum number of segments in the memory, if it has as many sets: with fewer, sizes would be
/// coarser than in a server.
const SEGMENTS_MIN: u64 = 256;

/// The minimum number of pages in a piece of the memory.
const PIECE_MIN: u64 = 16;

impl Mix {
    /// Returns the sets of a segment: 32, as in an engine, or fewer if the memory is small for the
    /// number of tenants, or more if it is very large.
    pub(super) fn sets_per_segment(&self, tenants: u64) -> u64 {
        let mut sets = 32;
        while sets > 1 && self.pages / (sets * 16) < SEGMENTS_MIN.max(4 * tenants) {
            sets /= 2;
        }
        while self.pages / (sets * 16) > u64::from(SEGMENTS_MAX) {
            sets *= 2;
        }
        sets
    }

    /// Returns the pages of one of hindsight's pieces, and the number of pieces. Together they are
    /// no larger than the memory, and there is at least one for each tenant.
    pub(super) fn pieces(&self, tenants: u64) -> (u64, u64) {
        let pages = (self.pages / u64::from(self.chunks).max(tenants).max(1)).max(PIECE_MIN);
        (pages, self.pages / pages)
    }
}
