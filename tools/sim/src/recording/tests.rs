//! Files of a recording: written, rotated, torn and damaged ones; and replays of events.

use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use octavo_random::Random;
use octavo_recording::{Encoder, Event, Header, Place, Secret, Step, Totals, WHOLE};
use octavo_table::{Learned, PolicyKind, Shape};
use tempfile::TempDir;

use super::block::{self, Kind, MAGIC};
use super::{About, Ending, Reader, Replayed, Rotation, Writer, parts, replay};

fn about(id: u64) -> About {
    let header = Header {
        partition: "p".into(),
        policy: PolicyKind::Lru,
        ways: 16,
        page_bytes: 4096,
        shape: Shape { segments_max: 8, sets_per_segment: 4 },
        nodes: 1,
        segments: 2,
        secret: Secret::Seed(3),
        sample_below: WHOLE,
        from_the_first: true,
    };
    About { id, part: 1, began_unix_ms: 5, header }
}

fn events(from: u64, count: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new());
    (from..from + count).for_each(|page| encoder.access((1 << 40) | (page * page % 10_007), false, false));
    encoder.push(&Event::Totals(Totals { hits: 0, misses: from + count }));
    encoder.take(Vec::new())
}

/// Reads to the end or to an error; returns the accesses, the ending or the error, and the skipped
/// blocks.
fn read(mut reader: Reader) -> (u64, Result<Ending, String>, u64) {
    let mut accesses = 0;
    loop {
        match reader.event() {
            Ok(Some(Event::Access { .. })) => accesses += 1,
            Ok(Some(_)) => {}
            Ok(None) => return (accesses, Ok(reader.ending().expect("the file was read")), reader.skipped()),
            Err(error) => {
                assert_eq!(reader.event(), Ok(None), "nothing follows an error");
                return (accesses, Err(error.to_string()), reader.skipped());
            }
        }
    }
}

fn read_bytes(bytes: &[u8], skip_bad: bool) -> (u64, Result<Ending, String>, u64) {
    match Reader::read("file", Cursor::new(bytes.to_vec()), skip_bad) {
        Ok(reader) => read(reader),
        Err(error) => (0, Err(error.to_string()), 0),
    }
}

/// Makes a file of three blocks of a thousand accesses, and returns where its blocks begin.
fn file() -> (Vec<u8>, Vec<usize>) {
    let mut file = MAGIC.to_vec();
    let mut begins = Vec::new();
    let mut add = |kind, bytes: &[u8]| {
        begins.push(file.len());
        file.extend(block::pack(kind, 9, bytes).unwrap());
    };
    add(Kind::Header, &about(1).encode());
    (0..3).for_each(|number| add(Kind::Events, &events(number * 1000, 1000)));
    add(Kind::End, &Ending::Stopped.encode());
    (file, begins)
}

#[test]
fn everything_before_a_torn_end_is_read() {
    let (file, begins) = file();
    assert_eq!(read_bytes(&file, false), (3000, Ok(Ending::Stopped), 0));
    for end in (begins[1]..file.len()).step_by(7) {
        let whole = begins[2..].iter().filter(|begin| **begin <= end).count() as u64;
        assert_eq!(read_bytes(&file[..end], false), (1000 * whole.min(3), Ok(Ending::Torn), 0), "{end}");
        // Bytes that a file system has not written yet read as zeros.
        let mut longer = file[..end].to_vec();
        longer.resize(end + 5000, 0);
        let (accesses, ending, _) = read_bytes(&longer, false);
        let is_at_border = begins.contains(&end);
        assert!(
            !is_at_border || (accesses, &ending) == (1000 * whole.min(3), &Ok(Ending::Torn)),
            "{end}: {ending:?}"
        );
    }
}

/// Up to version 3, a seed placed pages otherwise.
#[test]
fn a_recording_of_an_older_placement_is_read_but_not_exact() {
    let mut bytes = about(1).encode();
    assert!(block::About::decode(&bytes).unwrap().header.is_exact());
    bytes[0] = 3;
    assert!(!block::About::decode(&bytes).unwrap().header.is_exact());
    bytes[0] = 6;
    assert!(block::About::decode(&bytes).unwrap_err().contains("version 6"));
}

#[test]
fn a_damaged_block_is_an_error_or_is_skipped_and_counted() {
    let (file, begins) = file();
    let mut damaged = file.clone();
    damaged[begins[2] + 60] ^= 4;
    let (accesses, error, _) = read_bytes(&damaged, false);
    let error = error.unwrap_err();
    assert_eq!(accesses, 1000);
    assert!(error.contains(&format!("block at byte {}: its checksum is wrong", begins[2])), "{error}");
    assert_eq!(read_bytes(&damaged, true), (2000, Ok(Ending::Stopped), 1));
    // A damaged last block is a torn end.
    let mut torn = file.clone();
    *torn.last_mut().unwrap() ^= 1;
    assert_eq!(read_bytes(&torn, false), (3000, Ok(Ending::Torn), 0));
    for (bytes, why) in [
        (&b""[..], "not a recording"),
        (b"octavo is nice", "not a recording"),
        (&[&MAGIC[..7], &[9]].concat(), "version 9"),
        (&MAGIC, "no header"),
        (&file[..begins[1] - 1], "cut off"),
        (&[&file[..], b"more"].concat(), ""),
    ] {
        let (_, result, _) = read_bytes(bytes, false);
        match why {
            "" => assert_eq!(result, Ok(Ending::Stopped)),
            _ => assert!(result.as_ref().is_err_and(|error| error.contains(why)), "{result:?}"),
        }
    }
}

/// Returns the files in a folder, by name.
fn files_in(folder: &TempDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn write(path: &Path, rotation: Rotation, id: u64, blocks: u64) -> Writer {
    let mut writer = Writer::create(path, rotation, about(id)).unwrap();
    for number in 0..blocks {
        if writer.is_full() {
            writer.begin_part(number, about(id).header).unwrap();
        }
        writer.write(number, &events(number * 1000, 1000)).unwrap();
    }
    writer.finish(blocks, Ending::Stopped).unwrap();
    writer
}

#[test]
fn rotated_files_are_private_and_are_read_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.octr");
    let rotation = Rotation { file_bytes_max: Some(5000), keep: None };
    let writer = write(&path, rotation, 1, 10);
    let files = files_in(&folder);
    assert!(files.len() > 3 && files[0].ends_with("p.00001.octr") && writer.path() == files[files.len() - 1]);
    let bytes: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert_eq!(bytes, writer.bytes());
    for file in &files {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o600);
    }
    // Another recording continues the numbers. Each recording is a group, in the order of its
    // parts, whatever the order of the paths.
    write(&path, Rotation { keep: Some(2), ..rotation }, 2, 4);
    let later = files_in(&folder);
    assert_eq!(later.len(), 2, "{later:?}");
    write(&folder.path().join("q.octr"), Rotation::default(), 3, 1);
    write(&folder.path().join("r.octr"), rotation, 4, 10);
    let mut all = files_in(&folder);
    all.reverse();
    let groups = parts(&all);
    assert_eq!(groups.len(), 3, "{groups:?}");
    assert_eq!(read(Reader::open(&groups[0], false).unwrap()), (10_000, Ok(Ending::Stopped), 0));
    assert!(groups[0].is_sorted());
    // The error names a missing part.
    let gap = [groups[0][0].clone(), groups[0][2].clone()];
    let (_, error, _) = read(Reader::open(&gap, false).unwrap());
    assert!(error.unwrap_err().contains("part 2 is missing"));
    // An existing file is not replaced.
    assert!(Writer::create(&folder.path().join("q.octr"), Rotation::default(), about(5)).is_err());
}

/// Regression: with `keep` 0, the file that was being written was removed as well.
#[test]
fn an_invalid_rotation_name_or_part_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let rotation = |file_bytes_max, keep| Rotation { file_bytes_max, keep };
    for (name, rotation, part, why) in [
        ("p.octr", rotation(Some(5000), Some(0)), 1, "at least one file must be kept"),
        ("p.octr", rotation(None, Some(3)), 1, "is rotated"),
        ("p.octr", rotation(Some(0), None), 1, "0 bytes"),
        ("p.trace", rotation(None, None), 1, "must end in .octr"),
        (".octr", rotation(None, None), 1, "must end in .octr"),
        ("p.octr", rotation(None, None), 3, "begins with part 1"),
    ] {
        let about = About { part, ..about(1) };
        let error = Writer::create(&folder.path().join(name), rotation, about).err().expect(why);
        assert!(error.kind() == std::io::ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    assert_eq!(files_in(&folder), Vec::<PathBuf>::new());
}

/// Regression: the counts of a later part began with the recording, so the miss ratio of a part
/// included the time before it.
#[test]
fn counts_are_those_of_the_parts_that_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let rotation = Rotation { file_bytes_max: Some(1), keep: None };
    let mut writer = Writer::create(&folder.path().join("p.octr"), rotation, about(1)).unwrap();
    let totals = |hits, misses| {
        let mut encoder = Encoder::new(Vec::new());
        encoder.push(&Event::Totals(Totals { hits, misses }));
        encoder
    };
    for part in 0..4u64 {
        if part > 0 {
            writer.begin_part(0, about(1).header).unwrap();
        }
        writer.write(0, &totals(100 * part, 7 * part).take(Vec::new())).unwrap();
        writer.write(0, &totals(100 * part + 60, 7 * part + 5).take(Vec::new())).unwrap();
        writer.write(0, &totals(100 * part + 100, 7 * part + 7).take(Vec::new())).unwrap();
    }
    writer.finish(0, Ending::Stopped).unwrap();
    let files = files_in(&folder);
    let counted = |files: &[PathBuf]| {
        let mut reader = Reader::open(files, false).unwrap();
        while reader.event().unwrap().is_some() {}
        (reader.first_part(), reader.counted().hits, reader.counted().misses)
    };
    assert_eq!(counted(&files), (1, 400, 28));
    assert_eq!(counted(&files[..1]), (1, 100, 7));
    assert_eq!(counted(&files[1..]), (2, 300, 21));
    assert_eq!(counted(&files[3..]), (4, 100, 7));
}

/// Regression: a recording that began after resizes named segments that its replay did not have, or
/// had already, so the replay did not grow and shrink with the partition.
#[test]
fn the_replay_of_a_recording_that_began_later_has_as_many_segments_as_the_partition() {
    let mut late = about(1);
    late.header.from_the_first = false;
    // There are many more pages than slots, so every slot is filled.
    let slots = |events: &[Event]| {
        let live = [Event::Live { first: 3, count: 1 }, Event::Live { first: 6, count: 1 }];
        let fill = (0..4000).map(|page| resident(page, page % 3 == 0));
        let look = (0..4000).map(|page| Event::Access { key: KEY | page, write: false, hit: false });
        let all: Vec<Event> =
            live.into_iter().chain(events.iter().cloned()).chain(fill).chain(look).collect();
        let replayed = replay_events(&late, &all);
        assert_eq!(replayed.misfits, 0, "{replayed:?}");
        replayed.hits
    };
    const SEGMENT: u64 = 4 * 16;
    // Moves of segments that left before the recording began are no misfits.
    let before = [Event::Advance { done: true }, Event::Retire { segment: 1, retired: true }];
    assert_eq!(slots(&before), 2 * SEGMENT);
    assert_eq!(slots(&[Event::Join { segment: 0 }]), 3 * SEGMENT);
    assert_eq!(slots(&[Event::Join { segment: 0 }, Event::Join { segment: 1 }]), 4 * SEGMENT);
    assert_eq!(slots(&[Event::Leave { segment: 6 }]), SEGMENT);
    assert_eq!(slots(&[Event::Leave { segment: 3 }, Event::Join { segment: 7 }]), 2 * SEGMENT);
}

/// Segments that leave together are several events in a row. Their moves follow from all of them.
#[test]
fn the_replay_of_segments_that_leave_together_makes_the_moves_of_the_partition() {
    let mut all = about(1);
    all.header.from_the_first = true;
    all.header.segments = 4;
    let left = [3, 1].map(|segment| Event::Leave { segment });
    let retired = [1, 3].map(|segment| Event::Retire { segment, retired: true });
    let events: Vec<Event> = left.into_iter().chain([Event::Settled]).chain(retired).collect();
    assert_eq!(replay_events(&all, &events).misfits, 0);
    // A segment that leaves after the moves have begun does not belong to them.
    let mut events = vec![Event::Leave { segment: 3 }, Event::MoveBegun, Event::Leave { segment: 1 }];
    assert_eq!(replay_events(&all, &events).misfits, 1);
    events.extend([Event::Advance { done: true }, Event::Leave { segment: 2 }]);
    assert_eq!(replay_events(&all, &events).misfits, 2);
}

/// Two objects had one number, one after the other. The second reads each page for the first time.
#[test]
fn the_pages_of_an_object_are_not_taken_for_those_of_another_with_its_number() {
    let opened = |name: &str| Event::Opened { object: 1, name: name.into() };
    let looks = |page| Event::Access { key: KEY | page, write: false, hit: false };
    let mut sample = about(1);
    sample.header.sample_below = WHOLE / 2;
    let mut events = vec![opened("first")];
    events.extend((0..20).map(looks));
    events.extend([Event::Closed { object: 1 }, opened("second")]);
    events.extend((0..20).map(looks));
    let replayed = replay_events(&sample, &events);
    assert_eq!((replayed.accesses, replayed.hits), (40, 0));
    // Without the closing, as in recordings before version 5, it is one object.
    events.retain(|event| !matches!(event, Event::Closed { .. }));
    assert_eq!(replay_events(&sample, &events).hits, 20);
}

/// Regression: events were lost without an error.
#[test]
fn a_part_in_the_middle_that_lost_its_end_is_an_error_or_counted() {
    let folder = tempfile::tempdir().unwrap();
    let rotation = Rotation { file_bytes_max: Some(5000), keep: None };
    write(&folder.path().join("p.octr"), rotation, 1, 10);
    let files = files_in(&folder);
    let second = std::fs::File::options().write(true).open(&files[1]).unwrap();
    second.set_len(second.metadata().unwrap().len() - 10).unwrap();
    let (before, error, _) = read(Reader::open(&files, false).unwrap());
    let error = error.unwrap_err();
    assert!(before < 10_000 && error.contains("the end of this part is missing"), "{error}");
    let (accesses, ending, skipped) = read(Reader::open(&files, true).unwrap());
    assert!(accesses > before, "{accesses} of {before}");
    assert_eq!((ending, skipped), (Ok(Ending::Stopped), 1));
}

/// Replays a recording of events.
fn replay_events(about: &About, events: &[Event]) -> Replayed {
    let mut encoder = Encoder::new(Vec::new());
    let mut file = [&MAGIC[..], &block::pack(Kind::Header, 0, &about.encode()).unwrap()].concat();
    for some in events.chunks(5000) {
        some.iter().for_each(|event| encoder.push(event));
        file.extend(block::pack(Kind::Events, 1, &encoder.take(Vec::new())).unwrap());
    }
    file.extend(block::pack(Kind::End, 2, &Ending::Stopped.encode()).unwrap());
    let mut reader = Reader::read("events", Cursor::new(file), false).unwrap();
    replay(&mut reader, &AtomicBool::new(false), &mut |_, _| {}).unwrap()
}

const KEY: u64 = 1 << 40;

fn step(page: u64, step: Step) -> Event {
    Event::Step { key: KEY | page, step }
}

fn resident(page: u64, dirty: bool) -> Event {
    Event::Resident { key: KEY | page, dirty, bits: 0 }
}

fn fill(page: u64, way: u8) -> [Event; 2] {
    let place = Place::Way { way, evicted: false };
    [step(page, Step::Claim(place)), step(page, Step::Publish { dirty: false })]
}

/// Regression: a page was pinned in the cache and not in the replay, so the claim for its successor
/// evicted the page itself, and the replay panicked.
#[test]
fn a_page_evicted_for_its_own_successor_is_a_misfit() {
    let mut events: Vec<Event> = (0..600).flat_map(|page| fill(page, 0)).collect();
    events.extend((0..600).map(|page| step(page, Step::Supersede(Place::Way { way: 0, evicted: true }))));
    // The replay continues with what is left.
    events.extend((0..600).map(|page| Event::Access { key: KEY | page, write: false, hit: true }));
    let replayed = replay_events(&about(1), &events);
    assert!(replayed.misfits > 0 && replayed.accesses == 600, "{replayed:?}");
}

#[test]
fn a_page_that_was_pinned_when_it_was_listed_stays_until_its_pins_have_gone() {
    let pinned = |unpins: u64| {
        let mut events = vec![resident(0, false)];
        // A pin that was recorded before its page was listed counts among the listed ones.
        events.push(step(0, Step::Pin { slot: 5 }));
        events.push(step(0, Step::Held { slot: 5, pins: 2 }));
        events.extend((0..unpins).map(|_| Event::Unpin { slot: 5 }));
        events.extend((1..600).flat_map(|page| fill(page, 0)));
        events.push(Event::Access { key: KEY, write: false, hit: true });
        replay_events(&about(1), &events)
    };
    let hits = [0, 1, 2, 3].map(|unpins| (pinned(unpins).hits, pinned(unpins).misfits));
    assert_eq!(hits, [(1, 0), (1, 0), (0, 0), (0, 1)]);
    // More pins than a page can have are a misfit.
    let many = step(0, Step::Held { slot: 5, pins: u32::MAX });
    let replayed = replay_events(&about(1), &[resident(0, true), many]);
    assert_eq!(replayed.misfits, 1);
}

/// Random events, most of which do not fit: every kind of step, with few pages, in small tables
/// whose segments join and leave.
#[test]
fn no_order_of_events_makes_a_replay_panic() {
    let mut random = Random::new(1);
    let mut below = |end: u64| random.below(end);
    for round in 0..24 {
        let mut about = about(1);
        about.header.policy = PolicyKind::ALL[round % PolicyKind::ALL.len()];
        about.header.shape = Shape { segments_max: 4, sets_per_segment: 1 };
        about.header.sample_below = if round % 6 == 5 { WHOLE / 3 } else { WHOLE };
        let events: Vec<Event> = (0..20_000)
            .map(|_| {
                let (way, evicted) = (below(16) as u8, below(2) == 0);
                let place = if below(9) == 0 { Place::Full } else { Place::Way { way, evicted } };
                let (page, slot, segment) = (below(90), below(20) as u32, below(5) as u32);
                let is_so = below(2) == 0;
                match below(40) {
                    0 => Event::Unpin { slot },
                    1 if below(4) == 0 => Event::Join { segment },
                    2 if below(4) == 0 => Event::Leave { segment },
                    1 if below(9) == 0 => Event::Settled,
                    1 => Event::MoveBegun,
                    2 => Event::SetMoved { set: below(3) as u32 },
                    3 => Event::Advance { done: is_so },
                    4 => Event::Retire { segment, retired: is_so },
                    5 if below(20) == 0 => {
                        Event::Policy { policy: PolicyKind::ALL[below(8) as usize % PolicyKind::ALL.len()] }
                    }
                    5 => Event::Totals(Totals { hits: below(9), misses: u64::MAX - below(9) }),
                    6 if below(9) == 0 => Event::Live { first: segment, count: below(6) as u32 },
                    6 if below(9) == 0 => {
                        let misses = vec![(below(1 << 32) as u32, u32::MAX); 5];
                        Event::Learned(Learned {
                            leader: below(7) as u8,
                            misses,
                            densities: vec![7; Learned::DENSITIES_MAX],
                        })
                    }
                    6 => Event::Resident { key: KEY | page, dirty: is_so, bits: below(1 << 16) as u16 },
                    7..12 => Event::Access { key: KEY | page, write: is_so, hit: evicted },
                    12..17 => step(page, Step::Claim(place)),
                    17 => step(page, Step::ClaimAhead(place)),
                    18..24 => step(page, Step::Publish { dirty: is_so }),
                    24 => step(page, Step::Release),
                    25 => step(page, Step::Touch),
                    26 => step(page, Step::Overwrite),
                    27 => step(page, Step::BeginStore),
                    28 => step(page, Step::EndStore),
                    29..31 => step(page, Step::BeginWriteback),
                    31..33 => step(page, Step::EndWriteback { written: is_so }),
                    33 => step(page, Step::Drop { even_dirty: is_so }),
                    34..36 => step(page, Step::Supersede(place)),
                    36 => step(page, Step::SupersedeRefused(place)),
                    37 => step(page, Step::Held { slot, pins: below(3) as u32 }),
                    _ => step(page, Step::Pin { slot }),
                }
            })
            .collect();
        let accesses = events.iter().filter(|event| matches!(event, Event::Access { .. })).count() as u64;
        let replayed = replay_events(&about, &events);
        assert_eq!(replayed.accesses, accesses, "round {round}");
        // The ratios are numbers, whatever was counted.
        assert!((0.0..=1.0).contains(&replayed.miss_ratio()), "round {round}: {replayed:?}");
        assert!(replayed.miss_ratio_by_size().is_finite() && replayed.miss_ratio_counted() <= 1.0);
    }
}
