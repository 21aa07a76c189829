//! Partitions with pages of different sizes in one cache, under one limit.

use std::time::Duration;

use octavo::disk::Store;
use octavo::{Advice, Cache, CacheConfig, CacheMode, Error, Object, Partition, PartitionConfig};
use octavo_random::Random;

use crate::fixture::bytes_at;
use crate::watchdog::Watchdog;

const MIB: u64 = 1 << 20;

fn with_pages(name: &str, page_bytes: u64, cache_mode: CacheMode) -> PartitionConfig {
    PartitionConfig { page_bytes: Some(page_bytes as u32), cache_mode, ..PartitionConfig::new(name) }
}

#[test]
fn a_partition_has_pages_of_the_size_that_it_asks_for_in_segments_that_hold_a_set() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 256 * MIB, ..CacheConfig::default() }).unwrap();
    for page_bytes in (12..=20).map(|shift| 1 << shift) {
        let config = with_pages(&format!("{page_bytes}"), page_bytes, CacheMode::Writethrough);
        let segment_bytes = (2 * MIB).max(16 * page_bytes);
        let max_bytes = Some(segment_bytes + MIB);
        let partition = cache.partition(PartitionConfig { max_bytes, ..config }).unwrap();
        assert_eq!(partition.page_bytes(), page_bytes);
        assert_eq!(partition.stat().max_bytes, segment_bytes, "pages of {page_bytes} bytes");
        let object = partition.open(Store::memory("m", 3 * MIB + 5), "object").unwrap();
        assert_eq!(object.pin(MIB).unwrap().unwrap().len() as u64, page_bytes.min(2 * MIB));
    }
    assert!(cache.stat().memory_charged_bytes <= 256 * MIB);
    for page_bytes in [0, 2048, 5000, 2 * MIB] {
        let refused = cache.partition(with_pages("odd", page_bytes, CacheMode::Writethrough));
        let Err(Error::Config(why)) = refused else { panic!("{page_bytes}: {refused:?}") };
        assert!(why.contains("\"odd\"") && why.contains(&page_bytes.to_string()), "{why}");
    }
}

/// Writes, reads, clears and syncs at random, and compares every byte with `model`.
fn mistreat(object: &Object, model: &mut [u8], random: &mut Random, steps: usize) {
    for _ in 0..steps {
        let start = random.below(model.len() as u64);
        let len = match random.below(4) {
            0 => random.below(3 * MIB),
            1 => random.below(70_000),
            _ => random.below(600),
        };
        let range = start as usize..(start + len).min(model.len() as u64) as usize;
        match random.below(10) {
            0..5 => assert!(bytes_at(object, start, range.len() as u64) == model[range], "at {start}"),
            5..8 => {
                let bytes = random.bytes(range.len());
                object.write_at(start, &bytes).unwrap();
                model[range].copy_from_slice(&bytes);
            }
            8 => {
                object.discard(start, range.len() as u64).unwrap();
                model[range].fill(0);
            }
            _ if random.one_in(2) => object.sync().unwrap(),
            _ => object.advise(start, range.len() as u64, Advice::DontNeed).unwrap(),
        }
    }
}

#[test]
fn small_and_large_pages_keep_their_bytes_while_the_reaper_moves_memory_between_them() {
    let _watchdog = Watchdog::new(Duration::from_secs(300), "partitions of several page sizes");
    let memory_max_bytes = 96 * MIB;
    let cache = Cache::new(CacheConfig { memory_max_bytes, ..CacheConfig::default() }).unwrap();
    let partition = |page_bytes, mode| {
        let config = with_pages(&format!("{page_bytes} {mode:?}"), page_bytes, mode);
        cache.partition(PartitionConfig { start_bytes: Some(17 * MIB), ..config }).unwrap()
    };
    let partitions: Vec<Partition> = vec![
        partition(4096, CacheMode::Writeback),
        partition(MIB, CacheMode::Writeback),
        partition(MIB, CacheMode::Writethrough),
        partition(65536, CacheMode::Writeback),
    ];
    std::thread::scope(|scope| {
        for (number, partition) in partitions.iter().enumerate() {
            scope.spawn(move || {
                let len = 24 * MIB + 12_345 * number as u64;
                let object = partition.open(Store::memory("m", len), "object").unwrap();
                let (mut model, mut random) = (vec![0; len as usize], Random::new(number as u64));
                mistreat(&object, &mut model, &mut random, 150);
                object.sync().unwrap();
                assert!(bytes_at(&object, 0, len) == model);
                partition.evict().unwrap();
                assert!(bytes_at(&object, 0, len) == model, "from the store");
            });
        }
        let mut turns = 0..20;
        while turns.next().is_some() {
            let stat = cache.stat();
            assert!(stat.memory_charged_bytes <= memory_max_bytes, "{stat:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    for partition in &partitions {
        let stat = partition.stat();
        assert!(stat.charged_bytes >= 16 * partition.page_bytes(), "one segment at least: {stat:?}");
    }
}
