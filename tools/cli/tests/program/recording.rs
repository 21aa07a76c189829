//! Recordings as users make them: by the configuration or `octavo record`; rotated, truncated,
//! after a kill, on a full disk.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use octavo::recording::WHOLE;
use serde_json::{Value, json};

use crate::nbd_client::Client;
use crate::random::{self, Random};
use crate::server::{
    Directory, Server, Setup, assert_has, octavo_fails, octavo_succeeds, program, served, signal, wait_until,
};

const PAGE: u64 = 4096;
const PAGES: u64 = 12_000;

/// A server of one disk of [`PAGES`], with these lines of its partition.
fn serving(partition: &str) -> Setup<'_> {
    Setup { partition, disk_bytes: PAGES * PAGE, ..Setup::default() }
}

/// A directory, the file of a recording there, and the lines of a partition that records to it.
fn recorded(partition: &str) -> (Directory, PathBuf, String) {
    let directory = Directory::new();
    let file = directory.join("p.octr");
    let partition = format!("{partition}\nrecord = \"{}\"", file.display());
    (directory, file, partition)
}

/// The output of `octavo simulate` for a recording.
fn replayed(files: &[PathBuf]) -> Value {
    let mut words = vec!["simulate", "--json", "--trace"];
    words.extend(files.iter().map(|file| file.to_str().unwrap()));
    serde_json::from_str(&octavo_succeeds(&words)).unwrap()
}

/// Reads and writes by one client, one request after the other.
fn load(server: &Server, random: &mut Random, requests: u64) {
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    for _ in 0..requests {
        let end = 1 + random.below(PAGES);
        let offset = random.below(end) * PAGE;
        match random.below(8) {
            0..6 => drop(client.read(offset, PAGE as usize)),
            6 => client.write(offset, &random.bytes(PAGE as usize)),
            _ => assert_eq!(client.flush(), 0),
        }
    }
}

fn counted(server: &Server) -> (u64, u64) {
    let stat = server.stat();
    let count = |name: &str| stat["partitions"][0][name].as_u64().unwrap();
    (count("hits"), count("misses"))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_recording_that_starts_with_the_server_is_replayed_exactly() {
    let mut random = random::seeded("a_server_that_records");
    for policy in ["octavo", "car"] {
        let lines = format!("cache_mode = \"writeback\"\npolicy = \"{policy}\"\nmax = \"16MiB\"");
        let (directory, file, partition) = recorded(&lines);
        let server = Server::start(&directory, &serving(&partition));
        load(&server, &mut random, 6000);
        let (hits, misses) = counted(&server);
        assert!(hits > 1000 && misses > 1000, "{hits} hits, {misses} misses");
        let table = server.ctl_succeed(&["stat"]);
        assert!(table.contains("\"p\" is being recorded to"), "{table}");
        server.stop();
        assert_eq!(mode(&file), 0o600);
        let row = replayed(std::slice::from_ref(&file));
        let expected =
            json!({"agrees": true, "exact": true, "complete": true, "hits": hits, "misses": misses});
        assert_has(&row, expected);
        // As any trace.
        let file = file.to_str().unwrap();
        let info: Value = serde_json::from_str(&octavo_succeeds(&["trace", "info", "--json", file])).unwrap();
        assert_eq!(info["requests"], hits + misses, "{info}");
        assert_eq!(info["recording"]["policy"], policy, "{info}");
        let asked = octavo_succeeds(&["simulate", "--json", "--trace", file, "--policy", "lru,octavo"]);
        assert_eq!(asked.lines().count(), 2, "{asked}");
        assert!(asked.lines().all(|row| row.contains(&format!("\"requests\":{}", hits + misses))), "{asked}");
        assert!(octavo_succeeds(&["mrc", "--trace", file, "--points", "5"]).contains("lru exact"));
    }
}

#[test]
fn a_restarted_server_renames_its_last_recording() {
    let (directory, file, partition) = recorded("");
    for _ in 0..3 {
        Server::start(&directory, &serving(&partition)).stop();
    }
    assert!(file.exists() && directory.join("p.old.octr").exists());
}

/// `octavo record`, running.
fn record(server: &Server, words: &[&str]) -> Child {
    let mut command = program(&["record", "p", "--socket"]);
    command.arg(&server.control).args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn recording(server: &Server) -> Value {
    server.stat()["partitions"][0]["recording"].clone()
}

fn interrupt(process: &Child) {
    signal(process.id(), "INT");
}

#[test]
fn octavo_record_records_a_running_server_until_it_is_interrupted() {
    let mut random = random::seeded("a_running_server");
    let (directory, server) = served(&serving("max = \"16MiB\""));
    load(&server, &mut random, 3000);
    let (hits_before, misses_before) = counted(&server);
    let file = directory.join("later.octr");
    let client = record(&server, &["--output", file.to_str().unwrap()]);
    wait_until(|| "it is not recorded".into(), || recording(&server).is_object());
    // One at a time.
    let other = directory.join("other.octr");
    let second = record(&server, &["--output", other.to_str().unwrap()]).wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&second.stderr).contains("is being recorded already, to"), "{second:?}");
    load(&server, &mut random, 4000);
    let (hits, misses) = counted(&server);
    let (hits, misses) = (hits - hits_before, misses - misses_before);
    interrupt(&client);
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("accesses"), "{output:?}");
    assert_eq!((mode(&file), recording(&server)), (0o600, Value::Null));
    // The recording lists the pages that were resident, so that few accesses differ.
    let row = replayed(std::slice::from_ref(&file));
    let expected = json!({"exact": false, "complete": true, "counted_hits": hits, "counted_misses": misses});
    assert_has(&row, expected);
    let off = row["miss_ratio"].as_f64().unwrap() - row["counted_miss_ratio"].as_f64().unwrap();
    assert!(off.abs() < 0.05, "{row}");
    // An existing file is not replaced; --seconds ends a recording; a sample has no secret and
    // fewer accesses.
    let again = record(&server, &["--output", file.to_str().unwrap()]).wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("the file exists"), "{again:?}");
    let words = ["--output", other.to_str().unwrap(), "--sample", "1/8", "--seconds", "1"];
    let timed = record(&server, &words);
    wait_until(|| "it is not recorded".into(), || recording(&server).is_object());
    load(&server, &mut random, 500);
    let timed = timed.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&timed.stdout).contains("1/8 of the pages"), "{timed:?}");
    let row = replayed(&[other]);
    assert_eq!(row["sample"], f64::from(WHOLE / 8) / f64::from(WHOLE), "{row}");
}

#[test]
fn impossible_recordings_are_refused_with_a_reason() {
    let (directory, server) = served(&Setup::default());
    let socket = server.control.to_str().unwrap();
    let file = directory.join("a.octr").to_str().unwrap().to_owned();
    for (partition, output, more, status, why) in [
        ("q", &*file, &[][..], 1, "no partition is called \"q\""),
        ("p", "/nowhere/a.octr", &[], 1, "No such file"),
        ("p", "a.trace", &[], 2, "must end in .octr"),
        ("p", &file, &["--sample", "3"], 2, "at most 1"),
        ("p", &file, &["--keep", "3"], 2, "--rotate"),
        ("p", &file, &["--rotate", "1KiB"], 2, "64 KiB"),
        ("p", &file, &["--rotate", "1MiB", "--keep", "0"], 2, "at least one file must be kept"),
        ("p", &file, &["--seconds", "0"], 2, "at least one second"),
    ] {
        let words = [&["record", partition, "--socket", socket, "--output", output], more].concat();
        let complaint = octavo_fails(&words, status);
        assert!(complaint.contains(why), "{words:?}: {complaint}");
    }
    assert!(!Path::new(&file).exists());
}

#[test]
fn the_recording_of_a_killed_server_is_readable_up_to_its_end() {
    let mut random = random::seeded("a_killed_server");
    let (directory, file, partition) = recorded("max = \"16MiB\"");
    let mut server = Server::start(&directory, &serving(&partition));
    load(&server, &mut random, 5000);
    // Accesses older than a second are in the file, which can be read meanwhile.
    let (hits, misses) = counted(&server);
    let is_written = || replayed(std::slice::from_ref(&file))["requests"] == hits + misses;
    wait_until(|| "not everything is written".into(), is_written);
    server.signal("KILL");
    server.wait();
    let row = replayed(std::slice::from_ref(&file));
    assert_has(&row, json!({"exact": true, "complete": false, "agrees": true, "differences": 0}));
    assert!(row["requests"].as_u64().unwrap() > 1000, "{row}");
    let info = octavo_succeeds(&["trace", "info", file.to_str().unwrap()]);
    assert!(info.contains("the recording ends early: in the middle"), "{info}");
    // The file is readable wherever it is truncated.
    let bytes = std::fs::read(&file).unwrap();
    let torn = directory.join("torn.octr");
    for _ in 0..30 {
        let end = 300 + random.below(bytes.len() as u64 - 300) as usize;
        std::fs::write(&torn, &bytes[..end]).unwrap();
        println!("{end} bytes are left");
        let row = replayed(std::slice::from_ref(&torn));
        assert_has(&row, json!({"differences": 0, "misfits": 0, "complete": false}));
    }
}

#[test]
fn rotated_files_are_read_as_one_recording_and_the_newest_are_kept() {
    let mut random = random::seeded("rotated_files");
    let (directory, file, partition) = recorded("max = \"16MiB\"\nrecord_rotate = \"64KiB\"");
    let server = Server::start(&directory, &serving(&partition));
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    // Most are hits of random pages: about three bytes each.
    (0..60_000).for_each(|_| drop(client.read(random.below(3000) * PAGE, 512)));
    let (hits, misses) = counted(&server);
    wait_until(|| "there is one file".into(), || directory.join("p.00002.octr").exists());
    server.stop();
    let parts: Vec<PathBuf> = (1..)
        .map(|part| directory.join(&format!("p.{part:05}.octr")))
        .take_while(|path| path.exists())
        .collect();
    assert!(parts.len() > 1 && !file.exists());
    // In any order.
    let row = replayed(&parts.iter().rev().cloned().collect::<Vec<_>>());
    assert_has(&row, json!({"agrees": true, "exact": true, "hits": hits, "misses": misses}));
    // The first part alone says that others follow, the second that it is not the first.
    let row = replayed(&parts[..1]);
    assert_eq!(row["ending"], "another file goes on", "{row}");
    // What is left when the first is gone says so, and nearly what the cache did.
    let row = replayed(&parts[1..]);
    let why = "the first part is missing; the recording begins with part 2";
    assert_has(&row, json!({"exact": false, "part": 2, "inexact_because": why}));
    let off = row["miss_ratio"].as_f64().unwrap() - row["counted_miss_ratio"].as_f64().unwrap();
    assert!(off.abs() < 0.01, "{row}");
    let words = ["simulate", "--trace", parts[1].to_str().unwrap()];
    let text = octavo_succeeds(&words);
    assert!(text.contains(&format!("The replay need not repeat every access exactly: {why}.")), "{text}");
    let text = octavo_succeeds(&["trace", "info", parts[1].to_str().unwrap()]);
    assert!(text.contains("from where the part before it ends, part 2"), "{text}");
    assert!(text.contains("nearly; exactly when replayed after all parts before it"), "{text}");
    // Another server goes on with higher numbers and lets go of the first.
    let partition = format!("{partition}\nrecord_keep = 2");
    let _server = Server::start(&directory, &serving(&partition));
    let next = directory.join(&format!("p.{:05}.octr", parts.len() + 1));
    assert!(next.exists() && !parts[0].exists());
}

#[test]
fn a_full_disk_ends_the_recording_and_nothing_else() {
    let mut random = random::seeded("a_full_disk");
    let (directory, file, partition) = recorded("max = \"16MiB\"");
    // No file of this process may become longer than some blocks: as full as a disk can be.
    let before = "ulimit -f 300; trap '' XFSZ";
    let server = Server::start(&directory, &Setup { before, ..serving(&partition) });
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    (0..60_000).for_each(|_| drop(client.read(random.below(PAGES) * PAGE, 512)));
    server.wait_for_log("has ended early: it cannot be written");
    client.read(0, 4096);
    let stat = server.stat();
    assert_eq!(stat["partitions"][0]["recordings_broken_off"], 1, "{stat}");
    assert!(recording(&server).is_null());
    assert!(server.ctl_succeed(&["stat"]).contains("1 recordings ended early"));
    drop(client);
    server.stop();
    // What was written is there.
    let row = replayed(&[file]);
    assert_has(&row, json!({"complete": false, "differences": 0}));
    assert!(row["requests"].as_u64() > Some(1000), "{row}");
}
