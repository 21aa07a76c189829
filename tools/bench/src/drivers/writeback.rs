//! Write-back: random and sequential writes, which are acknowledged once the resident page has the
//! bytes, compared with direct writes of the same stream.
//!
//! Every slice ends with a sync, whose time counts: all acknowledged bytes are then durable, for
//! all contestants. Three contestants without a cache show how much the order of writes matters.
//! They write the same 30 % of the file's pages: in the order of the draw (`scattered`), by offset
//! (`sorted`), and by offset with neighbours in one I/O (`coalesced`).

use octavo::disk::AlignedBytes;
use octavo_random::Random;

use crate::case::{Call, Case};
use crate::content::{self, PAGE_BYTES};
use crate::drivers::misses::Queued;
use crate::error::Error;
use crate::reference::{DirectFile, PrivateIo};
use crate::report::Row;
use crate::scratch::CachedFile;
use crate::stage::{Driver, Run};
use crate::statistics::Histogram;
use crate::stream;
use crate::turns::{Pace, Team, Worker};

pub const DRIVER: Driver = Driver {
    name: "writeback",
    purpose: "writes that are acknowledged before they are written to the store",
    contestants: &["octavo", "direct", "scattered", "sorted", "coalesced"],
    scenery: &["store", "memory", "file", "policy", "mode"],
    check: |case| match case.call {
        Call::Queue => Ok(()),
        _ => Err("writeback has the call queue only".into()),
    },
    memory: |needs| needs.file + needs.frames,
    set: |case, run| {
        let file = CachedFile::new(case, run, case.memory.0, 24 << 20)?;
        Ok(Box::new(move |case, run| row(&file, case, run).map(|row| vec![row])))
    },
};

/// The longest run of neighbours in one I/O.
const RUN_PAGES: usize = 16;

/// Returns the pages that a contestant writes, as runs: each has a first page and a number of
/// pages.
fn runs(file: &CachedFile, case: &Case, name: &str) -> Result<Vec<(u64, usize)>, Error> {
    let file_pages = file.scratch.pages();
    let count = (file_pages * 3 / 10).max(1) as usize;
    let mut seen = vec![false; file_pages as usize];
    let drawn = stream::pages(&case.workload, file_pages, 1)?;
    // The list is shorter if the workload repeats pages.
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

fn row(file: &CachedFile, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let CachedFile { subject, scratch } = file;
    let teams: Vec<Team<'_>> = case.contestants.iter().map(|name| team(file, case, name)).collect();
    let ((mut row, _), did) = subject.measure(|| {
        let raced = run.race(case, Pace::new(20.0, 1000), &teams)?;
        subject.object.sync()?;
        Ok(raced)
    })?;
    check_file(file, &case.name)?;
    let (pages, ios) = (did.of(|stat| stat.writebacks), did.of(|stat| stat.writeback_ios));
    row.add("writes", did.of(|stat| stat.requests_write));
    row.add("pages_written_back", pages);
    row.add("writeback_ios", ios);
    row.add("pages_per_io", pages as f64 / ios.max(1) as f64);
    row.add("cache_bytes", did.after.max_bytes);
    row.add("file_bytes", scratch.file_bytes);
    Ok(row)
}

/// Reads some pages of the file directly, and checks them.
fn check_file(file: &CachedFile, case: &str) -> Result<(), Error> {
    let (mut page, mut random) = (AlignedBytes::new(PAGE_BYTES), Random::new(5));
    (0..256).try_for_each(|_| {
        let number = random.below(file.scratch.pages());
        file.scratch.direct.read(number, &mut page).map_err(Error::at("a direct read"))?;
        content::check(number, 0, &page, &format!("{case}: read from the file"))
    })
}

fn team<'t>(file: &'t CachedFile, case: &'t Case, name: &'t str) -> Team<'t> {
    let CachedFile { subject, scratch } = file;
    let depth = case.depth.0;
    let pages = move |thread| stream::pages(&case.workload, scratch.pages(), thread as u64 + 1);
    let direct = move |run_pages, runs: Box<dyn Iterator<Item = (u64, usize)>>| {
        let writes = PrivateIo::new(subject.object.store(), depth, run_pages);
        let (writes, free) = (writes.map_err(Error::at("a ring"))?, (0..depth).collect());
        Ok(Direct { file: &scratch.direct, writes, runs, free, depth })
    };
    match name {
        "octavo" => Team::new(name, move |thread| Queued::<true>::new(subject, depth, pages(thread)?)),
        "direct" => Team::new(name, move |thread| direct(1, Box::new(pages(thread)?.map(|page| (page, 1))))),
        _ => Team::new(name, move |_| {
            let runs = runs(file, case, name)?;
            direct(RUN_PAGES, Box::new(runs.into_iter().cycle()))
        }),
    }
}

/// Writes runs of pages through the engine's ring, without the cache.
struct Direct<'t> {
    file: &'t DirectFile,
    writes: PrivateIo,
    runs: Box<dyn Iterator<Item = (u64, usize)>>,
    /// The slots without a write in flight.
    free: Vec<usize>,
    depth: usize,
}

impl Worker for Direct<'_> {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        let mut pages = 0;
        for (slot, (first, length)) in self.free.drain(..).zip(&mut self.runs) {
            self.writes.write(slot, first, length);
            pages += length as u64;
        }
        self.writes.wait(&mut self.free).map_err(Error::at("a direct write"))?;
        Ok(pages)
    }

    fn settle(&mut self) -> Result<(), Error> {
        while self.free.len() < self.depth {
            self.writes.wait(&mut self.free).map_err(Error::at("a direct write"))?;
        }
        self.file.sync().map_err(Error::at("a sync"))
    }
}
