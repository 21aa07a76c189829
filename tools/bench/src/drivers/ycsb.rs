//! YCSB's mixes A to F over records in pages (Cooper et al., "Benchmarking Cloud Serving Systems
//! with YCSB", SoCC '10).
//!
//! Records are 1 KiB, four to a page. The places of records are fixed: an insert takes the place of
//! the oldest record. Keys are drawn by scrambled Zipf with YCSB's constants, for D by age. A scan
//! is one read of 1 to 100 records that follow each other. The store behind all contestants is the
//! same file, but `buffered`, which goes through the kernel's page cache with as much memory as
//! that takes, has one of its own. `direct` reads and writes whole pages past it, and an update of
//! a record is a read and a write. Every record that is read is checked.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use octavo::disk::AlignedBytes;
use octavo::{Cache, Object, Partition};

use crate::Error;
use crate::case::{Case, Mix};
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage, cache};
use crate::report::Row;
use crate::scratch::Scratch;
use crate::statistics::Histogram;
use crate::stream::{self, Pages};
use crate::turns::{Team, Worker, timed};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["octavo", "direct", "buffered"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "memory", "file", "policy", "mode"];

const RECORD_BYTES: usize = 1024;
const RECORDS_PER_PAGE: u64 = (PAGE_BYTES / RECORD_BYTES) as u64;

/// Longest scan.
const SCAN_RECORDS: u64 = 100;

/// Operations between two looks at the clock.
const TURN: usize = 16;

/// Files, and a cache before one.
pub struct Field {
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    _cache: Cache,
    scratch: Scratch,
    buffered: Option<Scratch>,
}

impl Field {
    /// Makes them.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let scratch = Scratch::new(case, "", run)?;
        let wants_buffered = case.contestants.iter().any(|name| name == "buffered");
        let buffered = wants_buffered.then(|| Scratch::new(case, ".buffered", run)).transpose()?;
        let (cache, partition) = cache(case, case.memory.0, 16 << 20)?;
        let object = partition.open(scratch.open()?, "file")?;
        Ok(Field { object, partition, _cache: cache, scratch, buffered })
    }

    fn records(&self) -> u64 {
        self.scratch.pages() * RECORDS_PER_PAGE
    }
}

/// What is done to a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadUpdate,
}

fn operation(mix: Mix, share: u64) -> Operation {
    match mix {
        Mix::A if share < 50 => Operation::Read,
        Mix::A => Operation::Update,
        Mix::B if share < 95 => Operation::Read,
        Mix::B => Operation::Update,
        Mix::C => Operation::Read,
        Mix::D if share < 95 => Operation::Read,
        Mix::D => Operation::Insert,
        Mix::E if share < 95 => Operation::Scan,
        Mix::E => Operation::Insert,
        Mix::F if share < 50 => Operation::Read,
        Mix::F => Operation::ReadUpdate,
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let teams: Vec<Client<'_>> =
            case.contestants.iter().map(|name| Client { name, field: self, case }).collect();
        let teams: Vec<&dyn Team> = teams.iter().map(|team| team as &dyn Team).collect();
        let mut plan = run.plan(case, (18.0, Duration::from_millis(500), Clock::Wall), teams.len());
        plan.timed = case.timed.unwrap_or(true);
        let before = self.partition.stat();
        let slices = run.compete(case, plan, &teams)?;
        let after = self.partition.stat();
        self.object.sync()?;
        let mut row = Row::new(run.suite, case);
        row.compare(case, plan, &teams, &slices);
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        row.count("hits_counted", hits);
        row.count("misses", misses);
        row.number("hit_ratio", hits as f64 / (hits + misses).max(1) as f64);
        row.count("pages_written_back", after.writebacks - before.writebacks);
        row.count("cache_bytes", after.max_bytes);
        row.count("file_bytes", self.scratch.file_bytes);
        Ok(vec![row])
    }
}

struct Client<'t> {
    name: &'t str,
    field: &'t Field,
    case: &'t Case,
}

impl Team for Client<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let records = self.field.records();
        let seed = thread as u64 + 1;
        Ok(Box::new(Thread {
            client: self,
            keys: stream::keys(self.case.mix, records, seed)?,
            random: Box::new(content::random(seed << 32)),
            newest: thread as u64 * records / self.case.threads.0 as u64,
            page: AlignedBytes::new(PAGE_BYTES),
            records: AlignedBytes::new(SCAN_RECORDS as usize * RECORD_BYTES + PAGE_BYTES),
        }))
    }
}

struct Thread<'t> {
    client: &'t Client<'t>,
    keys: Pages,
    random: Box<dyn Iterator<Item = u64>>,
    /// Where this thread's last insert went.
    newest: u64,
    /// For direct I/O.
    page: AlignedBytes,
    records: AlignedBytes,
}

impl Worker for Thread<'_> {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        let records = self.client.field.records();
        for _ in 0..TURN {
            let random = self.random.next().unwrap_or(0);
            let key = self.keys.next().unwrap_or(0);
            let operation = operation(self.client.case.mix, content::below(random, 100));
            let mut count = 1;
            let key = match operation {
                Operation::Insert => {
                    self.newest = (self.newest + 1) % records;
                    self.newest
                }
                Operation::Scan => {
                    count = 1 + content::below(content::mix(random), SCAN_RECORDS);
                    key.min(records - count)
                }
                _ => key,
            };
            match &mut times {
                Some(times) => timed(times, || self.run(operation, key, count))?,
                None => self.run(operation, key, count)?,
            }
            if !matches!(operation, Operation::Insert | Operation::Update) {
                self.check(key, count)?;
            }
        }
        Ok(TURN as u64)
    }
}

impl Thread<'_> {
    fn run(&mut self, operation: Operation, key: u64, count: u64) -> Result<(), Error> {
        let (offset, len) = (key * RECORD_BYTES as u64, count as usize * RECORD_BYTES);
        if matches!(operation, Operation::Read | Operation::Scan | Operation::ReadUpdate) {
            self.read(offset, len)?;
        }
        if matches!(operation, Operation::Insert | Operation::Update | Operation::ReadUpdate) {
            let (page, skip) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
            content::fill_part(page, skip, &mut self.records[..len]);
            self.write(offset, len)?;
        }
        Ok(())
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<(), Error> {
        let field = self.client.field;
        let bytes = &mut self.records[..len];
        match self.client.name {
            "octavo" => Ok(field.object.read_at(offset, bytes)?),
            "direct" => {
                let first = offset / PAGE_BYTES as u64 * PAGE_BYTES as u64;
                let skip = (offset - first) as usize;
                let whole = (skip + len).next_multiple_of(PAGE_BYTES);
                let read = field.scratch.direct.read_run(first, &mut self.records[..whole]);
                read.map_err(Error::at("a direct read"))?;
                self.records.copy_within(skip..skip + len, 0);
                Ok(())
            }
            _ => field.buffered()?.buffered.read_exact_at(bytes, offset).map_err(Error::at("a read")),
        }
    }

    fn write(&mut self, offset: u64, len: usize) -> Result<(), Error> {
        let field = self.client.field;
        let bytes = &self.records[..len];
        match self.client.name {
            "octavo" => Ok(field.object.write_at(offset, bytes)?),
            "direct" => {
                let (page, skip) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
                let file = &field.scratch.direct;
                file.read(page, &mut self.page).map_err(Error::at("a direct read"))?;
                self.page[skip..skip + len].copy_from_slice(bytes);
                file.write(page, &self.page).map_err(Error::at("a direct write"))
            }
            _ => field.buffered()?.buffered.write_all_at(bytes, offset).map_err(Error::at("a write")),
        }
    }

    fn check(&self, key: u64, count: u64) -> Result<(), Error> {
        let records = self.records.chunks_exact(RECORD_BYTES);
        for (key, record) in (key..key + count).zip(records) {
            let skip = (key % RECORDS_PER_PAGE) as usize * RECORD_BYTES;
            if !content::is_right(key / RECORDS_PER_PAGE, skip, record) {
                return Err(Error::new(format!("wrong bytes in record {key}, {}", self.client.name)));
            }
        }
        Ok(())
    }
}

impl Field {
    fn buffered(&self) -> Result<&Scratch, Error> {
        self.buffered.as_ref().ok_or_else(|| Error::new("a stage was set without a file for buffered I/O"))
    }
}
