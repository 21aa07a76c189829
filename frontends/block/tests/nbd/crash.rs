//! A power failure under the server: writes that a flush or FUA has made durable are on the disk,
//! whatever was in flight. The simulated disk loses writes that were not synced. A second disk
//! ignores syncs, which shows that the test notices a loss.

use crate::client::*;
use crate::random::{Random, seed};
use crate::rig::Directory;
use octavo::disk::{SimDisk, SimOptions};
use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig};
use octavo_block::{Address, Export, Limits, Server};
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

const SECTOR: usize = 512;
const SECTORS: u64 = 512;

/// The versions of a sector. A version is the number of a write in the whole run; version 0 is the
/// zeros of the start.
#[derive(Clone, Copy, Default)]
struct Sector {
    sent: u64,
    replied: u64,
    durable: u64,
}

struct Flight {
    peer: usize,
    sectors: Range<u64>,
    version: u64,
    /// A FUA write, whose bytes are durable when its reply arrives.
    durable: bool,
    /// Of a flush: the replied version of every sector when the flush was sent.
    promise: Option<Vec<u64>>,
}

/// Returns the bytes of a sector: its version, repeated.
fn bytes(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(SECTOR / 8)
}

struct Round {
    random: Random,
    peers: Vec<Client>,
    sectors: Vec<Sector>,
    flights: HashMap<u64, Flight>,
    cookies: u64,
}

impl Round {
    fn send_write(&mut self) {
        let len = if self.random.below(3) == 0 { 1 + self.random.below(40) } else { 8 };
        let start = self.random.below(SECTORS - len);
        let start = if len == 8 { start - start % 8 } else { start };
        let sectors = start..start + len;
        let overlaps = |f: &Flight| f.sectors.start < sectors.end && sectors.start < f.sectors.end;
        if self.flights.len() > 30 || self.flights.values().any(overlaps) {
            return self.receive();
        }
        self.cookies += 1;
        let version = self.cookies;
        self.sectors[start as usize..sectors.end as usize].iter_mut().for_each(|s| s.sent = version);
        let durable = self.random.below(8) == 0;
        let peer = self.random.below(self.peers.len() as u64) as usize;
        let payload = bytes(version).repeat(len as usize);
        self.peers[peer].write(if durable { FUA } else { 0 }, version, start * SECTOR as u64, &payload);
        self.flights.insert(version, Flight { peer, sectors, version, durable, promise: None });
    }

    fn send_flush(&mut self) {
        self.cookies += 1;
        let peer = self.random.below(self.peers.len() as u64) as usize;
        self.peers[peer].request(0, FLUSH, self.cookies, 0, 0);
        // A flush covers every write that was replied to, on any connection, before the flush was
        // sent.
        let promise = Some(self.sectors.iter().map(|sector| sector.replied).collect());
        let flight = Flight { peer, sectors: 0..0, version: 0, durable: false, promise };
        self.flights.insert(self.cookies, flight);
    }

    /// Receives one reply, from a connection with a request in flight.
    fn receive(&mut self) {
        let Some(peer) = self.flights.values().map(|flight| flight.peer).min() else { return };
        let (error, cookie) = self.peers[peer].simple();
        assert_eq!(error, 0);
        let flight = self.flights.remove(&cookie).expect("a cookie in flight");
        for sector in &mut self.sectors[flight.sectors.start as usize..flight.sectors.end as usize] {
            sector.replied = flight.version;
            if flight.durable {
                sector.durable = flight.version;
            }
        }
        for (sector, promised) in self.sectors.iter_mut().zip(flight.promise.into_iter().flatten()) {
            sector.durable = sector.durable.max(promised);
        }
    }

    /// Returns a line for every sector of an image that breaks a promise.
    fn broken(&self, image: &[u8]) -> Vec<String> {
        let wrong = |(number, (found, sector)): (usize, (&[u8], &Sector))| {
            let version = u64::from_le_bytes(found[..8].try_into().unwrap());
            let whole = found == bytes(version);
            let kept = whole && (sector.durable..=sector.sent).contains(&version);
            let Sector { sent, durable, .. } = sector;
            (!kept).then(|| {
                format!("sector {number}: version {version} (whole: {whole}), not {durable}..={sent}")
            })
        };
        image.chunks(SECTOR).zip(&self.sectors).enumerate().filter_map(wrong).collect()
    }
}

/// Runs a server until the power fails. Returns a line for every sector that breaks a promise.
fn round(seed: u64, cache_mode: CacheMode, ignores_syncs: bool) -> Vec<String> {
    let directory = Directory::new();
    let disk = SimDisk::new(SimOptions { seed, ignores_syncs, ..SimOptions::default() });
    let config = CacheConfig {
        memory_max_bytes: 4 << 20,
        segment_bytes: 4096 * octavo::WAYS as u64,
        ..CacheConfig::default()
    };
    let cache = Cache::new(config).unwrap();
    // A partition of less than half of the disk, so that pages are evicted and read again.
    let max_bytes = Some(100 << 10);
    let partition =
        cache.partition(PartitionConfig { cache_mode, max_bytes, ..PartitionConfig::new("p") }).unwrap();
    let object = partition.open(disk.store("disk", SECTORS * SECTOR as u64), "disk").unwrap();
    let export =
        Export { name: "disk".into(), description: String::new(), object, read_only: false, is_listed: true };
    let socket = directory.0.join("socket");
    let listen = [Address::Unix(socket.clone())];
    let server = Server::start(cache.clone(), vec![export], &listen, Limits::default()).unwrap();
    let mut peers: Vec<Client> = (0..2).map(|_| Client::unix(&socket)).collect();
    for peer in &mut peers {
        peer.enter("disk", false);
    }
    let mut round = Round {
        random: Random::new(seed),
        peers,
        sectors: vec![Sector::default(); SECTORS as usize],
        flights: HashMap::new(),
        cookies: 0,
    };
    for _ in 0..200 + round.random.below(200) {
        match round.random.below(20) {
            0 => round.send_flush(),
            1..8 => round.receive(),
            _ => round.send_write(),
        }
    }
    disk.crash();
    let broken = round.broken(&disk.image("disk"));
    drop(round);
    server.shutdown(Duration::from_secs(5));
    for object in partition.objects() {
        object.abandon();
    }
    broken
}

#[test]
fn flushed_writes_survive_a_power_failure() {
    let seed = seed("flushed_writes_survive_a_power_failure");
    for number in 0..20 {
        for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
            let broken = round(seed.wrapping_add(number), mode, false);
            assert!(broken.is_empty(), "round {number}, {mode:?}, seed {seed}: {broken:#?}");
        }
    }
}

#[test]
fn the_test_notices_a_disk_that_ignores_syncs() {
    let seed = seed("the_test_notices_a_disk_that_ignores_syncs");
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        let noticed = (0..5).any(|number| !round(seed.wrapping_add(number), mode, true).is_empty());
        assert!(noticed, "{mode:?}, seed {seed}: five rounds noticed no lost write");
    }
}
