//! What is measured: plain data that processes exchange as JSON.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Requests that a server answered, and the bytes of their bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub gets: u64,
    pub heads: u64,
    pub lists: u64,
    /// Bytes of the bodies of GETs.
    pub bytes: u64,
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            gets: self.gets - earlier.gets,
            heads: self.heads - earlier.heads,
            lists: self.lists - earlier.lists,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Counts) {
        self.gets += more.gets;
        self.heads += more.heads;
        self.lists += more.lists;
        self.bytes += more.bytes;
    }
}

/// What one client got from the server since the last reset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientCounts {
    pub counts: Counts,
    /// Objects of which it got any byte.
    pub files: u64,
    /// Bytes, each counted once, in blocks of 4 KiB.
    pub distinct_bytes: u64,
}

/// What the server did since the last reset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerStat {
    pub clients: BTreeMap<String, ClientCounts>,
    /// Bytes that any worker got, each counted once.
    pub distinct_bytes: u64,
}

impl ServerStat {
    /// The sum over the clients whose names begin with `prefix`.
    pub fn of(&self, prefix: &str) -> Counts {
        let mut sum = Counts::default();
        for (_, client) in self.clients.iter().filter(|(name, _)| name.starts_with(prefix)) {
            sum += client.counts;
        }
        sum
    }
}

/// What a cache says about itself.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CacheFigures {
    /// Bytes of reads that were in memory.
    pub hit_bytes: u64,
    /// Bytes of reads that were not.
    pub miss_bytes: u64,
    /// Bytes of cached pages.
    pub resident_bytes: u64,
}

impl CacheFigures {
    /// Bytes of reads that were in memory through all bytes of reads, between two moments.
    pub fn hit_ratio_since(&self, earlier: &CacheFigures) -> f64 {
        let hits = self.hit_bytes - earlier.hit_bytes;
        let misses = self.miss_bytes - earlier.miss_bytes;
        hits as f64 / ((hits + misses) as f64).max(1.0)
    }
}

/// A query as it ran once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ran {
    pub query: u32,
    pub seconds: f64,
    pub rows: u64,
    /// SHA-256 of the sorted rows.
    pub digest: String,
    /// Requests of the process, or of all workers.
    pub server: Counts,
    /// Requests of the coordinator while the query ran. Zero in a single process.
    pub coordinator: Counts,
}

/// All queries, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pass {
    /// Such as `cold`.
    pub name: String,
    pub ran: Vec<Ran>,
    /// Requests of the pass outside of queries, such as those that register the tables.
    pub before: Counts,
    /// At the end of the pass; the sum over the workers.
    pub cache: CacheFigures,
}

impl Pass {
    /// Requests of all queries together, and those before them.
    pub fn total(&self) -> Counts {
        let mut total = self.before;
        self.ran.iter().for_each(|ran| total += ran.server);
        total
    }

    /// Seconds of all queries together.
    pub fn seconds(&self) -> f64 {
        self.ran.iter().map(|ran| ran.seconds).sum()
    }
}

/// What one process measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessReport {
    pub passes: Vec<Pass>,
    /// Resident memory of the process at its end.
    pub resident_bytes: u64,
    /// The most that it was.
    pub resident_peak_bytes: u64,
}

/// All queries in one process, cold and warm, and again after a restart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SingleReport {
    pub kind: String,
    pub memory_bytes: u64,
    pub first: ProcessReport,
    /// `None` where nothing is kept across a restart.
    pub restarted: Option<ProcessReport>,
}

/// What one set of workers measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterReport {
    pub workers: usize,
    pub routing: String,
    /// Memory of each worker's cache.
    pub room_bytes: u64,
    pub passes: Vec<Pass>,
    /// Bytes that workers fetched, each counted once.
    pub distinct_bytes: u64,
    /// Bytes that each worker fetched, each counted once, added up.
    pub copies_bytes: u64,
    /// Resident memory of the worker processes together, at the end.
    pub resident_memory_bytes: u64,
}

impl ClusterReport {
    /// The part of reads that was in memory: in the warm pass, and in both.
    pub fn hit_ratios(&self) -> (f64, f64) {
        match &self.passes[..] {
            [cold, warm] => (
                warm.cache.hit_ratio_since(&cold.cache),
                warm.cache.hit_ratio_since(&CacheFigures::default()),
            ),
            _ => (0.0, 0.0),
        }
    }
}

/// What happens when the last worker leaves, and returns with an empty cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeaveReport {
    pub workers: usize,
    /// Objects of the tables.
    pub files: usize,
    /// Objects of the worker that leaves, by the hash.
    pub moved_files: usize,
    /// Objects of which another worker fetched bytes while the worker was away.
    pub refetched_files: u64,
    /// `warm`, then `away`, then `returned`, then `settled`.
    pub passes: Vec<Pass>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DemoReport {
    pub files: usize,
    pub data_bytes: u64,
    pub delay_ms: u64,
    pub queries: Vec<u32>,
    pub single: Vec<SingleReport>,
    pub clusters: Vec<ClusterReport>,
    /// Room for 1.2 times the distinct bytes of the queries, divided by the number of workers.
    pub scarce: Vec<ClusterReport>,
    pub leave: Option<LeaveReport>,
    /// Executors of Ballista, with room for everything.
    #[serde(default)]
    pub ballista: Vec<ClusterReport>,
    /// Runs of queries whose rows were compared with those of an uncached run.
    pub compared: usize,
    pub different: Vec<String>,
}

/// Resident memory of this process in bytes: now, and the most so far.
pub fn resident_memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    (field("VmRSS:"), field("VmHWM:"))
}
