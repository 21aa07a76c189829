//! The age of dirty data. No test depends on how long anything takes: each age is compared with
//! times that the test itself has measured around it.

use std::time::{Duration, Instant};

use crate::fixture::{PAGE, disk, scene, small, until, written_back};
use crate::watchdog::Watchdog;
use octavo::CacheConfig;
use octavo::disk::{SimFaults, Store};

const MIB: u64 = 1 << 20;

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

#[test]
fn without_a_cleaner_the_age_counts_from_the_last_sync() {
    let (_cache, partition, object) = scene(small(3), written_back(MIB), Store::memory("disk", MIB));
    let oldest = || partition.stat().dirty_oldest_ms;
    assert_eq!(oldest(), 0);
    let before_sync = Instant::now();
    object.write_at(0, &[1; 100]).unwrap();
    assert!(oldest() >= 1);
    object.sync().unwrap();
    assert_eq!(oldest(), 0, "nothing is dirty");
    std::thread::sleep(Duration::from_millis(30));
    object.write_at(0, &[2; 100]).unwrap();
    let written = Instant::now();
    std::thread::sleep(Duration::from_millis(5));
    let (least, age) = (ms(written.elapsed()), oldest());
    assert!(least <= age && age <= ms(before_sync.elapsed()), "{least} <= {age}");
    // A sync of a part of the object says nothing about the rest.
    object.write_at(8 * PAGE, &[2; 100]).unwrap();
    object.sync_range(0, PAGE).unwrap();
    let least = ms(written.elapsed());
    assert!(oldest() >= least);
}

#[test]
fn a_store_that_refuses_makes_its_dirty_bytes_old_and_others_stay_young() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "dirty bytes that grow old");
    let (bad, good) = (disk(3), disk(4));
    let config = CacheConfig { background: true, reaper: false, ..small(3) };
    let begun = Instant::now();
    let (_cache, partition, object) = scene(config, written_back(MIB), bad.store("bad", MIB));
    let other = partition.open(good.store("good", MIB), "good").unwrap();
    bad.set_faults(SimFaults { p_no_space: 1.0, p_torn: 0.0, ..SimFaults::default() });
    object.write_at(0, &[1; PAGE as usize]).unwrap();
    // Syncs of the other object and failed ones of this object change nothing about its age.
    until(|| {
        other.write_at(0, &[1; PAGE as usize]).unwrap();
        other.sync().unwrap();
        assert!(object.sync().is_err());
        let age = partition.stat().dirty_oldest_ms;
        // Dirty bytes are at least a millisecond old.
        assert!((1..=ms(begun.elapsed()).max(1)).contains(&age), "{age}");
        age >= 200
    });
    bad.set_faults(SimFaults::default());
    object.sync().unwrap();
    until(|| partition.stat().dirty_oldest_ms == 0);
}

/// The last sync may have been hours ago: bytes that become dirty now are not that old.
#[test]
fn the_first_dirty_bytes_after_a_pause_are_new() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "the cleaner");
    let config = CacheConfig { background: true, reaper: false, ..small(3) };
    let (_cache, partition, object) = scene(config, written_back(MIB), Store::memory("disk", MIB));
    std::thread::sleep(Duration::from_millis(300));
    let before = Instant::now();
    object.write_at(0, &[1; 100]).unwrap();
    // The cleaner wakes when the first page becomes dirty. From then on the age is that of the page
    // and not that of the object. (If it has written the page already, there is none.)
    until(|| partition.stat().dirty_oldest_ms <= ms(before.elapsed()));
}
