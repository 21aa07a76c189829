//! Bugs that were there, each with its story.

use crate::watchdog::Watchdog;
use octavo::disk::{SimDisk, SimFaults, SimOptions, Store};
use octavo::{Advice, Cache, CacheConfig, CacheMode, Object, Op, PartitionConfig, Request};
use std::time::Duration;

fn one_set() -> CacheConfig {
    CacheConfig {
        memory_max_bytes: 2 << 20,
        segment_bytes: 4096 * octavo::WAYS as u64,
        buffers_max_bytes: Some(256 << 10),
        background: false,
        seed: Some(7),
        ..CacheConfig::default()
    }
}

fn object(cache: &Cache, mode: CacheMode, store: Store) -> Object {
    let config =
        PartitionConfig { cache_mode: mode, max_bytes: Some(100 << 10), ..PartitionConfig::new("p") };
    cache.partition(config).unwrap().open(store, "object").unwrap()
}

#[test]
fn advice_for_a_part_of_one_page_lets_nothing_go_and_does_not_overflow() {
    let cache = Cache::new(one_set()).unwrap();
    let object = object(&cache, CacheMode::Writeback, Store::memory("m", 64 << 10));
    object.write_at(5000, &[1; 100]).unwrap();
    object.advise(5000, 100, Advice::DontNeed).unwrap();
    assert_eq!(object.stat().dirty_bytes, 4096);
}

/// Bounce pages went to whoever had waited longest. Those were the queue's writes, which were told and not there to take their
/// turn, and nobody told the blocking write behind them.
#[test]
fn a_queue_that_nobody_waits_on_does_not_keep_the_bounce_pages_from_others() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "bounce pages");
    let cache = Cache::new(CacheConfig { buffers_max_bytes: Some(128 << 10), ..one_set() }).unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let object = object(&cache, CacheMode::Writethrough, disk.store("disk", 256 << 10));
    let mut queue = cache.queue().unwrap();
    let write = |n: u64| Request {
        user_data: n,
        op: Op::Write { offset: n * 4096, len: 4096, buffer: vec![n as u8; 4096].into(), durable: false },
    };
    queue.submit(&object, (0..40).map(write));
    object.write_at(50 * 4096, &[50; 4096]).unwrap();
    while queue.pending() > 0 {
        queue.wait(1, |completion| completion.result.unwrap());
    }
}

/// The resize gave up in the middle of a move, and the next one found the table in a state that must not be. Between the two, a
/// write to a page that had moved looked for it in its old place only, for ever.
#[test]
fn a_resize_that_a_refusing_store_stops_is_finished_by_the_next() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "resize");
    let cache = Cache::new(one_set()).unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let config = PartitionConfig {
        cache_mode: CacheMode::Writeback,
        max_bytes: Some(300 << 10),
        dirty_max_bytes: Some(1 << 20),
        ..PartitionConfig::new("p")
    };
    let partition = cache.partition(config).unwrap();
    let object = partition.open(disk.store("disk", 256 << 10), "object").unwrap();
    let write_all = |byte: u8| (0..64).for_each(|n| object.write_at(n * 4096, &[byte; 4096]).unwrap());
    write_all(1);
    disk.set_faults(SimFaults { p_write_error: 1.0, ..SimFaults::default() });
    for _ in 0..2 {
        let refused = partition.resize(100 << 10);
        assert!(matches!(refused, Err(octavo::Error::Io { .. })), "{refused:?}");
    }
    disk.set_faults(SimFaults::default());
    write_all(2);
    assert!(partition.resize(100 << 10).unwrap() <= 100 << 10);
    assert!(partition.resize(300 << 10).unwrap() > 200 << 10);
    let mut all = vec![0; 256 << 10];
    object.read_at(0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 2));
}

/// A segment that pins keep is in nobody's use, and yet takes its place: the growth was charged, and did not happen.
#[test]
fn a_partition_that_cannot_grow_is_not_charged_for_it() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 512 << 10, ..one_set() }).unwrap();
    let config = PartitionConfig { max_bytes: Some(250 << 10), ..PartitionConfig::new("p") };
    let partition = cache.partition(config).unwrap();
    let object = partition.open(Store::memory("m", 256 << 10), "object").unwrap();
    let full = partition.stat();
    let pins: Vec<_> = (0..64).filter_map(|n| object.pin(n * 4096).unwrap()).collect();
    partition.resize(1).unwrap();
    let charged = partition.resize(250 << 10);
    assert!(charged.is_err() || partition.stat().charged_bytes <= full.charged_bytes, "{charged:?}");
    drop(pins);
    partition.resize(1).unwrap();
    assert_eq!(partition.resize(250 << 10).unwrap(), full.charged_bytes);
    assert_eq!(partition.stat().max_bytes, full.max_bytes);
}

/// Two flushes of one store were in flight: the first failed and took the bytes with it, the second succeeded and was believed.
#[test]
fn a_sync_beside_one_that_fails_does_not_succeed_for_lost_bytes() {
    let cache = Cache::new(one_set()).unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let object = object(&cache, CacheMode::Writethrough, disk.store("disk", 64 << 10));
    object.write_at(0, &[1; 4096]).unwrap();
    let mut queue = cache.queue().unwrap();
    disk.set_faults(SimFaults { p_sync_error: 1.0, ..SimFaults::default() });
    queue.submit(&object, [Request { user_data: 0, op: Op::Sync }]);
    disk.set_faults(SimFaults::default());
    let result = object.sync();
    assert!(matches!(result, Err(octavo::Error::Failed { .. })), "{result:?}");
    queue.wait(1, |completion| assert!(completion.result.is_err()));
    assert!(object.stat().failed && object.sync().is_err());
}

/// And whoever waits for a flush that was begun before it gets the next one, with all others that wait.
#[test]
fn syncs_that_wait_for_a_flush_share_the_next() {
    let cache = Cache::new(one_set()).unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let object = object(&cache, CacheMode::Writethrough, disk.store("disk", 64 << 10));
    let mut queue = cache.queue().unwrap();
    queue.submit(&object, (0..10).map(|user_data| Request { user_data, op: Op::Sync }));
    while queue.pending() > 0 {
        queue.wait(1, |completion| completion.result.unwrap());
    }
    assert_eq!(disk.counters().syncs, 2);
}

/// A write in one I/O over many pages looked at the object's end once: pages behind it, cut off meanwhile, stayed in the cache with
/// bytes that the store never took, and were seen when the object grew again.
#[test]
fn what_was_written_behind_an_end_that_moved_is_not_seen_when_the_object_grows() {
    let _watchdog = Watchdog::new(Duration::from_secs(30), "lengths");
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let cache = Cache::new(one_set()).unwrap();
        let object = object(&cache, mode, Store::memory("m", 64 << 10));
        let until = std::time::Instant::now() + Duration::from_millis(500);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while std::time::Instant::now() < until {
                    // Refused, or cut off, or not.
                    let _ = object.write_at(0, &[0xEE; 60 << 10]);
                }
            });
            while std::time::Instant::now() < until {
                object.set_len_bytes(10_000).unwrap();
                object.set_len_bytes(64 << 10).unwrap();
                // Zeros, or what a later write brought: never bytes that only the cache has.
                let mut bytes = vec![0; 4096];
                object.read_at(20 << 10, &mut bytes).unwrap();
                object.advise(0, 64 << 10, Advice::DontNeed).unwrap();
                let before = bytes.clone();
                object.read_at(20 << 10, &mut bytes).unwrap();
                assert!(bytes == before || bytes[0] == 0xEE, "{mode:?}: bytes went away with their page");
            }
        });
    }
}

/// How many segments fit was reckoned with what the partition had learned so far; what it learns about those that joined was charged on top,
/// and a partition was a little larger than it had been allowed to be.
#[test]
fn what_is_learned_about_new_segments_fits_into_the_size_too() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 32 << 20, ..one_set() }).unwrap();
    let config = PartitionConfig { max_bytes: Some(4 << 20), ..PartitionConfig::new("p") };
    let partition = cache.partition(config).unwrap();
    let least = partition.resize(0).unwrap();
    for bytes in (least..least + (1 << 20)).step_by(61) {
        let charged = partition.resize(bytes).unwrap();
        assert!(charged <= bytes, "{charged} of {bytes}");
        assert!(bytes - charged < 80 << 10, "{charged} of {bytes}: another segment would fit");
    }
}
