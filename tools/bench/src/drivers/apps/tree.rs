//! What a file system in user space costs: programs that look at the names and attributes of many
//! files, or create many. The files are a part of the Linux source.
//!
//! The first of two runs in a slice is cold: the kernel has cached neither names nor attributes.
//! The second one follows at once. Each row also has the *round trip* of this machine: the time of
//! a read of 4 KiB through a mount that answers at once with bytes that mean nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use octavo::{Cache, PartitionConfig};
use octavo_fuse::{Mount, MountOptions, Reference};

use super::contest::{CONTESTANTS, Done, Files, Job, check, contest, hindrance, succeed};
use super::side::Side;
use crate::case::Case;
use crate::error::Error;
use crate::machine;
use crate::scratch::Directory;
use crate::stage::{Driver, cache_config};
use crate::statistics::median;

pub const DRIVER: Driver = Driver {
    name: "app-tree",
    purpose: "ls, git and tar on a mounted directory, beside the plain directory",
    contestants: CONTESTANTS,
    scenery: &["memory"],
    check: |case| check(case, &JOBS),
    memory: |needs| needs.frames * 2,
    set: |case, run| {
        let is_quick = run.options.quick;
        let files = match hindrance(&[("git", "git"), ("tar", "tar"), ("xz", "xz-utils")]).or_else(no_source)
        {
            None => Ok(Files::new(case, run, |directory| fill(directory, is_quick))?),
            Some(why) => Err(why),
        };
        let round_trip = files.as_ref().ok().map(|_| round_trip_us()).transpose()?;
        Ok(Box::new(move |case, run| {
            let mut rows =
                contest(case, run, files.as_ref().map_err(String::clone), &Walk { case, is_quick })?;
            for row in &mut rows {
                if let Some(us) = round_trip {
                    row.add("round_trip_us", us);
                }
            }
            Ok(rows)
        }))
    },
};

const JOBS: [&str; 3] = ["ls", "git-status", "untar"];

/// The directories of the source that are used. They have 9,000 files, 117 MiB; a quick run uses
/// only the first.
const PARTS: [&str; 4] = ["mm", "kernel", "include", "fs"];
const PARTS_FILES: u64 = 9000;

/// The names of the tree and of its archive.
const TREE: &str = "tree";
const ARCHIVE: &str = "tree.tar";

/// Returns the archive of the Linux source that the package linux-source installs.
pub fn source() -> Option<PathBuf> {
    let entries = std::fs::read_dir("/usr/src").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_source = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz")
    };
    entries.filter(is_source).max()
}

/// Says that the source is missing, if it is.
pub fn no_source() -> Option<String> {
    source().is_none().then(|| "there is no /usr/src/linux-source-*.tar.xz (package linux-source)".into())
}

fn fill(directory: &Path, is_quick: bool) -> Result<(), Error> {
    let archive = source().ok_or_else(|| Error::new("there is no Linux source"))?;
    let tree = directory.join(TREE);
    std::fs::create_dir(&tree).map_err(Error::at("a directory"))?;
    let parts = &PARTS[..if is_quick { 1 } else { PARTS.len() }];
    let mut untar = Command::new("tar");
    untar.args(["--wildcards", "--strip-components=1", "-xf"]).arg(&archive).arg("-C").arg(&tree);
    succeed(untar.args(parts.iter().map(|part| format!("linux-source-*/{part}/*"))))?;
    let mut tar = Command::new("tar");
    succeed(tar.arg("-cf").arg(directory.join(ARCHIVE)).arg("-C").arg(&tree).arg("."))?;
    let git = |words: &[&str]| {
        let who = ["-c", "user.name=octavo", "-c", "user.email=octavo@localhost"];
        succeed(Command::new("git").arg("-C").arg(&tree).args(who).args(words))
    };
    git(&["init", "-q"])?;
    git(&["add", "-A"])?;
    git(&["commit", "-q", "-m", "all"]).map(drop)
}

struct Walk<'c> {
    case: &'c Case,
    is_quick: bool,
}

impl Walk<'_> {
    /// Runs the program once. Returns what it did, in files.
    fn once(&self, side: &Side) -> Result<Done, Error> {
        let (job, tree) = (&*self.case.job.0, side.path.join(TREE));
        let program = if job == "git-status" { "git" } else { job.trim_start_matches("un") };
        let program = machine::program(program).ok_or_else(|| Error::new(format!("{program} is missing")))?;
        let mut command = side.command(&program);
        match job {
            // With times and sizes, so that ls asks for attributes.
            "ls" => command.arg("-lR").arg(&tree),
            "git-status" => command.arg("-C").arg(&tree).args(["status", "--short"]),
            _ => command.arg("-xf").arg(side.path.join(ARCHIVE)).arg("-C").arg(side.path.join("new")),
        };
        let begun = Instant::now();
        let output = succeed(&mut command)?;
        let seconds = begun.elapsed().as_secs_f64();
        if job == "git-status" && !output.is_empty() {
            return Err(Error::new(format!(
                "git finds changes: {}",
                output.lines().next().unwrap_or_default()
            )));
        }
        Ok(Done { operations: self.files(side)?, seconds })
    }

    /// Returns the number of files in the tree, without git's own.
    fn files(&self, side: &Side) -> Result<f64, Error> {
        let mut git = Command::new("git");
        let text =
            succeed(git.arg("-C").arg(side.lower.join(TREE)).args(["ls-tree", "-r", "--name-only", "HEAD"]))?;
        Ok(text.lines().count() as f64)
    }
}

impl Job for Walk<'_> {
    fn rows(&self) -> &'static [&'static str] {
        if self.case.job.0 == "untar" { &[""] } else { &["_cold", "_warm"] }
    }

    fn files(&self) -> u64 {
        match (&*self.case.job.0, self.is_quick) {
            ("untar", false) => PARTS_FILES,
            _ => 0,
        }
    }

    fn is_cold(&self) -> bool {
        true
    }

    fn settle(&self, side: &Side) -> Result<(), Error> {
        // Writes into git's index what the files look like here.
        let mut git = Command::new("git");
        succeed(git.arg("-C").arg(side.path.join(TREE)).args(["status", "--short"])).map(drop)
    }

    fn run(&self, side: &Side, _: Duration) -> Result<Vec<Done>, Error> {
        if self.case.job.0 != "untar" {
            return Ok(vec![self.once(side)?, self.once(side)?]);
        }
        let new = side.lower.join("new");
        std::fs::create_dir(&new).map_err(Error::at("a directory"))?;
        let done = self.once(side);
        std::fs::remove_dir_all(&new).map_err(Error::at("a directory"))?;
        Ok(vec![done?])
    }
}

/// Returns the median time of a read through a mount that answers at once, in microseconds.
fn round_trip_us() -> Result<f64, Error> {
    let directory = Directory::in_memory("round-trip")?;
    let (lower, target) = (directory.0.join("lower"), directory.0.join("mounted"));
    for path in [&lower, &target] {
        std::fs::create_dir(path).map_err(Error::at("a directory in memory"))?;
    }
    std::fs::write(lower.join("file"), [0; 4096]).map_err(Error::at("a file in memory"))?;
    let cache = Cache::new(cache_config(4 << 20, 4 << 20))?;
    let partition = cache.partition(PartitionConfig::new("round-trip"))?;
    let options = MountOptions { reference: Some(Reference::Constant), ..MountOptions::default() };
    let mount = Mount::start(cache, &lower, &target, &options, move |_| Some(partition.clone()));
    let mount = mount.map_err(Error::new)?;
    let times = File::open(target.join("file")).and_then(|file| {
        let time = |_| {
            let begun = Instant::now();
            file.read_exact_at(&mut [0; 4096], 0)?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        };
        (0..20_000).map(time).collect::<std::io::Result<Vec<f64>>>()
    });
    // The file is not needed any more.
    let _ = mount.stop();
    Ok(median(&times.map_err(Error::at("a read through a mount"))?))
}
