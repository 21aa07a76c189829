//! `listen.metrics`, asked as Prometheus does: HTTP over plain TCP.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::nbd_client::Client;
use crate::server::{self, Directory, PATIENCE, Server, Setup, wait_for};

const LISTEN: &str = "metrics = \"127.0.0.1:0\"\nmetrics_hosts = [\"octavo\"]";

/// A server with metrics on a port that the system chose, which also answers to the name `octavo`,
/// and the address of the metrics.
fn served() -> (Directory, Server, String) {
    let (directory, server) = server::served(&Setup { listen: LISTEN, ..Setup::default() });
    let address = server.metrics_address();
    (directory, server, address)
}

/// The listener's whole answer to these bytes.
fn tell(address: &str, asked: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(asked).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The listener's whole answer to a request of this method and path, which names a host.
pub fn ask(address: &str, what: &str, host: &str) -> String {
    tell(address, format!("{what} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
}

/// Checks samples against figures of `stat`.
fn assert_agree(samples: &HashMap<String, f64>, figures: &[(&str, &Value)]) {
    for (sample, value) in figures {
        assert_eq!(samples.get(*sample).copied(), value.as_f64(), "{sample}");
    }
}

/// The page as samples by name and labels. Checks the format, too.
pub fn scrape(address: &str) -> HashMap<String, f64> {
    let answer = ask(address, "GET /metrics", "octavo\r\nAccept: */*");
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
            assert!(["counter", "gauge", "histogram"].contains(&family.1), "{line}");
        } else if !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let suffix =
                name.strip_prefix(family.0).unwrap_or_else(|| panic!("{line} stands under {family:?}"));
            let suffixes: &[&str] = match family.1 {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            assert!(suffixes.contains(&suffix), "{line}");
            assert!(name.starts_with("octavo_") || name.starts_with("process_"), "{line}");
            let before = samples.insert(sample.to_owned(), value.parse().unwrap());
            assert!(before.is_none(), "{line} is told twice");
        }
    }
    samples
}

#[test]
fn metrics_agree_with_stat() {
    let (_directory, server, address) = served();
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(4096, &[1; 8192]);
    client.read(0, 12_288);
    // The connection that found the server listening was accepted before this client's.
    server::wait_until(|| "only the client is left".into(), || server.stat()["connections"] == 1);
    // The server's own work in between changes none of the figures that are compared.
    let (stat, samples) = (server.stat(), scrape(&address));
    let partition = &stat["partitions"][0];
    let figures = [
        ("octavo_partition_hits_total{partition=\"p\"}", &partition["hits"]),
        ("octavo_partition_misses_total{partition=\"p\"}", &partition["misses"]),
        ("octavo_partition_requests_total{partition=\"p\",kind=\"read\"}", &partition["requests_read"]),
        ("octavo_partition_requests_total{partition=\"p\",kind=\"write\"}", &partition["requests_write"]),
        ("octavo_partition_read_bytes_total{partition=\"p\"}", &partition["read_bytes"]),
        ("octavo_partition_written_bytes_total{partition=\"p\"}", &partition["written_bytes"]),
        ("octavo_memory_max_bytes", &stat["cache"]["memory_max_bytes"]),
        ("octavo_connections", &stat["connections"]),
    ];
    assert_agree(&samples, &figures);
    assert_eq!(samples["octavo_partition_read_bytes_total{partition=\"p\"}"], 12_288.0);
    assert_eq!(samples["octavo_partition_weight{partition=\"p\"}"], 100.0);
    let object = &partition["objects"][0];
    let figures = [
        ("octavo_export_requests_total{export=\"disk\",kind=\"read\"}", &object["requests_read"]),
        ("octavo_export_requests_total{export=\"disk\",kind=\"flush\"}", &object["requests_flush"]),
        ("octavo_export_read_bytes_total{export=\"disk\"}", &object["read_bytes"]),
        ("octavo_export_connections{export=\"disk\"}", &object["connections"]),
        ("octavo_export_requests_in_flight{export=\"disk\"}", &object["in_flight"]),
    ];
    assert_agree(&samples, &figures);
    assert_eq!(samples["octavo_export_requests_total{export=\"disk\",kind=\"write\"}"], 1.0);
    assert_eq!(samples["octavo_export_written_bytes_total{export=\"disk\"}"], 8192.0);
    assert_eq!(samples["octavo_exports"], 1.0);
    let took = |what: &str| {
        let name = format!("octavo_export_request_duration_seconds_{what}");
        ["miss", "write"].map(|class| {
            samples.get(&format!("{name}{{export=\"disk\",class=\"{class}\"}}")).copied().unwrap()
        })
    };
    assert_eq!(took("count"), [1.0, 1.0]);
    let latency = &object["latency"];
    for (class, sum_s) in ["miss", "write"].into_iter().zip(took("sum")) {
        assert_eq!(latency[class]["requests"], 1, "{latency}");
        assert_eq!(latency[class]["sum_ns"].as_f64(), Some((sum_s * 1e9).round()), "{latency}");
    }
    assert!(latency["hit"].is_null() && samples["octavo_draining"] == 0.0, "{latency}");
    // The kernel's figure is from another moment: resident memory is at least the frames in use.
    assert!(samples["process_resident_memory_bytes"] > 1_048_576.0);
    assert!(samples["process_open_fds"] > 5.0 && samples["process_cpu_seconds_total"] > 0.0);
    assert!(samples["process_start_time_seconds"] > 1e9);
    let info = "octavo_partition_info{partition=\"p\",policy=\"octavo\",cache_mode=\"writeback\"}";
    assert_eq!(samples[info], 1.0);
    // Limits follow what is set.
    server.ctl_succeed(&["set", "p", "max=8MiB", "min=4MiB"]);
    let samples = scrape(&address);
    assert_eq!(samples["octavo_partition_limit_bytes{partition=\"p\",limit=\"max\"}"], 8_388_608.0);
    assert_eq!(samples["octavo_partition_limit_bytes{partition=\"p\",limit=\"min\"}"], 4_194_304.0);
}

#[test]
fn the_listener_refuses_malformed_requests_and_serves_others_meanwhile() {
    let (_directory, server, address) = served();
    // Ten times as many silent clients as there are places, one of them in the middle of a request.
    // Each kept its place for ten seconds: a liveness probe behind a hundred of them waited for a
    // minute.
    let silent: Vec<TcpStream> = (0..160).map(|_| TcpStream::connect(&address).unwrap()).collect();
    (&silent[159]).write_all(b"GET /metr").unwrap();
    for (asked, status) in [
        ("GET / HTTP/1.1\r\nHost: octavo\r\n\r\n", "404 Not Found"),
        (
            "POST /metrics HTTP/1.1\r\nHost: octavo\r\nContent-Length: 3\r\n\r\nabc",
            "405 Method Not Allowed\r\n",
        ),
        ("hello\r\n\r\n", "400 Bad Request"),
        (&*"x".repeat(20_000), "431 Request Header Fields Too Large"),
    ] {
        let answer = tell(&address, asked.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    assert!(ask(&address, "POST /", "octavo").contains("\r\nAllow: GET, HEAD\r\n"));
    assert!(scrape(&address).len() > 20);
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().filter(|task| {
        let name = task.as_ref().unwrap().path().join("comm");
        std::fs::read_to_string(name).is_ok_and(|name| name.trim() == "metrics")
    });
    assert_eq!(threads.count(), 1, "one thread serves all");
}

/// HEAD was refused with 405. Programs use it to check whether a page exists.
#[test]
fn head_is_answered_like_get_but_without_a_body() {
    let (_directory, _server, address) = served();
    for path in ["/healthz", "/readyz", "/absent"] {
        let get = ask(&address, &format!("GET {path}"), "octavo");
        let (head, body) = get.split_once("\r\n\r\n").unwrap();
        assert!(!body.is_empty(), "{get}");
        let asked = format!("HEAD {path}");
        assert_eq!(ask(&address, &asked, "octavo"), format!("{head}\r\n\r\n"), "{path}");
    }
    let head = ask(&address, "HEAD /metrics", "octavo");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(!head.contains("octavo_"), "{head}");
    let foreign = ask(&address, "HEAD /metrics", "evil.example");
    assert!(foreign.starts_with("HTTP/1.1 403 "), "{foreign}");
}

/// Any `Host` was answered: a web page could read the figures under a name that it resolved to this
/// machine (DNS rebinding).
#[test]
fn a_request_is_answered_only_if_it_names_this_server() {
    let (_directory, _server, address) = served();
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let machine = machine.trim().to_uppercase();
    for (host, status) in [
        (&*address, 200),
        ("[::ffff:127.0.0.1]", 200),
        (&machine, 200),
        ("Octavo:80", 200),
        ("evil.example", 403),
        ("10.1.2.3", 403),
        ("[::1", 400),
        ("localhost\r\nHost: localhost", 400),
    ] {
        let answer = ask(&address, "GET /metrics", host);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host:?}: {answer}");
        assert_eq!(answer.contains("octavo_"), status == 200, "{host:?}: {answer}");
    }
    let refused = ask(&address, "GET /metrics", "evil.example");
    assert!(refused.contains("list the name in listen.metrics_hosts"), "{refused}");
}

/// The status and the body of a page.
fn page(address: &str, path: &str) -> (u16, String) {
    let answer = ask(address, &format!("GET {path}"), address);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Repeats a request until its status is this; returns the body.
fn wait_for_status(address: &str, path: &str, status: u16) -> String {
    let missing = || format!("{path} does not answer {status}");
    wait_for(missing, || Some(page(address, path)).filter(|(found, _)| *found == status)).1
}

/// A supervisor could not see that a store refused write-backs: only the log showed it.
#[test]
fn a_server_is_ready_until_a_store_refuses_or_it_drains_and_alive_throughout() {
    let (serve, before) = ("drain_timeout = \"1h\"", "ulimit -f 2048");
    let (_directory, mut server) =
        server::served(&Setup { listen: LISTEN, serve, before, ..Setup::default() });
    let address = server.metrics_address();
    assert_eq!(page(&address, "/healthz"), (200, "ok\n".into()));
    assert_eq!(page(&address, "/readyz"), (200, "ok\n".into()));
    let foreign = ask(&address, "GET /readyz", "evil.example");
    assert!(foreign.starts_with("HTTP/1.1 403 "), "{foreign}");
    // Files end at 1 MiB: writes beyond that cannot be written back.
    Client::connect(&server.nbd, "disk").unwrap().write(8 << 20, &[2; 4096]);
    server.ctl_fail(1, &["sync"]);
    let reasons = wait_for_status(&address, "/readyz", 503);
    assert!(reasons.starts_with("export \"disk\": the last write-back failed: "), "{reasons}");
    assert_eq!(reasons.lines().count(), 1, "{reasons}");
    assert_eq!(page(&address, "/healthz").0, 200);
    server.signal("TERM");
    server.wait_for_log("\"disk\" refuses");
    let reasons = wait_for_status(&address, "/readyz", 503);
    assert!(reasons.starts_with("draining: no more clients are admitted\nexport \"disk\""), "{reasons}");
    assert_eq!(page(&address, "/healthz"), (200, "ok\n".into()));
    server.end("TERM", 143);
}
