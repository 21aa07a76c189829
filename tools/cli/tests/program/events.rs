//! Events: what the server tells to `octavo ctl events` and to clients that follow.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, assert_has, parsed, served, wait_for};

/// The events so far, of one kind.
fn events(server: &Server, kind: &str) -> Vec<Value> {
    let all = parsed(&server.ctl_succeed(&["events", "--json"]));
    all.into_iter().filter(|event| event["kind"] == kind).collect()
}

/// A client that follows events.
struct Follower(BufReader<UnixStream>);

impl Follower {
    fn new(server: &Server, request: Value) -> Follower {
        let mut stream = UnixStream::connect(&server.control).unwrap();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        Follower(BufReader::new(stream))
    }

    /// The next line.
    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Reads lines until there is an event of this kind.
    fn until(&mut self, kind: &str) -> Value {
        loop {
            let mut line = self.line();
            let events = line["events"].as_array_mut().unwrap_or_else(|| panic!("no {kind}"));
            if let Some(event) = events.iter_mut().find(|event| event["kind"] == kind) {
                return event.take();
            }
        }
    }
}

#[test]
fn operators_changes_and_what_follows_from_them_are_events() {
    let (_directory, server) = served(&Setup::default());
    let answer = server.ctl_json(&["stat"]);
    assert_eq!(answer["pid"], server.pid());
    let start = &events(&server, "start")[0];
    assert_has(start, json!({"number": 1, "level": "info"}));
    assert!(start["time_ms"].as_u64().unwrap() > 1_700_000_000_000, "{start}");

    server.ctl_succeed(&["set", "p", "max=8MiB", "weight=250"]);
    let changed = &events(&server, "changed")[0];
    let text = "partition \"p\": set max=8MiB weight=250";
    assert_has(changed, json!({"partition": "p", "level": "info", "text": text}));
    let moved = wait_for(|| "no move".into(), || events(&server, "moved").into_iter().next());
    assert_has(&moved, json!({"partition": "p", "reason": "limit"}));
    let [from, to] = ["from_bytes", "to_bytes"].map(|key| moved[key].as_u64().unwrap());
    assert!(to <= 8 << 20 && from > to, "{moved}");
    assert!(moved["text"].as_str().unwrap().contains("partition p shrank from "), "{moved}");

    server.ctl_succeed(&["reload"]);
    assert_eq!(events(&server, "reload").last().unwrap()["level"], "info");
    // The file has no limits: the reload takes them away again.
    let changed = events(&server, "changed");
    assert!(changed.iter().any(|event| event["text"].as_str().unwrap().starts_with("reload: partition")));

    let lines = server.ctl_succeed(&["events", "--partition", "p"]);
    assert!(
        lines.lines().count() >= 3 && lines.contains("  info   moved            partition p shrank"),
        "{lines}"
    );
    assert!(!lines.contains("  start  ") && lines.lines().all(|line| line.contains('T')), "{lines}");
    assert_eq!(server.ctl_succeed(&["events", "--partition", "q"]), "");
}

#[test]
fn a_store_that_refuses_is_an_event_and_so_is_its_recovery() {
    let directory = Directory::new();
    let bad = directory.disk("bad", 16 << 20);
    let exports: &[(&str, &std::path::Path)] = &[("bad", &bad)];
    let setup = Setup { exports, before: "ulimit -S -f 2048", ..Setup::default() };
    let mut server = Server::start(&directory, &setup);
    let mut client = Client::connect(&server.nbd, "bad").unwrap();
    client.write(8 << 20, &[2; 65_536]);
    let mut follower = Follower::new(&server, json!({"v": 1, "do": "events", "follow": true}));
    server.ctl_fail(1, &["sync"]);
    let failed = follower.until("store-failed");
    let expected = json!({"partition": "p", "object": "bad", "level": "error", "reason": "write-back"});
    assert_has(&failed, expected);
    assert!(failed["text"].as_str().unwrap().contains("65536 bytes stay dirty"), "{failed}");
    // The limit of the process is raised: its writes to this file succeed.
    let words = ["--pid", &server.pid().to_string(), "--fsize=unlimited:"];
    assert!(std::process::Command::new("prlimit").args(words).status().unwrap().success());
    assert_has(&follower.until("store-recovered"), json!({"object": "bad", "level": "info"}));
    // The engine's line in the log is told once, and not again as a message.
    let messages = events(&server, "message");
    assert!(messages.iter().all(|event| !event["text"].as_str().unwrap().contains("stay dirty")));
    server.signal("TERM");
    assert_has(&follower.until("drain"), json!({"level": "info"}));
    server.wait();
}

#[test]
fn warnings_of_the_log_are_events_whatever_the_level_of_the_log_is() {
    let directory = Directory::new();
    let setup = Setup { listen: "[log]\nlevel = \"error\"", ..Setup::default() };
    let server = Server::start(&directory, &setup);
    let mut follower = Follower::new(&server, json!({"v": 1, "do": "events", "follow": true, "after": 0}));
    follower.until("start");
    std::fs::write(directory.join("disk"), b"short").unwrap();
    let message = follower.until("message");
    assert_eq!(message["level"], "warn");
    assert!(message["text"].as_str().unwrap().contains("disk"), "{message}");
    assert!(!server.log().contains("warning"), "{}", server.log());
}

#[test]
fn a_client_may_begin_after_a_number_and_its_following_ends_when_it_says_anything() {
    let (_directory, server) = served(&Setup::default());
    server.ctl_succeed(&["set", "p", "weight=7"]);
    let ask = |after: u64| {
        let mut stream = UnixStream::connect(&server.control).unwrap();
        let request = json!({"v": 1, "do": "events", "after": after});
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str::<Value>(&answer).unwrap()["ok"].take()
    };
    let all = ask(0);
    assert_eq!((&all["first"], &all["events"][0]["number"]), (&json!(1), &json!(1)), "{all}");
    let next = all["next"].as_u64().unwrap();
    assert_eq!(all["events"].as_array().unwrap().len() as u64, next - 1);
    assert_eq!(ask(next - 1), json!({"first": 1, "next": next, "events": []}));
    assert_eq!(ask(next + 100)["events"].as_array().unwrap().len() as u64, next - 1);

    let follow = json!({"v": 1, "do": "events", "after": next - 1, "follow": true});
    let mut follower = Follower::new(&server, follow.clone());
    assert_eq!(follower.line(), json!({"v": 1, "events": []}));
    server.ctl_succeed(&["set", "p", "weight=8"]);
    assert_eq!(follower.until("changed")["number"], next);
    // The next request ends it, and is answered.
    follower.0.get_mut().write_all(b"{\"v\":1,\"do\":\"sync\"}\n").unwrap();
    assert_eq!(follower.line()["ok"]["next"], next + 1);
    assert_eq!(follower.line(), json!({"v": 1, "ok": {}}));

    let mut followers: Vec<Follower> = (0..4).map(|_| Follower::new(&server, follow.clone())).collect();
    followers.iter_mut().for_each(|follower| drop(follower.line()));
    let refused = Follower::new(&server, follow.clone()).line();
    assert_eq!(refused["error"]["message"], "4 clients follow events already");
    // A client that leaves makes room at once, although nothing happens.
    followers.pop();
    wait_for(
        || "no room".into(),
        || Follower::new(&server, follow.clone()).line().get("events").is_some().then_some(()),
    );
}

#[test]
fn a_follower_that_does_not_read_delays_nobody_and_finds_a_gap() {
    let (_directory, server) = served(&Setup::default());
    let mut slow = Follower::new(&server, json!({"v": 1, "do": "events", "follow": true}));
    // More than the socket and the server keep for a client.
    let mut control = crate::control_client::ControlClient::connect(&server.control);
    let set = json!({"do": "set", "partition": "p", "values": [["weight", "7"]]});
    (0..6000).for_each(|_| drop(control.succeeds(set.clone())));
    let last = control.succeeds(json!({"do": "events"}))["next"].as_u64().unwrap() - 1;
    let mut numbers = Vec::new();
    while numbers.last() != Some(&last) {
        let line = slow.line();
        numbers
            .extend(line["events"].as_array().unwrap().iter().map(|event| event["number"].as_u64().unwrap()));
    }
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert!((numbers.len() as u64) < last, "{last} events, all of which were sent");
}
