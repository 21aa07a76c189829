//! Loops of hits of 128 bytes, and of misses, whose instructions are counted:
//! `octavo-instructions MODE COUNT`. The modes:
//!
//! - `single` and `batch`: reads by `read_at`, and by `read_batch` in batches of 32.
//! - `sequential`: reads of 128 KiB by `read_at`, one after the other.
//! - `write`: writes by `write_at` in write-back mode, to pages that are dirty already.
//! - `pin`: pins by `pin`, each dropped at once.
//! - `miss`: reads by `read_at` of random pages of a file of 1 GiB of zeros, sixty times the
//!   cache. Nearly every one evicts a page and makes one system call, whose instructions in the
//!   kernel are not counted.
//! - `nodes` and `nodes-batch`: `single` and `batch` with pages divided among two emulated nodes;
//!   the engine counts whose pages are read.
//! - `recorded` and `sampled`: `single` while all pages are recorded, or one in 64.
//! - `watched`: `single` after every statistic that a dashboard shows was read ten times. To be
//!   watched must not change what a hit does.
//! - `create`: partitions that `Cache::create` creates together.
//! - `stats`: objects of one partition whose statistics `Object::stats_of` reads together, beside
//!   dirty pages.
//!
//! With two runs of different counts, the difference in instructions divided by the difference in
//! counts is the cost of one hit, without start and end. The cost of one partition or object of
//! many shows whether it grows with their number. The cache has a fixed seed and no background
//! threads, so every run executes the same instructions. `cargo xtask instructions` runs it under
//! callgrind. Time is not measured.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use octavo::disk::{OpenOptions, Store};
use octavo::numa::{NumaMode, TopologySource, sit};
use octavo::recording::WHOLE;
use octavo::{Cache, CacheConfig, CacheMode, Object, Partition, PartitionConfig, Read, Taken};

const BYTES: usize = 128;
const BATCH: usize = 32;
const PAGE_BYTES: u64 = 4096;

/// The length of a `sequential` read.
const LONG_BYTES: usize = 128 << 10;

/// The memory of the cache.
const MEMORY_BYTES: u64 = 20 << 20;

/// A quarter of the cache, so that every set has room.
const PAGES: u64 = 1024;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let count = words.get(1).and_then(|count| count.parse::<u64>().ok());
    let result = match (words.first().map(String::as_str), count) {
        (Some("single"), Some(count)) => object(1).and_then(|object| single(&object, count)),
        (Some("pin"), Some(count)) => object(1).and_then(|object| pin(&object, count)),
        (Some("batch"), Some(count)) => object(1).and_then(|object| batch(&object, count)),
        (Some("sequential"), Some(count)) => object(1).and_then(|object| sequential(&object, count)),
        (Some("miss"), Some(count)) => miss(count),
        (Some("write"), Some(count)) => object(1).and_then(|object| write(&object, count)),
        (Some("nodes"), Some(count)) => object(2).and_then(|object| single(&object, count)),
        (Some("nodes-batch"), Some(count)) => object(2).and_then(|object| batch(&object, count)),
        (Some("recorded"), Some(count)) => recorded(WHOLE, count),
        (Some("sampled"), Some(count)) => recorded(WHOLE / 64, count),
        (Some("watched"), Some(count)) => watched(count),
        (Some("create"), Some(count)) => create(count),
        (Some("stats"), Some(count)) => stats(count),
        _ => {
            eprintln!(
                "octavo-instructions single|batch|sequential|write|pin|miss|nodes|nodes-batch|recorded|\
                 sampled|watched|create|stats COUNT"
            );
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Hits while the partition is recorded, and a thread takes the blocks.
fn recorded(sample_below: u32, count: u64) -> Result<(), octavo::Error> {
    let (partition, object) = parts(1)?;
    let mut recording = partition.record(sample_below)?;
    let taker = std::thread::spawn(move || {
        while let Taken::Block(block) = recording.take(Duration::from_secs(60)) {
            recording.give_back(block);
        }
    });
    let result = single(&object, count);
    partition.stop_recording();
    taker.join().expect("the taker does not panic");
    result
}

/// Hits of a partition whose statistics were read before.
fn watched(count: u64) -> Result<(), octavo::Error> {
    let (cache, partition) = partition(1)?;
    let object = resident(&partition)?;
    for _ in 0..10 {
        black_box((cache.stat(), cache.reaper_stat(), cache.events(0), cache.proposal()));
        black_box((partition.stat(), partition.latency(), partition.occupancy(), partition.miss_curve()));
        black_box(object.stat());
    }
    single(&object, count)
}

/// Many partitions at once, as a server's configuration has them.
fn create(count: u64) -> Result<(), octavo::Error> {
    const MAX_BYTES: u64 = 4 << 20;
    let cache = cache(1, 2 * count * MAX_BYTES)?;
    let config = |number| PartitionConfig {
        max_bytes: Some(MAX_BYTES),
        ..PartitionConfig::new(&format!("group/{number}"))
    };
    let made = cache.create((0..count).map(config).collect());
    made.into_iter().collect::<Result<Vec<_>, _>>().map(drop)
}

/// The statistics of many objects, as a drain and a report read them.
fn stats(count: u64) -> Result<(), octavo::Error> {
    let (_cache, partition) = partition(1)?;
    write(&resident(&partition)?, 0)?;
    let open = |number: u64| {
        let name = number.to_string();
        partition.open(Store::memory(&name, PAGE_BYTES), &name)
    };
    let objects = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
    black_box(Object::stats_of(&objects));
    Ok(())
}

fn object(nodes: u32) -> Result<Object, octavo::Error> {
    parts(nodes).map(|(_, object)| object)
}

/// A cache without background threads.
fn cache(nodes: u32, memory_max_bytes: u64) -> Result<Cache, octavo::Error> {
    sit(0);
    let config = CacheConfig {
        topology: TopologySource::Emulated { nodes, cores: 1 },
        numa: NumaMode::Partition,
        memory_max_bytes,
        buffers_max_bytes: Some(2 << 20),
        background: false,
        seed: Some(1),
        ..CacheConfig::default()
    };
    Cache::new(config)
}

fn partition(nodes: u32) -> Result<(Cache, Partition), octavo::Error> {
    let config = PartitionConfig {
        cache_mode: CacheMode::Writeback,
        dirty_max_bytes: Some(PAGES * PAGE_BYTES * 2),
        ..PartitionConfig::new("counted")
    };
    let cache = cache(nodes, MEMORY_BYTES)?;
    let partition = cache.partition(config)?;
    Ok((cache, partition))
}

fn parts(nodes: u32) -> Result<(Partition, Object), octavo::Error> {
    let (_, partition) = partition(nodes)?;
    let object = resident(&partition)?;
    Ok((partition, object))
}

/// An object whose pages are all resident and marked: further hits change nothing.
fn resident(partition: &Partition) -> Result<Object, octavo::Error> {
    // One page more: a hit in the last page of an object takes the slow path.
    let object = partition.open(Store::memory("pages", (PAGES + 1) * PAGE_BYTES), "pages")?;
    let mut byte = [0; 8];
    for page in (0..PAGES).chain(0..PAGES) {
        object.read_at(page * PAGE_BYTES, &mut byte)?;
    }
    Ok(object)
}

/// Reads of random pages of a file that is much larger than the cache.
fn miss(count: u64) -> Result<(), octavo::Error> {
    const FILE_PAGES: u64 = (1 << 30) / PAGE_BYTES;
    let path = std::env::temp_dir().join(format!("octavo-instructions-{}", std::process::id()));
    let options = OpenOptions {
        create_len_bytes: Some(FILE_PAGES * PAGE_BYTES),
        direct: false,
        ..OpenOptions::default()
    };
    let store = Store::open(&path, &options).map_err(|error| octavo::Error::Config(error.to_string()))?;
    // The store keeps the file open.
    let _ = std::fs::remove_file(&path);
    // Calls borrow the lanes of a living cache.
    let (_cache, partition) = partition(1)?;
    let object = partition.open(store, "pages")?;
    let mut buffer = [0; BYTES];
    let mut random = 1u64;
    // The first reads fill the cache.
    for _ in 0..3 * MEMORY_BYTES / PAGE_BYTES + count {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        object.read_at((random >> 33) % FILE_PAGES * PAGE_BYTES, &mut buffer)?;
        black_box(&mut buffer);
    }
    Ok(())
}

/// The offset of place `number` of all places in the pages. The stride is odd, so it reaches all.
fn offset(number: u64) -> u64 {
    const PLACES: u64 = PAGES * PAGE_BYTES / BYTES as u64;
    number.wrapping_mul(0x9E37_79B9) % PLACES * BYTES as u64
}

fn single(object: &Object, count: u64) -> Result<(), octavo::Error> {
    let mut buffer = [0; BYTES];
    for number in 0..count {
        object.read_at(offset(number), &mut buffer)?;
        black_box(&mut buffer);
    }
    Ok(())
}

fn sequential(object: &Object, count: u64) -> Result<(), octavo::Error> {
    let mut buffer = vec![0; LONG_BYTES];
    for number in 0..count {
        let offset = number * LONG_BYTES as u64 % (PAGES * PAGE_BYTES);
        object.read_at(offset, &mut buffer)?;
        black_box(&mut buffer);
    }
    Ok(())
}

fn pin(object: &Object, count: u64) -> Result<(), octavo::Error> {
    for number in 0..count {
        black_box(object.pin(offset(number))?);
    }
    Ok(())
}

fn write(object: &Object, count: u64) -> Result<(), octavo::Error> {
    let bytes = [7; BYTES];
    for page in 0..PAGES {
        object.write_at(page * PAGE_BYTES, &bytes)?;
    }
    for number in 0..count {
        object.write_at(offset(number), black_box(&bytes))?;
    }
    Ok(())
}

fn batch(object: &Object, count: u64) -> Result<(), octavo::Error> {
    let mut buffers = [[0; BYTES]; BATCH];
    let mut reads: Vec<Read<'_>> = buffers.iter_mut().map(|buffer| Read { offset: 0, buffer }).collect();
    for first in (0..count).step_by(BATCH) {
        for (number, read) in (first..).zip(&mut reads) {
            read.offset = offset(number);
        }
        object.read_batch(&mut reads)?;
        black_box(&mut reads);
    }
    Ok(())
}
