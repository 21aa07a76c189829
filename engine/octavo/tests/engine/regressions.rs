//! Bugs that were there, each with its story.

use crate::watchdog::Watchdog;
use octavo::disk::{SimDisk, SimOptions, Store};
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
    let config = PartitionConfig { cache_mode: mode, max_bytes: Some(100 << 10), ..PartitionConfig::new("p") };
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
