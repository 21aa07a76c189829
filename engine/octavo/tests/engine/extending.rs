//! Writes past the end of an object, over a file whose length the write changes (buffered) and over
//! a store that is lengthened first.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{PAGE, Scratch, bytes_at, scene, sized, small, written_back};
use octavo::disk::{OpenOptions, Store};
use octavo::numa::{NumaMode, TopologySource, sit};
use octavo::{CacheConfig, CacheMode, Error};
use octavo_random::Random;

/// Pages of the longest object. The cache has room for a third of them.
const PAGES_MAX: u64 = 96;

fn buffered(file: &Scratch) -> Store {
    Store::open(&file.0, &OpenOptions { direct: false, ..OpenOptions::default() }).unwrap()
}

/// Random writes inside, across and past the end, cuts and reads, beside a vector that does the
/// same. Returns what the object must hold.
fn agree_with_a_vector(store: Store, cache_mode: CacheMode, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let config = match cache_mode {
        CacheMode::Writethrough => sized(32 * PAGE),
        CacheMode::Writeback => written_back(32 * PAGE),
    };
    // On every third seed with copies on other nodes.
    let numa = if seed % 3 == 2 { NumaMode::Replicate } else { NumaMode::Off };
    let topology = TopologySource::Emulated { nodes: 2, cores: 1 };
    let (_cache, partition, object) = scene(CacheConfig { numa, topology, ..small(seed) }, config, store);
    let mut expected = Vec::new();
    for step in 0..600u64 {
        sit(random.below(2) as u32);
        let len = expected.len() as u64;
        match random.below(10) {
            0 => {
                let new = random.below(len + 2 * PAGE).min(PAGES_MAX * PAGE);
                object.set_len_bytes(new).unwrap();
                expected.resize(new as usize, 0);
            }
            1..7 => {
                // From before the end to past a hole.
                let offset = (len + random.below(2 * PAGE)).saturating_sub(random.below(3 * PAGE));
                let offset = if step % 3 == 0 { len } else { offset };
                let count = 1 + random.below(3 * PAGE);
                if offset + count > PAGES_MAX * PAGE {
                    continue;
                }
                let bytes: Vec<u8> = (0..count).map(|at| (step + at) as u8 | 1).collect();
                assert_eq!(object.extend_at(offset, &bytes).unwrap(), bytes.len());
                let (at, end) = (offset as usize, (offset + count) as usize);
                expected.resize(expected.len().max(end), 0);
                expected[at..end].copy_from_slice(&bytes);
            }
            7 if len > 0 => {
                let offset = random.below(len);
                let count = 1 + random.below((len - offset).min(2 * PAGE));
                object.write_at(offset, &vec![7; count as usize]).unwrap();
                expected[offset as usize..][..count as usize].fill(7);
            }
            _ if len > 0 => {
                let offset = random.below(len);
                let count = 1 + random.below(len - offset);
                let end = (offset + count) as usize;
                let found = bytes_at(&object, offset, count);
                assert!(found == expected[offset as usize..end], "step {step}: {count} bytes at {offset}");
            }
            _ => {}
        }
        assert_eq!(object.len_bytes(), expected.len() as u64, "step {step}");
    }
    object.close().unwrap();
    assert_eq!(partition.stat().resident_bytes, 0);
    expected
}

#[test]
fn writes_past_the_end_agree_with_a_vector() {
    for seed in 0..8 {
        for cache_mode in [CacheMode::Writethrough, CacheMode::Writeback] {
            let file = Scratch::new(&format!("extending-{seed}"), 0);
            let expected = agree_with_a_vector(buffered(&file), cache_mode, seed);
            assert!(std::fs::read(&file.0).unwrap() == expected, "seed {seed}, {cache_mode:?}");
            agree_with_a_vector(Store::memory("m", 0), cache_mode, seed);
        }
    }
}

/// A store that is lengthened first, and then written, shows zeros to readers in between.
#[test]
fn a_reader_of_an_extended_file_never_sees_zeros() {
    let file = Scratch::new("extending-beside-readers", 0);
    let (_cache, _partition, object) = scene(small(1), sized(32 * PAGE), buffered(&file));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let len = object.len_bytes();
                    let start = len.saturating_sub(PAGE);
                    let bytes = bytes_at(&object, start, len - start);
                    assert!(bytes.iter().all(|byte| *byte != 0), "a zero before {len}");
                }
            });
        }
        for step in 0..2000u64 {
            let bytes = vec![step as u8 | 1; 1 + (step * 37 % 900) as usize];
            assert_eq!(object.extend_at(object.len_bytes(), &bytes).unwrap(), bytes.len());
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// What was just written is what is read next.
#[test]
fn bytes_past_the_end_stay_in_the_cache() {
    for cache_mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let file = Scratch::new("extending-and-reading", 0);
        let config = match cache_mode {
            CacheMode::Writethrough => sized(64 * PAGE),
            CacheMode::Writeback => written_back(64 * PAGE),
        };
        let (_cache, partition, object) = scene(small(1), config, buffered(&file));
        let bytes: Vec<u8> = (0..8 * PAGE).map(|at| at as u8 | 1).collect();
        let mut rest = &bytes[..];
        for count in [1, 4095, 4096, 5000, 3, 10_000].into_iter().chain([rest.len()]) {
            let (now, then) = rest.split_at(count.min(rest.len()));
            assert_eq!(object.extend_at(object.len_bytes(), now).unwrap(), now.len());
            rest = then;
        }
        let fills = partition.stat().fills;
        assert!(bytes_at(&object, 0, bytes.len() as u64) == bytes);
        assert_eq!(partition.stat().fills, fills, "{cache_mode:?}");
    }
}

#[test]
fn a_write_that_would_be_too_long_changes_nothing() {
    let file = Scratch::of("extending-too-far", b"bytes");
    let (_cache, _partition, object) = scene(small(1), sized(32 * PAGE), buffered(&file));
    let refused = object.extend_at(u64::MAX - 1, b"octavo");
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    let refused = object.extend_at(i64::MAX as u64 - 10_000, b"octavo");
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!((object.len_bytes(), bytes_at(&object, 0, 5)), (5, b"bytes".to_vec()));
    assert_eq!(std::fs::read(&file.0).unwrap(), b"bytes");
}
