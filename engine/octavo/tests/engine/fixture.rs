//! What many tests need: small caches, simulated disks, and ways to wait.

use std::time::Duration;

use octavo::disk::{SimDisk, SimOptions};
use octavo::{CacheConfig, Completion, Queue, WAYS};

/// Bytes of a page, and of a set's frames: the smallest segment.
pub const PAGE: u64 = 4096;
pub const SET_BYTES: u64 = PAGE * WAYS as u64;

/// A cache of 4 MiB with segments of one set and without threads of its own.
pub fn small(seed: u64) -> CacheConfig {
    CacheConfig {
        memory_max_bytes: 4 << 20,
        segment_bytes: SET_BYTES,
        buffers_max_bytes: Some(512 << 10),
        background: false,
        seed: Some(seed),
        ..CacheConfig::default()
    }
}

/// A simulated disk with the default latencies.
pub fn disk(seed: u64) -> SimDisk {
    SimDisk::new(SimOptions { seed, ..SimOptions::default() })
}

/// Waits for a condition that another thread brings about. A test that waits holds a watchdog.
pub fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for all requests of a queue, in whatever order they complete.
pub fn complete_all(queue: &mut Queue) -> Vec<Completion> {
    let mut completions = Vec::new();
    while queue.pending() > 0 {
        queue.wait(1, |completion| completions.push(completion));
    }
    completions
}

/// Waits for all requests of a queue, each of which must succeed.
pub fn succeed_all(queue: &mut Queue) {
    complete_all(queue).into_iter().for_each(|completion| completion.result.unwrap());
}

/// How often a thread has gone to sleep, by its folder in `/proc`. None if the thread has ended.
pub fn sleeps(task: &std::path::Path) -> Option<u64> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Runs a test of this name again in a process of its own, where nothing else runs. Returns true in
/// that process, and false in the calling one once it has ended successfully.
pub fn is_alone(name: &str) -> bool {
    const MARK: &str = "OCTAVO_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(MARK, "1");
    assert!(command.status().unwrap().success(), "{name} failed in a process of its own");
    false
}
