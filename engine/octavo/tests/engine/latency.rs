//! The times of I/Os: which are counted, and as what.

use crate::fixture::{PAGE, SET_BYTES, Scratch, open, scene, sized, small, written_back};
use octavo::disk::Store;
use octavo::{CacheConfig, Partition};

const MIB: u64 = 1 << 20;

/// How many I/Os went to the store, and how many of them carried pages past the cache.
fn ios(partition: &Partition) -> (u64, u64) {
    let times = partition.latency();
    for times in [times.store, times.bypass] {
        assert!(times.max_ns <= times.sum_ns && (times.count() > 0 || times.sum_ns == 0), "{times:?}");
    }
    (times.store.count(), times.bypass.count())
}

#[test]
fn each_io_to_the_store_is_counted_once_and_hits_are_not() {
    let file = Scratch::new("latency", MIB);
    let (cache, partition, object) = scene(small(3), written_back(2 * MIB), open(&file.0));
    let mut bytes = vec![0; 8 * PAGE as usize];
    assert_eq!(ios(&partition), (0, 0));
    // A plain read of one page, one of several pages, and hits.
    object.read_at(0, &mut bytes[..100]).unwrap();
    assert_eq!(ios(&partition).0, 1);
    object.read_at(8 * PAGE, &mut bytes).unwrap();
    assert_eq!(ios(&partition).0, 2);
    (0..10).for_each(|_| object.read_at(0, &mut bytes[..100]).unwrap());
    object.write_at(0, &bytes[..100]).unwrap();
    assert_eq!(ios(&partition).0, 2);
    // A write-back, and its sync.
    cache.clean().unwrap();
    assert_eq!(ios(&partition).0, 3);
    object.sync().unwrap();
    assert_eq!(ios(&partition), (4, 0));
}

#[test]
fn a_page_that_finds_no_way_is_counted_as_bypassed() {
    let config = CacheConfig { pages_meet: true, ..small(3) };
    let (_cache, partition, object) = scene(config, sized(MIB), Store::memory("disk", MIB));
    // All pages are in one set, whose ways are pinned.
    let ways = SET_BYTES / PAGE;
    let pins: Vec<_> = (0..ways).map(|page| object.pin(page * PAGE).unwrap().expect("a free way")).collect();
    let before = ios(&partition);
    object.read_at(ways * PAGE, &mut [0; 10]).unwrap();
    assert_eq!(ios(&partition), (before.0 + 1, before.1 + 1));
    assert_eq!(partition.stat().bypasses, 1);
    drop(pins);
}
