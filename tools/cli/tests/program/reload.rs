//! `octavo ctl reload` and SIGHUP: the configuration is read again while the server runs.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::clients;
use crate::control_client::ControlClient;
use crate::nbd_client::Client;
use crate::server::{Directory, Server, octavo_succeeds, program, wait_until};

/// A server whose configuration is `BASE`.
struct Reloaded {
    directory: Directory,
    server: Server,
    base: String,
}

const BASE: &str = "\
[cache]
memory_max = \"48MiB\"
page_bytes = \"4KiB\"
[[group]]
name = \"g\"
max = \"32MiB\"
[[partition]]
name = \"g/a\"
cache_mode = \"writeback\"
max = \"8MiB\"
min = \"2MiB\"
weight = 100
dirty_max = \"2MiB\"
[[partition]]
name = \"g/b\"
dirty_max = \"1MiB\"
[[export]]
name = \"one\"
path = \"{dir}/one\"
partition = \"g/a\"
[[export]]
name = \"two\"
path = \"{dir}/two\"
partition = \"g/b\"
description = \"second\"
[listen]
nbd = \"unix:{dir}/nbd.sock\"
control = \"unix:{dir}/control.sock\"
[serve]
drain_timeout = \"1s\"
[log]
level = \"info\"
";

impl Reloaded {
    fn new() -> Reloaded {
        let directory = Directory::new();
        for name in ["one", "two", "three"] {
            directory.disk(name, 4 << 20);
        }
        let dir = directory.join("").display().to_string();
        let base = BASE.replace("{dir}", dir.trim_end_matches('/'));
        std::fs::write(directory.join("octavo.toml"), &base).unwrap();
        let mut command = program(&["serve", "--config"]);
        command.arg(directory.join("octavo.toml"));
        let (nbd, control) = (directory.join("nbd.sock"), directory.join("control.sock"));
        let server = Server::spawn(command, &directory, nbd, control);
        Reloaded { directory, server, base }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("octavo.toml")
    }

    /// Writes the configuration with some texts replaced. Returns it.
    fn write(&self, edits: &[(&str, &str)]) -> String {
        let dir = self.directory.join("").display().to_string();
        let mut text = self.base.clone();
        for (found, replacement) in edits {
            assert!(text.contains(found), "{found}");
            text = text.replacen(found, &replacement.replace("{dir}", dir.trim_end_matches('/')), 1);
        }
        std::fs::write(self.file(), &text).unwrap();
        text
    }

    fn reload(&self) -> Result<String, String> {
        let output = self.server.ctl(&["reload"]);
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    }

    /// What the server has, without figures that change by themselves.
    fn state(&self) -> Value {
        let mut partitions = self.server.ctl_json(&["partitions"]);
        partitions.as_object_mut().unwrap().remove("reaper");
        for partition in partitions["partitions"].as_array_mut().unwrap() {
            partition.as_object_mut().unwrap().remove("current");
        }
        let stat = self.server.stat();
        let objects = stat["partitions"].as_array().unwrap().iter().flat_map(|partition| {
            let name = &partition["name"];
            let objects = partition["objects"].as_array().unwrap().iter();
            objects.map(move |object| json!([object["name"], object["path"], object["read_only"], name]))
        });
        let mut objects: Vec<Value> = objects.collect();
        objects.sort_by_key(Value::to_string);
        partitions["partitions"].as_array_mut().unwrap().sort_by_key(Value::to_string);
        json!({"partitions": partitions, "objects": objects})
    }

    /// The line of a text in a configuration.
    fn line_of(&self, text: &str, marker: &str) -> String {
        let at = text.find(marker).unwrap_or_else(|| panic!("{marker}"));
        format!("octavo.toml:{}:", text[..at].matches('\n').count() + 1)
    }
}

/// Replacements in the configuration, and what the reload prints.
type Applied = (&'static [(&'static str, &'static str)], &'static [&'static str]);

const THREE: &str = "[[export]]\nname = \"three\"\npath = \"{dir}/three\"\npartition = \"g/b\"\n[listen]";
const NO_TWO: &str = "[[export]]\nname = \"two\"\n";

const APPLIED: &[Applied] = &[
    (&[("[cache]", "# a comment\n[cache]")], &["nothing has changed"]),
    (&[("[listen]", THREE)], &["export \"three\": added"]),
    (&[("name = \"two\"", "name = \"zwei\"")], &["export \"zwei\": added", "export \"two\": removed"]),
    (&[("\"second\"", "\"the second\"")], &["export \"two\": changed: removed and added again"]),
    (&[("description = \"second\"", "read_only = true")], &["export \"two\": changed"]),
    (&[("{dir}/two", "{dir}/three")], &["export \"two\": changed"]),
    (&[("partition = \"g/b\"", "partition = \"g/a\"")], &["export \"two\": changed"]),
    // Two exports exchange their names, and so their stores.
    (
        &[
            ("name = \"one\"", "name = \"-\""),
            ("name = \"two\"", "name = \"one\""),
            ("name = \"-\"", "name = \"two\""),
        ],
        &["export \"one\": changed", "export \"two\": changed"],
    ),
    (&[("[listen]", "[[partition]]\nname = \"c\"\nmax = \"4MiB\"\n[listen]")], &["partition \"c\": added"]),
    (
        &[("name = \"g/b\"", "name = \"c\""), ("partition = \"g/b\"", "partition = \"c\"")],
        &["partition \"c\": added", "partition \"g/b\": removed", "export \"two\": changed"],
    ),
    (&[("\"8MiB\"", "\"6MiB\"")], &["partition \"g/a\": max 8 MiB -> 6 MiB"]),
    (&[("\"8MiB\"", "\"16MiB\"")], &["partition \"g/a\": max 8 MiB -> 16 MiB"]),
    (&[("min = \"2MiB\"", "min = \"4MiB\"")], &["min 2 MiB -> 4 MiB"]),
    (&[("min = \"2MiB\"\n", "")], &["min 2 MiB -> 0 B"]),
    (&[("weight = 100", "weight = 300")], &["weight 100 -> 300"]),
    (&[("weight = 100", "low = \"3MiB\"\nhigh = \"5MiB\"")], &["low 0 B -> 3 MiB, high max -> 5 MiB"]),
    (&[("weight = 100", "policy = \"lru\"")], &["policy octavo -> lru"]),
    (&[("dirty_max = \"2MiB\"", "dirty_max = \"1MiB\"")], &["dirty_max 2 MiB -> 1 MiB"]),
    (&[("dirty_max = \"2MiB\"\n", "")], &["dirty_max 2 MiB -> "]),
    (&[("max = \"32MiB\"", "max = \"28MiB\"")], &["group \"g\": max 32 MiB -> 28 MiB"]),
    (&[("[[group]]\nname = \"g\"\nmax = \"32MiB\"\n", "")], &["group \"g\": max 32 MiB -> max"]),
    (&[("\"1s\"", "\"7s\"")], &["server \"serve.drain_timeout\": 7s"]),
    (&[("level = \"info\"", "level = \"warn\"")], &["server \"log\""]),
    // Guarantees move from a partition that goes to one that stays.
    (
        &[
            ("name = \"g/b\"", "name = \"g/c\"\nmin = \"24MiB\""),
            ("partition = \"g/b\"", "partition = \"g/c\""),
        ],
        &["partition \"g/c\": added", "partition \"g/b\": removed"],
    ),
];

#[test]
fn every_kind_of_change_is_applied_and_taken_back() {
    let reloaded = Reloaded::new();
    let dir = reloaded.directory.join("").display().to_string();
    let dir = dir.trim_end_matches('/');
    let before = reloaded.state();
    let mut one = Client::connect(&reloaded.server.nbd, "one").unwrap();
    one.write(0, b"kept");
    drop(one);
    wait_until(|| "the client leaves".into(), || reloaded.server.stat()["connections"] == 0);
    for (edits, expected) in APPLIED {
        let edits: Vec<(String, &str)> =
            edits.iter().map(|(found, text)| (found.replace("{dir}", dir), *text)).collect();
        let edits: Vec<(&str, &str)> = edits.iter().map(|(found, text)| (found.as_str(), *text)).collect();
        reloaded.write(&edits);
        let said = reloaded.reload().unwrap_or_else(|said| panic!("{edits:?}: {said}"));
        for line in *expected {
            assert!(said.contains(line), "{edits:?}: {line} is not in\n{said}");
        }
        assert!(said.lines().count() <= 5, "{said}");
        // The same file again changes nothing.
        assert_eq!(reloaded.reload().unwrap(), "nothing has changed\n", "{edits:?}");
        reloaded.write(&[]);
        reloaded.reload().unwrap_or_else(|said| panic!("back from {edits:?}: {said}"));
        assert_eq!(reloaded.state(), before, "after {edits:?}");
    }
    let mut one = Client::connect(&reloaded.server.nbd, "one").unwrap();
    assert_eq!(one.read(0, 4), b"kept");
}

/// A replacement in the configuration, the text whose line is named, and a part of the reason.
type Refused = (&'static str, &'static str, &'static str, &'static str);

const FIXED: &str = "cannot change while the server runs";

const REFUSED: &[Refused] = &[
    ("\"48MiB\"", "\"64MiB\"", "memory_max", FIXED),
    ("\"4KiB\"", "\"8KiB\"", "page_bytes", FIXED),
    ("page_bytes = \"4KiB\"", "io = \"blocking\"", "io =", FIXED),
    ("page_bytes = \"4KiB\"", "buffers_max = \"4MiB\"", "buffers_max", FIXED),
    ("page_bytes = \"4KiB\"", "reaper = false", "reaper", FIXED),
    ("page_bytes = \"4KiB\"", "yield = false", "yield", FIXED),
    ("page_bytes = \"4KiB\"", "topology = \"2x1\"", "topology", FIXED),
    ("page_bytes = \"4KiB\"", "numa = \"partition\"", "numa", FIXED),
    ("page_bytes = \"4KiB\"", "twin_switch = 3", "twin_switch", FIXED),
    ("nbd.sock\"", "other.sock\"", "nbd =", FIXED),
    ("control.sock\"", "other.sock\"", "control =", FIXED),
    ("[serve]", "metrics = \"127.0.0.1:0\"\n[serve]", "metrics =", FIXED),
    ("[serve]", "[control]\nfs = \"/run/octavo-none\"\n[serve]", "fs =", FIXED),
    ("[log]", "connections_max = 3\n[log]", "connections_max", FIXED),
    ("[log]", "handshake_timeout = \"3s\"\n[log]", "handshake_timeout", FIXED),
    ("\"writeback\"", "\"writethrough\"", "cache_mode", FIXED),
    ("cache_mode = \"writeback\"\n", "", "name = \"g/a\"", "is missing, and cannot change"),
    ("weight = 100", "read_ahead = 0", "read_ahead", FIXED),
    ("weight = 100", "record = \"/var/tmp/never.octr\"", "record =", FIXED),
    ("/two\"", "/missing\"", "path = \"{dir}/missing", "does not exist"),
    ("/two\"", "\"", "path = \"{dir}\"", "is a directory"),
    ("/two\"", "/one\"", "path = \"{dir}/one\"\npartition = \"g/b\"", "is exported already"),
    ("partition = \"g/b\"", "partition = \"c\"", "partition = \"c\"", "no partition is called \"c\""),
    ("weight = 100", "weigth = 100", "weigth", "no such key; did you mean \"weight\"?"),
    ("weight = 100", "weight = ", "weight = ", "not TOML"),
    ("weight = 100", "node = 7", "node", FIXED),
    // The buffers leave less than 46 MiB for all partitions together.
    ("[listen]", "[[partition]]\nname = \"c\"\nmin = \"45MiB\"\n[listen]", "min = \"45", "min"),
    ("[listen]", "[[partition]]\nname = \"c\"\nmax = \"4KiB\"\n[listen]", "max = \"4KiB\"", "max"),
];

#[test]
fn a_refused_change_is_named_with_its_line_and_nothing_is_applied() {
    let reloaded = Reloaded::new();
    let dir = reloaded.directory.join("").display().to_string();
    let dir = dir.trim_end_matches('/');
    let before = reloaded.state();
    // A good change beside each refused one.
    let also = [("\"8MiB\"", "\"6MiB\""), ("[[export]]\nname = \"two\"", "[[export]]\nname = \"zwei\"")];
    for (found, text, marker, reason) in REFUSED {
        let text = reloaded.write(&[also[0], also[1], (found, text)]);
        let said = reloaded.reload().expect_err(marker);
        let line = reloaded.line_of(&text, &marker.replace("{dir}", dir));
        let is_named = said.lines().any(|said| said.contains(&line) && said.contains(reason));
        assert!(is_named, "{line} {reason}: {said}");
        assert_eq!(reloaded.state(), before, "{said}");
    }
    // All reasons together, and in the log.
    let text = reloaded.write(&[("\"48MiB\"", "\"64MiB\""), ("\"writeback\"", "\"writethrough\"")]);
    let said = reloaded.reload().unwrap_err();
    for marker in ["memory_max", "cache_mode"] {
        let line = reloaded.line_of(&text, marker);
        assert!(said.contains(&line), "{line}: {said}");
        assert!(reloaded.server.log().contains(&line), "{}", reloaded.server.log());
    }
    std::fs::remove_file(reloaded.file()).unwrap();
    assert!(reloaded.reload().unwrap_err().contains("cannot be read"));
    assert_eq!(reloaded.state(), before);
}

#[test]
fn a_reload_disconnects_clients_only_if_it_may() {
    let reloaded = Reloaded::new();
    let server = &reloaded.server;
    let mut two = Client::connect(&server.nbd, "two").unwrap();
    let mut one = Client::connect(&server.nbd, "one").unwrap();
    let before = reloaded.state();
    let no_two = &reloaded.base[reloaded.base.find(NO_TWO).unwrap()..reloaded.base.find("[listen]").unwrap()];
    reloaded.write(&[(no_two, ""), ("\"8MiB\"", "\"6MiB\"")]);
    let said = reloaded.reload().unwrap_err();
    assert!(said.contains("\"two\" is in use by client "), "{said}");
    assert_eq!(reloaded.state(), before);
    two.write(0, &[3; 4096]);

    let answer = server.ctl_json(&["reload", "--disconnect"]);
    let changes: Vec<String> = answer["changes"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert!(
        changes.iter().any(|change| change.contains("\"two\"") && change.contains("removed")),
        "{answer}"
    );
    two.send_read(1, 0, 512).unwrap_or_default();
    assert!(two.reply().is_err());
    one.write(0, &[1; 512]);
    assert_eq!(std::fs::read(reloaded.directory.join("two")).unwrap()[..4096], [3; 4096]);
}

#[test]
fn what_ctl_has_added_stays_through_a_reload_and_is_adopted_by_a_file_that_has_it() {
    let reloaded = Reloaded::new();
    let server = &reloaded.server;
    server.ctl_succeed(&["partition", "add", "own", "--max", "4MiB"]);
    let three = reloaded.directory.join("three");
    let add = |name: &str| {
        server.ctl_succeed(&["export", "add", name, "--path", three.to_str().unwrap(), "--partition", "own"])
    };
    add("three");
    let said = reloaded.reload().unwrap();
    for line in ["export \"three\": kept: it is not in the file", "partition \"own\": kept"] {
        assert!(said.contains(line), "{said}");
    }
    // Another export of the same store.
    let text = reloaded.write(&[("[listen]", &THREE.replace("\"three\"", "\"drei\""))]);
    let said = reloaded.reload().unwrap_err();
    let line = reloaded.line_of(&text, &format!("path = \"{}\"", three.display()));
    assert!(said.contains("is exported already, as \"three\", which `octavo ctl` added"), "{said}");
    assert!(said.contains(&line), "{line} {said}");
    // The same export, in the same partition: nothing happens to its clients.
    let mut client = Client::connect(&server.nbd, "three").unwrap();
    let own = "[[partition]]\nname = \"own\"\nmax = \"4MiB\"\n";
    let adopted = format!("{own}{}", THREE.replace("\"g/b\"", "\"own\""));
    reloaded.write(&[("[listen]", &adopted)]);
    assert_eq!(reloaded.reload().unwrap(), "nothing has changed\n");
    client.write(0, b"still here");
    drop(client);
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    // From here on the file decides.
    reloaded.write(&[]);
    let said = reloaded.reload().unwrap();
    assert!(
        said.contains("export \"three\": removed") && said.contains("partition \"own\": removed"),
        "{said}"
    );
    // An export that ctl has removed comes back.
    server.ctl_succeed(&["export", "remove", "two"]);
    assert!(reloaded.reload().unwrap().contains("export \"two\": added"));
    // A partition of the file cannot go while an export that ctl has added uses it.
    let words = ["export", "add", "x", "--path", three.to_str().unwrap(), "--partition", "g/b"];
    server.ctl_succeed(&words);
    reloaded.write(&[("name = \"g/b\"", "name = \"c\""), ("partition = \"g/b\"", "partition = \"c\"")]);
    let said = reloaded.reload().unwrap_err();
    assert!(
        said.contains("partition \"g/b\" is no longer in the file, but \"x\", which `octavo ctl` added"),
        "{said}"
    );
}

#[test]
fn a_reload_takes_back_what_ctl_set_has_changed() {
    let reloaded = Reloaded::new();
    let before = reloaded.state();
    let words = ["set", "g/a", "weight=7", "max=6MiB", "policy=lru", "dirty_max=1MiB"];
    reloaded.server.ctl_succeed(&words);
    let said = reloaded.reload().unwrap();
    for change in
        ["max 6 MiB -> 8 MiB", "weight 7 -> 100", "policy lru -> octavo", "dirty_max 1 MiB -> 2 MiB"]
    {
        assert!(said.contains(change), "{change}: {said}");
    }
    assert_eq!(reloaded.state(), before);
}

#[test]
fn a_reload_that_would_remove_an_export_whose_store_refuses_changes_nothing() {
    let reloaded = Reloaded::new();
    let server = &reloaded.server;
    let limit = |limit: &str| {
        let limit = format!("--fsize={limit}:");
        let status = Command::new("prlimit").args([&limit, "--pid", &server.pid().to_string()]).status();
        status.is_ok_and(|status| status.success())
    };
    if !limit("1048576") {
        clients::skip("prlimit is missing");
        return;
    }
    // In the partition that is write-back.
    reloaded.write(&[("partition = \"g/b\"", "partition = \"g/a\"")]);
    reloaded.reload().unwrap();
    let before = reloaded.state();
    let mut client = Client::connect(&server.nbd, "two").unwrap();
    client.write(2 << 20, &[4; 8192]);
    drop(client);
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    let two = &reloaded.base[reloaded.base.find(NO_TWO).unwrap()..reloaded.base.find("[listen]").unwrap()];
    let edits = [(two, ""), ("\"8MiB\"", "\"6MiB\""), ("[listen]", THREE)];
    reloaded.write(&edits);
    let said = reloaded.reload().unwrap_err();
    let expected = "export \"two\" cannot be removed: ";
    assert!(said.contains(expected) && said.contains("8 KiB are not in its store"), "{said}");
    assert_eq!(reloaded.state(), before);
    assert_eq!(Client::connect(&server.nbd, "two").unwrap().read(2 << 20, 8192), [4; 8192]);

    assert!(limit("unlimited"));
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    reloaded.reload().unwrap();
    let file = std::fs::read(reloaded.directory.join("two")).unwrap();
    assert_eq!(file[2 << 20..(2 << 20) + 8192], [4; 8192]);
    assert_eq!(reloaded.state()["objects"].as_array().unwrap().len(), 2);
}

#[test]
fn sighup_reloads_and_logs_what_was_applied_or_refused() {
    let reloaded = Reloaded::new();
    let server = &reloaded.server;
    reloaded.write(&[("[listen]", THREE), ("\"8MiB\"", "\"6MiB\"")]);
    server.signal("HUP");
    server.wait_for_log("reload: export \"three\": added");
    server.wait_for_log("reload: partition \"g/a\": max 8 MiB -> 6 MiB");
    server.wait_for_log("reload: the configuration is in force");
    Client::connect(&server.nbd, "three").unwrap().write(0, b"here");
    let text = reloaded.write(&[("\"48MiB\"", "\"64MiB\"")]);
    server.signal("HUP");
    server.wait_for_log(&reloaded.line_of(&text, "memory_max"));
    // Many at once, beside `ctl reload` and changes of ctl: at the end, the last file is in force.
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    let mut control = ControlClient::connect(&server.control);
    for round in 0..50 {
        reloaded.write(if round % 2 == 0 { &[("[listen]", THREE)] } else { &[] });
        server.signal("HUP");
        server.signal("HUP");
        let answer = control.ask(json!({"do": "reload"}));
        assert!(answer.get("ok").is_some(), "round {round}: {answer}");
    }
    server.signal("HUP");
    let names = |state: Value| state["objects"].as_array().unwrap().len();
    wait_until(|| format!("{}", reloaded.state()), || names(reloaded.state()) == 2);
}

#[test]
fn a_server_without_a_file_refuses_to_reload() {
    let directory = Directory::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command
        .arg("serve")
        .env("XDG_CACHE_HOME", directory.join("c"))
        .env("XDG_RUNTIME_DIR", directory.join(""));
    let sockets = directory.join("octavo");
    let server = Server::spawn(command, &directory, sockets.join("nbd.sock"), sockets.join("control.sock"));
    let said = server.ctl_fail(1, &["reload"]);
    assert!(said.contains("started without a configuration file"), "{said}");
    server.signal("HUP");
    server.wait_for_log("reload: octavo: the server was started without a configuration file");
    assert!(octavo_succeeds(&["ctl", "reload", "--help"]).contains("SIGHUP does the same"));
}
