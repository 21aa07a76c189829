//! The server's counters since its start, as `stat`, `partitions` and `latency` answer them.
//!
//! Only what the page shows is read. A missing figure is 0, so that older and newer servers can be
//! shown.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The answer to `stat`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Stat {
    pub version: String,
    pub pid: u64,
    pub uptime_s: u64,
    pub connections: u64,
    pub resident_bytes: Option<u64>,
    pub memory_stalled_ratio: Option<f64>,
    pub cache: CacheStat,
    pub partitions: Vec<PartitionStat>,
    /// What partitions may hold while the system is short of memory; from `partitions`.
    #[serde(skip)]
    pub memory_allowed_bytes: u64,
    /// Bytes that the reaper has moved between partitions; from `partitions`.
    #[serde(skip)]
    pub moved_bytes: u64,
}

/// The memory of all partitions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct CacheStat {
    pub memory_max_bytes: u64,
    pub memory_charged_bytes: u64,
    pub buffers_max_bytes: u64,
    pub buffers_used_bytes: u64,
}

/// A partition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct PartitionStat {
    pub name: String,
    pub policy: String,
    pub cache_mode: String,
    pub max_bytes: u64,
    pub charged_bytes: u64,
    pub resident_bytes: u64,
    pub dirty_bytes: u64,
    pub dirty_oldest_ms: Option<u64>,
    pub objects: Vec<ObjectStat>,
    /// All figures, by name.
    #[serde(flatten)]
    pub figures: BTreeMap<String, Value>,
    /// Its limits; from `partitions`.
    #[serde(skip)]
    pub limits: Limits,
    /// How long requests took, by kind: those of its exports, and those from `latency`.
    #[serde(skip)]
    pub times: BTreeMap<String, Times>,
}

/// The limits of a partition; `None`: without a limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Limits {
    pub name: String,
    pub min: u64,
    pub low: u64,
    pub high: Option<u64>,
    pub max: Option<u64>,
}

/// An export, or an image that exports share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ObjectStat {
    pub name: String,
    pub path: String,
    pub read_only: bool,
    pub len_bytes: u64,
    pub dirty_bytes: u64,
    pub resident_bytes: Option<u64>,
    pub failed: bool,
    pub writeback_error: Option<String>,
    pub store_change: Option<String>,
    pub connections: u64,
    pub in_flight: u64,
    pub errors: u64,
    pub requests_read: u64,
    pub requests_write: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub latency: BTreeMap<String, Latency>,
    pub exports: Vec<MemberStat>,
}

/// An export of an image.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct MemberStat {
    pub latency: BTreeMap<String, Latency>,
}

/// How long requests of one class took, as `stat` reports it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Latency {
    pub requests: u64,
    pub sum_ns: u64,
    pub buckets: Vec<(u64, u64)>,
}

/// How long requests of one kind took: their number and sum, and buckets by their end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Requests.
    pub count: u64,
    /// The sum of their times.
    pub sum_ns: u64,
    /// The end of a bucket in nanoseconds, exclusive, and its requests.
    pub buckets: BTreeMap<u64, u64>,
}

/// The most buckets of one kind; a server has 112.
const BUCKETS_MAX: usize = 256;

impl Stat {
    /// Reads the answer to `stat`. The error is a sentence.
    pub fn read(answer: Value) -> Result<Stat, String> {
        let mut stat: Stat = serde_json::from_value(answer)
            .map_err(|error| format!("the server's figures cannot be read: {error}"))?;
        for partition in &mut stat.partitions {
            let members = partition.objects.iter().flat_map(|object| &object.exports);
            let all = partition.objects.iter().map(|object| &object.latency);
            for latency in all.chain(members.map(|member| &member.latency)) {
                for (kind, latency) in latency {
                    partition.times.entry(kind.clone()).or_default().add(latency);
                }
            }
        }
        Ok(stat)
    }

    /// Adds the answer to `partitions`.
    pub fn add_limits(&mut self, answer: &Value) {
        self.moved_bytes = answer["reaper"]["moved_bytes"].as_u64().unwrap_or(0);
        self.memory_allowed_bytes =
            answer["reaper"]["allowed_bytes"].as_u64().unwrap_or(self.cache.memory_max_bytes);
        for entry in answer["partitions"].as_array().into_iter().flatten() {
            let Ok(limits) = Limits::deserialize(entry) else { continue };
            if let Some(partition) = self.partitions.iter_mut().find(|known| known.name == limits.name) {
                partition.limits = limits;
            }
        }
    }

    /// Adds the kinds that only the answer to `latency` has.
    pub fn add_latency(&mut self, answer: &Value) {
        let numbers = |value: &Value| -> Vec<u64> {
            value.as_array().into_iter().flatten().take(BUCKETS_MAX).filter_map(Value::as_u64).collect()
        };
        let bounds_us = numbers(&answer["bounds_us"]);
        for entry in answer["partitions"].as_array().into_iter().flatten() {
            let named = |known: &&mut PartitionStat| entry["name"].as_str() == Some(&known.name);
            let Some(partition) = self.partitions.iter_mut().find(named) else { continue };
            for (kind, told) in entry["kinds"].as_object().into_iter().flatten() {
                // The counts of the last bucket have no bound.
                let beyond = bounds_us.last().map_or(0, |last| last.saturating_mul(2));
                let ends = bounds_us.iter().copied().chain([beyond]).map(|end| end.saturating_mul(1000));
                let buckets = ends.zip(numbers(&told["counts"])).filter(|(_, count)| *count > 0);
                let times = Times {
                    count: told["count"].as_u64().unwrap_or(0),
                    sum_ns: told["sum_us"].as_u64().unwrap_or(0).saturating_mul(1000),
                    buckets: buckets.collect(),
                };
                // The buckets of `stat` are finer.
                partition.times.entry(kind.clone()).or_insert(times);
            }
        }
    }

    /// Whether this server is another process than the one that gave `before`.
    pub fn is_of_another_server(&self, before: &Stat) -> bool {
        self.pid != before.pid || self.uptime_s < before.uptime_s
    }
}

impl PartitionStat {
    /// A counter by name; 0 if the server does not have it.
    pub fn figure(&self, name: &str) -> u64 {
        self.figures.get(name).and_then(Value::as_u64).unwrap_or(0)
    }
}

impl Times {
    fn add(&mut self, latency: &Latency) {
        self.count += latency.requests;
        self.sum_ns = self.sum_ns.saturating_add(latency.sum_ns);
        for (end, count) in latency.buckets.iter().take(BUCKETS_MAX) {
            *self.buckets.entry(*end).or_default() += count;
        }
    }
}
