//! Bugs that were there, each with its story.

use octavo::disk::Store;
use octavo::{Advice, Cache, CacheConfig, CacheMode, Object, PartitionConfig};

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
