//! How a server ends: drained, refused, or at once.

use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, octavo_fails, served};

/// A limit of 1 MiB on files: a store that refuses writes, without root. The signal that the kernel
/// sends for it (SIGXFSZ) once ended the server.
const FILES_UP_TO_1_MIB: &str = "ulimit -f 2048";

#[test]
fn sigterm_writes_back_what_was_acknowledged() {
    for signal in ["TERM", "INT"] {
        let (directory, mut server) = served(&Setup::default());
        let mut client = Client::connect(&server.nbd, "disk").unwrap();
        for page in 0..512_u64 {
            client.write(page * 8192 + 100, &page.to_le_bytes());
        }
        server.end(signal, 0);
        assert!(server.log().contains(&format!("SIG{signal}: no more clients")), "{}", server.log());
        assert!(server.log().contains("drained"), "{}", server.log());
        assert!(!server.nbd.exists() && !server.control.exists());
        let file = std::fs::read(directory.join("disk")).unwrap();
        for page in 0..512_u64 {
            let at = page as usize * 8192 + 100;
            assert_eq!(file[at..at + 8], page.to_le_bytes(), "page {page}");
        }
    }
}

/// The kernel gave SIGTERM to the main thread while it waited for a file system that hung, and the
/// signal waited with it: in 2 of 31 starts, a server did not end.
#[test]
fn no_thread_takes_a_signal_but_the_one_that_waits_for_it() {
    let (_directory, mut server) = served(&Setup::default());
    // Its thread is one of those that start later.
    let client = Client::connect(&server.nbd, "disk").unwrap();
    for task in std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let mask = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).expect(key);
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        // SIGHUP, SIGINT and SIGTERM. While a thread waits for them, they are not blocked in it.
        let ours = [1, 2, 15].map(|number| 1 << (number - 1)).iter().sum::<u64>();
        let waits = status.starts_with("Name:\tsignals\n");
        assert!(waits || mask("SigBlk:") & ours == ours, "{status}");
        assert_eq!(mask("SigCgt:") & ours, 0, "{status}");
    }
    drop(client);
    server.end("TERM", 0);
}

#[test]
fn sigpipe_is_ignored() {
    let (_directory, server) = served(&Setup::default());
    server.signal("PIPE");
    server.stat();
}

/// A server of two write-back disks, one of which refuses what was written to it.
fn refusing(directory: &Directory, drain_timeout: &str) -> Server {
    let good = directory.disk("good", 512 << 10);
    let bad = directory.disk("bad", 16 << 20);
    let server = Server::start(
        directory,
        &Setup {
            exports: &[("good", &good), ("bad", &bad)],
            serve: &format!("drain_timeout = \"{drain_timeout}\""),
            before: FILES_UP_TO_1_MIB,
            ..Setup::default()
        },
    );
    Client::connect(&server.nbd, "good").unwrap().write(4096, &[1; 4096]);
    Client::connect(&server.nbd, "bad").unwrap().write(8 << 20, &[2; 65_536]);
    server
}

#[test]
fn a_store_that_refuses_is_named_with_the_bytes_it_lost() {
    let directory = Directory::new();
    let mut server = refusing(&directory, "1s");
    let said = server.ctl_fail(1, &["sync"]);
    assert!(said.contains("\"bad\": ") && said.contains("65536 dirty bytes"), "{said}");
    assert!(!said.contains("\"good\""), "{said}");
    assert!(server.ctl_succeed(&["stat"]).contains("REFUSING"));
    server.wait_for_log("65536 bytes stay dirty and will be retried");

    server.end("TERM", 1);
    let log = server.log();
    assert!(log.contains("octavo: \"bad\": ") && log.contains("65536 bytes lost (64 KiB)"), "{log}");
    assert!(!log.contains("octavo: \"good\": "), "{log}");
    let good = std::fs::read(directory.join("good")).unwrap();
    assert_eq!(good[4096..8192], [1; 4096]);
}

#[test]
fn a_second_signal_ends_at_once_and_says_what_was_left() {
    for (second, code) in [("TERM", 143), ("INT", 130)] {
        let directory = Directory::new();
        let mut server = refusing(&directory, "1h");
        // The good disk is clean from here on: the second signal may arrive before the drain syncs
        // it.
        server.ctl_fail(1, &["sync"]);
        assert_eq!(server.dirty_bytes(), 65536);
        server.signal("TERM");
        server.wait_for_log("\"bad\" refuses");
        server.end(second, code);
        let expected = format!("a second SIG{second}: ended at once, 65536 dirty bytes left (64 KiB)");
        assert!(server.log().contains(&expected), "{}", server.log());
    }
}

/// Such an export could not be removed, and no other server could take over from this one.
#[test]
fn an_export_whose_store_refuses_can_be_given_up() {
    let directory = Directory::new();
    let mut server = refusing(&directory, "100ms");
    server.ctl_fail(1, &["sync"]);
    let said = server.ctl_fail(1, &["export", "remove", "bad", "--disconnect"]);
    assert!(said.contains("65536 dirty bytes"), "{said}");
    let config = directory.join("octavo.toml");
    let complaint = octavo_fails(&["serve", "--take-over", "--config", config.to_str().unwrap()], 1);
    assert!(complaint.contains("`octavo ctl export abandon bad`"), "{complaint}");

    // Without --yes, it only says what would be lost.
    let said = server.ctl_fail(1, &["export", "abandon", "bad"]);
    assert!(said.contains("\"bad\" would lose 65536 bytes (64 KiB)") && said.contains("--yes"), "{said}");
    let mut client = Client::connect(&server.nbd, "bad").unwrap();
    assert_eq!(client.read(8 << 20, 65_536), [2; 65_536]);
    assert_eq!(server.dirty_bytes(), 65_536);
    assert!(server.ctl_fail(1, &["export", "abandon", "none", "--yes"]).contains("none"));

    let said = server.ctl_succeed(&["export", "abandon", "bad", "--yes"]);
    assert!(said.contains("65536 bytes lost (64 KiB)"), "{said}");
    assert!(server.log().contains("export \"bad\" is given up: 65536 bytes lost"), "{}", server.log());
    assert_eq!(server.dirty_bytes(), 0);
    // Its client was disconnected, and no other one finds it; the other export is served.
    let stat = server.stat();
    let left: Vec<&str> = stat["partitions"][0]["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| object["name"].as_str().unwrap())
        .collect();
    assert_eq!(left, ["good"]);
    assert_eq!(Client::connect(&server.nbd, "good").unwrap().read(4096, 4096), [1; 4096]);
    // The file of the configuration still has it, and its store is free.
    server.ctl_succeed(&["reload"]);
    assert_eq!(Client::connect(&server.nbd, "bad").unwrap().read(8 << 20, 4096), [0; 4096]);
    server.end("TERM", 0);
}
