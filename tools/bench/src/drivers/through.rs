//! Reads through a cache that holds a part of a file. Each contestant reads missing pages past the
//! kernel's page cache.
//!
//! All contestants have room for the same number of pages, read the same file, and draw whole pages
//! from the same kind of stream. Every page is checked. Most contestants are rivals (`rival.rs`),
//! whose capacity is a number of pages and does not include their other memory.

use octavo::Object;

use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::report::Row;
use crate::rival::{Places, Reader, RivalCache, Room};
use crate::scratch::CachedFile;
use crate::stage::{Driver, Run, offset};
use crate::stream::{self, seed};
use crate::turns::{Pace, Team, Worker};

pub const DRIVER: Driver = Driver {
    name: "through",
    purpose: "reads through a cache of a part of a file",
    contestants: &["octavo"],
    scenery: &["store", "memory", "file", "policy"],
    check: |_| Ok(()),
    memory: |needs| needs.file + needs.frames * (1 + needs.rivals),
    set: |case, run| {
        let file = CachedFile::new(case, run, case.memory.0, 16 << 20)?;
        Ok(Box::new(move |case, run| row(&file, case, run).map(|row| vec![row])))
    },
};

/// The engine, wrapped as a rival, so that all contestants run the same loop.
struct Octavo(Object);

impl Reader for &Octavo {
    #[inline]
    fn read(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.0.read_at(offset(page) + skip as u64, into)?)
    }
}

impl RivalCache for Octavo {
    fn worker<'t>(&'t self, places: Places<'t>) -> Result<Box<dyn Worker + 't>, Error> {
        Ok(places.by(self))
    }
}

fn row(file: &CachedFile, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let CachedFile { subject, scratch } = file;
    let places = |name, number, thread| {
        let drawn = stream::pages(&case.workload, scratch.pages(), seed(number, thread));
        Ok::<_, Error>(Places::pages(drawn?, name))
    };
    let capacity_pages = case.memory.0 / PAGE_BYTES as u64;
    let mut caches = Vec::new();
    for name in &case.contestants {
        run.news(case, &format!("preparing {name}"));
        let cache = match run.options.rivals.iter().find(|rival| rival.name() == name) {
            None => Box::new(Octavo(subject.object.clone())),
            Some(rival) => rival.open(&Room {
                pages: scratch.pages(),
                capacity_pages,
                direct: scratch.direct.clone(),
                store: scratch.store.clone(),
                buffered: scratch.buffered.try_clone().map_err(Error::at("a file"))?,
            })?,
        };
        // All contestants begin with a full cache, after the same reads.
        let mut worker = cache.worker(places(name, 99, 0)?)?;
        (0..capacity_pages / 4).try_for_each(|_| worker.turn(None).map(drop))?;
        drop(worker);
        caches.push(cache);
    }
    let contestants = case.contestants.iter().zip(&caches).enumerate();
    let teams: Vec<Team<'_>> = contestants
        .map(|(number, (name, cache))| {
            Team::boxed(name, move |thread| cache.worker(places(name, number, thread)?))
        })
        .collect();
    let pace = Pace::new(20.0, 400).timed();
    let ((mut row, _), did) = subject.measure(|| run.race(case, pace, &teams))?;
    row.add("hit_ratio", did.hit_ratio());
    Ok(row)
}
