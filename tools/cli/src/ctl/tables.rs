//! Answers of a server as tables for people.

use std::fmt::Write;

use serde_json::Value;

use crate::control::drain::without_name;
use crate::control::report::{ObjectReport, PartitionReport, Report};
use crate::limits;
use crate::units::{aligned, human_bytes, human_count, percent};

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
    partitions.extend(report.partitions.iter().map(partition_row));
    text.push_str(&aligned(&partitions, 3));
    let mut objects = vec![row(["EXPORT", "PATH", "PARTITION", "STATE", "LENGTH", "DIRTY"])];
    for partition in &report.partitions {
        objects.extend(partition.objects.iter().map(|object| object_row(object, &partition.name)));
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
    let objects = report.partitions.iter().flat_map(|partition| &partition.objects);
    traffic.extend(objects.map(traffic_row));
    text.push('\n');
    text.push_str(&aligned(&traffic, 1));
    for partition in &report.partitions {
        text.push_str(&recorded(partition));
    }
    for object in report.partitions.iter().flat_map(|partition| &partition.objects) {
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

/// Resident memory, for a line that shows the charged memory.
pub fn resident(report: &Report) -> String {
    report.resident_bytes.map_or_else(String::new, |bytes| format!(", {} resident", human_bytes(bytes)))
}

/// Lines about its recordings, if there is something to say.
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

fn partition_row(partition: &PartitionReport) -> Vec<String> {
    let errors =
        partition.figure("read_errors") + partition.figure("write_errors") + partition.figure("sync_errors");
    let evicted = partition.figure("evictions_capacity")
        + partition.figure("evictions_resize")
        + partition.figure("evictions_discard")
        + partition.figure("evictions_write");
    vec![
        partition.name.clone(),
        partition.policy.clone(),
        partition.cache_mode.clone(),
        percent(partition.figure("hits"), partition.figure("hits") + partition.figure("misses")),
        human_count(
            (partition.figure("requests_read")
                + partition.figure("requests_write")
                + partition.figure("requests_sync")) as f64,
        ),
        human_bytes(partition.figure("read_bytes")),
        human_bytes(partition.figure("written_bytes")),
        human_bytes(partition.figure("resident_bytes")),
        human_bytes(partition.figure("max_bytes")),
        human_bytes(partition.figure("dirty_bytes")),
        human_count(evicted as f64),
        errors.to_string(),
    ]
}

fn object_row(object: &ObjectReport, partition: &str) -> Vec<String> {
    let state = match (object.failed, &object.writeback_error, object.read_only, object.direct) {
        (true, ..) => "FAILED",
        (_, Some(_), ..) => "REFUSING",
        _ if object.store_changes > 0 => "CHANGED",
        (_, _, true, true) => "read-only",
        (_, _, true, false) => "read-only, buffered",
        (.., true) => "ok",
        (.., false) => "ok, buffered",
    };
    vec![
        object.name.clone(),
        object.path.clone(),
        partition.to_owned(),
        state.to_owned(),
        human_bytes(object.len_bytes),
        human_bytes(object.dirty_bytes),
    ]
}

fn traffic_row(object: &ObjectReport) -> Vec<String> {
    let count = |name: &str| human_count(object.figure(name) as f64);
    let others = object.figure("requests_cache") + object.figure("requests_unknown");
    vec![
        object.name.clone(),
        object.figure("connections").to_string(),
        object.figure("in_flight").to_string(),
        count("requests_read"),
        count("requests_write"),
        count("requests_flush"),
        count("requests_trim"),
        count("requests_zeroes"),
        human_count(others as f64),
        human_bytes(object.figure("read_bytes")),
        human_bytes(object.figure("written_bytes")),
        count("errors"),
    ]
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

/// A number of an answer; 0 if the server does not have it.
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
    if answer["references"].as_f64().unwrap_or(0.0) < 1.0 {
        return format!(
            "\"{}\", {}, now {}: no access was sampled yet; repeat the command when there has been traffic (about one page in {} \
             is sampled)\n",
            answer["partition"].as_str().unwrap_or_default(),
            answer["policy"].as_str().unwrap_or_default(),
            human_bytes(number(answer, "current_bytes")),
            (1.0 / answer["rate"].as_f64().unwrap_or(1.0).clamp(1e-6, 1.0)).round()
        );
    }
    format!(
        "\"{}\", {}, now {}; about {} recent references\n",
        answer["partition"].as_str().unwrap_or_default(),
        answer["policy"].as_str().unwrap_or_default(),
        human_bytes(number(answer, "current_bytes")),
        human_count(answer["references"].as_f64().unwrap_or(0.0)),
    ) + &aligned(&rows, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::traffic;
    use octavo_block::ExportStat;
    use serde_json::json;

    #[test]
    fn the_table_lines_up_and_names_what_is_wrong() {
        let stat = ExportStat {
            name: "disk".into(),
            connections: 2,
            in_flight: 3,
            requests: [12_345, 4, 5, 6, 7, 8, 9],
            errors: 10,
            read_bytes: 1 << 20,
            written_bytes: 4096,
        };
        let disk = ObjectReport {
            name: "disk".into(),
            writeback_error: Some("no space".into()),
            traffic: traffic(&stat),
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
        let traffic = "disk          2          3  12.3k       4        5      6       7      17  1 MiB    4 KiB      10\n";
        assert!(table.contains(traffic) && table.contains(", 2 connected;"), "{table}");
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
