//! Answers of a server as tables for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use octavo_block::Class;
use serde_json::Value;

use crate::control::drain::without_name;
use crate::control::report::{LatencyReport, MountReport, ObjectReport, PartitionReport, Report};
use crate::limits;
use crate::units::{aligned, human_bytes, human_count, human_time, percent};

/// A column of a table: its title, and the text that it shows for an item.
pub type Column<T> = (&'static str, fn(&T) -> String);

/// A table with a row for each item. The first `left` columns are aligned to the left.
pub fn table<'t, T: 't>(
    left: usize,
    columns: &[Column<T>],
    items: impl IntoIterator<Item = &'t T>,
) -> String {
    let mut rows = vec![columns.iter().map(|(title, _)| (*title).to_owned()).collect::<Vec<String>>()];
    rows.extend(items.into_iter().map(|item| columns.iter().map(|(_, cell)| cell(item)).collect()));
    aligned(&rows, left)
}

/// The answer to `stat` as tables.
pub fn report(report: &Report) -> String {
    let cache = &report.cache;
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "octavo {}, process {}, up {}, {} connected; memory {} of {} (buffers {} of {}){}, io {}\n",
        report.version,
        report.pid,
        uptime(report.uptime_s),
        report.connections,
        human_bytes(cache.memory_charged_bytes),
        human_bytes(cache.memory_max_bytes),
        human_bytes(cache.buffers_used_bytes),
        human_bytes(cache.buffers_max_bytes),
        resident(report),
        cache.io_engine,
    );
    let objects: Vec<(&PartitionReport, &ObjectReport)> = report
        .partitions
        .iter()
        .flat_map(|partition| partition.objects.iter().map(move |object| (partition, object)))
        .collect();
    let shown: Vec<(&PartitionReport, ObjectReport)> = objects
        .iter()
        .flat_map(|(partition, object)| object.shown().into_iter().map(move |shown| (*partition, shown)))
        .collect();
    text += &table(3, PARTITIONS, &report.partitions);
    if !report.mounts.is_empty() {
        text += &format!("\n{}", table(4, MOUNTS, &report.mounts));
    }
    if !shown.is_empty() || report.mounts.is_empty() {
        text += &format!("\n{}", exports(&shown));
        text += &format!("\n{}", table(1, TRAFFIC, shown.iter().map(|(_, object)| object)));
    }
    text += &remotes(&report.s3);
    text += &latencies(shown.iter().map(|(_, object)| object));
    for partition in &report.partitions {
        text.push_str(&recorded(partition));
    }
    for (_, object) in objects {
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

/// A line about servers of S3; empty if none was asked.
fn remotes(s3: &BTreeMap<String, u64>) -> String {
    if s3.is_empty() {
        return String::new();
    }
    let number = |name: &str| s3.get(name).copied().unwrap_or(0);
    let of = |name: &str| human_count(number(name) as f64);
    format!(
        "\nS3: {} GETs and {} other requests, {} fetched; {} retries, {} wrong answers, {} changed, {} failed\n",
        of("gets"),
        of("asks"),
        human_bytes(number("fetched_bytes")),
        of("retries"),
        of("wrong"),
        of("changed"),
        of("failed")
    )
}

/// Resident memory, for a line that shows the charged memory.
pub fn resident(report: &Report) -> String {
    report.resident_bytes.map_or_else(String::new, |bytes| format!(", {} resident", human_bytes(bytes)))
}

/// Lines about the partition's recording in progress, and about recordings that ended early; empty
/// if there are none.
fn recorded(partition: &PartitionReport) -> String {
    let mut text = String::new();
    if let Some(recording) = &partition.recording {
        text += &format!(
            "\n\"{}\" is being recorded to {}: {} accesses, {}, {} ({})\n",
            partition.name,
            recording.file,
            human_count(recording.accesses as f64),
            human_bytes(recording.file_bytes),
            uptime(recording.seconds),
            recording.sample
        );
    }
    if partition.recordings_broken_off > 0 {
        let count = partition.recordings_broken_off;
        text += &format!("\n\"{}\": {count} recordings ended early; the log says why\n", partition.name);
    }
    text
}

const PARTITIONS: &[Column<PartitionReport>] = &[
    ("PARTITION", |partition| partition.name.clone()),
    ("POLICY", |partition| partition.policy.clone()),
    ("MODE", |partition| partition.cache_mode.clone()),
    ("HITS", |partition| percent(partition.figure("hits"), partition.sum(&["hits", "misses"]))),
    ("REQUESTS", |partition| {
        human_count(partition.sum(&["requests_read", "requests_write", "requests_sync"]) as f64)
    }),
    ("READ", |partition| human_bytes(partition.figure("read_bytes"))),
    ("WRITTEN", |partition| human_bytes(partition.figure("written_bytes"))),
    ("RESIDENT", |partition| human_bytes(partition.figure("resident_bytes"))),
    ("OF", |partition| human_bytes(partition.figure("max_bytes"))),
    ("DIRTY", |partition| human_bytes(partition.figure("dirty_bytes"))),
    ("EVICTED", |partition| {
        let reasons = ["evictions_capacity", "evictions_resize", "evictions_discard", "evictions_write"];
        human_count(partition.sum(&reasons) as f64)
    }),
    ("ERRORS", |partition| partition.sum(&["read_errors", "write_errors", "sync_errors"]).to_string()),
];

const MOUNTS: &[Column<MountReport>] = &[
    ("MOUNT", |mount| mount.path.clone()),
    ("SOURCE", |mount| mount.source.clone()),
    ("PARTITIONS", |mount| mount.partitions.join(",")),
    ("STATE", |mount| match (mount.is_mounted, mount.read_only) {
        (false, _) => "UNMOUNTED".to_owned(),
        (true, true) => "read-only".to_owned(),
        (true, false) => "ok".to_owned(),
    }),
    ("FILES", |mount| human_count(mount.files as f64)),
    ("NODES", |mount| human_count(mount.nodes as f64)),
];

fn exports(objects: &[(&PartitionReport, ObjectReport)]) -> String {
    let mut columns: Vec<Column<(&PartitionReport, ObjectReport)>> = vec![
        ("EXPORT", |(_, object)| object.name.clone()),
        ("PATH", |(_, object)| object.path.clone()),
        ("PARTITION", |(partition, _)| partition.name.clone()),
        ("STATE", |(_, object)| state(object).to_owned()),
        ("LENGTH", |(_, object)| human_bytes(object.len_bytes)),
        ("DIRTY", |(_, object)| human_bytes(object.dirty_bytes)),
    ];
    if objects.iter().any(|(_, object)| object.share.is_some()) {
        columns.push(("SHARE", |(_, object)| object.share.clone().unwrap_or("-".into())));
    }
    table(4, &columns, objects)
}

fn state(object: &ObjectReport) -> &'static str {
    match (object.failed, &object.writeback_error, object.read_only, object.direct) {
        (true, ..) => "FAILED",
        (_, Some(_), ..) => "REFUSING",
        _ if object.store_changes > 0 => "CHANGED",
        (_, _, true, true) => "read-only",
        (_, _, true, false) => "read-only, buffered",
        (.., true) => "ok",
        (.., false) => "ok, buffered",
    }
}

const TRAFFIC: &[Column<ObjectReport>] = &[
    ("EXPORT", |object| object.name.clone()),
    ("CLIENTS", |object| object.figure("connections").to_string()),
    ("IN FLIGHT", |object| object.figure("in_flight").to_string()),
    ("READS", |object| human_count(object.figure("requests_read") as f64)),
    ("WRITES", |object| human_count(object.figure("requests_write") as f64)),
    ("FLUSHES", |object| human_count(object.figure("requests_flush") as f64)),
    ("TRIMS", |object| human_count(object.figure("requests_trim") as f64)),
    ("ZEROES", |object| human_count(object.figure("requests_zeroes") as f64)),
    ("OTHERS", |object| {
        let others = ["requests_cache", "requests_status", "requests_unknown"];
        human_count(others.iter().map(|name| object.figure(name)).sum::<u64>() as f64)
    }),
    ("READ", |object| human_bytes(object.figure("read_bytes"))),
    ("WRITTEN", |object| human_bytes(object.figure("written_bytes"))),
    ("ERRORS", |object| human_count(object.figure("errors") as f64)),
    ("BROKEN", |object| human_count(object.figure("broken") as f64)),
];

/// How long requests took, since the start; empty if there were none.
fn latencies<'o>(objects: impl Iterator<Item = &'o ObjectReport>) -> String {
    type Row<'o> = (&'o str, &'o str, &'o LatencyReport);
    let columns: [Column<Row<'_>>; 7] = [
        ("EXPORT", |(export, ..)| (*export).to_owned()),
        ("CLASS", |(_, class, _)| (*class).to_owned()),
        ("REQUESTS", |(.., times)| human_count(times.requests as f64)),
        ("MEAN", |(.., times)| human_time(times.sum_ns / times.requests.max(1))),
        ("P50", |(.., times)| human_time(times.p50_ns)),
        ("P99", |(.., times)| human_time(times.p99_ns)),
        ("MAX", |(.., times)| human_time(times.max_ns)),
    ];
    let classes = Class::ALL.map(Class::name);
    let rows: Vec<Row<'_>> = objects
        .flat_map(|object| {
            let timed = classes.iter().filter_map(move |class| object.latency.get_key_value(*class));
            timed.map(move |(class, times)| (&*object.name, &**class, times))
        })
        .collect();
    if rows.is_empty() { String::new() } else { format!("\n{}", table(2, &columns, &rows)) }
}

fn uptime(seconds: u64) -> String {
    match seconds {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

/// A number in an answer; 0 if the server does not have it.
pub fn number(answer: &Value, key: &str) -> u64 {
    answer[key].as_f64().map_or(0, |number| number as u64)
}

/// The answer to `partitions` as a table.
pub fn partitions(answer: &Value) -> String {
    let cell = |one: &Value, key: &str| match &one[key] {
        Value::Number(_) if key == "weight" => number(one, key).to_string(),
        Value::Null if ["high", "max"].contains(&key) => limits::NO_BOUND.into(),
        Value::Number(_) => human_bytes(number(one, key)),
        Value::String(word) => word.clone(),
        _ => "-".into(),
    };
    let keys = ["name", "policy", "current", "min", "low", "high", "max", "weight", "dirty_max"];
    let mut rows =
        vec![keys.map(|key| if key == "name" { "PARTITION".into() } else { key.to_uppercase() }).to_vec()];
    for kind in ["groups", "partitions"] {
        for one in answer[kind].as_array().into_iter().flatten() {
            rows.push(keys.iter().map(|key| cell(one, key)).collect());
        }
    }
    let reaper = &answer["reaper"];
    let held_up = match number(reaper, "held_up") {
        0 => String::new(),
        partitions => format!("; {partitions} held up by their stores"),
    };
    aligned(&rows, 2)
        + &format!(
            "\nall together up to {}; {} moved in {} periods{held_up}\n",
            human_bytes(number(reaper, "allowed_bytes")),
            human_bytes(number(reaper, "moved_bytes")),
            number(reaper, "periods")
        )
}

/// The answer to `mrc` as a table, with a bar per size.
pub fn curve(answer: &Value) -> String {
    let mut rows = vec![["SIZE", "MISSES", "MISS RATIO", ""].map(String::from).to_vec()];
    for point in answer["points"].as_array().into_iter().flatten() {
        let miss_ratio = point["miss_ratio"].as_f64().unwrap_or(0.0).clamp(0.0, 1.0);
        rows.push(vec![
            human_bytes(number(point, "bytes")),
            human_count(point["misses"].as_f64().unwrap_or(0.0)),
            format!("{miss_ratio:.3}"),
            format!("{:<40}", "#".repeat((miss_ratio * 40.0).round() as usize)),
        ]);
    }
    let [partition, policy] = ["partition", "policy"].map(|key| answer[key].as_str().unwrap_or_default());
    let head = format!("\"{partition}\", {policy}, now {}", human_bytes(number(answer, "current_bytes")));
    let references = answer["references"].as_f64().unwrap_or(0.0);
    if references < 1.0 {
        let pages = (1.0 / answer["rate"].as_f64().unwrap_or(1.0).clamp(1e-6, 1.0)).round();
        return format!(
            "{head}: no access was sampled yet; repeat the command when there has been traffic (about one page in {pages} \
             is sampled)\n"
        );
    }
    format!("{head}; about {} recent references\n", human_count(references)) + &aligned(&rows, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::{latency, traffic};
    use octavo_block::ExportStat;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn the_table_lines_up_and_names_what_is_wrong() {
        let mut stat = ExportStat {
            name: "disk".into(),
            connections: 2,
            in_flight: 3,
            requests: [12_345, 4, 5, 6, 7, 8, 2, 7],
            errors: 10,
            read_bytes: 1 << 20,
            written_bytes: 4096,
            broken: 1,
            latencies: Default::default(),
        };
        let times: Vec<Duration> = (1..=100).map(Duration::from_micros).collect();
        stat.latencies[Class::Flush as usize] = times.into_iter().collect();
        let disk = ObjectReport {
            name: "disk".into(),
            writeback_error: Some("no space".into()),
            traffic: traffic(&stat),
            latency: latency(&stat),
            ..ObjectReport::default()
        };
        let figures = [("hits", 931), ("misses", 69)].map(|(name, value)| (name.to_owned(), json!(value)));
        let partition = PartitionReport {
            name: "vm1".into(),
            figures: figures.into(),
            objects: vec![disk],
            ..PartitionReport::default()
        };
        let table =
            super::report(&Report { connections: 2, partitions: vec![partition], ..Report::default() });
        let traffic = "disk          2          3  12.3k       4        5      6       7      17  1 MiB    4 KiB      10       1\n";
        assert!(table.contains(traffic) && table.contains(", 2 connected;"), "{table}");
        let times = "disk    flush       100  50.5 µs  56.0 µs  100.0 µs  100.0 µs\n";
        assert!(table.contains(times), "{table}");
        assert!(table.contains("93.1 %"), "{table}");
        assert!(table.contains("REFUSING"), "{table}");
        assert!(table.contains("\"disk\" cannot be written back: no space"), "{table}");
        let changed =
            ObjectReport { store_changes: 1, store_change: Some("cut".into()), ..ObjectReport::default() };
        let partition = PartitionReport { objects: vec![changed], ..PartitionReport::default() };
        let table = super::report(&Report { partitions: vec![partition], ..Report::default() });
        assert!(table.contains("CHANGED") && table.contains(": cut\n"), "{table}");
    }
}
