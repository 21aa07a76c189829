//! Pins that are held for long or leaked cost their pages and nothing else: resizing, closing and
//! dropping the cache still end, and give back all other memory.

use crate::fixture::{PAGE, SET_BYTES, Scratch, bytes_at, is_alone, open, scene, sized, small, written_back};
use crate::kernel;
use crate::watchdog::Watchdog;
use octavo::disk::Store;
use octavo::{Cache, CacheConfig, CacheMode, Limits, Object, OwnedPin, Partition, PartitionConfig};
use octavo_random::Random;
use std::mem::forget;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Most pins of one page.
const PINS_MAX: usize = 1023;

/// Resident bytes of this process, as the kernel counts them.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * PAGE
}

/// Collects warnings, in a process of one test.
struct Warnings;

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            WARNINGS.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// The bytes of a page with this number, in version `version`.
fn bytes_of(page: u64, version: u64) -> [u8; PAGE as usize] {
    [(page * 7 + version * 31) as u8 | 1; PAGE as usize]
}

fn pin(object: &Object, page: u64) -> OwnedPin {
    object.pin_owned(page * PAGE).unwrap().expect("the set has room")
}

/// Reads pages until each of them is resident, if the partition has room.
fn warm(object: &Object, pages: u64) {
    (0..pages).for_each(|page| object.read_at(page * PAGE, &mut [0]).unwrap());
}

/// A pinned page used to keep its whole segment, with its frames and its charge.
#[test]
fn a_leaked_pin_keeps_the_charge_of_its_page_alone() {
    let (_cache, partition, object) = scene(small(1), sized(2 << 20), Store::memory("m", 1 << 20));
    warm(&object, 256);
    let full = partition.stat();
    // What remains of the smallest size without pins.
    let least = partition.resize(1).unwrap();
    assert_eq!(partition.resize(2 << 20).unwrap(), full.charged_bytes);
    warm(&object, 256);
    let pages: Vec<OwnedPin> = (0..40).map(|page| pin(&object, page)).collect();
    assert_eq!(partition.pinned_bytes(), 40 * PAGE);
    let charged = partition.resize(1).unwrap();
    let stat = partition.stat();
    // Pages of the segment that is left are a part of it.
    assert!(charged > least && charged <= least + 40 * PAGE, "{charged}, {least} without pins");
    assert_eq!((stat.max_bytes, partition.pinned_bytes()), (SET_BYTES, 40 * PAGE));
    // The partition grows to its former size and charge, and shrinks again.
    assert_eq!(partition.resize(2 << 20).unwrap(), full.charged_bytes);
    assert_eq!(partition.stat().max_bytes, full.max_bytes);
    assert_eq!(partition.resize(1).unwrap(), charged);
    // Half of the pins are dropped: the next resize gives their memory back.
    let mut pages = pages;
    pages.drain(20..);
    let fewer = partition.resize(1).unwrap();
    assert!(fewer < charged && fewer <= least + 20 * PAGE, "{fewer} after {charged}");
    pages.into_iter().for_each(forget);
    assert_eq!(partition.resize(1).unwrap(), fewer);
    assert_eq!(partition.pinned_bytes(), 20 * PAGE);
    assert_eq!(partition.resize(2 << 20).unwrap(), full.charged_bytes);
}

/// The size of a partition as its stat shows it must not creep down or up as leaks repeat.
#[test]
fn a_partition_that_leaks_at_every_size_reaches_its_size_again() {
    let (_cache, partition, object) = scene(small(2), sized(1 << 20), Store::memory("m", 1 << 20));
    let full = partition.stat();
    for round in 0..200 {
        // Once leaks fill a set, its pages cannot be pinned.
        if let Some(page) = object.pin_owned(round % 256 * PAGE).unwrap() {
            forget(page);
        }
        partition.resize(1 + round * 7919 % (1 << 20)).unwrap();
        assert!(partition.stat().max_bytes >= SET_BYTES);
    }
    assert_eq!(partition.resize(1 << 20).unwrap(), full.charged_bytes);
    assert_eq!(partition.stat().max_bytes, full.max_bytes);
}

#[test]
fn the_reaper_and_a_close_give_back_pages_whose_pins_were_dropped() {
    let (cache, partition, object) = scene(small(3), sized(1 << 20), Store::memory("m", 1 << 20));
    let other = partition.open(Store::memory("other", PAGE), "other").unwrap();
    let charged = || partition.stat().charged_bytes;
    let grown = charged();
    // The metadata of segments that were used stays charged.
    let least = partition.resize(1).unwrap();
    // So that the reaper does not let the partition grow.
    partition.set_limits(Limits { max_bytes: least, ..partition.limits() }).unwrap();
    let pin_and_unpin = || {
        assert_eq!(partition.resize(1 << 20).unwrap(), grown);
        let pins: Vec<OwnedPin> = (0..64).map(|page| pin(&object, page)).collect();
        let bytes = partition.resize(1).unwrap();
        drop(pins);
        assert!(charged() == bytes && bytes > least + 32 * PAGE, "an unpin alone changes no charge");
    };
    pin_and_unpin();
    cache.balance();
    assert_eq!(charged(), least);
    pin_and_unpin();
    other.close().unwrap();
    assert_eq!(charged(), least);
}

#[test]
fn a_pinned_page_survives_the_close_of_its_object_and_is_not_found_by_the_next() {
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        let file = Scratch::of("pinned-close", &[9; 16 * PAGE as usize]);
        let config = PartitionConfig { cache_mode: mode, ..sized(1 << 20) };
        let (_cache, partition, object) = scene(small(4), config, open(&file.0));
        object.write_at(0, &[1; PAGE as usize]).unwrap();
        let (page, leaked) = (pin(&object, 0), pin(&object, 1));
        let bytes = leaked.to_vec();
        forget(leaked);
        object.close().unwrap();
        drop(object);
        assert_eq!((partition.stat().resident_bytes, partition.pinned_bytes()), (0, 2 * PAGE));
        let object = partition.open(open(&file.0), "again").unwrap();
        object.write_at(0, &[2; PAGE as usize]).unwrap();
        object.write_at(PAGE, &[3; PAGE as usize]).unwrap();
        assert_eq!((page[..] == [1; PAGE as usize], bytes == [9; PAGE as usize]), (true, true));
        assert!(bytes_at(&object, 0, 2 * PAGE)[..] == [[2; PAGE as usize], [3; PAGE as usize]].concat());
        drop(page);
        assert_eq!(partition.pinned_bytes(), PAGE);
        let page = pin(&object, 0);
        assert_eq!(object.abandon() > 0, mode == CacheMode::Writeback);
        assert!(page[..] == [2; PAGE as usize]);
    }
}

/// The store is free, and a new cache can have it, while a page of the old cache is still pinned.
#[test]
fn dropping_the_cache_frees_its_store_and_threads_while_pins_live_on() {
    if !is_alone("owned_pins::dropping_the_cache_frees_its_store_and_threads_while_pins_live_on") {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60), "the drop of a cache with pins");
    log::set_logger(&Warnings).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let folder = |name: &str| std::fs::read_dir(format!("/proc/self/{name}")).unwrap().count();
    let file = Scratch::of("pinned-drop", &[5; 64 * PAGE as usize]);
    // A cache that comes and goes; what of it is left are the pins that `hold` returns.
    let pass = |bytes: u8, hold: fn(&Object) -> Vec<OwnedPin>| {
        let config = CacheConfig { memory_max_bytes: 64 << 20, ..CacheConfig::default() };
        let (cache, partition, object) = scene(config, written_back(32 << 20), open(&file.0));
        let held = hold(&object);
        object.write_at(3 * PAGE, &[bytes; PAGE as usize]).unwrap();
        object.sync().unwrap();
        drop((object, partition, cache));
        (folder("task"), folder("fd"), held)
    };
    let without = pass(5, |_| Vec::new());
    let with = pass(6, |object| {
        forget(pin(object, 3));
        vec![pin(object, 3)]
    });
    assert_eq!((with.0, with.1), (without.0, without.1), "threads and descriptors");
    let warnings = std::mem::take(&mut *WARNINGS.lock().unwrap());
    let is_told = |text: &String| text.starts_with("partition p: 1 pages (4096 bytes) are still pinned");
    assert!(warnings.len() == 1 && warnings.iter().all(is_told), "{warnings:?}");
    let (_cache, _, object) = scene(small(5), sized(1 << 20), open(&file.0));
    assert!(bytes_at(&object, 3 * PAGE, PAGE) == [6; PAGE as usize]);
    assert!(with.2[0][..] == [5; PAGE as usize]);
}

#[test]
fn removing_a_partition_ends_though_its_pages_are_pinned() {
    let (cache, partition, object) = scene(small(6), sized(1 << 20), Store::memory("m", 1 << 20));
    let before = cache.stat().memory_charged_bytes - partition.stat().charged_bytes;
    object.write_at(0, &bytes_of(0, 0)).unwrap();
    let page = pin(&object, 0);
    forget(object.pin(0).unwrap());
    cache.remove_partition("p").unwrap();
    drop((object, partition));
    let left = cache.stat().memory_charged_bytes - before;
    assert!(left < SET_BYTES, "{left} bytes stay charged for one pinned page and metadata");
    cache.partition(sized(1 << 20)).unwrap();
    assert!(page[..] == bytes_of(0, 0));
    drop((cache, page));
}

#[test]
fn a_page_has_at_most_1023_pins_of_both_kinds_and_is_copied_for_more() {
    let (_cache, partition, object) = scene(small(7), sized(1 << 20), Store::memory("m", 1 << 20));
    let mut owned: Vec<OwnedPin> = (0..PINS_MAX - 1).map(|_| pin(&object, 0)).collect();
    let last = object.pin(0).unwrap().expect("one is left");
    assert!(object.pin_owned(0).unwrap().is_none() && object.try_pin_owned(0).unwrap().is_none());
    assert!(matches!(object.pin_or_copy(0).unwrap(), octavo::PinOrCopy::Copy(_)));
    assert_eq!(partition.pinned_bytes(), PAGE, "a page counts once");
    owned.push(last.into_owned());
    assert!(object.pin(0).unwrap().is_none(), "a conversion needs no further pin");
    owned.clear();
    assert_eq!(partition.pinned_bytes(), 0);
}

#[test]
fn pins_of_other_threads_keep_their_bytes_beside_resizes() {
    const PAGES: u64 = 300;
    let watchdog = Watchdog::new(Duration::from_secs(120), "pins beside resizes");
    let (_cache, partition, object) =
        scene(small(8), written_back(2 << 20), Store::memory("m", PAGES * PAGE));
    (0..PAGES).for_each(|page| object.write_at(page * PAGE, &bytes_of(page, 0)).unwrap());
    let versions: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    let hold = |thread: u64| {
        let mut random = Random::new(thread);
        let mut held: Vec<(OwnedPin, Vec<u8>)> = Vec::new();
        let mut count = 0;
        while !over.load(Relaxed) || count < 100 {
            // Each thread writes the pages of its own residue.
            let page = random.below(PAGES / 3) * 3 + thread;
            let version = versions[page as usize].fetch_add(1, Relaxed) + 1;
            object.write_at(page * PAGE, &bytes_of(page, version)).unwrap();
            if let Some(pin) = object.pin_owned(page * PAGE).unwrap() {
                assert!(pin[..] == bytes_of(page, version), "page {page}");
                held.push((pin, bytes_of(page, version).to_vec()));
                count += 1;
            }
            if held.len() > 40 {
                let (pin, bytes) = held.swap_remove(random.below(41) as usize);
                assert!(pin[..] == bytes, "a pinned page has changed");
            }
        }
        held.iter().for_each(|(pin, bytes)| assert!(pin[..] == bytes[..], "a pinned page has changed"));
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|thread| drop(scope.spawn(move || hold(thread))));
        let mut random = Random::new(99);
        for round in 0..60 {
            watchdog.feed(format!("resize {round}"));
            partition.resize(1 + random.below(2 << 20)).unwrap();
        }
        over.store(true, Relaxed);
    });
    assert_eq!(partition.pinned_bytes(), 0);
    let smallest = partition.resize(1).unwrap();
    assert_eq!(partition.resize(1).unwrap(), smallest);
    for page in 0..PAGES {
        let bytes = bytes_of(page, versions[page as usize].load(Relaxed));
        assert!(bytes_at(&object, page * PAGE, PAGE) == bytes, "page {page}");
    }
}

/// A child of `fork` reads the pages that its parent had pinned, and dropping them there changes
/// nothing.
#[test]
fn a_forked_child_reads_and_drops_inherited_pins() {
    if !is_alone("owned_pins::a_forked_child_reads_and_drops_inherited_pins") {
        return;
    }
    let (cache, partition, object) = scene(small(9), sized(1 << 20), Store::memory("m", 1 << 20));
    object.write_at(0, &bytes_of(0, 0)).unwrap();
    let (page, last) = (pin(&object, 0), pin(&object, 1));
    let Some(child) = kernel::fork() else {
        kernel::end_after(60);
        let is_right = page[..] == bytes_of(0, 0) && last[..] == [0; PAGE as usize];
        drop((page, object, partition, cache, last));
        kernel::exit(u8::from(!is_right));
    };
    assert!(kernel::wait_for(child).success());
    assert_eq!(partition.pinned_bytes(), 2 * PAGE);
    object.write_at(0, &bytes_of(0, 1)).unwrap();
    assert!(page[..] == bytes_of(0, 0));
    drop((object, partition, cache, page));
    let Some(child) = kernel::fork() else {
        kernel::end_after(60);
        // The last owner of the partition.
        drop(last);
        kernel::exit(0);
    };
    assert!(kernel::wait_for(child).success());
    assert!(last[..] == [0; PAGE as usize]);
}

/// A partition of `mib` MiB, in which every page of a store of the same size was read.
fn filled(mib: u64) -> (Cache, Partition, Object) {
    let config = CacheConfig {
        memory_max_bytes: (mib + mib / 8 + 64) << 20,
        background: false,
        seed: Some(10),
        ..CacheConfig::default()
    };
    // A store that holds no memory of its own.
    let file = Scratch::new(&format!("resident-pins-{mib}"), mib << 20);
    let (cache, partition, object) = scene(config, sized((mib + 16) << 20), open(&file.0));
    let mut buffer = vec![0; 1 << 20];
    (0..mib).for_each(|at| object.read_at(at << 20, &mut buffer).unwrap());
    (cache, partition, object)
}

/// Leaks pins in all segments, and asserts that the process then holds their pages and no other
/// memory, by the kernel's figures.
fn leak_and_shrink(mib: u64, pins: u64) {
    let (cache, partition, object) = filled(mib);
    let full = resident();
    let step = (mib << 8) / pins;
    let mut pages: Vec<OwnedPin> = (0..pins).map(|number| pin(&object, number * step)).collect();
    let charged = partition.resize(1).unwrap();
    let small = resident();
    println!(
        "{pins} of {} pages pinned: {} KiB resident, then {} KiB; {} KiB charged",
        mib << 8,
        full >> 10,
        small >> 10,
        charged >> 10
    );
    // One segment of 2 MiB stays, and metadata: 32 bytes a page and 2 MiB at most.
    let allowed = pins * PAGE + (4 << 20) + (mib << 13);
    assert!(full > mib << 20 && charged <= allowed, "{full} bytes were resident, {charged} are charged");
    let other = full - (mib << 20);
    assert!(small <= other + allowed, "{small} bytes are resident, {} are allowed", other + allowed);
    assert!(pages.iter().all(|page| page[..] == [0; PAGE as usize]));
    // The cache goes, and all but the pinned pages with it.
    let kept: Vec<OwnedPin> = pages.drain(..4).collect();
    pages.into_iter().for_each(forget);
    drop((object, partition, cache));
    assert!(kept.iter().all(|page| page[..] == [0; PAGE as usize]));
    assert!(resident() <= small);
}

#[test]
fn memory_of_shrunk_segments_goes_back_to_the_system_except_leaked_pages() {
    if !is_alone("owned_pins::memory_of_shrunk_segments_goes_back_to_the_system_except_leaked_pages") {
        return;
    }
    leak_and_shrink(32, 125);
}

/// Dropping the cache gives back all frames but the pinned ones, while a pin keeps their addresses.
#[test]
fn memory_of_a_dropped_cache_goes_back_to_the_system_except_pinned_pages() {
    if !is_alone("owned_pins::memory_of_a_dropped_cache_goes_back_to_the_system_except_pinned_pages") {
        return;
    }
    let (cache, partition, object) = filled(32);
    let full = resident();
    let pages: Vec<OwnedPin> = (0..32).map(|number| pin(&object, number * 256)).collect();
    // The handles go in any order, and the last one gives the memory back.
    drop((cache, object));
    assert!(resident() > full - (16 << 20));
    drop(partition);
    let left = resident();
    println!("{} KiB resident, then {} KiB", full >> 10, left >> 10);
    assert!(left + (31 << 20) < full, "{left} bytes of {full} are resident");
    assert!(pages.iter().all(|page| page[..] == [0; PAGE as usize]));
}

/// The same at full size, with `--ignored`.
#[test]
#[ignore = "takes 256 MiB"]
fn a_thousand_leaked_pins_in_256_mib_keep_a_thousand_pages() {
    leak_and_shrink(256, 1000);
}
