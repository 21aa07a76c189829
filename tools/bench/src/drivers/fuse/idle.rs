//! The processor time of a mount that nobody uses.
//!
//! A program has a file open and has read it. Then nothing is asked of the mount, and the processor
//! time of its threads is read from the kernel.

use std::fs;
use std::io::Read;
use std::time::Duration;

use super::{BUFFERS_BYTES, FILE, Mounted, skipped};
use crate::case::Case;
use crate::error::Error;
use crate::report::Row;
use crate::scratch::Directory;
use crate::stage::{Driver, Run, cache_config, partition_config};

pub const DRIVER: Driver = Driver {
    name: "fuse-idle",
    purpose: "the processor time of a mount that nobody uses",
    contestants: &["octavo"],
    scenery: &[],
    check: |_| Ok(()),
    memory: |needs| needs.frames,
    set: |_, _| Ok(Box::new(|case, run| row(case, run).map(|row| vec![row]))),
};

/// The time over which the processor time is counted.
const IDLE: Duration = Duration::from_secs(10);

fn row(case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let idle = if run.options.quick { IDLE / 50 } else { IDLE };
    let directory = Directory::in_memory("fuse-idle")?;
    let lower = directory.0.join("lower");
    fs::create_dir(&lower).map_err(Error::at("a directory in memory"))?;
    fs::write(lower.join(FILE), vec![7; 1 << 20]).map_err(Error::at("a file in memory"))?;
    let cache = octavo::Cache::new(cache_config(case.memory.0, BUFFERS_BYTES))?;
    let partition = cache.partition(partition_config(case))?;
    let mounted = match Mounted::new((&directory.0, "mounted"), &lower, (&cache, &partition), None) {
        Ok(mounted) => mounted,
        Err(why) => return Ok(skipped(case, run, &why)),
    };
    let mut file = fs::File::open(mounted.file()).map_err(Error::at("the mounted file"))?;
    file.read_to_end(&mut Vec::new()).map_err(Error::at("the mounted file"))?;
    run.step(case, "waiting")?;
    // The last request has ended, and its thread sleeps.
    std::thread::sleep(idle / 10);
    let (before, waits) = (threads_ns()?, mounted.mount.stat().waits);
    std::thread::sleep(idle);
    let mut row = Row::new(run.suite, case);
    row.add("idle_s", idle.as_secs_f64());
    row.add("idle_cpu_ms", (threads_ns()? - before) as f64 / 1e6);
    row.add("idle_waits", mounted.mount.stat().waits - waits);
    Ok(row)
}

/// Returns the processor time of all threads of this process that serve a mount.
fn threads_ns() -> Result<u64, Error> {
    let mut sum = 0;
    for task in fs::read_dir("/proc/self/task").map_err(Error::at("the threads"))?.flatten() {
        let name = fs::read_to_string(task.path().join("comm")).map_err(Error::at("a thread"))?;
        if name.starts_with("octavo-fuse-") {
            let stat = fs::read_to_string(task.path().join("schedstat")).map_err(Error::at("a thread"))?;
            sum += stat.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(sum)
}
