//! Every public verb once, over stores of each kind.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::fixture::{
    Scratch, bytes_at, complete_all, disk, open, read_request, request, scene, sized, small, write_request,
};
use octavo::disk::Store;
use octavo::{Advice, CacheConfig, CacheMode, Op, PartitionConfig, PolicyName};
use octavo_random::Random;

fn tiny() -> CacheConfig {
    CacheConfig { segment_bytes: 128 << 10, buffers_max_bytes: Some(1 << 20), ..small(7) }
}

fn each_store(test: impl Fn(Store)) {
    test(Store::memory("memory", 1 << 20));
    test(disk(0).store("simulated", 1 << 20));
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = Scratch::new(&format!("basics-{number}"), 1 << 20);
    test(open(&file.0));
}

fn each_mode(test: impl Fn(octavo::Cache, octavo::Partition, octavo::Object)) {
    for cache_mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        for policy in PolicyName::ALL {
            each_store(|store| {
                let config = PartitionConfig { cache_mode, policy, ..sized(300 << 10) };
                let (cache, partition, object) = scene(tiny(), config, store);
                test(cache, partition, object);
            });
        }
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 17 + i / 251) % 256) as u8).collect()
}

#[test]
fn reads_return_what_writes_at_any_offset_wrote() {
    each_mode(|_cache, partition, object| {
        let mut twin = vec![0u8; 1 << 20];
        let mut random = Random::new(1);
        for step in 0..200 {
            let offset = random.below(1 << 20) as usize;
            let len = (random.below(30_000) as usize).min((1 << 20) - offset);
            let bytes = pattern(step, len);
            object.write_at(offset as u64, &bytes).unwrap();
            twin[offset..offset + len].copy_from_slice(&bytes);
            let read = bytes_at(&object, offset as u64, 50_000.min((1 << 20) - offset as u64));
            assert!(read == twin[offset..offset + read.len()], "step {step} at {offset}");
        }
        object.sync().unwrap();
        assert_eq!(partition.stat().dirty_bytes, 0);
        assert!(bytes_at(&object, 0, 1 << 20) == twin);
        object.close().unwrap();
        assert_eq!(partition.stat().resident_bytes, 0);
    });
}

#[test]
fn discards_zeroes_and_changes_of_length_leave_zeros() {
    each_mode(|_cache, _partition, object| {
        object.write_at(0, &pattern(3, 100_000)).unwrap();
        object.zero(1000, 50_000).unwrap();
        object.discard(60_000, 20_000).unwrap();
        let mut twin = pattern(3, 100_000);
        twin[1000..51_000].fill(0);
        twin[60_000..80_000].fill(0);
        assert!(bytes_at(&object, 0, 100_000) == twin);
        object.set_len_bytes(70_001).unwrap();
        assert!(object.read_at(0, &mut [1; 100_000]).is_err());
        object.set_len_bytes(100_000).unwrap();
        twin[70_001..].fill(0);
        assert!(bytes_at(&object, 0, 100_000) == twin);
        object.advise(0, 100_000, Advice::DontNeed).unwrap();
        object.advise(0, 100_000, Advice::WillNeed).unwrap();
        assert!(bytes_at(&object, 0, 100_000) == twin);
    });
}

#[test]
fn a_queue_completes_every_request_once() {
    each_mode(|cache, _partition, object| {
        let mut queue = cache.queue().unwrap();
        let write = |n: u64| write_request(n, n * 10_000, pattern(n as usize, 5000), n.is_multiple_of(7));
        queue.submit(&object, (0..64).map(write));
        let mut seen = vec![0; 64];
        for completion in complete_all(&mut queue) {
            completion.result.unwrap();
            seen[completion.user_data as usize] += 1;
        }
        assert_eq!(seen, vec![1; 64]);
        queue.submit(&object, [request(Op::Sync)]);
        queue.submit(&object, (0..64).map(|n| read_request(n, n * 10_000, 5000)));
        let completions = complete_all(&mut queue);
        assert_eq!(completions.len(), 65);
        for completion in completions {
            completion.result.unwrap();
            if let Op::Read { buffer, .. } = completion.op {
                assert!(buffer[..] == pattern(completion.user_data as usize, 5000));
            }
        }
    });
}

/// Front ends count such reads as hits.
#[test]
fn a_read_of_a_queue_ends_at_once_if_all_its_pages_are_resident() {
    each_mode(|cache, _partition, object| {
        let mut queue = cache.queue().unwrap();
        let mut reads = |requests: [(u64, usize); 2]| {
            queue.submit(&object, requests.map(|(offset, len)| read_request(offset, offset, len)));
            let mut ended = complete_all(&mut queue);
            ended.sort_by_key(|completion| completion.user_data);
            ended.iter().map(|completion| completion.at_once).collect::<Vec<_>>()
        };
        assert_eq!(reads([(0, 4096), (8192, 100)]), [false, false]);
        assert_eq!(reads([(0, 4096), (8192, 100)]), [true, true]);
        object.advise(8192, 4096, Advice::DontNeed).unwrap();
        assert_eq!(reads([(0, 4096), (4096, 8192)]), [true, false]);
        assert_eq!(reads([(0, 12_288), (1 << 40, 1)]), [true, true]);
    });
}

#[test]
fn a_pin_is_a_snapshot() {
    each_mode(|_cache, _partition, object| {
        object.write_at(8192, &pattern(1, 4096)).unwrap();
        let pin = object.pin(8192).unwrap().expect("there is room");
        object.write_at(8192, &pattern(2, 4096)).unwrap();
        assert!(bytes_at(&object, 8192, 4096) == pattern(2, 4096));
        assert!(pin[..] == pattern(1, 4096));
        drop(pin);
        object.sync().unwrap();
    });
}

#[test]
fn a_batch_of_pins_fills_missing_pages_and_counts_each_page_once() {
    each_mode(|_cache, partition, object| {
        for page in 0..64 {
            object.write_at(page * 4096, &pattern(page as usize, 4096)).unwrap();
        }
        object.sync().unwrap();
        object.advise(0, 64 * 4096, octavo::Advice::DontNeed).unwrap();
        (0..64).step_by(2).for_each(|page| object.read_at(page * 4096, &mut [0]).unwrap());
        let before = partition.stat();
        // More offsets than one look-up takes, unordered, one of them twice, and none at the start
        // of a page.
        let mut offsets: Vec<u64> = (0..40).map(|number| number * 27 % 64 * 4096 + number).collect();
        offsets.push(offsets[7]);
        let mut pins = vec![object.pin(0).unwrap()];
        object.pin_batch(&offsets, &mut pins).unwrap();
        let after = partition.stat();
        assert_eq!(pins.len(), 42);
        for (offset, pin) in offsets.iter().zip(&pins[1..]) {
            let pin = pin.as_ref().expect("there is room");
            assert!(pin[..] == pattern((offset / 4096) as usize, 4096), "at {offset}");
        }
        let missing = offsets[..40].iter().filter(|offset| *offset / 4096 % 2 == 1).count() as u64;
        assert_eq!((after.misses - before.misses, after.fills - before.fills), (missing, missing));
        assert_eq!(after.hits - before.hits, 42 - missing);
        // A batch with one wrong offset pins nothing.
        let past_the_end = [4096, object.len_bytes()];
        assert!(object.pin_batch(&past_the_end, &mut pins).is_err());
        assert_eq!(pins.len(), 42);
    });
}

#[test]
fn a_partition_that_grows_and_shrinks_keeps_its_bytes() {
    each_mode(|cache, partition, object| {
        let bytes = pattern(9, 1 << 20);
        object.write_at(0, &bytes).unwrap();
        for size in [600 << 10, 2 << 20, 1 << 20, 300 << 10, 1500 << 10, 150 << 10] {
            let charged = partition.resize(size).unwrap();
            assert!(charged <= size, "{charged} of {size}");
            assert!(bytes_at(&object, 0, 1 << 20) == bytes);
            let stat = cache.stat();
            assert!(stat.memory_charged_bytes <= stat.memory_max_bytes);
        }
    });
}

/// The pages before the first one that is missing are served without a task, the others by one.
#[test]
fn a_read_of_several_pages_counts_each_page_once_wherever_pages_are_missing() {
    // More pages than are looked up together; the last page is partial.
    const PAGES: u64 = 150;
    const LEN: u64 = (PAGES - 1) * 4096 + 1000;
    let config = CacheConfig { memory_max_bytes: 32 << 20, ..CacheConfig::default() };
    let (_cache, partition, object) = scene(config, PartitionConfig::new("p"), Store::memory("m", LEN));
    let bytes = pattern(3, LEN as usize);
    object.write_at(0, &bytes).unwrap();
    for gaps in [&[][..], &[0], &[1], &[70], &[PAGES - 2], &[5, 6, 64, 128], &[63, 148]] {
        for (first, end) in [(0, LEN), (1, LEN), (4095, LEN - 999), (3 * 4096 + 5, LEN - 4096)] {
            // Nothing is read if all pages are resident.
            object.read_at(0, &mut vec![0; LEN as usize]).unwrap();
            gaps.iter().for_each(|page| object.advise(page * 4096, 4096, Advice::DontNeed).unwrap());
            let touched = first / 4096..end.div_ceil(4096);
            let missing = touched.clone().filter(|page| !object.is_resident(page * 4096)).count() as u64;
            assert_eq!(missing, gaps.iter().filter(|page| touched.contains(page)).count() as u64);
            let counts = || {
                let stat = partition.stat();
                [stat.requests_read, stat.read_bytes, stat.hits, stat.misses, stat.fills]
            };
            let before = counts();
            assert!(bytes_at(&object, first, end - first) == bytes[first as usize..end as usize]);
            let after = counts();
            let hits = touched.end - touched.start - missing;
            let added: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
            assert_eq!(added, [1, end - first, hits, missing, missing], "{gaps:?}, {first} to {end}");
        }
    }
    let error = object.read_at(LEN - 5000, &mut [0; 5001]).expect_err("past the end");
    assert!(matches!(error, octavo::Error::PastEnd { .. }));
    object.close().unwrap();
    let error = object.read_at(0, &mut [0; 8192]).expect_err("closed");
    assert!(matches!(error, octavo::Error::Closed { .. }));
}

#[test]
fn calls_that_try_never_wait_and_do_what_the_others_do() {
    each_mode(|_cache, partition, object| {
        let (mut six, mut long) = ([0; 6], vec![1; 10_000]);
        assert!(!object.try_read_at(4096, &mut six).unwrap(), "nothing is resident");
        assert!(!object.try_write_at(4096, b"octavo"));
        object.read_at(0, &mut long).unwrap();
        assert!(object.try_read_at(4096, &mut six).unwrap() && object.try_read_at(0, &mut long).unwrap());
        let writes_back = object.cache_mode() == CacheMode::Writeback;
        assert_eq!(object.try_write_at(4096, b"octavo"), writes_back);
        assert!(!object.try_write_at(4093, b"octavo"), "two pages");
        assert!(object.try_read_at(4096, &mut six).unwrap());
        assert_eq!(&six, if writes_back { b"octavo" } else { &[0; 6] });
        assert!(!object.try_write_at((1 << 20) - 3, b"octavo"), "past the end");
        assert!(object.try_read_at((1 << 20) - 3, &mut six).is_err());
        partition.evict().unwrap();
        assert!(!object.try_read_at(4096, &mut six).unwrap() && !object.try_write_at(4096, b"octavo"));
        object.close().unwrap();
        assert!(object.try_read_at(4096, &mut six).is_err() && !object.try_write_at(4096, b"octavo"));
    });
}
