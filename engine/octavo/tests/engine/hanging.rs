//! A store that hangs delays its own object only.

use crate::fixture::{PAGE, disk, scene, small, until, written_back};
use crate::watchdog::Watchdog;
use octavo::disk::SimDisk;
use octavo::{Cache, CacheConfig, CacheMode, Limits, Object, PartitionConfig};
use std::time::Duration;

const MIB: u64 = 1 << 20;

const PAGES: u64 = 256;
const DIRTY_MAX: u64 = 64;

/// A cache with a cleaner, and 32 bounce pages.
fn config(seed: u64, reaper: bool) -> CacheConfig {
    let buffers_max_bytes = Some(MIB);
    CacheConfig { memory_max_bytes: 16 * MIB, buffers_max_bytes, background: true, reaper, ..small(seed) }
}

/// A partition that starts with `bytes` and may have 6 MiB of dirty pages.
fn started(name: &str, bytes: u64) -> PartitionConfig {
    PartitionConfig {
        cache_mode: CacheMode::Writeback,
        start_bytes: Some(bytes),
        dirty_max_bytes: Some(6 * MIB),
        ..PartitionConfig::new(name)
    }
}

/// Writes every other page, so that each becomes an I/O of its own.
fn dirty(object: &Object, pages: u64) {
    (0..pages).for_each(|page| object.write_at(page * 2 * PAGE, &[page as u8 | 1; PAGE as usize]).unwrap());
}

fn dirty_pages(object: &Object) -> u64 {
    object.stat().dirty_bytes / PAGE
}

fn assert_written(disk: &SimDisk, name: &str, pages: u64) {
    let image = disk.image(name);
    for page in 0..pages {
        let at = (page * 2 * PAGE) as usize;
        let expected = [page as u8 | 1; PAGE as usize];
        assert_eq!(image[at..][..PAGE as usize], expected, "page {} of {name}", 2 * page);
    }
}

/// One hung store used to stop the write-back of all partitions: the cleaner cleaned objects one
/// after the other, and the hung one held all bounce pages.
#[test]
fn a_hung_store_delays_the_write_back_of_its_own_object_only() {
    let watchdog = Watchdog::new(Duration::from_secs(60), "a store that hangs");
    let cache = Cache::new(config(3, false)).unwrap();
    let partition = |name: &str| {
        let (name, dirty_max_bytes) = (name.to_owned(), Some(DIRTY_MAX * PAGE));
        cache.partition(PartitionConfig { name, dirty_max_bytes, ..written_back(4 * MIB) }).unwrap()
    };
    let (dead, alive) = (disk(1), disk(2));
    let (first, second) = (partition("first"), partition("second"));
    let stuck = first.open(dead.store("stuck", PAGES * PAGE), "stuck").unwrap();
    let neighbour = first.open(alive.store("neighbour", PAGES * PAGE), "neighbour").unwrap();
    let other = second.open(alive.store("other", PAGES * PAGE), "other").unwrap();

    watchdog.feed("its write-back hangs");
    dead.hang();
    dirty(&stuck, DIRTY_MAX - 10);
    until(|| dead.in_flight() > 0);
    watchdog.feed("another partition's pages are written");
    dirty(&other, DIRTY_MAX - 10);
    until(|| dirty_pages(&other) <= DIRTY_MAX / 4);
    watchdog.feed("another object of the same partition is written");
    dirty(&neighbour, 9);
    until(|| dirty_pages(&neighbour) == 0);
    watchdog.feed("a write that waits for its own dirty pages continues");
    dirty(&other, PAGES / 2);
    watchdog.feed("others are synced");
    other.sync().unwrap();
    neighbour.sync().unwrap();
    assert_written(&alive, "other", PAGES / 2);
    assert_written(&alive, "neighbour", 9);
    assert_eq!((dirty_pages(&stuck), dead.counters().writes), (DIRTY_MAX - 10, 0));
    watchdog.feed("the store answers");
    dead.answer();
    until(|| dirty_pages(&stuck) <= DIRTY_MAX / 4);
    stuck.sync().unwrap();
    assert_written(&dead, "stuck", DIRTY_MAX - 10);
    assert_eq!(dirty_pages(&stuck), 0);
}

/// A resize used to wait for the store of a shrinking partition while it held the lock that every
/// partition needs: no partition could be made, limited or resized any more.
#[test]
fn a_hung_store_delays_resizes_of_its_own_partition_only() {
    let watchdog = Watchdog::new(Duration::from_secs(60), "a store that hangs while sizes change");
    let cache = Cache::new(config(4, true)).unwrap();
    let partition = |name: &str, bytes: u64| cache.partition(started(name, bytes)).unwrap();
    let (dead, alive) = (disk(5), disk(6));
    let (first, second) = (partition("host/first", 7 * MIB), partition("second", 7 * MIB));
    // Two MiB of dirty pages each, which do not fit into less.
    let stuck = first.open(dead.store("stuck", 4 * PAGES * PAGE), "stuck").unwrap();
    let other = second.open(alive.store("other", 4 * PAGES * PAGE), "other").unwrap();
    dead.hang();
    dirty(&stuck, 2 * PAGES);
    dirty(&other, 2 * PAGES);

    watchdog.feed("a new partition takes memory from both");
    let third = partition("third", 4 * MIB);
    assert!(third.stat().max_bytes >= MIB, "{:?}", third.stat());
    watchdog.feed("callers that set its size or its group's size wait");
    let max = Limits { max_bytes: 2 * MIB, ..Limits::default() };
    let asks = [
        std::thread::spawn({
            let first = first.clone();
            move || first.set_limits(max)
        }),
        std::thread::spawn({
            let cache = cache.clone();
            move || cache.set_group("host", Limits { max_bytes: MIB, ..max })
        }),
    ];
    until(|| cache.reaper_stat().held_up == 1);
    for turn in 0..3 {
        watchdog.feed(format!("another is resized, bounded, made and removed: turn {turn}"));
        assert!(second.reclaim(256 << 10).unwrap() >= 256 << 10);
        let charged = second.stat().charged_bytes;
        second.set_limits(Limits { min_bytes: charged + (128 << 10), ..Limits::default() }).unwrap();
        assert!(second.stat().charged_bytes >= charged + (64 << 10));
        cache.set_group("guests", Limits { max_bytes: MIB, ..max }).unwrap();
        drop(partition("guests/fourth", MIB / 2));
        cache.remove_partition("guests/fourth").unwrap();
        cache.balance();
        other.write_at(0, &[1; PAGE as usize]).unwrap();
    }
    let mut page = [0; PAGE as usize];
    stuck.read_at(8 * PAGE, &mut page).unwrap();
    assert_eq!(page, [5; PAGE as usize]);
    assert!(first.stat().charged_bytes > 2 * MIB, "{:?}", first.stat());
    assert!(asks.iter().all(|ask| !ask.is_finished()), "a call returned before its limit was reached");

    watchdog.feed("the store answers");
    dead.answer();
    for ask in asks {
        ask.join().unwrap().unwrap();
    }
    assert!(first.stat().charged_bytes <= MIB, "{:?}", first.stat());
    assert_eq!(cache.reaper_stat().held_up, 0);
    stuck.sync().unwrap();
    other.sync().unwrap();
    assert_written(&dead, "stuck", 2 * PAGES);
    assert_written(&alive, "other", 2 * PAGES);
}

/// Setting a limit of a partition or a group used to wait for the store as long as it hung.
#[test]
fn limits_apply_at_once_and_a_hung_store_owes_its_memory_until_it_answers() {
    let watchdog = Watchdog::new(Duration::from_secs(60), "limits on a store that hangs");
    for reaper in [false, true] {
        let dead = disk(5);
        let store = dead.store("stuck", 4 * PAGES * PAGE);
        let (cache, first, stuck) = scene(config(4, reaper), started("host/first", 7 * MIB), store);
        dead.hang();
        // Two MiB of pages, which do not fit into less.
        dirty(&stuck, 2 * PAGES);
        let limits = Limits { max_bytes: 2 * MIB, ..Limits::default() };
        watchdog.feed("a partition's max");
        let owed = first.begin_limits(limits).unwrap();
        assert_eq!(first.limits(), limits);
        assert!(owed.bytes > 0 && owed.partitions == ["host/first"], "{owed:?}");
        watchdog.feed("a group's");
        let owed = cache.begin_group("host", Limits { max_bytes: MIB, ..limits }).unwrap();
        assert!(owed.bytes > 0 && owed.partitions == ["host/first"], "{owed:?}");
        watchdog.feed("a policy, memory");
        assert!(!first.begin_policy(octavo::PolicyName::Lru).unwrap());
        let (_, owed) = first.begin_reclaim(MIB).unwrap();
        assert!(!owed.is_nothing());
        watchdog.feed("the store answers");
        dead.answer();
        until(|| (reaper || cache.settle().is_nothing()) && first.stat().charged_bytes <= MIB);
        assert!(first.begin_policy(octavo::PolicyName::Lru).unwrap());
        stuck.sync().unwrap();
        assert_written(&dead, "stuck", 2 * PAGES);
    }
}
