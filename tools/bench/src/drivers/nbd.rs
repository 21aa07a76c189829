//! Reads over NBD: fio's nbd engine against Octavo's server, nbdkit's memory plugin, and qemu-nbd
//! on a file in memory.
//!
//! Octavo serves from this process; the other servers and fio are processes of their own. All bytes
//! are in memory: Octavo's cache has the whole file, nbdkit's disk has been written, and qemu-nbd's
//! file is in memory. Each server listens on a Unix socket. fio has one connection, with the case's
//! `depth` requests in flight.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use octavo_block::{Address, Export, Limits, Server};

use crate::case::Case;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::hits::filled_store;
use crate::error::Error;
use crate::fio::{self, nbd_uri};
use crate::machine;
use crate::report::Row;
use crate::scratch::{self, Directory, Running};
use crate::stage::{Driver, Run, Subject, cache_config, offset, partition_config};
use crate::turns::{Pace, Team};

pub const DRIVER: Driver = Driver {
    name: "nbd",
    purpose: "reads over NBD",
    contestants: &["octavo", "nbdkit", "qemu-nbd"],
    scenery: &["memory", "policy"],
    check: |_| Ok(()),
    // Frames, the store behind them, and as much for each of the other servers.
    memory: |needs| needs.frames * (1 + needs.contestants),
    set: |case, run| {
        let servers = Servers::new(case, run)?;
        Ok(Box::new(move |case, run| servers.run(case, run).map(|row| vec![row])))
    },
};

/// The longest time that a server may take until it listens.
const START_MAX: Duration = Duration::from_secs(10);

/// The servers that are installed. The fields drop in this order.
struct Servers {
    sockets: Vec<(&'static str, PathBuf)>,
    missing: Vec<&'static str>,
    _server: Server,
    subject: Subject,
    _children: Vec<Running>,
    /// Contains the sockets and files of the servers.
    _directory: Directory,
    pages: u64,
}

impl Servers {
    fn new(case: &Case, run: &mut Run<'_>) -> Result<Servers, Error> {
        let directory = Directory::in_memory("nbd")?;
        let socket = |name: &str| directory.0.join(format!("{name}.sock"));
        // 1. Octavo, with all pages in the cache.
        run.news(case, "filling the cache");
        // Few enough pages that every set has room.
        let pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        let cache = cache_config(case.memory.0, 32 << 20);
        let subject = Subject::new(cache, partition_config(case), filled_store(pages)?)?;
        subject.touch(0..pages)?;
        let (object, description) = (subject.object.clone(), String::new());
        let export = Export { name: "bench".into(), description, object, read_only: true, is_listed: true };
        let listen = [Address::Unix(socket("octavo"))];
        let server = Server::start(subject.cache.clone(), vec![export], &listen, Limits::default())
            .map_err(Error::at("octavo's server"))?;
        let mut sockets = vec![("octavo", socket("octavo"))];
        // 2. The others.
        let (mut children, mut missing) = (Vec::new(), Vec::new());
        for name in ["nbdkit", "qemu-nbd"] {
            if !case.has(name) {
                continue;
            }
            let Some(program) = machine::program(name) else {
                missing.push(name);
                continue;
            };
            run.news(case, &format!("starting {name}"));
            children.push(start(name, &program, &socket(name), pages)?);
            sockets.push((name, socket(name)));
        }
        Ok(Servers {
            sockets,
            missing,
            _server: server,
            subject,
            _children: children,
            _directory: directory,
            pages,
        })
    }

    fn run(&self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        if fio::installed().is_none() {
            let mut row = Row::new(run.suite, case);
            row.notes.push("fio is not installed, so nothing was measured".into());
            return Ok(row);
        }
        let team = |(name, socket): &(&'static str, PathBuf)| {
            let options = format!(
                "--ioengine=nbd --rw=randread --bs={} --iodepth={} --norandommap=1 --randrepeat=0",
                case.bytes.0, case.depth.0
            );
            fio::Job { options, path: nbd_uri(socket), quick: run.options.quick }.team(name)
        };
        let wanted = self.sockets.iter().filter(|(name, _)| case.has(name));
        let teams: Vec<Team<'_>> = wanted.map(team).collect();
        let ((mut row, _), did) = self.subject.measure(|| run.race(case, Pace::new(27.0, 1000), &teams))?;
        row.add("disk_bytes", offset(self.pages));
        row.add("hits_counted", did.hits());
        row.add("misses", did.misses());
        for name in &self.missing {
            row.notes.push(format!("{name} is not installed and did not run"));
        }
        Ok(row)
    }
}

/// Starts nbdkit or qemu-nbd with a disk of `pages`, and waits until it listens.
fn start(name: &str, program: &Path, socket: &Path, pages: u64) -> Result<Running, Error> {
    let disk_bytes = offset(pages);
    let mut command = scratch::command(program);
    if name == "nbdkit" {
        command.args(["--foreground", "--exit-with-parent", "--threads=16", "--unix"]).arg(socket);
        command.args(["memory", &format!("size={disk_bytes}")]);
    } else {
        let path = socket.with_file_name("file.raw");
        let mut bytes = vec![0; disk_bytes as usize];
        content::fill_run(0, &mut bytes);
        std::fs::write(&path, bytes).map_err(Error::at("a file for qemu-nbd"))?;
        command.args(["--persistent", "--shared=16", "--format=raw", "--cache=writeback", "--read-only"]);
        command.arg("--socket").arg(socket).arg(path);
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = Running(child.map_err(Error::at(name))?);
    let begun = Instant::now();
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        if begun.elapsed() > START_MAX {
            let seconds = START_MAX.as_secs();
            return Err(Error::new(format!("{name} does not listen after {seconds} s")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if name == "nbdkit" {
        // Pages that were never written take no memory, and reading them copies nothing.
        let options = "--ioengine=nbd --rw=write --bs=1M --iodepth=4 --time_based=0 --runtime=0".into();
        fio::Job { options, path: nbd_uri(socket), quick: true }.run(Duration::ZERO)?;
    }
    Ok(child)
}
