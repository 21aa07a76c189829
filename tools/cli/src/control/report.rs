//! The answer to `stat`: exact counters of the server, its partitions and their exports.
//!
//! The names of the figures are part of the control protocol (docs/octavo-ctl.1.md): add names,
//! never rename one. The table for people is in `ctl`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use octavo::{Cache, Object, ObjectStat};
use octavo_block::{Class, ExportStat, Histogram, Kind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::keys::{EXPORT_FIGURES, FIGURES};
use crate::process;

/// Figures by name. A newer server may send figures of any JSON type.
pub type Figures = BTreeMap<String, Value>;

/// The whole server.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The server's version.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// NBD clients connected now.
    pub connections: u64,
    /// Resident memory of the process; `None` if the kernel does not report it.
    pub resident_bytes: Option<u64>,
    /// The share of the last ten seconds in which some process waited for memory (PSI); `None` if
    /// the kernel does not report it.
    pub memory_stalled_ratio: Option<f64>,
    /// The cache's memory.
    pub cache: CacheReport,
    /// Each partition, in the order of the configuration.
    pub partitions: Vec<PartitionReport>,
    /// The mounted directories. Their files are not among the objects, unless they cannot be
    /// written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountReport>,
    /// What was asked of servers of S3, by the names of the metrics; empty if nothing was.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub s3: BTreeMap<String, u64>,
}

/// A count of what was asked of servers of S3.
#[derive(Clone, Copy, Debug)]
pub struct RemoteFigure {
    /// Its name in reports; metrics put `s3_` before it.
    pub name: &'static str,
    /// What is counted.
    pub what: &'static str,
    /// The count since the server's start.
    pub value: u64,
}

/// A mounted directory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct MountReport {
    pub path: String,
    pub source: String,
    /// The partitions that its files may be in.
    pub partitions: Vec<String>,
    pub read_only: bool,
    /// False: someone has unmounted it.
    pub is_mounted: bool,
    /// Files and directories that the kernel knows.
    pub nodes: u64,
    /// Files whose pages are kept.
    pub files: u64,
    /// Files whose bytes could not be written back yet, and how many bytes these are.
    pub unwritten_files: u64,
    pub unwritten_bytes: u64,
    /// Descriptors that all mounts of the server keep open, and how many they may.
    pub descriptors: u64,
    pub descriptors_max: u64,
    /// Opens that failed with ENFILE.
    pub refused: u64,
}

/// The memory that all partitions share.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct CacheReport {
    pub memory_max_bytes: u64,
    pub memory_charged_bytes: u64,
    pub buffers_max_bytes: u64,
    pub buffers_used_bytes: u64,
    pub rings: u64,
    pub queues: u64,
    pub io_engine: String,
}

/// One partition: its counters since the start, and what it holds now.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct PartitionReport {
    pub name: String,
    pub policy: String,
    pub cache_mode: String,
    pub page_bytes: u64,
    pub objects: Vec<ObjectReport>,
    /// The recording in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<RecordingReport>,
    /// How many recordings ended before they were stopped.
    pub recordings_broken_off: u64,
    /// The figures that [`FIGURES`] lists.
    #[serde(flatten)]
    pub figures: Figures,
}

/// A recording.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct RecordingReport {
    pub file: String,
    pub sample: String,
    pub is_exact: bool,
    pub accesses: u64,
    pub event_bytes: u64,
    pub file_bytes: u64,
    pub seconds: u64,
    /// Why it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// One object of a partition: an export, or the image that exports of a share group read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ObjectReport {
    pub name: String,
    pub path: String,
    pub read_only: bool,
    pub direct: bool,
    pub len_bytes: u64,
    pub dirty_bytes: u64,
    pub failed: bool,
    pub writeback_error: Option<String>,
    /// How many changes of its file or device by other programs were noticed.
    pub store_changes: u64,
    /// The last of these changes, in a sentence.
    pub store_change: Option<String>,
    /// The share group of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// The exports of an image. Its own traffic is the sum of theirs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<MemberReport>,
    /// The traffic of its clients, now and since the server's start: [`EXPORT_FIGURES`], and the
    /// requests of each kind.
    #[serde(flatten)]
    pub traffic: Figures,
    /// How long its clients' requests took, by [`Class`]. A class without requests is absent.
    pub latency: BTreeMap<String, LatencyReport>,
}

/// How long requests of one class took, since the server's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct LatencyReport {
    pub requests: u64,
    pub sum_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// Pairs: where a bucket ends, exclusively, and its requests. The last possible bucket has no
    /// end.
    pub buckets: Vec<(u64, u64)>,
}

/// An export that shares an image with others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct MemberReport {
    pub name: String,
    /// As an object's.
    #[serde(flatten)]
    pub traffic: Figures,
    /// As an object's.
    pub latency: BTreeMap<String, LatencyReport>,
}

/// The traffic of clients, now and since the server's start.
#[derive(Default)]
pub struct Clients {
    /// Clients that are connected.
    pub connections: u64,
    /// The counts of each export, in the configuration's order.
    pub exports: Vec<ExportStat>,
    /// The images that exports share.
    pub images: Vec<SharedImage>,
    /// The directories that are mounted.
    pub mounts: Vec<MountReport>,
    /// What was asked of servers of S3; empty if nothing was.
    pub remotes: Vec<RemoteFigure>,
}

/// An image that the exports of a share group read as one object.
pub struct SharedImage {
    /// The group.
    pub share: String,
    /// The object.
    pub object: Object,
    /// The names of the exports.
    pub exports: Vec<String>,
}

/// Returns the current traffic of clients.
pub type AskClients = Box<dyn Fn() -> Clients + Send + Sync>;

impl Report {
    /// Asks the cache, and adds the traffic of clients: each export's figures to the object of its
    /// name.
    pub fn of(cache: &Cache, clients: &Clients) -> Report {
        let stat = cache.stat();
        let by_name: HashMap<&str, &ExportStat> =
            clients.exports.iter().map(|stat| (stat.name.as_str(), stat)).collect();
        let none = ExportStat::default();
        let stat_of = |name: &str| by_name.get(name).copied().unwrap_or(&none);
        // Stores of objects do not move while their objects are open.
        let place = |object: &Object| std::ptr::from_ref(object.store());
        let images: HashMap<_, _> =
            clients.images.iter().map(|image| (place(&image.object), image)).collect();
        // Files of mounts may be many, and have no clients of their own.
        let is_shown = |object: &Object| {
            clients.mounts.is_empty()
                || by_name.contains_key(object.name())
                || images.contains_key(&place(object))
                || object.check().is_err()
        };
        let object = |(object, stat): (&Object, ObjectStat)| match images.get(&place(object)) {
            None => {
                let client = stat_of(object.name());
                ObjectReport { latency: latency(client), ..ObjectReport::of(object, stat, traffic(client)) }
            }
            Some(image) => {
                let member = |name: &String| {
                    let stat = stat_of(name);
                    MemberReport { name: name.clone(), traffic: traffic(stat), latency: latency(stat) }
                };
                let exports: Vec<MemberReport> = image.exports.iter().map(member).collect();
                let total = sum(exports.iter().map(|export| &export.traffic));
                ObjectReport {
                    share: Some(image.share.clone()),
                    exports,
                    ..ObjectReport::of(object, stat, total)
                }
            }
        };
        let partitions = cache.partitions().into_iter().map(|partition| {
            let stat = partition.stat();
            let shown: Vec<Object> = partition.objects().into_iter().filter(is_shown).collect();
            let stats = Object::stats_of(&shown);
            PartitionReport {
                policy: stat.policy.into(),
                cache_mode: stat.cache_mode.into(),
                page_bytes: partition.page_bytes(),
                objects: shown.iter().zip(stats).map(object).collect(),
                figures: FIGURES
                    .iter()
                    .map(|figure| (figure.name.into(), (figure.of)(&stat).into()))
                    .collect(),
                name: stat.name,
                ..PartitionReport::default()
            }
        });
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: 0,
            connections: clients.connections,
            resident_bytes: process::resident_bytes(),
            memory_stalled_ratio: process::memory_stalled_ratio(),
            cache: CacheReport {
                memory_max_bytes: stat.memory_max_bytes,
                memory_charged_bytes: stat.memory_charged_bytes,
                buffers_max_bytes: stat.buffers_max_bytes,
                buffers_used_bytes: stat.buffers_used_bytes,
                rings: stat.rings,
                queues: stat.queues,
                io_engine: stat.io_engine.into(),
            },
            partitions: partitions.collect(),
            mounts: clients.mounts.clone(),
            s3: clients.remotes.iter().map(|figure| (figure.name.to_owned(), figure.value)).collect(),
        }
    }
}

impl PartitionReport {
    /// A figure by name; 0 if the server does not have it.
    pub fn figure(&self, name: &str) -> u64 {
        number(&self.figures, name)
    }

    /// The sum of some figures.
    pub fn sum(&self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.figure(name)).sum()
    }
}

impl ObjectReport {
    fn of(object: &Object, stat: ObjectStat, traffic: Figures) -> ObjectReport {
        let store = object.store();
        let noticed = store.noticed();
        ObjectReport {
            name: stat.name,
            path: store.name().into(),
            read_only: object.read_only(),
            direct: store.is_direct(),
            len_bytes: stat.len_bytes,
            dirty_bytes: stat.dirty_bytes,
            failed: stat.failed,
            writeback_error: stat.writeback_error,
            store_changes: noticed.count,
            store_change: noticed.last.map(|change| change.to_string()),
            traffic,
            ..ObjectReport::default()
        }
    }

    /// The rows of tables for people: the object itself, or one for each export of an image.
    pub fn shown(&self) -> Vec<ObjectReport> {
        let shown = self.exports.iter().map(|export| ObjectReport {
            name: export.name.clone(),
            traffic: export.traffic.clone(),
            latency: export.latency.clone(),
            ..self.clone()
        });
        if self.share.is_none() { vec![self.clone()] } else { shown.collect() }
    }

    /// A figure of its clients by name; 0 if the server does not have it.
    pub fn figure(&self, name: &str) -> u64 {
        number(&self.traffic, name)
    }
}

fn number(figures: &Figures, name: &str) -> u64 {
    figures.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// The sum of figures that have the same names.
fn sum<'f>(all: impl Iterator<Item = &'f Figures>) -> Figures {
    let mut total = traffic(&ExportStat::default());
    for figures in all {
        for (name, value) in &mut total {
            *value = (value.as_u64().unwrap_or(0) + number(figures, name)).into();
        }
    }
    total
}

/// The figures of an export.
pub fn traffic(stat: &ExportStat) -> Figures {
    let figures = EXPORT_FIGURES.iter().map(|figure| (figure.name.to_owned(), (figure.of)(stat)));
    let requests = Kind::ALL.map(|kind| (format!("requests_{}", kind.name()), stat.requests_of(kind)));
    figures.chain(requests).map(|(name, value)| (name, value.into())).collect()
}

/// The times of an export's requests.
pub fn latency(stat: &ExportStat) -> BTreeMap<String, LatencyReport> {
    let timed = Class::ALL.map(|class| (class, stat.latency(class)));
    let timed = timed.into_iter().filter(|(_, times)| times.count() > 0);
    timed.map(|(class, times)| (class.name().to_owned(), LatencyReport::of(times))).collect()
}

impl LatencyReport {
    fn of(times: &Histogram) -> LatencyReport {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let quantile = |share| times.quantile(share).map_or(0, ns);
        LatencyReport {
            requests: times.count(),
            sum_ns: ns(times.sum()),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            max_ns: ns(times.max()),
            buckets: times.buckets().map(|(end, count)| (ns(end), count)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_another_version_is_still_read() {
        let text = r#"{"version":"9.9","partitions":[{"name":"p","hits":7,"new":[1]}]}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        assert_eq!(report.partitions[0].name, "p");
        assert_eq!((report.partitions[0].figure("hits"), report.partitions[0].figure("new")), (7, 0));
    }

    /// Programs read these names: docs/octavo-ctl.1.md promises them.
    #[test]
    fn the_figures_of_an_export_keep_their_names() {
        let stat = ExportStat { requests: [1, 2, 3, 4, 5, 6, 7, 8], in_flight: 3, ..ExportStat::default() };
        let expected = serde_json::json!({
            "connections": 0, "in_flight": 3, "errors": 0, "read_bytes": 0, "written_bytes": 0,
            "requests_read": 1, "requests_write": 2, "requests_flush": 3, "requests_trim": 4,
            "requests_zeroes": 5, "requests_cache": 6, "requests_status": 7, "requests_unknown": 8,
            "broken": 0,
        });
        assert_eq!(serde_json::to_value(traffic(&stat)).unwrap(), expected);
        let mut stat = ExportStat::default();
        stat.latencies[Class::Miss as usize] = [300, 1100].map(Duration::from_nanos).into_iter().collect();
        let expected = serde_json::json!({"miss": {
            "requests": 2, "sum_ns": 1400, "p50_ns": 500, "p99_ns": 1100, "max_ns": 1100,
            "buckets": [[500, 1], [1250, 1]],
        }});
        assert_eq!(serde_json::to_value(latency(&stat)).unwrap(), expected);
    }
}
