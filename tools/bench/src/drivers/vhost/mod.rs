//! Disks of virtual machines: random reads through servers, with libblkio as the guest.
//!
//! Octavo serves from this process, out of its cache, which has the whole disk; qemu-storage-daemon
//! is a process of its own, on a file in memory. Every contestant has its own socket and the case's
//! `depth` reads in flight on each queue. With several threads, each has a queue of its own;
//! `one-queue` then reads on the first thread only.
//!
//! Not here: misses (`misses.rs`), the memory and the processor time of idle disks (`idle.rs`).

mod guest;
mod idle;
mod misses;
mod nbd;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use octavo_block::{Address, Export, Limits, Server, VhostSettings};

use self::guest::{Checked, Disk};
use self::nbd::NbdReader;
use crate::case::Case;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::hits::filled_store;
use crate::error::Error;
use crate::machine;
use crate::report::Row;
use crate::scratch::{self, Directory, Running};
use crate::stage::{Driver, Run, Subject, cache_config, offset, partition_config};
use crate::statistics::Histogram;
use crate::stream;
use crate::turns::{Pace, Team};

pub use self::idle::DRIVER as IDLE;
pub use self::misses::DRIVER as MISSES;

pub const DRIVER: Driver = Driver {
    name: "vhost",
    purpose: "reads of virtual machines' disks",
    contestants: &["octavo", "octavo-poll", "one-queue", "octavo-nbd", QEMU_THREADS, QEMU_URING],
    scenery: &["memory", "policy"],
    check,
    // Frames, the store behind them, and the file of qemu-storage-daemon.
    memory: |needs| needs.frames * 3,
    set: |case, run| {
        let servers = Servers::new(case, run)?;
        Ok(Box::new(move |case, run| servers.run(case, run).map(|row| vec![row])))
    },
};

const QEMU_THREADS: &str = "qemu-threads";
const QEMU_URING: &str = "qemu-io_uring";
const QEMU: &str = "qemu-storage-daemon";

/// The longest time that a server may take until it listens.
const START_MAX: Duration = Duration::from_secs(10);

/// How long `octavo-poll` polls a ring after its last request.
const POLL: Duration = Duration::from_micros(50);

/// The most queues of a disk.
const QUEUES_MAX: usize = 16;

fn check(case: &Case) -> Result<(), String> {
    if case.bytes.0 != PAGE_BYTES as u64 {
        return Err(format!("bytes = {}: the guests read {PAGE_BYTES} bytes at a time", case.bytes.0));
    }
    // A read has three descriptors, and a ring 256.
    if case.depth.0 > 64 || case.threads.0 > QUEUES_MAX {
        return Err(format!("at most 64 reads in flight and {QUEUES_MAX} threads are possible"));
    }
    match case.threads.0 > 1 && case.has("octavo-nbd") {
        true => Err("octavo-nbd has one connection: it needs threads = 1".into()),
        false => Ok(()),
    }
}

/// The servers. The fields drop in this order.
struct Servers {
    /// qemu-storage-daemon ends before its sockets.
    qemu: Option<PathBuf>,
    server: Server,
    subject: Subject,
    directory: Directory,
    pages: u64,
}

impl Servers {
    fn new(case: &Case, run: &mut Run<'_>) -> Result<Servers, Error> {
        let directory = Directory::in_memory("vhost")?;
        run.news(case, "filling the cache");
        // Few enough pages that every set has room.
        let pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        let cache = cache_config(case.memory.0, 32 << 20);
        let subject = Subject::new(cache, partition_config(case), filled_store(pages)?)?;
        subject.touch(0..pages)?;
        let server = serve(&subject, &[Address::Unix(directory.0.join("nbd.sock"))])?;
        let qemu = machine::program(QEMU);
        if qemu.is_some() && case.contestants.iter().any(|name| name.starts_with("qemu")) {
            let mut bytes = vec![0; offset(pages) as usize];
            content::fill_run(0, &mut bytes);
            let path = directory.0.join("file.raw");
            std::fs::write(&path, bytes).map_err(Error::at("a file for qemu-storage-daemon"))?;
        }
        Ok(Servers { qemu, server, subject, directory, pages })
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.0.join(format!("{name}.sock"))
    }

    /// Attaches a disk of a server at a socket of its own.
    fn attach(&self, name: &str, case: &Case, running: &mut Vec<Running>) -> Result<Disk, Error> {
        let queues = if name == "one-queue" { 1 } else { case.threads.0 };
        let socket = self.directory.0.join(format!("{name}-{queues}.sock"));
        if name.starts_with("qemu") {
            let program = self.qemu.as_deref().ok_or_else(|| Error::new("it is not installed"))?;
            let _ = std::fs::remove_file(&socket);
            running.push(start_qemu(name, program, &socket, &self.directory.0.join("file.raw"), queues)?);
        } else if !socket.exists() {
            self.server
                .attach("bench", &socket, settings(name, queues))
                .map_err(Error::at("octavo's server"))?;
        }
        Disk::attach(&socket, queues, case.depth.0)
    }

    fn run(&self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        let mut missing = Vec::new();
        // Disks are detached before their servers end.
        let (mut running, mut disks) = (Vec::new(), Vec::new());
        for name in &case.contestants {
            run.news(case, &format!("starting {name}"));
            match name.as_str() {
                _ if name.starts_with("qemu") && self.qemu.is_none() => missing.push(name),
                "octavo-nbd" => disks.push((name, None)),
                _ => disks.push((name, Some(self.attach(name, case, &mut running)?))),
            }
        }
        let teams: Vec<Team<'_>> =
            disks.iter().map(|(name, disk)| self.team(case, name, disk.as_ref())).collect();
        // The servers' threads need processors too, so the threads of the guests are not pinned.
        let pace = Pace { pinned: false, ..Pace::new(27.0, 200) };
        let pace = if case.depth.0 == 1 { pace.timed() } else { pace };
        let ((mut row, _), did) = self.subject.measure(|| run.race(case, pace, &teams))?;
        row.add("disk_bytes", offset(self.pages));
        row.add("hits_counted", did.hits());
        row.add("misses", did.misses());
        if !missing.is_empty() {
            row.notes.push(format!("{QEMU} is not installed and did not run"));
        }
        drop(teams);
        drop(disks);
        Ok(row)
    }

    fn team<'t>(&'t self, case: &'t Case, name: &'t str, disk: Option<&'t Disk>) -> Team<'t> {
        // Each queue of each contestant reads pages of its own.
        let pages = move |thread| stream::pages(&case.workload, self.pages, stream::seed(0, thread));
        Team::boxed(name, move |thread| {
            Ok(match disk {
                Some(_) if name == "one-queue" && thread > 0 => Box::new(rest),
                Some(disk) => Box::new(disk.reader(pages(thread)?, Checked::Line)?),
                None => {
                    let (socket, depth) = (self.socket("nbd"), case.depth.0);
                    Box::new(NbdReader::connect(&socket, "bench", depth, pages(thread)?, Checked::Line)?)
                }
            })
        })
    }
}

/// Returns the settings of a disk of Octavo's server.
fn settings(name: &str, queues: usize) -> VhostSettings {
    let poll = if name == "octavo-poll" { POLL } else { Duration::ZERO };
    VhostSettings { queues: queues as u16, poll, ..VhostSettings::default() }
}

/// The work of a thread that has no queue.
fn rest(_: Option<&mut Histogram>) -> Result<u64, Error> {
    std::thread::sleep(Duration::from_millis(1));
    Ok(0)
}

/// Starts Octavo's server with the export `bench`.
fn serve(subject: &Subject, listen: &[Address]) -> Result<Server, Error> {
    let (object, description) = (subject.object.clone(), String::new());
    let export = Export { name: "bench".into(), description, object, read_only: true, is_listed: true };
    Server::start(subject.cache.clone(), vec![export], listen, Limits::default())
        .map_err(Error::at("octavo's server"))
}

/// Starts qemu-storage-daemon with a file, and waits until it listens.
///
/// The file is in memory, so it goes through the kernel's page cache: O_DIRECT would gain nothing.
/// The export has an I/O thread, which polls for up to 32 microseconds before it sleeps, the
/// default.
fn start_qemu(
    name: &str,
    program: &Path,
    socket: &Path,
    file: &Path,
    queues: usize,
) -> Result<Running, Error> {
    let aio = if name == QEMU_URING { "io_uring" } else { "threads" };
    let (socket_name, file) = (socket.display(), file.display());
    let mut command = scratch::command(program);
    command.args(["--object", "iothread,id=io", "--blockdev"]);
    command
        .arg(format!("driver=file,node-name=disk,filename={file},aio={aio},read-only=on,cache.direct=off"));
    command.arg("--export").arg(format!(
        "type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={socket_name},\
         num-queues={queues},writable=off,iothread=io"
    ));
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = Running(child.map_err(Error::at(QEMU))?);
    let begun = Instant::now();
    while !is_listening(socket) {
        let ended = child.0.try_wait().map_err(Error::at(QEMU))?;
        if let Some(status) = ended {
            return Err(Error::new(format!("{QEMU} with aio={aio}: {status}")));
        }
        if begun.elapsed() > START_MAX {
            let seconds = START_MAX.as_secs();
            return Err(Error::new(format!("{QEMU} does not listen after {seconds} s")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

/// Whether a process listens at a socket. QEMU's sockets have a path a moment earlier, and refuse
/// clients until then.
fn is_listening(socket: &Path) -> bool {
    // The kernel's `__SO_ACCEPTCON`.
    const LISTENS: u32 = 1 << 16;
    let Ok(sockets) = std::fs::read("/proc/net/unix") else { return socket.exists() };
    let sockets = String::from_utf8_lossy(&sockets);
    let path = socket.to_string_lossy();
    sockets.lines().filter(|line| line.ends_with(&*path)).any(|line| {
        let flags = line.split_whitespace().nth(3);
        let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
        flags.is_some_and(|flags| flags & LISTENS != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    #[test]
    fn a_socket_that_has_only_a_path_does_not_listen() {
        let directory = Directory::in_memory("sockets").unwrap();
        let silent = directory.0.join("silent");
        let listens = directory.0.join("listens");
        let _silent = UnixDatagram::bind(&silent).unwrap();
        let _listener = UnixListener::bind(&listens).unwrap();
        assert!(!is_listening(&silent) && is_listening(&listens));
        assert!(!is_listening(&directory.0.join("none")));
    }
}
