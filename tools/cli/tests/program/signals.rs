//! How a server ends: drained, refused, or at once.

use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, served};

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
