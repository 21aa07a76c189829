//! `octavo bench`: every case yields a row with the figures that are needed to judge it. No test
//! here checks how high a figure is.

use std::process::Output;

use serde_json::{Value, json};

use crate::mount::can_mount;
use crate::server::{Directory, assert_has, octavo, octavo_fails, octavo_objects};

fn bench(words: &[&str]) -> Output {
    octavo(&[&["bench"], words].concat())
}

/// The complaint of a run that must fail with this status.
fn refused(status: i32, words: &[&str]) -> String {
    octavo_fails(&[&["bench"], words].concat(), status)
}

/// The rows of a run that must succeed.
fn rows(words: &[&str]) -> Vec<Value> {
    let (rows, complaints) = octavo_objects(&[&["bench"], words].concat());
    assert!(!complaints.contains('\r'), "progress for a reader that is no terminal: {complaints}");
    rows
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
        for key in ["commit", "cpu", "kernel", "flags", "policy", "clock"] {
            assert!(!row[key].as_str().unwrap().is_empty(), "{key} of {row}");
        }
    }
}

#[test]
fn the_hits_suite_only_hits_and_prints_one_line_of_json_per_case() {
    let rows = rows(&["hits", "--quick", "--json", "-"]);
    assert_rows(&rows, "hits", &["single_128", "batch_128", "single_4096", "batch_4096", "pin", "pin_batch"]);
    for row in rows {
        assert_eq!(row["misses"], 0, "{row}");
        assert!(row["hits"].as_u64().unwrap() > 0, "{row}");
        assert!(row["huge_pages_bytes"].is_u64() && row["reference_huge_pages_bytes"].is_u64(), "{row}");
    }
}

#[test]
fn the_misses_suite_fills_its_misses_and_removes_its_file() {
    let directory = Directory::new();
    let file = directory.join("scratch");
    let rows = rows(&["misses", "--quick", "--file", file.to_str().unwrap(), "--json", "-"]);
    assert_eq!(rows.len(), 10);
    assert_rows(&rows[..3], "misses", &["disk_qd32", "disk_qd128", "memory_qd32"]);
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
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 6);
    let page = directory.join("hits.html");
    let table = bench(&["hits", "--quick", "--case", "batch*", "--html", page.to_str().unwrap()]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("reference") && table.contains("batch_4096"), "{table}");
    assert!(!table.contains("single_128"), "{table}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg viewBox") && page.contains("batch_4096") && !page.contains("http"), "{page}");
}

#[test]
fn a_suite_from_a_file_is_run_and_its_errors_are_named() {
    let directory = Directory::new();
    let file = directory.join("mine.toml");
    let text = "title = \"Mine\"\nabout = \"m\"\n[[case]]\nname = \"one\"\ncontestants = [\"octavo\"]\nmemory = \"16MiB\"\n";
    std::fs::write(&file, text).unwrap();
    let row = &rows(&[file.to_str().unwrap(), "--quick", "--json", "-"])[0];
    assert_has(row, json!({"suite": "mine", "case": "one"}));
    assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row.get("ratio").is_none(), "{row}");
    std::fs::write(&file, text.replace("memory", "memroy")).unwrap();
    let complaints = refused(2, &[file.to_str().unwrap()]);
    assert!(complaints.contains("mine.toml:6: unknown field `memroy`"), "{complaints}");
}

#[test]
fn invalid_command_lines_are_refused_and_existing_files_are_kept() {
    let list = bench(&["--list"]);
    assert!(String::from_utf8(list.stdout).unwrap().contains("memory_qd32"));
    for words in [&[][..], &["hits", "--case", "no"], &["hit"], &["hits", "--memory", "1B"]] {
        refused(2, words);
    }
    let directory = Directory::new();
    let file = directory.join("precious");
    std::fs::write(&file, "precious").unwrap();
    let complaint = refused(1, &["misses", "--quick", "--file", file.to_str().unwrap()]);
    assert!(complaint.contains("precious"), "{complaint}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

#[test]
fn progress_is_a_line_per_case_with_the_time_left_even_without_a_terminal() {
    let run = ["hits", "--quick", "--memory", "8MiB", "--case", "pin*", "--json", "-"];
    let shown = String::from_utf8(bench(&run).stderr).unwrap();
    let cases: Vec<&str> = shown.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(cases.len(), 2, "{shown}");
    assert!(cases[0].starts_with("[1/2] pin (about ") && cases[0].ends_with(" left)"), "{shown}");
    assert!(cases[1].starts_with("[2/2] pin_batch (about "), "{shown}");
    let quiet = bench(&[&run[..], &["--quiet"]].concat());
    assert!(!String::from_utf8(quiet.stderr).unwrap().contains("[1/2]"));
}

#[test]
fn more_memory_than_the_machine_has_is_refused_at_once() {
    let complaint = refused(1, &["resize", "--quick", "--memory", "1048576GiB"]);
    assert!(complaint.contains("needs 1331200.1 GiB") && complaint.contains("are available"), "{complaint}");
    assert!(!complaint.contains("[1/"), "a case began: {complaint}");
}

/// The first version timed caches that were still filling, and had both Linux contestants read one
/// file, whose cached pages they shared.
#[test]
fn bounded_contestants_are_warm_before_they_are_timed_and_share_no_cached_page() {
    let directory = Directory::new();
    let file = directory.join("scratch");
    let case = ["paper", "--quick", "--case", "fig7_disk_1024_threads_*", "--json", "-", "--file"];
    let row = &rows(&[&case[..], &[file.to_str().unwrap()]].concat())[0];
    if let Some(note) = row.get("notes") {
        assert!(!note.to_string().contains("warm-up"), "{row}");
        return eprintln!("SKIP: {note}");
    }
    let pages_read = |name: &str| {
        let contestants = row["contestants"].as_array().unwrap();
        let found = contestants.iter().find(|contestant| contestant["name"] == name).unwrap();
        found["store_pages_per_op"].as_f64().unwrap()
    };
    assert!((0.99..1.01).contains(&pages_read("direct")), "{row}");
    // A file of 16 times the memory: about two lookups in three miss in every cache of that size
    // that is full and its own.
    for name in ["octavo", "linux", "linux-random"] {
        assert!((0.55..0.8).contains(&pages_read(name)), "{name} of {row}");
    }
}

#[test]
fn applications_run_on_a_mount_and_on_the_kernels_cache_and_leave_nothing_behind() {
    let directory = Directory::new();
    let file = directory.join("scratch");
    let words =
        ["apps", "fio_random_50_1", "filebench_varmail", "--quick", "--memory", "32MiB", "--json", "-"];
    let rows = rows(&[&words[..], &["--file", file.to_str().unwrap()]].concat());
    assert_eq!(rows.len(), 2);
    for row in rows {
        if let Some(note) = row.get("notes") {
            assert!(!can_mount() || note.to_string().contains("only root"), "{row}");
            return eprintln!("SKIP: {note}");
        }
        assert_eq!(row["n"], 3, "{row}");
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
        // The limit of the server's group.
        assert!(row["server_bytes"].as_u64().unwrap() <= 32 << 20, "{row}");
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(file.to_str().unwrap()) && !file.exists(), "{mounts}");
}

#[test]
fn every_other_suite_runs_to_its_end_on_tiny_sizes_and_says_what_it_measured() {
    let directory = Directory::new();
    let list = String::from_utf8(bench(&["--list"]).stdout).unwrap();
    let names = list.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.split_once(": "));
    let others = names.map(|(name, _)| name).filter(|name| !["hits", "misses", "apps", ""].contains(name));
    let mut count = 0;
    for suite in others {
        let [file, page] = ["scratch", "page.html"].map(|name| directory.join(name));
        let [file, page] = [&file, &page].map(|path| path.to_str().unwrap());
        let rows = rows(&[suite, "--quick", "--file", file, "--json", "-", "--html", page]);
        assert!(!rows.is_empty(), "{suite}");
        for row in &rows {
            assert_eq!(row["suite"], suite);
            for key in ["case", "commit", "cpu", "kernel", "flags", "driver"] {
                assert!(!row[key].as_str().unwrap().is_empty(), "{key} of {row}");
            }
            for contestant in row["contestants"].as_array().unwrap() {
                assert!(contestant["ops_per_s"]["median"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("<h2>All figures</h2>"), "{suite}");
        assert!(!std::path::Path::new(file).exists(), "{suite} leaves a file behind");
        count += 1;
    }
    assert!(count >= 5, "{list}");
}
