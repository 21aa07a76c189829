//! Recordings, and the reports that are made of them.

use std::cell::Cell;
use std::io::Write;

use octavo_web::{BYTES_MIN, Interval, Reading, Recorder, Topic};
use serde_json::{Value, json};

use crate::control::{Control, ok, server};
use crate::site::{Feed, serve};

fn interval(number: u64) -> String {
    let interval = Interval { number, time_ms: 1000 * number, length_ms: 1000, ..Interval::default() };
    serde_json::to_string(&interval).unwrap()
}

#[test]
fn a_recording_keeps_its_bound_and_its_latest_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figures.jsonl");
    let mut recorder = Recorder::open(&path, BYTES_MIN).unwrap();
    for number in 1..=20_000 {
        recorder.append(Topic::Interval, &interval(number)).unwrap();
    }
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
    let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(files.len() == 2 && bytes <= BYTES_MIN, "{files:?}: {bytes} bytes");
    let reading = Reading::of_file(&path).unwrap();
    assert_eq!(reading.history.last().unwrap().number, 20_000);
    assert_eq!(reading.broken_lines, 0);
}

/// A process that is killed leaves a part of a line; one that starts again appends after it.
#[test]
fn a_line_that_a_crash_cut_off_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figures.jsonl");
    Recorder::open(&path, BYTES_MIN).unwrap().append(Topic::Interval, &interval(1)).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"topic\":\"interval\",\"data\":{\"num\n").unwrap();
    Recorder::open(&path, BYTES_MIN).unwrap().append(Topic::Interval, &interval(2)).unwrap();
    let reading = Reading::of_file(&path).unwrap();
    assert_eq!((reading.history.held().0, reading.broken_lines), (2, 1));
}

#[test]
fn another_file_is_neither_appended_to_nor_read() {
    let folder = tempfile::tempdir().unwrap();
    for content in [&b"some notes\n"[..], b"{}\n", b"\xff\xfe"] {
        let path = folder.path().join("other");
        std::fs::write(&path, content).unwrap();
        assert!(Recorder::open(&path, BYTES_MIN).err().unwrap().contains("no recording"));
        assert!(Reading::of_file(&path).err().unwrap().contains("octavo web --record"));
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    assert!(Reading::of_file(&folder.path().join("none")).err().unwrap().contains("none: No such file"));
}

/// A line that alone is longer than a file may be would break the bound, however often the file is
/// renamed.
#[test]
fn news_that_are_too_long_for_the_bound_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figures.jsonl");
    let mut recorder = Recorder::open(&path, BYTES_MIN).unwrap();
    recorder.append(Topic::Files, &json!({"files": "x".repeat(BYTES_MIN as usize)}).to_string()).unwrap();
    recorder.append(Topic::Interval, &interval(1)).unwrap();
    assert!(path.metadata().unwrap().len() < 4096);
    assert_eq!(Reading::of_file(&path).unwrap().history.held().0, 1);
}

#[test]
fn what_a_page_showed_is_in_the_report_of_its_recording() {
    let folder = tempfile::tempdir().unwrap();
    let mut others = server(7, 2);
    let control = Control::start(folder.path(), move |request| match request["do"].as_str() {
        Some("sets") => ok(json!({"ways": 2, "sets": 9, "sampled": 9, "occupancy": [1, 2, 6]})),
        Some("events") => {
            let events = if request["after"] == 0 {
                json!([{"number": 1, "kind": "start", "text": "hello"}])
            } else {
                json!([])
            };
            ok(json!({"first": 1, "next": 2, "events": events}))
        }
        _ => others(request),
    });
    let path = folder.path().join("figures.jsonl");
    let address = serve(control.path(), None, Some(path.clone()));
    Feed::open(address).next("interval", |interval| interval["number"].as_u64() >= Some(5));
    let reading = Reading::of_file(&path).unwrap();
    let told = reading.to_json();
    assert!(told["history"]["recent"].as_array().unwrap().len() >= 5);
    assert_eq!(told["latest"]["state"]["server"]["pid"], 7);
    assert_eq!(told["latest"]["sets"]["p1"]["occupancy"], json!([1, 2, 6]));
    assert_eq!(told["events"], json!([{"number": 1, "kind": "start", "text": "hello"}]));
    let html = octavo_web::report(&reading);
    let begin = html.find("id=\"recorded\">").unwrap() + "id=\"recorded\">".len();
    let data = &html[begin..begin + html[begin..].find("</script>").unwrap()];
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["reading"], told);
}

#[test]
fn a_sample_asks_the_server_itself_and_says_why_it_could_not() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let length = crate::site::PATIENCE;
    // Ends like Ctrl-C: after some rounds.
    let rounds = Cell::new(0);
    let goes_on = || rounds.replace(rounds.get() + 1) < 5;
    let reading = octavo_web::sample(&control.path(), octavo_web::INTERVAL_MIN, length, goes_on).unwrap();
    assert_eq!(reading.history.last().unwrap().number, 4);
    let socket = control.path();
    drop(control);
    let complaint = octavo_web::sample(&socket, octavo_web::INTERVAL_MIN, length, || {
        rounds.replace(rounds.get() + 1) < 10
    });
    let complaint = complaint.err().unwrap();
    assert!(complaint.contains("no server listens here"), "{complaint}");
}
