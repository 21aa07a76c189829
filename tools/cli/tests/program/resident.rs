//! The first promise of the README: `memory_max` limits the process. The tests ask the kernel, not
//! the server: they read `Rss` in `/proc/PID/smaps_rollup` while hundreds of clients connect,
//! request much, and disconnect.
//!
//! The charge did not show this bug: heap buffers fragmented in glibc's arenas, and the resident
//! memory of a 64 MiB cache reached 1.7 GiB within 16,000 connections.
//!
//! `cargo xtask resident` runs these tests at full length: `OCTAVO_RESIDENT_CONNECTIONS` says how
//! many connections each server gets.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clients::{find, present};
use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup};

/// Resident bytes that a server may have beside `memory_max`: code, stacks, the allocator's rest.
const BESIDE: u64 = 16 << 20;

/// And those for each connected client.
const A_CLIENT: u64 = 64 << 10;

const CLIENTS: u64 = 8;
const MEMORY_MAX: u64 = 64 << 20;
const DISK: u64 = 256 << 20;

/// Connections that each server gets in all.
fn connections() -> u64 {
    match std::env::var("OCTAVO_RESIDENT_CONNECTIONS") {
        Ok(number) => number.parse().expect("a number of connections"),
        Err(_) => 2_000,
    }
}

/// Runs `act` on some threads at a time until it has been called `count` times, and returns the
/// most resident bytes that the server had meanwhile.
fn most_resident(server: &Server, count: u64, act: impl Fn(u64) + Sync) -> u64 {
    let (next, done) = (AtomicU64::new(0), AtomicBool::new(false));
    // Relaxed, all: tickets and a flag; the scope's end orders the rest.
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(server.memory("Rss"));
                std::thread::sleep(Duration::from_millis(20));
            }
            most.max(server.memory("Rss"))
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return;
                        }
                        act(number);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        // Stop the watch before a client's panic continues: the test would wait for it forever.
        done.store(true, Ordering::Relaxed);
        let most = watch.join().unwrap();
        ended.into_iter().for_each(|client| client.unwrap());
        most
    })
}

fn assert_bounded(what: &str, most: u64, memory_max: u64, clients: u64) {
    let bound = memory_max + BESIDE + clients * A_CLIENT;
    println!("{what}: at most {} KiB resident of {} KiB allowed", most >> 10, bound >> 10);
    assert!(most <= bound, "{what}: {most} bytes were resident, {bound} are allowed");
}

/// One connection of a client that reads eight times and takes its replies.
fn well_behaved(nbd: &Path, number: u64) {
    let Ok(mut client) = Client::connect(nbd, "disk") else { return };
    for read in 0..8 {
        let offset = (number * 8 + read) * (256 << 10) % DISK;
        assert!(client.read(offset, 256 << 10).iter().all(|byte| *byte == 0 || *byte == 7));
    }
}

/// One connection of a client that requests far more than it reads, and disconnects.
fn greedy(nbd: &Path, number: u64) {
    let Ok(mut client) = Client::connect(nbd, "disk") else { return };
    for read in 0..1 + number % 4 {
        let _ = client.send_read(read, number % 8 * (32 << 20), 32 << 20);
    }
    client.take_some(((number % 5) * 100_000) as usize);
}

/// One connection that writes a few requests of one length, and may disconnect in the middle.
fn writer(nbd: &Path, number: u64) {
    let Ok(mut client) = Client::connect(nbd, "disk") else { return };
    let data = vec![7; 4096 * (1 + number as usize % 100)];
    client.write(number * (1 << 20) % (DISK - (1 << 20)), &data);
    let _ = client.send_write(9, 0, &data);
}

/// One connection of a client that does not speak NBD.
fn junk(nbd: &Path, number: u64) {
    let Ok(mut stream) = UnixStream::connect(nbd) else { return };
    let _ = stream.write_all(&vec![number as u8; number as usize * 37 % 9000]);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
    let _ = stream.read(&mut [0; 64]);
}

/// A control file system's lines of the configuration, if there is to be one. Its session's buffer
/// is what teaches glibc to keep large blocks in its arenas.
fn control_fs(directory: &Directory, is_there: bool) -> String {
    match is_there {
        true => format!("metrics = \"127.0.0.1:0\"\n[control]\nfs = \"{}\"", directory.join("fs").display()),
        false => String::new(),
    }
}

/// Checks the resident memory of a server while clients act on it.
fn assert_bounded_while(what: &str, has_control_fs: bool, act: impl Fn(&Server, u64) + Sync) {
    let directory = Directory::new();
    let listen = &control_fs(&directory, has_control_fs);
    let setup = Setup { memory_max: "64MiB", disk_bytes: DISK, listen, ..Setup::default() };
    let server = Server::start(&directory, &setup);
    let most = most_resident(&server, connections(), |number| act(&server, number));
    assert_bounded(what, most, MEMORY_MAX, CLIENTS);
}

#[test]
fn clients_that_ask_for_much_and_leave_do_not_grow_the_server() {
    assert_bounded_while("greedy clients", false, |server, number| greedy(&server.nbd, number));
}

#[test]
fn well_behaved_clients_do_not_grow_a_server_with_a_control_file_system() {
    let what = "well-behaved clients, control.fs";
    assert_bounded_while(what, true, |server, number| well_behaved(&server.nbd, number));
}

#[test]
fn mixed_clients_do_not_grow_a_server_with_a_control_file_system_and_metrics() {
    assert_bounded_while("mixed clients, control.fs, metrics", true, |server, number| match number % 16 {
        0..5 => greedy(&server.nbd, number),
        5..9 => well_behaved(&server.nbd, number),
        9..12 => writer(&server.nbd, number),
        12..14 => junk(&server.nbd, number),
        14 => drop(UnixStream::connect(&server.nbd)),
        _ => {
            let mut stream = std::net::TcpStream::connect(server.metrics_address()).unwrap();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
}

/// A hundred and sixty tenants, and fio with sixteen clients of 32 requests of 256 KiB each.
#[test]
fn many_partitions_and_deep_queues_stay_within_the_bound() {
    if !present(&["fio"]) {
        return;
    }
    let memory_max = 512 << 20;
    for has_control_fs in [false, true] {
        let directory = Directory::new();
        let partitions: String =
            (0..160).map(|number| format!("[[partition]]\nname = \"p{number}\"\n")).collect();
        let more = format!("{}\n{partitions}", control_fs(&directory, has_control_fs));
        let setup = Setup { memory_max: "512MiB", disk_bytes: DISK, listen: &more, ..Setup::default() };
        let server = Server::start(&directory, &setup);
        let runs = if connections() > 2_000 { 3 } else { 1 };
        let fio = find("fio").expect("present");
        let most = most_resident(&server, runs, |_| {
            let output = Command::new(&fio)
                .args(["--name=read", "--ioengine=nbd", "--rw=randread", "--bs=256k", "--iodepth=32"])
                .args(["--numjobs=16", "--thread", "--size=256m", "--time_based", "--runtime=4"])
                .arg(format!("--uri={}", server.uri("disk")))
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        });
        let what = if has_control_fs { "160 partitions, fio, control.fs" } else { "160 partitions, fio" };
        assert_bounded(what, most, memory_max, 16 * runs);
    }
}
