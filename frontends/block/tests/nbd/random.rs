//! Random operations on several connections with deep queues, compared with a twin: a `Vec<u8>`.
//!
//! Two requests in flight never overlap if one of them writes, because the protocol promises no
//! order then. So every byte that a client reads has exactly one correct value.

use crate::certificates::{Authority, Use};
use crate::client::*;
use crate::rig::{Plan, Rig};
use octavo_block::Limits;
pub use octavo_random::Random;
use std::collections::HashMap;
use std::ops::Range;

/// Returns a new seed, or that of `OCTAVO_SEED`, which repeats a run. Prints the seed.
pub fn seed(test: &str) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("OCTAVO_SEED").map_or(now, |seed| seed.parse().unwrap());
    println!("{test}: OCTAVO_SEED={seed}");
    seed
}

const LEN: u64 = 1 << 20;

struct Flight {
    range: Range<u64>,
    /// The bytes that a read has received. None for other requests.
    data: Option<Vec<u8>>,
    received: u64,
}

struct Peer {
    client: Client,
    structured: bool,
    flights: HashMap<u64, Flight>,
}

impl Peer {
    /// Receives one message. Returns the request that the message ends, if it ends one.
    fn receive(&mut self) -> Option<Flight> {
        match self.client.reply() {
            Reply::Simple { error, cookie } => {
                assert_eq!(error, 0);
                let mut flight = self.flights.remove(&cookie).expect("a cookie in flight");
                if let Some(data) = &mut flight.data {
                    assert!(!self.structured);
                    *data = self.client.receive(data.len());
                }
                Some(flight)
            }
            Reply::Chunk(chunk) => {
                assert!(chunk.kind <= 1, "no errors");
                let flight = self.flights.get_mut(&chunk.cookie).expect("a cookie in flight");
                if chunk.kind == 1 {
                    let (at, bytes) = ((chunk.offset() - flight.range.start) as usize, &chunk.payload[8..]);
                    flight.data.as_mut().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
                    flight.received += bytes.len() as u64;
                }
                let flight = chunk.done.then(|| self.flights.remove(&chunk.cookie).unwrap())?;
                assert_eq!(flight.received, flight.range.end - flight.range.start);
                Some(flight)
            }
        }
    }
}

fn run(seed: u64, limits: Limits, operations: u64, authority: Option<&Authority>) {
    let mut random = Random::new(seed);
    let tls = authority.map(|authority| authority.tls(true));
    let settings = authority.map(|authority| authority.client(Some(&authority.sign(Use::Client))));
    let rig = Rig::new(Plan { lens: vec![LEN], limits, tls, ..Plan::default() });
    let mut twin = rig.image(0);
    let mut peers: Vec<Peer> = (0..4)
        .map(|i| Peer {
            client: match (i, &settings) {
                (0, None) => rig.tcp_client(),
                (0 | 1, Some(settings)) => rig.tcp_client().start_tls(settings).unwrap(),
                (2, Some(settings)) => rig.client().start_tls(settings).unwrap(),
                _ => rig.client(),
            },
            structured: i % 2 == 0,
            flights: HashMap::new(),
        })
        .collect();
    for peer in &mut peers {
        peer.client.enter("", peer.structured);
    }
    let check = |flight: Flight, twin: &[u8]| {
        if let Some(data) = flight.data {
            let range = flight.range.start as usize..flight.range.end as usize;
            assert!(data == twin[range.clone()], "{range:?} differs (seed {seed})");
        }
    };
    for cookie in 0..operations {
        let len = match random.below(8) {
            0 => 1 + random.below(100_000),
            1..4 => 4096,
            _ => 1 + random.below(10_000),
        };
        let start = random.below(LEN - len);
        let range = start..start + len;
        let reads = random.below(2) == 0;
        // Waits for requests that must not overlap this one. A read's data is compared with the
        // twin when the read ends, so the twin must not change before.
        let conflicts = |flight: &Flight| {
            let overlap = flight.range.start < range.end && range.start < flight.range.end;
            overlap && !(reads && flight.data.is_some())
        };
        for peer in &mut peers {
            while peer.flights.values().any(conflicts) || peer.flights.len() >= 20 {
                if let Some(flight) = peer.receive() {
                    check(flight, &twin);
                }
            }
        }
        let peer_index = random.below(4) as usize;
        let peer = &mut peers[peer_index];
        let span = range.start as usize..range.end as usize;
        let fua = if random.below(4) == 0 { FUA } else { 0 };
        let mut data = None;
        match (reads, random.below(10)) {
            (true, n) => {
                let df = if peer.structured && n < 3 { DF } else { 0 };
                data = Some(vec![0; len as usize]);
                peer.client.request(df, READ, cookie, start, len as u32);
            }
            (false, 0) => {
                peer.client.request(fua | NO_HOLE, WRITE_ZEROES, cookie, start, len as u32);
                twin[span].fill(0);
            }
            (false, 1) => {
                peer.client.request(0, FLUSH, cookie, 0, 0);
            }
            (false, _) => {
                let payload: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
                peer.client.write(fua, cookie, start, &payload);
                twin[span].copy_from_slice(&payload);
            }
        }
        peer.flights.insert(cookie, Flight { range, data, received: 0 });
    }
    for peer in &mut peers {
        while !peer.flights.is_empty() {
            if let Some(flight) = peer.receive() {
                check(flight, &twin);
            }
        }
        peer.client.request(0, DISC, 0, 0, 0);
        peer.client.expect_end();
    }
    assert!(rig.image(0) == twin, "the file differs (seed {seed})");
}

#[test]
fn random_operations_agree_with_a_vector() {
    let seed = seed("random_operations_agree_with_a_vector");
    run(seed, Limits::default(), 3000, None);
    let small = Limits { piece_max_bytes: 8192, borrowed_max_bytes: 16384, ..Limits::default() };
    run(seed + 1, small, 3000, None);
    let short = Limits { borrowed_max_bytes: 0, reserve_bytes: 4096, requests_max: 8, ..Limits::default() };
    run(seed + 2, short, 3000, None);
}

/// Three clients use TLS, over TCP and a unix socket, beside one that does not.
#[test]
fn random_operations_over_tls_agree_with_a_vector() {
    let seed = seed("random_operations_over_tls_agree_with_a_vector");
    let authority = Authority::new("random");
    run(seed, Limits::default(), 3000, Some(&authority));
    let short = Limits { borrowed_max_bytes: 0, reserve_bytes: 4096, requests_max: 8, ..Limits::default() };
    run(seed + 1, short, 3000, Some(&authority));
}
