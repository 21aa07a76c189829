//! `octavo trace`: the figures of traces, and conversions that lose nothing.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::server::{Directory, assert_has, octavo, octavo_fails, program};

/// The output of a run that must succeed.
fn written(words: &[&str]) -> Vec<u8> {
    let output = octavo(&[&["trace"], words].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The message of a run that must fail with this status.
fn refused(status: i32, words: &[&str]) -> String {
    octavo_fails(&[&["trace"], words].concat(), status)
}

#[test]
fn info_counts_requests_pages_and_skipped_lines() {
    let directory = Directory::new();
    let file = directory.join("a.lis");
    std::fs::write(&file, "5 3 0 0\nx\n6 1 0 1\n").unwrap();
    let file = file.to_str().unwrap();
    let line = written(&["info", "--json", "--skip-bad", file]);
    let said: Value = serde_json::from_slice(&line).unwrap();
    let expected = json!({
        "trace": file, "format": "arc", "file_bytes": 18, "requests": 4, "pages_distinct": 3, "pages_distinct_exact": true,
        "page_min": 5, "page_max": 7, "skipped": 1,
    });
    assert_eq!(said, expected);
    let text = String::from_utf8(written(&["info", "--skip-bad", file])).unwrap();
    assert!(
        text.contains("distinct pages   3\n") && text.contains("passed over      1 malformed\n"),
        "{text}"
    );

    // Without --skip-bad, the line is named; other traces are still described.
    let output = octavo(&["trace", "info", "--json", file, "gen:loop:pages=3,requests=7"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, format!("octavo: {file}:2: \"x\" is not a whole number\n"));
    let second: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_has(&second, json!({"requests": 7, "format": null}));
}

#[test]
fn a_trace_survives_conversion_through_every_format_that_can_be_written() {
    let directory = Directory::new();
    let names = ["a.u64", "a.u64.zst", "a.oracleGeneral", "a.lirs"].map(|name| directory.join(name));
    let names = names.each_ref().map(|name| name.to_str().unwrap());
    written(&["generate", "scans:pages=100,every=50,length=20,requests=20000,seed=4", names[0]]);
    for pair in names.windows(2) {
        written(&["convert", pair[0], pair[1]]);
    }
    let first = std::fs::read(names[0]).unwrap();
    assert_eq!(first.len(), 8 * 20_000);
    assert_eq!(written(&["convert", names[3], "-"]), first);
    assert_eq!(
        written(&["generate", "gen:scans:pages=100,every=50,length=20,requests=20000,seed=4", "-"]),
        first
    );

    let said = refused(1, &["convert", names[0], names[1]]);
    assert!(said.contains("--force replaces it"), "{said}");
    written(&["convert", "--force", names[0], names[1]]);
}

#[test]
fn a_trace_is_read_from_a_pipe_if_its_format_is_given() {
    let mut child = program(&["trace", "convert", "--format", "lirs", "-", "-", "--to", "lirs"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"3\n*\n1\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"3\n1\n");
    let said = refused(1, &["info", "-"]);
    assert!(said.contains("--format: u64, oracleGeneral"), "{said}");
}

#[test]
fn a_failed_conversion_leaves_no_file_and_names_the_cause() {
    let directory = Directory::new();
    let [good, bad, output] = ["good.lirs", "bad.lirs", "out.u64"].map(|name| directory.join(name));
    std::fs::write(&good, "1\n").unwrap();
    std::fs::write(&bad, "1\n2\nthree\n").unwrap();
    let [good, bad, output] = [&good, &bad, &output].map(|path| path.to_str().unwrap());
    for (status, words, expected) in [
        (1, &["convert", bad, output][..], "bad.lirs:3: \"three\""),
        (2, &["convert", good, "out.csv"], "set it with --to: u64, u64.zst"),
        (2, &["convert", "--format=msx", good], "\"msx\" is not a format"),
        (2, &["generate", "zipf", output], "gen:zipf: pages is missing"),
        (1, &["convert", "--to=oracleGeneral", good, "-"], "can be written to a file only"),
    ] {
        let said = refused(status, words);
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    assert!(!directory.join("out.u64").exists() && !directory.join("out.u64.partial").exists());
}
