//! Reads and writes of each page are linearizable: each takes effect at one moment between its call
//! and its return, whatever node its thread sits on. So no read returns older bytes than an earlier
//! read, and none misses a write that was acknowledged before the read began.
//!
//! Threads of several nodes record their operations as events, which are checked afterwards. Every
//! write of a page has bytes of its own, so the check is exact (Gibbons, Korach, "Testing Shared
//! Memories", 1997): the operations with one value span a *zone*, between the first return and the
//! last call. Where the first return comes first, the page held the value during the whole zone:
//! the zone must not overlap another one of this kind, and must not contain the zone of a value
//! whose operations could all have happened at one moment.

use crate::fixture::{batch_at, bytes_at, disk, scene, sized, small};
use crate::watchdog::Watchdog;
use octavo::disk::Store;
use octavo::numa::{NumaMode, Replication, TopologySource, sit};
use octavo::{Advice, CacheConfig, CacheMode, Object, Partition, PartitionConfig, WAYS};
use octavo_random::Random;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const PAGE: usize = 4096;
const PAGES: u64 = 24;

/// One operation of a thread on a page, with the times of its call and its return.
#[derive(Clone, Copy, Debug)]
struct Event {
    page: u64,
    /// The number of the write whose bytes were written or read; 0 for the bytes of the new store.
    value: u64,
    write: bool,
    called: u64,
    returned: u64,
}

/// The operations with one value.
#[derive(Clone, Copy, Debug)]
struct Zone {
    first_return: u64,
    last_call: u64,
    written_from: Option<u64>,
    first_read_return: u64,
}

/// Checks that the history of a page is linearizable; the error says why it is not.
fn check(events: &[Event]) -> Result<(), String> {
    let none = Zone { first_return: u64::MAX, last_call: 0, written_from: None, first_read_return: u64::MAX };
    let mut zones: HashMap<u64, Zone> = HashMap::new();
    // The bytes of the new store count as written before all events.
    zones.insert(0, Zone { first_return: 0, written_from: Some(0), ..none });
    for event in events {
        let zone = zones.entry(event.value).or_insert(none);
        zone.first_return = zone.first_return.min(event.returned);
        zone.last_call = zone.last_call.max(event.called);
        match event.write {
            true => zone.written_from = Some(event.called),
            false => zone.first_read_return = zone.first_read_return.min(event.returned),
        }
    }
    for (value, zone) in &zones {
        let Some(from) = zone.written_from else { return Err(format!("{value} was read and never written")) };
        if zone.first_read_return < from {
            return Err(format!("{value} was read before it was written"));
        }
    }
    let (mut forward, backward): (Vec<_>, Vec<_>) =
        zones.iter().partition(|(_, zone)| zone.first_return < zone.last_call);
    forward.sort_by_key(|(_, zone)| zone.first_return);
    for pair in forward.windows(2) {
        if pair[1].1.first_return < pair[0].1.last_call {
            return Err(format!("{:?} and {:?} overlap", pair[0], pair[1]));
        }
    }
    for (value, zone) in backward {
        let inside = |(_, other): &&(&u64, &Zone)| {
            other.first_return < zone.last_call && zone.first_return < other.last_call
        };
        if let Some(around) = forward.iter().find(inside) {
            return Err(format!("{value} ({zone:?}) happened inside of {around:?}"));
        }
    }
    Ok(())
}

#[test]
fn the_checker_accepts_linearizable_histories_and_refuses_others() {
    let event = |value, write, called, returned| Event { page: 0, value, write, called, returned };
    let good = [event(1, true, 1, 4), event(0, false, 2, 3), event(1, false, 5, 6)];
    assert_eq!(check(&good), Ok(()));
    // Both orders of two writes at once will do, but not one for each reader.
    let writes = [event(1, true, 1, 9), event(2, true, 1, 9)];
    let reads = [event(1, false, 10, 11), event(2, false, 12, 13)];
    assert!(check(&[&writes[..], &reads[..1]].concat()).is_ok());
    assert!(check(&[&writes[..], &reads[1..]].concat()).is_ok());
    let went_back = [&writes[..], &reads[..], &[event(1, false, 14, 15)]].concat();
    assert!(check(&went_back).is_err(), "a read went back");
    assert!(check(&[event(1, true, 1, 2), event(0, false, 3, 4)]).is_err(), "an old page after a write");
    assert!(check(&[event(1, true, 5, 6), event(1, false, 1, 2)]).is_err(), "bytes of the future");
    assert!(check(&[event(7, false, 1, 2)]).is_err(), "bytes from nowhere");
    // Old, new, old.
    let back = [event(1, true, 1, 20), event(1, false, 2, 3), event(0, false, 4, 5)];
    assert!(check(&back).is_err(), "a read went back while the write was on its way");
}

struct Scene {
    partition: Partition,
    object: Object,
    clock: AtomicU64,
    values: AtomicU64,
    events: Mutex<Vec<Event>>,
}

fn page_of(value: u64) -> Vec<u8> {
    let mut bytes = Random::new(value).bytes(PAGE);
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn value_of(bytes: &[u8]) -> u64 {
    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let expected = if value == 0 { vec![0; PAGE] } else { page_of(value) };
    assert!(bytes == expected, "a torn page of value {value}");
    value
}

impl Scene {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn thread(&self, seed: u64, seat: u32, steps: u64) {
        sit(seat);
        let mut random = Random::new(seed);
        let mut events = Vec::new();
        let object = &self.object;
        for step in 0..steps {
            // Half of all is about a few pages.
            let page = if random.one_in(2) { random.below(3) } else { random.below(PAGES) };
            match random.below(64) {
                0..36 => {
                    let called = self.now();
                    let bytes = bytes_at(object, page * PAGE as u64, PAGE as u64);
                    let returned = self.now();
                    events.push(Event { page, value: value_of(&bytes), write: false, called, returned });
                }
                36..44 => {
                    let pages: Vec<u64> = (0..6).map(|_| random.below(PAGES)).collect();
                    let ranges: Vec<_> = pages.iter().map(|page| (page * PAGE as u64, PAGE)).collect();
                    let called = self.now();
                    let (result, read) = batch_at(object, &ranges);
                    let returned = self.now();
                    result.unwrap();
                    for (page, bytes) in pages.into_iter().zip(read) {
                        events.push(Event { page, value: value_of(&bytes), write: false, called, returned });
                    }
                }
                44..58 => {
                    let value = self.values.fetch_add(1, SeqCst);
                    let (called, bytes) = (self.now(), page_of(value));
                    object.write_at(page * PAGE as u64, &bytes).unwrap();
                    events.push(Event { page, value, write: true, called, returned: self.now() });
                }
                58 => {
                    let called = self.now();
                    if let Some(pin) = object.pin(page * PAGE as u64).unwrap() {
                        let value = value_of(&pin);
                        let returned = self.now();
                        events.push(Event { page, value, write: false, called, returned });
                        assert_eq!(value_of(&pin), value, "a pin has changed");
                    }
                }
                59 => object.advise(page * PAGE as u64, PAGE as u64, Advice::DontNeed).unwrap(),
                60 => object.sync().unwrap(),
                61 if step.is_multiple_of(4) => {
                    let segments = 2 + random.below(7);
                    self.partition.resize(segments * (PAGE * WAYS + 1024) as u64 + (20 << 10)).unwrap();
                }
                // Threads move, and pages are got at in other ways.
                _ => {
                    sit(random.below(16) as u32);
                    let ways = [NumaMode::Partition, NumaMode::Message, NumaMode::Replicate];
                    self.partition.go_numa_way(random.pick(&ways));
                }
            }
        }
        self.events.lock().unwrap().extend(events);
    }
}

fn history(
    mode: NumaMode,
    nodes: u32,
    cache_mode: CacheMode,
    replication: Replication,
    store: Store,
    seed: u64,
) {
    const THREADS: u64 = 4;
    let what = format!("{mode:?}, {nodes} nodes, {cache_mode:?}, {replication:?}, seed {seed}");
    let watchdog = Watchdog::new(Duration::from_secs(60), &what);
    let config = CacheConfig {
        buffers_max_bytes: Some(2 << 20),
        topology: TopologySource::Emulated { nodes, cores: 2 },
        numa: mode,
        replication,
        ..small(seed)
    };
    // Sometimes a page finds no free way.
    let max_bytes = 4 * (PAGE * WAYS + 1024) as u64 + (20 << 10);
    let partition =
        PartitionConfig { cache_mode, dirty_max_bytes: Some(12 * PAGE as u64), ..sized(max_bytes) };
    let (_cache, partition, object) = scene(config, partition, store);
    let events = Mutex::new(Vec::new());
    let scene = Scene { partition, object, clock: AtomicU64::new(1), values: AtomicU64::new(1), events };
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (scene, watchdog) = (&scene, watchdog.clone());
            scope.spawn(move || {
                for round in 0..4 {
                    scene.thread(seed * 100 + me * 10 + round, me as u32 * 2, 300);
                    watchdog.feed(format!("thread {me}, round {round}"));
                }
            });
        }
    });
    let mut pages: HashMap<u64, Vec<Event>> = HashMap::new();
    scene.events.lock().unwrap().iter().for_each(|event| pages.entry(event.page).or_default().push(*event));
    for (page, events) in pages {
        check(&events).unwrap_or_else(|why| panic!("{what}: page {page}: {why}"));
    }
    scene.object.close().unwrap();
}

#[test]
fn reads_and_writes_from_several_nodes_are_linearizable_in_every_numa_mode() {
    let kinds = [(NumaMode::Off, 1), (NumaMode::Partition, 2), (NumaMode::Message, 3)];
    let len = PAGES * PAGE as u64;
    for (number, cache_mode) in [CacheMode::Writeback, CacheMode::Writethrough].into_iter().enumerate() {
        for (mode, nodes) in kinds {
            let store = disk(0).store("s", len);
            history(mode, nodes, cache_mode, Replication::default(), store, number as u64);
        }
        for seed in 0..6 {
            let replication = Replication {
                threshold: [1, 1, 2][seed as usize % 3],
                elect: seed % 4 != 3,
                refresh: seed != 4,
                yields: seed != 5,
                switch_writes: [1, 2, 0][seed as usize / 2],
                weighs: seed % 2 == 0,
            };
            let store = match seed % 2 {
                0 => Store::memory("m", len),
                _ => disk(0).store("s", len),
            };
            let mode = if seed % 3 == 2 { NumaMode::Auto } else { NumaMode::Replicate };
            history(mode, [2, 3, 5][seed as usize % 3], cache_mode, replication, store, seed);
        }
    }
}
