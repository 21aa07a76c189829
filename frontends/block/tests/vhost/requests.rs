//! Requests of a driver, one after the other.

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

/// Waits until this many requests of each class have ended. A guest learns of the end of its
/// request before the server counts it.
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
