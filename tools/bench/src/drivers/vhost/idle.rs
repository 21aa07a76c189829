//! Idle disks: the memory and the processor time of a server with many attached disks.
//!
//! The server is a process of its own, `octavo serve`. Each disk is attached by libblkio and read
//! until the cache is full, so that all of `memory_max` is resident. Then the disks are idle, and
//! the driver reads the server's resident memory: the part above `memory_max` is memory that
//! `memory_max` does not bound. The guests' memory, which the server maps, is not counted.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::START_MAX;
use super::guest::{Checked, Disk};
use crate::case::Case;
use crate::content;
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::report::Row;
use crate::scratch::{self, Directory, Running};
use crate::stage::{Driver, Run};
use crate::stream;

pub const DRIVER: Driver = Driver {
    name: "vhost-idle",
    purpose: "the memory and processor time of attached, idle disks",
    contestants: &["octavo", "octavo-poll"],
    scenery: &[],
    check: |case| match case.contestants.len() == 1 {
        true => Ok(()),
        false => Err("idle disks are measured for one contestant at a time".into()),
    },
    // The cache, and the disks.
    memory: |needs| needs.frames * 3,
    set: |_, _| Ok(Box::new(|case, run| row(case, run).map(|row| vec![row]))),
};

/// The number of disks.
const DISKS: usize = 64;
const DISKS_QUICK: usize = 4;

/// How long nothing is asked of the server before it is measured: buffers that are not used go
/// back to the frames after ten seconds.
const SETTLE: Duration = Duration::from_secs(12);

/// The time over which the processor time is counted.
const IDLE: Duration = Duration::from_secs(10);

fn row(case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let mut row = Row::new(run.suite, case);
    let Some(program) = run.options.program.clone() else {
        row.notes.push("there is no program to run, so nothing was measured".into());
        return Ok(row);
    };
    let (disks, settle, idle) = match run.options.quick {
        true => (DISKS_QUICK, Duration::from_millis(100), Duration::from_millis(200)),
        false => (DISKS, SETTLE, IDLE),
    };
    let directory = Directory::in_memory("vhost-idle")?;
    // Together twice as large as the cache.
    let pages = 2 * case.memory.0 / PAGE_BYTES as u64 / disks as u64;
    run.news(case, "starting the server");
    let server = start(&program, &directory.0, case, disks, pages)?;
    let alone = Usage::of(&server.0)?;
    run.step(case, "attaching disks")?;
    let mut attached = Vec::new();
    for number in 0..disks {
        let disk = Disk::attach(&socket(&directory.0, number), case.threads.0, 1)?;
        let mut reader = disk.reader(stream::pages(&case.workload, pages, 1)?, Checked::Line)?;
        reader.touch(0..pages)?;
        // The rings stay in use.
        attached.push((reader, disk));
        run.options.unless_stopped()?;
    }
    run.step(case, "waiting")?;
    std::thread::sleep(settle);
    let before = Usage::of(&server.0)?;
    std::thread::sleep(idle);
    let after = Usage::of(&server.0)?;
    row.add("disks", disks);
    row.add("queues", case.threads.0);
    row.add("memory_max_bytes", case.memory.0);
    row.add("resident_bytes", after.resident_bytes);
    row.add("beyond_memory_max_bytes", after.resident_bytes as f64 - case.memory.0 as f64);
    row.add("resident_without_disks_bytes", alone.resident_bytes);
    row.add("guest_memory_bytes", after.guest_bytes);
    row.add("server_threads", after.threads);
    row.add("idle_s", idle.as_secs_f64());
    row.add("idle_cpu_ms", (after.cpu_ns - before.cpu_ns) as f64 / 1e6);
    row.add("idle_cpu_rings_ms", (after.rings_cpu_ns - before.rings_cpu_ns) as f64 / 1e6);
    Ok(row)
}

fn socket(directory: &Path, number: usize) -> std::path::PathBuf {
    directory.join(format!("{number}.sock"))
}

/// Starts a server with disks of `pages` each, and waits until it serves them.
fn start(program: &Path, directory: &Path, case: &Case, disks: usize, pages: u64) -> Result<Running, Error> {
    let poll = if case.has("octavo-poll") { super::POLL.as_micros() } else { 0 };
    let path = directory.display();
    let mut config = format!("[cache]\nmemory_max = {}\n", case.memory.0);
    config += "[[partition]]\nname = \"vm\"\nread_ahead = 0\n";
    let _ = write!(config, "[listen]\nnbd = \"unix:{path}/nbd.sock\"\n[serve]\nconnections_max = {disks}\n");
    for number in 0..disks {
        let name = directory.join(format!("{number}.raw"));
        let file = File::create(&name).map_err(Error::at("a disk"))?;
        content::write_file(&file, crate::stage::offset(pages), &mut |_| {}).map_err(Error::at("a disk"))?;
        let _ = write!(
            config,
            "[[export]]\nname = \"vm{number}\"\npath = \"{path}/{number}.raw\"\npartition = \"vm\"\n\
             read_only = true\nattach = \"vhost-user:{path}/{number}.sock\"\nqueues = {}\npoll_us = {poll}\n",
            case.threads.0
        );
    }
    let file = directory.join("octavo.toml");
    fs::write(&file, config).map_err(Error::at("the server's configuration"))?;
    let mut command = scratch::command(program);
    command.args(["-q", "serve", "--config"]).arg(&file);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = Running(child.map_err(Error::at("octavo serve"))?);
    let begun = Instant::now();
    while !socket(directory, disks - 1).exists() {
        if let Some(status) = child.0.try_wait().map_err(Error::at("octavo serve"))? {
            return Err(Error::new(format!("octavo serve: {status}")));
        }
        if begun.elapsed() > START_MAX {
            return Err(Error::new(format!("octavo serve does not listen after {} s", START_MAX.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

/// What a process uses.
#[derive(Debug, Default)]
struct Usage {
    /// Resident bytes without the memory of guests.
    resident_bytes: u64,
    /// Resident bytes of the memory of guests.
    guest_bytes: u64,
    threads: usize,
    /// Processor time of all threads.
    cpu_ns: u64,
    /// Processor time of the threads of rings.
    rings_cpu_ns: u64,
}

impl Usage {
    fn of(child: &Child) -> Result<Usage, Error> {
        let process = Path::new("/proc").join(child.id().to_string());
        let read = |path: &Path| fs::read_to_string(path).map_err(Error::at(&path.display().to_string()));
        let mut usage = Usage::default();
        (usage.resident_bytes, usage.guest_bytes) = resident(&read(&process.join("smaps"))?);
        let tasks = fs::read_dir(process.join("task")).map_err(Error::at("the server's threads"))?;
        for task in tasks.flatten() {
            let stat = read(&task.path().join("schedstat"))?;
            let ns: u64 = stat.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
            usage.threads += 1;
            usage.cpu_ns += ns;
            if read(&task.path().join("comm"))?.starts_with("vhost-") {
                usage.rings_cpu_ns += ns;
            }
        }
        Ok(usage)
    }
}

/// Returns the resident bytes in a process's `smaps`: those of its own, and those of guests, whose
/// memory libblkio makes with memfd_create.
fn resident(smaps: &str) -> (u64, u64) {
    let (mut own, mut guests, mut is_guest) = (0, 0, false);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Rss:"), Some(kib)) => {
                let bytes = kib.parse::<u64>().unwrap_or(0) << 10;
                *if is_guest { &mut guests } else { &mut own } += bytes;
            }
            // The first line of a mapping is its range, and ends with its name.
            (Some(range), Some(_)) if range.contains('-') => is_guest = line.contains("/memfd:"),
            _ => {}
        }
    }
    (own, guests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_guests_is_counted_apart() {
        let smaps = "\
55d0-55e0 r-xp 00000000 08:01 123                        /usr/bin/octavo
Size:                 64 kB
Rss:                  12 kB
VmFlags: rd ex mr mw me
7f00-7f10 rw-s 00000000 00:01 1029                       /memfd:libblkio (deleted)
Rss:                  40 kB
7f20-7f30 rw-p 00000000 00:00 0
Rss:                   8 kB
";
        assert_eq!(resident(smaps), (20 << 10, 40 << 10));
    }
}
