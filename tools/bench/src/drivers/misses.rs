//! Misses: pages of a file much larger than the cache.
//!
//! All contestants draw pages from the same kind of stream, keep as many reads in flight, submit
//! what they start after each wait with one call, and check every word of every page (fio checks
//! none). A device hides a copy, a file in memory does not: the cache keeps the page and hands it
//! out, which is a copy more than a read that keeps nothing; so there is a contestant with the copy
//! and one without.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use octavo::disk::{AlignedBytes, Store};
use octavo::{Buffer, Cache, CacheConfig, Object, Op, Partition, PartitionConfig, Queue, Request};

use crate::Error;
use crate::case::{Call, Case, Value};
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage};
use crate::fio::Fio;
use crate::reference::{DirectFile, PrivateReads, drop_cached};
use crate::report::Row;
use crate::scratch::Scratch;
use crate::statistics::{Histogram, median, ratios};
use crate::stream::{self, Pages};
use crate::turns::{Plan, Team, Worker, timed};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["octavo", "direct", "copied", "pread", "pread-copied", "buffered", "fio"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "file", "policy"];

/// The file is so many times as large as the cache, so that hits change little.
const FILE_TO_CACHE: u64 = 100;

/// Blocking reads between two looks at the clock.
const TURN: usize = 16;

/// Whether a case can be run; the error is a sentence.
pub fn check(case: &Case) -> Result<(), String> {
    let blocking = ["pread", "pread-copied", "buffered"];
    if case.file.0 < 64 << 20 {
        return Err("file: misses need 64MiB at least".into());
    }
    if case.depth.0 > 1024 {
        return Err(format!("depth = {}: up to 1024 are possible", case.depth.0));
    }
    let others = |names: &[&str]| {
        let mut wrong =
            case.contestants.iter().filter(|name| *name != "octavo" && !names.contains(&&***name));
        wrong.next().map_or(Ok(()), |name| Err(format!("{name} cannot be called {}", case.call.name())))
    };
    match case.call {
        Call::Queue => others(&["direct", "copied", "fio"]),
        Call::Single => others(&blocking),
        Call::Batch | Call::Pin | Call::PinBatch => Err("misses are asked for by queue or single".into()),
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
        let frames_bytes = scratch.file_bytes / FILE_TO_CACHE;
        // A ring, bounce pages and the buffers of each case.
        let buffers_bytes = 16 << 20;
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: frames_bytes + frames_bytes / 128 + (64 << 10) + buffers_bytes,
            buffers_max_bytes: Some(buffers_bytes),
            page_bytes: PAGE_BYTES as u32,
            ..CacheConfig::default()
        })?;
        let partition =
            cache.partition(PartitionConfig { policy: case.policy.0, ..PartitionConfig::new("bench") })?;
        let object = partition.open(scratch.open()?, "file")?;
        Ok(Field { object, partition, cache, scratch })
    }

    /// The pages to read: the same stream in each run, another one for each contestant and thread.
    fn pages(&self, case: &Case, contestant: usize, thread: usize) -> Result<Pages, Error> {
        stream::pages(&case.workload, self.scratch.pages(), ((contestant << 32) + thread + 1) as u64)
    }

    fn team<'t>(&'t self, number: usize, case: &'t Case, quick: bool) -> Box<dyn Team + 't> {
        let name = &*case.contestants[number];
        if name != "fio" {
            return Box::new(Reader { name, number, field: self, case });
        }
        let options = [
            format!("--filename={}", self.scratch.path.display()),
            format!("--iodepth={}", case.depth.0),
            format!("--numjobs={}", case.threads.0),
            "--rw=randread --bs=4096 --direct=1 --ioengine=io_uring --readonly --norandommap=1".into(),
            "--randrepeat=0 --group_reporting --invalidate=0".into(),
        ];
        let options = options.iter().flat_map(|some| some.split(' ')).map(str::to_owned).collect();
        Box::new(Fio { name: "fio".into(), options, quick })
    }

    fn cached(&self, case: &Case, pages: Pages) -> Result<Cached, Error> {
        Cached::new(&self.object, &self.cache, case.depth.0, pages)
    }

    /// Reads until every frame has most likely held two pages, so that each miss must evict.
    fn fill_cache(&self, case: &Case) -> Result<(), Error> {
        let stat = self.partition.stat();
        let enough = stat.fills + stat.max_bytes / PAGE_BYTES as u64 * 2;
        let mut cached = self.cached(case, self.pages(case, 99, 0)?)?;
        while stat.resident_bytes < stat.max_bytes && self.partition.stat().fills < enough {
            cached.turn(None)?;
        }
        cached.settle()
    }
}

impl Field {
    /// All contestants of a case.
    pub fn teams<'t>(&'t self, case: &'t Case, quick: bool) -> Vec<Box<dyn Team + 't>> {
        (0..case.contestants.len()).map(|number| self.team(number, case, quick)).collect()
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        run.news(case, "filling the cache");
        self.fill_cache(case)?;
        let mut row = Row::new(run.suite, case);
        let mut case = case.clone();
        if case.contestants.iter().any(|name| name == "fio") && !Fio::is_here() {
            case.contestants.retain(|name| name != "fio");
            row.notes.push("fio is not installed and did not run".into());
        }
        let quick = run.options.quick;
        let teams = self.teams(&case, quick);
        let teams: Vec<&dyn Team> = teams.iter().map(|team| &**team).collect();
        let plan = run.plan(&case, (15.0, Duration::from_millis(250), Clock::Wall), teams.len());
        // What is asked of a ring the kernel's workers may read (always from a file in memory): whoever
        // submits must not keep the processor that one of them wants, or goes to.
        let plan = Plan { pinned: case.call != Call::Queue, ..plan };
        let before = self.partition.stat();
        let slices = run.compete(&case, plan, &teams)?;
        let after = self.partition.stat();
        row.compare(&case, plan, &teams, &slices);
        row.count("queue_depth", if case.call == Call::Queue { case.depth.0 } else { 1 } as u64);
        row.count("file_bytes", self.scratch.file_bytes);
        row.count("cache_bytes", after.max_bytes);
        row.fact("io_engine", Value::Text(self.cache.stat().io_engine.into()));
        row.fact("is_direct", Value::Flag(self.object.store().is_direct()));
        row.fact("o_direct", Value::Flag(self.scratch.o_direct));
        if let Some(direct) = case.contestants.iter().position(|name| name == "direct" || name == "pread") {
            row.number("direct_ops_per_s", median(&slices[direct].rates));
            row.number("direct_ratio", median(&ratios(&slices[0].rates, &slices[direct].rates)));
        }
        row.count("hits", after.hits - before.hits);
        row.count("misses", after.misses - before.misses);
        row.count("fills", after.fills - before.fills);
        row.count("bypasses", after.bypasses - before.bypasses);
        Ok(vec![row])
    }
}

struct Reader<'t> {
    name: &'t str,
    number: usize,
    field: &'t Field,
    case: &'t Case,
}

impl Team for Reader<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&self) -> Result<(), Error> {
        if self.name == "buffered" {
            drop_cached(&self.field.scratch.buffered).map_err(Error::at("the kernel's page cache"))?;
        }
        Ok(())
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let pages = self.field.pages(self.case, self.number, thread)?;
        Ok(match (self.name, self.case.call) {
            ("buffered", _) => Box::new(Buffered {
                file: &self.field.scratch.buffered,
                pages,
                page: AlignedBytes::new(PAGE_BYTES),
            }),
            ("octavo", Call::Queue) => Box::new(self.field.cached(self.case, pages)?),
            ("octavo", _) => Box::new(Blocking {
                object: self.field.object.clone(),
                pages,
                page: AlignedBytes::new(PAGE_BYTES),
            }),
            ("pread" | "pread-copied", _) => Box::new(Pread {
                file: &self.field.scratch.direct,
                pages,
                page: AlignedBytes::new(PAGE_BYTES),
                buffer: (self.name == "pread-copied").then(|| AlignedBytes::new(PAGE_BYTES)),
            }),
            (name, _) => {
                Box::new(Direct::new(self.field.object.store(), self.case.depth.0, pages, name == "copied")?)
            }
        })
    }
}

fn check_page(page: u64, bytes: &[u8], how: &str) -> Result<(), Error> {
    match content::is_right(page, 0, bytes) {
        true => Ok(()),
        false => Err(Error::new(format!("wrong bytes in page {page}, {how}"))),
    }
}

/// The engine with the cache, by blocking calls.
struct Blocking {
    object: Object,
    pages: Pages,
    page: AlignedBytes,
}

impl Worker for Blocking {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        for page in self.pages.by_ref().take(TURN) {
            let mut read = || self.object.read_at(page * PAGE_BYTES as u64, &mut self.page);
            match &mut times {
                Some(times) => timed(times, read)?,
                None => read()?,
            }
            check_page(page, &self.page, "through the cache")?;
        }
        Ok(TURN as u64)
    }
}

/// Blocking direct reads.
struct Pread<'t> {
    file: &'t DirectFile,
    pages: Pages,
    page: AlignedBytes,
    /// Of the caller, where pages are copied out.
    buffer: Option<AlignedBytes>,
}

impl Worker for Pread<'_> {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        for page in self.pages.by_ref().take(TURN) {
            let mut read = || {
                self.file.read(page, &mut self.page)?;
                if let Some(buffer) = &mut self.buffer {
                    buffer.copy_from_slice(&self.page);
                }
                Ok(())
            };
            let read = match &mut times {
                Some(times) => timed(times, read),
                None => read(),
            };
            read.map_err(Error::at::<std::io::Error>("a direct read"))?;
            check_page(page, self.buffer.as_ref().unwrap_or(&self.page), "read directly")?;
        }
        Ok(TURN as u64)
    }
}

/// Reads through the kernel's page cache.
struct Buffered<'t> {
    file: &'t File,
    pages: Pages,
    page: AlignedBytes,
}

impl Worker for Buffered<'_> {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        for page in self.pages.by_ref().take(TURN) {
            let mut read = || self.file.read_exact_at(&mut self.page, page * PAGE_BYTES as u64);
            let read = match &mut times {
                Some(times) => timed(times, read),
                None => read(),
            };
            read.map_err(Error::at("a read"))?;
            check_page(page, &self.page, "through the kernel's page cache")?;
        }
        Ok(TURN as u64)
    }
}

/// The engine with the cache, by a queue.
pub struct Cached {
    object: Object,
    queue: Queue,
    /// Requests with buffers that nobody uses.
    free: Vec<Buffer>,
    pages: Pages,
    depth: usize,
}

impl Cached {
    /// With so many reads in flight.
    pub fn new(object: &Object, cache: &Cache, depth: usize, pages: Pages) -> Result<Cached, Error> {
        let buffers = (0..depth).map(|_| cache.buffer(PAGE_BYTES));
        let free = buffers.collect::<Option<_>>().ok_or_else(|| Error::new("no memory for buffers"))?;
        Ok(Cached { object: object.clone(), queue: cache.queue()?, free, pages, depth })
    }

    /// Waits for `min` reads at least, and checks what came.
    fn wait(&mut self, min: usize) -> Result<u64, Error> {
        let mut outcome = Ok(());
        let free = &mut self.free;
        let count = self.queue.wait(min, |completion| {
            let Op::Read { buffer, .. } = completion.op else { unreachable!("only reads are asked for") };
            let page = completion.user_data;
            if let Err(error) = completion.result {
                outcome = Err(error.into());
            } else if let Err(error) = check_page(page, &buffer[..PAGE_BYTES], "through the cache") {
                outcome = Err(error);
            }
            free.push(buffer);
        });
        outcome.map(|()| count as u64)
    }
}

impl Worker for Cached {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        let requests = self.free.drain(..).zip(&mut self.pages).map(|(buffer, page)| Request {
            op: Op::Read { offset: page * PAGE_BYTES as u64, len: PAGE_BYTES, buffer },
            user_data: page,
        });
        self.queue.submit(&self.object, requests);
        self.wait(1)
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.wait(self.depth).map(drop)
    }
}

/// The engine's ring without the cache.
pub struct Direct {
    reads: PrivateReads,
    /// The page that each slot reads.
    wanted: Vec<u64>,
    /// Slots without a read in flight.
    free: Vec<usize>,
    /// Buffers of the caller, one per slot, where pages are copied out.
    buffers: Option<Vec<AlignedBytes>>,
    pages: Pages,
}

impl Direct {
    /// With so many reads in flight; `copied`: into buffers of the caller.
    pub fn new(store: &Store, depth: usize, pages: Pages, copied: bool) -> Result<Direct, Error> {
        let reads = PrivateReads::new(store, depth).map_err(Error::at("a ring"))?;
        Ok(Direct {
            reads,
            wanted: vec![0; depth],
            free: (0..depth).collect(),
            buffers: copied.then(|| (0..depth).map(|_| AlignedBytes::new(PAGE_BYTES)).collect()),
            pages,
        })
    }

    /// Waits for a read at least, and checks what came.
    fn wait(&mut self) -> Result<u64, Error> {
        let before = self.free.len();
        self.reads.wait(&mut self.free).map_err(Error::at("a direct read"))?;
        for slot in &self.free[before..] {
            let bytes = match &mut self.buffers {
                Some(buffers) => {
                    self.reads.copy_out(*slot, &mut buffers[*slot]);
                    &buffers[*slot][..]
                }
                None => self.reads.page(*slot),
            };
            check_page(self.wanted[*slot], bytes, "read directly")?;
        }
        Ok((self.free.len() - before) as u64)
    }
}

impl Worker for Direct {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        for (slot, page) in self.free.drain(..).zip(&mut self.pages) {
            self.wanted[slot] = page;
            self.reads.start(slot, page);
        }
        self.wait()
    }

    fn settle(&mut self) -> Result<(), Error> {
        while self.free.len() < self.wanted.len() {
            self.wait()?;
        }
        Ok(())
    }
}
