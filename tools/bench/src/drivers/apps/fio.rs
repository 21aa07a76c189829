//! fio reads one file: at random, at random with some pages more popular than others, or from its
//! beginning to its end.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::contest::{CONTESTANTS, Done, Files, Job, check, contest, files_bytes, hindrance, succeed};
use super::side::Side;
use crate::case::Case;
use crate::error::Error;
use crate::fio;
use crate::machine;
use crate::stage::Driver;

pub const DRIVER: Driver = Driver {
    name: "app-fio",
    purpose: "fio on a mounted directory, beside the kernel's page cache",
    contestants: CONTESTANTS,
    scenery: &["memory", "files_percent"],
    check: |case| check(case, &JOBS.map(|(job, _)| job)),
    memory: |needs| needs.frames * 2,
    set: |case, run| {
        let files = match hindrance(&[("fio", "fio")]) {
            None => Ok(Files::new(case, run, |directory| fill(case, directory))?),
            Some(why) => Err(why),
        };
        Ok(Box::new(move |case, run| {
            let files = files.as_ref().map_err(String::clone);
            contest(case, run, files, &Reads { case, is_quick: run.options.quick })
        }))
    },
};

/// Jobs, with their options of fio. Each thread of a sequential job reads a part of the file.
const JOBS: [(&str, &str); 3] = [
    ("random", "--rw=randread --bs=4k --norandommap"),
    ("zipf", "--rw=randread --bs=4k --norandommap --random_distribution=zipf:0.99"),
    ("sequential", "--rw=read --bs=128k"),
];

/// The name of the file.
const FILE: &str = "file";

fn fill(case: &Case, directory: &Path) -> Result<(), Error> {
    let mut command = Command::new("fio");
    command.args(["--name=fill", "--rw=write", "--bs=1m", "--direct=1", "--minimal"]);
    command.arg(format!("--size={}", files_bytes(case)));
    command.arg(format!("--filename={}", directory.join(FILE).display()));
    succeed(&mut command).map(drop)
}

struct Reads<'c> {
    case: &'c Case,
    is_quick: bool,
}

impl Job for Reads<'_> {
    fn run(&self, side: &Side, time: Duration) -> Result<Vec<Done>, Error> {
        let job = JOBS.iter().find(|(job, _)| *job == self.case.job.0);
        let (_, options) = job.ok_or_else(|| Error::new("no such job"))?;
        let fio = machine::program("fio").ok_or_else(|| Error::new("fio is not installed"))?;
        let threads = self.case.threads.0 as u64;
        let file_bytes = files_bytes(self.case);
        let (first, bytes) = match self.case.job.0 == "sequential" {
            true => (file_bytes / threads, file_bytes / threads),
            false => (0, file_bytes),
        };
        // fio would drop the file's pages from the kernel's cache before it begins.
        let options = format!(
            "{options} --ioengine=psync --invalidate=0 --randrepeat=0 --thread --group_reporting \
             --numjobs={threads} --offset_increment={first} --size={bytes}"
        );
        let path = format!("--filename={}", side.path.join(FILE).display());
        let rate = fio::Job { options, path, quick: self.is_quick }.run_as(side.command(&fio), time)?;
        let seconds = time.as_secs_f64();
        Ok(vec![Done { operations: rate * seconds, seconds }])
    }
}
