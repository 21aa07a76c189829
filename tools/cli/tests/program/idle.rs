//! An idle server sleeps.

use std::time::Duration;

use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup};

/// How long is looked.
const WATCH: Duration = Duration::from_secs(10);

/// The look at the counters every five seconds, and what the kernel books beside it.
const CPU_MAX: Duration = Duration::from_millis(5);

/// Two looks at the counters, and as many again for luck.
const WAKEUPS_MAX: u64 = 10;

#[test]
fn a_silent_client_costs_no_cpu() {
    let directory = Directory::new();
    let disk = directory.disk("disk", 64 << 20);
    let server = Server::start(&directory, &Setup { exports: &[("disk", &disk)], ..Setup::default() });
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    // Work first: threads that were never needed would prove nothing.
    for block in 0..256 {
        client.write(block * 65_536, &[7; 4096]);
    }
    assert_eq!(client.flush(), 0);
    assert_eq!(client.read(0, 4096), [7; 4096]);
    // The status line is due once more, and cleaners come to rest.
    std::thread::sleep(Duration::from_secs(6));
    let before = Usage::of(server.pid());
    std::thread::sleep(WATCH);
    let after = Usage::of(server.pid());
    let cpu = after.cpu.saturating_sub(before.cpu);
    let wakeups = after.wakeups - before.wakeups;
    println!("idle for {WATCH:?}: {cpu:?} of CPU, {wakeups} wake-ups");
    assert!(cpu <= CPU_MAX, "{cpu:?} of CPU in {WATCH:?} of silence; {wakeups} wake-ups");
    assert!(wakeups <= WAKEUPS_MAX, "{wakeups} wake-ups in {WATCH:?} of silence");
    assert_eq!(client.read(0, 4096), [7; 4096]);
    drop(client);
    server.stop();
}

struct Usage {
    cpu: Duration,
    wakeups: u64,
}

impl Usage {
    /// Of all threads of a process, to the nanosecond: `stat` counts in hundredths of seconds.
    fn of(pid: u32) -> Usage {
        let mut usage = Usage { cpu: Duration::ZERO, wakeups: 0 };
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let thread = thread.unwrap().path();
            let schedstat = std::fs::read_to_string(thread.join("schedstat")).unwrap();
            let nanoseconds: u64 = schedstat.split(' ').next().unwrap().parse().unwrap();
            usage.cpu += Duration::from_nanos(nanoseconds);
            let status = std::fs::read_to_string(thread.join("status")).unwrap();
            let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            usage.wakeups += switches.unwrap().trim().parse::<u64>().unwrap();
        }
        usage
    }
}
