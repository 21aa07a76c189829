//! The test kills a server ten times under load. Its guest loses no request.

use crate::vmm::{Descriptor, Guest, PATIENCE, Vmm, WRITE};
use octavo::disk::{OpenOptions, Store};
use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_block::{Export, Limits, Server, VhostSettings};
use octavo_random::Random;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Names the directory of the server to the process that is one.
const DIRECTORY: &str = "OCTAVO_TEST_VHOST_DIRECTORY";

/// The disk, in blocks of 4 KiB.
const BLOCKS: u64 = 4096;
const BLOCK: usize = 4096;
/// Requests in flight: each has three descriptors.
const SLOTS: u16 = 20;
const KILLS: usize = 10;
/// Requests between two kills, about.
const REQUESTS: u32 = 400;

/// The process that the test below kills; not a test itself.
#[test]
#[ignore = "a server for another test"]
fn server() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    // Smaller than the disk, so that misses and write-backs are in flight, too.
    let cache = Cache::new(CacheConfig { memory_max_bytes: 12 << 20, ..CacheConfig::default() }).unwrap();
    let partition = cache.partition(PartitionConfig::new("vm")).unwrap();
    let store = Store::open(&directory.join("disk"), &OpenOptions::default()).unwrap();
    let object = partition.open(store, "disk").unwrap();
    let (name, description) = ("disk".to_owned(), String::new());
    let export = Export { name, description, object, read_only: false, is_listed: false };
    let server = Server::start(cache, vec![export], &[], Limits::default()).unwrap();
    server.attach("disk", &directory.join("vm.sock"), VhostSettings::default()).unwrap();
    // Until the test kills this process, or ends.
    let _ = std::io::stdin().read(&mut [0]);
}

struct Process(Child);

impl Process {
    fn start(directory: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "kill::server", "--ignored", "--nocapture"]).env(DIRECTORY, directory);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Process(command.spawn().unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects as soon as the server listens.
fn connect(guest: &mut Guest, socket: &Path) -> Vmm {
    let start = Instant::now();
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(start.elapsed() < PATIENCE, "the server does not listen");
        std::thread::sleep(Duration::from_millis(1));
    }
    guest.connect(socket)
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Sent {
    block: u64,
    /// The number of the write, or `None` for a read.
    version: Option<u64>,
}

/// The guest's view: the versions of blocks, and its requests in flight.
struct Load {
    random: Random,
    versions: Vec<u64>,
    sent: Vec<Option<Sent>>,
    used: u16,
    last: u64,
    ended: u32,
}

/// Where a slot's data lies.
fn data(slot: u16) -> u64 {
    0x8_0000 + BLOCK as u64 * u64::from(slot)
}

fn bytes(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK / 8)
}

impl Load {
    /// Makes a request available, if a slot is free.
    fn send(&mut self, guest: &Guest) {
        let Some(slot) = self.sent.iter().position(Option::is_none) else { return };
        let block = self.random.below(BLOCKS);
        if self.sent.iter().flatten().any(|other| other.block == block) {
            return;
        }
        let (slot, is_write) = (slot as u16, self.random.below(2) == 0);
        let data = Descriptor {
            at: data(slot),
            len: BLOCK as u32,
            flags: if is_write { 0 } else { WRITE },
            next: 0,
        };
        self.last += 1;
        if is_write {
            guest.put(data.at as usize, &bytes(self.last));
        }
        guest.request(3 * slot, u32::from(is_write), 8 * block, data);
        self.sent[usize::from(slot)] = Some(Sent { block, version: is_write.then_some(self.last) });
        guest.offer(&[3 * slot]);
    }

    /// Takes what has ended, and checks it.
    fn receive(&mut self, guest: &Guest) {
        let now = guest.used();
        while self.used != now {
            let slot = guest.used_head(self.used) / 3;
            self.used = self.used.wrapping_add(1);
            let sent = self.sent[usize::from(slot)].take();
            let Sent { block, version } = sent.expect("a request ends once");
            assert_eq!(guest.status(3 * slot), 0);
            match version {
                Some(version) => self.versions[block as usize] = version,
                None => {
                    let found = guest.get(data(slot) as usize, BLOCK);
                    let expected = bytes(self.versions[block as usize]);
                    assert!(found == expected, "block {block} is not as written");
                }
            }
            self.ended += 1;
        }
    }
}

#[test]
fn a_guest_loses_no_request_when_its_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, socket) = (directory.path().join("disk"), directory.path().join("vm.sock"));
    std::fs::File::create(&disk).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
    let mut guest = Guest::new();
    let mut load = Load {
        random: Random::new(1),
        versions: vec![0; BLOCKS as usize],
        sent: vec![None; usize::from(SLOTS)],
        used: 0,
        last: 0,
        ended: 0,
    };
    for kill in 0..=KILLS {
        let server = Process::start(directory.path());
        let _vmm = connect(&mut guest, &socket);
        let start = Instant::now();
        let until = load.ended + REQUESTS + load.random.below(u64::from(REQUESTS)) as u32;
        let is_last = kill == KILLS;
        while load.ended < until || is_last && load.sent.iter().any(Option::is_some) {
            if !is_last || load.ended < until {
                load.send(&guest);
            }
            load.receive(&guest);
            assert!(
                start.elapsed() < PATIENCE,
                "after {} requests and {kill} kills nothing ends",
                load.ended
            );
        }
        // With requests in flight, but for the last time.
        server.kill();
    }
    let image = std::fs::read(&disk).unwrap();
    for (block, version) in load.versions.iter().enumerate() {
        assert!(image[block * BLOCK..][..BLOCK] == bytes(*version), "block {block} is not as written");
    }
}
