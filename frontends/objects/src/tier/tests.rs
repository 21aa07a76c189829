//! The tier against flipped bits, torn writes, full disks and restarts, and against a naive twin.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use octavo_random::Random;
use tempfile::TempDir;

use super::{BlockKey, ObjectKey, Tier, TierConfig, files, header::HEADER_BYTES};
use crate::error::ErrorKind;

const BLOCK: u32 = 8 << 10;
const STRIDE: u64 = BLOCK as u64 + HEADER_BYTES as u64;

/// A directory on a disk: temporary directories may be in memory.
fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn config(directory: &TempDir, blocks: u64) -> TierConfig {
    TierConfig {
        directory: directory.path().join("tier"),
        max_bytes: files::bytes_for(blocks, STRIDE),
        block_bytes: BLOCK,
    }
}

fn key(object: u64, block: u64) -> BlockKey {
    let mut name = [0; 32];
    name.copy_from_slice(&Random::new(object).bytes(32));
    // Some blocks are the last of their objects.
    let len = if block % 5 == 4 { 1 + (object * 31 + block) as u32 % BLOCK } else { BLOCK };
    BlockKey { object: ObjectKey(name), block, len }
}

/// The bytes that every block with this key has.
fn bytes_of(key: &BlockKey) -> Vec<u8> {
    let name = u64::from_le_bytes(key.object.0[..8].try_into().unwrap());
    Random::new(name ^ key.block).bytes(key.len as usize)
}

fn put(tier: &Tier, key: &BlockKey) {
    tier.put(key, &bytes_of(key));
}

/// Whether a block is there. Its bytes must be right.
fn has(tier: &Tier, key: &BlockKey) -> bool {
    let mut bytes = vec![0; key.len as usize];
    let got = tier.get(key, &mut bytes);
    assert!(got.is_none() || bytes == bytes_of(key), "wrong bytes of {key:?}");
    assert!(got.is_some() || bytes.iter().all(|byte| *byte == 0), "a miss changed the buffer");
    got.is_some()
}

/// Returns the disk blocks of everything in a directory.
fn disk_bytes(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn a_restart_finds_the_blocks() {
    let directory = directory();
    let config = config(&directory, 400);
    let keys: Vec<BlockKey> =
        (0..20).flat_map(|object| (0..10).map(move |block| key(object, block))).collect();
    let tier = Tier::open(&config).unwrap();
    assert!(keys.iter().all(|key| !has(&tier, key)));
    keys.iter().for_each(|key| put(&tier, key));
    let found = keys.iter().filter(|key| has(&tier, key)).count() as u64;
    let stat = tier.stat();
    // Half of the room: a set rarely has too few ways.
    assert!(found >= 195 && stat.blocks == found && stat.written == 200, "{stat:?}");
    assert_eq!((stat.hits, stat.misses, stat.evicted), (found, 400 - found, 200 - found));
    drop(tier);
    let tier = Tier::open(&config).unwrap();
    assert_eq!(tier.stat().blocks, found);
    assert_eq!(keys.iter().filter(|key| has(&tier, key)).count() as u64, found);
    // Blocks that are there are not written again.
    let there: Vec<_> = keys.iter().filter(|key| has(&tier, key)).collect();
    there.iter().for_each(|key| put(&tier, key));
    assert_eq!((tier.stat().written, tier.stat().corrupt, tier.stat().io_errors), (0, 0, 0));
}

/// Changes a bit in the only file of a tier.
fn flip(config: &TierConfig, at: u64) {
    let file = File::options().read(true).write(true).open(config.directory.join("blocks-00000")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_flipped_bit_in_any_region_is_a_miss_that_is_counted_and_mended() {
    // Magic, format, length, object, block, sum of the data, padding, sum of the header, data.
    let regions = [0, 9, 13, 16, 47, 50, 60, 64, 2000, 4087, 4090, 4096, 6000, HEADER_BYTES as u64 + 8191];
    for at in regions {
        for restarts in [false, true] {
            let directory = directory();
            let config = config(&directory, 16);
            let mut tier = Tier::open(&config).unwrap();
            let key = key(1, 0);
            put(&tier, &key);
            assert!(has(&tier, &key));
            flip(&config, at);
            if restarts {
                drop(tier);
                tier = Tier::open(&config).unwrap();
            }
            assert!(!has(&tier, &key), "byte {at}");
            assert_eq!((tier.stat().corrupt, tier.stat().blocks), (1, 0), "byte {at}, restart: {restarts}");
            drop(tier);
            let tier = Tier::open(&config).unwrap();
            assert!(!has(&tier, &key), "the header was deleted");
            put(&tier, &key);
            assert!(has(&tier, &key));
        }
    }
}

#[test]
fn a_crash_between_data_and_header_loses_the_block() {
    let directory = directory();
    let config = config(&directory, 16);
    let old = key(1, 0);
    put(&Tier::open(&config).unwrap(), &old);
    // The next block of the place: its data came to the disk, its header did not.
    let file = File::options().write(true).open(config.directory.join("blocks-00000")).unwrap();
    file.write_all_at(&bytes_of(&key(2, 0)), HEADER_BYTES as u64).unwrap();
    let tier = Tier::open(&config).unwrap();
    assert_eq!(tier.stat().blocks, 1);
    assert!(!has(&tier, &old) && !has(&tier, &key(2, 0)));
    assert_eq!((tier.stat().corrupt, tier.stat().blocks), (1, 0));
}

#[test]
fn errors_of_the_disk_are_misses_that_are_counted() {
    let directory = directory();
    let config = config(&directory, 16);
    let tier = Tier::open(&config).unwrap();
    let (one, two) = (key(1, 0), key(1, 1));
    tier.files.faults.writes.store(1, SeqCst);
    put(&tier, &one);
    assert!(!has(&tier, &one));
    assert_eq!((tier.stat().io_errors, tier.stat().written, tier.stat().blocks), (1, 0, 0));
    put(&tier, &one);
    put(&tier, &two);
    tier.files.faults.reads.store(1, SeqCst);
    assert!(!has(&tier, &one) && has(&tier, &two));
    assert_eq!((tier.stat().io_errors, tier.stat().blocks), (2, 1));
    put(&tier, &one);
    assert!(has(&tier, &one));
}

#[test]
fn the_files_never_take_more_than_the_cap() {
    let directory = directory();
    let tempdir = &directory;
    for blocks in [100, 333, 60, 16] {
        let config = config(tempdir, blocks);
        let tier = Tier::open(&config).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (tier, config) = (&tier, &config);
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    for _ in 0..300 {
                        put(tier, &key(random.below(40), random.below(30)));
                        let bytes = disk_bytes(&config.directory);
                        assert!(bytes <= config.max_bytes, "{bytes} of {}", config.max_bytes);
                    }
                });
            }
        });
        let stat = tier.stat();
        assert!(stat.blocks <= stat.blocks_max && stat.blocks_max <= blocks + 8, "{stat:?}");
        assert!(stat.bytes <= config.max_bytes && stat.blocks > blocks / 2, "{stat:?}");
        assert_eq!(stat.io_errors, 0);
    }
}

#[test]
fn a_full_disk_leaves_what_there_is_and_is_asked_again() {
    let directory = directory();
    let config = TierConfig { block_bytes: 4 << 20, max_bytes: 4 << 30, ..config(&directory, 0) };
    let key = |block| BlockKey { len: 4096, ..key(1, block) };
    let tier = Tier::open(&config).unwrap();
    // A step has room for 15 blocks.
    (0..10).for_each(|block| put(&tier, &key(block)));
    let (bytes, full) = (tier.stat().bytes, &tier.files.faults.full);
    full.store(true, SeqCst);
    for block in 10..2000 {
        put(&tier, &key(block));
        let recent = (block - 9..=block).filter(|block| has(&tier, &key(*block))).count();
        assert!(recent > 0 || tier.stat().dropped > 0, "block {block}");
    }
    let stat = tier.stat();
    // Sets with a place go on: the last blocks evict earlier ones.
    assert_eq!((stat.bytes, stat.blocks), (bytes, 15), "{stat:?}");
    assert!(stat.disk_full > 0 && stat.evicted > 100 && stat.dropped > 100, "{stat:?}");
    full.store(false, SeqCst);
    std::thread::sleep(Duration::from_millis(60));
    (2000..2400).for_each(|block| put(&tier, &key(block)));
    let stat = tier.stat();
    assert!(stat.blocks > 300 && stat.bytes > bytes, "{stat:?}");
}

#[test]
fn a_second_opener_is_refused() {
    let directory = directory();
    let config = config(&directory, 16);
    let tier = Tier::open(&config).unwrap();
    let error = Tier::open(&config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("another process uses it"), "{error}");
    drop(tier);
    Tier::open(&config).unwrap();
}

#[test]
fn settings_and_directories_that_cannot_be_are_refused() {
    let directory = directory();
    let good = config(&directory, 16);
    let error = |config: TierConfig| {
        let error = Tier::open(&config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        error.to_string()
    };
    let relative = error(TierConfig { directory: "here".into(), ..good.clone() });
    assert!(relative.contains("an absolute path is needed"), "{relative}");
    let small = error(TierConfig { max_bytes: good.max_bytes - 1, ..good.clone() });
    assert!(small.contains(&format!("need {} or more", good.max_bytes)), "{small}");
    let odd = error(TierConfig { block_bytes: 5000, ..good.clone() });
    assert!(odd.contains("a power of two"), "{odd}");
    fs::write(directory.path().join("thesis.tex"), "years").unwrap();
    let other = error(TierConfig { directory: directory.path().into(), ..good.clone() });
    assert!(other.contains("thesis.tex"), "{other}");
    let file = error(TierConfig { directory: directory.path().join("thesis.tex"), ..good.clone() });
    assert!(file.contains("cannot make its directory"), "{file}");
    let under = error(TierConfig { directory: "/proc/tier".into(), ..good });
    assert!(under.contains("/proc/tier: the file tier cannot"), "{under}");
}

#[test]
fn the_directory_is_for_its_owner_only() {
    let directory = directory();
    let config = config(&directory, 16);
    let tier = Tier::open(&config).unwrap();
    put(&tier, &key(1, 0));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&config.directory), 0o700);
    let names = ["format", "lock", "blocks-00000"];
    assert!(names.iter().all(|name| mode(&config.directory.join(name)) == 0o600));
    assert_eq!(fs::read_dir(&config.directory).unwrap().count(), names.len());
}

#[test]
fn blocks_of_another_length_or_format_are_deleted() {
    let directory = directory();
    let config = config(&directory, 100);
    let (key, format) = (key(1, 0), config.directory.join("format"));
    put(&Tier::open(&config).unwrap(), &key);
    let other = TierConfig { block_bytes: 2 * BLOCK, max_bytes: 2 * config.max_bytes, ..config.clone() };
    assert_eq!(Tier::open(&other).unwrap().stat().blocks, 0);
    for text in ["", "format 2\n", "\u{fffd}", "block_bytes 8192\nblocks_per_file 0\n"] {
        put(&Tier::open(&config).unwrap(), &key);
        assert!(has(&Tier::open(&config).unwrap(), &key));
        fs::write(&format, text).unwrap();
        assert_eq!(Tier::open(&config).unwrap().stat().blocks, 0, "{text:?}");
    }
}

#[test]
fn forgotten_objects_do_not_come_back() {
    let directory = directory();
    let config = config(&directory, 200);
    let tier = Tier::open(&config).unwrap();
    let len = |block: u64| if block == 8 { 100 } else { BLOCK };
    let [one, two] =
        [1, 2].map(|object| (0..9).map(move |block| BlockKey { len: len(block), ..key(object, block) }));
    one.clone().chain(two.clone()).for_each(|key| put(&tier, &key));
    let before = two.clone().filter(|key| has(&tier, key)).count();
    tier.forget(&key(1, 0).object, 8 * u64::from(BLOCK) + 100);
    assert_eq!(one.clone().filter(|key| has(&tier, key)).count(), 0);
    assert_eq!(tier.stat().blocks, before as u64);
    drop(tier);
    let tier = Tier::open(&config).unwrap();
    assert_eq!(one.filter(|key| has(&tier, key)).count(), 0);
    assert_eq!(two.filter(|key| has(&tier, key)).count(), before);
    assert_eq!(tier.stat().corrupt, 0);
}

#[test]
fn blocks_that_are_used_outlive_those_that_pass() {
    let directory = directory();
    let config = config(&directory, 512);
    let tier = Tier::open(&config).unwrap();
    let used: Vec<BlockKey> = (0..100).map(|block| key(1, block)).collect();
    for round in 0..20 {
        for key in &used {
            if !has(&tier, key) {
                put(&tier, key);
            }
        }
        (0..200).for_each(|block| put(&tier, &key(2 + round, block)));
    }
    let left = used.iter().filter(|key| has(&tier, key)).count();
    assert!(left >= 90, "{left} of 100 blocks, {:?}", tier.stat());
}

/// The naive twin: what was put and not forgotten since. The tier may lose blocks, but has no
/// others, and no other bytes.
#[test]
fn random_operations_agree_with_a_naive_twin() {
    let directory = directory();
    let mut config = config(&directory, 200);
    let mut tier = Tier::open(&config).unwrap();
    let mut twin: HashSet<BlockKey> = HashSet::new();
    let (mut random, mut hits, mut gets) = (Random::new(22), 0, 0);
    for step in 0..100_000 {
        let (object, block) = (random.below(60), random.below(10));
        let key = key(object, block);
        match random.below(2000) {
            0..700 => {
                put(&tier, &key);
                twin.insert(key);
            }
            700..1980 => {
                gets += 1;
                let has = has(&tier, &key);
                hits += u64::from(has);
                assert!(!has || twin.contains(&key), "step {step}: {key:?} was never put");
            }
            1980..1995 => {
                tier.forget_block(&key);
                twin.remove(&key);
            }
            1995..1999 => {
                let before = tier.stat().blocks;
                drop(tier);
                let blocks = random.pick(&[200, 200, 200, 90, 400]);
                let max_bytes = files::bytes_for(blocks, STRIDE);
                let is_same = max_bytes == std::mem::replace(&mut config.max_bytes, max_bytes);
                tier = Tier::open(&config).unwrap();
                let after = tier.stat().blocks;
                // With another seed, a few sets may have more blocks than ways.
                assert!(after <= before && (!is_same || after * 10 >= before * 7), "{before}, {after}");
            }
            _ => {
                let file = File::options().write(true).open(config.directory.join("blocks-00000"));
                let at = random.below(90 * STRIDE);
                if let Ok(file) = file {
                    file.write_all_at(&[random.next_u64() as u8], at).unwrap();
                    file.sync_all().unwrap();
                }
            }
        }
    }
    let stat = tier.stat();
    assert!(hits * 10 > gets, "{hits} of {gets}");
    assert_eq!((stat.io_errors, stat.dropped), (0, 0), "{stat:?}");
}

#[test]
fn threads_get_what_was_put() {
    let directory = directory();
    let config = config(&directory, 64);
    let tier = Tier::open(&config).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let tier = &tier;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..2000 {
                    let key = key(random.below(10), random.below(12));
                    match random.below(20) {
                        0 => tier.forget_block(&key),
                        1..8 => put(tier, &key),
                        _ => drop(has(tier, &key)),
                    }
                }
            });
        }
    });
    let stat = tier.stat();
    assert_eq!((stat.corrupt, stat.io_errors), (0, 0), "{stat:?}");
    let left = (0..10).flat_map(|object| (0..12).map(move |block| key(object, block)));
    assert_eq!(left.filter(|key| has(&tier, key)).count() as u64, stat.blocks, "{stat:?}");
    assert!(stat.hits > 1000 && stat.evicted > 100, "{stat:?}");
}

#[test]
fn memory_is_bounded_and_told() {
    let directory = directory();
    // The index of a tier of 100 GiB, with no block yet.
    let config = TierConfig { block_bytes: 512 << 10, max_bytes: 100 << 30, ..config(&directory, 0) };
    let tier = Tier::open(&config).unwrap();
    let stat = tier.stat();
    assert!(stat.bytes <= 8192 && stat.blocks_max > 195_000, "{stat:?}");
    let index = tier.memory_bytes() - tier.buffers.memory_bytes();
    assert!(index < stat.blocks_max * 64, "{index}");
    assert!(tier.memory_bytes() < 24 << 20, "{}", tier.memory_bytes());
}
