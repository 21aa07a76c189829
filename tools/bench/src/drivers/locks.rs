//! What share of the processors' time goes into taking and waiting for locks while a case of
//! `misses` runs (HotStorage '12, Figure 4).
//!
//! Each contestant runs alone while `perf record` samples this process's processor time, in the
//! kernel and here; counted are the samples in functions that take or wait for locks, by their
//! names. (Not in those that release them: samples pile up where interrupts are let in again.) A
//! thread that sleeps takes no processor time and is not counted, which favours whoever sleeps for
//! a lock. Without perf, or where the kernel refuses it, there is nothing to say but that.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::case::{Case, Value};
use crate::clock::Clock;
use crate::drivers::{Run, Stage, misses};
use crate::report::Row;
use crate::{Error, machine};

/// Parts of the names of functions that are about locks: the kernel's, the C library's, the
/// engine's.
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

/// The stage of `misses`.
pub struct Field(pub misses::Field);

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for name in &case.contestants {
            let alone = Case { contestants: vec![name.clone()], reference: Vec::new(), ..case.clone() };
            let mut row = Row::new(run.suite, &alone);
            row.case = format!("{}_{name}", case.name);
            row.fact("who", Value::Text(name.clone()));
            if machine::program("perf").is_none() {
                row.notes.push("perf is not installed, and nothing was measured".into());
                rows.push(row);
                continue;
            }
            let teams = self.0.teams(&alone, run.options.quick);
            let teams: Vec<_> = teams.iter().map(|team| &**team).collect();
            let mut plan = run.plan(&alone, (5.0, Duration::from_millis(500), Clock::Wall), 1);
            plan.slice = plan.slice.max(Duration::from_millis(100));
            let seconds = plan.slice.as_secs_f64() * plan.rounds as f64;
            let data = Path::new(crate::scratch::MEMORY_DIRECTORY)
                .join(format!("octavo-bench-perf-{}", std::process::id()));
            let recorder = record(&data, seconds);
            let slices = run.compete(&alone, plan, &teams);
            let recorded = recorder.map_err(Error::at("perf")).and_then(|mut recorder| {
                recorder.wait().map_err(Error::at("perf"))?;
                report(&data)
            });
            // It may never have been written.
            let _ = std::fs::remove_file(&data);
            row.compare(&alone, plan, &teams, &slices?);
            match recorded {
                Ok((locks, top)) => {
                    row.number("lock_share", locks);
                    row.notes.push(format!("most of it in {top}"));
                }
                Err(error) => row.notes.push(format!("perf said nothing of use: {error}")),
            }
            rows.push(row);
        }
        Ok(rows)
    }
}

/// Samples this process for so long.
fn record(data: &Path, seconds: f64) -> std::io::Result<std::process::Child> {
    let mut command = Command::new(machine::program("perf").unwrap_or_else(|| "perf".into()));
    command.args(["record", "-q", "-e", "cpu-clock", "-F", "999", "-o"]).arg(data);
    command.args(["-p", &std::process::id().to_string(), "--", "sleep", &format!("{seconds:.2}")]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// The share of samples in locks, and where most of them are.
fn report(data: &Path) -> Result<(f64, String), Error> {
    let mut command = Command::new(machine::program("perf").unwrap_or_else(|| "perf".into()));
    command.args(["report", "--stdio", "-F", "overhead,sym", "-i"]).arg(data).stderr(Stdio::null());
    let output = command.output().map_err(Error::at("perf report"))?;
    share(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| Error::new("there are no samples"))
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
    fn samples_in_locks_are_added_up_and_nothing_is_no_share() {
        let text = "# Overhead  Symbol\n#\n  50.00%  [k] copy_page\n  30.00%  [k] _raw_spin_lock\n 20.00%  [.] octavo_table::lock::Lock::lock\n\n";
        assert_eq!(share(text), Some((0.5, "_raw_spin_lock".to_owned())));
        assert_eq!(share("# no samples\n"), None);
    }
}
