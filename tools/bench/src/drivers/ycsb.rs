//! YCSB's mixes A to F over records in pages (Cooper et al., "Benchmarking Cloud Serving Systems
//! with YCSB", SoCC '10).
//!
//! A record has 1 KiB, so a page holds four. The places of records are fixed: an insert overwrites
//! the oldest record. Keys are drawn by scrambled Zipf with YCSB's constants; for D by age. A scan
//! is one read of 1 to 100 consecutive records. All contestants have the same file, except
//! `buffered`, which has a file of its own in the kernel's page cache, which may take as much
//! memory as it needs. `direct` reads and writes whole pages with O_DIRECT; its update of a record
//! is a read and a write. Every record that is read is checked.

use std::fs::File;
use std::os::unix::fs::FileExt;

use octavo::Object;
use octavo::disk::AlignedBytes;
use octavo_random::{Random, mix, scale};

use crate::case::{Case, Mix};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::reference::DirectFile;
use crate::report::Row;
use crate::scratch::{CachedFile, Scratch};
use crate::stage::{Driver, Run};
use crate::statistics::Histogram;
use crate::stream::{self, Pages};
use crate::turns::{Pace, Team, Worker, timed};

pub const DRIVER: Driver = Driver {
    name: "ycsb",
    purpose: "YCSB's mixes over records in pages",
    contestants: &["octavo", "direct", "buffered"],
    scenery: &["store", "memory", "file", "policy", "mode"],
    check: |_| Ok(()),
    memory: |needs| 2 * needs.file + needs.frames,
    set: |case, run| {
        let file = CachedFile::new(case, run, case.memory.0, 16 << 20)?;
        let mut files = Files { file, buffered: None };
        Ok(Box::new(move |case, run| files.run(case, run).map(|row| vec![row])))
    },
};

const RECORD_BYTES: usize = 1024;
const RECORDS_PER_PAGE: u64 = (PAGE_BYTES / RECORD_BYTES) as u64;

/// The longest scan.
const SCAN_RECORDS: u64 = 100;

/// Operations of a turn.
const TURN: usize = 16;

struct Files {
    file: CachedFile,
    /// The file of `buffered`, made for the first case that has this contestant.
    buffered: Option<Scratch>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadUpdate,
}

/// Returns the operation of a mix for a random number below 100.
fn operation(mix: Mix, share: u64) -> Operation {
    let (most, usual, other) = match mix {
        Mix::A => (50, Operation::Read, Operation::Update),
        Mix::B => (95, Operation::Read, Operation::Update),
        Mix::C => (100, Operation::Read, Operation::Read),
        Mix::D => (95, Operation::Read, Operation::Insert),
        Mix::E => (95, Operation::Scan, Operation::Insert),
        Mix::F => (50, Operation::Read, Operation::ReadUpdate),
    };
    if share < most { usual } else { other }
}

impl Files {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        if self.buffered.is_none() && case.has("buffered") {
            self.buffered = Some(Scratch::new(case, ".buffered", run)?);
        }
        let CachedFile { subject, scratch } = &self.file;
        let records = scratch.pages() * RECORDS_PER_PAGE;
        let team = |name| {
            let way = match (name, &self.buffered) {
                ("direct", _) => Way::Direct(&scratch.direct),
                ("buffered", Some(scratch)) => Way::Buffered(&scratch.buffered),
                _ => Way::Octavo(&subject.object),
            };
            Team::new(name, move |thread| {
                let seed = thread as u64 + 1;
                Ok(Client {
                    way,
                    name,
                    mix: case.mix,
                    records,
                    keys: stream::keys(case.mix, records, seed)?,
                    random: Random::new(seed << 32),
                    newest: thread as u64 * records / case.threads.0 as u64,
                    page: AlignedBytes::new(PAGE_BYTES),
                    buffer: AlignedBytes::new(SCAN_RECORDS as usize * RECORD_BYTES + PAGE_BYTES),
                })
            })
        };
        let teams: Vec<Team<'_>> = case.contestants.iter().map(|name| team(&**name)).collect();
        let pace = Pace::new(18.0, 500).timed();
        let ((mut row, _), did) = subject.measure(|| run.race(case, pace, &teams))?;
        subject.object.sync()?;
        row.add("hits_counted", did.hits());
        row.add("misses", did.misses());
        row.add("hit_ratio", did.hit_ratio());
        row.add("pages_written_back", did.of(|stat| stat.writebacks));
        row.add("cache_bytes", did.after.max_bytes);
        row.add("file_bytes", scratch.file_bytes);
        Ok(row)
    }
}

/// The way in which a contestant reads and writes.
#[derive(Clone, Copy)]
enum Way<'t> {
    Octavo(&'t Object),
    Direct(&'t DirectFile),
    Buffered(&'t File),
}

struct Client<'t> {
    way: Way<'t>,
    name: &'t str,
    mix: Mix,
    records: u64,
    keys: Pages,
    random: Random,
    /// The record of this thread's last insert.
    newest: u64,
    /// A buffer for direct writes.
    page: AlignedBytes,
    buffer: AlignedBytes,
}

impl Worker for Client<'_> {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        for _ in 0..TURN {
            let random = self.random.next_u64();
            let key = self.keys.next().unwrap_or(0);
            let operation = operation(self.mix, scale(random, 100));
            let (key, count) = match operation {
                Operation::Insert => {
                    self.newest = (self.newest + 1) % self.records;
                    (self.newest, 1)
                }
                Operation::Scan => {
                    let count = 1 + scale(mix(random), SCAN_RECORDS);
                    (key.min(self.records - count), count)
                }
                _ => (key, 1),
            };
            timed(&mut times, || self.run(operation, key, count))?;
            if !matches!(operation, Operation::Insert | Operation::Update) {
                self.check(key, count)?;
            }
        }
        Ok(TURN as u64)
    }
}

impl Client<'_> {
    fn run(&mut self, operation: Operation, key: u64, count: u64) -> Result<(), Error> {
        let (offset, len) = (key * RECORD_BYTES as u64, count as usize * RECORD_BYTES);
        let (page, skip) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
        if matches!(operation, Operation::Read | Operation::Scan | Operation::ReadUpdate) {
            let bytes = &mut self.buffer[..len];
            match self.way {
                Way::Octavo(object) => object.read_at(offset, bytes)?,
                Way::Buffered(file) => file.read_exact_at(bytes, offset).map_err(Error::at("a read"))?,
                Way::Direct(file) => {
                    let whole = (skip + len).next_multiple_of(PAGE_BYTES);
                    let read = file.read_run(page * PAGE_BYTES as u64, &mut self.buffer[..whole]);
                    read.map_err(Error::at("a direct read"))?;
                    self.buffer.copy_within(skip..skip + len, 0);
                }
            }
        }
        if matches!(operation, Operation::Insert | Operation::Update | Operation::ReadUpdate) {
            let bytes = &mut self.buffer[..len];
            content::fill_part(page, skip, bytes);
            match self.way {
                Way::Octavo(object) => object.write_at(offset, bytes)?,
                Way::Buffered(file) => file.write_all_at(bytes, offset).map_err(Error::at("a write"))?,
                Way::Direct(file) => {
                    file.read(page, &mut self.page).map_err(Error::at("a direct read"))?;
                    self.page[skip..skip + len].copy_from_slice(bytes);
                    file.write(page, &self.page).map_err(Error::at("a direct write"))?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, key: u64, count: u64) -> Result<(), Error> {
        let records = self.buffer.chunks_exact(RECORD_BYTES);
        (key..key + count).zip(records).try_for_each(|(key, record)| {
            let skip = (key % RECORDS_PER_PAGE) as usize * RECORD_BYTES;
            content::check(key / RECORDS_PER_PAGE, skip, record, self.name)
        })
    }
}
