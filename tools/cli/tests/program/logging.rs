//! The server's log on standard error: plain, JSON, and for systemd's journal.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::process::Output;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::ioctl_fionbio;
use serde_json::Value;

use crate::nbd_client::Client;
use crate::server::{self, Directory, Server, Setup, program, wait_until};

const JSON: &str = "[log]\nformat = \"json\"\nlevel = \"debug\"";

/// A server with these lines of `[serve]`, and sections behind it.
fn served(serve: &str, before: &str) -> (Directory, Server) {
    server::served(&Setup { serve, before, ..Setup::default() })
}

/// The lines of a log in JSON, each an object with the keys that are promised.
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["time", "level", "target", "message"] {
            assert!(object[key].is_string(), "{key}: {line}");
        }
        let time = object["time"].as_str().unwrap();
        assert!(time.len() == "2026-01-01T00:00:00.000Z".len() && time.ends_with('Z'), "{line}");
        object
    };
    log.lines().map(object).collect()
}

#[test]
fn a_plain_line_begins_with_the_time_unless_the_journal_has_it() {
    let has_time = |log: &str| {
        log.lines().all(|line| {
            let (time, rest) = line.split_once(' ').unwrap();
            time.len() == 24 && time.ends_with('Z') && rest.starts_with("octavo: ")
        })
    };
    // Also if standard error was redirected after systemd had connected it: nothing would strip the
    // level prefix.
    for before in ["", "export JOURNAL_STREAM=1:1"] {
        let (_directory, server) = served("", before);
        server.wait_for_log("nbd: listening at");
        assert!(has_time(&server.log()), "{}", server.log());
    }

    let journal = "export JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2)";
    let (_directory, server) = served("[log]\nlevel = \"debug\"", journal);
    Client::connect(&server.nbd, "disk").unwrap();
    server.wait_for_log("<6>octavo: nbd: listening at");
    server.wait_for_log("<7>octavo: debug: nbd: client 1");
    assert!(server.log().lines().all(|line| line.starts_with('<')), "{}", server.log());

    let (_directory, server) = served("[log]\ntimestamps = false", "");
    server.wait_for_log("nbd: listening at");
    assert!(server.log().starts_with("octavo: "), "{}", server.log());
}

#[test]
fn json_is_one_object_a_line_up_to_the_last() {
    let (_directory, mut server) = served(&format!("drain_timeout = \"1h\"\n{JSON}"), "ulimit -f 2048");
    Client::connect(&server.nbd, "disk").unwrap().write(8 << 20, &[1; 4096]);
    server.signal("TERM");
    server.wait_for_log("\\\"disk\\\" refuses");
    server.end("TERM", 143);
    let objects = objects(&server.log());
    let levels: BTreeSet<&str> = objects.iter().map(|object| object["level"].as_str().unwrap()).collect();
    assert_eq!(levels, BTreeSet::from(["debug", "error", "info", "warn"]), "{}", server.log());
    let last = objects.last().unwrap()["message"].as_str().unwrap();
    assert!(last.starts_with("octavo: a second SIGTERM: ended at once, 4096 dirty bytes left"), "{last}");
}

/// `octavo serve --check` with these arguments, for a file whose name could forge log lines and
/// that causes a warning.
fn check(directory: &Directory, words: &[&str]) -> Output {
    use std::os::unix::ffi::OsStrExt;
    let disk = directory.disk("disk", 1 << 20);
    let name = std::ffi::OsStr::from_bytes(b"a\noctavo: \x1b[31m\"\xff.toml");
    let path = directory.join("").join(name);
    let text = format!(
        "[cache]\nmemory_max = \"32MiB\"\n[[partition]]\nname = \"p\"\n[[partition]]\nname = \"unused\"\n[[export]]\n\
         name = \"disk\"\npath = \"{}\"\npartition = \"p\"\n[listen]\nnbd = \"unix:/nowhere/nbd\"\n[log]\n\
         format = \"plain\"\nlevel = \"warn\"\ntimestamps = false\n",
        disk.display()
    );
    std::fs::write(&path, text).unwrap();
    program(&["serve", "--check", "--config"]).arg(&path).args(words).output().unwrap()
}

#[test]
fn a_message_cannot_forge_a_line() {
    let directory = Directory::new();
    let said = |words: &[&str]| {
        let output = check(&directory, words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let plain = said(&[]);
    assert_eq!(plain.lines().count(), 1, "{plain}");
    let expected = "a\\noctavo: \\u{1b}[31m\"\u{fffd}.toml:6:8: partition.name: no export uses \"unused\"\n";
    assert!(plain.starts_with("octavo: warning: /") && plain.ends_with(expected), "{plain}");
    // The command line overrides the file.
    let objects = objects(&said(&["--log-format", "json"]));
    assert_eq!(objects.len(), 1);
    let message = objects[0]["message"].as_str().unwrap();
    assert!(message.contains("/a\noctavo: \u{1b}[31m\"\u{fffd}.toml:6:8: "), "{message}");
    assert_eq!((&objects[0]["level"], said(&["--log-level", "error"]).as_str()), (&"warn".into(), ""));
    assert!(said(&["--log-timestamps", "true"]).contains("Z octavo: warning: /"));
    let wrong = check(&directory, &["--log-level", "loud"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("error, warn, info, debug"));
}

#[test]
fn lines_of_many_threads_do_not_mix() {
    let (_directory, server) = served(JSON, "");
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| (0..25).for_each(|_| drop(Client::connect(&server.nbd, "disk").unwrap())));
        }
    });
    let connected = |log: &str| {
        let objects = objects(&log[..log.rfind('\n').map_or(0, |end| end + 1)]);
        objects.iter().filter(|object| object["message"].as_str().unwrap().ends_with(": connected")).count()
    };
    // The fixture that waits for the sockets is a client, too.
    wait_until(|| server.log(), || connected(&server.log()) >= 200);
}

#[test]
fn a_json_line_about_a_client_names_its_protocol() {
    let (_directory, server) = served(JSON, "");
    Client::connect(&server.nbd, "disk").unwrap();
    server.wait_for_log("the client left");
    let log = server.log();
    let objects = objects(&log[..log.rfind('\n').map_or(0, |end| end + 1)]);
    let left = objects.iter().find(|object| object["message"].as_str().unwrap().ends_with("the client left"));
    assert_eq!(left.unwrap()["protocol"], "nbd", "{log}");
    assert!(objects[0]["protocol"].is_null(), "{log}");
}

/// A log that nobody read stopped the server: first the threads that logged, then those that waited
/// for a lock of theirs. Two SIGTERM had no effect.
#[test]
fn a_server_whose_log_nobody_reads_serves_and_ends() {
    let directory = Directory::new();
    let pipe = directory.join("log");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Open for both, so that it opens without a reader. It is full before the server starts.
    let held = File::options().read(true).write(true).open(&pipe).unwrap();
    ioctl_fionbio(&held, true).unwrap();
    for bytes in [&[b'x'; 4096][..], b"x"] {
        while (&held).write(bytes).is_ok() {}
    }
    let listen = "metrics = \"127.0.0.1:0\"";
    let serve = "[log]\nlevel = \"debug\"";
    let before = format!("exec 2>{}", pipe.display());
    let setup = Setup { listen, serve, before: &before, ..Setup::default() };
    let mut server = Server::start(&directory, &setup);
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(0, &[7; 4096]);
    let address = server.metrics_address();
    let ask = |path: &str| crate::metrics::ask(&address, &format!("GET {path}"), &address);
    assert!(ask("/healthz").contains(" 200 OK"));
    // Each client is several lines, and the queue has a MiB.
    for _ in 0..50 {
        drop(Client::connect(&server.nbd, "disk").unwrap());
    }
    server.ctl_succeed(&["stat"]);
    wait_until(
        || ask("/readyz"),
        || {
            let page = ask("/readyz");
            page.contains(" 200 OK") && page.contains("\nlog: nobody has read it for ")
        },
    );
    assert!(ask("/metrics").contains("octavo_log_lines_dropped_total 0\n"));
    server.end("TERM", 0);
    assert_eq!(std::fs::read(directory.join("disk")).unwrap()[..4096], [7; 4096]);
}
