//! Memory, descriptors and processor time of this process, as the kernel counts them.

use std::fs::read_to_string;
use std::process::ExitCode;
use std::time::Duration;

use octavo::pressure::PressureSource;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::signals::{self, Signals};

/// The status of a program whose main thread panicked, as the standard library has it.
const PANICKED: u8 = 101;

/// Figures of the process; `None` if /proc does not have one.
#[derive(Debug, Default)]
pub struct Process {
    /// Resident memory: the cache's, the program's and its stacks. From `statm`, which costs
    /// microseconds whatever the size, and can lag by a few hundred KiB on a machine with many
    /// cores; `smaps_rollup` is exact, but walks all page tables.
    pub resident_bytes: Option<u64>,
    /// The mapped part of the address space, in bytes.
    pub virtual_bytes: Option<u64>,
    /// Open descriptors.
    pub open_fds: Option<u64>,
    /// The limit on open descriptors; `None`: unlimited.
    pub fds_max: Option<u64>,
    /// Processor time of all threads, in user space and in the kernel.
    pub cpu: Duration,
    /// When it was started, in seconds since 1970.
    pub started_s: Option<f64>,
}

impl Process {
    /// The figures now.
    pub fn now() -> Process {
        let (virtual_bytes, resident_bytes) = memory().unzip();
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Process {
            resident_bytes,
            virtual_bytes,
            // One of them is the directory that is being read.
            open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count().saturating_sub(1) as u64),
            fds_max: getrlimit(Resource::Nofile).current,
            cpu: cpu.try_into().unwrap_or_default(),
            started_s: started_s(),
        }
    }
}

/// Allows this process as many descriptors as it may allow itself.
pub fn raise_fds_max() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        log::debug!("cannot raise the limit on descriptors: {errno}");
    }
}

/// Processor time of another process; `None` if it is not visible.
pub fn cpu_of(pid: i32) -> Option<Duration> {
    let stat = stat_of(pid)?;
    // After the program's name, see `started_s`: fields 14 and 15.
    let ticks = |field: usize| stat.split_ascii_whitespace().nth(field - 3)?.parse::<u64>().ok();
    let ticks = ticks(14)? + ticks(15)?;
    Some(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
}

/// Whether another process is stopped, by a signal or a debugger.
pub fn is_stopped(pid: i32) -> bool {
    stat_of(pid).is_some_and(|stat| stat.trim_start().starts_with(['T', 't']))
}

/// The fields of a process behind its name.
fn stat_of(pid: i32) -> Option<String> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.to_owned())
}

/// The stack that the main thread needs, with room to spare: the parser of command lines takes some
/// hundred KiB of it.
const MAIN_STACK_BYTES: usize = 8 << 20;

/// Runs the program, on a thread of its own if the main thread's stack is too small: `ulimit -s`
/// limits that one alone.
pub fn with_enough_stack(run: fn() -> ExitCode) -> ExitCode {
    let is_small = getrlimit(Resource::Stack).current.is_some_and(|bytes| bytes < MAIN_STACK_BYTES as u64);
    if !is_small {
        return run();
    }
    let thread = std::thread::Builder::new().name("main".into()).stack_size(MAIN_STACK_BYTES).spawn(run);
    let Ok(thread) = thread else { return run() };
    // This thread only waits: signals are for the other one, which may block and await them.
    // Without the block, a signal is at worst delivered here and ends the process.
    let _ = Signals::block(&signals::OF_SERVERS);
    // Its panic was reported.
    thread.join().unwrap_or(ExitCode::from(PANICKED))
}

/// Resident memory, as in [`Process::resident_bytes`].
pub fn resident_bytes() -> Option<u64> {
    memory().map(|(_, resident_bytes)| resident_bytes)
}

/// The share of the last ten seconds in which some process waited for memory: the kernel's PSI, of
/// the machine or of the groups that limit this process, whichever is worse. `None`: the kernel has
/// no PSI.
pub fn memory_stalled_ratio() -> Option<f64> {
    PressureSource::linux().sample().stalled_percent.map(|percent| percent / 100.0)
}

/// Bytes that are mapped, and those that are resident.
fn memory() -> Option<(u64, u64)> {
    let statm = read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().map(|pages| pages.parse::<u64>().ok());
    let mut next_bytes = || Some(pages.next()?? * page_size() as u64);
    Some((next_bytes()?, next_bytes()?))
}

fn started_s() -> Option<f64> {
    let stat = read_to_string("/proc/self/stat").ok()?;
    // The program's name may contain blanks and brackets. Field 3 follows it; the start time is
    // field 22.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let system = read_to_string("/proc/stat").ok()?;
    let booted_s: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(booted_s as f64 + ticks as f64 / clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn a_process_is_resident_has_descriptors_and_was_started_before_now() {
        let process = Process::now();
        let (resident_bytes, virtual_bytes) =
            (process.resident_bytes.unwrap(), process.virtual_bytes.unwrap());
        assert!(0 < resident_bytes && resident_bytes <= virtual_bytes, "{process:?}");
        assert!(
            (3..=process.fds_max.unwrap_or(u64::MAX)).contains(&process.open_fds.unwrap()),
            "{process:?}"
        );
        assert!(process.cpu > Duration::ZERO, "{process:?}");
        // Either clock may have been set since, but not by a day.
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((process.started_s.unwrap() - now_s).abs() < 86_400.0, "{process:?}");
    }
}
