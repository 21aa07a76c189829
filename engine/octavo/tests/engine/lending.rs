//! Pages have the memory of the buffer share that no buffer needs, and buffers get it back (L1 to
//! L4 of `memory/reserve.rs`).

use std::time::Duration;

use octavo::disk::Store;
use octavo::recording::WHOLE;
use octavo::{Buffer, Cache, CacheConfig, CacheMode, Object, Partition, PartitionConfig};

use crate::fixture::scene;

const MIB: u64 = 1 << 20;

/// A cache as users have it, of 64 MiB, whose share is 8 MiB.
fn usual() -> CacheConfig {
    CacheConfig { memory_max_bytes: 64 * MIB, seed: Some(9), ..CacheConfig::default() }
}

/// A partition with all the memory, and a file of 64 MiB.
fn whole(mode: CacheMode) -> (Cache, Partition, Object) {
    let partition = PartitionConfig { cache_mode: mode, ..PartitionConfig::new("p") };
    scene(usual(), partition, Store::memory("file", 64 * MIB))
}

/// Borrows buffers until there is none.
fn borrow_all(cache: &Cache, len: usize) -> Vec<Buffer> {
    std::iter::from_fn(|| cache.buffer(len)).collect()
}

fn read_all(object: &Object) {
    let mut bytes = vec![0; MIB as usize];
    (0..64).for_each(|at| object.read_at(at * MIB, &mut bytes).unwrap());
}

/// Ends enough periods of the reaper that it lends the memory that no buffer uses. The reads before
/// each period show the reaper that the partition can use that memory.
fn rest(cache: &Cache, object: &Object) {
    for _ in 0..24 {
        read_all(object);
        cache.balance();
    }
}

#[test]
fn unused_memory_of_buffers_holds_pages() {
    let (cache, partition, object) = whole(CacheMode::Writethrough);
    let (frames, share) = (partition.stat().max_bytes, cache.stat().buffers_max_bytes);
    assert_eq!(share, 8 * MIB);
    // Metadata and learning take less than 2 %, and what is set aside less than 2 MiB.
    assert!(frames >= 64 * MIB - 2 * MIB - 2 * MIB - 64 * MIB / 50, "{frames} bytes of frames");
    read_all(&object);
    // At most 1.5 % of the pages found no way.
    assert!(partition.stat().resident_bytes > frames / 10 * 8);
    // Now buffers need the share: all of it, and no more.
    let before = cache.stat().buffers_used_bytes;
    let buffers = borrow_all(&cache, 64 << 10);
    let stat = cache.stat();
    assert_eq!(stat.buffers_used_bytes, before + buffers.len() as u64 * (64 << 10));
    assert!(stat.buffers_max_bytes - stat.buffers_used_bytes < 64 << 10, "{stat:?}");
    assert!(stat.memory_charged_bytes <= 64 * MIB, "{stat:?}");
    let shrunk = partition.stat().max_bytes;
    assert!((54 * MIB..=frames - 4 * MIB).contains(&shrunk), "{shrunk} of {frames} bytes of frames");
    // No buffer needs it any more: pages get back all of it.
    drop(buffers);
    rest(&cache, &object);
    assert_eq!(partition.stat().max_bytes, frames);
    assert!(cache.stat().memory_charged_bytes <= 64 * MIB);
}

#[test]
fn buffers_get_memory_of_dirty_pages() {
    let (cache, partition, object) = whole(CacheMode::Writeback);
    let bytes = vec![7; MIB as usize];
    (0..64).for_each(|at| object.write_at(at * MIB, &bytes).unwrap());
    let buffers = borrow_all(&cache, 256 << 10);
    assert!(cache.stat().buffers_max_bytes - cache.stat().buffers_used_bytes < 256 << 10);
    assert!(partition.stat().evictions.resize > 0 || partition.stat().resident_bytes <= 56 * MIB);
    drop(buffers);
    let mut read = vec![0; MIB as usize];
    for at in 0..64 {
        object.read_at(at * MIB, &mut read).unwrap();
        assert_eq!(read, bytes, "at {at} MiB");
    }
    object.close().unwrap();
}

#[test]
fn queues_recordings_and_further_page_sizes_get_memory_of_pages() {
    let (cache, partition, object) = whole(CacheMode::Writethrough);
    read_all(&object);
    let queues: Vec<_> = std::iter::from_fn(|| cache.queue().ok()).collect();
    assert!(queues.len() as u64 > 6 * MIB / octavo::Queue::CHARGED_BYTES, "{} queues", queues.len());
    drop(queues);
    // Other buffers hold all that is set aside.
    let held = borrow_all(&cache, 512 << 10);
    drop(cache.buffer(1));
    let some: Vec<_> = held.into_iter().skip(5).collect();
    let mut recording = partition.record(WHOLE).unwrap();
    partition.stop_recording();
    while let octavo::Taken::Block(block) = recording.take(Duration::from_secs(1)) {
        recording.give_back(block);
    }
    drop((recording, some));
    rest(&cache, &object);
    let large = PartitionConfig { page_bytes: Some(1 << 20), ..PartitionConfig::new("large") };
    cache.partition(large).unwrap();
    assert!(cache.stat().memory_charged_bytes <= 64 * MIB);
}

#[test]
fn threads_that_borrow_at_once_all_get_what_the_share_holds() {
    let (cache, _partition, object) = whole(CacheMode::Writethrough);
    read_all(&object);
    // 8 threads take 7 MiB together, again and again, while pages come and go.
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (cache, object) = (&cache, &object);
            scope.spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                for round in 0..40_u64 {
                    let held: Vec<_> = (0..7).filter_map(|_| cache.buffer(100 << 10)).collect();
                    assert_eq!(held.len(), 7, "round {round} of thread {thread}");
                    object.read_at((thread * 40 + round) * (128 << 10) % (60 * MIB), &mut bytes).unwrap();
                    if round % 8 == thread {
                        cache.balance();
                    }
                }
            });
        }
    });
    assert!(cache.stat().memory_charged_bytes <= 64 * MIB);
}

#[test]
fn a_cache_without_a_reaper_sets_the_whole_share_aside() {
    let config = CacheConfig { reaper: false, ..usual() };
    let (cache, partition, _object) = scene(config, PartitionConfig::new("p"), Store::memory("file", MIB));
    let frames = partition.stat().max_bytes;
    assert!(frames <= 56 * MIB, "{frames} bytes of frames");
    let buffers = borrow_all(&cache, 64 << 10);
    assert!(cache.stat().buffers_max_bytes - cache.stat().buffers_used_bytes < 64 << 10);
    assert_eq!(partition.stat().max_bytes, frames);
    drop(buffers);
}
