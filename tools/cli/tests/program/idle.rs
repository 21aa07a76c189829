//! An idle server sleeps.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::nbd_client::Client;
use crate::server::{Setup, served};

/// Samples of the server's threads, and the pause between two: ten seconds in all.
const SAMPLES: u64 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// In ten seconds the main thread and the watch of files wake up twice each; the rest is tolerance.
/// On a busy machine the samples take longer.
const WAKEUPS_MAX: u64 = 10;
const WAKEUPS_PER: Duration = Duration::from_secs(10);

/// Counted, not timed: a busy machine makes each wake-up longer, and none more frequent.
#[test]
fn while_its_client_is_silent_a_servers_threads_sleep() {
    let (_directory, server) = served(&Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    // Some load first, so that all threads have started.
    for block in 0..256 {
        client.write(block * 65_536, &[7; 4096]);
    }
    assert_eq!(client.flush(), 0);
    assert_eq!(client.read(0, 4096), [7; 4096]);
    assert_sleeps(server.pid());
    assert_eq!(client.read(0, 4096), [7; 4096]);
}

/// Checks that the threads of a process that has nothing to do sleep.
pub fn assert_sleeps(pid: u32) {
    // Wait for the last status line, and for the cleaner to finish.
    std::thread::sleep(Duration::from_secs(6));
    let before = Threads::of(pid);
    let begun = Instant::now();
    // A thread that never sleeps has no wake-ups: it would be awake in every sample.
    assert_all_sleep(pid, SAMPLES);
    let wakeups = Threads::of(pid).wakeups - before.wakeups;
    let elapsed = begun.elapsed();
    println!("in {elapsed:?}: {wakeups} wake-ups");
    let most = WAKEUPS_MAX as f64 * (elapsed.as_secs_f64() / WAKEUPS_PER.as_secs_f64()).max(1.0);
    assert!(wakeups as f64 <= most, "{wakeups} wake-ups of a silent process in {elapsed:?}");
}

/// Checks that each thread of a process sleeps in one of some samples.
pub fn assert_all_sleep(pid: u32, samples: u64) {
    let mut always_awake = Threads::of(pid).awake;
    for _ in 0..samples {
        std::thread::sleep(PAUSE);
        let now = Threads::of(pid);
        always_awake.retain(|thread| now.awake.contains(thread));
    }
    assert!(always_awake.is_empty(), "these threads never slept: {always_awake:?}");
}

/// The threads of a process.
struct Threads {
    /// Voluntary context switches of all of them: each sleep ends with a wake-up.
    wakeups: u64,
    /// Those that do not sleep now.
    awake: Vec<PathBuf>,
}

impl Threads {
    fn of(pid: u32) -> Threads {
        let mut threads = Threads { wakeups: 0, awake: Vec::new() };
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let thread = thread.unwrap().path();
            // A thread that has ended, such as that of a mount whose last reader had not asked yet,
            // is not awake.
            let Ok(status) = std::fs::read_to_string(thread.join("status")) else { continue };
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
            threads.wakeups += field("voluntary_ctxt_switches:").parse::<u64>().unwrap();
            if !field("State:").starts_with(['S', 'Z']) {
                threads.awake.push(thread);
            }
        }
        threads
    }
}
