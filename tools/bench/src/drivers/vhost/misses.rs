//! Misses of a disk of a virtual machine, beside the engine without a guest.
//!
//! The file is a hundred times as large as the cache. `octavo` reads it as a guest, through a ring
//! in shared memory; `octavo-poll` polls that ring before it sleeps. `engine` reads it through the
//! same cache with a queue of this process, and `direct` through a ring without a cache. All check
//! every byte.

use octavo_block::Server;

use super::guest::{Checked, Disk};
use crate::case::{Call, Case};
use crate::drivers::misses::{self, Direct, Queued};
use crate::error::Error;
use crate::report::Row;
use crate::scratch::{CachedFile, Directory};
use crate::stage::{Driver, Run};
use crate::stream::{self, seed};
use crate::turns::{Pace, Team};

pub const DRIVER: Driver = Driver {
    name: "vhost-misses",
    purpose: "misses of a virtual machine's disk",
    contestants: &["octavo", "octavo-poll", "engine", "direct"],
    scenery: &["store", "file", "policy"],
    check: |case| {
        misses::check(&Case { call: Call::Queue, contestants: Vec::new(), ..case.clone() })?;
        super::check(case)
    },
    memory: misses::DRIVER.memory,
    set: |case, run| {
        let stage = Stage::new(case, run)?;
        Ok(Box::new(move |case, run| stage.run(case, run).map(|row| vec![row])))
    },
};

/// The fields drop in this order.
struct Stage {
    server: Server,
    file: CachedFile,
    directory: Directory,
}

impl Stage {
    fn new(case: &Case, run: &mut Run<'_>) -> Result<Stage, Error> {
        let directory = Directory::in_memory("vhost-misses")?;
        let file = misses::open(case, run)?;
        let server = super::serve(&file.subject, &[])?;
        Ok(Stage { server, file, directory })
    }

    /// Attaches a disk of the server.
    fn attach(&self, name: &str, case: &Case) -> Result<Disk, Error> {
        let socket = self.directory.0.join(format!("{name}-{}.sock", case.name));
        let settings = super::settings(name, 1);
        self.server.attach("bench", &socket, settings).map_err(Error::at("octavo's server"))?;
        Disk::attach(&socket, 1, case.depth.0)
    }

    fn run(&self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        let (subject, scratch) = (&self.file.subject, &self.file.scratch);
        run.news(case, "filling the cache");
        let depth = case.depth.0;
        let pages =
            move |number, thread| stream::pages(&case.workload, scratch.pages(), seed(number, thread));
        misses::fill(subject, depth, pages(case.contestants.len(), 0)?)?;
        let disk_of = |name: &String| name.starts_with("octavo").then(|| self.attach(name, case)).transpose();
        let disks = case.contestants.iter().map(disk_of).collect::<Result<Vec<_>, Error>>()?;
        let teams = case.contestants.iter().zip(&disks).enumerate().map(|(number, (name, disk))| {
            match (disk, name.as_str()) {
                (Some(disk), _) => {
                    Team::new(name, move |thread| disk.reader(pages(number, thread)?, Checked::Page))
                }
                (None, "engine") => Team::new(name, move |thread| {
                    Queued::<false>::new(subject, depth, pages(number, thread)?)
                }),
                _ => Team::new(name, move |thread| {
                    Direct::new(subject.object.store(), depth, pages(number, thread)?, false)
                }),
            }
        });
        let teams: Vec<Team<'_>> = teams.collect();
        let pace = Pace { pinned: false, ..Pace::new(15.0, 250) };
        let ((mut row, _), did) = subject.measure(|| run.race(case, pace, &teams))?;
        row.add("file_bytes", scratch.file_bytes);
        row.add("cache_bytes", did.after.max_bytes);
        row.add("io_engine", subject.cache.stat().io_engine);
        row.add("o_direct", scratch.o_direct);
        row.add("hits", did.hits());
        row.add("misses", did.misses());
        row.add("fills", did.of(|stat| stat.fills));
        Ok(row)
    }
}
