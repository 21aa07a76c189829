//! `octavo bench day`: a short day has every event and loses nothing, and an interrupted one ends
//! with a report. What the checker notices is tested beside it, in `tools/bench`.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::server::{
    Directory, assert_has, octavo_fails, octavo_objects, parsed, program, signal, wait_until,
};

const EVENTS: [&str; 8] = ["failure", "kill", "limits", "plan", "reclaim", "reload", "upgrade", "visit"];

fn assert_good(report: &Value) {
    assert_has(report, json!({"lost_count": 0, "lost": [], "troubles_count": 0, "troubles": []}));
    for key in ["blocks_checked", "samples"] {
        assert!(report[key].as_u64().unwrap() > 0, "{key} of {report}");
    }
}

#[test]
fn a_short_day_has_every_event_and_loses_nothing_and_leaves_nothing_behind() {
    let directory = Directory::new();
    let [day, page] = ["day", "day.html"].map(|name| directory.join(name));
    let words = ["bench", "day", "--minutes", "0.2", "--seed", "3", "--json", "-", "--directory"];
    let rest = [day.to_str().unwrap(), "--report", page.to_str().unwrap()];
    let (reports, _) = octavo_objects(&[&words[..], &rest].concat());
    let report = &reports[0];
    assert_good(report);
    let done = report["done"].as_array().unwrap();
    let mut events: Vec<&str> = done.iter().map(|done| done["event"].as_str().unwrap()).collect();
    events.sort_unstable();
    assert_eq!(events, EVENTS);
    assert!(report["blocks_written"].as_u64().unwrap() > 0, "{report}");
    assert!(report["server_events"]["start"].as_u64().unwrap() > 0, "{report}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg viewBox") && page.contains("<td class=\"word\">upgrade</td>"), "{page}");
    assert!(!day.exists());
}

#[test]
fn an_interrupted_day_ends_with_the_report_so_far() {
    let directory = Directory::new();
    let day = directory.join("day");
    let mut command = program(&["bench", "day", "--minutes", "59", "--json", "-", "--directory"]);
    let mut running = command.arg(&day).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(
        || "the day's server does not serve".into(),
        || {
            assert!(running.try_wait().unwrap().is_none(), "the day has ended");
            day.join("control.sock").exists()
        },
    );
    signal(running.id(), "INT");
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let report = &parsed(&String::from_utf8(output.stdout).unwrap())[0];
    assert_has(report, json!({"is_interrupted": true, "planned_s": 3540.0}));
    assert_good(report);
    assert!(!day.exists());
}

#[test]
fn a_directory_that_exists_and_a_length_that_is_no_day_are_refused() {
    let directory = Directory::new();
    let path = directory.join("");
    let complaint = octavo_fails(&["bench", "day", "--directory", path.to_str().unwrap()], 1);
    assert!(complaint.contains("File exists"), "{complaint}");
    assert!(path.exists());
    for minutes in ["0", "-1", "nan", "10081", "long"] {
        let words = format!("--minutes={minutes}");
        assert!(octavo_fails(&["bench", "day", &words], 2).contains("minutes"), "{minutes}");
    }
}
