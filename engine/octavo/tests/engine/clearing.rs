//! Discards and zeroes (protocol C1 to C7): the bytes they leave, what happens when the store
//! refuses, and which calls wait for them.

use crate::fixture::{
    PAGE, SET_BYTES, Scratch, bytes_at, disk, open, read_request, request, scene, sized, small, succeed_all,
};
use crate::watchdog::Watchdog;
use octavo::disk::{Engine, SimDisk, SimFaults, Store};
use octavo::{Cache, CacheConfig, CacheMode, Error, Object, Op, PartitionConfig, Request};
use std::time::Duration;

const LEN: u64 = 64 * PAGE;

fn on(config: CacheConfig, cache_mode: CacheMode, store: Store) -> (Cache, Object) {
    let partition = PartitionConfig { cache_mode, dirty_max_bytes: Some(1 << 20), ..sized(1 << 20) };
    let (cache, _, object) = scene(config, partition, store);
    (cache, object)
}

fn on_disk(cache_mode: CacheMode) -> (Cache, SimDisk, Object) {
    let disk = disk(5);
    let (cache, object) = on(small(11), cache_mode, disk.store("disk", LEN));
    (cache, disk, object)
}

fn page(object: &Object, number: u64) -> Vec<u8> {
    bytes_at(object, number * PAGE, PAGE)
}

/// Writes each page of the range, its bytes being its number plus `salt`.
fn write_numbers(object: &Object, pages: std::ops::Range<u64>, salt: u8) {
    pages.for_each(|page| object.write_at(page * PAGE, &[page as u8 + salt; PAGE as usize]).unwrap());
}

/// No faults, and no torn writes.
fn none() -> SimFaults {
    SimFaults { p_torn: 0.0, ..SimFaults::default() }
}

/// A discard used to drop the dirty pages of its range before it asked the store. When the store
/// refused, acknowledged writes were lost: reads returned older bytes, and a sync succeeded.
#[test]
fn a_refused_discard_or_zeroing_loses_no_dirty_page() {
    for faults in [
        SimFaults { p_write_error: 1.0, ..none() },
        SimFaults { p_write_error: 1.0, p_torn: 1.0, ..none() },
        SimFaults { p_no_space: 1.0, p_torn: 1.0, ..none() },
        SimFaults { p_no_space: 1.0, p_unsupported: 1.0, p_torn: 1.0, ..none() },
    ] {
        let (_cache, disk, object) = on_disk(CacheMode::Writeback);
        write_numbers(&object, 0..32, 1);
        disk.set_faults(faults);
        for result in [object.discard(0, 16 * PAGE), object.zero(100, 20 * PAGE)] {
            assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
        }
        disk.set_faults(none());
        assert_eq!(object.stat().dirty_bytes, 32 * PAGE);
        // The partial pages at both ends of the zeroed range were zeroed by writes of their own.
        let expected = |number: u64| {
            let mut bytes = vec![number as u8 + 1; PAGE as usize];
            match number {
                0 => bytes[100..].fill(0),
                20 => bytes[..100].fill(0),
                _ => {}
            }
            bytes
        };
        (0..32).for_each(|number| assert!(page(&object, number) == expected(number), "page {number}"));
        object.sync().unwrap();
        let image = disk.image("disk");
        let pages = image.chunks(PAGE as usize).enumerate();
        pages.take(32).for_each(|(number, bytes)| assert!(bytes == expected(number as u64), "page {number}"));
    }
}

/// A shorter length used to lose dirty pages in the same way.
#[test]
fn a_refused_shorter_length_loses_no_dirty_page() {
    let (_cache, disk, object) = on_disk(CacheMode::Writeback);
    write_numbers(&object, 0..32, 1);
    object.sync().unwrap();
    write_numbers(&object, 8..32, 100);
    disk.set_faults(SimFaults { p_write_error: 1.0, ..none() });
    object.set_len_bytes(4 * PAGE).unwrap_err();
    disk.set_faults(none());
    assert_eq!((object.len_bytes(), object.stat().dirty_bytes), (LEN, 24 * PAGE));
    for number in 0..32 {
        let byte = number as u8 + if number < 8 { 1 } else { 100 };
        assert!(page(&object, number) == [byte; PAGE as usize], "page {number}");
    }
}

#[test]
fn a_store_that_cannot_clear_ranges_is_written_with_zeros() {
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let (_cache, disk, object) = on_disk(mode);
        object.write_at(0, &[7; LEN as usize]).unwrap();
        disk.set_faults(SimFaults { p_unsupported: 1.0, p_short: 0.5, ..none() });
        object.discard(PAGE, 30 * PAGE).unwrap();
        object.zero(40 * PAGE - 10, 20).unwrap();
        object.sync().unwrap();
        let mut expected = vec![7; LEN as usize];
        expected[PAGE as usize..31 * PAGE as usize].fill(0);
        expected[40 * PAGE as usize - 10..40 * PAGE as usize + 10].fill(0);
        assert!(disk.image("disk") == expected);
    }
}

/// A queue used to do discards and zeroes inside of `submit`: the caller waited for the store, and
/// so did all other requests of the queue.
#[test]
fn submit_returns_while_clearings_are_in_flight_and_reads_continue() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "clearing");
    let (cache, disk, object) = on_disk(CacheMode::Writeback);
    object.write_at(0, &[3; LEN as usize]).unwrap();
    object.sync().unwrap();
    object.write_at(8 * PAGE, &[4; 8 * PAGE as usize]).unwrap();
    let before = disk.counters();
    let mut queue = cache.queue().unwrap();
    let zero = |user_data| Op::Zero { offset: user_data * 8 * PAGE, len: 8 * PAGE, durable: user_data == 2 };
    queue.submit(&object, (0..4).map(|user_data| Request { op: zero(user_data), user_data }));
    assert_eq!((disk.counters().steps, queue.pending()), (before.steps, 4), "submit waited for the store");
    // Held dirty pages are read as they were, and pages outside of the ranges are not affected.
    assert!(page(&object, 9) == [4; PAGE as usize] && page(&object, 40) == [3; PAGE as usize]);
    assert_eq!(disk.counters().steps, before.steps);
    // A read of a page that was clean waits for the clearing, and drives the lane of the queue,
    // whose owner is this thread. So do a write and a sync.
    assert!(page(&object, 2) == [0; PAGE as usize]);
    object.write_at(10 * PAGE, &[5; PAGE as usize]).unwrap();
    object.sync().unwrap();
    succeed_all(&mut queue);
    for number in 0..64 {
        let byte = match number {
            10 => 5,
            0..32 => 0,
            _ => 3,
        };
        assert!(page(&object, number) == [byte; PAGE as usize], "page {number}");
        assert!(disk.image("disk")[(number * PAGE) as usize..][..PAGE as usize] == [byte; PAGE as usize]);
    }
}

/// Pages with I/O in flight split a clearing into pieces, and do not delay the rest of it.
#[test]
fn a_clearing_skips_pages_in_use_and_completes_after_them() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "clearing");
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        for len in [8, 64] {
            let (cache, disk, object) = on_disk(mode);
            object.write_at(0, &[9; LEN as usize]).unwrap();
            object.sync().unwrap();
            object.advise(0, LEN, octavo::Advice::DontNeed).unwrap();
            let mut queue = cache.queue().unwrap();
            let read = |page: u64| read_request(page, page * PAGE, 100);
            let discard = request(Op::Discard { offset: 0, len: len * PAGE, durable: true });
            let zero = request(Op::Zero { offset: 2 * PAGE, len: 2 * PAGE, durable: false });
            queue.submit(&object, [read(3), read(6), discard, zero, read(7)]);
            succeed_all(&mut queue);
            assert!(disk.image("disk")[..(len * PAGE) as usize].iter().all(|byte| *byte == 0));
            assert!(disk.image("disk")[(len * PAGE) as usize..].iter().all(|byte| *byte == 9));
        }
    }
}

/// A page that the end of the object cuts is cleared as a whole. If the object has grown before the
/// clearing reaches that page, only the bytes up to the old end are cleared.
#[test]
fn an_object_that_grows_during_a_clearing_loses_nothing_behind_its_old_end() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "clearing");
    let (_cache, object) = on(small(11), CacheMode::Writeback, Store::memory("m", 4 * PAGE + 1000));
    object.write_at(0, &[1; 4 * PAGE as usize + 1000]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..2000 {
                object.set_len_bytes(4 * PAGE + 1000).unwrap();
                object.set_len_bytes(5 * PAGE).unwrap();
                object.write_at(4 * PAGE + 2000, &[round as u8 | 1; 100]).unwrap();
                assert_eq!(bytes_at(&object, 4 * PAGE + 2000, 100), [round as u8 | 1; 100]);
            }
        });
        for _ in 0..2000 {
            match object.discard(2 * PAGE, 2 * PAGE + 1000) {
                Ok(()) | Err(Error::PastEnd { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn both_engines_clear_ranges_of_files() {
    for engine in [Engine::Auto, Engine::Blocking] {
        for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
            let content: Vec<u8> = (0..LEN as usize + 700).map(|at| (at % 251) as u8).collect();
            let file = Scratch::of("cleared", &content);
            let config =
                CacheConfig { engine, segment_bytes: SET_BYTES, background: false, ..CacheConfig::default() };
            let (cache, object) = on(config, mode, open(&file.0));
            object.write_at(0, &content).unwrap();
            let mut queue = cache.queue().unwrap();
            let (a, b) = (Op::Discard { offset: 5000, len: 50_000, durable: true }, 60 * PAGE);
            let c = Op::Zero { offset: b, len: LEN + 700 - b, durable: false };
            queue.submit(&object, [a, c].map(request));
            succeed_all(&mut queue);
            let mut expected = content.clone();
            expected[5000..55_000].fill(0);
            expected[b as usize..].fill(0);
            assert!(bytes_at(&object, 0, LEN + 700) == expected, "{engine:?} {mode:?}");
            object.close().unwrap();
            assert!(std::fs::read(&file.0).unwrap() == expected, "{engine:?} {mode:?}");
        }
    }
}
