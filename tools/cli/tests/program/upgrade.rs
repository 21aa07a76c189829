//! `octavo serve --take-over`: one server replaces another under the eyes of its clients.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use crate::clients;
use crate::hanging;
use crate::nbd_client::Client;
use crate::random::{self, Random};
use crate::server::{
    Directory, PATIENCE, Server, Setup, octavo, octavo_fails, program, signal, wait_for, wait_until,
};
use crate::vhost::{self, Vmm};

const PAGE: u64 = 4096;

/// Starts a server that takes over from the one in this directory.
fn spawn(directory: &Directory, config: &str) -> Server {
    let mut command = program(&["serve", "--take-over", "--config"]);
    command.arg(directory.join(config));
    Server::spawn(command, directory, directory.join("nbd.sock"), directory.join("control.sock"))
}

/// Replaces a server, which must end with success.
fn replace(directory: &Directory, old: &mut Server) {
    let new = spawn(directory, "octavo.toml");
    assert_eq!(old.wait().code(), Some(0), "{}", new.log());
    *old = new;
    // Its answers say that it serves.
    old.stat();
}

fn misses(server: &Server) -> u64 {
    server.stat()["partitions"][0]["misses"].as_u64().unwrap()
}

fn block(number: u64, version: u64) -> Vec<u8> {
    (0..PAGE).map(|at| (number * 31 + version * 7 + at) as u8).collect()
}

#[test]
fn a_client_reads_and_writes_through_upgrades_and_finds_every_page_in_the_cache() {
    let directory = Directory::new();
    let mut server = Server::start(&directory, &Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    for number in 0..1000 {
        client.write(number * PAGE, &block(number, 0));
    }
    for version in 1..4 {
        assert!(server.dirty_bytes() > 0 || version > 1);
        replace(&directory, &mut server);
        // The connection is the one from the beginning.
        for number in 0..1000 {
            assert_eq!(
                client.read(number * PAGE, PAGE as usize),
                block(number, version - 1),
                "block {number}"
            );
        }
        assert_eq!(misses(&server), 0, "{}", server.log());
        for number in 0..1000 {
            client.write(number * PAGE, &block(number, version));
        }
    }
    assert_eq!(client.flush(), 0);
    let disk = File::open(directory.join("disk")).unwrap();
    let mut bytes = vec![0; PAGE as usize];
    for number in 0..1000 {
        disk.read_exact_at(&mut bytes, number * PAGE).unwrap();
        assert_eq!(bytes, block(number, 3), "block {number}");
    }
}

/// What a guest with requests in flight sees is a trial of its own: `cargo xtask vm`.
#[test]
fn a_vmm_connects_again_after_an_upgrade_and_finds_every_page_in_the_cache() {
    let directory = Directory::new();
    let (disk, socket) = (directory.disk("vm", 1 << 20), directory.join("vm.sock"));
    let listen = vhost::section(&disk, &socket);
    let mut server = Server::start(&directory, &Setup { listen: &listen, ..Setup::default() });
    let mut vmm = Vmm::connect(&socket);
    vmm.read(0, 1 << 20);
    for _ in 0..2 {
        replace(&directory, &mut server);
        // The connection of before has ended with its server.
        vmm = Vmm::connect(&socket);
        vmm.read(0, 1 << 20);
        let stat = server.stat();
        let partition = &stat["partitions"][0];
        assert_eq!((&partition["hits"], &partition["misses"]), (&256.into(), &0.into()), "{}", server.log());
    }
    drop(vmm);
}

/// Writes and reads blocks of its own until told to stop, and checks every byte.
fn work(socket: &Path, first: u64, mut random: Random, is_over: &AtomicBool) -> u64 {
    let mut client = Client::connect(socket, "disk").unwrap();
    let mut versions = [0; 200];
    let mut requests = 0;
    while !is_over.load(SeqCst) {
        let number = random.below(200);
        let at = (first + number) * PAGE;
        match random.below(3) {
            0 => {
                versions[number as usize] += 1;
                client.write(at, &block(number, versions[number as usize]));
            }
            _ if versions[number as usize] > 0 => {
                assert_eq!(client.read(at, PAGE as usize), block(number, versions[number as usize]));
            }
            _ => assert_eq!(client.flush(), 0),
        }
        requests += 1;
    }
    requests
}

/// `OCTAVO_CYCLES` sets the number of upgrades.
#[test]
fn clients_under_load_see_no_error_while_servers_replace_each_other_and_partitions_are_resized() {
    let cycles = std::env::var("OCTAVO_CYCLES").map_or(6, |cycles| cycles.parse().expect("a number"));
    let directory = Directory::new();
    let mut server = Server::start(&directory, &Setup::default());
    let mut random = random::seeded("upgrade");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (socket, is_over) = (directory.join("nbd.sock"), &is_over);
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (socket, random) = (socket.clone(), Random::new(random.next_u64()));
                scope.spawn(move || work(&socket, worker * 200, random, is_over))
            })
            .collect();
        for cycle in 0..cycles {
            replace(&directory, &mut server);
            let max = format!("max={}MiB", 4 + cycle % 5 * 4);
            server.ctl_succeed(&["set", "p", &max]);
        }
        is_over.store(true, SeqCst);
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap() > 0));
    });
}

#[test]
fn a_real_client_verifies_its_writes_across_upgrades() {
    if !clients::present(&["fio"]) {
        return;
    }
    let directory = Directory::new();
    let mut server = Server::start(&directory, &Setup::default());
    let uri = server.uri("disk");
    let mut fio = Command::new("fio")
        .args(["--name=upgrade", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--iodepth=8", "--size=8m"])
        .args(["--verify=crc32c", "--verify_fatal=1", "--time_based", "--runtime=6", "--output-format=terse"])
        .arg(format!("--uri={uri}"))
        .current_dir(directory.join(""))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut upgrades = 0;
    while fio.try_wait().unwrap().is_none() {
        replace(&directory, &mut server);
        upgrades += 1;
    }
    assert!(fio.wait().unwrap().success(), "{}", server.log());
    assert!(upgrades > 1, "{upgrades} upgrades");
}

#[test]
fn a_successor_that_cannot_serve_changes_nothing_for_clients() {
    let directory = Directory::new();
    let server = Server::start(&directory, &Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(0, &block(0, 1));
    let text = std::fs::read_to_string(directory.join("octavo.toml")).unwrap();
    // An export that cannot be opened: the successor finds that out when it has everything.
    let wrong = text.clone() + "[[export]]\nname = \"gone\"\npath = \"/nowhere/at/all\"\npartition = \"p\"\n";
    std::fs::write(directory.join("wrong.toml"), wrong).unwrap();
    let wrong = directory.join("wrong.toml");
    let failed = octavo(&["serve", "--take-over", "--config", wrong.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
    // Not even a broken file keeps the former server from going on with its own configuration.
    std::fs::write(directory.join("octavo.toml"), "broken").unwrap();
    assert_eq!(client.read(0, PAGE as usize), block(0, 1));
    client.write(PAGE, &block(1, 1));
    assert_eq!(client.flush(), 0);
    assert!(server.stat()["uptime_s"].is_u64());
    assert!(Client::connect(&server.nbd, "disk").is_ok());
    std::fs::write(directory.join("octavo.toml"), text).unwrap();
    drop(server);
}

/// A server, and a successor that hangs while it opens the disk. It has everything by then.
struct Hanging {
    directory: Directory,
    old: Server,
    new: Option<Child>,
}

impl Hanging {
    fn new() -> Hanging {
        let directory = Directory::new();
        let old = Server::start(&directory, &Setup::default());
        File::create(directory.join("opens")).unwrap();
        let mut command = program(&["serve", "--take-over", "--config"]);
        command.arg(directory.join("octavo.toml"));
        command.env("LD_PRELOAD", hanging::library(&directory)).env("HANGING", directory.join(""));
        let log = File::options().append(true).open(directory.join("stderr")).unwrap();
        let new = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let hanging = Hanging { directory, old, new: Some(new) };
        // The former server answers in its stead.
        wait_until(
            || hanging.old.log(),
            || {
                let said = hanging.old.ctl(&["stat"]);
                let complaint = String::from_utf8_lossy(&said.stderr).into_owned();
                complaint.contains(&format!("hands over to process {}", hanging.pid()))
            },
        );
        hanging
    }

    fn pid(&self) -> u32 {
        self.new.as_ref().unwrap().id()
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        if let Some(mut new) = self.new.take() {
            let _ = new.kill();
            let _ = new.wait();
        }
    }
}

/// Clients of a server whose successor was stopped waited for ten minutes.
#[test]
fn a_successor_that_is_stopped_is_killed_and_the_former_server_serves_again() {
    let mut hanging = Hanging::new();
    signal(hanging.pid(), "STOP");
    let mut new = hanging.new.take().unwrap();
    let status = wait_for(|| hanging.old.log(), || new.try_wait().unwrap());
    assert_eq!(status.signal(), Some(9), "{}", hanging.old.log());
    wait_until(|| hanging.old.log(), || hanging.old.ctl(&["stat"]).status.success());
    assert!(hanging.old.log().contains("makes no progress"), "{}", hanging.old.log());
    let mut client = Client::connect(&hanging.old.nbd, "disk").unwrap();
    client.write(0, &block(0, 1));
    // The next one takes over.
    std::fs::remove_file(hanging.directory.join("opens")).unwrap();
    let Hanging { directory, old, .. } = &mut hanging;
    replace(directory, old);
    assert_eq!(client.read(0, PAGE as usize), block(0, 1));
}

/// It left no server, and the successor that woke up later must not serve.
#[test]
fn sigterm_ends_a_server_that_hands_over_in_order() {
    let mut hanging = Hanging::new();
    hanging.old.end("TERM", 0);
    std::fs::remove_file(hanging.directory.join("opens")).unwrap();
    let mut new = hanging.new.take().unwrap();
    let status = wait_for(|| hanging.old.log(), || new.try_wait().unwrap());
    assert_eq!(status.code(), Some(1), "{}", hanging.old.log());
    assert!(Client::connect(&hanging.old.nbd, "disk").is_err());
}

#[test]
fn a_server_without_a_predecessor_says_so() {
    let directory = Directory::new();
    Server::start(&directory, &Setup::default()).stop();
    let config = directory.join("octavo.toml");
    let complaint = octavo_fails(&["serve", "--take-over", "--config", config.to_str().unwrap()], 1);
    assert!(complaint.contains("there is no running server to take over from"), "{complaint}");
}

/// Such servers could not be upgraded at all: hosts whose disks come and go by `octavo ctl`.
#[test]
fn what_only_ctl_has_added_is_served_by_the_successor_too() {
    let directory = Directory::new();
    let mut server = Server::start(&directory, &Setup::default());
    let more = directory.disk("more", 1 << 20);
    let path = more.to_str().unwrap();
    server.ctl_succeed(&["partition", "add", "extra", "--max", "8MiB"]);
    server.ctl_succeed(&["export", "add", "more", "--path", path, "--partition", "extra"]);
    let mut client = Client::connect(&server.nbd, "more").unwrap();
    (0..100).for_each(|number| client.write(number * PAGE, &block(number, 1)));
    for _ in 0..2 {
        replace(&directory, &mut server);
        for number in 0..100 {
            assert_eq!(client.read(number * PAGE, PAGE as usize), block(number, 1), "block {number}");
        }
        let stat = server.stat();
        let extra = &stat["partitions"][1];
        assert_eq!((&extra["name"], &extra["misses"]), (&"extra".into(), &0.into()), "{}", server.log());
        // A reload knows that the file does not have it, and keeps it.
        let said = server.ctl_succeed(&["reload"]);
        assert!(said.contains("`octavo ctl` added it"), "{said}");
    }
    // A successor that cannot serve it leaves the former server in place.
    let config = directory.join("octavo.toml");
    let third = directory.disk("third", 1 << 20);
    server.ctl_succeed(&["export", "add", "third", "--path", third.to_str().unwrap(), "--partition", "p"]);
    let (text, wrong) = (std::fs::read_to_string(&config).unwrap(), directory.join("wrong.toml"));
    std::fs::write(&wrong, text.replace("\"p\"", "\"q\"")).unwrap();
    let complaint = octavo_fails(&["serve", "--take-over", "--config", wrong.to_str().unwrap()], 1);
    assert!(complaint.contains("\"third\", which `octavo ctl` had added, is not served"), "{complaint}");
    // The former server began to serve while the dying successor had the disk, and ended, too.
    drop(Client::connect(&server.nbd, "third").unwrap());
    assert_eq!(client.read(0, PAGE as usize), block(0, 1));
    // The file has it now.
    let export = format!(
        "[[partition]]\nname = \"extra\"\n[[export]]\nname = \"more\"\npath = \"{path}\"\npartition = \"extra\"\n"
    );
    let text = std::fs::read_to_string(&config).unwrap() + &export;
    std::fs::write(&config, text).unwrap();
    replace(&directory, &mut server);
    assert_eq!(client.read(PAGE, PAGE as usize), block(1, 1));
    let said = server.ctl_succeed(&["reload"]);
    assert!(said.contains("\"third\"") && !said.contains("\"more\""), "{said}");
}

/// A file that was removed while it is served can be opened by nobody: not by the successor, and
/// not by the former server when the successor has failed.
#[test]
fn a_server_whose_file_is_gone_or_another_one_is_not_replaced() {
    let directory = Directory::new();
    let server = Server::start(&directory, &Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(0, &block(0, 1));
    let (disk, hidden) = (directory.join("disk"), directory.join("hidden"));
    std::fs::rename(&disk, &hidden).unwrap();
    let config = directory.join("octavo.toml");
    let complaint = octavo_fails(&["serve", "--take-over", "--config", config.to_str().unwrap()], 2);
    assert!(complaint.contains("does not exist"), "{complaint}");
    std::fs::copy(&hidden, &disk).unwrap();
    let complaint = octavo_fails(&["serve", "--take-over", "--config", config.to_str().unwrap()], 1);
    assert!(complaint.contains("is another file now than the one it serves"), "{complaint}");
    assert_eq!(client.read(0, PAGE as usize), block(0, 1));
    std::fs::rename(&hidden, &disk).unwrap();
    let mut server = server;
    replace(&directory, &mut server);
    assert_eq!(client.read(0, PAGE as usize), block(0, 1));
}

/// A killed process may leave either server; whatever is left, no flushed byte is lost.
#[test]
fn no_flushed_byte_is_lost_if_either_server_is_killed_during_an_upgrade() {
    let directory = Directory::new();
    let mut random = random::seeded("killed upgrade");
    let disk = directory.disk("disk", 16 << 20);
    for round in 0..8u64 {
        let mut old = Server::start(&directory, &Setup::default());
        let mut client = Client::connect(&old.nbd, "disk").unwrap();
        for number in 0..1500 {
            client.write(number * PAGE, &block(number, round));
        }
        assert_eq!(client.flush(), 0);
        let config = directory.join("octavo.toml");
        let log = File::options().append(true).open(directory.join("stderr")).unwrap();
        let mut new = program(&["serve", "--take-over", "--config"])
            .arg(config)
            .stdout(std::process::Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(random.below(60)));
        match round % 2 {
            0 => old.signal("KILL"),
            _ => new.kill().unwrap(),
        }
        if round % 2 == 0 {
            old.wait();
            // The successor serves, or has ended because it got nothing.
            wait_until(
                || "the successor neither serves nor ends".into(),
                || new.try_wait().unwrap().is_some() || Client::connect(&old.nbd, "disk").is_ok(),
            );
        } else {
            new.wait().unwrap();
            // A successor that was quicker than the kill has ended the former server.
            wait_until(|| old.log(), || !old_lives(&old) || old.ctl(&["stat"]).status.success());
            if old_lives(&old) {
                for number in 0..1500 {
                    assert_eq!(client.read(number * PAGE, PAGE as usize), block(number, round));
                }
                old.signal("KILL");
            }
            old.wait();
        }
        let _ = new.kill();
        let _ = new.wait();
        let file = File::open(&disk).unwrap();
        let mut bytes = vec![0; PAGE as usize];
        for number in 0..1500 {
            file.read_exact_at(&mut bytes, number * PAGE).unwrap();
            assert_eq!(bytes, block(number, round), "round {round}, block {number}");
        }
    }
}

/// Resident bytes of a process.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let rss = text.lines().find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB"));
    rss.map_or(0, |kib| kib.parse::<u64>().unwrap() << 10)
}

/// Bytes of the file of pages that a process has open.
fn pages_of(pid: u32) -> Option<u64> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.into_iter().find_map(|descriptor| {
        let link = std::fs::read_link(descriptor.path()).ok()?;
        let is_pages = link.to_string_lossy().contains("octavo-pages");
        is_pages
            .then(|| std::fs::metadata(descriptor.path()).ok())
            .flatten()
            .map(|found| found.blocks() * 512)
    })
}

#[test]
fn both_servers_and_the_pages_between_them_stay_within_the_bound_and_a_chunk() {
    let directory = Directory::new();
    directory.disk("disk", 128 << 20);
    let setup = Setup { memory_max: "96MiB", ..Setup::default() };
    let mut old = Server::start(&directory, &setup);
    let mut client = Client::connect(&old.nbd, "disk").unwrap();
    for at in 0..128 {
        client.write(at << 20, &vec![at as u8; 1 << 20]);
    }
    let alone = resident(old.pid());
    assert!(alone > 80 << 20, "{alone} bytes");
    let mut command = program(&["serve", "--take-over", "--config"]);
    command.arg(directory.join("octavo.toml")).stdout(std::process::Stdio::null());
    let log = File::options().append(true).open(directory.join("stderr")).unwrap();
    let mut new = command.stderr(log).spawn().unwrap();
    let (mut most, mut with_pages, begun) = (0, 0, std::time::Instant::now());
    while old_lives(&old) {
        assert!(begun.elapsed() < PATIENCE, "{}", old.log());
        // Against the direction in which pages move, so that none is counted twice.
        let (in_new, in_file) = (resident(new.id()), pages_of(old.pid()).or_else(|| pages_of(new.id())));
        most = most.max(in_new + in_file.unwrap_or(0) + resident(old.pid()));
        with_pages += u64::from(in_file.is_some());
    }
    old.wait();
    println!("{} MiB alone, at most {} MiB together, {with_pages} looks", alone >> 20, most >> 20);
    // A program without a cache takes less than 24 MiB, and the second one has the buffers that are
    // set aside from the beginning.
    assert!(most <= (96 << 20) + (2 << 20) + 2 * (24 << 20), "{} MiB", most >> 20);
    assert_eq!(client.read(127 << 20, 4096), vec![127; 4096]);
    drop(client);
    new.kill().unwrap();
    new.wait().unwrap();
}

fn old_lives(old: &Server) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", old.pid())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}
