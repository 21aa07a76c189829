//! Misses of a mounted file, beside the engine's own queue.
//!
//! The file is a hundred times as large as the cache. `octavo` reads it through the mount with a
//! ring; `engine` reads it through the same cache with a queue of this process; `direct` reads the
//! file below through a ring, without a cache or a mount. All check every byte.

use std::path::PathBuf;

use super::{BUFFERS_BYTES, FILE, Mounted, skipped};
use crate::case::{Call, Case, Place};
use crate::content;
use crate::drivers::misses::{self, Direct, Queued};
use crate::error::Error;
use crate::report::Row;
use crate::scratch::{Directory, open_unlocked};
use crate::stage::{Driver, Run, Subject, cache_config, partition_config};
use crate::stream::{self, seed};
use crate::turns::{Pace, Team};

pub const DRIVER: Driver = Driver {
    name: "fuse-misses",
    purpose: "misses of a mounted file",
    contestants: &["octavo", "engine", "direct"],
    scenery: &["store", "file", "policy"],
    check: |case| {
        (misses::DRIVER.check)(&Case { call: Call::Queue, contestants: Vec::new(), ..case.clone() })
    },
    memory: misses::DRIVER.memory,
    set: |case, run| {
        let stage = Stage::new(case, run)?;
        Ok(Box::new(move |case, run| stage.run(case, run).map(|row| vec![row])))
    },
};

/// The file is this many times as large as the cache.
const FILE_TO_CACHE: u64 = 100;

/// The fields drop in this order.
struct Stage {
    mounted: Result<Mounted, String>,
    subject: Subject,
    _lower: Directory,
    _directory: Directory,
    pages: u64,
}

impl Stage {
    fn new(case: &Case, run: &mut Run<'_>) -> Result<Stage, Error> {
        let directory = Directory::in_memory("fuse-misses")?;
        let path = match case.store {
            Place::Disk => run.options.file.clone(),
            Place::Memory | Place::Ram => directory.0.join("lower"),
        };
        std::fs::create_dir(&path).map_err(Error::at(&path.display().to_string()))?;
        let lower = Directory(path);
        run.news(case, "writing the file");
        let file = write(lower.0.join(FILE), case.file.0)?;
        let cache = cache_config(case.file.0 / FILE_TO_CACHE, BUFFERS_BYTES);
        let subject = Subject::new(cache, partition_config(case), open_unlocked(&file)?)?;
        let here = (&*directory.0, "mounted");
        let mounted = Mounted::new(here, &lower.0, (&subject.cache, &subject.partition), None);
        let pages = case.file.0 / content::PAGE_BYTES as u64;
        Ok(Stage { mounted, subject, _lower: lower, _directory: directory, pages })
    }

    fn run(&self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        let mounted = match &self.mounted {
            Ok(mounted) => mounted,
            Err(why) => return Ok(skipped(case, run, why)),
        };
        let (subject, depth) = (&self.subject, case.depth.0);
        let pages = move |number, thread| stream::pages(&case.workload, self.pages, seed(number, thread));
        run.news(case, "filling the cache");
        misses::fill(subject, depth, pages(case.contestants.len(), 0)?)?;
        let above = open_unlocked(&mounted.file())?;
        let teams = case.contestants.iter().enumerate().map(|(number, name)| match name.as_str() {
            "engine" => {
                Team::new(name, move |thread| Queued::<false>::new(subject, depth, pages(number, thread)?))
            }
            name => {
                let store = if name == "octavo" { above.clone() } else { subject.object.store().clone() };
                Team::new(name, move |thread| Direct::new(&store, depth, pages(number, thread)?, false))
            }
        });
        let teams: Vec<Team<'_>> = teams.collect();
        let pace = Pace { pinned: false, ..Pace::new(15.0, 250) };
        let ((mut row, _), did) = subject.measure(|| run.race(case, pace, &teams))?;
        row.add("file_bytes", case.file.0);
        row.add("cache_bytes", did.after.max_bytes);
        row.add("io_engine", subject.cache.stat().io_engine);
        row.add("is_direct", subject.object.store().is_direct());
        row.add("hits", did.hits());
        row.add("misses", did.misses());
        row.add("fills", did.of(|stat| stat.fills));
        Ok(row)
    }
}

/// Writes the file below, which the kernel's page cache then may not have.
fn write(path: PathBuf, len_bytes: u64) -> Result<PathBuf, Error> {
    let what = path.display().to_string();
    let file = std::fs::File::create_new(&path).map_err(Error::at(&what))?;
    content::write_file(&file, len_bytes, &mut |_| {}).map_err(Error::at(&what))?;
    file.sync_all().map_err(Error::at(&what))?;
    crate::reference::drop_cached(&file).map_err(Error::at(&what))?;
    Ok(path)
}
