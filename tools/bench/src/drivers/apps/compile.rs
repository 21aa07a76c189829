//! A build of a part of a tiny Linux kernel: alone, or beside a program that reads a large file
//! again and again, with a partition for each of the two. The reader takes a fixed number of bytes
//! per second in all contestants: a faster cache must not mean more load on the processors.
//!
//! The first build of a slice is cold. Then `make clean` removes what it made, and a second build
//! follows.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::contest::{CONTESTANTS, Done, Files, Job, check, contest, files_bytes, hindrance, succeed};
use super::side::Side;
use super::tree::{no_source, source};
use crate::case::Case;
use crate::error::Error;
use crate::machine;
use crate::scratch::Running;
use crate::stage::Driver;

pub const DRIVER: Driver = Driver {
    name: "app-compile",
    purpose: "a kernel build on a mounted directory, beside the kernel's page cache",
    contestants: CONTESTANTS,
    scenery: &["memory", "files_percent"],
    check: |case| check(case, &["alone", "beside"]),
    memory: |needs| needs.frames * 2,
    set: |case, run| {
        let files = match hindrance(&PROGRAMS).or_else(no_source) {
            None => Ok(Files::new(case, run, |directory| fill(case, directory))?),
            Some(why) => Err(why),
        };
        Ok(Box::new(move |case, run| {
            let build = Build { case };
            contest(case, run, files.as_ref().map_err(String::clone), &build)
        }))
    },
};

const PROGRAMS: [(&str, &str); 7] = [
    ("make", "make"),
    ("gcc", "gcc"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("xz", "xz-utils"),
    ("fio", "fio"),
];

/// The directories, which have a partition each.
const DIRECTORIES: [&str; 2] = ["build", "reader"];
const FILE: &str = "file";

/// Files of the source that are not needed: four in five. A directory, and a pattern below it.
const LEFT_OUT: [(&str, &str); 11] = [
    ("arch/[!x]*", "*.[chS]"),
    ("arch/[!x]*", "*.dts*"),
    ("arch/[!x]*", "configs/*"),
    ("crypto", "*.[ch]"),
    ("Documentation", "*.[rty][sxa]*"),
    ("drivers", "*.[chS]"),
    ("fs", "*.[ch]"),
    ("net", "*.[ch]"),
    ("samples", "*.[ch]"),
    ("sound", "*.[ch]"),
    ("tools", "[pt]e*/*"),
];

fn fill(case: &Case, directory: &Path) -> Result<(), Error> {
    let [build, reader] = DIRECTORIES.map(|name| directory.join(name));
    for path in [&build, &reader] {
        std::fs::create_dir(path).map_err(Error::at("a directory"))?;
    }
    let mut fio = Command::new("fio");
    fio.args(["--name=fill", "--rw=write", "--bs=1m", "--direct=1", "--minimal"]);
    fio.arg(format!("--size={}", files_bytes(case)));
    succeed(fio.arg(format!("--filename={}", reader.join(FILE).display())))?;
    let archive = source().ok_or_else(|| Error::new("there is no Linux source"))?;
    let mut untar = Command::new("tar");
    // `linux-source-6.1.tar.xz` contains `linux-source-6.1`.
    let root = archive.file_name().unwrap_or_default().to_string_lossy();
    let root = root.trim_end_matches(".tar.xz");
    untar.args(LEFT_OUT.map(|(name, files)| format!("--exclude={root}/{name}/{files}")));
    succeed(untar.args(["--strip-components=1", "-xf"]).arg(&archive).arg("-C").arg(&build))?;
    succeed(Command::new("make").args(["-s", "tinyconfig"]).current_dir(&build)).map(drop)
}

/// What is built: enough for half a minute, little enough for many rounds.
const TARGET: &str = "mm/";

struct Build<'c> {
    case: &'c Case,
}

impl Build<'_> {
    fn make(&self, side: &Side, targets: &[&str]) -> Result<f64, Error> {
        let make = machine::program("make").ok_or_else(|| Error::new("make is not installed"))?;
        let mut command = side.command(&make);
        command.arg("-C").arg(side.path.join(DIRECTORIES[0])).arg("-s").args(targets);
        // One compiler at a time: two need more memory than the programs have, and then read their
        // own code from the disk again and again.
        command.arg("-j1");
        let begun = Instant::now();
        succeed(&mut command)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Starts the program that reads beside the build.
    fn reader(&self, side: &Side) -> Result<Option<Running>, Error> {
        if self.case.job.0 == "alone" {
            return Ok(None);
        }
        let fio = machine::program("fio").ok_or_else(|| Error::new("fio is not installed"))?;
        let mut command = side.command(&fio);
        command.args(["--name=reader", "--rw=read", "--bs=128k", "--ioengine=psync", "--thread"]);
        command.args(["--invalidate=0", "--time_based", "--runtime=1h", "--minimal"]);
        // It reads as much in two seconds as the memory holds.
        command.arg(format!("--rate={}", self.case.memory.0 / 2));
        command.arg(format!("--filename={}", side.path.join(DIRECTORIES[1]).join(FILE).display()));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Some(Running(child.map_err(Error::at("fio"))?)))
    }
}

impl Job for Build<'_> {
    fn rows(&self) -> &'static [&'static str] {
        &["_cold", "_warm"]
    }

    fn tenants(&self) -> &'static [&'static str] {
        &DIRECTORIES
    }

    fn is_cold(&self) -> bool {
        true
    }

    fn run(&self, side: &Side, _: Duration) -> Result<Vec<Done>, Error> {
        // A slice that was interrupted has left files.
        let mut clean = Command::new("make");
        succeed(clean.arg("-C").arg(side.lower.join(DIRECTORIES[0])).args(["-s", "clean"]))?;
        crate::group::drop_kernel_caches()?;
        let _reader = self.reader(side)?;
        let mut done = Vec::new();
        for _ in 0..2 {
            done.push(Done { operations: 1.0, seconds: self.make(side, &[TARGET])? });
            self.make(side, &["clean"])?;
        }
        Ok(done)
    }
}
