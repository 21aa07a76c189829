//! Changes of a served file by other programs appear in the log, in `octavo ctl stat` and in the
//! metrics.

use std::fs::File;
use std::io::Write;

use serde_json::json;

use crate::control_client::ControlClient;
use crate::metrics;
use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, served, wait_until};

/// How many lines of the log hold a text.
fn told(server: &Server, text: &str) -> usize {
    server.log().lines().filter(|line| line.contains(text)).count()
}

/// A file that was overwritten with dd(1), truncated or replaced was served without a warning.
#[test]
fn each_change_of_a_served_file_by_another_program_is_reported_once() {
    let directory = Directory::new();
    let disk = directory.disk("disk", 1 << 20);
    let untouched = directory.disk("untouched", 1 << 20);
    let setup = Setup {
        exports: &[("disk", &disk), ("untouched", &untouched)],
        listen: "metrics = \"127.0.0.1:0\"",
        ..Setup::default()
    };
    let server = Server::start(&directory, &setup);
    let address = server.metrics_address();
    let object = |number: usize| server.stat()["partitions"][0]["objects"][number].clone();
    let metric = || {
        let page = metrics::ask(&address, "GET /metrics", &address);
        let line = page.lines().find(|line| line.starts_with("octavo_partition_objects_changed{")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!((&object(0)["store_changes"], &object(0)["store_change"]), (&0.into(), &().into()));
    assert_eq!(metric(), "0");

    // While the server writes too.
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(4096, &[1; 4096]);
    assert_eq!(client.flush(), 0);
    File::options().write(true).open(&disk).unwrap().write_all(b"another's").unwrap();
    server.wait_for_log("\"disk\": ");
    assert!(server.log().contains("another program "), "{}", server.log());
    File::options().write(true).open(&disk).unwrap().set_len(4096).unwrap();
    server.wait_for_log("changed its length to 4096 bytes; it is used as 1048576 bytes");
    std::fs::rename(&disk, directory.join("aside")).unwrap();
    std::fs::write(&disk, b"new").unwrap();
    server.wait_for_log("its path leads to another file now");

    let stat = object(0);
    assert_eq!(stat["store_changes"], 3, "{stat}");
    assert!(stat["store_change"].as_str().unwrap().contains("leads to another file"), "{stat}");
    let table = server.ctl_succeed(&["stat"]);
    assert!(table.contains("CHANGED") && table.contains("its path leads to another file now"), "{table}");
    assert_eq!(metric(), "1");
    assert_eq!((told(&server, "its path leads"), told(&server, "changed its length")), (1, 1));
    assert_eq!(
        (told(&server, "another program "), told(&server, "\"untouched\"")),
        (2, 0),
        "{}",
        server.log()
    );
    assert_eq!(object(1)["store_changes"], 0);
}

/// Every export that was added postponed the check of all others by five seconds, and the watch
/// kept the memory of those that were removed.
#[test]
fn a_change_is_noticed_while_other_exports_come_and_go() {
    let (directory, server) = served(&Setup::default());
    let guest = directory.disk("guest", 1 << 20);
    File::options().write(true).open(directory.join("disk")).unwrap().set_len(4096).unwrap();
    let mut control = ControlClient::connect(&server.control);
    let values = json!([["path", guest], ["partition", "p"]]);
    wait_until(
        || format!("the change is not noticed:\n{}", server.log()),
        || {
            control.succeeds(json!({"do": "export-add", "object": "guest", "values": values}));
            control.succeeds(json!({"do": "export-remove", "object": "guest"}));
            server.log().contains("changed its length to 4096 bytes")
        },
    );
    assert_eq!(told(&server, "\"guest\": "), 0, "{}", server.log());
}
