//! Recordings: how they begin and end during other operations, and which events they contain.
//! Replays are tested in the simulator.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use octavo::disk::Store;
use octavo::recording::{Decoder, Event, Step, WHOLE};
use octavo::{Cache, CacheConfig, Object, Partition, PolicyName, Recording, RecordingEnd, Taken};

use crate::fixture::{PAGE, sized, small};
use crate::watchdog::Watchdog;
use octavo_random::Random;

const SEGMENT: u64 = 4 * octavo::WAYS as u64 * PAGE;
const PATIENCE: Duration = Duration::from_secs(60);

/// A partition whose recordings have the fewest blocks that a recording can have: four.
fn partition() -> (Cache, Partition) {
    let cache = Cache::new(CacheConfig {
        memory_max_bytes: (4 << 20) + 32 * SEGMENT,
        segment_bytes: SEGMENT,
        buffers_max_bytes: Some(4 << 20),
        ..small(7)
    });
    let cache = cache.unwrap();
    let partition = cache.partition(sized(8 * SEGMENT)).unwrap();
    (cache, partition)
}

fn with_object() -> (Cache, Partition, Object) {
    let (cache, partition) = partition();
    let object = partition.open(Store::memory("m", 4000 * PAGE), "object").unwrap();
    (cache, partition, object)
}

fn read(object: &Object, page: u64) {
    object.read_at(page * PAGE, &mut [0; 100]).unwrap();
}

/// The events of the next block.
fn block(recording: &mut Recording) -> Vec<Event> {
    let Taken::Block(block) = recording.take(Duration::ZERO) else { panic!("a block is full") };
    Decoder::new(&block).map(Result::unwrap).collect()
}

/// The remaining events of a recording that has ended, and why it ended.
fn rest(recording: &mut Recording) -> (Vec<Event>, RecordingEnd) {
    let mut events = Vec::new();
    loop {
        match recording.take(Duration::ZERO) {
            Taken::Block(block) => {
                // A file takes no larger block.
                assert!(block.len() < 96 << 10, "a block of {} bytes", block.len());
                events.extend(Decoder::new(&block).map(|event| event.expect("the engine has written it")));
                recording.give_back(block);
            }
            Taken::Part(_) => panic!("no part was begun"),
            Taken::Ended(end) => return (events, end),
        }
    }
}

/// The names of objects used to go into the first block whatever its length, and files refuse
/// blocks that are too long.
#[test]
fn the_names_of_many_objects_are_split_into_several_blocks() {
    let (_cache, partition) = partition();
    let names: Vec<String> = (0..90).map(|number| format!("{number}{}", "n".repeat(1000))).collect();
    let open = |name: &String| partition.open(Store::memory("m", PAGE), name).unwrap();
    let _objects: Vec<Object> = names.iter().map(open).collect();
    let mut recording = partition.record(WHOLE).unwrap();
    partition.stop_recording();
    let (events, end) = rest(&mut recording);
    assert_eq!(end, RecordingEnd::Stopped);
    let named = events.into_iter().filter_map(|event| match event {
        Event::Opened { name, .. } => Some(name),
        _ => None,
    });
    assert_eq!(named.collect::<Vec<_>>(), names);
    // More than half of the blocks hold: the rest is called by its number.
    drop(recording);
    let _more: Vec<Object> = names.iter().flat_map(|name| [open(name), open(name)]).collect();
    let mut recording = partition.record(WHOLE).unwrap();
    partition.stop_recording();
    let (events, end) = rest(&mut recording);
    assert_eq!(end, RecordingEnd::Stopped);
    assert!((90..270).contains(&events.len()), "{}", events.len());
}

#[test]
fn the_closing_of_an_object_is_recorded_before_its_number_returns() {
    let (_cache, partition) = partition();
    partition.limit_numbers(1);
    let mut recording = partition.record(WHOLE).unwrap();
    let open = |name: &str| partition.open(Store::memory("m", PAGE), name);
    for name in ["first", "second"] {
        let object = open(name).unwrap();
        let (view, handle) = (object.pin_owned(0).unwrap().unwrap(), object.clone());
        object.close().unwrap();
        drop(object);
        // A handle could still look for pages of the first object. A view only keeps their bytes.
        assert!(open("early").is_err());
        drop(handle);
        drop(view);
    }
    partition.stop_recording();
    let (events, _) = rest(&mut recording);
    let lives: Vec<String> = events
        .into_iter()
        .filter_map(|event| match event {
            Event::Opened { object: 1, name } => Some(name),
            Event::Access { key, .. } => Some(format!("access to {}", key >> 40)),
            Event::Closed { object } => Some(format!("closed {object}")),
            _ => None,
        })
        .collect();
    let expected = ["first", "access to 1", "closed 1", "second", "access to 1", "closed 1"];
    assert_eq!(lives, expected);
}

/// A recording used to begin by taking the lock of resizes under the lock of the tape, while a
/// resize takes them in the opposite order: a deadlock. And a step of a whole recording that had
/// ended could appear in the sample that followed.
#[test]
fn recordings_begin_and_end_during_resizes_opens_and_accesses() {
    let _watchdog = Watchdog::new(PATIENCE, "recordings beside resizes");
    let mut random = Random::new(0x7e57);
    let (_cache, partition, object) = with_object();
    let seeds = [random.next_u64(), random.next_u64()];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (partition, object, is_over) = (&partition, &object, &is_over);
        scope.spawn(move || {
            let mut random = Random::new(seeds[0]);
            while !is_over.load(Relaxed) {
                partition.resize((3 + random.below(6)) * SEGMENT).unwrap();
                partition.set_policy(PolicyName::ALL[random.below(8) as usize]).unwrap();
                drop(partition.open(Store::memory("m", PAGE), "other").unwrap().close());
            }
        });
        scope.spawn(move || {
            let mut random = Random::new(seeds[1]);
            let mut bytes = [0; 100];
            while !is_over.load(Relaxed) {
                object.read_at(random.below(2000) * PAGE, &mut bytes).unwrap();
                object.write_at(random.below(2000) * PAGE, &bytes).unwrap();
            }
        });
        for round in 0..300 {
            let below = if round % 2 == 0 { WHOLE } else { WHOLE / 8 };
            let mut recording = partition.record(below).unwrap();
            assert!(partition.record(below).is_err(), "one at a time");
            let first = recording.take(Duration::from_micros(random.below(500)));
            assert!(matches!(first, Taken::Block(_) | Taken::Ended(_)));
            partition.stop_recording();
            let (events, _) = rest(&mut recording);
            let has_steps = events.iter().any(|event| matches!(event, Event::Step { .. }));
            assert!(below == WHOLE || !has_steps, "a sample has no steps");
        }
        is_over.store(true, Relaxed);
    });
}

#[test]
fn a_recording_whose_blocks_are_not_taken_ends_and_the_partition_keeps_working() {
    let (_cache, partition, object) = with_object();
    let mut recording = partition.record(WHOLE).unwrap();
    let mut random = Random::new(3);
    (0..80_000).for_each(|_| read(&object, random.below(4000)));
    let accesses = partition.recording_stat().unwrap().accesses;
    let (events, end) = rest(&mut recording);
    assert_eq!(end, RecordingEnd::FellBehind);
    // The recording contains exactly the accesses that its statistics count.
    let written = events.iter().filter(|event| matches!(event, Event::Access { .. })).count() as u64;
    assert!(written == accesses && (1000..80_000).contains(&written), "{written} of {accesses}");
    assert!(matches!(events.last(), Some(Event::Totals(totals)) if totals.hits + totals.misses == written));
    drop(recording);
    // The partition can be recorded again.
    let mut recording = partition.record(WHOLE / 2).unwrap();
    read(&object, 0);
    partition.stop_recording();
    assert_eq!(rest(&mut recording).1, RecordingEnd::Stopped);
}

/// A page that is pinned when its recording begins used to be listed without its pins, so that a
/// replay could evict it and diverged.
#[test]
fn pins_that_are_held_when_a_recording_begins_are_listed() {
    let (_cache, partition, object) = with_object();
    (0..20).for_each(|page| read(&object, page));
    let pins = [3, 3, 8].map(|page| object.pin(page * PAGE).unwrap().expect("the page is resident"));
    let mut recording = partition.record(WHOLE).unwrap();
    assert!(!recording.header().from_the_first);
    let held = block(&mut recording).into_iter().filter_map(|event| match event {
        Event::Step { key, step: Step::Held { pins, .. } } => Some((key & 0xff, pins)),
        _ => None,
    });
    let mut held: Vec<(u64, u32)> = held.collect();
    held.sort_unstable();
    assert_eq!(held, [(3, 2), (8, 1)]);
    drop(pins);
}

/// Later parts used to contain only their own events: without the first part, the resident pages
/// and the names of objects were unknown.
#[test]
fn a_part_begins_with_the_resident_pages_and_the_names_of_objects() {
    let (_cache, partition, object) = with_object();
    let mut recording = partition.record(WHOLE / 2).unwrap();
    (0..40).for_each(|page| read(&object, page));
    assert!(recording.begin_part());
    let events = block(&mut recording);
    let Some(Event::Totals(totals)) = events.last() else { panic!("{events:?}") };
    assert_eq!((totals.hits, totals.misses), (0, 40));
    let Taken::Part(header) = recording.take(Duration::ZERO) else { panic!("the second part") };
    assert!(!header.from_the_first && header.segments == recording.header().segments);
    // The list of pages is complete only after all of its blocks were taken.
    let _ = recording.take(Duration::ZERO);
    assert!(!recording.begin_part(), "a part is at least as long as its list");
    (0..40).for_each(|page| read(&object, page));
    partition.stop_recording();
    drop(recording);

    let mut recording = partition.record(WHOLE).unwrap();
    let events = block(&mut recording);
    let is_named =
        |event: &Event| matches!(event, Event::Opened { object: 1, name } if name.as_str() == "object");
    assert!(events.iter().any(is_named), "{events:?}");
    let live = events.iter().filter_map(|event| match event {
        Event::Live { count, .. } => Some(*count),
        _ => None,
    });
    assert_eq!(live.sum::<u32>(), recording.header().segments);
    let resident = events.iter().filter(|event| matches!(event, Event::Resident { dirty: false, .. }));
    assert_eq!(resident.count(), 40);
}
