//! Write-back: random and sequential writes of pages, replied to when the page has them, beside
//! direct writes of the same stream.
//!
//! Every slice ends with a sync, and its time counts: what was replied to is durable then, on all
//! sides. Three contestants show what order is worth without a cache: they write the same three
//! tenths of the file's pages as they were drawn (`scattered`), by their offsets (`sorted`), and by
//! their offsets with neighbours in one I/O (`coalesced`).

use std::time::Duration;

use octavo::{Buffer, Cache, Object, Op, Partition, Queue, Request};

use crate::Error;
use crate::case::{Call, Case};
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage, cache};
use crate::reference::PrivateWrites;
use crate::report::Row;
use crate::scratch::Scratch;
use crate::statistics::Histogram;
use crate::stream::{self, Pages};
use crate::turns::{Team, Worker};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["octavo", "direct", "scattered", "sorted", "coalesced"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "memory", "file", "policy", "mode"];

/// Longest run of neighbours in one I/O.
const RUN_PAGES: usize = 16;

/// Whether a case can be run; the error is a sentence.
pub fn check(case: &Case) -> Result<(), String> {
    match case.call {
        Call::Queue => Ok(()),
        _ => Err("write-back is asked for by queue".into()),
    }
}

/// A file, and a cache before it.
pub struct Field {
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    cache: Cache,
    scratch: Scratch,
}

impl Field {
    /// Makes both.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let scratch = Scratch::new(case, "", run)?;
        let (cache, partition) = cache(case, case.memory.0, 24 << 20)?;
        let object = partition.open(scratch.open()?, "file")?;
        Ok(Field { object, partition, cache, scratch })
    }

    /// Pages to write by their contestants' orders, in runs: first page, and how many.
    fn runs(&self, case: &Case, name: &str) -> Result<Vec<(u64, usize)>, Error> {
        let count = (self.scratch.pages() * 3 / 10).max(1) as usize;
        let mut seen = vec![false; self.scratch.pages() as usize];
        let drawn = stream::pages(&case.workload, self.scratch.pages(), 1)?;
        // A workload that repeats itself ends the list early.
        let fresh = drawn.take(4 * count).filter(|page| !std::mem::replace(&mut seen[*page as usize], true));
        let mut pages: Vec<u64> = fresh.take(count).collect();
        if name != "scattered" {
            pages.sort_unstable();
        }
        let mut runs: Vec<(u64, usize)> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some((first, length))
                    if name == "coalesced" && *first + *length as u64 == page && *length < RUN_PAGES =>
                {
                    *length += 1;
                }
                _ => runs.push((page, 1)),
            }
        }
        Ok(runs)
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let teams: Vec<Writer<'_>> =
            case.contestants.iter().map(|name| Writer { name, field: self, case }).collect();
        let teams: Vec<&dyn Team> = teams.iter().map(|team| team as &dyn Team).collect();
        let plan = run.plan(case, (20.0, Duration::from_millis(1000), Clock::Wall), teams.len());
        let before = self.partition.stat();
        let slices = run.compete(case, plan, &teams)?;
        self.object.sync()?;
        let after = self.partition.stat();
        self.check(case)?;
        let mut row = Row::new(run.suite, case);
        row.compare(case, plan, &teams, &slices);
        let pages = after.writebacks - before.writebacks;
        let ios = after.writeback_ios - before.writeback_ios;
        row.count("writes", after.requests_write - before.requests_write);
        row.count("pages_written_back", pages);
        row.count("writeback_ios", ios);
        row.number("pages_per_io", pages as f64 / ios.max(1) as f64);
        row.count("cache_bytes", after.max_bytes);
        row.count("file_bytes", self.scratch.file_bytes);
        Ok(vec![row])
    }
}

impl Field {
    /// Some pages as the file has them now.
    fn check(&self, case: &Case) -> Result<(), Error> {
        let mut page = octavo::disk::AlignedBytes::new(PAGE_BYTES);
        for number in content::random(5).take(256).map(|random| content::below(random, self.scratch.pages()))
        {
            self.scratch.direct.read(number, &mut page).map_err(Error::at("a direct read"))?;
            if !content::is_right(number, 0, &page) {
                return Err(Error::new(format!("{}: wrong bytes in page {number} of the file", case.name)));
            }
        }
        Ok(())
    }
}

struct Writer<'t> {
    name: &'t str,
    field: &'t Field,
    case: &'t Case,
}

impl Team for Writer<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let (field, depth) = (self.field, self.case.depth.0);
        let pages = stream::pages(&self.case.workload, field.scratch.pages(), thread as u64 + 1)?;
        let writes = |run_pages| {
            PrivateWrites::new(field.object.store(), depth, run_pages).map_err(Error::at("a ring"))
        };
        Ok(match self.name {
            "octavo" => {
                let buffers = (0..depth).map(|_| field.cache.buffer(PAGE_BYTES));
                let free =
                    buffers.collect::<Option<_>>().ok_or_else(|| Error::new("no memory for buffers"))?;
                Box::new(Cached { object: &field.object, queue: field.cache.queue()?, free, pages })
            }
            "direct" => Box::new(Direct {
                field,
                writes: writes(1)?,
                runs: Runs::Endless(pages),
                free: (0..depth).collect(),
            }),
            name => {
                let runs = Runs::Listed(field.runs(self.case, name)?, 0);
                Box::new(Direct { field, writes: writes(RUN_PAGES)?, runs, free: (0..depth).collect() })
            }
        })
    }
}

/// The engine, by a queue.
struct Cached<'t> {
    object: &'t Object,
    queue: Queue,
    free: Vec<Buffer>,
    pages: Pages,
}

impl Worker for Cached<'_> {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        let requests = self.free.drain(..).zip(&mut self.pages).map(|(mut buffer, page)| {
            content::fill(page, &mut buffer[..PAGE_BYTES]);
            let offset = page * PAGE_BYTES as u64;
            Request { op: Op::Write { offset, len: PAGE_BYTES, buffer, durable: false }, user_data: page }
        });
        self.queue.submit(self.object, requests);
        self.wait(1)
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.wait(usize::MAX)?;
        Ok(self.object.sync()?)
    }
}

impl Cached<'_> {
    fn wait(&mut self, min: usize) -> Result<u64, Error> {
        let mut outcome = Ok(());
        let free = &mut self.free;
        let count = self.queue.wait(min, |completion| {
            let Op::Write { buffer, .. } = completion.op else { unreachable!("only writes are asked for") };
            outcome = std::mem::replace(&mut outcome, Ok(())).and(completion.result);
            free.push(buffer);
        });
        outcome?;
        Ok(count as u64)
    }
}

/// What is written next.
enum Runs {
    /// Single pages of a stream.
    Endless(Pages),
    /// Runs of a list, and again.
    Listed(Vec<(u64, usize)>, usize),
}

impl Iterator for Runs {
    type Item = (u64, usize);

    fn next(&mut self) -> Option<(u64, usize)> {
        match self {
            Runs::Endless(pages) => pages.next().map(|page| (page, 1)),
            Runs::Listed(runs, at) => {
                let run = runs.get(*at % runs.len().max(1)).copied();
                *at += 1;
                run
            }
        }
    }
}

/// The engine's ring without the cache.
struct Direct<'t> {
    field: &'t Field,
    writes: PrivateWrites,
    runs: Runs,
    free: Vec<usize>,
}

impl Worker for Direct<'_> {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        let mut pages = 0;
        for (slot, (first, length)) in self.free.drain(..).zip(&mut self.runs) {
            self.writes.start(slot, first, length, content::fill);
            pages += length as u64;
        }
        self.writes.wait(&mut self.free).map_err(Error::at("a direct write"))?;
        Ok(pages)
    }

    fn settle(&mut self) -> Result<(), Error> {
        while self.writes.in_flight() > 0 {
            self.writes.wait(&mut self.free).map_err(Error::at("a direct write"))?;
        }
        self.field.scratch.direct.sync().map_err(Error::at("a sync"))
    }
}
