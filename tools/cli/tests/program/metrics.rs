//! `listen.metrics`, asked as Prometheus does: HTTP over plain TCP.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::nbd_client::Client;
use crate::server::{Directory, PATIENCE, Server, Setup};

/// A server with metrics on a port that the system chose, and their address.
fn served() -> (Directory, Server, String) {
    let directory = Directory::new();
    let disk = directory.disk("disk", 16 << 20);
    let setup =
        Setup { exports: &[("disk", &disk)], listen: "metrics = \"127.0.0.1:0\"", ..Setup::default() };
    let server = Server::start(&directory, &setup);
    let line = server.wait_for_line("metrics http://");
    let address = line.trim_start_matches("metrics http://").trim_end_matches("/metrics").to_owned();
    (directory, server, address)
}

/// What the listener says to these bytes, up to its end.
fn tell(address: &str, asked: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(asked).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The page: every sample by its name and labels. Its format is checked on the way.
fn scrape(address: &str) -> HashMap<String, f64> {
    let answer = tell(address, b"GET /metrics HTTP/1.1\r\nHost: octavo\r\nAccept: */*\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let mut samples = HashMap::new();
    let mut family = ("", "");
    for line in body.lines() {
        if let Some(words) = line.strip_prefix("# TYPE ") {
            family = words.split_once(' ').unwrap();
            assert!(["counter", "gauge"].contains(&family.1), "{line}");
        } else if !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let suffix =
                name.strip_prefix(family.0).unwrap_or_else(|| panic!("{line} stands under {family:?}"));
            assert_eq!(suffix, if family.1 == "counter" { "_total" } else { "" }, "{line}");
            assert!(name.starts_with("octavo_"), "{line}");
            assert!(!sample.contains("disk"), "an export has no series of its own: {line}");
            let before = samples.insert(sample.to_owned(), value.parse().unwrap());
            assert!(before.is_none(), "{line} is told twice");
        }
    }
    samples
}

#[test]
fn metrics_say_what_stat_says() {
    let (_directory, server, address) = served();
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(4096, &[1; 8192]);
    client.read(0, 12_288);
    // What the server does by itself meanwhile changes none of what is compared.
    let (stat, samples) = (server.stat(), scrape(&address));
    let partition = &stat["partitions"][0];
    for (sample, value) in [
        ("octavo_partition_hits_total{partition=\"p\"}", &partition["hits"]),
        ("octavo_partition_misses_total{partition=\"p\"}", &partition["misses"]),
        ("octavo_partition_requests_total{partition=\"p\",kind=\"read\"}", &partition["requests_read"]),
        ("octavo_partition_requests_total{partition=\"p\",kind=\"write\"}", &partition["requests_write"]),
        ("octavo_partition_read_bytes_total{partition=\"p\"}", &partition["read_bytes"]),
        ("octavo_partition_written_bytes_total{partition=\"p\"}", &partition["written_bytes"]),
        ("octavo_memory_max_bytes", &stat["cache"]["memory_max_bytes"]),
        ("octavo_connections", &stat["connections"]),
    ] {
        assert_eq!(samples.get(sample).copied(), value.as_f64(), "{sample}");
    }
    assert_eq!(samples["octavo_partition_read_bytes_total{partition=\"p\"}"], 12_288.0);
    assert_eq!(samples["octavo_partition_weight{partition=\"p\"}"], 100.0);
    let info = "octavo_partition_info{partition=\"p\",policy=\"octavo\",cache_mode=\"writeback\"}";
    assert_eq!(samples[info], 1.0);
    // Limits follow what is set.
    server.ctl_succeed(&["set", "p", "max=8MiB", "min=4MiB"]);
    let samples = scrape(&address);
    assert_eq!(samples["octavo_partition_limit_bytes{partition=\"p\",limit=\"max\"}"], 8_388_608.0);
    assert_eq!(samples["octavo_partition_limit_bytes{partition=\"p\",limit=\"min\"}"], 4_194_304.0);
    drop(client);
    server.stop();
}

#[test]
fn the_listener_answers_nonsense_shortly_and_serves_others_meanwhile() {
    let (_directory, server, address) = served();
    // All but one of the places, silent; and one of them stopped in the middle.
    let silent: Vec<TcpStream> = (0..15).map(|_| TcpStream::connect(&address).unwrap()).collect();
    (&silent[0]).write_all(b"GET /metr").unwrap();
    for (asked, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed\r\n"),
        (b"hello\r\n\r\n", "400 Bad Request"),
        (&[b'x'; 20_000], "431 Request Header Fields Too Large"),
    ] {
        let answer = tell(&address, asked);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    assert!(tell(&address, b"POST / HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET\r\n"));
    assert!(scrape(&address).len() > 20);
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().filter(|task| {
        let name = task.as_ref().unwrap().path().join("comm");
        std::fs::read_to_string(name).is_ok_and(|name| name.trim() == "metrics")
    });
    assert_eq!(threads.count(), 1, "one thread serves all");
    drop(silent);
    server.stop();
}
