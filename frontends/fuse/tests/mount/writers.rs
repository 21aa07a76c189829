//! Two writers of the same files, one on the mount and one beside it: no read returns bytes that
//! neither wrote, and where the mode promises it, none returns old ones.
//!
//! Each word of a file names its place, its version and its writer. A record has one writer at a
//! time, but readers do not wait: each word that they get must have a version between the last one
//! that was complete before the read and the last one that had begun after it.
//!
//! `OCTAVO_STEPS` sets the number of operations, `OCTAVO_SEED` repeats a run.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

use octavo::CacheMode;
use octavo_fuse::{Coherence, MountOptions};
use octavo_random::Random;

use crate::rig::{Rig, rig_over_itself, rig_with};

const FILES: usize = 3;
const RECORDS: usize = 16;
const RECORD_BYTES: usize = 4096;
const RECORD_WORDS: usize = RECORD_BYTES / 8;
const FILE_WORDS: usize = RECORDS * RECORD_WORDS;
/// Files that a writer keeps open.
const KEPT: usize = 4;

/// The writer of the first versions.
const FIRST: u64 = 2;

/// What is known of a record.
#[derive(Default)]
struct Record {
    /// Held while it is written.
    writing: Mutex<()>,
    /// The version that was begun last, and the one that is complete.
    begun: AtomicU32,
    complete: AtomicU32,
    /// The writer of each version.
    writers: Mutex<Vec<u64>>,
}

/// What both writers share.
struct World {
    records: Vec<[Record; RECORDS]>,
    /// Reads return nothing old.
    is_coherent: bool,
    old_words: AtomicU64,
    words: AtomicU64,
    /// Syncs that failed.
    failed_syncs: AtomicU64,
}

/// A word of a record: not zero, and the same nowhere else.
fn word(version: u32, writer: u64, file: usize, at: usize) -> u64 {
    u64::from(version) << 32 | (writer + 1) << 28 | (file as u64) << 24 | at as u64
}

impl World {
    fn new(is_coherent: bool) -> World {
        let records = (0..FILES).map(|_| Default::default()).collect();
        let (old_words, words, failed_syncs) = Default::default();
        World { records, is_coherent, old_words, words, failed_syncs }
    }

    /// Without leases, the mount's direct writes and the other program's buffered ones may collide.
    /// The kernel then fails the next sync of either, with EIO.
    fn sync(&self, file: &File) {
        match file.sync_data() {
            Err(error) if error.raw_os_error() == Some(5) && !self.is_coherent => {
                self.failed_syncs.fetch_add(1, SeqCst);
            }
            synced => synced.unwrap(),
        }
    }

    /// Writes the next version of some records with one call.
    fn write(&self, writer: u64, (number, file): (usize, &File), first: usize, count: usize) {
        let records = &self.records[number][first..first + count];
        let _writing: Vec<MutexGuard<'_, ()>> =
            records.iter().map(|record| record.writing.lock().unwrap()).collect();
        let mut bytes = Vec::with_capacity(count * RECORD_BYTES);
        for (at, record) in records.iter().enumerate() {
            let version = record.begun.load(SeqCst) + 1;
            record.writers.lock().unwrap().push(writer);
            record.begun.store(version, SeqCst);
            let words = (first + at) * RECORD_WORDS..(first + at + 1) * RECORD_WORDS;
            bytes.extend(words.flat_map(|at| word(version, writer, number, at).to_ne_bytes()));
        }
        file.write_all_at(&bytes, (first * RECORD_BYTES) as u64).unwrap();
        records.iter().for_each(|record| record.complete.store(record.begun.load(SeqCst), SeqCst));
    }

    /// Reads words, and checks them.
    fn read(&self, reader: u64, (number, file): (usize, &File), first: usize, count: usize) {
        let records = &self.records[number];
        let range = first / RECORD_WORDS..(first + count - 1) / RECORD_WORDS + 1;
        let complete: Vec<u32> =
            records[range.clone()].iter().map(|record| record.complete.load(SeqCst)).collect();
        let mut bytes = vec![0; count * 8];
        file.read_exact_at(&mut bytes, first as u64 * 8).unwrap();
        for (at, found) in (first..).zip(bytes.chunks_exact(8)) {
            let found = u64::from_ne_bytes(found.try_into().unwrap());
            let record = &records[at / RECORD_WORDS];
            let (version, begun) = ((found >> 32) as u32, record.begun.load(SeqCst));
            let oldest = complete[at / RECORD_WORDS - range.start];
            let writer = record.writers.lock().unwrap().get((version as usize).wrapping_sub(1)).copied();
            let is_written = writer.is_some_and(|writer| found == word(version, writer, number, at));
            let context = || {
                let from = if reader == 0 { "on the mount" } else { "beside it" };
                format!("{found:#018x} {from}, file {number}, word {at}: versions {oldest} to {begun}")
            };
            assert!(is_written, "neither wrote {}", context());
            assert!(version >= oldest || !self.is_coherent, "too old: {}", context());
            self.old_words.fetch_add(u64::from(version < oldest), SeqCst);
        }
        self.words.fetch_add(count as u64, SeqCst);
    }
}

fn path(root: &Path, file: usize) -> PathBuf {
    root.join(format!("file{file}"))
}

fn open(root: &Path, file: usize, writes: bool) -> File {
    OpenOptions::new().read(true).write(writes).open(path(root, file)).unwrap()
}

/// One writer: its operations are random.
fn work(world: &World, root: &Path, writer: u64, seed: u64, steps: u64) {
    let mut random = Random::new(seed << 1 | writer);
    let mut kept: [Option<(usize, bool, File)>; KEPT] = Default::default();
    for _ in 0..steps {
        let (number, slot) = (random.below(FILES as u64) as usize, random.below(KEPT as u64) as usize);
        let (first, count) = (random.below(RECORDS as u64) as usize, 1 + random.below(3) as usize);
        let count = count.min(RECORDS - first);
        let from = random.below(FILE_WORDS as u64) as usize;
        let words = (1 + random.below(3 * RECORD_WORDS as u64) as usize).min(FILE_WORDS - from);
        match (random.below(16), &mut kept[slot]) {
            (0..2, None) => {
                let writes = random.one_in(8);
                kept[slot] = Some((number, writes, open(root, number, writes)));
            }
            (0..2, kept) => *kept = None,
            (2..4, Some((number, true, file))) => world.write(writer, (*number, file), first, count),
            (2..4, _) => world.write(writer, (number, &open(root, number, true)), first, count),
            (4, Some((_, _, file))) => world.sync(file),
            (5, _) => {
                let len = fs::metadata(path(root, number)).unwrap().len();
                assert_eq!(len, (RECORDS * RECORD_BYTES) as u64);
            }
            (6..11, Some((number, _, file))) => world.read(writer, (*number, file), from, words),
            _ => {
                let file = open(root, number, false);
                (0..1 + random.below(3)).for_each(|_| world.read(writer, (number, &file), from, words));
            }
        }
    }
}

fn steps() -> u64 {
    std::env::var("OCTAVO_STEPS").map_or(4_000, |steps| steps.parse().unwrap())
}

/// Runs both writers and then `check`, and looks at what is below afterwards.
fn run(mut rig: Rig, is_coherent: bool, seed: u64, check: impl Fn(&Rig)) {
    let world = World::new(is_coherent);
    for number in 0..FILES {
        let path = path(&rig.source, number);
        let file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
        world.write(FIRST, (number, &file), 0, RECORDS);
    }
    std::thread::scope(|scope| {
        for (writer, root) in [(0, &rig.target), (1, &rig.source)] {
            let world = &world;
            scope.spawn(move || work(world, root, writer, seed, steps() / 2));
        }
    });
    let count = |of: &AtomicU64| of.load(SeqCst);
    let (words, old, failed) = (count(&world.words), count(&world.old_words), count(&world.failed_syncs));
    println!("seed {seed}: {words} words read, {old} of them old; {failed} syncs failed");
    println!("{:?}; {} hits", rig.mount.as_ref().unwrap().stat(), rig.partition.stat().hits);
    check(&rig);
    match is_coherent {
        true => rig.stop(),
        // Its last sync may fail, too.
        false => _ = rig.mount.take().map(|mount| mount.stop()),
    }
    for number in 0..FILES {
        let file = File::open(path(&rig.source, number)).unwrap();
        world.read(1, (number, &file), 0, FILE_WORDS);
        assert_eq!(file.read_at(&mut [0], (RECORDS * RECORD_BYTES) as u64).unwrap(), 0);
    }
}

fn options(coherence: Coherence) -> MountOptions {
    MountOptions { coherence, ..MountOptions::default() }
}

#[test]
fn two_writers_with_close_to_open_get_nothing_that_neither_wrote() {
    for cache_mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        octavo_random::for_seeds(1..2, |seed| {
            let Some(rig) = rig_with(cache_mode, &options(Coherence::CloseToOpen)) else { return };
            run(rig, false, seed, |_| {});
        });
    }
}

#[test]
fn two_writers_of_an_exclusive_mount_get_nothing_old() {
    for cache_mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        octavo_random::for_seeds(2..3, |seed| {
            let Some(rig) = rig_over_itself(cache_mode, &options(Coherence::Exclusive)) else { return };
            run(rig, true, seed, |_| {});
        });
    }
}

#[test]
fn two_writers_with_leases_get_nothing_old() {
    for cache_mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        octavo_random::for_seeds(3..4, |seed| {
            let Some(rig) = rig_with(cache_mode, &options(Coherence::Lease)) else { return };
            run(rig, true, seed, |rig| {
                let (stat, cache) = (rig.mount.as_ref().unwrap().stat(), rig.partition.stat());
                assert!(stat.lease_breaks > 10 && cache.hits > 100, "{stat:?}, {cache:?}");
            });
        });
    }
}
