//! The server's figures for Prometheus, in the OpenMetrics text format.
//!
//! The number of series is bounded, so that clients cannot add series: a figure has at most one
//! series per partition, export or word of a fixed list, and exports beyond [`EXPORTS_MAX`] have
//! none. Names follow Prometheus's conventions: the prefix `octavo_`, units spelled out, the suffix
//! `_total` for counters; figures that differ in one respect share a name and are told apart by a
//! label. Figures of the process have the names of Prometheus's own libraries. Not here: the
//! listener, which is in `http`.

use std::fmt::{Debug, Error, Formatter};
use std::sync::Arc;
use std::time::Duration;

use octavo::numa::PartitionNumaStat;
use octavo::{Cache, Object, Partition, PartitionStat, UNLIMITED};
use octavo_block::{Class, ExportStat, Histogram, Kind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, text,
};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use super::keys::{EXPORT_FIGURES, FIGURES, Figure, NODE_FIGURES};
use crate::control::health::{Health, Phase};
use crate::control::report::{AskClients, MountReport, SharedImage};
use crate::process::{self, Process};
use crate::{limits, logger};

/// The media type of [`Metrics::page`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Figures whose names begin with this prefix are one metric; the rest of the name is a label.
const LABELLED: [(&str, &str); 2] = [("evictions_", "reason"), ("requests_", "kind")];

/// Figures that get another name, because theirs could be confused with a limit's.
const RENAMED: [(&str, &str); 1] = [("max_bytes", "frames_bytes")];

/// The figure that is a metric in seconds, the unit of Prometheus.
const OLDEST_MS: &str = "dirty_oldest_ms";

/// Most exports that have series: the first ones in the configuration. Each has thirteen series.
const EXPORTS_MAX: usize = 1000;

/// Most exports that have histograms, whose series are many: up to 28 for each class.
const HISTOGRAMS_MAX: usize = 128;

/// How often the first bound of a histogram, 1 µs, is doubled for its last one, 16.8 s.
const DOUBLINGS: u32 = 24;

/// All figures of a server.
pub struct Metrics(Registry);

impl Metrics {
    /// The figures of a cache, of its clients' traffic, and of this process.
    pub fn new(cache: Cache, clients: AskClients, health: Arc<Health>) -> Metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(OfProcess));
        let octavo = registry.sub_registry_with_prefix("octavo");
        octavo.register_collector(Box::new(Server { cache, clients, health }));
        Metrics(registry)
    }

    /// The figures now.
    pub fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut page, &self.0);
        page
    }
}

#[derive(Debug)]
struct OfProcess;

impl Collector for OfProcess {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let process = Process::now();
        for (name, what, value) in [
            ("process_resident_memory_bytes", "Resident memory", process.resident_bytes),
            ("process_virtual_memory_bytes", "Mapped memory", process.virtual_bytes),
            ("process_open_fds", "Open descriptors", process.open_fds),
            ("process_max_fds", "The limit on open descriptors", process.fds_max),
        ] {
            if let Some(value) = value {
                one(&mut encoder, name, what, Gauge, value)?;
            }
        }
        let (name, what) = ("process_cpu_seconds", "Processor time in user space and in the kernel");
        one(&mut encoder, name, what, Counter, process.cpu.as_secs_f64())?;
        let Some(started_s) = process.started_s else { return Ok(()) };
        let (name, what) = ("process_start_time_seconds", "Start of the process, in seconds since 1970");
        one(&mut encoder, name, what, Gauge, started_s)
    }
}

struct Server {
    cache: Cache,
    clients: AskClients,
    health: Arc<Health>,
}

impl Debug for Server {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

impl Collector for Server {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (cache, reaper, clients) = (self.cache.stat(), self.cache.reaper_stat(), (self.clients)());
        for (name, what, kind, value) in [
            ("connections", "NBD clients connected now", Gauge, clients.connections),
            ("exports", "Exports served", Gauge, clients.exports.len() as u64),
            ("memory_max_bytes", "The hard limit on all memory", Gauge, cache.memory_max_bytes),
            ("memory_charged_bytes", "Memory charged to the limit", Gauge, cache.memory_charged_bytes),
            ("buffers_max_bytes", "The share of the limit for buffers", Gauge, cache.buffers_max_bytes),
            ("buffers_used_bytes", "Buffers in use", Gauge, cache.buffers_used_bytes),
            ("rings", "I/O rings: of clients, and the cache's own", Gauge, cache.rings),
            (
                "reaper_periods",
                "Periods in which the reaper compared all partitions",
                Counter,
                reaper.periods,
            ),
            ("reaper_moved_bytes", "Memory moved between partitions", Counter, reaper.moved_bytes),
            ("reaper_allowed_bytes", ALLOWED, Gauge, reaper.allowed_bytes),
            ("reaper_held_up_partitions", HELD_UP, Gauge, reaper.held_up),
        ] {
            one(&mut encoder, name, what, kind, value)?;
        }
        if let Some(ratio) = process::memory_stalled_ratio() {
            one(&mut encoder, "memory_stalled_ratio", STALLED, Gauge, ratio)?;
        }
        let is_draining = self.health.phase() == Phase::Draining;
        one(&mut encoder, "draining", DRAINING, Gauge, u64::from(is_draining))?;
        one(&mut encoder, "log_lines_dropped", LOG_DROPPED, Counter, logger::dropped_count())?;
        exports(&mut encoder, &clients.exports[..clients.exports.len().min(EXPORTS_MAX)])?;
        images(&mut encoder, &clients.images[..clients.images.len().min(EXPORTS_MAX)])?;
        mounts(&mut encoder, &clients.mounts[..clients.mounts.len().min(EXPORTS_MAX)])?;
        for figure in &clients.remotes {
            one(&mut encoder, &format!("s3_{}", figure.name), figure.what, Counter, figure.value)?;
        }
        partitions(&mut encoder, &self.cache)
    }
}

const ALLOWED: &str =
    "Memory that partitions may hold now; less than the limit while the system is short of memory";
const STALLED: &str = "Share of the last ten seconds in which some process waited for memory (PSI)";
const DRAINING: &str = "1 while the server ends: no clients are admitted, dirty pages are written back";
const LOG_DROPPED: &str = "Lines of the log that were dropped: standard error was not read, or was full";
const HELD_UP: &str = "Partitions whose resize waits for a store that does not answer";

/// The figures of each mounted directory.
fn mounts(encoder: &mut DescriptorEncoder<'_>, mounts: &[MountReport]) -> Result<(), Error> {
    if mounts.is_empty() {
        return Ok(());
    }
    type Of = fn(&MountReport) -> u64;
    let figures: [(&str, &str, Of); 8] = [
        ("mount_nodes", "Files and directories that the kernel knows", |mount| mount.nodes),
        ("mount_files", "Files whose pages are kept", |mount| mount.files),
        ("mount_unwritten_files", "Files whose bytes could not be written back yet", |mount| {
            mount.unwritten_files
        }),
        ("mount_unwritten_bytes", "Bytes that could not be written back yet", |mount| mount.unwritten_bytes),
        ("mount_descriptors", "Descriptors that all mounts keep open", |mount| mount.descriptors),
        ("mount_descriptors_max", "Descriptors that all mounts may keep open", |mount| mount.descriptors_max),
        ("mount_refused", "Opens that were refused: their users had too many files open", |mount| {
            mount.refused
        }),
        ("mount_mounted", "0 if someone has unmounted the directory", |mount| u64::from(mount.is_mounted)),
    ];
    for (name, what, figure) in figures {
        let labels =
            |mount: &MountReport| vec![("path", mount.path.clone()), ("source", mount.source.clone())];
        let samples: Vec<_> = mounts.iter().map(|mount| (labels(mount), figure(mount))).collect();
        let samples = samples.iter().map(|(labels, value)| {
            (labels.iter().map(|(name, text)| (*name, &**text)).collect::<Vec<_>>(), *value)
        });
        family(encoder, name, what, Gauge, samples)?;
    }
    Ok(())
}

/// The figures of each partition.
fn partitions(encoder: &mut DescriptorEncoder<'_>, cache: &Cache) -> Result<(), Error> {
    let partitions = cache.partitions();
    let stats: Vec<PartitionStat> = partitions.iter().map(|partition| partition.stat()).collect();
    let in_ms = |figure: &&Figure| figure.name == OLDEST_MS;
    let others: Vec<&Figure> = FIGURES.iter().filter(|figure| !in_ms(figure)).collect();
    for together in others.chunk_by(|one, other| named(one).0 == named(other).0) {
        figures(encoder, together, &stats)?;
    }
    let samples = stats.iter().map(|stat| {
        (vec![("partition", &*stat.name)], Duration::from_millis(stat.dirty_oldest_ms).as_secs_f64())
    });
    let what = "Age of the oldest dirty byte, at most; 0 if nothing is dirty";
    family(encoder, "partition_dirty_oldest_seconds", what, Gauge, samples)?;
    nodes(encoder, &partitions.iter().filter_map(Partition::numa_counts).collect::<Vec<_>>())?;
    settings(encoder, &partitions, &stats)?;
    let mut objects = |name, what, counts: fn(&Object) -> bool| {
        let samples = partitions.iter().map(|partition| {
            let count = partition.objects().iter().filter(|object| counts(object)).count();
            (vec![("partition", partition.name())], count as u64)
        });
        family(encoder, name, what, Gauge, samples)
    };
    let what = "Exports that cannot be written back, or must be opened again";
    objects("partition_objects_failed", what, |object| object.check().is_err())?;
    let what = "Exports whose file or device other programs changed since the server started";
    objects("partition_objects_changed", what, |object| object.store().noticed().count > 0)
}

/// The counters of accesses between nodes, if the server has several nodes.
fn nodes(encoder: &mut DescriptorEncoder<'_>, stats: &[PartitionNumaStat]) -> Result<(), Error> {
    if stats.is_empty() {
        return Ok(());
    }
    for figure in NODE_FIGURES {
        let samples = stats.iter().map(|stat| (vec![("partition", &*stat.name)], (figure.of)(stat)));
        let name = format!("partition_{}", figure.name);
        family(encoder, &name, &capitalized(figure.what), figure.kind, samples)?;
    }
    let samples = stats.iter().map(|stat| (vec![("partition", &*stat.name), ("way", stat.way)], 1_u64));
    family(encoder, "partition_numa_info", "How threads access pages of other nodes", Gauge, samples)
}

/// Each partition's policy, cache mode, limits and weight.
fn settings(
    encoder: &mut DescriptorEncoder<'_>,
    partitions: &[Partition],
    stats: &[PartitionStat],
) -> Result<(), Error> {
    let samples = stats.iter().map(|stat| {
        (vec![("partition", &*stat.name), ("policy", stat.policy), ("cache_mode", stat.cache_mode)], 1_u64)
    });
    family(encoder, "partition_info", "The policy and the cache mode of a partition", Gauge, samples)?;
    let samples = partitions.iter().flat_map(|partition| {
        let set = limits::in_bytes(&partition.limits()).into_iter().filter(|(_, bytes)| *bytes != UNLIMITED);
        set.map(|(limit, bytes)| (vec![("partition", partition.name()), ("limit", limit)], bytes))
    });
    let what = "Limits of a partition, as in cgroup v2; a limit that is not set has no series";
    family(encoder, "partition_limit_bytes", what, Gauge, samples)?;
    let samples = partitions
        .iter()
        .map(|partition| (vec![("partition", partition.name())], u64::from(partition.limits().weight)));
    family(
        encoder,
        "partition_weight",
        "How much a partition's misses count when memory is divided",
        Gauge,
        samples,
    )
}

/// The figures of each export.
fn exports(encoder: &mut DescriptorEncoder<'_>, exports: &[ExportStat]) -> Result<(), Error> {
    for figure in EXPORT_FIGURES {
        let name = if figure.name == "in_flight" { "requests_in_flight" } else { figure.name };
        let samples = exports.iter().map(|stat| (vec![("export", &*stat.name)], (figure.of)(stat)));
        family(encoder, &format!("export_{name}"), &capitalized(figure.what), figure.kind, samples)?;
    }
    let samples = exports.iter().flat_map(|stat| {
        Kind::ALL.map(|kind| (vec![("export", &*stat.name), ("kind", kind.name())], stat.requests_of(kind)))
    });
    family(encoder, "export_requests", "Requests answered, by kind", Counter, samples)?;
    durations(encoder, &exports[..exports.len().min(HISTOGRAMS_MAX)])
}

/// How long the requests of each export took, by class. A class without requests has no series.
fn durations(encoder: &mut DescriptorEncoder<'_>, exports: &[ExportStat]) -> Result<(), Error> {
    let what = "Time from a request's receipt until its reply was ready, by class";
    let name = "export_request_duration";
    let mut metric = encoder.encode_descriptor(name, what, Some(&Unit::Seconds), MetricType::Histogram)?;
    for stat in exports {
        for class in Class::ALL {
            let times = stat.latency(class);
            if times.count() > 0 {
                let labels = [("export", &*stat.name), ("class", class.name())];
                histogram(&mut metric.encode_family(&labels)?, times)?;
            }
        }
    }
    Ok(())
}

fn histogram(metric: &mut MetricEncoder<'_>, times: &Histogram) -> Result<(), Error> {
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = (0..=DOUBLINGS)
        .map(|doublings| {
            let bound = Duration::from_micros(1 << doublings);
            let before = std::mem::replace(&mut below, times.below(bound));
            (bound.as_secs_f64(), below - before)
        })
        .collect();
    buckets.push((f64::INFINITY, times.count() - below));
    metric.encode_histogram::<[(&str, &str); 0]>(times.sum().as_secs_f64(), times.count(), &buckets, None)
}

/// How many exports read each shared image.
fn images(encoder: &mut DescriptorEncoder<'_>, images: &[SharedImage]) -> Result<(), Error> {
    let samples = images.iter().map(|image| {
        (vec![("share", &*image.share), ("image", image.object.name())], image.exports.len() as u64)
    });
    family(encoder, "image_exports", "Exports of a share group that read one image", Gauge, samples)
}

/// The metric that a figure belongs to, and its label there.
fn named(figure: &Figure) -> (&'static str, Option<(&'static str, &'static str)>) {
    let labelled = LABELLED.iter().find_map(|(beginning, label)| {
        let word = figure.name.strip_prefix(beginning)?;
        Some((beginning.trim_end_matches('_'), Some((*label, word))))
    });
    let renamed = RENAMED.iter().find(|(name, _)| *name == figure.name).map(|(_, name)| (*name, None));
    labelled.or(renamed).unwrap_or((figure.name, None))
}

/// Figures that are one metric, for all partitions.
fn figures(
    encoder: &mut DescriptorEncoder<'_>,
    together: &[&Figure],
    stats: &[PartitionStat],
) -> Result<(), Error> {
    let first = together[0];
    let (name, label) = named(first);
    let what = match label {
        Some((label, _)) => capitalized(&format!("{name}, by {label}")),
        None => capitalized(first.what),
    };
    let samples = stats.iter().flat_map(|stat| {
        together.iter().map(move |figure| {
            let labels = [("partition", &*stat.name)].into_iter().chain(named(figure).1).collect();
            (labels, (figure.of)(stat))
        })
    });
    family(encoder, &format!("partition_{name}"), &what, first.kind, samples)
}

fn capitalized(text: &str) -> String {
    let mut text = text.to_owned();
    text[..1].make_ascii_uppercase();
    text
}

/// A metric of one sample, without labels.
fn one<N: EncodeCounterValue + EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    what: &str,
    kind: MetricType,
    value: N,
) -> Result<(), Error> {
    family(encoder, name, what, kind, [(Vec::new(), value)])
}

/// A metric and its samples: their labels and values. A unit at the end of the name is declared as
/// the metric's unit.
fn family<'s, N: EncodeCounterValue + EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    what: &str,
    kind: MetricType,
    samples: impl IntoIterator<Item = (Vec<(&'s str, &'s str)>, N)>,
) -> Result<(), Error> {
    let units = [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)];
    let found = units.into_iter().find_map(|(end, unit)| Some((name.strip_suffix(end)?, Some(unit))));
    let (name, unit) = found.unwrap_or((name, None));
    let mut metric = encoder.encode_descriptor(name, what, unit.as_ref(), kind)?;
    for (labels, value) in samples {
        match labels.is_empty() {
            true => sample(&mut metric, kind, value)?,
            false => sample(&mut metric.encode_family(&labels)?, kind, value)?,
        }
    }
    Ok(())
}

fn sample<N: EncodeCounterValue + EncodeGaugeValue>(
    metric: &mut MetricEncoder<'_>,
    kind: MetricType,
    value: N,
) -> Result<(), Error> {
    const NO_EXEMPLAR: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
    match kind {
        Counter => metric.encode_counter(&value, NO_EXEMPLAR),
        _ => metric.encode_gauge(&value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::Clients;
    use octavo::numa::{NumaMode, TopologySource};
    use octavo::{CacheConfig, PartitionConfig};
    use std::time::Instant;

    fn metrics(cache: Cache, clients: impl Fn() -> Clients + Send + Sync + 'static) -> String {
        Metrics::new(cache, Box::new(clients), Arc::new(Health::new(Instant::now()))).page()
    }

    #[test]
    fn every_metric_is_declared_once_and_names_are_escaped() {
        let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() }).unwrap();
        for name in ["a", "quo\"te"] {
            cache
                .partition(PartitionConfig { max_bytes: Some(4 << 20), ..PartitionConfig::new(name) })
                .unwrap();
        }
        let exports = (0..EXPORTS_MAX + 1).map(|number| ExportStat {
            name: format!("disk{number}"),
            in_flight: 2,
            requests: [0, 1, 2, 3, 4, 5, 6, 7],
            read_bytes: 4096,
            latencies: [
                [900, 1100, 40_000_000_000].map(Duration::from_nanos).into_iter().collect(),
                Histogram::default(),
                Histogram::default(),
                Histogram::default(),
                Histogram::default(),
            ],
            ..ExportStat::default()
        });
        let exports: Vec<ExportStat> = exports.collect();
        let page = metrics(cache, move || Clients {
            connections: 3,
            exports: exports.clone(),
            ..Clients::default()
        });
        let mut names: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{page}");
        for line in [
            "# TYPE octavo_partition_read_bytes counter",
            "# UNIT octavo_partition_read_bytes bytes",
            "octavo_partition_read_bytes_total{partition=\"a\"} 0",
            "octavo_partition_evictions_total{partition=\"quo\\\"te\",reason=\"capacity\"} 0",
            "octavo_partition_requests_total{partition=\"a\",kind=\"sync\"} 0",
            "octavo_partition_limit_bytes{partition=\"a\",limit=\"max\"} 4194304",
            "octavo_partition_weight{partition=\"a\"} 100",
            "octavo_connections 3",
            "octavo_draining 0",
            "octavo_log_lines_dropped_total 0",
            "octavo_exports 1001",
            "octavo_export_requests_in_flight{export=\"disk0\"} 2",
            "octavo_export_read_bytes_total{export=\"disk999\"} 4096",
            "octavo_export_requests_total{export=\"disk999\",kind=\"trim\"} 3",
            "octavo_export_broken_total{export=\"disk1\"} 0",
            "# TYPE octavo_export_request_duration_seconds histogram",
            "octavo_export_request_duration_seconds_count{export=\"disk0\",class=\"hit\"} 3",
            "octavo_export_request_duration_seconds_sum{export=\"disk0\",class=\"hit\"} 40.000002",
            "octavo_export_request_duration_seconds_bucket{le=\"0.000001\",export=\"disk0\",class=\"hit\"} 1",
            "octavo_export_request_duration_seconds_bucket{le=\"0.000002\",export=\"disk0\",class=\"hit\"} 2",
            "octavo_export_request_duration_seconds_bucket{le=\"16.777216\",export=\"disk0\",class=\"hit\"} 2",
            "octavo_export_request_duration_seconds_bucket{le=\"+Inf\",export=\"disk127\",class=\"hit\"} 3",
            "# TYPE process_resident_memory_bytes gauge",
            "# TYPE process_start_time_seconds gauge",
            "# TYPE process_cpu_seconds counter",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
        }
        let lines = page.lines().filter(|line| line.contains("export=")).count();
        assert_eq!(lines, 14 * EXPORTS_MAX + 28 * HISTOGRAMS_MAX);
        assert!(!page.contains("limit=\"high\"") && !page.contains("twin"), "{page}");
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn with_several_nodes_their_counters_are_exported() {
        let topology = TopologySource::Emulated { nodes: 2, cores: 1 };
        let config =
            CacheConfig { topology, numa: NumaMode::Replicate, background: false, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let partition = PartitionConfig { max_bytes: Some(8 << 20), ..PartitionConfig::new("p") };
        let partition = cache.partition(partition).unwrap();
        let object = partition.open(octavo::disk::Store::memory("disk", 1 << 20), "disk").unwrap();
        // Each node reads all pages, half of which lie on the other node, and then reads its own
        // copies of those.
        for seat in [0, 1, 0, 1] {
            octavo::numa::sit(seat);
            (0..256).for_each(|page| object.read_at(page * 4096, &mut [0]).unwrap());
        }
        let told = partition.numa_counts().unwrap();
        assert!(told.twins_made > 0 && told.twin_hits > 0, "{told:?}");
        let page = metrics(cache, Clients::default);
        for count in NODE_FIGURES {
            let line =
                format!("octavo_partition_{}_total{{partition=\"p\"}} {}", count.name, (count.of)(&told));
            assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
        }
        let line = "octavo_partition_numa_info{partition=\"p\",way=\"replicate\"} 1";
        assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
    }
}
