//! Every public verb once, over stores of each kind.

use std::sync::atomic::{AtomicU32, Ordering};

use octavo::disk::{OpenOptions, SimDisk, SimOptions, Store};
use octavo::{Advice, Cache, CacheConfig, CacheMode, Op, PartitionConfig, PolicyName, Request};
use octavo_random::Random;

fn tiny() -> CacheConfig {
    CacheConfig {
        memory_max_bytes: 4 << 20,
        segment_bytes: 128 << 10,
        buffers_max_bytes: Some(1 << 20),
        background: false,
        seed: Some(7),
        ..CacheConfig::default()
    }
}

fn each_store(test: impl Fn(Store)) {
    test(Store::memory("memory", 1 << 20));
    test(SimDisk::new(SimOptions::default()).store("simulated", 1 << 20));
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("basics-{}-{number}", std::process::id()));
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    test(Store::open(&path, &OpenOptions::default()).unwrap());
    std::fs::remove_file(path).unwrap();
}

fn each_mode(test: impl Fn(octavo::Cache, octavo::Partition, octavo::Object)) {
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        for policy in PolicyName::ALL {
            each_store(|store| {
                let cache = Cache::new(tiny()).unwrap();
                let config = PartitionConfig {
                    cache_mode: mode,
                    policy,
                    max_bytes: Some(300 << 10),
                    ..PartitionConfig::new("p")
                };
                let partition = cache.partition(config).unwrap();
                let object = partition.open(store, "object").unwrap();
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
            let mut read = vec![0; 50_000.min((1 << 20) - offset)];
            object.read_at(offset as u64, &mut read).unwrap();
            assert!(read == twin[offset..offset + read.len()], "step {step} at {offset}");
        }
        object.sync().unwrap();
        assert_eq!(partition.stat().dirty_bytes, 0);
        let mut all = vec![0; 1 << 20];
        object.read_at(0, &mut all).unwrap();
        assert!(all == twin);
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
        let mut read = vec![1; 100_000];
        object.read_at(0, &mut read).unwrap();
        assert!(read == twin);
        object.set_len_bytes(70_001).unwrap();
        assert!(object.read_at(0, &mut read).is_err());
        object.set_len_bytes(100_000).unwrap();
        twin[70_001..].fill(0);
        object.read_at(0, &mut read).unwrap();
        assert!(read == twin);
        object.advise(0, 100_000, Advice::DontNeed).unwrap();
        object.advise(0, 100_000, Advice::WillNeed).unwrap();
        object.read_at(0, &mut read).unwrap();
        assert!(read == twin);
    });
}

#[test]
fn a_queue_completes_every_request_once() {
    each_mode(|cache, _partition, object| {
        let mut queue = cache.queue().unwrap();
        let writes = (0..64u64).map(|n| Request {
            user_data: n,
            op: Op::Write {
                offset: n * 10_000,
                len: 5000,
                buffer: pattern(n as usize, 5000).into(),
                durable: n % 7 == 0,
            },
        });
        queue.submit(&object, writes);
        let mut seen = vec![0; 64];
        while queue.pending() > 0 {
            queue.wait(1, |c| {
                c.result.unwrap();
                seen[c.user_data as usize] += 1;
            });
        }
        assert_eq!(seen, vec![1; 64]);
        queue.submit(&object, [Request { user_data: 0, op: Op::Sync }]);
        let reads = (0..64u64).map(|n| Request {
            user_data: n,
            op: Op::Read { offset: n * 10_000, len: 5000, buffer: vec![0; 5000].into() },
        });
        queue.submit(&object, reads);
        let mut count = 0;
        while queue.pending() > 0 {
            queue.wait(1, |c| {
                c.result.unwrap();
                if let Op::Read { buffer, .. } = c.op {
                    assert!(buffer[..] == pattern(c.user_data as usize, 5000));
                }
                count += 1;
            });
        }
        assert_eq!(count, 65);
    });
}

#[test]
fn a_pin_is_a_snapshot() {
    each_mode(|_cache, _partition, object| {
        object.write_at(8192, &pattern(1, 4096)).unwrap();
        let pin = object.pin(8192).unwrap().expect("there is room");
        object.write_at(8192, &pattern(2, 4096)).unwrap();
        let mut read = vec![0; 4096];
        object.read_at(8192, &mut read).unwrap();
        assert!(read == pattern(2, 4096));
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
            let mut read = vec![0; 1 << 20];
            object.read_at(0, &mut read).unwrap();
            assert!(read == bytes);
            let stat = cache.stat();
            assert!(stat.memory_charged_bytes <= stat.memory_max_bytes);
        }
    });
}
