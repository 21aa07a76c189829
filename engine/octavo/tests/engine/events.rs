//! The events of a cache: what is told, with which names, sizes and reasons.

use std::time::Duration;

use crate::fixture::{PAGE, disk, scene, sized, small, until, written_back};
use crate::tenants::config;
use crate::watchdog::Watchdog;
use octavo::disk::{SimFaults, Store};
use octavo::pressure::{PressureSource, Sample};
use octavo::{Cache, CacheConfig, CacheMode, Error, Happened, Limits, MoveReason, PartitionConfig};

const MIB: u64 = 1 << 20;

/// The resizes so far: the partition, whether it grew, and why.
fn resizes(cache: &Cache) -> Vec<(String, bool, MoveReason)> {
    let resized = |event: octavo::CacheEvent| match event.what {
        Happened::Resized { partition, from_bytes, to_bytes, reason } => {
            assert_ne!(from_bytes, to_bytes, "{partition}");
            Some((partition, to_bytes > from_bytes, reason))
        }
        _ => None,
    };
    cache.events(0).into_iter().filter_map(resized).collect()
}

#[test]
fn a_resize_says_whose_size_changed_from_what_to_what_and_why() {
    let cache = Cache::new(config(64 * MIB)).unwrap();
    let partition = cache.partition(sized(16 * MIB)).unwrap();
    assert!(cache.events(0).is_empty(), "the size that a partition begins with is no change");
    let before = partition.stat().charged_bytes;
    partition.set_limits(Limits { max_bytes: 8 * MIB, ..partition.limits() }).unwrap();
    let after = partition.stat().charged_bytes;
    let [event] = &cache.events(0)[..] else { panic!("{:?}", cache.events(0)) };
    assert_eq!(event.number, 1);
    let Happened::Resized { partition: name, from_bytes, to_bytes, reason } = &event.what else {
        panic!("{event:?}")
    };
    assert_eq!((name.as_str(), *from_bytes, *to_bytes, *reason), ("p", before, after, MoveReason::Limit));
    let sentence = format!("partition p: resized from {before} to {after} bytes (limit)");
    assert_eq!(event.what.to_string(), sentence);

    partition.reclaim(MIB).unwrap();
    partition.resize(8 * MIB).unwrap();
    cache.set_group("host", Limits { max_bytes: MIB, ..Limits::default() }).unwrap();
    let other = PartitionConfig { start_bytes: Some(4 * MIB), ..PartitionConfig::new("host/vm1") };
    cache.partition(other).unwrap();
    let own = |is_growth, reason| ("p".to_owned(), is_growth, reason);
    let expected = [
        own(false, MoveReason::Limit),
        own(false, MoveReason::Asked),
        own(true, MoveReason::Asked),
        // The new partition shrinks to its group's limit.
        ("host/vm1".to_owned(), false, MoveReason::NewPartition),
    ];
    assert_eq!(resizes(&cache), expected);
    // A removed partition's last resize is no news.
    cache.remove_partition("p").unwrap();
    assert_eq!(resizes(&cache).len(), expected.len());
}

#[test]
fn the_reaper_says_whether_it_moved_memory_for_misses_or_because_memory_is_short() {
    let is_short = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let source = {
        let is_short = is_short.clone();
        PressureSource::new(move || {
            let available = if is_short.load(std::sync::atomic::Ordering::Relaxed) { 0 } else { 64 * MIB };
            let stalled_percent = Some(if available == 0 { 40.0 } else { 0.0 });
            Sample { stalled_percent, available_bytes: Some(available), bound_bytes: Some(64 * MIB) }
        })
    };
    let cache = Cache::new(CacheConfig { pressure: Some(source), ..config(32 * MIB) }).unwrap();
    let partition = |name: &str, bytes| {
        cache.partition(PartitionConfig { start_bytes: Some(bytes), ..PartitionConfig::new(name) }).unwrap()
    };
    let (idle, busy) = (partition("idle", 26 * MIB), partition("busy", 2 * MIB));
    let object = busy.open(Store::memory("disk", 12 * MIB), "disk").unwrap();
    let mut page = [0; PAGE as usize];
    for _ in 0..10 {
        (0..12 * MIB / PAGE).for_each(|number| object.read_at(number * PAGE, &mut page).unwrap());
        cache.balance();
    }
    let moves = resizes(&cache);
    assert!(moves.contains(&("busy".into(), true, MoveReason::Utility)), "{moves:?}");
    assert!(moves.iter().all(|(.., reason)| *reason == MoveReason::Utility), "{moves:?}");

    let seen = cache.events(0).last().unwrap().number;
    is_short.store(true, std::sync::atomic::Ordering::Relaxed);
    let allowed = cache.reaper_stat().allowed_bytes;
    cache.balance();
    let events = cache.events(seen);
    let Happened::Allowed { from_bytes, to_bytes } = events[0].what else { panic!("{events:?}") };
    assert_eq!((from_bytes, to_bytes), (allowed, cache.reaper_stat().allowed_bytes));
    let shrank = |event: &octavo::CacheEvent| {
        matches!(&event.what, Happened::Resized { reason: MoveReason::Pressure, from_bytes, to_bytes, .. }
            if to_bytes < from_bytes)
    };
    assert!(events.len() > 1 && events[1..].iter().all(shrank), "{events:?}");
    drop(idle);
}

#[test]
fn buffers_and_new_partitions_that_take_memory_of_pages_are_the_reason() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "buffers that take memory");
    let memory = CacheConfig { memory_max_bytes: 64 * MIB, seed: Some(9), ..CacheConfig::default() };
    let (cache, ..) = scene(memory, PartitionConfig::new("p"), Store::memory("file", MIB));
    let buffers: Vec<_> = std::iter::from_fn(|| cache.buffer(64 << 10)).collect();
    assert!(!buffers.is_empty());
    let moves = resizes(&cache);
    assert!(moves.contains(&("p".into(), false, MoveReason::Buffers)), "{moves:?}");
    cache.partition(PartitionConfig::new("q")).unwrap();
    let moves = resizes(&cache);
    assert!(moves.contains(&("p".into(), false, MoveReason::NewPartition)), "{moves:?}");
}

#[test]
fn a_store_that_refuses_and_takes_pages_again_is_told_once_each() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "a store that refuses");
    let disk = disk(3);
    let partition = PartitionConfig { dirty_max_bytes: Some(16 * PAGE), ..written_back(MIB) };
    let config = CacheConfig { background: true, reaper: false, ..small(3) };
    let (cache, _, object) = scene(config, partition, disk.store("disk", MIB));
    disk.set_faults(SimFaults { p_no_space: 1.0, p_torn: 0.0, ..SimFaults::default() });
    (0..12).for_each(|page| object.write_at(page * PAGE, &[1; PAGE as usize]).unwrap());
    until(|| !cache.events(0).is_empty());
    let failed = cache.events(0).remove(0);
    let Happened::WritebackFailed { partition, object: name, dirty_bytes, error } = &failed.what else {
        panic!("{failed:?}")
    };
    assert_eq!((partition.as_str(), name.as_str()), ("p", "object"));
    // It may have refused the first pages before the last ones were written.
    assert!((PAGE..=12 * PAGE).contains(dirty_bytes), "{dirty_bytes}");
    assert!(matches!(error, Error::Io { .. }), "{error}");
    disk.set_faults(SimFaults::default());
    let recovered = cache.wait_events(failed.number, Duration::from_secs(600));
    assert!(
        matches!(&recovered[..], [event] if matches!(&event.what, Happened::WritebackRecovered { partition, object }
            if partition == "p" && object == "object")),
        "{recovered:?}"
    );
}

#[test]
fn a_failed_sync_of_a_store_is_an_event_with_the_names() {
    let disk = disk(4);
    let (cache, _, object) = scene(small(4), written_back(MIB), disk.store("disk", MIB));
    object.write_at(0, &[5; PAGE as usize]).unwrap();
    disk.set_faults(SimFaults { p_sync_error: 1.0, ..SimFaults::default() });
    object.sync().unwrap_err();
    object.sync().unwrap_err();
    let events = cache.events(0);
    let [event] = &events[..] else { panic!("{events:?}") };
    assert!(
        matches!(&event.what, Happened::SyncFailed { partition, object, error: Error::Io { .. } }
            if partition == "p" && object == "object"),
        "{event:?}"
    );
    assert!(event.what.to_string().ends_with("the object is failed until it is opened again"), "{event:?}");
}

#[test]
fn a_resize_that_a_store_holds_up_is_told_and_that_it_continues() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "a resize that is held up");
    let dead = disk(5);
    let partition = PartitionConfig {
        cache_mode: CacheMode::Writeback,
        start_bytes: Some(7 * MIB),
        dirty_max_bytes: Some(6 * MIB),
        ..PartitionConfig::new("p")
    };
    let config = CacheConfig { memory_max_bytes: 16 * MIB, buffers_max_bytes: Some(MIB), ..small(4) };
    let (cache, partition, object) = scene(config, partition, dead.store("stuck", 8 * MIB));
    dead.hang();
    (0..512).for_each(|page| object.write_at(page * 2 * PAGE, &[1; PAGE as usize]).unwrap());
    let limits = Limits { max_bytes: MIB, ..Limits::default() };
    assert!(!partition.begin_limits(limits).unwrap().is_nothing());
    let told = |wanted: fn(&Happened) -> bool| cache.events(0).iter().any(|event| wanted(&event.what));
    let is_held_up = |what: &Happened| matches!(what, Happened::HeldUp { partition } if partition == "p");
    let is_released = |what: &Happened| matches!(what, Happened::Released { partition } if partition == "p");
    until(|| !cache.settle().is_nothing() && told(is_held_up));
    assert!(!told(is_released));
    dead.answer();
    until(|| cache.settle().is_nothing());
    assert!(told(is_released));
    // What later turns finish has the reason for which it was begun.
    assert!(partition.stat().charged_bytes <= MIB);
    let moves = resizes(&cache);
    assert!(!moves.is_empty() && moves.iter().all(|(.., reason)| *reason == MoveReason::Limit), "{moves:?}");
}
