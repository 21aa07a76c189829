//! Locks: the share of processor time that goes into taking and waiting for locks while a case of
//! `misses` runs (HotStorage '12, Figure 4).
//!
//! Each contestant runs alone while `perf record` samples this process's processor time, in the
//! kernel and in user space. Samples in functions that take or wait for locks count, by the
//! functions' names; functions that release locks do not, because samples pile up where interrupts
//! are enabled again. A thread that sleeps takes no processor time and does not count, which
//! favours contestants that sleep for a lock. Without perf, or if the kernel refuses it, a row has
//! only a note.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::case::Case;
use crate::drivers::misses;
use crate::error::Error;
use crate::machine;
use crate::report::Row;
use crate::scratch::{CachedFile, MEMORY_DIRECTORY};
use crate::stage::{Driver, Run};
use crate::turns::Pace;

pub const DRIVER: Driver = Driver {
    name: "locks",
    purpose: "the share of time that `misses` spends in locks",
    set: |case, run| {
        let file = misses::open(case, run)?;
        Ok(Box::new(move |case, run| rows(&file, case, run)))
    },
    ..misses::DRIVER
};

/// Parts of the names of functions that take or wait for locks, in the kernel, the C library and
/// the engine.
const LOCKS: [&str; 11] = [
    "spin_lock",
    "read_lock_slow",
    "write_lock_slow",
    "rwsem",
    "down_read",
    "down_write",
    "mutex",
    "osq_lock",
    "futex",
    "folio_wait_bit",
    "octavo_table::lock",
];

fn rows(file: &CachedFile, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
    let alone = |name: &String| {
        let only = Case { contestants: vec![name.clone()], reference: Vec::new(), ..case.clone() };
        row(file, &only, run)
    };
    case.contestants.iter().map(alone).collect()
}

/// Runs a case with one contestant, and samples its processor time.
fn row(file: &CachedFile, alone: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let mut row = Row::of_contestant(run.suite, alone, &alone.contestants[0]);
    if machine::program("perf").is_none() {
        row.notes.push("perf is not installed, so nothing was measured".into());
        return Ok(row);
    }
    let teams = misses::teams(file, alone, run.options.quick);
    let mut plan = run.plan(alone, Pace::new(5.0, 500), 1);
    plan.slice = plan.slice.max(Duration::from_millis(100));
    let seconds = plan.slice.as_secs_f64() * plan.rounds as f64;
    let data = Path::new(MEMORY_DIRECTORY).join(format!("octavo-bench-perf-{}", std::process::id()));
    let recorder = record(&data, seconds);
    let slices = run.compete(alone, plan, &teams);
    let recorded = recorder.map_err(Error::at("perf")).and_then(|mut recorder| {
        recorder.wait().map_err(Error::at("perf"))?;
        report(&data)
    });
    // perf may have failed to write the file.
    let _ = std::fs::remove_file(&data);
    row.compare(alone, plan, &teams, &slices?);
    match recorded {
        Ok((locks, top)) => {
            row.add("lock_share", locks);
            row.notes.push(format!("most of it in {top}"));
        }
        Err(error) => row.notes.push(format!("perf failed: {error}")),
    }
    Ok(row)
}

/// Starts perf, which samples this process for `seconds`.
fn record(data: &Path, seconds: f64) -> std::io::Result<std::process::Child> {
    let mut command = Command::new(machine::program("perf").unwrap_or_else(|| "perf".into()));
    command.args(["record", "-q", "-e", "cpu-clock", "-F", "999", "-o"]).arg(data);
    command.args(["-p", &std::process::id().to_string(), "--", "sleep", &format!("{seconds:.2}")]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Returns the share of samples in locks, and the function with the most of them.
fn report(data: &Path) -> Result<(f64, String), Error> {
    let mut command = Command::new(machine::program("perf").unwrap_or_else(|| "perf".into()));
    command.args(["report", "--stdio", "-F", "overhead,sym", "-i"]).arg(data).stderr(Stdio::null());
    let output = command.output().map_err(Error::at("perf report"))?;
    share(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| Error::new("it has recorded no samples"))
}

/// Adds up lines such as `12.34%  [k] _raw_spin_lock`.
fn share(text: &str) -> Option<(f64, String)> {
    let (mut all, mut locks, mut top) = (0.0, 0.0, (0.0, "none".to_owned()));
    for line in text.lines() {
        let Some((percent, name)) = line.trim().split_once('%') else { continue };
        let Ok(percent) = percent.trim().parse::<f64>() else { continue };
        all += percent;
        if LOCKS.iter().any(|part| name.contains(part)) {
            locks += percent;
            if percent > top.0 {
                top = (percent, name.trim().trim_start_matches(|c| "[k.]".contains(c)).trim().to_owned());
            }
        }
    }
    (all > 0.0).then(|| (locks / all, top.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_in_locks_are_added_up_and_no_samples_have_no_share() {
        let text = "# Overhead  Symbol\n#\n  50.00%  [k] copy_page\n  30.00%  [k] _raw_spin_lock\n 20.00%  [.] octavo_table::lock::Lock::lock\n\n";
        assert_eq!(share(text), Some((0.5, "_raw_spin_lock".to_owned())));
        assert_eq!(share("# no samples\n"), None);
    }
}
