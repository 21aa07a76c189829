//! Reads through a cache that holds a part of a file: what is missing is read past the kernel's
//! page cache, by whoever caches.
//!
//! All contestants have room for as many pages, read the same file, and draw whole pages from the
//! same kind of stream; every page is checked. Most are other people's (`rival.rs`), which count
//! pages and not the memory they take beside.

use std::sync::Arc;
use std::time::Duration;

use octavo::{Cache, Object, Partition};

use crate::Error;
use crate::case::Case;
use crate::clock::Clock;
use crate::content::PAGE_BYTES;
use crate::drivers::{Run, Stage, cache};
use crate::report::Row;
use crate::rival::{Places, Reader, RivalCache, RivalTeam, Room};
use crate::scratch::Scratch;
use crate::stream;
use crate::turns::{Team, Worker};

/// Who can run without other people's caches.
pub const CONTESTANTS: &[&str] = &["octavo"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "memory", "file", "policy"];

/// A file, and a cache before it.
pub struct Field {
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    _cache: Cache,
    scratch: Arc<Scratch>,
}

impl Field {
    /// Makes both.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let scratch = Arc::new(Scratch::new(case, "", run)?);
        let (cache, partition) = cache(case, case.memory.0, 16 << 20)?;
        let object = partition.open(scratch.open()?, "file")?;
        Ok(Field { object, partition, _cache: cache, scratch })
    }

    fn pages(&self, case: &Case, contestant: usize, thread: usize) -> Result<stream::Pages, Error> {
        stream::pages(&case.workload, self.scratch.pages(), ((contestant as u64) << 32) + thread as u64 + 1)
    }
}

/// The engine, as a rival of the others.
struct Octavo(Object);

impl Reader for &Octavo {
    #[inline]
    fn read(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.0.read_at(page * PAGE_BYTES as u64 + skip as u64, into)?)
    }
}

impl RivalCache for Octavo {
    fn worker<'t>(&'t self, places: Places<'t>) -> Result<Box<dyn Worker + 't>, Error> {
        Ok(places.by(self))
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let this = &*self;
        let mut teams = Vec::new();
        for (number, name) in case.contestants.iter().enumerate() {
            run.news(case, &format!("preparing {name}"));
            let rivals = &run.options.rivals;
            let cache = match rivals.iter().find(|rival| rival.name() == name) {
                None => Box::new(Octavo(this.object.clone())),
                Some(rival) => rival.open(&Room {
                    pages: this.scratch.pages(),
                    capacity_pages: case.memory.0 / PAGE_BYTES as u64,
                    direct: this.scratch.direct.clone(),
                    store: this.scratch.store.clone(),
                    buffered: this.scratch.buffered.try_clone().map_err(Error::at("a file"))?,
                })?,
            };
            // Everybody begins with the same pages behind.
            let mut worker = cache.worker(Places::pages(this.pages(case, 99, 0)?, name))?;
            for _ in 0..case.memory.0 / PAGE_BYTES as u64 / 4 {
                worker.turn(None)?;
            }
            drop(worker);
            let places = move |thread| Ok(Places::pages(this.pages(case, number, thread)?, name));
            teams.push(RivalTeam { name, cache, places });
        }
        let teams: Vec<&dyn Team> = teams.iter().map(|team| team as &dyn Team).collect();
        let mut plan = run.plan(case, (20.0, Duration::from_millis(400), Clock::Wall), teams.len());
        plan.timed = case.timed.unwrap_or(true);
        let before = self.partition.stat();
        let slices = run.compete(case, plan, &teams)?;
        let after = self.partition.stat();
        let mut row = Row::new(run.suite, case);
        row.compare(case, plan, &teams, &slices);
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        row.number("hit_ratio", hits as f64 / (hits + misses).max(1) as f64);
        Ok(vec![row])
    }
}
