//! `octavo bench`: every case gives a row with what is needed to judge it. No test here looks at a figure's height.

use std::process::{Command, Output};

use serde_json::Value;

use crate::server::Directory;

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo")).arg("bench").args(words).output().unwrap()
}

/// The rows of a run that must succeed.
fn rows(words: &[&str]) -> Vec<Value> {
    let output = bench(words);
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaints}");
    assert!(!complaints.contains('\r'), "progress for a reader that is no terminal: {complaints}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_rows(rows: &[Value], suite: &str, cases: &[&str]) {
    let names: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(names, cases);
    for row in rows {
        assert_eq!(row["suite"], suite);
        for key in ["ops_per_s", "reference_ops_per_s", "ratio", "ratio_min", "ratio_max"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} of {row}");
        }
        assert!(row["n"].as_u64().unwrap() >= 3, "{row}");
        assert_eq!(row["page_bytes"], 4096);
        for key in ["commit", "cpu", "kernel", "policy", "clock"] {
            assert!(!row[key].as_str().unwrap().is_empty(), "{key} of {row}");
        }
    }
}

#[test]
fn hits_are_hits_and_each_case_is_a_line_of_json() {
    let rows = rows(&["hits", "--quick", "--json", "-"]);
    assert_rows(&rows, "hits", &["single_128", "batch_128", "single_4096", "batch_4096"]);
    for row in rows {
        assert_eq!(row["misses"], 0, "{row}");
        assert!(row["hits"].as_u64().unwrap() > 0, "{row}");
        assert!(row["huge_pages_bytes"].is_u64() && row["reference_huge_pages_bytes"].is_u64(), "{row}");
    }
}

#[test]
fn misses_are_filled_and_the_working_file_is_gone_afterwards() {
    let directory = Directory::new();
    let file = directory.join("scratch");
    let rows = rows(&["misses", "--quick", "--file", file.to_str().unwrap(), "--json", "-"]);
    assert_rows(&rows, "misses", &["disk_qd32", "memory_qd32"]);
    for row in rows {
        let [misses, fills] = ["misses", "fills"].map(|key| row[key].as_u64().unwrap());
        assert!(misses > 0 && fills * 100 >= misses * 99, "{row}");
        assert!(row["direct_ratio"].as_f64().unwrap() > 0.0, "{row}");
        // Whether it is direct depends on the file system; that the two sources agree does not.
        assert_eq!(row["is_direct"], row["o_direct"], "{row}");
    }
    assert!(!file.exists());
}

#[test]
fn json_goes_to_a_file_and_people_get_a_table() {
    let directory = Directory::new();
    let file = directory.join("hits.jsonl");
    let output = bench(&["hits", "--quick", "--memory", "8MiB", "--json", file.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 4);
    let table = bench(&["hits", "--quick", "--memory", "8MiB"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("reference") && table.contains("batch_4096"), "{table}");
}

#[test]
fn wrong_command_lines_are_refused_and_files_of_others_are_left_alone() {
    let list = bench(&["--list"]);
    assert!(String::from_utf8(list.stdout).unwrap().contains("memory_qd32"));
    assert_eq!(bench(&[]).status.code(), Some(2));
    assert_eq!(bench(&["hits", "--memory", "1B"]).status.code(), Some(2));
    let directory = Directory::new();
    let file = directory.join("precious");
    std::fs::write(&file, "precious").unwrap();
    let refused = bench(&["misses", "--quick", "--file", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("precious"), "{refused:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}
