//! A store that hangs: what others notice of it.

use crate::watchdog::Watchdog;
use octavo::disk::{SimDisk, SimOptions};
use octavo::{Cache, CacheConfig, CacheMode, Object, PartitionConfig, WAYS};
use std::time::Duration;

const PAGE: u64 = 4096;
const PAGES: u64 = 256;
const DIRTY_MAX: u64 = 64;

fn disk(seed: u64) -> SimDisk {
    SimDisk::new(SimOptions { seed, ..SimOptions::default() })
}

/// Every other page, so that each is an I/O of its own.
fn dirty(object: &Object, pages: u64) {
    (0..pages).for_each(|page| object.write_at(page * 2 * PAGE, &[page as u8 | 1; PAGE as usize]).unwrap());
}

fn dirty_pages(object: &Object) -> u64 {
    object.stat().dirty_bytes / PAGE
}

fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn assert_written(disk: &SimDisk, name: &str, pages: u64) {
    let image = disk.image(name);
    for page in 0..pages {
        let at = (page * 2 * PAGE) as usize;
        assert_eq!(
            image[at..][..PAGE as usize],
            [page as u8 | 1; PAGE as usize],
            "page {} of {name}",
            2 * page
        );
    }
}

/// One store that hung stopped the write-back of all partitions: objects were cleaned one after the other, and the one that hung took all bounce pages.
#[test]
fn a_store_that_hangs_holds_up_its_own_object_and_no_other() {
    let watchdog = Watchdog::new(Duration::from_secs(60), "a store that hangs");
    let config = CacheConfig {
        memory_max_bytes: 16 << 20,
        segment_bytes: PAGE * WAYS as u64,
        // 32 bounce pages.
        buffers_max_bytes: Some(1 << 20),
        reaper: false,
        seed: Some(3),
        ..CacheConfig::default()
    };
    let cache = Cache::new(config).unwrap();
    let partition = |name: &str| {
        let config = PartitionConfig {
            cache_mode: CacheMode::Writeback,
            max_bytes: Some(4 << 20),
            dirty_max_bytes: Some(DIRTY_MAX * PAGE),
            ..PartitionConfig::new(name)
        };
        cache.partition(config).unwrap()
    };
    let (dead, alive) = (disk(1), disk(2));
    let (first, second) = (partition("first"), partition("second"));
    let stuck = first.open(dead.store("stuck", PAGES * PAGE), "stuck").unwrap();
    let neighbour = first.open(alive.store("neighbour", PAGES * PAGE), "neighbour").unwrap();
    let other = second.open(alive.store("other", PAGES * PAGE), "other").unwrap();

    watchdog.feed("its write-back hangs");
    dead.hang();
    dirty(&stuck, DIRTY_MAX - 10);
    until(|| dead.in_flight() > 0);
    watchdog.feed("another partition's pages are written");
    dirty(&other, DIRTY_MAX - 10);
    until(|| dirty_pages(&other) <= DIRTY_MAX / 4);
    watchdog.feed("another object's of the same partition");
    dirty(&neighbour, 9);
    until(|| dirty_pages(&neighbour) == 0);
    watchdog.feed("who is held up by its own dirty pages goes on");
    dirty(&other, PAGES / 2);
    watchdog.feed("others are synced");
    other.sync().unwrap();
    neighbour.sync().unwrap();
    assert_written(&alive, "other", PAGES / 2);
    assert_written(&alive, "neighbour", 9);
    assert_eq!((dirty_pages(&stuck), dead.counters().writes), (DIRTY_MAX - 10, 0));
    watchdog.feed("it answers");
    dead.answer();
    until(|| dirty_pages(&stuck) <= DIRTY_MAX / 4);
    stuck.sync().unwrap();
    assert_written(&dead, "stuck", DIRTY_MAX - 10);
    assert_eq!(dirty_pages(&stuck), 0);
}
