//! The sizes that `CacheConfig::fitting` computes are those of the caches that are then created.

use std::time::{Duration, Instant};

use octavo::disk::Store;
use octavo::{Cache, CacheConfig, Error, Partition, PartitionConfig};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A cache of `memory_max_bytes` with threads of its own, like those of users, and its partitions.
fn cache(config: &CacheConfig, memory_max_bytes: u64, max_bytes: &[Option<u64>]) -> (Cache, Vec<Partition>) {
    let cache = Cache::new(CacheConfig { memory_max_bytes, ..config.clone() }).unwrap();
    let partition = |(number, max_bytes): (usize, &Option<u64>)| {
        let config = PartitionConfig { max_bytes: *max_bytes, ..PartitionConfig::new(&format!("p{number}")) };
        cache.partition(config).unwrap()
    };
    let partitions = max_bytes.iter().enumerate().map(partition).collect();
    (cache, partitions)
}

#[test]
fn a_cache_of_the_size_that_fits_has_frames_for_the_working_set() {
    let sizes = [16 * MIB, 32 * MIB, 33 * MIB + 1, 100 * MIB, 256 * MIB, 1000 * MIB + 5, 3 * GIB];
    for page_bytes in [4096, 16 << 10, 64 << 10, 1 << 20] {
        for buffers_max_bytes in [None, Some(12 * MIB)] {
            let config = CacheConfig { page_bytes, buffers_max_bytes, ..CacheConfig::default() };
            for (size, partitions) in sizes.into_iter().flat_map(|size| [(size, 1), (size, 3)]) {
                let Ok(sizing) = config.fitting(size, partitions) else {
                    assert!(page_bytes == 1 << 20 && size / u64::from(partitions) < 16 * MIB);
                    continue;
                };
                let what = format!("{page_bytes} {buffers_max_bytes:?} {size} {partitions}: {sizing:?}");
                let memory_max_bytes = sizing.memory_max_bytes;
                let each = vec![sizing.partition_max_bytes; partitions as usize];
                let (cache, made) = cache(&config, memory_max_bytes, &each);
                let frames_bytes: u64 = made.iter().map(|partition| partition.stat().max_bytes).sum();
                assert!(frames_bytes >= size, "{frames_bytes} of frames: {what}");
                assert_eq!(frames_bytes, sizing.frames_bytes, "{what}");
                made.iter().for_each(|made| {
                    assert_eq!(made.stat().charged_bytes, sizing.partition_bytes, "{what}");
                });
                let stat = cache.stat();
                assert_eq!(stat.memory_charged_bytes, memory_max_bytes - sizing.rounding_bytes, "{what}");
                // The inverse agrees.
                let inverse = CacheConfig { memory_max_bytes, ..config.clone() }.sizing(partitions);
                assert_eq!(inverse.unwrap(), sizing);
            }
        }
    }
}

#[test]
fn a_tenth_more_memory_than_a_file_has_frames_for_the_file() {
    // Every size up to 256 MiB in steps that are no whole segments, then sparser ones.
    let small = (0..448).map(|step| 32 * MIB + step * (MIB / 2));
    let large = (0..400).map(|step| 256 * MIB + step * step * (MIB / 2 + 4096));
    for file in small.chain(large).chain([100 * GIB]) {
        let config = CacheConfig { memory_max_bytes: file / 10 * 11, ..CacheConfig::default() };
        let sizing = config.sizing(1).unwrap();
        assert!(sizing.frames_bytes >= file, "{file}: {sizing:?}");
    }
}

#[test]
fn sizes_that_no_cache_has_are_refused() {
    let config = CacheConfig::default();
    let refusal = |refused: Result<octavo::Sizing, Error>| match refused {
        Err(Error::Config(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refusal(config.fitting(0, 1)).contains("less than 2097152 bytes, one segment"));
    assert!(refusal(config.fitting((2 << 20) - 1, 1)).contains("one segment"));
    assert!(refusal(config.fitting(6 << 20, 4)).contains("less than 8388608 bytes"));
    assert!(refusal(config.fitting(1 << 47, 1)).contains("which the largest cache holds"));
    assert!(refusal(config.fitting(u64::MAX, 1)).contains("which the largest cache holds"));
    assert!(refusal(config.fitting(64 << 20, 0)).contains("partitions is 0"));
    let odd = CacheConfig { page_bytes: 5000, ..CacheConfig::default() };
    assert!(refusal(odd.fitting(64 << 20, 1)).contains("page_bytes is 5000"));
    let little = CacheConfig { memory_max_bytes: 2 << 20, ..CacheConfig::default() };
    assert!(refusal(little.sizing(1)).contains("memory_max_bytes is 2097152: too little for 1 partitions"));
}

/// The table in the documentation of `CacheConfig`.
#[test]
fn the_documented_sizes_are_the_computed_ones() {
    let text = include_str!("../../src/config.rs");
    let rows =
        text.lines().filter_map(|line| line.strip_prefix("/// | ")).filter(|row| row.contains("iB | "));
    let bytes = |text: &str| -> u64 {
        let (count, unit) = text.split_once(' ').unwrap();
        count.parse::<u64>().unwrap() << if unit == "GiB" { 30 } else { 20 }
    };
    let mut count = 0;
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let (working_set, memory_max) = (bytes(cells[0]), bytes(cells[1]));
        let computed = CacheConfig::default().fitting(working_set, 1).unwrap().memory_max_bytes;
        assert_eq!(memory_max, computed, "{row}");
        count += 1;
    }
    assert!(count >= 8, "{count} rows");
}

/// Regression: a partition lost one segment after the other, and each gave its directory entries to
/// all others, so that most entries moved many times: a removal of 8 GiB took 24 seconds, though
/// nothing was cached. (In a build for tests it took minutes; now it takes about a second.)
#[test]
fn an_empty_partition_of_eight_gigabytes_shrinks_and_is_removed_at_once() {
    let config = CacheConfig { reaper: false, background: false, ..CacheConfig::default() };
    let (cache, made) = cache(&config, 10 * GIB, &[Some(8 * GIB)]);
    assert!(made[0].stat().max_bytes >= 7 * GIB);
    let begun = Instant::now();
    made[0].resize(4 * GIB).unwrap();
    let pages = [7; 4096];
    let object = made[0].open(Store::memory("disk", MIB), "disk").unwrap();
    object.write_at(0, &pages).unwrap();
    let mut read = [0; 4096];
    object.read_at(0, &mut read).unwrap();
    made[0].resize(GIB).unwrap();
    assert!(object.try_read_at(0, &mut read).unwrap(), "a page moves to a segment that stays");
    assert_eq!(read, pages);
    assert!(made[0].stat().charged_bytes < 2 * GIB);
    cache.remove_partition("p0").unwrap();
    drop((object, made));
    assert!(cache.stat().memory_charged_bytes < GIB);
    let limit = Duration::from_secs(60);
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
}
