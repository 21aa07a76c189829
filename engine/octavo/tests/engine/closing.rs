//! A closed object has closed its file, whatever handles exist, and the last handle closes the
//! object.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use octavo::disk::{OpenOptions, SimFaults, Store};
use octavo::{CacheConfig, Error, Happened, Object};

use crate::fixture::{
    PAGE, Scratch, bytes_at, disk, open, read_request, scene, sized, small, succeed_all, until,
    write_request, written_back,
};
use crate::watchdog::Watchdog;

const MIB: u64 = 1 << 20;

/// How long a test may take that waits for a thread of the cache.
const PATIENCE: Duration = Duration::from_secs(120);

/// The number of descriptors of this process that lead to the file.
fn descriptors(path: &Path) -> usize {
    let path = path.canonicalize().unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link == path)).count()
}

/// A cache with a cleaner.
fn cleaned(seed: u64) -> CacheConfig {
    CacheConfig { background: true, reaper: false, ..small(seed) }
}

/// Regression: the lock and two descriptors stayed until the last handle was dropped. The second
/// run of a notebook's cell, whose variables live, could not open the file.
#[test]
fn a_close_ends_the_lock_and_closes_the_file_whatever_handles_exist() {
    for direct in [true, false] {
        let file = Scratch::new("closed-with-handles", MIB);
        let store = Store::open(&file.0, &OpenOptions { direct, ..OpenOptions::default() }).unwrap();
        let (_cache, partition, object) = scene(small(1), written_back(MIB), store);
        let other = object.clone();
        let listed = partition.objects();
        object.write_at(5000, b"octavo").unwrap();
        assert!(descriptors(&file.0) > 0);
        object.close().unwrap();
        assert_eq!(descriptors(&file.0), 0);
        let again = partition.open(open(&file.0), "again").unwrap();
        assert_eq!(bytes_at(&again, 5000, 6), b"octavo");
        for left in [&object, &other, &listed[0]] {
            let mut byte = [0];
            assert!(matches!(left.read_at(0, &mut byte), Err(Error::Closed { .. })));
            assert!(matches!(left.write_at(0, &byte), Err(Error::Closed { .. })));
            assert!(matches!(left.sync(), Err(Error::Closed { .. })));
            assert!(left.store().present_len_bytes().is_err() && left.store().stamp().is_none());
            left.close().unwrap();
        }
        let error = partition.open(object.store().clone(), "closed").err().unwrap().to_string();
        assert!(error.ends_with("the store was closed with its object"), "{error}");
        // The handles that are left keep nothing of the new object.
        drop((object, other, listed));
        assert_eq!(bytes_at(&again, 5000, 6), b"octavo");
        assert!(Store::open(&file.0, &OpenOptions::default()).is_err(), "it is locked");
    }
}

/// A handle of the store, which is not the object's, keeps the file open, and can be used again.
#[test]
fn a_store_that_the_caller_keeps_stays_open_and_can_be_opened_again() {
    let file = Scratch::new("kept-store", MIB);
    let store = open(&file.0);
    let (_cache, partition, object) = scene(small(2), written_back(MIB), store.clone());
    object.write_at(0, b"one").unwrap();
    object.close().unwrap();
    assert!(!store.is_closed() && Store::open(&file.0, &OpenOptions::default()).is_err());
    let again = partition.open(store.clone(), "again").unwrap();
    assert_eq!(bytes_at(&again, 0, 3), b"one");
    again.write_at(0, b"two").unwrap();
    again.close().unwrap();
    drop(store);
    assert_eq!(descriptors(&file.0), 0, "the last handle that keeps the file open is gone");
    assert_eq!(&std::fs::read(&file.0).unwrap()[..3], b"two");
    drop((object, again));
}

/// Regression: a dropped object stayed open for ever, with two descriptors.
#[test]
fn a_thousand_objects_that_are_dropped_leave_no_descriptor() {
    let file = Scratch::new("dropped", MIB);
    let (cache, partition, kept) = scene(cleaned(3), sized(MIB), Store::memory("kept", MIB));
    let _watchdog = Watchdog::new(PATIENCE, "a thousand objects");
    for round in 0..1000_u64 {
        let object = partition.open(open(&file.0), &format!("object {round}")).unwrap();
        let twin = object.clone();
        assert_eq!(bytes_at(&object, round % 256 * PAGE, 8), [0; 8]);
        drop(object);
        assert_eq!(bytes_at(&twin, 0, 8), [0; 8]);
    }
    assert_eq!((descriptors(&file.0), partition.objects().len()), (0, 1));
    assert_eq!(bytes_at(&kept, 0, 8), [0; 8]);
    drop(kept);
    assert!(partition.objects().is_empty());
    drop(cache);
}

#[test]
fn an_object_with_dirty_pages_that_is_dropped_is_written_back_and_then_closed() {
    let file = Scratch::new("dropped-dirty", MIB);
    let (cache, partition, object) = scene(cleaned(4), written_back(MIB), open(&file.0));
    let _watchdog = Watchdog::new(PATIENCE, "a dropped object with dirty pages");
    object.write_at(5000, b"octavo").unwrap();
    drop(object);
    until(|| descriptors(&file.0) == 0);
    assert!(partition.objects().is_empty() && partition.stat().dirty_bytes == 0);
    assert_eq!(&std::fs::read(&file.0).unwrap()[5000..5006], b"octavo");
    assert!(cache.events(0).is_empty());
}

/// Without a cleaner the object stays open, and a sync of its partition closes it in the end.
#[test]
fn an_object_with_dirty_pages_stays_open_in_a_cache_without_a_cleaner() {
    let file = Scratch::new("dropped-uncleaned", MIB);
    let (_cache, partition, object) = scene(small(5), written_back(MIB), open(&file.0));
    object.write_at(0, b"octavo").unwrap();
    drop(object);
    let objects = partition.objects();
    assert_eq!(bytes_at(&objects[0], 0, 6), b"octavo");
    partition.sync().unwrap();
    assert_eq!(partition.objects().len(), 1, "it has a handle");
    drop(objects);
    assert!(partition.objects().is_empty());
    assert_eq!(descriptors(&file.0), 0);
}

#[test]
fn a_store_that_refuses_the_pages_of_a_dropped_object_is_told_and_asked_again() {
    let disk = disk(6);
    let (cache, partition, object) = scene(cleaned(6), written_back(MIB), disk.store("disk", MIB));
    let _watchdog = Watchdog::new(PATIENCE, "a dropped object whose store refuses");
    disk.set_faults(SimFaults { p_no_space: 1.0, p_torn: 0.0, ..SimFaults::default() });
    object.write_at(0, &[7; PAGE as usize]).unwrap();
    drop(object);
    until(|| !cache.events(0).is_empty());
    let failed = cache.events(0).remove(0);
    assert!(
        matches!(&failed.what, Happened::WritebackFailed { object, dirty_bytes: PAGE, .. } if object == "object"),
        "{failed:?}"
    );
    assert!(partition.stat().write_errors > 0);
    assert_eq!((partition.objects().len(), partition.stat().dirty_bytes), (1, PAGE));
    disk.set_faults(SimFaults::default());
    until(|| partition.objects().is_empty());
    let again = partition.open(disk.store("disk", MIB), "again").unwrap();
    assert_eq!(bytes_at(&again, 0, PAGE), [7; PAGE as usize]);
}

/// Requests of a queue have no handle of their object, and complete all the same.
#[test]
fn requests_in_flight_complete_after_the_last_handle_was_dropped() {
    let disk = disk(7);
    let (cache, partition, object) = scene(cleaned(7), written_back(MIB), disk.store("disk", MIB));
    let _watchdog = Watchdog::new(PATIENCE, "requests of a dropped object");
    object.close().unwrap();
    for _ in 0..50 {
        let object = partition.open(disk.store("disk", MIB), "again").unwrap();
        let mut queue = cache.queue().unwrap();
        let pages =
            (0..16).map(|page| write_request(page, page * PAGE, vec![9; PAGE as usize], page % 2 == 0));
        queue.submit(&object, pages.chain([read_request(16, 20 * PAGE, 4096)]));
        drop(object);
        succeed_all(&mut queue);
        until(|| partition.objects().is_empty());
    }
}

/// Threads open, list, use and drop the same object's file. Nothing deadlocks, and no byte is lost.
#[test]
fn handles_that_are_listed_and_dropped_by_many_threads_lose_nothing() {
    let (_cache, partition, object) = scene(cleaned(8), written_back(MIB), Store::memory("first", MIB));
    drop(object);
    let watchdog = Watchdog::new(PATIENCE, "handles of many threads");
    let store = Store::memory("shared", MIB);
    let ends = Arc::new(AtomicBool::new(false));
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let objects: Vec<Object> = partition.objects();
                    for object in objects {
                        match object.read_at(0, &mut [0; 8]) {
                            Ok(()) | Err(Error::Closed { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        for round in 1..=200_u64 {
            watchdog.feed(format!("round {round}"));
            let object = loop {
                // The last round's object may not have been closed yet.
                match partition.open(store.clone(), "shared") {
                    Ok(object) => break object,
                    Err(_) => std::thread::yield_now(),
                }
            };
            assert_eq!(bytes_at(&object, 0, 8), (round - 1).to_le_bytes());
            object.write_at(0, &round.to_le_bytes()).unwrap();
        }
        ends.store(true, Ordering::Relaxed);
    });
    until(|| partition.objects().is_empty());
}
