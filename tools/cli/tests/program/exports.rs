//! Exports and partitions that come and go while the server runs: `octavo ctl export` and
//! `octavo ctl partition`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::clients;
use crate::control_client::ControlClient;
use crate::nbd_client::Client;
use crate::random::{self, Random};
use crate::server::{Directory, Server, Setup, octavo_fails, served, wait_until};

/// The length of disks that come and go.
const GUEST_BYTES: u64 = 1 << 20;

const PAGE: usize = 4096;

/// Adds an export to the partition "p" of a test's server.
fn add(server: &Server, name: &str, path: &Path) -> String {
    server.ctl_succeed(&["export", "add", name, "--path", path.to_str().unwrap(), "--partition", "p"])
}

fn refused(server: &Server, name: &str, path: &Path, partition: &str) -> String {
    server.ctl_fail(1, &["export", "add", name, "--path", path.to_str().unwrap(), "--partition", partition])
}

#[test]
fn an_export_that_is_added_is_served_until_it_is_removed() {
    let listen = "metrics = \"127.0.0.1:0\"";
    let (directory, server) = served(&Setup { listen, ..Setup::default() });
    let guest = directory.disk("guest", GUEST_BYTES);
    let said = add(&server, "guest", &guest);
    assert!(said.starts_with("export \"guest\" is added: ") && said.contains("1 MiB"), "{said}");

    let mut client = Client::connect(&server.nbd, "guest").unwrap();
    client.write(8192, &[5; PAGE]);
    let stat = server.stat();
    let object = &stat["partitions"][0]["objects"][1];
    assert_eq!((&object["name"], &object["connections"]), (&json!("guest"), &json!(1)));
    let page = crate::metrics::ask(&server.metrics_address(), "GET /metrics", &server.metrics_address());
    assert!(page.contains("octavo_exports 2\n") && page.contains("{export=\"guest\"}"), "{page}");
    if clients::present(&["nbdinfo"]) {
        let uri = format!("nbd+unix:///?socket={}", server.nbd.display());
        let list = clients::succeed("nbdinfo", &["--list", &uri]);
        assert!(clients::text(&list.stdout).contains("export=\"guest\""));
    }

    // The refusal names the client.
    let said = server.ctl_fail(1, &["export", "remove", "guest"]);
    let me = format!("(process {})", std::process::id());
    assert!(said.contains("\"guest\" is in use by client ") && said.contains(&me), "{said}");
    assert!(said.contains("--disconnect"), "{said}");
    assert_eq!(client.read(8192, PAGE), [5; PAGE]);

    drop(client);
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    let said = server.ctl_succeed(&["export", "remove", "guest"]);
    assert!(said.ends_with("export \"guest\" is removed\n"), "{said}");
    let file = std::fs::read(&guest).unwrap();
    assert_eq!(file[8192..8192 + PAGE], [5; PAGE], "dirty pages are in the file");
    assert_eq!(server.stat()["partitions"][0]["objects"].as_array().unwrap().len(), 1);
    let page = crate::metrics::ask(&server.metrics_address(), "GET /metrics", &server.metrics_address());
    assert!(page.contains("octavo_exports 1\n") && !page.contains("export=\"guest\""), "{page}");
    // Its file is unlocked: another server can use it.
    let again = directory.join("again");
    std::fs::create_dir(&again).unwrap();
    add(&server, "guest", &guest);
    assert_eq!(Client::connect(&server.nbd, "guest").unwrap().read(8192, PAGE), [5; PAGE]);
}

#[test]
fn an_export_that_cannot_be_added_is_refused_with_the_reason() {
    let (directory, server) = served(&Setup::default());
    let (disk, guest) = (directory.join("disk"), directory.disk("guest", GUEST_BYTES));
    let said = refused(&server, "disk", &guest, "p");
    assert!(said.contains("there is an export \"disk\" already: "), "{said}");
    // The same path, a hard link, a symbolic link, and a path through a linked directory.
    let (hard, soft, through) = (directory.join("hard"), directory.join("soft"), directory.join("through"));
    std::fs::hard_link(&disk, &hard).unwrap();
    std::os::unix::fs::symlink(&disk, &soft).unwrap();
    std::os::unix::fs::symlink(directory.join("."), &through).unwrap();
    for alias in [disk.clone(), hard, soft, through.join("disk")] {
        let said = refused(&server, "alias", &alias, "p");
        assert!(said.contains("is exported already, as \"disk\""), "{}: {said}", alias.display());
    }
    for (path, partition, word) in [
        (directory.join("."), "p", "is a directory"),
        (directory.join("missing"), "p", "does not exist; `truncate"),
        (PathBuf::from("/dev/null"), "p", "neither a file nor a block device"),
        (guest.clone(), "q", "no partition is called \"q\""),
    ] {
        let said = refused(&server, "new", &path, partition);
        assert!(said.contains(word), "{said}");
    }
    let said = server.ctl_fail(
        1,
        &[
            "export",
            "add",
            "new",
            "--path",
            guest.to_str().unwrap(),
            "--partition",
            "p",
            "--description",
            "a\u{7}",
        ],
    );
    assert!(said.contains("U+0007"), "{said}");
    let said = server.ctl_fail(1, &["export", "remove", "dsk"]);
    assert!(said.contains("no export is called \"dsk\"; did you mean \"disk\"?"), "{said}");
    assert_eq!(server.stat()["partitions"][0]["objects"].as_array().unwrap().len(), 1);
    add(&server, "new", &guest);
}

#[test]
fn a_partition_is_added_with_the_keys_of_the_file_and_removed_when_no_export_uses_it() {
    let (directory, server) = served(&Setup { memory_max: "48MiB", ..Setup::default() });
    let charged = || server.stat()["cache"]["memory_charged_bytes"].as_u64().unwrap();
    let before = charged();
    let words =
        "partition add q --mode writeback --max 8MiB --min 4MiB --policy lru --weight 300 --dirty-max 1MiB";
    server.ctl_succeed(&words.split(' ').collect::<Vec<_>>());
    let made = server.ctl_json(&["partitions"])["partitions"][1].clone();
    let expected = json!({
        "name": "q", "policy": "lru", "min": 4 << 20, "max": 8 << 20, "weight": 300, "dirty_max": 1 << 20,
    });
    crate::server::assert_has(&made, expected);
    assert_eq!(server.stat()["partitions"][1]["cache_mode"], "writeback");

    for (words, word) in [
        ("partition add q", "there is a partition \"q\" already"),
        ("partition add r --max 1GiX", "partition.max: unknown unit \"GiX\""),
        (
            "partition add r --policy clok",
            "partition.policy: no policy is called \"clok\"; did you mean \"clock\"?",
        ),
        ("partition add r --weight 0", "partition.weight: "),
        ("partition add r --min 1GiB", "min"),
        ("partition remove r", "no partition is called \"r\""),
        ("partition remove p", "partition \"p\" is used by its exports: \"disk\"; remove them first"),
    ] {
        let said = server.ctl_fail(1, &words.split(' ').collect::<Vec<_>>());
        assert!(said.contains(word), "{words}: {said}");
    }
    let guest = directory.disk("guest", GUEST_BYTES);
    let words =
        ["export", "add", "guest", "--path", guest.to_str().unwrap(), "--partition", "q", "--read-only"];
    let answer = server.ctl_json(&words);
    assert_eq!((&answer["read_only"], &answer["len_bytes"]), (&json!(true), &json!(GUEST_BYTES)));
    let said = server.ctl_fail(1, &["partition", "remove", "q"]);
    assert!(said.contains("\"guest\""), "{said}");
    server.ctl_succeed(&["export", "remove", "guest"]);
    assert_eq!(server.ctl_json(&["partition", "remove", "q"]), json!({"name": "q"}));
    wait_until(|| format!("{} bytes were charged, now {}", before, charged()), || charged() <= before);
}

/// The client sends a header and half of the bytes, and never the rest.
#[test]
fn removing_an_export_in_the_middle_of_a_write_keeps_what_was_acknowledged() {
    let (directory, server) = served(&Setup::default());
    let guest = directory.disk("guest", GUEST_BYTES);
    add(&server, "guest", &guest);
    let mut client = Client::connect(&server.nbd, "guest").unwrap();
    for page in 0..64_u64 {
        client.write(page * PAGE as u64, &[page as u8 + 1; PAGE]);
    }
    client.send_half_a_write(1 << 19, PAGE);
    // Had the server not seen the header yet, it would refuse the write.
    let in_flight = || server.stat()["partitions"][0]["objects"][1]["in_flight"].clone();
    wait_until(|| "the write begins".into(), || in_flight() == 1);
    let said = server.ctl_succeed(&["export", "remove", "guest", "--disconnect"]);
    assert!(said.ends_with("export \"guest\" is removed\n"), "{said}");
    assert!(client.reply().is_err(), "the connection is closed");
    let file = std::fs::read(&guest).unwrap();
    for page in 0..64 {
        assert_eq!(file[page * PAGE..(page + 1) * PAGE], [page as u8 + 1; PAGE], "page {page}");
    }
    assert!(file[1 << 19..].iter().all(|byte| *byte == 0));
}

#[test]
fn an_export_whose_store_refuses_its_dirty_pages_is_not_removed_and_loses_nothing() {
    let directory = Directory::new();
    let (good, bad) = (directory.disk("good", GUEST_BYTES / 2), directory.disk("bad", 16 << 20));
    let server = Server::start(
        &directory,
        &Setup {
            exports: &[("good", &good), ("bad", &bad)],
            serve: "drain_timeout = \"500ms\"",
            before: "ulimit -S -f 2048",
            ..Setup::default()
        },
    );
    let mut client = Client::connect(&server.nbd, "bad").unwrap();
    client.write(8 << 20, &[2; 65_536]);
    drop(client);
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    let said = server.ctl_fail(1, &["export", "remove", "bad"]);
    assert!(
        said.contains("\"bad\" is not removed; it is served again, and its dirty pages are kept"),
        "{said}"
    );
    assert!(said.contains("65536 dirty bytes"), "{said}");
    let mut client = Client::connect(&server.nbd, "bad").unwrap();
    assert_eq!(client.read(8 << 20, 65_536), [2; 65_536]);
    // Room for the write: the rest of the file gets zeros instead.
    assert_eq!(server.dirty_bytes(), 65_536);
    let status = std::process::Command::new("prlimit")
        .args(["--fsize=unlimited:", "--pid", &server.pid().to_string()])
        .status();
    if !status.is_ok_and(|status| status.success()) {
        clients::skip("prlimit cannot raise the limit");
        let mut server = server;
        server.end("TERM", 1);
        return;
    }
    drop(client);
    wait_until(|| "the client leaves".into(), || server.stat()["connections"] == 0);
    server.ctl_succeed(&["export", "remove", "bad"]);
    let file = std::fs::read(&bad).unwrap();
    assert_eq!(file[8 << 20..(8 << 20) + 65_536], [2; 65_536]);
}

/// A disk that comes and goes, and what its file must contain.
struct Guest {
    path: PathBuf,
    version: u64,
}

impl Guest {
    /// The bytes of a page in a version: no two pages are equal.
    fn page(&self, page: u64, version: u64) -> Vec<u8> {
        let word = version << 20 | page;
        word.to_le_bytes().repeat(PAGE / 8)
    }

    /// The pages that each version writes.
    fn pages(&self) -> impl Iterator<Item = u64> {
        (0..GUEST_BYTES / PAGE as u64).step_by(7)
    }

    fn check(&self, mut read: impl FnMut(u64) -> Vec<u8>, what: &str) {
        for page in self.pages() {
            let expected = if self.version == 0 { vec![0; PAGE] } else { self.page(page, self.version) };
            assert!(read(page) == expected, "{what}: page {page} is not that of version {}", self.version);
        }
    }
}

/// Writes and reads a disk that stays, and compares with a copy in memory, until it is stopped.
/// Returns the number of requests.
fn keep_busy(server: &Server, stop: &AtomicBool, mut random: Random) -> u64 {
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    let mut copy = vec![0_u8; 4 << 20];
    let mut requests = 0;
    // Relaxed: a flag alone.
    while !stop.load(Ordering::Relaxed) {
        let len = 1 + random.below(16_384) as usize;
        let at = random.below((copy.len() - len) as u64) as usize;
        match random.below(8) {
            0 => assert_eq!(client.flush(), 0),
            1..4 => {
                copy[at..at + len].fill(random.next_u64() as u8);
                client.write(at as u64, &copy[at..at + len]);
            }
            _ => assert!(client.read(at as u64, len) == copy[at..at + len], "{len} bytes at {at}"),
        }
        requests += 1;
    }
    assert!(client.read(0, copy.len()) == copy);
    requests
}

/// Open descriptors and resident bytes of a server.
fn resources(server: &Server) -> (usize, u64) {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    (descriptors, server.memory("Rss"))
}

/// Rounds of [`exports_come_and_go_under_load_and_nothing_is_lost_or_leaked`] in the gate.
const ROUNDS: u64 = 200;

/// Resident memory may grow by this much between the first tenth of the rounds and the last: the
/// allocator's arenas, and pages of the cache that were not touched before. 10,000 rounds grew it
/// by 400 KiB; half a kilobyte that was lost in each round grew it by 4 MiB.
const RESIDENT_GROWTH_MAX: u64 = 2 << 20;

/// Rings for calls that block at the same time, which the first tenth may not have needed.
const DESCRIPTORS_GROWTH_MAX: usize = 8;

/// `OCTAVO_ROUNDS=10000` makes this the long test of docs/DEVELOPMENT.md.
#[test]
fn exports_come_and_go_under_load_and_nothing_is_lost_or_leaked() {
    let rounds = std::env::var("OCTAVO_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let partition = "cache_mode = \"writeback\"\nmax = \"8MiB\"";
    let (directory, server) = served(&Setup { partition, ..Setup::default() });
    let mut random = random::seeded("exports");
    let mut guests: Vec<Guest> = (0..8)
        .map(|number| Guest { path: directory.disk(&format!("guest{number}"), GUEST_BYTES), version: 0 })
        .collect();
    let stop = AtomicBool::new(false);
    let mut control = ControlClient::connect(&server.control);
    std::thread::scope(|scope| {
        let busy = Random::new(random.next_u64());
        let busy = scope.spawn(|| keep_busy(&server, &stop, busy));
        let mut first = None;
        for round in 0..rounds {
            if round.is_multiple_of(rounds / 10) {
                let (descriptors, resident) = resources(&server);
                println!("round {round}: {descriptors} descriptors, {} KiB resident", resident >> 10);
                // The first tenth fills the cache and the allocator's arenas.
                first = (round > 0).then(|| first.unwrap_or((descriptors, resident)));
            }
            let number = random.below(guests.len() as u64) as usize;
            come_and_go(&server, &mut control, &mut guests[number], round);
        }
        let ((descriptors, resident), last) = (first.unwrap(), resources(&server));
        stop.store(true, Ordering::Relaxed);
        let requests = busy.join().unwrap();
        println!(
            "{rounds} rounds beside {requests} requests: {} descriptors, {} KiB resident",
            last.0,
            last.1 >> 10
        );
        assert!(last.1 <= resident + RESIDENT_GROWTH_MAX, "{resident} bytes, then {}", last.1);
        // A client that was just disconnected may still have its descriptor.
        wait_until(|| "all clients leave".into(), || server.stat()["connections"] == 0);
        let left = resources(&server).0;
        assert!(left <= descriptors + DESCRIPTORS_GROWTH_MAX, "{descriptors} descriptors, then {left}");
    });
}

/// One round: a guest is added, checked, written and removed, with its client gone or still there.
/// Every eighth guest gets a partition of its own.
fn come_and_go(server: &Server, control: &mut ControlClient, guest: &mut Guest, round: u64) {
    let name = format!("guest-{}", round % 5);
    let partition = if round.is_multiple_of(8) { "own" } else { "p" };
    if partition == "own" {
        let values = json!([["cache_mode", "writeback"], ["max", "4MiB"]]);
        control.succeeds(json!({"do": "partition-add", "partition": "own", "values": values}));
    }
    let values = json!([["path", guest.path], ["partition", partition]]);
    control.succeeds(json!({"do": "export-add", "object": name, "values": values}));
    let mut client = Client::connect(&server.nbd, &name).unwrap();
    guest.check(|page| client.read(page * PAGE as u64, PAGE), "served");
    let version = guest.version + 1;
    for page in guest.pages() {
        client.send_write(page, page * PAGE as u64, &guest.page(page, version)).unwrap();
    }
    for _ in guest.pages() {
        assert_eq!(client.reply().unwrap().1, 0);
    }
    guest.version = version;
    // Requests in flight when the export goes: their bytes are those that are there already.
    let stays = round.is_multiple_of(2);
    if stays {
        for page in guest.pages().take(16) {
            client.send_write(page, page * PAGE as u64, &guest.page(page, version)).unwrap();
        }
    } else {
        drop(client);
    }
    control.succeeds(json!({"do": "export-remove", "object": name, "disconnect": true}));
    let file = File::open(&guest.path).unwrap();
    let read = |page| {
        let mut bytes = vec![0; PAGE];
        file.read_exact_at(&mut bytes, page * PAGE as u64).unwrap();
        bytes
    };
    guest.check(read, "in the file");
    if partition == "own" {
        control.succeeds(json!({"do": "partition-remove", "partition": "own"}));
    }
}

#[test]
fn a_partition_that_is_removed_while_exports_are_added_has_either_no_export_or_stays() {
    let (directory, server) = served(&Setup::default());
    let guest = directory.disk("guest", GUEST_BYTES);
    for _ in 0..20 {
        server.ctl_succeed(&["partition", "add", "q", "--max", "4MiB"]);
        let (added, removed) = std::thread::scope(|scope| {
            let request = |request: Value| {
                let mut control = ControlClient::connect(&server.control);
                scope.spawn(move || control.ask(request))
            };
            let values = json!([["path", guest], ["partition", "q"]]);
            let added = request(json!({"do": "export-add", "object": "guest", "values": values}));
            let removed = request(json!({"do": "partition-remove", "partition": "q"}));
            (added.join().unwrap(), removed.join().unwrap())
        });
        match (added.get("ok"), removed.get("ok")) {
            (Some(_), None) => {
                assert!(removed.to_string().contains("is used by its exports"), "{removed}");
                server.ctl_succeed(&["export", "remove", "guest"]);
                server.ctl_succeed(&["partition", "remove", "q"]);
            }
            (None, Some(_)) => assert!(added.to_string().contains("no partition is called"), "{added}"),
            _ => panic!("{added}\n{removed}"),
        }
    }
}

/// The killed server had exports that only `octavo ctl` knew.
#[test]
fn after_kill_9_everything_that_was_flushed_to_an_added_export_is_in_its_file() {
    let directory = Directory::new();
    let (guest, other) = (directory.disk("guest", GUEST_BYTES), directory.disk("other", GUEST_BYTES));
    let mut random = random::seeded("exports-kill");
    let mut flushed = 0_u64;
    for round in 0..5 {
        let mut server = Server::start(&directory, &Setup::default());
        add(&server, "guest", &guest);
        let mut client = Client::connect(&server.nbd, "guest").unwrap();
        let found = client.read(0, 8);
        assert!(u64::from_le_bytes(found.try_into().unwrap()) >= flushed, "round {round}");
        let mut control = ControlClient::connect(&server.control);
        let other = &other;
        std::thread::scope(|scope| {
            // Ends when the server is killed.
            scope.spawn(move || {
                let values = json!([["path", other], ["partition", "p"]]);
                while control.try_ask(json!({"do": "export-add", "object": "o", "values": values})).is_some()
                    && control.try_ask(json!({"do": "export-remove", "object": "o"})).is_some()
                {
                }
            });
            let writer = scope.spawn(move || {
                let mut last = flushed;
                for version in flushed + 1.. {
                    let page = version.to_le_bytes().repeat(PAGE / 8);
                    let sent = (0..4).try_for_each(|at| client.send_write(1, at * 65_536, &page));
                    let sent = sent.and_then(|()| client.send_flush(2));
                    let answered = sent.and_then(|()| (0..5).try_for_each(|_| client.reply().map(drop)));
                    // A flush covers the writes that were answered before it was sent.
                    let again = answered.and_then(|()| client.send_flush(3)).and_then(|()| client.reply());
                    match again {
                        Ok(_) => last = version,
                        Err(_) => break,
                    }
                }
                last
            });
            std::thread::sleep(Duration::from_millis(100 + random.below(300)));
            server.signal("KILL");
            server.wait();
            flushed = writer.join().unwrap();
        });
        let file = std::fs::read(&guest).unwrap();
        for at in 0..4 {
            let word = u64::from_le_bytes(file[at * 65_536..at * 65_536 + 8].try_into().unwrap());
            assert!(word >= flushed, "round {round}: version {word}, but {flushed} was flushed");
        }
    }
    assert!(flushed > 0);
}

/// Clients saw the tables of the image as their disk, and destroyed it when they wrote.
#[test]
fn an_image_of_another_format_is_not_served_as_a_raw_disk_unless_that_is_asked_for() {
    let (directory, server) = served(&Setup::default());
    let image = directory.disk("image", GUEST_BYTES);
    File::options().write(true).open(&image).unwrap().write_all_at(b"QFI\xfb\0\0\0\x03", 0).unwrap();
    let said = refused(&server, "image", &image, "p");
    assert!(said.contains("is a qcow2 image") && said.contains("qemu-img convert -f qcow2"), "{said}");
    let empty = directory.disk("empty", 0);
    assert!(refused(&server, "empty", &empty, "p").contains("is empty"));
    // The file was let go, and is as it was.
    let insisting = ["export", "add", "image", "--path", image.to_str().unwrap(), "--partition", "p"];
    server.ctl_succeed(&[&insisting[..], &["--format", "raw"]].concat());
    assert_eq!(Client::connect(&server.nbd, "image").unwrap().read(0, 4), *b"QFI\xfb");
    let said = server.ctl_fail(1, &[&insisting[..6], &["p", "--format", "qcow2"]].concat());
    assert!(said.contains("raw"), "{said}");

    // The same in the file: for a check, a reload and a start.
    let config = directory.join("octavo.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let other = directory.disk("other", GUEST_BYTES);
    File::options().write(true).open(&other).unwrap().write_all_at(b"vhdxfile", 0).unwrap();
    let section =
        format!("[[export]]\nname = \"other\"\npath = \"{}\"\npartition = \"p\"\n", other.display());
    std::fs::write(&config, text.clone() + &section).unwrap();
    assert!(server.ctl_fail(1, &["reload"]).contains("is a VHDX image"));
    let complaint = octavo_fails(&["serve", "--check", "--config", config.to_str().unwrap()], 2);
    assert!(complaint.contains("is a VHDX image"), "{complaint}");
    std::fs::write(&config, text + &section + "format = \"raw\"\n").unwrap();
    server.ctl_succeed(&["reload"]);
    assert!(Client::connect(&server.nbd, "other").is_ok());
}
