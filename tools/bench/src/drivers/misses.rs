//! Misses: pages of a file much larger than the cache.
//!
//! All contestants draw pages from the same kind of stream, have the same number of reads in
//! flight, submit all reads that they start after a wait with one call, and check every word of
//! every page (fio checks none). The cache keeps the page and hands out a copy: one copy more than
//! a read that keeps nothing. A device is so slow that the copy does not matter; with a file in
//! memory it does. Each reference therefore exists with and without the copy.

use std::os::unix::fs::FileExt;

use octavo::disk::{AlignedBytes, Store};
use octavo::{Buffer, Object, Op, Queue, Request};

use crate::case::{Call, Case};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::fio;
use crate::reference::{PrivateIo, drop_cached};
use crate::report::Row;
use crate::scratch::CachedFile;
use crate::stage::{Driver, Run, Subject, offset};
use crate::statistics::{Histogram, median, ratios};
use crate::stream::{self, Pages, seed};
use crate::turns::{Pace, Team, WHOLE_PAGES, Worker, page_reads};

pub const DRIVER: Driver = Driver {
    name: "misses",
    purpose: "random pages of a file much larger than the cache",
    contestants: &["octavo", "direct", "copied", "pread", "pread-copied", "buffered", "fio"],
    scenery: &["store", "file", "policy"],
    check,
    memory: |needs| needs.file + needs.whole_file / u128::from(FILE_TO_CACHE),
    set: |case, run| {
        let file = open(case, run)?;
        Ok(Box::new(move |case, run| row(&file, case, run).map(|row| vec![row])))
    },
};

/// The file is this many times as large as the cache, so that hits change little.
const FILE_TO_CACHE: u64 = 100;

/// The number of the stream that fills the cache; contestants have lower ones.
const FILLING: usize = 99;

pub fn check(case: &Case) -> Result<(), String> {
    if case.file.0 < 64 << 20 {
        return Err("file: misses need at least 64MiB".into());
    }
    if case.depth.0 > 1024 {
        return Err(format!("depth = {}: at most 1024 are possible", case.depth.0));
    }
    let possible: &[&str] = match case.call {
        Call::Queue => &["octavo", "direct", "copied", "fio"],
        Call::Single => &["octavo", "pread", "pread-copied", "buffered"],
        Call::Batch | Call::Pin | Call::PinBatch => {
            return Err("misses have the calls queue and single".into());
        }
    };
    match case.contestants.iter().find(|name| !possible.contains(&&***name)) {
        Some(name) => Err(format!("{name} has no call \"{}\"", case.call.name())),
        None => Ok(()),
    }
}

/// Creates the stage: a file, with a small cache over it.
pub fn open(case: &Case, run: &mut Run<'_>) -> Result<CachedFile, Error> {
    // 16 MiB: a ring, bounce pages and the buffers of each case.
    CachedFile::new(case, run, case.file.0 / FILE_TO_CACHE, 16 << 20)
}

fn row(file: &CachedFile, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let (subject, scratch) = (&file.subject, &file.scratch);
    run.news(case, "filling the cache");
    fill(subject, case.depth.0, stream::pages(&case.workload, scratch.pages(), seed(FILLING, 0))?)?;
    let mut case = case.clone();
    let lacks_fio = case.has("fio") && fio::installed().is_none();
    case.contestants.retain(|name| !(lacks_fio && name == "fio"));
    let teams = teams(file, &case, run.options.quick);
    // Workers of the kernel can do a queue's reads (and always do those of a file in memory). They
    // need processors, so the threads that submit are not pinned.
    let pace = Pace { pinned: case.call != Call::Queue, ..Pace::new(15.0, 250) };
    let ((mut row, slices), did) = subject.measure(|| run.race(&case, pace, &teams))?;
    row.add("queue_depth", if case.call == Call::Queue { case.depth.0 } else { 1 });
    row.add("file_bytes", scratch.file_bytes);
    row.add("cache_bytes", did.after.max_bytes);
    row.add("io_engine", subject.cache.stat().io_engine);
    row.add("is_direct", subject.object.store().is_direct());
    row.add("o_direct", scratch.o_direct);
    if let Some(direct) = case.contestants.iter().position(|name| name == "direct" || name == "pread") {
        row.add("direct_ops_per_s", median(&slices[direct].rates));
        row.add("direct_ratio", median(&ratios(&slices[0].rates, &slices[direct].rates)));
    }
    row.add("hits", did.hits());
    row.add("misses", did.misses());
    row.add("fills", did.of(|stat| stat.fills));
    row.add("bypasses", did.of(|stat| stat.bypasses));
    if lacks_fio {
        row.notes.push("fio is not installed and did not run".into());
    }
    Ok(row)
}

/// Creates the contestants of a case.
pub fn teams<'t>(file: &'t CachedFile, case: &'t Case, quick: bool) -> Vec<Team<'t>> {
    let contestants = case.contestants.iter().enumerate();
    contestants.map(|(number, name)| team(file, case, quick, number, name)).collect()
}

fn team<'t>(file: &'t CachedFile, case: &'t Case, quick: bool, number: usize, name: &'t str) -> Team<'t> {
    let CachedFile { subject, scratch } = file;
    let pages = move |thread| stream::pages(&case.workload, scratch.pages(), seed(number, thread));
    let depth = case.depth.0;
    match (name, case.call) {
        ("fio", _) => {
            let options = format!(
                "--iodepth={depth} --numjobs={} --rw=randread --bs=4096 --direct=1 --ioengine=io_uring \
                --readonly --norandommap=1 --randrepeat=0 --group_reporting --invalidate=0",
                case.threads.0
            );
            fio::Job { options, path: format!("--filename={}", scratch.path.display()), quick }.team(name)
        }
        ("octavo", Call::Queue) => {
            Team::new(name, move |thread| Queued::<false>::new(subject, depth, pages(thread)?))
        }
        ("octavo", _) => Team::new(name, move |thread| {
            let object = subject.object.clone();
            let read = move |page, buffer: &mut AlignedBytes| Ok(object.read_at(offset(page), buffer)?);
            Ok(page_reads(WHOLE_PAGES, pages(thread)?, "through the cache", read))
        }),
        ("pread", _) => Team::new(name, move |thread| {
            let read = |page, buffer: &mut AlignedBytes| {
                scratch.direct.read(page, buffer).map_err(Error::at("a direct read"))
            };
            Ok(page_reads(WHOLE_PAGES, pages(thread)?, "read directly", read))
        }),
        ("pread-copied", _) => Team::new(name, move |thread| {
            let mut private = AlignedBytes::new(PAGE_BYTES);
            let read = move |page, buffer: &mut AlignedBytes| {
                scratch.direct.read(page, &mut private).map_err(Error::at("a direct read"))?;
                buffer.copy_from_slice(&private);
                Ok(())
            };
            Ok(page_reads(WHOLE_PAGES, pages(thread)?, "read directly", read))
        }),
        ("buffered", _) => {
            let file = &scratch.buffered;
            let read = |page, buffer: &mut AlignedBytes| {
                file.read_exact_at(buffer, offset(page)).map_err(Error::at("a read"))
            };
            let source = "through the kernel's page cache";
            Team::new(name, move |thread| Ok(page_reads(WHOLE_PAGES, pages(thread)?, source, read)))
                .before(|| drop_cached(file).map_err(Error::at("the kernel's page cache")))
        }
        _ => Team::new(name, move |thread| {
            Direct::new(subject.object.store(), depth, pages(thread)?, name == "copied")
        }),
    }
}

/// Reads until each frame has probably held two pages. From then on, every miss evicts a page. Does
/// nothing if the cache is full.
pub fn fill(subject: &Subject, depth: usize, pages: Pages) -> Result<(), Error> {
    let stat = subject.partition.stat();
    if stat.resident_bytes >= stat.max_bytes {
        return Ok(());
    }
    let enough = stat.fills + stat.max_bytes / PAGE_BYTES as u64 * 2;
    let mut reader = Queued::<false>::new(subject, depth, pages)?;
    while subject.partition.stat().fills < enough {
        reader.turn(None)?;
    }
    reader.settle()
}

/// Reads or writes pages through the cache with a queue.
pub struct Queued<const WRITES: bool> {
    object: Object,
    queue: Queue,
    /// The buffers that no operation uses.
    free: Vec<Buffer>,
    pages: Pages,
    depth: usize,
}

impl<const WRITES: bool> Queued<WRITES> {
    /// `depth` operations are in flight.
    pub fn new(subject: &Subject, depth: usize, pages: Pages) -> Result<Self, Error> {
        let buffers = (0..depth).map(|_| subject.cache.buffer(PAGE_BYTES));
        let free = buffers.collect::<Option<_>>().ok_or_else(|| {
            Error::new(format!(
                "the cache has no memory for {depth} buffers of a page; choose a smaller depth"
            ))
        })?;
        Ok(Queued { object: subject.object.clone(), queue: subject.cache.queue()?, free, pages, depth })
    }

    /// Waits for at least `min` operations, and checks the pages that were read.
    fn wait(&mut self, min: usize) -> Result<u64, Error> {
        let mut outcome = Ok(());
        let free = &mut self.free;
        let count = self.queue.wait(min, |completion| {
            let (Op::Read { buffer, .. } | Op::Write { buffer, .. }) = completion.op else {
                unreachable!("only reads and writes are submitted")
            };
            let right = || match WRITES {
                true => Ok(()),
                false => content::check(completion.user_data, 0, &buffer[..PAGE_BYTES], "through the cache"),
            };
            if let Err(error) = completion.result.map_err(Error::from).and_then(|()| right()) {
                outcome = Err(error);
            }
            free.push(buffer);
        });
        outcome.map(|()| count as u64)
    }
}

impl<const WRITES: bool> Worker for Queued<WRITES> {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        let requests = self.free.drain(..).zip(&mut self.pages).map(|(mut buffer, page)| {
            let (offset, len) = (offset(page), PAGE_BYTES);
            let op = match WRITES {
                true => {
                    content::fill(page, &mut buffer[..PAGE_BYTES]);
                    Op::Write { offset, len, buffer, durable: false }
                }
                false => Op::Read { offset, len, buffer },
            };
            Request { op, user_data: page }
        });
        self.queue.submit(&self.object, requests);
        self.wait(1)
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.wait(self.depth)?;
        if WRITES {
            self.object.sync()?;
        }
        Ok(())
    }
}

/// Reads pages through the engine's ring, without the cache.
pub struct Direct {
    reads: PrivateIo,
    /// The page that each slot reads.
    wanted: Vec<u64>,
    /// The slots without a read in flight.
    free: Vec<usize>,
    /// The caller's buffers, one per slot, if pages are copied out.
    buffers: Option<Vec<AlignedBytes>>,
    pages: Pages,
}

impl Direct {
    /// `depth` reads are in flight. `copied`: pages are copied to buffers of the caller.
    pub fn new(store: &Store, depth: usize, pages: Pages, copied: bool) -> Result<Direct, Error> {
        let buffers = copied.then(|| (0..depth).map(|_| AlignedBytes::new(PAGE_BYTES)).collect());
        let reads = PrivateIo::new(store, depth, 1).map_err(Error::at("a ring"))?;
        Ok(Direct { reads, wanted: vec![0; depth], free: (0..depth).collect(), buffers, pages })
    }

    /// Waits for at least one read, and checks the pages.
    fn wait(&mut self) -> Result<u64, Error> {
        let before = self.free.len();
        self.reads.wait(&mut self.free).map_err(Error::at("a direct read"))?;
        for slot in &self.free[before..] {
            let bytes = match &mut self.buffers {
                Some(buffers) => {
                    buffers[*slot].copy_from_slice(self.reads.page(*slot));
                    &buffers[*slot][..]
                }
                None => self.reads.page(*slot),
            };
            content::check(self.wanted[*slot], 0, bytes, "read directly")?;
        }
        Ok((self.free.len() - before) as u64)
    }
}

impl Worker for Direct {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        for (slot, page) in self.free.drain(..).zip(&mut self.pages) {
            self.wanted[slot] = page;
            self.reads.read(slot, page);
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
