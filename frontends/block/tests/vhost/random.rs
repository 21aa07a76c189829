//! Random requests of several queues against a plain copy of the disk.

use crate::driver::Rig;
use blkio::ReqFlags;
use octavo_block::VhostSettings;
use octavo_random::Random;
use std::collections::HashMap;

/// Bytes of the disk.
const LEN: usize = 4 << 20;
/// The longest request, and the requests in flight of each queue.
const REQUEST: usize = 64 << 10;
const DEPTH: usize = 8;
const QUEUES: usize = 2;
const ROUNDS: usize = 4_000;

/// A request in flight.
struct Sent {
    offset: usize,
    len: usize,
    /// What a read must return.
    expected: Option<Vec<u8>>,
}

/// No two requests in flight overlap, so each has one right result.
#[test]
fn random_requests_read_what_a_plain_copy_has() {
    let seed = std::env::var("OCTAVO_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("OCTAVO_TEST_SEED={seed}");
    for is_writeback in [false, true] {
        let settings = VhostSettings { queues: QUEUES as u16, is_writeback, ..VhostSettings::default() };
        run(&mut Random::new(seed), settings);
    }
}

fn run(random: &mut Random, settings: VhostSettings) {
    let rig = Rig::new(LEN as u64, settings);
    let mut driver = rig.driver(QUEUES as i32);
    let mut plain = vec![0_u8; LEN];
    let mut sent: HashMap<(usize, usize), Sent> = HashMap::new();
    for round in 0..ROUNDS {
        let queue = random.below(QUEUES as u64) as usize;
        let slot = random.below(DEPTH as u64) as usize;
        if sent.contains_key(&(queue, slot)) {
            let (ended, result) = driver.wait(queue);
            assert_eq!(result, 0, "round {round}");
            let Sent { offset, len, expected } = sent.remove(&(queue, ended)).unwrap();
            if let Some(expected) = expected {
                let found = driver.bytes(at(queue, ended), len);
                assert!(found == expected, "round {round}: {len} bytes at {offset} are not as written");
            }
            continue;
        }
        let len = 512 * (1 + random.below((REQUEST / 512) as u64) as usize);
        let offset = 512 * random.below(((LEN - len) / 512) as u64) as usize;
        let overlaps = |other: &Sent| other.offset < offset + len && offset < other.offset + other.len;
        if sent.values().any(overlaps) {
            continue;
        }
        let memory = driver.at(at(queue, slot));
        let (start, flags) = (offset as u64, ReqFlags::empty());
        let mut expected = None;
        match random.below(10) {
            0..4 => {
                expected = Some(plain[offset..offset + len].to_vec());
                driver.queues[queue].read(start, memory, len, slot, flags);
            }
            4..8 => {
                let bytes = random.bytes(len);
                driver.fill(at(queue, slot), &bytes);
                plain[offset..offset + len].copy_from_slice(&bytes);
                driver.queues[queue].write(start, memory, len, slot, flags);
            }
            8 => {
                plain[offset..offset + len].fill(0);
                driver.queues[queue].write_zeroes(start, len as u64, slot, flags);
            }
            _ => driver.queues[queue].flush(slot, flags),
        }
        driver.send(queue);
        sent.insert((queue, slot), Sent { offset, len, expected });
    }
}

/// Where a request's memory begins.
fn at(queue: usize, slot: usize) -> usize {
    (queue * DEPTH + slot) * REQUEST
}
