//! Regression tests: each comment tells the bug that its test guards against.

use crate::fixture::{
    Scratch, bytes_at, complete_all, disk, open, read_request, request, scene, sized, sleeps, small,
    succeed_all, until, write_request, written_back,
};
use crate::watchdog::Watchdog;
use octavo::disk::{SimFaults, Store};
use octavo::{Advice, Cache, CacheConfig, CacheMode, Object, Op, PartitionConfig, PolicyName};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn one_set() -> CacheConfig {
    CacheConfig { memory_max_bytes: 2 << 20, buffers_max_bytes: Some(256 << 10), ..small(7) }
}

/// A cache of a few sets, and an object in it.
fn object(cache_mode: CacheMode, store: Store) -> (Cache, Object) {
    object_in(one_set(), cache_mode, store)
}

fn object_in(config: CacheConfig, cache_mode: CacheMode, store: Store) -> (Cache, Object) {
    let (cache, _, object) = scene(config, PartitionConfig { cache_mode, ..sized(100 << 10) }, store);
    (cache, object)
}

/// A partition of 300 KiB whose pages may all be dirty.
fn full_of_dirty_pages() -> PartitionConfig {
    PartitionConfig { dirty_max_bytes: Some(1 << 20), ..written_back(300 << 10) }
}

#[test]
fn dont_need_for_a_part_of_a_page_drops_nothing_and_does_not_overflow() {
    let (_cache, object) = object(CacheMode::Writeback, Store::memory("m", 64 << 10));
    object.write_at(5000, &[1; 100]).unwrap();
    object.advise(5000, 100, Advice::DontNeed).unwrap();
    assert_eq!(object.stat().dirty_bytes, 4096);
}

/// Free bounce pages used to be offered to the longest-waiting writes only. These belonged to a
/// queue whose thread did not come to take them, and the blocking write behind them was never
/// woken.
#[test]
fn an_unattended_queue_does_not_keep_bounce_pages_from_other_calls() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "bounce pages");
    let config = CacheConfig { buffers_max_bytes: Some(128 << 10), ..one_set() };
    let (cache, object) = object_in(config, CacheMode::Writethrough, disk(0).store("disk", 256 << 10));
    let mut queue = cache.queue().unwrap();
    queue.submit(&object, (0..40).map(|n| write_request(n, n * 4096, vec![n as u8; 4096], false)));
    object.write_at(50 * 4096, &[50; 4096]).unwrap();
    succeed_all(&mut queue);
}

/// A resize that the store refused used to stop in the middle of a move, and the next resize found
/// the table in an invalid state. Between the two, a write to a moved page looked for it in its old
/// place forever.
#[test]
fn a_resize_that_a_refusing_store_stops_is_finished_by_the_next() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "resize");
    let disk = disk(0);
    let (_cache, partition, object) = scene(one_set(), full_of_dirty_pages(), disk.store("disk", 256 << 10));
    let write_all = |byte: u8| (0..64).for_each(|n| object.write_at(n * 4096, &[byte; 4096]).unwrap());
    write_all(1);
    disk.set_faults(SimFaults { p_write_error: 1.0, ..SimFaults::default() });
    for _ in 0..2 {
        let refused = partition.resize(100 << 10);
        assert!(matches!(refused, Err(octavo::Error::Io { .. })), "{refused:?}");
    }
    disk.set_faults(SimFaults::default());
    write_all(2);
    assert!(partition.resize(100 << 10).unwrap() <= 100 << 10);
    assert!(partition.resize(300 << 10).unwrap() > 200 << 10);
    assert!(bytes_at(&object, 0, 256 << 10) == [2; 256 << 10]);
}

/// A segment that pins keep alive is unused but still occupies its place: a partition used to be
/// charged for growth that did not happen.
#[test]
fn a_partition_that_cannot_grow_is_not_charged_for_it() {
    let config = CacheConfig { memory_max_bytes: 512 << 10, ..one_set() };
    let (_cache, partition, object) = scene(config, sized(250 << 10), Store::memory("m", 256 << 10));
    let full = partition.stat();
    let pins: Vec<_> = (0..64).filter_map(|n| object.pin(n * 4096).unwrap()).collect();
    partition.resize(1).unwrap();
    let charged = partition.resize(250 << 10);
    assert!(charged.is_err() || partition.stat().charged_bytes <= full.charged_bytes, "{charged:?}");
    drop(pins);
    partition.resize(1).unwrap();
    assert_eq!(partition.resize(250 << 10).unwrap(), full.charged_bytes);
    assert_eq!(partition.stat().max_bytes, full.max_bytes);
}

/// Two flushes of one store were in flight. The first failed and lost bytes; the second succeeded,
/// and its sync used to report success.
#[test]
fn a_sync_beside_one_that_fails_does_not_succeed_for_lost_bytes() {
    let disk = disk(0);
    let (cache, object) = object(CacheMode::Writethrough, disk.store("disk", 64 << 10));
    object.write_at(0, &[1; 4096]).unwrap();
    let mut queue = cache.queue().unwrap();
    disk.set_faults(SimFaults { p_sync_error: 1.0, ..SimFaults::default() });
    queue.submit(&object, [request(Op::Sync)]);
    disk.set_faults(SimFaults::default());
    let result = object.sync();
    assert!(matches!(result, Err(octavo::Error::Failed { .. })), "{result:?}");
    queue.wait(1, |completion| assert!(completion.result.is_err()));
    assert!(object.stat().failed && object.sync().is_err());
}

/// Syncs that arrive while a flush is in flight wait for the next flush, and share it.
#[test]
fn syncs_that_wait_for_a_flush_share_the_next() {
    let disk = disk(0);
    let (cache, object) = object(CacheMode::Writethrough, disk.store("disk", 64 << 10));
    let mut queue = cache.queue().unwrap();
    queue.submit(&object, [const { Op::Sync }; 10].map(request));
    succeed_all(&mut queue);
    assert_eq!(disk.counters().syncs, 2);
}

/// A write of many pages in one I/O used to check the end of the object once. Pages that a shorter
/// length cut off in the meantime stayed in the cache with bytes that the store never had, and
/// appeared when the object grew again.
#[test]
fn bytes_written_behind_a_moved_end_do_not_appear_when_the_object_grows() {
    let _watchdog = Watchdog::new(Duration::from_secs(30), "lengths");
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let (_cache, object) = object(mode, Store::memory("m", 64 << 10));
        let (writes, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    // The write succeeds, is cut off or is refused.
                    let _ = object.write_at(0, &[0xEE; 60 << 10]);
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
            // Many changes of length, and many writes beside them.
            let mut changes = 0;
            while changes < 5_000 || writes.load(Ordering::Relaxed) < 1_000 {
                changes += 1;
                object.set_len_bytes(10_000).unwrap();
                object.set_len_bytes(64 << 10).unwrap();
                // Zeros, or the bytes of a later write: never bytes that only the cache has.
                let before = bytes_at(&object, 20 << 10, 4096);
                object.advise(0, 64 << 10, Advice::DontNeed).unwrap();
                let bytes = bytes_at(&object, 20 << 10, 4096);
                assert!(bytes == before || bytes[0] == 0xEE, "{mode:?}: bytes went away with their page");
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}

/// The number of segments that fit used to be calculated without the learned state of the new
/// segments. That state was charged on top, and the partition slightly exceeded its size.
#[test]
fn the_learned_state_of_new_segments_fits_into_the_size() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 32 << 20, ..one_set() }).unwrap();
    let partition = cache.partition(sized(4 << 20)).unwrap();
    let least = partition.resize(0).unwrap();
    for bytes in (least..least + (1 << 20)).step_by(61) {
        let charged = partition.resize(bytes).unwrap();
        assert!(charged <= bytes, "{charged} of {bytes}");
        assert!(bytes - charged < 80 << 10, "{charged} of {bytes}: another segment would fit");
    }
}

/// Bytes used to be copied with the page size of the object's cache into bounce pages of the
/// queue's cache, and waits for pages of the other cache were never woken.
#[test]
fn a_queue_refuses_an_object_of_another_cache() {
    let small = Cache::new(one_set()).unwrap();
    let config =
        CacheConfig { page_bytes: 64 << 10, memory_max_bytes: 16 << 20, segment_bytes: 2 << 20, ..one_set() };
    let (_large, _, object) = scene(config, PartitionConfig::new("p"), Store::memory("m", 1 << 20));
    let mut queue = small.queue().unwrap();
    queue.submit(&object, (0..3).map(|n| write_request(n, n << 16, vec![1; 1 << 16], false)));
    assert_eq!(queue.pending(), 3);
    let refused = complete_all(&mut queue);
    assert_eq!(refused.len(), 3);
    for completion in refused {
        let error = completion.result.unwrap_err().to_string();
        assert!(error.contains("object: the object belongs to another cache"), "{error}");
    }
    assert!(bytes_at(&object, 0, 1 << 20) == [0; 1 << 20]);
}

/// The caller's iterator used to run while pages of the batch were claimed without I/O in flight:
/// an iterator that read such a page waited for itself.
#[test]
fn the_iterator_of_a_batch_may_read_pages_of_the_batch() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "a batch that reads itself");
    let (cache, object) = object(CacheMode::Writeback, Store::memory("m", 1 << 20));
    let mut queue = cache.queue().unwrap();
    let read = |page: u64| read_request(page, page * 4096, 4096);
    let reads = (0..40u64).map(|page| {
        object.read_at(page.saturating_sub(20) * 4096, &mut [1]).unwrap();
        read(page)
    });
    queue.submit(&object, reads);
    // The queue still works after an iterator that panics in the middle.
    let half = (0..10).map(|page| if page == 5 { panic!("in the middle") } else { read(page) });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.submit(&object, half)));
    assert!(panicked.is_err());
    assert_eq!(queue.pending(), 40);
    queue.wait(40, |completion| completion.result.unwrap());
    assert_eq!(queue.pending(), 0);
}

/// Page numbers have 40 bits: the pages behind them used to be pages of the next object.
#[test]
fn an_object_longer_than_page_numbers_reach_is_refused() {
    let cache = Cache::new(one_set()).unwrap();
    let partition = cache.partition(PartitionConfig::new("p")).unwrap();
    const MOST: u64 = 4096 << 40;
    let error = partition.open(Store::memory("m", MOST + 1), "long").err().unwrap().to_string();
    assert!(error.contains("long") && error.contains(&MOST.to_string()), "{error}");
    assert!(partition.open(Store::memory("m", u64::MAX), "longest").is_err());
    let object = partition.open(Store::memory("m", MOST), "m").unwrap();
    let other = partition.open(Store::memory("m", 1 << 20), "other").unwrap();
    object.write_at(MOST - 4, &[1; 4]).unwrap();
    object.write_at(0, &[2; 4]).unwrap();
    assert_eq!(bytes_at(&other, 0, 4), [0; 4]);
    assert_eq!(bytes_at(&object, MOST - 4, 4), [1; 4]);
    assert!(object.write_at(MOST - 3, &[1; 4]).is_err());
    assert!(object.set_len_bytes(MOST + 1).is_err());
    assert_eq!(object.len_bytes(), MOST);
}

/// A write between the sync of a close and the drop of the pages used to be acknowledged and lost.
#[test]
fn a_write_concurrent_with_a_close_is_in_the_store_or_refused() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "close");
    let cache = Cache::new(one_set()).unwrap();
    let partition = cache.partition(written_back(300 << 10)).unwrap();
    let store = Store::memory("m", 64 * 4096);
    for round in 0..50u64 {
        let object = partition.open(store.clone(), "object").unwrap();
        let acknowledged = AtomicU64::new(0);
        let last = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut last = [0u64; 8];
                for number in 1.. {
                    let page = number % 8;
                    let bytes = (round << 32 | number).to_le_bytes();
                    match object.write_at(page * 4096 * 7, &bytes) {
                        Ok(()) => last[page as usize] = round << 32 | number,
                        Err(_) => return last,
                    }
                    acknowledged.store(number, Ordering::Relaxed);
                }
                unreachable!("the object is closed in the end")
            });
            while acknowledged.load(Ordering::Relaxed) < 1 + round % 16 {
                std::thread::yield_now();
            }
            object.close().unwrap();
            writer.join().unwrap()
        });
        assert!(object.close().is_ok() && object.read_at(0, &mut [0]).is_err());
        let again = partition.open(store.clone(), "object").unwrap();
        for (page, last) in last.iter().enumerate().filter(|(_, last)| **last > 0) {
            let bytes = bytes_at(&again, page as u64 * 4096 * 7, 8);
            assert_eq!(bytes, last.to_le_bytes(), "round {round}, page {page}");
        }
        again.close().unwrap();
    }
}

/// Two concurrent changes of length both restored the length from before either of them: the object
/// was longer than its store, and writes behind the end of the store were lost.
#[test]
fn two_concurrent_changes_of_length_leave_one_of_their_lengths() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "two lengths");
    let (_cache, object) = object(CacheMode::Writeback, Store::memory("m", 100 << 10));
    for round in 0..200u64 {
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|thread| {
                let object = &object;
                scope.spawn(move || object.set_len_bytes(((round * 37 + thread * 51) % 100) << 10).unwrap())
            });
            // Joined, so that the threads have ended and released their rings.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(object.len_bytes(), object.store().len_bytes(), "round {round}");
    }
}

/// The target size did not count segments that pins keep alive: a shrinking partition used to take
/// one new segment for each of them.
#[test]
fn a_partition_that_shrinks_while_pins_keep_segments_does_not_grow() {
    let config = CacheConfig { memory_max_bytes: 4 << 20, ..one_set() };
    let (_cache, partition, object) = scene(config, sized(1 << 20), Store::memory("m", 1 << 20));
    (0..100).for_each(|page| object.read_at(page * 4096, &mut [0]).unwrap());
    let pins: Vec<_> = (0..100).map(|page| object.pin(page * 4096).unwrap()).collect();
    let mut charged = partition.resize(600 << 10).unwrap();
    for _ in 0..8 {
        let before = charged;
        partition.reclaim(64 << 10).unwrap();
        charged = partition.stat().charged_bytes;
        assert!(charged <= before, "{charged} after {before}");
    }
    drop(pins);
    assert!(partition.resize(300 << 10).unwrap() <= 300 << 10);
}

/// The metadata of returned segments stays resident; no partition used to be charged for it.
#[test]
fn metadata_of_returned_segments_is_charged() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 8 << 20, ..one_set() }).unwrap();
    // A policy that learns would also return its learned state.
    let config = PartitionConfig { policy: PolicyName::Lru, ..sized(4 << 20) };
    let partition = cache.partition(config).unwrap();
    let most = partition.stat();
    let frames = |stat: &octavo::PartitionStat| stat.max_bytes;
    partition.resize(1 << 20).unwrap();
    let less = partition.stat();
    assert!(frames(&less) < frames(&most) / 3);
    // The charge shrinks by the frames, and by nothing else.
    assert_eq!(most.charged_bytes - less.charged_bytes, frames(&most) - frames(&less));
    // The metadata is used again, and not charged twice.
    assert_eq!(partition.resize(4 << 20).unwrap(), most.charged_bytes);
    assert_eq!(frames(&partition.stat()), frames(&most));
    assert_eq!(cache.stat().memory_charged_bytes - partition.stat().charged_bytes, 256 << 10);
}

/// With two objects on one store, write-back of the second overwrote synced bytes of the first.
#[test]
fn a_store_is_opened_by_one_object_at_a_time() {
    let cache = Cache::new(one_set()).unwrap();
    let [one, two] = ["a", "b"]
        .map(|name| cache.partition(PartitionConfig { name: name.to_owned(), ..sized(100 << 10) }).unwrap());
    let store = Store::memory("m", 1 << 20);
    let first = one.open(store.clone(), "first").unwrap();
    for partition in [&one, &two] {
        let error = partition.open(first.store().clone(), "second").err().unwrap().to_string();
        assert!(error.contains("first") && error.contains("second"), "{error}");
    }
    first.close().unwrap();
    let second = two.open(store.clone(), "second").unwrap();
    // Dropping a closed object does not release the store of its successor.
    drop(first);
    assert!(one.open(store.clone(), "third").is_err());
    second.abandon();
    let _third = one.open(store.clone(), "third").unwrap();
    // Neither does closing it a second time.
    second.abandon();
    second.close().unwrap();
    assert!(two.open(store, "fourth").is_err());
}

/// At the end of a thread its counters were dropped before its lane, which then counted the
/// read-ahead that was still in flight: the process aborted.
#[test]
fn a_thread_may_end_with_read_ahead_in_flight() {
    let cache = Cache::new(one_set()).unwrap();
    let objects = ["a", "b"].map(|name| {
        let config = PartitionConfig { name: name.to_owned(), ..sized(200 << 10) };
        cache.partition(config).unwrap().open(Store::memory(name, 1 << 20), name).unwrap()
    });
    for _ in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                objects[0].advise(0, 128 << 10, Advice::WillNeed).unwrap();
                objects[1].read_at(0, &mut [0; 64]).unwrap();
            });
        });
        objects[0].advise(0, 1 << 20, Advice::DontNeed).unwrap();
    }
}

/// Rounding up the length used to overflow to zero.
#[test]
fn a_buffer_that_no_memory_can_hold_is_refused() {
    let cache = Cache::new(one_set()).unwrap();
    assert!(cache.buffer(usize::MAX).is_none());
    assert!(cache.buffer(usize::MAX / 2).is_none());
    assert!(cache.buffer(1).is_some());
}

/// The cleaner used to be woken when the page was claimed, found nothing dirty, and slept. Once the
/// page was filled and dirty, nothing woke it.
#[test]
fn a_partial_write_to_a_page_that_was_not_resident_is_written_back_in_the_background() {
    let _watchdog = Watchdog::new(Duration::from_secs(120), "the cleaner");
    let file = Scratch::of("patched", &[0; 1 << 20]);
    let config = CacheConfig { background: true, ..one_set() };
    let (_cache, object) = object_in(config, CacheMode::Writeback, open(&file.0));
    // Too few dirty pages to be urgent.
    for page in 0..2 {
        object.write_at(page * 3 * 4096 + 100, &[9; 10]).unwrap();
    }
    until(|| object.stat().dirty_bytes == 0);
}

/// A thread without memory for a ring could not drop the pages of an object. The object was removed
/// all the same, and a resize that met one of its dirty pages looped forever. Dropping pages needs
/// no memory any more.
#[test]
fn abandoning_an_object_and_resizing_its_partition_need_no_memory_for_a_ring() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "resize");
    let cache = Cache::new(CacheConfig { buffers_max_bytes: Some(128 << 10), ..one_set() }).unwrap();
    let partition = cache.partition(full_of_dirty_pages()).unwrap();
    let hog: Vec<_> = std::iter::from_fn(|| cache.buffer(4096)).collect();
    let object = partition.open(Store::memory("m", 256 << 10), "object").unwrap();
    (0..64).for_each(|n| object.write_at(n * 4096, &[1; 4096]).unwrap());
    assert!(object.abandon() > 0);
    assert!(partition.objects().is_empty() && partition.stat().dirty_bytes == 0);
    partition.resize(100 << 10).unwrap();
    drop(hog);
}

/// A closed object has length zero, and `set_len_bytes` used to make it longer: the object worked
/// again, and wrote to a store that another object had opened in the meantime.
#[test]
fn a_closed_object_stays_closed() {
    let cache = Cache::new(one_set()).unwrap();
    let (store, len) = (Store::memory("m", 64 << 10), 64 << 10);
    for abandoned in [false, true] {
        let name = if abandoned { "abandoned" } else { "closed" }.to_owned();
        let partition = cache.partition(PartitionConfig { name, ..written_back(100 << 10) }).unwrap();
        let object = partition.open(store.clone(), "object").unwrap();
        object.write_at(0, &[6; 4096]).unwrap();
        match abandoned {
            true => assert_eq!(object.abandon(), 4096),
            false => object.close().unwrap(),
        }
        let next = partition.open(store.clone(), "next").unwrap();
        next.write_at(0, &[7; 8192]).unwrap();
        next.sync().unwrap();
        let mut refused = vec![
            object.set_len_bytes(4096),
            object.set_len_bytes(0),
            object.set_len_bytes(2 * len),
            object.write_at(0, &[8; 4096]),
            object.read_at(0, &mut [0]),
            object.sync(),
            object.sync_range(0, 4096),
        ];
        let mut queue = cache.queue().unwrap();
        let write = Op::Write { offset: 0, len: 4096, buffer: vec![8; 4096].into(), durable: true };
        let clear = Op::Zero { offset: 0, len: 0, durable: true };
        queue.submit(&object, [Op::Sync, write, clear].map(request));
        refused.extend(complete_all(&mut queue).into_iter().map(|completion| completion.result));
        for (number, result) in refused.iter().enumerate() {
            assert!(matches!(result, Err(octavo::Error::Closed { .. })), "{number}: {result:?}");
        }
        assert_eq!((object.len_bytes(), store.len_bytes()), (0, len));
        next.advise(0, 8192, Advice::DontNeed).unwrap();
        assert!(bytes_at(&next, 0, 8192) == [7; 8192]);
        next.close().unwrap();
    }
}

/// A change of length concurrent with the close used to have the same effect.
#[test]
fn a_change_of_length_concurrent_with_a_close_does_not_open_the_object_again() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "lengths and closes");
    let cache = Cache::new(one_set()).unwrap();
    let partition = cache.partition(sized(100 << 10)).unwrap();
    let store = Store::memory("m", 64 << 10);
    for round in 0..100u64 {
        let object = partition.open(store.clone(), "object").unwrap();
        let (len, wanted) = (store.len_bytes(), (32 << 10) + round);
        let together = std::sync::Barrier::new(3);
        let changed = std::thread::scope(|scope| {
            let change = scope.spawn(|| {
                together.wait();
                object.set_len_bytes(wanted)
            });
            // Of two concurrent closes, the second finds the object closed.
            let closes = [0, 1].map(|_| {
                scope.spawn(|| {
                    together.wait();
                    object.close().unwrap();
                })
            });
            // Joined, so that the threads have ended and released their rings.
            closes.into_iter().for_each(|close| close.join().unwrap());
            change.join().unwrap()
        });
        assert!(matches!(changed, Ok(()) | Err(octavo::Error::Closed { .. })), "round {round}: {changed:?}");
        assert_eq!(store.len_bytes(), if changed.is_ok() { wanted } else { len }, "round {round}");
        let is_closed = object.write_at(0, &[1; 100]).is_err() && object.sync().is_err();
        assert!(is_closed, "round {round}: {changed:?}");
    }
}

/// Advice for a long range used to claim all of its pages, with memory that was charged to nobody,
/// before the first one was read.
#[test]
fn advice_for_a_long_range_fills_it_step_by_step() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "a long range");
    const LEN: u64 = 6000 * 4096;
    let config = CacheConfig { memory_max_bytes: 64 << 20, background: false, ..CacheConfig::default() };
    let cache = Cache::new(config).unwrap();
    for by_queue in [false, true] {
        let name = if by_queue { "queue" } else { "call" };
        let config = PartitionConfig { name: name.to_owned(), ..sized(28 << 20) };
        let partition = cache.partition(config).unwrap();
        let object = partition.open(Store::memory(name, LEN), name).unwrap();
        match by_queue {
            false => object.advise(0, LEN, Advice::WillNeed).unwrap(),
            true => {
                let mut queue = cache.queue().unwrap();
                let op = Op::Advise { offset: 0, len: LEN, advice: Advice::WillNeed };
                queue.submit(&object, [request(op)]);
                assert!(partition.stat().fills < 6000);
                queue.wait(1, |completion| completion.result.unwrap());
            }
        }
        let there = (0..6000).filter(|page| object.is_resident(page * 4096)).count();
        assert!(there > 5000, "{there} pages");
    }
}

/// How often the calling thread has gone to sleep.
fn own_sleeps() -> u64 {
    sleeps("/proc/thread-self".as_ref()).unwrap()
}

/// A thread without requests, on a ring without a descriptor, used to look for completions a
/// thousand times a second.
#[test]
fn a_queue_without_requests_sleeps_until_its_descriptor_is_ready() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "an idle queue");
    // The ring of a simulated disk has no descriptor to sleep on.
    let (cache, _object) = object(CacheMode::Writeback, disk(0).store("disk", 64 << 10));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut queue = cache.queue().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            std::io::Write::write_all(&mut writer, b"!").unwrap();
            // The pipe stays open until the other thread has seen the byte.
            std::thread::sleep(Duration::from_millis(50));
        });
        let interest = octavo::Interest { readable: true, writable: false };
        let before = own_sleeps();
        let came = queue.wait_or(std::os::fd::AsFd::as_fd(&reader), interest, None, |_| unreachable!());
        assert!(came.readable);
        // A look at every millisecond would be fifty sleeps at least.
        let sleeps = own_sleeps() - before;
        assert!(sleeps < 20, "the thread slept {sleeps} times for one event");
    });
}

/// A removed partition used to open objects, and kept a segment for each of them forever: the cache
/// ran out of memory without having a partition.
#[test]
fn a_removed_partition_opens_nothing_and_takes_no_memory() {
    let cache = Cache::new(one_set()).unwrap();
    let empty = cache.stat().memory_charged_bytes;
    for _ in 0..3 {
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        cache.remove_partition("p").unwrap();
        let refused = partition.open(Store::memory("m", 64 << 10), "object").expect_err("refused");
        assert!(refused.to_string().contains("was removed"), "{refused}");
        let shell = cache.stat().memory_charged_bytes;
        partition.resize(1 << 20).unwrap();
        assert_eq!(cache.stat().memory_charged_bytes, shell);
        drop(partition);
        assert_eq!(cache.stat().memory_charged_bytes, empty);
    }
}

/// `reclaim` used to calculate the number of segments to keep; when a concurrent resize left fewer,
/// it grew the partition back to that number.
#[test]
fn a_reclaim_concurrent_with_a_shrink_does_not_grow_the_partition() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "reclaims");
    // A few segments, because each round moves two thirds of them.
    let config = CacheConfig { reaper: false, memory_max_bytes: 1 << 20, ..one_set() };
    let cache = Cache::new(config).unwrap();
    let partition = cache.partition(PartitionConfig::new("p")).unwrap();
    let large = partition.stat().charged_bytes;
    let small = partition.resize(large / 3).unwrap();
    for round in 0..2000 {
        partition.resize(large).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| partition.resize(small).unwrap());
            scope.spawn(|| partition.reclaim(1).unwrap());
        });
        assert!(partition.stat().charged_bytes <= small, "round {round}");
    }
}
