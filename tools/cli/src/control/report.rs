//! What `octavo ctl stat` says: the exact counters as JSON, and a table of them for people.
//!
//! The names are part of the control protocol (docs/octavo-ctl.1.md): add, never rename.

use std::collections::HashMap;
use std::fmt::Write;

use octavo::{Cache, ObjectStat, PartitionStat};
use octavo_block::{ExportStat, Kind};
use serde::{Deserialize, Serialize};

use crate::control::drain::without_name;
use crate::process;
use crate::units::{aligned, human_bytes, human_count, percent};

/// The whole server.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The server's version.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// How long it has been serving.
    pub uptime_s: u64,
    /// NBD clients connected now.
    pub connections: u64,
    /// Resident memory of the process; `None` where the kernel does not tell.
    pub resident_bytes: Option<u64>,
    /// The cache's memory.
    pub cache: CacheReport,
    /// Each partition, in the order of the configuration.
    pub partitions: Vec<PartitionReport>,
}

/// The memory that everything shares.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct CacheReport {
    pub memory_max_bytes: u64,
    pub memory_charged_bytes: u64,
    pub buffers_max_bytes: u64,
    pub buffers_used_bytes: u64,
    pub io_engine: String,
}

/// The figures of a partition, each once: its name in the protocol, and where the engine has it.
macro_rules! figures {
    ($($name:ident: $type:ty = $($place:ident).+,)*) => {
        /// One partition: its counters since the start, and what it holds now.
        #[derive(Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        #[allow(missing_docs)]
        pub struct PartitionReport {
            $(pub $name: $type,)*
            pub objects: Vec<ObjectReport>,
            /// What is being recorded of it.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub recording: Option<RecordingReport>,
            /// Recordings that ended though nobody had said so.
            pub recordings_broken_off: u64,
        }

        impl From<PartitionStat> for PartitionReport {
            fn from(stat: PartitionStat) -> PartitionReport {
                PartitionReport { $($name: stat.$($place).+.into(),)* ..PartitionReport::default() }
            }
        }
    };
}

figures! {
    name: String = name,
    policy: String = policy,
    cache_mode: String = cache_mode,
    hits: u64 = hits,
    misses: u64 = misses,
    fills: u64 = fills,
    bypasses: u64 = bypasses,
    evictions_capacity: u64 = evictions.capacity,
    evictions_resize: u64 = evictions.resize,
    evictions_discard: u64 = evictions.discard,
    evictions_write: u64 = evictions.write,
    writebacks: u64 = writebacks,
    writeback_ios: u64 = writeback_ios,
    read_errors: u64 = read_errors,
    write_errors: u64 = write_errors,
    sync_errors: u64 = sync_errors,
    ghost_hits: u64 = ghost_hits,
    ahead_used: u64 = ahead_used,
    ahead_wasted: u64 = ahead_wasted,
    resident_bytes: u64 = resident_bytes,
    dirty_bytes: u64 = dirty_bytes,
    dirty_max_bytes: u64 = dirty_max_bytes,
    max_bytes: u64 = max_bytes,
    charged_bytes: u64 = charged_bytes,
    requests_read: u64 = requests_read,
    requests_write: u64 = requests_write,
    requests_sync: u64 = requests_sync,
    read_bytes: u64 = read_bytes,
    written_bytes: u64 = written_bytes,
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

/// One object of a partition.
#[derive(Debug, Default, Serialize, Deserialize)]
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
    /// What others did to its file or device, as often as that was noticed.
    pub store_changes: u64,
    /// The last of it, in a sentence.
    pub store_change: Option<String>,
    #[serde(flatten)]
    pub traffic: TrafficReport,
}

/// What the clients of an export do, and have done since the server's start.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct TrafficReport {
    pub connections: u64,
    pub in_flight: u64,
    pub requests_read: u64,
    pub requests_write: u64,
    pub requests_flush: u64,
    pub requests_trim: u64,
    pub requests_zeroes: u64,
    pub requests_cache: u64,
    pub requests_unknown: u64,
    pub errors: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// What clients do now, and have done.
#[derive(Default)]
pub struct Clients {
    /// Those that are connected.
    pub connections: u64,
    /// The counts of each export, in the configuration's order.
    pub exports: Vec<ExportStat>,
}

/// Asks what clients do.
pub type AskClients = Box<dyn Fn() -> Clients + Send + Sync>;

impl Report {
    /// Asks the cache.
    pub fn of(cache: &Cache) -> Report {
        let stat = cache.stat();
        let partitions = cache.partitions();
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: 0,
            connections: 0,
            resident_bytes: process::resident_bytes(),
            cache: CacheReport {
                memory_max_bytes: stat.memory_max_bytes,
                memory_charged_bytes: stat.memory_charged_bytes,
                buffers_max_bytes: stat.buffers_max_bytes,
                buffers_used_bytes: stat.buffers_used_bytes,
                io_engine: stat.io_engine.into(),
            },
            partitions: partitions
                .iter()
                .map(|partition| {
                    let objects = partition.objects();
                    let objects = objects.iter().map(|object| {
                        let store = object.store();
                        let noticed = store.noticed();
                        ObjectReport {
                            path: store.name().into(),
                            read_only: object.read_only(),
                            direct: store.is_direct(),
                            store_changes: noticed.count,
                            store_change: noticed.last.map(|change| change.to_string()),
                            ..ObjectReport::from(object.stat())
                        }
                    });
                    PartitionReport { objects: objects.collect(), ..PartitionReport::from(partition.stat()) }
                })
                .collect(),
        }
    }

    /// Adds what clients do, each export's to the object of its name.
    pub fn with_clients(mut self, clients: &Clients) -> Report {
        self.connections = clients.connections;
        let by_name: HashMap<&str, &ExportStat> =
            clients.exports.iter().map(|stat| (stat.name.as_str(), stat)).collect();
        for object in self.partitions.iter_mut().flat_map(|partition| &mut partition.objects) {
            if let Some(stat) = by_name.get(object.name.as_str()) {
                object.traffic = TrafficReport::from(*stat);
            }
        }
        self
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let cache = &self.cache;
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "octavo {}, process {}, up {}, {} connected; memory {} of {} (buffers {} of {}){}, io {}\n",
            self.version,
            self.pid,
            uptime(self.uptime_s),
            self.connections,
            human_bytes(cache.memory_charged_bytes),
            human_bytes(cache.memory_max_bytes),
            human_bytes(cache.buffers_used_bytes),
            human_bytes(cache.buffers_max_bytes),
            self.resident(),
            cache.io_engine,
        );
        let mut partitions = vec![row([
            "PARTITION",
            "POLICY",
            "MODE",
            "HITS",
            "REQUESTS",
            "READ",
            "WRITTEN",
            "RESIDENT",
            "OF",
            "DIRTY",
            "EVICTED",
            "ERRORS",
        ])];
        partitions.extend(self.partitions.iter().map(PartitionReport::row));
        text.push_str(&aligned(&partitions, 3));
        let mut objects = vec![row(["EXPORT", "PATH", "PARTITION", "STATE", "LENGTH", "DIRTY"])];
        for partition in &self.partitions {
            objects.extend(partition.objects.iter().map(|object| object.row(&partition.name)));
        }
        text.push('\n');
        text.push_str(&aligned(&objects, 4));
        let mut traffic = vec![row([
            "EXPORT",
            "CLIENTS",
            "IN FLIGHT",
            "READS",
            "WRITES",
            "FLUSHES",
            "TRIMS",
            "ZEROES",
            "OTHERS",
            "READ",
            "WRITTEN",
            "ERRORS",
        ])];
        let objects = self.partitions.iter().flat_map(|partition| &partition.objects);
        traffic.extend(objects.map(|object| object.traffic.row(&object.name)));
        text.push('\n');
        text.push_str(&aligned(&traffic, 1));
        for partition in &self.partitions {
            text.push_str(&partition.recorded());
        }
        for object in self.partitions.iter().flat_map(|partition| &partition.objects) {
            if let Some(change) = &object.store_change {
                let _ = writeln!(text, "\n\"{}\": {}: {change}", object.name, object.path);
            }
            if let Some(error) = &object.writeback_error {
                let _ = writeln!(
                    text,
                    "\n\"{}\" cannot be written back: {}",
                    object.name,
                    without_name(&object.name, error)
                );
            }
        }
        text
    }
}

impl Report {
    /// Resident memory, for a line that has told the charge.
    pub fn resident(&self) -> String {
        self.resident_bytes.map_or_else(String::new, |bytes| format!(", {} resident", human_bytes(bytes)))
    }
}

impl PartitionReport {
    /// Lines about its recordings, if there is something to say.
    fn recorded(&self) -> String {
        let mut text = String::new();
        if let Some(recording) = &self.recording {
            text += &format!(
                "\n\"{}\" is being recorded to {}: {} accesses, {}, {} ({})\n",
                self.name,
                recording.file,
                human_count(recording.accesses as f64),
                human_bytes(recording.file_bytes),
                uptime(recording.seconds),
                recording.sample
            );
        }
        if self.recordings_broken_off > 0 {
            let count = self.recordings_broken_off;
            text += &format!("\n\"{}\": {count} recordings ended early; the log says why\n", self.name);
        }
        text
    }

    fn row(&self) -> Vec<String> {
        let errors = self.read_errors + self.write_errors + self.sync_errors;
        let evicted =
            self.evictions_capacity + self.evictions_resize + self.evictions_discard + self.evictions_write;
        vec![
            self.name.clone(),
            self.policy.clone(),
            self.cache_mode.clone(),
            percent(self.hits, self.hits + self.misses),
            human_count((self.requests_read + self.requests_write + self.requests_sync) as f64),
            human_bytes(self.read_bytes),
            human_bytes(self.written_bytes),
            human_bytes(self.resident_bytes),
            human_bytes(self.max_bytes),
            human_bytes(self.dirty_bytes),
            human_count(evicted as f64),
            errors.to_string(),
        ]
    }
}

impl ObjectReport {
    fn row(&self, partition: &str) -> Vec<String> {
        let state = match (self.failed, &self.writeback_error, self.read_only, self.direct) {
            (true, ..) => "FAILED",
            (_, Some(_), ..) => "REFUSING",
            _ if self.store_changes > 0 => "CHANGED",
            (_, _, true, true) => "read-only",
            (_, _, true, false) => "read-only, buffered",
            (.., true) => "ok",
            (.., false) => "ok, buffered",
        };
        vec![
            self.name.clone(),
            self.path.clone(),
            partition.to_owned(),
            state.to_owned(),
            human_bytes(self.len_bytes),
            human_bytes(self.dirty_bytes),
        ]
    }
}

impl TrafficReport {
    fn row(&self, export: &str) -> Vec<String> {
        let count = |requests: u64| human_count(requests as f64);
        vec![
            export.to_owned(),
            self.connections.to_string(),
            self.in_flight.to_string(),
            count(self.requests_read),
            count(self.requests_write),
            count(self.requests_flush),
            count(self.requests_trim),
            count(self.requests_zeroes),
            count(self.requests_cache + self.requests_unknown),
            human_bytes(self.read_bytes),
            human_bytes(self.written_bytes),
            count(self.errors),
        ]
    }
}

impl From<&ExportStat> for TrafficReport {
    fn from(stat: &ExportStat) -> TrafficReport {
        TrafficReport {
            connections: stat.connections,
            in_flight: stat.in_flight,
            requests_read: stat.requests_of(Kind::Read),
            requests_write: stat.requests_of(Kind::Write),
            requests_flush: stat.requests_of(Kind::Flush),
            requests_trim: stat.requests_of(Kind::Trim),
            requests_zeroes: stat.requests_of(Kind::Zeroes),
            requests_cache: stat.requests_of(Kind::Cache),
            requests_unknown: stat.requests_of(Kind::Unknown),
            errors: stat.errors,
            read_bytes: stat.read_bytes,
            written_bytes: stat.written_bytes,
        }
    }
}

impl From<ObjectStat> for ObjectReport {
    fn from(stat: ObjectStat) -> ObjectReport {
        ObjectReport {
            name: stat.name,
            len_bytes: stat.len_bytes,
            dirty_bytes: stat.dirty_bytes,
            failed: stat.failed,
            writeback_error: stat.writeback_error,
            ..ObjectReport::default()
        }
    }
}

fn uptime(seconds: u64) -> String {
    match seconds {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lines_up_and_names_what_is_wrong() {
        let report = Report {
            partitions: vec![PartitionReport {
                name: "vm1".into(),
                hits: 931,
                misses: 69,
                objects: vec![ObjectReport {
                    name: "disk".into(),
                    writeback_error: Some("no space".into()),
                    ..ObjectReport::default()
                }],
                ..PartitionReport::default()
            }],
            ..Report::default()
        };
        let stat = ExportStat {
            name: "disk".into(),
            connections: 2,
            in_flight: 3,
            requests: [12_345, 4, 5, 6, 7, 8, 9],
            errors: 10,
            read_bytes: 1 << 20,
            written_bytes: 4096,
        };
        let report = report.with_clients(&Clients { connections: 2, exports: vec![stat] });
        let table = report.table();
        let traffic = "disk          2          3  12.3k       4        5      6       7      17  1 MiB    4 KiB      10\n";
        assert!(table.contains(traffic) && table.contains(", 2 connected;"), "{table}");
        assert!(table.contains("93.1 %"), "{table}");
        assert!(table.contains("REFUSING"), "{table}");
        assert!(table.contains("\"disk\" cannot be written back: no space"), "{table}");
        let changed =
            ObjectReport { store_changes: 1, store_change: Some("cut".into()), ..ObjectReport::default() };
        let partition = PartitionReport { objects: vec![changed], ..PartitionReport::default() };
        let table = Report { partitions: vec![partition], ..Report::default() }.table();
        assert!(table.contains("CHANGED") && table.contains(": cut\n"), "{table}");
    }

    #[test]
    fn a_report_of_another_version_is_still_read() {
        let report: Report =
            serde_json::from_str(r#"{"version":"9.9","partitions":[{"name":"p","new":1}]}"#).unwrap();
        assert_eq!(report.partitions[0].name, "p");
    }
}
