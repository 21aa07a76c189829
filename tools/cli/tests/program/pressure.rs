//! A server in a memory control group with a limit, and another process there that takes memory
//! until little is left.
//!
//! If no such group can be made (no root, no controller), the test prints `SKIP`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::nbd_client::Client;
use crate::server::{PATIENCE, Server, Setup, served, wait_until};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 160 * MIB;
const MIN: u64 = 24 * MIB;

/// Memory that the process may take beside its charge: code, stacks, page tables.
const PROCESS: u64 = 24 * MIB;

/// A memory control group, version 1 or 2; removed when it is dropped.
struct Group {
    path: PathBuf,
    usage: &'static str,
}

impl Group {
    fn new() -> Result<Group, String> {
        let name = format!("octavo-test-{}", std::process::id());
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ];
        let mut why = String::from("no memory control groups are mounted");
        for (root, limit, usage) in versions {
            let root = Path::new(root);
            if !root.join("cgroup.procs").exists() {
                continue;
            }
            // Version 2 must be told to let children have limits; version 1 has no such file.
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
            let group = Group { path: root.join(&name), usage };
            let made = std::fs::create_dir(&group.path);
            match made.and_then(|()| std::fs::write(group.path.join(limit), LIMIT.to_string())) {
                Ok(()) => return Ok(group),
                Err(error) => why = format!("{}: {error}", group.path.display()),
            }
        }
        Err(why)
    }

    fn join(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.path.display())
    }

    fn used(&self) -> u64 {
        std::fs::read_to_string(self.path.join(self.usage)).unwrap().trim().parse().unwrap()
    }

    /// Processes that the kernel's OOM killer killed.
    fn killed(&self) -> u64 {
        let read = |name: &str| std::fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let text = read("memory.oom_control") + &read("memory.events");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes that were killed leave it a little later; a group that stays is empty.
        let begun = Instant::now();
        while std::fs::remove_dir(&self.path).is_err() && begun.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A process of the group that keeps everything that is written to it in memory.
struct Taker(Child);

impl Taker {
    fn new(group: &Group) -> Taker {
        let line = format!("{} && exec tail -c 1000000000", group.join());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::null());
        Taker(command.spawn().unwrap())
    }

    fn take(&mut self, bytes: u64) {
        self.0.stdin.as_mut().unwrap().write_all(&vec![1; bytes as usize]).expect("it lives");
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn charged(server: &Server) -> u64 {
    server.stat()["partitions"][0]["charged_bytes"].as_u64().unwrap()
}

/// Bytes of the server in memory, and how many of them in huge pages.
fn resident(server: &Server) -> (u64, u64) {
    (server.memory("Rss"), server.memory("AnonHugePages"))
}

fn chunk(number: u64) -> Vec<u8> {
    (0..MIB / 8).flat_map(|word| (number << 32 | word).to_le_bytes()).collect()
}

#[test]
fn under_memory_pressure_the_cache_shrinks_to_min_and_nothing_is_killed_or_lost() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => return println!("SKIP: no memory control group can be made: {why}"),
    };
    let (directory, server) = served(&Setup {
        memory_max: "112MiB",
        partition: "cache_mode = \"writeback\"\nmin = \"24MiB\"",
        disk_bytes: 256 * MIB,
        before: &group.join(),
        ..Setup::default()
    });
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    // 1. The cache is full, a third of it dirty.
    (0..128).for_each(|number| _ = client.read((128 + number) * MIB, MIB as usize));
    (0..32).for_each(|number| client.write(number * MIB, &chunk(number)));
    let (full, used, in_memory) = (charged(&server), group.used(), resident(&server));
    println!("full: {full} bytes charged, {used} in the group, (resident, huge) {in_memory:?}");
    assert!(full >= 88 * MIB, "{full} bytes charged");
    assert!(in_memory.0 >= full / 10 * 9, "{in_memory:?} of {full} bytes are in memory");
    assert!(used <= full + PROCESS + 16 * MIB, "{used} bytes in the group");

    // 2. Another process takes all free memory, and the cache shrinks to `min`.
    let mut taker = Taker::new(&group);
    let (begun, mut taken) = (Instant::now(), 0);
    while charged(&server) > MIN + 2 * MIB {
        if LIMIT.saturating_sub(group.used()) > 3 * MIB {
            taker.take(MIB);
            taken += MIB;
        } else {
            std::thread::sleep(Duration::from_millis(50));
        }
        client.read((taken % (256 * MIB)) / 4096 * 4096, 4096);
        assert!(begun.elapsed() < PATIENCE, "{} bytes charged, {taken} taken", charged(&server));
    }
    let (least, used, in_memory) = (charged(&server), group.used(), resident(&server));
    println!(
        "after {:?}: {least} charged, {taken} taken, {used} in the group, (resident, huge) {in_memory:?}",
        begun.elapsed()
    );
    assert!(least >= MIN - 2 * MIB, "{least} bytes: min is kept");
    assert!(in_memory.0 <= least + PROCESS + 16 * MIB, "{in_memory:?} of {least} bytes are in memory");
    assert_eq!(group.killed(), 0);
    assert!(taker.0.try_wait().unwrap().is_none(), "the other process lives");
    let stat = server.stat();
    assert!(stat["partitions"][0]["writebacks"].as_u64().unwrap() > 0, "{stat}");
    for number in 0..32 {
        assert!(client.read(number * MIB, MIB as usize) == chunk(number), "chunk {number}");
    }

    // 3. When that process has ended, the cache grows again.
    drop(taker);
    wait_until(
        || format!("{} bytes charged", charged(&server)),
        || {
            client.read(128 * MIB, MIB as usize);
            charged(&server) >= least + (full - least) / 3
        },
    );
    assert_eq!(group.killed(), 0);
    server.stop();
    let file = std::fs::read(directory.join("disk")).unwrap();
    for (number, written) in (0..32).zip(file.chunks(MIB as usize)) {
        assert!(written == chunk(number), "chunk {number} in the file");
    }
}
