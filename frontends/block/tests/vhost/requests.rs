//! Requests of a driver, one after the other and together.

use crate::driver::{PATIENCE, Rig};
use blkio::ReqFlags;
use octavo_block::{Class, ExportStat, VhostSettings};
use std::time::Instant;

#[test]
fn what_a_guest_writes_it_reads_again() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let mut driver = rig.driver(1);
    let bytes: Vec<u8> = (0..100 * 512).map(|at: u32| (at * 7 % 251) as u8).collect();
    driver.write(512, &bytes);
    assert_eq!(driver.read(512, bytes.len()), bytes);
    let mut found = vec![0; bytes.len()];
    rig.object.read_at(512, &mut found).unwrap();
    assert_eq!(found, bytes);
    assert_eq!(driver.read(0, 512), vec![0; 512]);
}

/// Waits until the server has counted this many requests of each class. The guest sees a
/// completion before the server counts it.
fn expect_counts(rig: &Rig, expected: [u64; 5]) -> ExportStat {
    let start = Instant::now();
    loop {
        let stat = rig.server.traffic().exports().remove(0);
        let counts = Class::ALL.map(|class| stat.latency(class).count());
        if counts == expected {
            return stat;
        }
        assert!(start.elapsed() < PATIENCE, "{counts:?}, not {expected:?}");
        std::thread::yield_now();
    }
}

#[test]
fn each_request_is_timed_in_its_class() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let mut driver = rig.driver(1);
    driver.read(0, 8192);
    expect_counts(&rig, [0, 1, 0, 0, 0]);
    for _ in 0..3 {
        driver.read(4096, 4096);
    }
    driver.write(0, &[1; 512]);
    driver.queues[0].flush(3, ReqFlags::empty());
    assert_eq!(driver.wait(0), (3, 0));
    driver.queues[0].discard(0, 4096, 4, ReqFlags::empty());
    assert_eq!(driver.wait(0), (4, 0));
    let stat = expect_counts(&rig, [3, 1, 1, 1, 1]);
    let miss = stat.latency(Class::Miss);
    assert!(miss.sum() == miss.max() && miss.quantile(0.99) == Some(miss.max()), "{miss:?}");
    drop(driver);
    expect_counts(&rig, [3, 1, 1, 1, 1]);
}

/// Resident pages, missing pages, parts of pages, the last page and reads of two pages, in one
/// batch.
#[test]
fn reads_that_are_asked_for_together_get_their_own_bytes() {
    const PAGES: u64 = 96;
    let rig = Rig::new(PAGES << 12, VhostSettings::default());
    let byte = |at: u64| (at >> 9).wrapping_mul(31).wrapping_add(at & 0x1ff) as u8;
    let bytes: Vec<u8> = (0..PAGES << 12).map(byte).collect();
    rig.object.write_at(0, &bytes).unwrap();
    let mut driver = rig.driver(1);
    for round in 0..8 {
        // Every third page is resident.
        rig.object.advise(0, PAGES << 12, octavo::Advice::DontNeed).unwrap();
        for page in (0..PAGES).filter(|page| page % 3 == round % 3) {
            rig.object.read_at(page << 12, &mut [0]).unwrap();
        }
        let place = |slot: u64| match (slot + round) % 4 {
            0 => ((slot + round) * 512, 8192),
            1 => ((PAGES - 1) << 12, 4096),
            2 => ((slot << 12) + 1024, 2048),
            _ => (slot << 12, 4096),
        };
        for slot in 0..40 {
            let (offset, len) = place(slot);
            let to = driver.at(slot as usize * 8192);
            driver.queues[0].read(offset, to, len, slot as usize, ReqFlags::empty());
        }
        for _ in 0..40 {
            let (slot, result) = driver.wait(0);
            let (offset, len) = place(slot as u64);
            assert_eq!(result, 0, "round {round}, slot {slot}");
            let expected = &bytes[offset as usize..][..len];
            assert!(driver.bytes(slot * 8192, len) == expected, "round {round}, slot {slot}, {offset}");
        }
    }
}
