//! Files that something else changes while they are cached.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use octavo::disk::{OpenOptions, Store};
use octavo::{CacheConfig, CacheMode, Error, PartitionConfig};
use octavo_random::Random;

use crate::fixture::{PAGE, Scratch, bytes_at, open, scene, small};
use crate::watchdog::Watchdog;

fn outside(file: &Scratch) -> File {
    File::options().read(true).write(true).open(&file.0).unwrap()
}

fn written_back() -> PartitionConfig {
    PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("p") }
}

/// One thread writes rising versions of pages into the file and invalidates them; others read. A
/// read that begins after an invalidation sees that version or a later one.
#[test]
fn no_read_that_begins_after_an_invalidation_gets_older_bytes() {
    let _watchdog = Watchdog::new(Duration::from_secs(120), "readers beside invalidations");
    const PAGES: u64 = 48;
    let file = Scratch::new("invalidated", PAGES * PAGE);
    // Two sets: pages come and go by themselves, too.
    let cache = CacheConfig { background: true, ..small(3) };
    let partition = PartitionConfig { max_bytes: Some(200 << 10), ..PartitionConfig::new("p") };
    let (_cache, _partition, object) = scene(cache, partition, open(&file.0));
    let told: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (object, told, over) = (&object, &told, &over);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                let mut bytes = [0; 16];
                while !over.load(Ordering::Relaxed) {
                    let page = random.below(PAGES);
                    let least = told[page as usize].load(Ordering::Acquire);
                    object.read_at(page * PAGE + random.below(PAGE - 16), &mut bytes).unwrap();
                    let version = u64::from(bytes[0]);
                    assert!(version >= least, "page {page}: version {version} after {least} was told");
                }
            });
        }
        let (file, mut random) = (outside(&file), Random::new(9));
        for version in 1..=200u8 {
            for _ in 0..8 {
                let (page, pages) = (random.below(PAGES - 3), 1 + random.below(3));
                file.write_all_at(&vec![version; (pages * PAGE) as usize], page * PAGE).unwrap();
                assert_eq!(object.invalidate(page * PAGE, pages * PAGE).unwrap(), 0);
                (page..page + pages).for_each(|page| {
                    told[page as usize].store(version.into(), Ordering::Release);
                });
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn dirty_pages_outlive_an_invalidation_and_are_counted() {
    let file = Scratch::of("dirty", &[1; 4 * PAGE as usize]);
    let (_cache, _partition, object) = scene(small(1), written_back(), open(&file.0));
    assert_eq!(bytes_at(&object, 0, 4 * PAGE), [1; 4 * PAGE as usize]);
    object.write_at(PAGE, b"octavo").unwrap();
    outside(&file).write_all_at(&[2; 4 * PAGE as usize], 0).unwrap();
    let pin = object.pin(0).unwrap().unwrap();
    assert_eq!(object.invalidate(0, u64::MAX).unwrap(), PAGE);
    assert!(pin.iter().all(|byte| *byte == 1), "a pin is a snapshot");
    assert_eq!(bytes_at(&object, 0, PAGE), [2; PAGE as usize]);
    assert!(bytes_at(&object, PAGE, PAGE).starts_with(b"octavo\x01"), "a page is dirty as a whole");
    assert_eq!(bytes_at(&object, 2 * PAGE, 2 * PAGE), [2; 2 * PAGE as usize]);
    object.close().unwrap();
    assert!(matches!(object.invalidate(0, 1), Err(Error::Closed { .. })));
    assert!(matches!(object.adopt_len_bytes(), Err(Error::Closed { .. })));
    assert!(matches!(object.start_generation(), Err(Error::Closed { .. })));
}

#[test]
fn a_length_from_outside_is_adopted_with_what_was_gained_and_without_what_was_lost() {
    for direct in [true, false] {
        let file = Scratch::of("length", &[1; 10_000]);
        let store = Store::open(&file.0, &OpenOptions { direct, ..OpenOptions::default() }).unwrap();
        let (_cache, _partition, object) = scene(small(2), written_back(), store);
        assert_eq!(object.adopt_len_bytes().unwrap(), 10_000, "nothing has changed");
        assert_eq!(bytes_at(&object, 0, 10_000), [1; 10_000]);
        // The page at the end is dirty, and another program appends to the file.
        object.write_at(9_990, b"octavo").unwrap();
        outside(&file).write_all_at(&[2; 10_000], 10_000).unwrap();
        assert!(matches!(object.read_at(10_000, &mut [0]), Err(Error::PastEnd { .. })));
        assert_eq!(object.adopt_len_bytes().unwrap(), 20_000);
        let bytes = bytes_at(&object, 9_990, 10_010);
        assert!(bytes.starts_with(b"octavo\x01\x01\x01\x01\x02\x02"), "{:?}", &bytes[..12]);
        assert!(bytes[10..].iter().all(|byte| *byte == 2));
        // Pages beyond a new end are gone, whatever was in them.
        object.sync().unwrap();
        outside(&file).set_len(5_000).unwrap();
        assert_eq!(object.adopt_len_bytes().unwrap(), 5_000);
        assert_eq!((object.len_bytes(), object.stat().dirty_bytes), (5_000, 0));
        outside(&file).set_len(20_000).unwrap();
        assert_eq!(object.adopt_len_bytes().unwrap(), 20_000);
        assert_eq!(bytes_at(&object, 4_990, 20), [[1; 10], [0; 10]].concat());
        object.sync().unwrap();
        assert_eq!(bytes_at(&object, 8_192, 11_808), [0; 11_808]);
    }
}

#[test]
fn a_read_only_store_can_change_from_outside_too() {
    let file = Scratch::of("read-only", &[1; 8192]);
    let store = Store::open(&file.0, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let (_cache, _partition, object) = scene(small(4), PartitionConfig::new("p"), store);
    assert_eq!(bytes_at(&object, 0, 8192), [1; 8192]);
    std::fs::write(&file.0, [3; 12_288]).unwrap();
    assert_eq!(object.start_generation().unwrap(), 0);
    assert_eq!(bytes_at(&object, 0, 12_288), [3; 12_288]);
}

#[test]
fn a_new_generation_loses_dirty_pages_and_says_how_many_bytes() {
    let file = Scratch::of("generation", &[1; 8192]);
    let (_cache, _partition, object) = scene(small(5), written_back(), open(&file.0));
    object.write_at(0, b"octavo").unwrap();
    std::fs::write(&file.0, [4; 5_000]).unwrap();
    assert_eq!(object.start_generation().unwrap(), PAGE);
    assert_eq!(object.len_bytes(), 5_000);
    object.sync().unwrap();
    assert_eq!(bytes_at(&object, 0, 5_000), [4; 5_000]);
    assert_eq!(std::fs::read(&file.0).unwrap(), [4; 5_000]);
}
