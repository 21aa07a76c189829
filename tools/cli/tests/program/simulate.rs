//! `octavo simulate` and `octavo mrc`: exact counts, complete reports, and invalid command lines.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::server::{
    Directory, assert_has, octavo_fails, octavo_objects, octavo_succeeds, parsed, program, signal,
};

/// The lines of JSON of a run that must succeed without complaints.
fn objects(words: &[&str]) -> Vec<Value> {
    let (objects, complaints) = octavo_objects(words);
    assert!(complaints.is_empty(), "{complaints}");
    objects
}

/// A loop of `pages` pages, `rounds` times.
fn write_loop(path: &Path, pages: u64, rounds: u64) {
    let accesses = (0..rounds).flat_map(|_| (0..pages).flat_map(u64::to_le_bytes));
    std::fs::write(path, accesses.collect::<Vec<u8>>()).unwrap();
}

#[test]
fn the_counts_of_a_loop_are_as_computed_by_hand() {
    let directory = Directory::new();
    let file = directory.join("loop.u64");
    write_loop(&file, 1000, 5);
    let trace = file.to_str().unwrap();
    let policies = ["--policy", "lru,global-lru,global-opt", "--capacity", "50%,8MiB", "--ways", "8,32"];
    let rows = objects(&[&["simulate", "--json", "--trace", trace], &policies[..]].concat());
    assert_eq!(rows.len(), 8);
    for row in &rows {
        let expected = json!({
            "trace": "loop.u64", "requests": 5000, "kind": "result", "complete": true, "footprint_pages": 1000,
            "skipped": 0,
        });
        assert_has(row, expected);
        let misses = row["misses"].as_u64().unwrap();
        assert!((row["miss_ratio"].as_f64().unwrap() - misses as f64 / 5000.0).abs() < 1e-9, "{row}");
        let expected = match (row["policy"].as_str().unwrap(), row["capacity"].as_str().unwrap()) {
            // A loop of twice its size never hits; the optimum keeps 499 pages of each round, and
            // brings every other in once.
            ("global-lru", "50%") => Some(5000),
            ("global-opt", "50%") => Some(1000 + 4 * 501 - 3),
            ("global-lru" | "global-opt", _) => Some(1000),
            _ => None,
        };
        if let Some(expected) = expected {
            assert!(misses.abs_diff(expected) <= 3, "{expected}: {row}");
        }
        let ways = row["ways"].as_u64();
        assert_eq!(ways.is_none(), row["policy"] != "lru", "{row}");
        let pages = row["capacity_pages"].as_u64().unwrap();
        assert!(pages.is_multiple_of(ways.unwrap_or(1)) && pages <= 2048, "{row}");
    }
}

#[test]
fn a_suite_makes_a_page_a_table_and_lines_of_json() {
    let directory = Directory::new();
    let folder = directory.join("suite");
    std::fs::create_dir(&folder).unwrap();
    write_loop(&folder.join("a.u64"), 2000, 3);
    write_loop(&folder.join("b.u64"), 100, 3);
    std::fs::write(folder.join("README.md"), "no trace").unwrap();
    let (page, json) = (directory.join("report.html"), directory.join("rows.jsonl"));
    let suite = ["simulate", "--suite", folder.to_str().unwrap(), "--policy", "engine,global-fifo"];
    let output = ["--html", page.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let table = octavo_succeeds(&[&suite[..], &output].concat());
    assert!(
        table.contains("gap to OPT") && table.contains("Left out, below 64 pages: a.u64 0.1% (2)"),
        "{table}"
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<h2>a.u64</h2>") && page.contains("<h2>b.u64</h2>") && !page.contains("README"));
    let rows = parsed(&std::fs::read_to_string(json).unwrap());
    let of = |kind: &str| rows.iter().filter(|row| row["kind"] == kind).collect::<Vec<_>>();
    let contestants = of("summary").len();
    assert_eq!(of("result").len(), 2 * 6 * contestants);
    assert!(of("summary").iter().any(|row| row["policy"] == "global-lru" && row["cut"] == 0.0));
    // 0.1 % and 1 % of 2000 pages, and all sizes of 100.
    assert_eq!(of("left_out").len(), 8);
}

#[test]
fn curves_are_exact_or_state_their_error() {
    let directory = Directory::new();
    let file = directory.join("loop.u64");
    write_loop(&file, 1000, 5);
    let page = directory.join("curves.html");
    let words = ["mrc", "--trace", file.to_str().unwrap(), "--html", page.to_str().unwrap()];
    let curves = objects(&[&words[..], &["--json", "--points", "3"]].concat());
    assert_eq!(curves.len(), 1);
    let points = curves[0]["points"].as_array().unwrap();
    let point = |number: usize| {
        (points[number]["capacity_pages"].as_u64().unwrap(), points[number]["miss_ratio"].as_f64().unwrap())
    };
    assert_eq!((point(0), point(1), point(2)), ((1, 1.0), (32, 1.0), (1000, 0.2)));
    assert!(std::fs::read_to_string(&page).unwrap().contains("lru exact"));
    let methods = ["--method", "exact,shards-size,shards,miniature", "--samples", "200", "--rate", "0.2"];
    let table = octavo_succeeds(&[&words[..], &methods].concat());
    assert!(table.contains("standard error") && table.contains("lru/16 in miniature"), "{table}");
}

#[test]
fn invalid_command_lines_are_refused_with_a_reason() {
    for (words, why) in [
        ("simulate --policy lru --capacity 1%", "no trace"),
        ("simulate --trace @ --capacity 1%", "--policy"),
        ("simulate --trace @ --policy lru", "--capacity"),
        ("simulate --trace @ --policy lrru --capacity 1%", "did you mean \"lru\""),
        ("simulate --trace @ --policy lru,engine --capacity 1%", "\"lru\" is given twice"),
        ("simulate --trace @ --policy lru --capacity 7", "unit is missing"),
        // This panicked in the table once.
        (
            "simulate --trace @ --policy lru --capacity 512GiB",
            "the largest has 67108864 pages (256 GiB), and takes 2 GiB of memory",
        ),
        ("simulate --trace @ --policy lru --capacity 2147483648p", "too large for lru/16"),
        (
            "simulate --trace @ --policy global-lru --capacity 9TiB",
            "the largest has 2147483648 pages (8 TiB)",
        ),
        ("simulate --trace @ --columns lba --policy lru --capacity 9p", "no column"),
        ("simulate --trace @ --policy lru --capacity 1MiB,1024KiB", "are the same"),
        ("simulate --trace @ --policy lru --capacity 1% --ways 12", "8, 16 or 32"),
        ("simulate --trace @ @ --policy lru --capacity 1%", "given twice"),
        ("simulate --trace - --format u64 --policy lru --capacity 1%", "read only once"),
        ("simulate --trace - --format u64 --policy set-opt --capacity 9p", "read only once"),
        ("mrc --trace @ --method exact --policy lfu", "use --method miniature"),
        ("mrc --trace @ --policy global-opt", "knows the future"),
        ("mrc --trace @ --rate 2", "at most 1"),
        ("mrc --trace @ --method exact,exact", "given twice"),
    ] {
        let words = words.replace('@', "gen:loop:pages=100,requests=1000");
        let complaint = octavo_fails(&words.split(' ').collect::<Vec<_>>(), 2);
        assert!(complaint.contains(why), "{words}: {complaint}");
    }
    let absent = ["simulate", "--trace", "/nowhere/x.u64", "--policy", "lru", "--capacity", "9p"];
    assert!(octavo_fails(&absent, 1).contains("/nowhere/x.u64"));
}

#[test]
fn a_table_with_named_columns_is_read_by_every_command() {
    let directory = Directory::new();
    let file = directory.join("table.csv");
    std::fs::write(&file, "when;kind;LBA;count\n1.5;R;0;16\n2;write;8;8\n2;r;0;1\n").unwrap();
    let trace = file.to_str().unwrap();
    let columns = ["--columns", "op=kind,offset=lba:sectors,size=count:sectors", "--separator", "semicolon"];
    let named = format!("t={trace}");
    for (words, expected) in [
        (&["trace", "info", "--json", trace][..], json!({"requests": 4, "format": "csv"})),
        (
            &["simulate", "--trace", trace, "--policy", "global-lru", "--capacity", "9p", "--json"],
            json!({"requests": 4, "misses": 2}),
        ),
        (
            &["mrc", "--trace", trace, "--page-size", "4KiB", "--json"],
            json!({"footprint_pages": 2, "footprint_bytes": 8192}),
        ),
        (&["plan", "--trace", &named, "--memory", "1MiB", "--json"], json!({"requests": 4})),
    ] {
        let objects = objects(&[words, &columns[..]].concat());
        assert_has(&objects[0], expected);
    }
}

#[test]
fn an_interrupted_run_keeps_its_counts_and_exits_with_130() {
    let mut command = program(&["simulate", "--trace", "-", "--format", "u64", "--policy", "lru"]);
    command.args(["--capacity", "100p", "--json"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // An endless trace: write accesses until the program stops reading.
    let mut input = child.stdin.take().unwrap();
    let chunk: Vec<u8> = (0..64 << 10).flat_map(|page: u64| (page % 1000).to_le_bytes()).collect();
    for round in 0.. {
        if input.write_all(&chunk).is_err() {
            break;
        }
        // By now the program has read, and so its handlers are in place.
        if round == 16 {
            signal(child.id(), "INT");
        }
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let rows = parsed(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(rows.len(), 1, "{rows:?}");
    let requests = rows[0]["requests"].as_u64().unwrap();
    assert!(requests > 0, "{rows:?}");
    assert_has(&rows[0], json!({"complete": false, "misses": requests}));
}
