//! The server's figures for Prometheus, in the OpenMetrics text format.
//!
//! Every figure has at most one series per partition, export or word of a fixed list, and exports
//! beyond [`EXPORTS_MAX`] have none: what clients do adds no series. Names follow Prometheus's
//! conventions: `octavo_` in front, units spelled out, `_total` behind what only grows; what
//! differs in one respect is one name with a label. Figures of the process have the names that
//! Prometheus's own libraries give them. What is not here: the listener, in `http`.

use std::fmt::{Debug, Error, Formatter};

use octavo::numa::PartitionNumaStat;
use octavo::{Cache, Object, PartitionStat, UNLIMITED};
use octavo_block::{ExportStat, Kind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use super::keys::{FIGURES, Figure};
use crate::control::numa::COUNTS;
use crate::control::report::AskClients;
use crate::process::Process;

/// What [`Metrics::page`] is, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Figures whose names differ after this beginning are one metric, told apart by a label.
const LABELLED: [(&str, &str); 2] = [("evictions_", "reason"), ("requests_", "kind")];

/// Where a figure's name would mislead beside the limits.
const RENAMED: [(&str, &str); 1] = [("max_bytes", "frames_bytes")];

/// Exports that have series of their own, the first of the configuration; each has twelve.
const EXPORTS_MAX: usize = 1000;

/// All figures of a server.
pub struct Metrics(Registry);

impl Metrics {
    /// The figures of a cache, of what clients do, and of this process.
    pub fn new(cache: Cache, clients: AskClients) -> Metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(OfProcess));
        let octavo = registry.sub_registry_with_prefix("octavo");
        octavo.register_collector(Box::new(Server { cache, clients }));
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
            ("process_max_fds", "The most descriptors that may be open", process.fds_max),
        ] {
            if let Some(value) = value {
                family(&mut encoder, name, what, false, |metric| sample(metric, false, value))?;
            }
        }
        let (name, what) = ("process_cpu_seconds", "Processor time in user space and in the kernel");
        family(&mut encoder, name, what, true, |metric| sample(metric, true, process.cpu.as_secs_f64()))?;
        if let Some(started_s) = process.started_s {
            let (name, what) = ("process_start_time_seconds", "When the process was started, since 1970");
            family(&mut encoder, name, what, false, |metric| sample(metric, false, started_s))?;
        }
        Ok(())
    }
}

struct Server {
    cache: Cache,
    clients: AskClients,
}

impl Debug for Server {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

impl Collector for Server {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (cache, reaper, clients) = (self.cache.stat(), self.cache.reaper_stat(), (self.clients)());
        let mut one = |name, what, is_counter, value| {
            family(&mut encoder, name, what, is_counter, |metric| sample(metric, is_counter, value))
        };
        one("connections", "NBD clients connected now", false, clients.connections)?;
        one("exports", "Exports that are served", false, clients.exports.len() as u64)?;
        one("memory_max_bytes", "The bound on everything", false, cache.memory_max_bytes)?;
        one("memory_charged_bytes", "What is charged to the bound", false, cache.memory_charged_bytes)?;
        one("buffers_max_bytes", "The share of the bound for buffers", false, cache.buffers_max_bytes)?;
        one("buffers_used_bytes", "Buffers in use", false, cache.buffers_used_bytes)?;
        one("reaper_periods", "Times that the reaper looked at all partitions", true, reaper.periods)?;
        one("reaper_moved_bytes", "Memory that partitions gave away", true, reaper.moved_bytes)?;
        let what =
            "What all partitions may hold now, less than the bound while the system is short of memory";
        one("reaper_allowed_bytes", what, false, reaper.allowed_bytes)?;
        let what = "Partitions whose size waits for a store that has not answered in time";
        one("reaper_held_up_partitions", what, false, reaper.held_up)?;

        exports(&mut encoder, &clients.exports[..clients.exports.len().min(EXPORTS_MAX)])?;

        let partitions = self.cache.partitions();
        let stats: Vec<PartitionStat> = partitions.iter().map(|partition| partition.stat()).collect();
        let mut rest = FIGURES;
        while let Some((figure, _)) = rest.split_first() {
            let alike = rest.iter().take_while(|other| named(other).0 == named(figure).0).count();
            let (together, others) = rest.split_at(alike);
            figures(&mut encoder, together, &stats)?;
            rest = others;
        }

        let on_nodes: Vec<PartitionNumaStat> =
            partitions.iter().filter_map(|partition| partition.numa_counts()).collect();
        for count in COUNTS.iter().filter(|_| !on_nodes.is_empty()) {
            family(&mut encoder, &format!("partition_{}", count.name), count.what, true, |metric| {
                on_nodes.iter().try_for_each(|stat| {
                    labelled(metric, &[("partition", stat.name.as_str())], true, (count.of)(stat))
                })
            })?;
        }
        if !on_nodes.is_empty() {
            let what = "How threads get at pages of other nodes";
            family(&mut encoder, "partition_numa_info", what, false, |metric| {
                on_nodes.iter().try_for_each(|stat| {
                    let labels = [("partition", stat.name.as_str()), ("way", stat.way)];
                    sample(&mut metric.encode_family(&labels)?, false, 1_u64)
                })
            })?;
        }

        family(&mut encoder, "partition_info", "How a partition is run", false, |metric| {
            stats.iter().try_for_each(|stat| {
                let labels = [
                    ("partition", stat.name.as_str()),
                    ("policy", stat.policy),
                    ("cache_mode", stat.cache_mode),
                ];
                sample(&mut metric.encode_family(&labels)?, false, 1_u64)
            })
        })?;
        let limits: Vec<_> = partitions.iter().map(|partition| partition.limits()).collect();
        let what = "Limits of a partition, as in cgroup v2; a bound that is not set has no series";
        family(&mut encoder, "partition_limit_bytes", what, false, |metric| {
            stats.iter().zip(&limits).try_for_each(|(stat, limits)| {
                let (low, high) = (limits.low_bytes, limits.high_bytes);
                let all =
                    [("min", limits.min_bytes), ("low", low), ("high", high), ("max", limits.max_bytes)];
                all.into_iter().filter(|(_, bytes)| *bytes != UNLIMITED).try_for_each(|(limit, bytes)| {
                    let labels = [("partition", stat.name.as_str()), ("limit", limit)];
                    sample(&mut metric.encode_family(&labels)?, false, bytes)
                })
            })
        })?;
        family(&mut encoder, "partition_weight", "What a partition's misses count for", false, |metric| {
            stats.iter().zip(&limits).try_for_each(|(stat, limits)| {
                let labels = [("partition", stat.name.as_str())];
                sample(&mut metric.encode_family(&labels)?, false, u64::from(limits.weight))
            })
        })?;
        let mut objects = |name, what, counts: fn(&Object) -> bool| {
            family(&mut encoder, name, what, false, |metric| {
                partitions.iter().try_for_each(|partition| {
                    let count = partition.objects().iter().filter(|object| counts(object)).count();
                    let labels = [("partition", partition.name())];
                    sample(&mut metric.encode_family(&labels)?, false, count as u64)
                })
            })
        };
        let what = "Exports that cannot be written back, or have to be opened again";
        objects("partition_objects_failed", what, |object| {
            let stat = object.stat();
            stat.failed || stat.writeback_error.is_some()
        })?;
        let what = "Exports whose file or device other programs have changed since the server began";
        objects("partition_objects_changed", what, |object| object.store().noticed().count > 0)
    }
}

/// What clients ask of each export.
fn exports(encoder: &mut DescriptorEncoder<'_>, exports: &[ExportStat]) -> Result<(), Error> {
    type Of = fn(&ExportStat) -> u64;
    let figures: [(&str, &str, bool, Of); 5] = [
        ("connections", "NBD clients of an export now", false, |stat| stat.connections),
        ("requests_in_flight", "Requests received and not answered yet", false, |stat| stat.in_flight),
        ("errors", "Requests answered with an error", true, |stat| stat.errors),
        ("read_bytes", "Bytes that clients read", true, |stat| stat.read_bytes),
        ("written_bytes", "Bytes that clients wrote", true, |stat| stat.written_bytes),
    ];
    for (name, what, is_counter, of) in figures {
        family(encoder, &format!("export_{name}"), what, is_counter, |metric| {
            exports.iter().try_for_each(|stat| {
                labelled(metric, &[("export", stat.name.as_str())], is_counter, of(stat))
            })
        })?;
    }
    family(encoder, "export_requests", "Requests answered, by kind", true, |metric| {
        for stat in exports {
            for kind in Kind::ALL {
                let labels = [("export", stat.name.as_str()), ("kind", kind.name())];
                labelled(metric, &labels, true, stat.requests_of(kind))?;
            }
        }
        Ok(())
    })
}

/// The metric that a figure belongs to and the label that sets it apart there.
fn named(figure: &Figure) -> (&'static str, Option<(&'static str, &'static str)>) {
    let labelled = LABELLED.iter().find_map(|(beginning, label)| {
        let word = figure.name.strip_prefix(beginning)?;
        Some((beginning.trim_end_matches('_'), Some((*label, word))))
    });
    let renamed = RENAMED.iter().find(|(name, _)| *name == figure.name).map(|(_, name)| (*name, None));
    labelled.or(renamed).unwrap_or((figure.name, None))
}

/// Figures that are one metric, of all partitions.
fn figures(
    encoder: &mut DescriptorEncoder<'_>,
    together: &[Figure],
    stats: &[PartitionStat],
) -> Result<(), Error> {
    let Some(first) = together.first() else { return Ok(()) };
    let (name, label) = named(first);
    let mut what = match label {
        Some((label, _)) => format!("{name}, by {label}"),
        None => first.what.to_owned(),
    };
    what[..1].make_ascii_uppercase();
    family(encoder, &format!("partition_{name}"), &what, first.is_counter, |metric| {
        for stat in stats {
            for figure in together {
                let partition = ("partition", stat.name.as_str());
                let value = (figure.of)(stat);
                match named(figure).1 {
                    Some(word) => labelled(metric, &[partition, word], figure.is_counter, value)?,
                    None => labelled(metric, &[partition], figure.is_counter, value)?,
                }
            }
        }
        Ok(())
    })
}

fn labelled(
    metric: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    is_counter: bool,
    value: u64,
) -> Result<(), Error> {
    sample(&mut metric.encode_family(labels)?, is_counter, value)
}

/// A metric and its samples; a name that ends in a unit is told so.
fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    what: &str,
    is_counter: bool,
    samples: impl FnOnce(&mut MetricEncoder<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let units = [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)];
    let found = units.into_iter().find_map(|(end, unit)| Some((name.strip_suffix(end)?, Some(unit))));
    let (name, unit) = found.unwrap_or((name, None));
    let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
    samples(&mut encoder.encode_descriptor(name, what, unit.as_ref(), kind)?)
}

fn sample<N>(metric: &mut MetricEncoder<'_>, is_counter: bool, value: N) -> Result<(), Error>
where
    N: EncodeCounterValue + EncodeGaugeValue,
{
    const NO_EXEMPLAR: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
    if is_counter { metric.encode_counter(&value, NO_EXEMPLAR) } else { metric.encode_gauge(&value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::Clients;
    use octavo::numa::{NumaMode, TopologySource};
    use octavo::{CacheConfig, PartitionConfig};

    #[test]
    fn every_metric_is_told_once_and_names_are_escaped() {
        let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() }).unwrap();
        for name in ["a", "quo\"te"] {
            cache
                .partition(PartitionConfig { max_bytes: Some(4 << 20), ..PartitionConfig::new(name) })
                .unwrap();
        }
        let exports = (0..EXPORTS_MAX + 1).map(|number| ExportStat {
            name: format!("disk{number}"),
            in_flight: 2,
            requests: [0, 1, 2, 3, 4, 5, 6],
            read_bytes: 4096,
            ..ExportStat::default()
        });
        let exports: Vec<ExportStat> = exports.collect();
        let page =
            Metrics::new(cache, Box::new(move || Clients { connections: 3, exports: exports.clone() }))
                .page();
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
            "octavo_exports 1001",
            "octavo_export_requests_in_flight{export=\"disk0\"} 2",
            "octavo_export_read_bytes_total{export=\"disk999\"} 4096",
            "octavo_export_requests_total{export=\"disk999\",kind=\"trim\"} 3",
            "# TYPE process_resident_memory_bytes gauge",
            "# TYPE process_start_time_seconds gauge",
            "# TYPE process_cpu_seconds counter",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
        }
        assert_eq!(page.lines().filter(|line| line.contains("export=")).count(), 12 * EXPORTS_MAX);
        assert!(!page.contains("limit=\"high\"") && !page.contains("twin"), "{page}");
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn with_several_nodes_what_is_counted_of_them_is_told() {
        let topology = TopologySource::Emulated { nodes: 2, cores: 1 };
        let config =
            CacheConfig { topology, numa: NumaMode::Replicate, background: false, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let partition = PartitionConfig { max_bytes: Some(8 << 20), ..PartitionConfig::new("p") };
        let partition = cache.partition(partition).unwrap();
        let object = partition.open(octavo::disk::Store::memory("disk", 1 << 20), "disk").unwrap();
        // Each node reads all, so that half is the other's, and then a copy of its own.
        for seat in [0, 1, 0, 1] {
            octavo::numa::sit(seat);
            (0..256).for_each(|page| object.read_at(page * 4096, &mut [0]).unwrap());
        }
        let told = partition.numa_counts().unwrap();
        assert!(told.twins_made > 0 && told.twin_hits > 0, "{told:?}");
        let page = Metrics::new(cache, Box::new(Clients::default)).page();
        for count in COUNTS {
            let line =
                format!("octavo_partition_{}_total{{partition=\"p\"}} {}", count.name, (count.of)(&told));
            assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
        }
        let line = "octavo_partition_numa_info{partition=\"p\",way=\"replicate\"} 1";
        assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
    }
}
