//! `octavo web` and `octavo report` with a real server: their command lines, the files that they
//! name, and the hosts that requests may name. The rest is tested in `tools/web`.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::nbd_client::Client;
use crate::server::{
    Directory, PATIENCE, Server, Setup, octavo_fails, octavo_succeeds, program, served, wait_for,
};

/// A page that ends with its test.
struct Web(Child);

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The page of a server on a port that the system chose, and its address.
fn web(server: &Server, words: &[&str]) -> (Web, String) {
    let socket = server.control.to_str().unwrap();
    let mut command = program(&["web", "--socket", socket, "--listen", "127.0.0.1:0", "--interval", "100ms"]);
    let child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut web = Web(child.unwrap());
    let mut line = String::new();
    BufReader::new(web.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("http://").and_then(|line| line.split(' ').next());
    let address = address.unwrap_or_else(|| panic!("no address: {line}")).to_owned();
    assert!(line.contains(socket), "{line}");
    (web, address)
}

/// The status and the body of a page, asked for under a name of its server.
fn get(address: &str, page: &str, host: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {page} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

fn last_interval(address: &str) -> Option<Value> {
    let (_, body) = get(address, "/api/history", "localhost");
    let history: Value = serde_json::from_str(&body).unwrap();
    history["recent"].as_array().unwrap().last().cloned()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_page_shows_what_the_server_counts() {
    let (_directory, server) = served(&Setup::default());
    let (_web, address) = web(&server, &[]);
    wait_for(|| "no interval".into(), || last_interval(&address));
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    let found = wait_for(
        || "no interval has the reads".into(),
        || {
            client.read(0, 4096);
            last_interval(&address)
                .filter(|interval| interval["partitions"][0]["counts"]["hits"].as_u64() > Some(0))
        },
    );
    assert_eq!(found["connections"], 1);
    assert_eq!(found["memory_max_bytes"], 32 << 20);
    assert!(found["partitions"][0]["latency"]["hit"]["count"].as_u64() > Some(0), "{found}");
}

#[test]
fn only_the_names_of_this_machine_and_allowed_ones_reach_the_page() {
    let (_directory, server) = served(&Setup::default());
    let (_web, address) = web(&server, &["--allow-host", "octavo.example"]);
    let status = |host: &str| get(&address, "/", host).0;
    for own in ["localhost:9188", "127.0.0.1", "octavo.example:443"] {
        assert_eq!(status(own), 200, "{own}");
    }
    assert_eq!(status("evil.example"), 403);
}

#[test]
fn other_machines_see_the_page_only_if_asked_for_by_name() {
    let complaint = octavo_fails(&["web", "--listen", "0.0.0.0:0"], 2);
    assert!(complaint.contains("--allow-host NAME"), "{complaint}");
    for (words, why) in [
        (["--interval", "1ms"], "100ms to 30s"),
        (["--interval", "60s"], "100ms to 30s"),
        (["--allow-host", "a:1"], "without a port"),
        (["--record-max", "1MiB"], "--record"),
    ] {
        let complaint = octavo_fails(&[&["web"][..], &words].concat(), 2);
        assert!(complaint.contains(why), "{words:?}: {complaint}");
    }
}

#[test]
fn a_token_that_others_can_read_or_guess_is_refused() {
    let directory = Directory::new();
    let file = directory.join("token");
    std::fs::write(&file, "0123456789abcdef0123\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let words = ["web", "--listen", "127.0.0.1:0", "--token-file", path(&file)];
    assert!(octavo_fails(&words, 1).contains("chmod 600"));
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, "short\n").unwrap();
    let complaint = octavo_fails(&words, 1);
    assert!(complaint.contains("the token has 5 bytes") && !complaint.contains("short"), "{complaint}");
    let missing = directory.join("none");
    assert!(octavo_fails(&["web", "--token-file", path(&missing)], 1).contains("No such file"));
}

#[test]
fn a_recording_and_a_sample_become_reports() {
    let (directory, server) = served(&Setup::default());
    let (recording, output) = (directory.join("figures.jsonl"), directory.join("report.html"));
    let (_web, address) = web(&server, &["--record", path(&recording)]);
    wait_for(|| "no interval".into(), || last_interval(&address));
    let told = octavo_succeeds(&["report", path(&recording), "--output", path(&output)]);
    assert_eq!(told.trim_end(), path(&output));
    let report = std::fs::read_to_string(&output).unwrap();
    assert!(report.contains("\"recent\":[{\"buffers_used_bytes\":"), "{} bytes", report.len());
    let sampled = directory.join("sampled.html");
    let socket = path(&server.control);
    octavo_succeeds(&[
        "report",
        "--socket",
        socket,
        "--for",
        "5s",
        "--interval",
        "100ms",
        "-o",
        path(&sampled),
    ]);
    assert!(std::fs::read_to_string(&sampled).unwrap().contains("\"recent\":[{\"buffers_used_bytes\":"));
}

#[test]
fn a_report_of_nothing_is_refused_with_the_reason() {
    let directory = Directory::new();
    let (other, output) = (directory.join("notes"), directory.join("report.html"));
    std::fs::write(&other, "notes\n").unwrap();
    let refused = |words: &[&str], status| {
        octavo_fails(&[&["report", "--output", path(&output)], words].concat(), status)
    };
    assert!(refused(&[path(&other)], 1).contains("octavo web --record FILE"));
    assert!(refused(&[path(&directory.join("none"))], 1).contains("No such file"));
    assert!(
        refused(&["--socket", path(&other), "--for", "1s", "--interval", "1s"], 2).contains("two intervals")
    );
    assert!(refused(&[path(&other), "--for", "1s"], 2).contains("cannot be used with"));
    assert!(!output.exists(), "a report that was refused leaves no file");
}
