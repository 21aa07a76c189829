//! `octavo ctl` and the protocol under it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, assert_has, octavo_fails, program, served, wait_until};

#[test]
fn stat_counts_what_clients_did() {
    let (_directory, server) = served(&Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(4096, &[1; 8192]);
    client.read(4096, 8192);
    client.read(0, 4096);
    // The connection that found the server listening was accepted before this client's.
    wait_until(|| "only the client is left".into(), || server.stat()["connections"] == 1);
    let stat = server.stat();
    assert_has(&stat, json!({"connections": 1, "pid": server.pid()}));
    let partition = &stat["partitions"][0];
    // Two pages that were written were not there before, and one that was read.
    let expected = json!({
        "name": "p", "cache_mode": "writeback", "written_bytes": 8192, "read_bytes": 12_288,
        "requests_read": 2, "requests_write": 1, "hits": 2, "misses": 3,
    });
    assert_has(partition, expected);
    assert_eq!(partition["objects"][0]["name"], "disk");
    let charged = stat["cache"]["memory_charged_bytes"].as_u64().unwrap();
    assert!(charged > 0 && charged <= 32 << 20, "{charged}");

    let table = server.ctl_succeed(&["stat"]);
    for word in ["PARTITION", "40.0 %", "EXPORT", "writeback"] {
        assert!(table.contains(word), "{word} is not in\n{table}");
    }
}

#[test]
fn after_sync_nothing_is_dirty_and_the_file_has_the_bytes() {
    let (directory, server) = served(&Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(10_000, b"across two pages".repeat(500).as_slice());
    assert_eq!(server.ctl_succeed(&["sync"]), "");
    assert_eq!(server.dirty_bytes(), 0);
    let file = std::fs::read(directory.join("disk")).unwrap();
    assert_eq!(file[10_000..18_000], *b"across two pages".repeat(500));
    assert!(file[..10_000].iter().chain(&file[18_000..]).all(|byte| *byte == 0));
}

#[test]
fn drain_reports_its_progress() {
    let (directory, server) = served(&Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(0, &vec![9; 1 << 20]);
    let said = server.ctl_succeed(&["drain"]);
    assert!(said.starts_with("draining: ") && said.ends_with("drained\n"), "{said}");
    assert_eq!(server.dirty_bytes(), 0);
    assert!(std::fs::read(directory.join("disk")).unwrap()[..1 << 20].iter().all(|byte| *byte == 9));
    // The server continues to serve.
    client.write(0, b"more");
    assert_eq!(client.read(0, 4), b"more");
}

#[test]
fn only_the_owner_can_use_the_control_socket() {
    let (_directory, server) = served(&Setup::default());
    for socket in [&server.control, &server.nbd] {
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", socket.display());
    }
}

#[test]
fn without_a_server_ctl_names_the_socket_it_tried() {
    let directory = Directory::new();
    let socket = directory.join("control.sock");
    let words = ["ctl", "stat", "--socket", socket.to_str().unwrap()];
    let expected = format!(
        "octavo: {}: no server listens here; start `octavo serve`, or name its control socket with --socket\n",
        socket.display()
    );
    assert_eq!(octavo_fails(&words, 1), expected);
    // A socket that a killed server left behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let said = octavo_fails(&words, 1);
    assert!(said.contains("no server listens here any more"), "{said}");
}

#[test]
fn a_second_server_does_not_take_the_first_ones_socket() {
    let (directory, server) = served(&Setup::default());
    let said = octavo_fails(&["serve", "--config", directory.join("octavo.toml").to_str().unwrap()], 2);
    // The locked disk is reported first; a socket in use is reported with its place, too.
    assert!(said.contains("octavo.toml:"), "{said}");
    assert_eq!(server.stat()["pid"], server.pid());
    Client::connect(&server.nbd, "disk").unwrap();
}

/// The server's whole answer to these bytes.
fn answer(server: &Server, asked: &str) -> String {
    let mut stream = UnixStream::connect(&server.control).unwrap();
    stream.write_all(asked.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn malformed_requests_are_answered_and_harm_nothing() {
    let (_directory, server) = served(&Setup::default());
    let refusal = |line: &[u8]| {
        let mut stream = UnixStream::connect(&server.control).unwrap();
        stream.write_all(line).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    for (line, word) in [
        (&b"hello\n"[..], "not a request"),
        (b"{\"v\":2,\"do\":\"stat\"}\n", "version 2"),
        (b"{\"v\":1,\"do\":\"stop\"}\n", "there is no verb \"stop\"; known: stat, sync, drain"),
        (b"\xff\xfe\n", "not a request"),
        (b"\n", "not a request"),
        (&[b'x'; 16_384], "the line is longer than 16384 bytes"),
    ] {
        let message = refusal(line);
        assert!(message.contains(word), "{message}");
    }
    // Several requests on one connection.
    let answers = answer(&server, "{\"v\":1,\"do\":\"sync\"}\n{\"v\":1,\"do\":\"sync\"}\n");
    assert_eq!(answers, "{\"v\":1,\"ok\":{}}\n{\"v\":1,\"ok\":{}}\n");
    // Silent clients take all places; the next client is refused with the reason.
    let _silent: Vec<UnixStream> = (0..16).map(|_| UnixStream::connect(&server.control).unwrap()).collect();
    let message = refusal(b"");
    assert!(message.contains("connected already"), "{message}");
}

#[test]
fn a_partition_can_be_inspected_and_changed_while_it_serves() {
    let (_directory, server) = served(&Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(0, &vec![5; 4 << 20]);
    let setting = |key: &str| server.ctl_json(&["partitions"])["partitions"][0][key].clone();
    assert_eq!((setting("name"), setting("policy"), setting("min")), ("p".into(), "octavo".into(), 0.into()));
    let before = setting("current").as_u64().unwrap();
    assert_eq!(server.ctl_succeed(&["set", "p", "min=4MiB", "max=8MiB", "policy=lru", "weight=250"]), "");
    assert_eq!((setting("min"), setting("weight")), ((4 << 20).into(), 250.into()));
    assert_eq!(setting("policy"), "lru");
    let current = setting("current").as_u64().unwrap();
    assert!(current <= 8 << 20 && current < before, "{current} after {before}");
    assert_eq!(client.read(0, 4 << 20), vec![5; 4 << 20]);
    // Dirty pages are written back before they are evicted.
    client.write(4096, &[6; 4096]);
    assert!(server.ctl_succeed(&["evict", "p"]).ends_with("evicted\n"));
    assert_eq!(server.stat()["partitions"][0]["resident_bytes"], 0);
    server.ctl_succeed(&["advise", "p", "disk", "willneed", "--len", "1MiB"]);
    assert!(server.stat()["partitions"][0]["resident_bytes"].as_u64().unwrap() >= 1 << 20);
    server.ctl_succeed(&["advise", "p", "disk", "dontneed", "--offset", "0"]);
    assert_eq!(client.read(4096, 4096), [6; 4096]);
    assert!(server.ctl_succeed(&["reclaim", "p", "2MiB"]).ends_with("reclaimed\n"));
    assert!(setting("current").as_u64().unwrap() >= 4 << 20, "min is kept");
    let curve = server.ctl_json(&["mrc", "p"]);
    assert!(curve["points"].as_array().unwrap().len() >= 3, "{curve}");
    for (arguments, words) in [
        (&["stat", "p"][..], &["PARTITION", "EXPORT"][..]),
        (&["partitions"], &["WEIGHT", "250", "8 MiB", "all together"]),
        (&["mrc", "p"], &["MISS RATIO", "lru"]),
    ] {
        let table = server.ctl_succeed(arguments);
        words.iter().for_each(|word| assert!(table.contains(word), "{word} is not in\n{table}"));
    }
    for (arguments, word) in [
        (&["set", "q", "max=1MiB"][..], "no partition is called \"q\"; known: p"),
        (&["set", "p", "max=1MiB", "weight=7", "max=2MiB"], "\"max\" is given twice; nothing was set"),
        (&["set", "p", "mx=1MiB"], "did you mean \"max\"?"),
        (&["set", "p", "max=1X"], "max=1X: unknown unit \"X\""),
        (&["set", "p", "min=1GiB"], "min is 1 GiB and max is 8 MiB"),
        (&["set", "p", "policy=lruu"], "did you mean \"lru\"?"),
        (&["stat", "q"], "no partition is called \"q\""),
        (&["advise", "p", "dusk", "normal"], "did you mean \"disk\"?"),
        (&["advise", "p", "disk", "wilneed"], "did you mean \"willneed\"?"),
        (&["advise", "p", "disk", "willneed", "--offset", "1GiB"], "reach past its end"),
    ] {
        let said = server.ctl_fail(1, arguments);
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}

#[test]
fn top_once_prints_a_table_of_the_partitions() {
    let listen = "[[partition]]\nname = \"idle\"\nmin = \"2MiB\"\nmax = \"8MiB\"";
    let (_directory, server) = served(&Setup { listen, ..Setup::default() });
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    (0..4).for_each(|_| drop(client.read(0, 1 << 20)));
    let table = server.ctl_succeed(&["top", "--once"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].contains("2 partitions, 1 connected; memory "), "{table}");
    let titles =
        ["PARTITION", "SIZE", "MIN", "MAX", "HITS", "MISS RATIO", "UTILITY", "AHEAD", "DIRTY", "PRESSURE"];
    titles.iter().for_each(|title| assert!(lines[2].contains(title), "{title} is not in\n{table}"));
    let (idle, busy) = (lines[3], lines[4]);
    assert!(idle.starts_with("idle ") && idle.contains("2 MiB") && idle.contains("8 MiB"), "{table}");
    assert!(busy.starts_with("p "), "{table}");
    let words: Vec<&str> = busy.split_whitespace().collect();
    let percent = words.iter().position(|word| *word == "%").unwrap();
    // A quarter of the pages missed, or fewer because of read-ahead.
    assert!(words[percent - 1].parse::<f64>().unwrap() >= 75.0, "{table}");
    let figures = &server.ctl_json(&["top", "--sort", "hits"])["partitions"];
    assert_eq!((&figures[0]["name"], &figures[1]["name"]), (&"p".into(), &"idle".into()), "{figures}");
    assert!(figures[0]["hit_ratio"].as_f64().unwrap() >= 0.75, "{figures}");
    let limits = (&figures[1]["min_bytes"], &figures[1]["max_bytes"], &figures[0]["max_bytes"]);
    assert_eq!(limits, (&(2 << 20).into(), &(8 << 20).into(), &serde_json::Value::Null), "{figures}");
    assert!(figures[1]["hit_ratio"].is_null(), "{figures}");
    let sorted = server.ctl_succeed(&["top", "--once", "--sort", "hits"]);
    assert!(sorted.lines().nth(3).unwrap().starts_with("p "), "{sorted}");
    assert!(server.ctl_fail(2, &["top"]).contains("--once prints one table"));
    assert!(
        server.ctl_fail(2, &["top", "--once", "--sort", "colour"]).contains("no column; known: partition")
    );
}

#[test]
fn numa_shows_the_pages_of_each_node_and_the_hits_by_node() {
    let cache = "topology = \"2x1\"\nnuma = \"partition\"";
    let (_directory, server) = served(&Setup { cache, ..Setup::default() });
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    (0..2).for_each(|_| drop(client.read(0, 4 << 20)));
    let answer = server.ctl_json(&["numa"]);
    assert_has(&answer, json!({"mode": "partition", "emulated": true}));
    let partition = &answer["partitions"][0];
    let nodes = &partition["nodes"];
    for count in [&nodes[0]["pages"], &nodes[1]["pages"], &partition["local_hits"], &partition["remote_hits"]]
    {
        assert!(count.as_u64().unwrap() > 300, "{partition}");
    }
    let table = server.ctl_succeed(&["numa"]);
    assert!(table.contains("mode partition, emulated") && table.contains("% here"), "{table}");
}

/// `policy=nope` was refused after the other settings had been applied.
#[test]
fn several_settings_are_applied_all_or_none() {
    let (_directory, server) = served(&Setup::default());
    let before = server.ctl_succeed(&["set", "p", "low=2MiB", "--json"]);
    for (wrong, why) in [
        ("policy=nope", "no policy"),
        ("max=512KiB", "min is"),
        ("weight=0", "weight is 0"),
        ("colour=1", "there is no"),
    ] {
        let said = server.ctl_fail(1, &["set", "p", "min=1MiB", "dirty_max=1MiB", wrong]);
        assert!(said.contains(why), "{said}");
        assert_eq!(server.ctl_succeed(&["set", "p", "low=2MiB", "--json"]), before, "{wrong}");
    }
    // A limit below the smallest partition is refused; it was shown and exceeded.
    let said = server.ctl_fail(1, &["set", "p", "low=0", "max=1"]);
    assert!(
        said.contains("max is 1 bytes, but ") && said.contains("one segment with its metadata"),
        "{said}"
    );
}

#[test]
fn every_answer_can_be_json_and_no_limit_is_null() {
    let (_directory, server) = served(&Setup::default());
    Client::connect(&server.nbd, "disk").unwrap().write(0, &[1; 8192]);
    assert_eq!(server.ctl_json(&["sync"]), json!({}));
    assert_eq!(server.ctl_json(&["drain"]), json!({}));
    assert_eq!(server.ctl_json(&["evict", "p"])["evicted_bytes"], 8192);
    assert!(server.ctl_json(&["reclaim", "p", "2MiB"])["reclaimed_bytes"].as_u64().unwrap() > 0);
    let partition = &server.ctl_json(&["partitions"])["partitions"][0];
    assert!(partition["max"].is_null() && partition["high"].is_null(), "{partition}");
    assert!(server.ctl_succeed(&["partitions"]).contains("max"));
}

#[test]
fn without_a_path_ctl_tries_both_default_sockets() {
    let directory = Directory::new();
    if std::path::Path::new("/run/octavo/control.sock").exists() {
        return println!("SKIP: a server of this machine has /run/octavo/control.sock");
    }
    let output = program(&["ctl", "stat"]).env("XDG_RUNTIME_DIR", directory.join("")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("octavo/control.sock or at /run/octavo/control.sock; start"), "{said}");
}

#[test]
fn stat_shows_the_requests_of_each_export_and_the_resident_memory() {
    let directory = Directory::new();
    let (a, b) = (directory.disk("a", 1 << 20), directory.disk("b", 1 << 20));
    let server = Server::start(&directory, &Setup { exports: &[("a", &a), ("b", &b)], ..Setup::default() });
    let mut client = Client::connect(&server.nbd, "a").unwrap();
    client.write(0, &[1; 8192]);
    client.read(0, 4096);
    assert_eq!(client.flush(), 0);
    // Past the end.
    client.send_write(9, 1 << 20, &[1; 4096]).unwrap();
    assert_eq!(client.reply().unwrap().0, 9);
    let stat = server.stat();
    let objects = &stat["partitions"][0]["objects"];
    let expected = json!({
        "connections": 1, "requests_read": 1, "requests_write": 2, "requests_flush": 1, "requests_trim": 0,
        "errors": 1, "read_bytes": 4096, "written_bytes": 8192, "in_flight": 0,
    });
    assert_has(&objects[0], expected);
    let expected = json!({
        "connections": 0, "requests_read": 0, "requests_write": 0, "requests_flush": 0, "requests_trim": 0,
        "errors": 0,
    });
    assert_has(&objects[1], expected);
    let charged = stat["cache"]["memory_charged_bytes"].as_u64().unwrap();
    let resident = stat["resident_bytes"].as_u64().unwrap();
    assert!(resident > 1 << 20 && resident < charged + (64 << 20), "{resident} of {charged}");
    let table = server.ctl_succeed(&["stat"]);
    assert!(table.contains("IN FLIGHT") && table.contains(" resident, io "), "{table}");
    assert!(server.ctl_succeed(&["top", "--once"]).contains(" resident"));
}

/// Eighteen bytes without a newline were refused as "a line without an end in 4096 bytes".
#[test]
fn the_last_line_of_a_client_may_lack_its_newline() {
    let (_directory, server) = served(&Setup::default());
    let said = answer(&server, r#"{"v":1,"do":"stat"}"#);
    assert!(said.starts_with(r#"{"v":1,"ok":{"#) && said.contains("\"uptime_s\":"), "{said}");
    let said = answer(&server, r#"{"v":1,"do":"stat""#);
    assert!(said.contains("not a request") && said.contains("EOF while parsing"), "{said}");
    assert_eq!(answer(&server, ""), "");
}
