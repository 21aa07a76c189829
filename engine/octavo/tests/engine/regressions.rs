//! Bugs that were there, each with its story.

use crate::fixture::{complete_all, sleeps, small, succeed_all, until};
use crate::watchdog::Watchdog;
use octavo::disk::{SimDisk, SimFaults, SimOptions, Store};
use octavo::{Advice, Cache, CacheConfig, CacheMode, Object, Op, PartitionConfig, PolicyName, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn one_set() -> CacheConfig {
    CacheConfig { memory_max_bytes: 2 << 20, buffers_max_bytes: Some(256 << 10), ..small(7) }
}

fn object(cache: &Cache, mode: CacheMode, store: Store) -> Object {
    let config =
        PartitionConfig { cache_mode: mode, max_bytes: Some(100 << 10), ..PartitionConfig::new("p") };
    cache.partition(config).unwrap().open(store, "object").unwrap()
}

#[test]
fn advice_for_a_part_of_one_page_lets_nothing_go_and_does_not_overflow() {
    let cache = Cache::new(one_set()).unwrap();
    let object = object(&cache, CacheMode::Writeback, Store::memory("m", 64 << 10));
    object.write_at(5000, &[1; 100]).unwrap();
    object.advise(5000, 100, Advice::DontNeed).unwrap();
    assert_eq!(object.stat().dirty_bytes, 4096);
}

/// Bounce pages went to whoever had waited longest. Those were the queue's writes, which were told
/// and not there to take their turn, and nobody told the blocking write behind them.
#[test]
fn a_queue_that_nobody_waits_on_does_not_keep_the_bounce_pages_from_others() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "bounce pages");
    let cache = Cache::new(CacheConfig { buffers_max_bytes: Some(128 << 10), ..one_set() }).unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let object = object(&cache, CacheMode::Writethrough, disk.store("disk", 256 << 10));
    let mut queue = cache.queue().unwrap();
    let write = |n: u64| Request {
        user_data: n,
        op: Op::Write { offset: n * 4096, len: 4096, buffer: vec![n as u8; 4096].into(), durable: false },
    };
    queue.submit(&object, (0..40).map(write));
    object.write_at(50 * 4096, &[50; 4096]).unwrap();
    succeed_all(&mut queue);
}

/// The resize gave up in the middle of a move, and the next one found the table in a state that
/// must not be. Between the two, a write to a page that had moved looked for it in its old place
/// only, for ever.
#[test]
fn a_resize_that_a_refusing_store_stops_is_finished_by_the_next() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "resize");
    let cache = Cache::new(one_set()).unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let config = PartitionConfig {
        cache_mode: CacheMode::Writeback,
        max_bytes: Some(300 << 10),
        dirty_max_bytes: Some(1 << 20),
        ..PartitionConfig::new("p")
    };
    let partition = cache.partition(config).unwrap();
    let object = partition.open(disk.store("disk", 256 << 10), "object").unwrap();
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
    let mut all = vec![0; 256 << 10];
    object.read_at(0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 2));
}

/// A segment that pins keep is in nobody's use, and yet takes its place: the growth was charged,
/// and did not happen.
#[test]
fn a_partition_that_cannot_grow_is_not_charged_for_it() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 512 << 10, ..one_set() }).unwrap();
    let config = PartitionConfig { max_bytes: Some(250 << 10), ..PartitionConfig::new("p") };
    let partition = cache.partition(config).unwrap();
    let object = partition.open(Store::memory("m", 256 << 10), "object").unwrap();
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

/// Two flushes of one store were in flight: the first failed and took the bytes with it, the second
/// succeeded and was believed.
#[test]
fn a_sync_beside_one_that_fails_does_not_succeed_for_lost_bytes() {
    let cache = Cache::new(one_set()).unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let object = object(&cache, CacheMode::Writethrough, disk.store("disk", 64 << 10));
    object.write_at(0, &[1; 4096]).unwrap();
    let mut queue = cache.queue().unwrap();
    disk.set_faults(SimFaults { p_sync_error: 1.0, ..SimFaults::default() });
    queue.submit(&object, [Request { user_data: 0, op: Op::Sync }]);
    disk.set_faults(SimFaults::default());
    let result = object.sync();
    assert!(matches!(result, Err(octavo::Error::Failed { .. })), "{result:?}");
    queue.wait(1, |completion| assert!(completion.result.is_err()));
    assert!(object.stat().failed && object.sync().is_err());
}

/// And whoever waits for a flush that was begun before it gets the next one, with all others that
/// wait.
#[test]
fn syncs_that_wait_for_a_flush_share_the_next() {
    let cache = Cache::new(one_set()).unwrap();
    let disk = SimDisk::new(SimOptions::default());
    let object = object(&cache, CacheMode::Writethrough, disk.store("disk", 64 << 10));
    let mut queue = cache.queue().unwrap();
    queue.submit(&object, (0..10).map(|user_data| Request { user_data, op: Op::Sync }));
    succeed_all(&mut queue);
    assert_eq!(disk.counters().syncs, 2);
}

/// A write in one I/O over many pages looked at the object's end once: pages behind it, cut off
/// meanwhile, stayed in the cache with bytes that the store never took, and were seen when the
/// object grew again.
#[test]
fn what_was_written_behind_an_end_that_moved_is_not_seen_when_the_object_grows() {
    let _watchdog = Watchdog::new(Duration::from_secs(30), "lengths");
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let cache = Cache::new(one_set()).unwrap();
        let object = object(&cache, mode, Store::memory("m", 64 << 10));
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
                // Zeros, or what a later write brought: never bytes that only the cache has.
                let mut bytes = vec![0; 4096];
                object.read_at(20 << 10, &mut bytes).unwrap();
                object.advise(0, 64 << 10, Advice::DontNeed).unwrap();
                let before = bytes.clone();
                object.read_at(20 << 10, &mut bytes).unwrap();
                assert!(bytes == before || bytes[0] == 0xEE, "{mode:?}: bytes went away with their page");
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}

/// How many segments fit was reckoned with what the partition had learned so far; what it learns
/// about those that joined was charged on top, and a partition was a little larger than it had been
/// allowed to be.
#[test]
fn what_is_learned_about_new_segments_fits_into_the_size_too() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 32 << 20, ..one_set() }).unwrap();
    let config = PartitionConfig { max_bytes: Some(4 << 20), ..PartitionConfig::new("p") };
    let partition = cache.partition(config).unwrap();
    let least = partition.resize(0).unwrap();
    for bytes in (least..least + (1 << 20)).step_by(61) {
        let charged = partition.resize(bytes).unwrap();
        assert!(charged <= bytes, "{charged} of {bytes}");
        assert!(bytes - charged < 80 << 10, "{charged} of {bytes}: another segment would fit");
    }
}

/// Bytes were copied by the page size of the object's cache into bounce pages of the queue's, and
/// pages of the other cache were waited for where nobody told.
#[test]
fn a_queue_refuses_an_object_of_another_cache() {
    let small = Cache::new(one_set()).unwrap();
    let config =
        CacheConfig { page_bytes: 64 << 10, memory_max_bytes: 16 << 20, segment_bytes: 2 << 20, ..one_set() };
    let large = Cache::new(config).unwrap();
    let partition = large.partition(PartitionConfig::new("p")).unwrap();
    let object = partition.open(Store::memory("m", 1 << 20), "foreign").unwrap();
    let mut queue = small.queue().unwrap();
    let write =
        |n: u64| Op::Write { offset: n << 16, len: 1 << 16, buffer: vec![1; 1 << 16].into(), durable: false };
    queue.submit(&object, (0..3).map(|user_data| Request { user_data, op: write(user_data) }));
    assert_eq!(queue.pending(), 3);
    let mut refused = 0;
    queue.wait(3, |completion| {
        let error = completion.result.unwrap_err().to_string();
        assert!(error.contains("foreign") && error.contains("another cache"), "{error}");
        refused += 1;
    });
    assert_eq!((refused, queue.pending()), (3, 0));
    let mut bytes = vec![7; 1 << 20];
    object.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

/// The caller's iterator ran while pages of the batch were claimed and no I/O was in flight for
/// them: one that read such a page waited for itself.
#[test]
fn a_batch_may_be_made_while_its_pages_are_read() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "a batch that reads itself");
    let cache = Cache::new(one_set()).unwrap();
    let object = object(&cache, CacheMode::Writeback, Store::memory("m", 1 << 20));
    let mut queue = cache.queue().unwrap();
    let read = |page: u64| Op::Read { offset: page * 4096, len: 4096, buffer: vec![1; 4096].into() };
    queue.submit(
        &object,
        (0..40u64).map(|page| {
            let mut byte = [1];
            object.read_at(page.saturating_sub(20) * 4096, &mut byte).unwrap();
            Request { user_data: page, op: read(page) }
        }),
    );
    // One that panics in the middle leaves a queue that works.
    let half = (0..10).map(|page| match page {
        5 => panic!("in the middle"),
        _ => Request { user_data: page, op: read(page) },
    });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.submit(&object, half)));
    assert!(panicked.is_err());
    assert_eq!(queue.pending(), 40);
    queue.wait(40, |completion| completion.result.unwrap());
    assert_eq!(queue.pending(), 0);
}

/// Page numbers have 40 bits: those of a longer object were pages of the next one.
#[test]
fn an_object_is_not_longer_than_its_pages_have_numbers() {
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
    let mut bytes = [7; 4];
    other.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    object.read_at(MOST - 4, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 4]);
    assert!(object.write_at(MOST - 3, &[1; 4]).is_err());
    assert!(object.set_len_bytes(MOST + 1).is_err());
    assert_eq!(object.len_bytes(), MOST);
}

/// What was written between the sync of a close and the drop of the pages was acknowledged, and
/// gone.
#[test]
fn a_write_that_a_close_overtakes_is_in_the_store_or_refused() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "close");
    let cache = Cache::new(one_set()).unwrap();
    let partition = cache
        .partition(PartitionConfig {
            cache_mode: CacheMode::Writeback,
            max_bytes: Some(300 << 10),
            ..PartitionConfig::new("p")
        })
        .unwrap();
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
            let mut bytes = [0; 8];
            again.read_at(page as u64 * 4096 * 7, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), *last, "round {round}, page {page}");
        }
        again.close().unwrap();
    }
}

/// Two that changed the length both restored what had been there before either: the object was
/// longer than its store, and what was written behind the store's end was cut off.
#[test]
fn two_who_change_the_length_at_once_leave_one_of_their_lengths() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "two lengths");
    let cache = Cache::new(one_set()).unwrap();
    let object = object(&cache, CacheMode::Writeback, Store::memory("m", 100 << 10));
    for round in 0..200u64 {
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|thread| {
                let object = &object;
                scope.spawn(move || object.set_len_bytes(((round * 37 + thread * 51) % 100) << 10).unwrap())
            });
            // Until they are gone, with their rings.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(object.len_bytes(), object.store().len_bytes(), "round {round}");
    }
}

/// A size was wanted without the segments that a pin keeps, and a segment was taken for each of
/// them while the partition was to shrink.
#[test]
fn a_partition_that_shrinks_while_pins_keep_segments_does_not_grow() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 4 << 20, ..one_set() }).unwrap();
    let config = PartitionConfig { max_bytes: Some(1 << 20), ..PartitionConfig::new("p") };
    let partition = cache.partition(config).unwrap();
    let object = partition.open(Store::memory("m", 1 << 20), "object").unwrap();
    let mut byte = [0];
    (0..100).for_each(|page| object.read_at(page * 4096, &mut byte).unwrap());
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

/// Metadata of segments that had left was resident and charged to nobody.
#[test]
fn metadata_that_stays_is_charged() {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 8 << 20, ..one_set() }).unwrap();
    // A policy that learns gives that back.
    let policy = PolicyName::Lru;
    let config = PartitionConfig { max_bytes: Some(4 << 20), policy, ..PartitionConfig::new("p") };
    let partition = cache.partition(config).unwrap();
    let most = partition.stat();
    let frames = |stat: &octavo::PartitionStat| stat.max_bytes;
    partition.resize(1 << 20).unwrap();
    let less = partition.stat();
    assert!(frames(&less) < frames(&most) / 3);
    // Frames go, and nothing else.
    assert_eq!(most.charged_bytes - less.charged_bytes, frames(&most) - frames(&less));
    // It is used again, and not charged a second time.
    assert_eq!(partition.resize(4 << 20).unwrap(), most.charged_bytes);
    assert_eq!(frames(&partition.stat()), frames(&most));
    assert_eq!(cache.stat().memory_charged_bytes - partition.stat().charged_bytes, 256 << 10);
}

/// The second object's write-back put old bytes over what the first had synced.
#[test]
fn a_store_is_opened_by_one_object_at_a_time() {
    let cache = Cache::new(one_set()).unwrap();
    let one =
        cache.partition(PartitionConfig { max_bytes: Some(100 << 10), ..PartitionConfig::new("a") }).unwrap();
    let two =
        cache.partition(PartitionConfig { max_bytes: Some(100 << 10), ..PartitionConfig::new("b") }).unwrap();
    let store = Store::memory("m", 1 << 20);
    let first = one.open(store.clone(), "first").unwrap();
    for partition in [&one, &two] {
        let error = partition.open(first.store().clone(), "second").err().unwrap().to_string();
        assert!(error.contains("first") && error.contains("second"), "{error}");
    }
    first.close().unwrap();
    let second = two.open(store.clone(), "second").unwrap();
    // The closed one's end changes nothing.
    drop(first);
    assert!(one.open(store.clone(), "third").is_err());
    second.abandon();
    let _third = one.open(store.clone(), "third").unwrap();
    // Nor does it change anything that a closed one is closed again.
    second.abandon();
    second.close().unwrap();
    assert!(two.open(store, "fourth").is_err());
}

/// A thread's counters ended before its lane, which counted the read-ahead that it had still in
/// flight: the process was aborted.
#[test]
fn a_thread_may_end_whatever_it_called_first() {
    let cache = Cache::new(one_set()).unwrap();
    let objects: Vec<Object> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let config = PartitionConfig { max_bytes: Some(200 << 10), ..PartitionConfig::new(name) };
            cache.partition(config).unwrap().open(Store::memory(name, 1 << 20), name).unwrap()
        })
        .collect();
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

/// The length was rounded up to nothing.
#[test]
fn a_buffer_that_no_memory_can_hold_is_refused() {
    let cache = Cache::new(one_set()).unwrap();
    assert!(cache.buffer(usize::MAX).is_none());
    assert!(cache.buffer(usize::MAX / 2).is_none());
    assert!(cache.buffer(1).is_some());
}

/// The cleaner was told when the page was claimed, found nothing dirty, and slept; when the page
/// had come and was dirty, nobody told it.
#[test]
fn a_part_of_a_page_that_was_not_there_is_written_back_by_itself() {
    let _watchdog = Watchdog::new(Duration::from_secs(120), "the cleaner");
    let cache = Cache::new(CacheConfig { background: true, ..one_set() }).unwrap();
    let path = std::env::temp_dir().join(format!("octavo-patched-{}", std::process::id()));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let store = Store::open(&path, &octavo::disk::OpenOptions::default()).unwrap();
    let object = object(&cache, CacheMode::Writeback, store);
    // Too few to be urgent.
    for page in 0..2 {
        object.write_at(page * 3 * 4096 + 100, &[9; 10]).unwrap();
    }
    until(|| object.stat().dirty_bytes == 0);
    drop((object, cache));
    std::fs::remove_file(path).unwrap();
}

/// A thread without memory for a ring could not drop an object's pages: it was forgotten all the
/// same, and a resize that met one of them, dirty and with no place to go, turned for ever.
/// Dropping them needs no memory any more.
#[test]
fn an_object_is_abandoned_and_its_partition_resized_where_no_memory_is_left_for_a_ring() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "resize");
    let cache = Cache::new(CacheConfig { buffers_max_bytes: Some(128 << 10), ..one_set() }).unwrap();
    let config = PartitionConfig {
        cache_mode: CacheMode::Writeback,
        max_bytes: Some(300 << 10),
        dirty_max_bytes: Some(1 << 20),
        ..PartitionConfig::new("p")
    };
    let partition = cache.partition(config).unwrap();
    let hog: Vec<_> = std::iter::from_fn(|| cache.buffer(4096)).collect();
    let object = partition.open(Store::memory("m", 256 << 10), "object").unwrap();
    (0..64).for_each(|n| object.write_at(n * 4096, &[1; 4096]).unwrap());
    assert!(object.abandon() > 0);
    assert!(partition.objects().is_empty() && partition.stat().dirty_bytes == 0);
    partition.resize(100 << 10).unwrap();
    drop(hog);
}

/// A closed object's length was nothing, and could be changed from there: the object came back, and
/// wrote and synced into a store that was somebody else's by then.
#[test]
fn a_closed_object_stays_closed() {
    let cache = Cache::new(one_set()).unwrap();
    let (store, len) = (Store::memory("m", 64 << 10), 64 << 10);
    for abandoned in [false, true] {
        let config = PartitionConfig {
            cache_mode: CacheMode::Writeback,
            max_bytes: Some(100 << 10),
            ..PartitionConfig::new(if abandoned { "abandoned" } else { "closed" })
        };
        let partition = cache.partition(config).unwrap();
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
        queue.submit(&object, [Op::Sync, write, clear].map(|op| Request { user_data: 0, op }));
        refused.extend(complete_all(&mut queue).into_iter().map(|completion| completion.result));
        for (number, result) in refused.iter().enumerate() {
            assert!(matches!(result, Err(octavo::Error::Closed { .. })), "{number}: {result:?}");
        }
        assert_eq!((object.len_bytes(), store.len_bytes()), (0, len));
        let mut bytes = vec![0; 8192];
        next.advise(0, 8192, Advice::DontNeed).unwrap();
        next.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        next.close().unwrap();
    }
}

/// Nor did that need anybody who calls a closed object: a length that changed beside the close was
/// enough.
#[test]
fn a_length_that_changes_beside_a_close_does_not_open_the_object_again() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "lengths and closes");
    let cache = Cache::new(one_set()).unwrap();
    let config = PartitionConfig { max_bytes: Some(100 << 10), ..PartitionConfig::new("p") };
    let partition = cache.partition(config).unwrap();
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
            // Whoever closes beside somebody else finds it closed.
            let closes = [0, 1].map(|_| {
                scope.spawn(|| {
                    together.wait();
                    object.close().unwrap();
                })
            });
            // Until they are gone, with their rings.
            closes.into_iter().for_each(|close| close.join().unwrap());
            change.join().unwrap()
        });
        assert!(matches!(changed, Ok(()) | Err(octavo::Error::Closed { .. })), "round {round}: {changed:?}");
        assert_eq!(store.len_bytes(), if changed.is_ok() { wanted } else { len }, "round {round}");
        assert!(
            object.write_at(0, &[1; 100]).is_err() && object.sync().is_err(),
            "round {round}: {changed:?}"
        );
    }
}

/// All pages of a range that will be wanted were claimed, and had memory that nobody was charged
/// for, before the first was read.
#[test]
fn a_long_range_is_brought_in_by_steps() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "a long range");
    const LEN: u64 = 6000 * 4096;
    let config = CacheConfig { memory_max_bytes: 64 << 20, background: false, ..CacheConfig::default() };
    let cache = Cache::new(config).unwrap();
    for by_queue in [false, true] {
        let name = if by_queue { "queue" } else { "call" };
        let config = PartitionConfig { max_bytes: Some(28 << 20), ..PartitionConfig::new(name) };
        let partition = cache.partition(config).unwrap();
        let object = partition.open(Store::memory(name, LEN), name).unwrap();
        match by_queue {
            false => object.advise(0, LEN, Advice::WillNeed).unwrap(),
            true => {
                let mut queue = cache.queue().unwrap();
                let op = Op::Advise { offset: 0, len: LEN, advice: Advice::WillNeed };
                queue.submit(&object, [Request { user_data: 0, op }]);
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

/// A thread that could not be woken looked for completions a thousand times a second though it had
/// asked for nothing.
#[test]
fn a_queue_without_requests_sleeps_until_its_descriptor_is_ready() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "an idle queue");
    let cache = Cache::new(one_set()).unwrap();
    // Its ring has no descriptor to sleep with.
    let _object =
        object(&cache, CacheMode::Writeback, SimDisk::new(SimOptions::default()).store("disk", 64 << 10));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut queue = cache.queue().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            std::io::Write::write_all(&mut writer, b"!").unwrap();
            // Open until it was seen.
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

/// A partition that was removed took objects still, and kept a segment for good with each: the
/// cache ran out of memory without a partition in it.
#[test]
fn a_removed_partition_opens_nothing_and_takes_no_memory() {
    let cache = Cache::new(one_set()).unwrap();
    let empty = cache.stat().memory_charged_bytes;
    for _ in 0..3 {
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        cache.remove_partition("p").unwrap();
        let refused = partition.open(Store::memory("m", 64 << 10), "object").err().expect("refused");
        assert!(refused.to_string().contains("was removed"), "{refused}");
        let shell = cache.stat().memory_charged_bytes;
        partition.resize(1 << 20).unwrap();
        assert_eq!(cache.stat().memory_charged_bytes, shell);
        drop(partition);
        assert_eq!(cache.stat().memory_charged_bytes, empty);
    }
}

/// `reclaim` counted the segments that were to be left, and another resize left fewer before it
/// came to shrink: it grew the partition back to its count.
#[test]
fn a_reclaim_beside_a_shrink_does_not_grow_the_partition() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "reclaims");
    let cache = Cache::new(CacheConfig { reaper: false, ..one_set() }).unwrap();
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
