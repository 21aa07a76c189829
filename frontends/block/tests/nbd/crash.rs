//! A power failure under the server: what a flush or FUA has promised is on the disk, whatever was
//! in flight. On a simulated disk, which loses what was not synced; and on one that lies about its
//! syncs, so that the test is known to notice.

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

/// What is known of a sector: versions count the writes of the whole run, and 0 is the zeros of the
/// start.
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
    /// A FUA write: its bytes are durable when it is replied to.
    durable: bool,
    /// A flush: what every sector had when it was sent.
    promise: Option<Vec<u64>>,
}

/// The bytes of every sector of a write: its version, over and over.
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
        // Replied to on any connection before the flush is sent: that is what several connections may rely
        // on.
        let promise = Some(self.sectors.iter().map(|sector| sector.replied).collect());
        let flight = Flight { peer, sectors: 0..0, version: 0, durable: false, promise };
        self.flights.insert(self.cookies, flight);
    }

    /// Takes one reply, from a connection that owes one.
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

    /// The sectors of an image that break a promise.
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

/// Runs a server until the power fails. Returns what is broken then.
fn round(seed: u64, cache_mode: CacheMode, ignores_syncs: bool) -> Vec<String> {
    let directory = Directory::new();
    let disk = SimDisk::new(SimOptions { seed, ignores_syncs, ..SimOptions::default() });
    let config = CacheConfig {
        memory_max_bytes: 4 << 20,
        segment_bytes: 4096 * octavo::WAYS as u64,
        ..CacheConfig::default()
    };
    let cache = Cache::new(config).unwrap();
    // A quarter of the disk: pages leave, and come back.
    let max_bytes = Some(100 << 10);
    let partition =
        cache.partition(PartitionConfig { cache_mode, max_bytes, ..PartitionConfig::new("p") }).unwrap();
    let object = partition.open(disk.store("disk", SECTORS * SECTOR as u64), "disk").unwrap();
    let export = Export { name: "disk".into(), description: String::new(), object, read_only: false };
    let socket = directory.0.join("socket");
    let listen = [Address::Unix(socket.clone())];
    let server = Server::start(cache.clone(), vec![export], &listen, Limits::default()).unwrap();
    let mut peers: Vec<Client> = (0..2).map(|_| Client::unix(&socket)).collect();
    for peer in &mut peers {
        peer.enter("disk", false);
    }
    let mut round = Round {
        random: Random(seed),
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
fn what_was_flushed_survives_a_power_failure() {
    let seed = seed("what_was_flushed_survives_a_power_failure");
    for number in 0..20 {
        for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
            let broken = round(seed.wrapping_add(number), mode, false);
            assert!(broken.is_empty(), "round {number}, {mode:?}, seed {seed}: {broken:#?}");
        }
    }
}

#[test]
fn a_disk_that_ignores_syncs_is_found_out() {
    let seed = seed("a_disk_that_ignores_syncs_is_found_out");
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        let noticed = (0..5).any(|number| !round(seed.wrapping_add(number), mode, true).is_empty());
        assert!(noticed, "{mode:?}, seed {seed}: nothing was noticed in five rounds");
    }
}
