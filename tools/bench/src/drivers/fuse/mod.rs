//! Mounted directories: reads of cached files through the kernel's FUSE.
//!
//! All mounts are of this process and pass the same directory in memory through, with the same
//! loop. `octavo` has all pages in its cache. `bare` answers each read with bytes that its thread
//! has at hand: the round trip alone. `passthrough` reads the file below through the kernel's page
//! cache, which has all pages, with one `pread` for each read, as a plain passthrough file system
//! does. A reader is a blocking `pread` of a thread of this process.
//!
//! Not here: misses (`misses.rs`), the processor time of an idle mount (`idle.rs`).

mod idle;
mod misses;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use octavo::disk::AlignedBytes;
use octavo::{Cache, Partition};
use octavo_fuse::{Mount, MountOptions, Reference};

use crate::case::Case;
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::report::Row;
use crate::scratch::Directory;
use crate::stage::{Driver, Run, cache_config, offset, partition_config};
use crate::statistics::Histogram;
use crate::stream::{self, Pages};
use crate::turns::{Pace, Team, Worker, timed};

pub use self::idle::DRIVER as IDLE;
pub use self::misses::DRIVER as MISSES;

pub const DRIVER: Driver = Driver {
    name: "fuse",
    purpose: "reads of cached files through a mount",
    contestants: &["octavo", "bare", "passthrough"],
    scenery: &["memory", "policy"],
    check: |case| match case.bytes.0 % PAGE_BYTES as u64 == 0 && (1..=1 << 20).contains(&case.bytes.0) {
        true => Ok(()),
        false => Err(format!("bytes = {}: whole pages of at most 1 MiB are possible", case.bytes.0)),
    },
    // Frames, and the file below.
    memory: |needs| needs.frames * 2,
    set: |case, run| {
        let mounts = Mounts::new(case, run)?;
        Ok(Box::new(move |case, run| mounts.run(case, run).map(|row| vec![row])))
    },
};

/// The name of the file in each directory.
const FILE: &str = "file";

/// Memory for the buffers of a mount's threads, and of reads in flight.
const BUFFERS_BYTES: u64 = 64 << 20;

/// Bytes that the reads of a turn have together, at least one read.
const TURN_BYTES: usize = 64 << 10;

/// A directory that is mounted while this lives.
struct Mounted {
    mount: Mount,
    target: PathBuf,
}

impl Mounted {
    /// Mounts `lower` at a new directory in `directory`. The error is a sentence.
    fn new(
        (directory, name): (&Path, &str),
        lower: &Path,
        (cache, partition): (&Cache, &Partition),
        reference: Option<Reference>,
    ) -> Result<Mounted, String> {
        let target = directory.join(name);
        std::fs::create_dir(&target).map_err(|error| format!("{}: {error}", target.display()))?;
        let partition = partition.clone();
        let options = MountOptions { reference, ..MountOptions::default() };
        let choose = move |_: &octavo_fuse::Opened<'_>| Some(partition.clone());
        let mount = Mount::start(cache.clone(), lower, &target, &options, choose)?;
        Ok(Mounted { mount, target })
    }

    fn file(&self) -> PathBuf {
        self.target.join(FILE)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The files are not needed any more.
        let _ = self.mount.stop();
    }
}

/// Returns a row that says why nothing was measured.
fn skipped(case: &Case, run: &Run<'_>, why: &str) -> Row {
    let mut row = Row::new(run.suite, case);
    row.notes.push(format!("nothing was measured: {why}"));
    row
}

/// The mounts. The fields drop in this order.
struct Mounts {
    /// The error says why there are none.
    mounts: Result<Vec<(&'static str, Mounted)>, String>,
    partition: Partition,
    _cache: Cache,
    _directory: Directory,
    pages: u64,
}

impl Mounts {
    fn new(case: &Case, run: &mut Run<'_>) -> Result<Mounts, Error> {
        let directory = Directory::in_memory("fuse")?;
        let lower = directory.0.join("lower");
        std::fs::create_dir(&lower).map_err(Error::at("a directory in memory"))?;
        // Few enough pages that every set has room.
        let pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        run.news(case, "filling the cache");
        let file = File::create(lower.join(FILE)).map_err(Error::at("a file in memory"))?;
        content::write_file(&file, offset(pages), &mut |_| {}).map_err(Error::at("a file in memory"))?;
        let cache = Cache::new(cache_config(case.memory.0, BUFFERS_BYTES))?;
        let partition = cache.partition(partition_config(case))?;
        let all = [
            ("octavo", None),
            ("bare", Some(Reference::Constant)),
            ("passthrough", Some(Reference::Passthrough)),
        ];
        let mount = |(name, reference)| {
            let mounted = Mounted::new((&directory.0, name), &lower, (&cache, &partition), reference)?;
            Ok((name, mounted))
        };
        let mounts = all.into_iter().map(mount).collect::<Result<Vec<_>, String>>();
        if let Ok(mounts) = &mounts {
            std::fs::read(mounts[0].1.file()).map_err(Error::at("the mounted file"))?;
        }
        Ok(Mounts { mounts, partition, _cache: cache, _directory: directory, pages })
    }

    fn run(&self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        let mounts = match &self.mounts {
            Ok(mounts) => mounts,
            Err(why) => return Ok(skipped(case, run, why)),
        };
        let len = case.bytes.0 as usize;
        let runs = offset(self.pages) / len as u64;
        let wanted = mounts.iter().filter(|(name, _)| case.has(name));
        let team = |(name, mounted): &'_ (&'static str, Mounted)| {
            let (path, is_checked) = (mounted.file(), *name != "bare");
            Team::new(name, move |thread| {
                let file = File::open(&path).map_err(Error::at("the mounted file"))?;
                let runs = stream::pages(&case.workload, runs, stream::seed(0, thread))?;
                Ok(FileReader { file, runs, is_checked, buffer: AlignedBytes::new(len) })
            })
        };
        let teams: Vec<Team<'_>> = wanted.map(team).collect();
        // The threads of the mounts need processors too, so those of the readers are not pinned.
        let pace = Pace { pinned: false, ..Pace::new(27.0, 200) }.timed();
        let before = self.partition.stat();
        let (mut row, _) = run.race(case, pace, &teams)?;
        let after = self.partition.stat();
        row.add("file_bytes", offset(self.pages));
        row.add("hits_counted", after.hits - before.hits);
        row.add("misses", after.misses - before.misses);
        Ok(row)
    }
}

/// Reads a file with blocking calls, and checks some bytes of each read.
struct FileReader {
    file: File,
    /// Which reads, in units of the buffer.
    runs: Pages,
    is_checked: bool,
    buffer: AlignedBytes,
}

impl Worker for FileReader {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        let len = self.buffer.len();
        let count = (TURN_BYTES / len).max(1);
        for run in self.runs.by_ref().take(count) {
            let at = run * len as u64;
            let read = timed(&mut times, || self.file.read_exact_at(&mut self.buffer, at));
            read.map_err(Error::at("a read through a mount"))?;
            if self.is_checked {
                let page = at / PAGE_BYTES as u64;
                let skip = page as usize * 64 % PAGE_BYTES;
                content::check(page, skip, &self.buffer[skip..skip + 64], "through a mount")?;
            }
        }
        Ok(count as u64)
    }
}
