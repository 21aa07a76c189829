//! An idle cache shrinks when memory is short: after a call of `memory_is_short`, and after the
//! kernel reports stalls.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::{Scratch, until};
use crate::tenants::{self, charged};
use octavo::pressure::{PressureSource, Sample};
use octavo::{Cache, CacheConfig, Partition, PartitionConfig};

/// An idle cache on a system with neither ample nor short memory: only a report of stalls makes the
/// cache shrink.
fn idle(source: impl FnOnce(PressureSource) -> PressureSource) -> (Cache, Partition) {
    let tight =
        || Sample { stalled_percent: Some(0.0), available_bytes: Some(60 << 20), bound_bytes: Some(1 << 30) };
    let pressure = Some(source(PressureSource::new(tight)));
    let config = CacheConfig { background: true, pressure, ..tenants::config(40 << 20) };
    let cache = Cache::new(config).unwrap();
    let partition = cache.partition(PartitionConfig::new("idle")).unwrap();
    cache.balance();
    assert!(charged(&partition) >= 35 << 20, "{}", charged(&partition));
    (cache, partition)
}

#[test]
fn a_report_that_memory_is_short_shrinks_an_idle_cache() {
    let (cache, partition) = idle(|source| source);
    let full = charged(&partition);
    cache.memory_is_short();
    until(|| charged(&partition) <= full - full / 10);
    // One report makes one step.
    assert!(charged(&partition) >= full - full / 6, "{} of {full} bytes", charged(&partition));
}

/// A memory control group (version 1 or 2) with a limit of 16 MiB. Removed on drop.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("octavo-stall-{}", std::process::id());
        let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        versions.iter().find_map(|(root, limit)| {
            let group = Group(Path::new(root).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(limit), (16 << 20).to_string()).ok().map(|()| group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended leaves the group a little later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const STALLS: &str = "/proc/pressure/memory";

/// Time that processes have stalled on memory since the machine started.
fn stalled() -> Option<Duration> {
    let text = std::fs::read_to_string(STALLS).ok()?;
    let total = text.lines().find(|line| line.starts_with("some "))?.rsplit_once("total=")?.1;
    total.parse().ok().map(Duration::from_micros)
}

#[test]
fn real_stalls_that_the_kernel_reports_shrink_an_idle_cache() {
    let mut ask = OpenOptions::new();
    let ask = ask.read(true).write(true).open(STALLS);
    if !ask.is_ok_and(|mut file| file.write_all(b"some 200000 2000000\0").is_ok()) {
        println!("SKIP: {STALLS} takes no trigger");
        return;
    }
    let Some((group, before)) = Group::new().zip(stalled()) else {
        println!("SKIP: no memory control group can be made");
        return;
    };
    let (_cache, partition) = idle(PressureSource::with_triggers);
    let full = charged(&partition);
    // A process with very little memory writes a file faster than the disk takes it.
    let file = Scratch::new("stall", 0);
    let (join, to) = (group.0.join("cgroup.procs"), file.0.display());
    let line = format!("echo $$ > {} && exec dd if=/dev/zero of={to} bs=1M count=200", join.display());
    let (begun, mut told) = (Instant::now(), false);
    for _ in 0..30 {
        let wrote = Command::new("/bin/sh").args(["-c", &line]).stderr(Stdio::null()).status();
        assert!(wrote.is_ok(), "{wrote:?}");
        told = charged(&partition) < full - full / 10;
        if told {
            break;
        }
    }
    let stalls = stalled().unwrap_or_default().saturating_sub(before);
    println!("processes stalled for {stalls:?} of {:?}; told: {told}", begun.elapsed());
    // If processes stalled for a quarter of the whole time, they stalled for well over 200 ms of
    // some two seconds, which is the trigger.
    if !told && stalls > begun.elapsed() / 4 && begun.elapsed() > Duration::from_secs(4) {
        panic!("the kernel reported no stall to the cache");
    }
    if !told {
        println!("SKIP: too few stalls could be made");
    }
}
