//! Reads over NBD: fio's nbd engine against Octavo's server, nbdkit's memory plugin and qemu-nbd on
//! a file in memory.
//!
//! Octavo serves from this process, the others from processes of their own; fio is a process of its
//! own for all. Everything that is read is in memory: Octavo's cache holds the whole file, nbdkit's
//! disk was written through, qemu-nbd's file lies in the kernel's memory. Each listens at a unix
//! socket, one connection, the case's requests in flight.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use octavo::disk::Store;
use octavo::{Cache, Object, Partition};
use octavo_block::{Address, Export, Limits, Server};

use crate::case::Case;
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage, cache, hits};
use crate::fio::Fio;
use crate::report::Row;
use crate::scratch::MEMORY_DIRECTORY;
use crate::turns::Team;
use crate::{Error, machine};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["octavo", "nbdkit", "qemu-nbd"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["memory", "policy"];

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(10);

/// Three servers, those that are installed.
pub struct Field {
    servers: Vec<(&'static str, PathBuf)>,
    missing: Vec<&'static str>,
    partition: Partition,
    /// Before the cache, which it uses.
    _server: Server,
    _object: Object,
    _cache: Cache,
    _children: Vec<Running>,
    /// Last: the sockets and files of the others lie in it.
    _directory: Directory,
    pages: u64,
}

/// A folder that goes with what is in it.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed stays; there is nobody to tell.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already needs no end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Field {
    /// Starts them.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let directory = Path::new(MEMORY_DIRECTORY).join(format!("octavo-bench-nbd-{}", std::process::id()));
        std::fs::create_dir(&directory).map_err(Error::at(&directory.display().to_string()))?;
        let directory = Directory(directory);
        let socket = |name: &str| directory.0.join(format!("{name}.sock"));
        // 1. Ours, with everything in the cache.
        run.news(case, "filling the cache");
        let bytes = case.memory.0;
        // Few enough that no set is short of ways.
        let pages = bytes / PAGE_BYTES as u64 / 4;
        let (cache, partition) = cache(case, bytes, 32 << 20)?;
        let store = Store::memory("pages", pages * PAGE_BYTES as u64);
        hits::write_content(&store, pages)?;
        let object = partition.open(store, "pages")?;
        let mut byte = [0; 8];
        for page in 0..pages {
            object.read_at(page * PAGE_BYTES as u64, &mut byte)?;
        }
        let export = Export {
            name: "bench".into(),
            description: String::new(),
            object: object.clone(),
            read_only: true,
        };
        let listen = [Address::Unix(socket("octavo"))];
        let server = Server::start(cache.clone(), vec![export], &listen, Limits::default())
            .map_err(Error::at("octavo's server"))?;
        let mut servers = vec![("octavo", socket("octavo"))];
        // 2. The others.
        let (mut children, mut missing) = (Vec::new(), Vec::new());
        for name in ["nbdkit", "qemu-nbd"] {
            if !case.contestants.iter().any(|known| known == name) {
                continue;
            }
            let Some(program) = machine::program(name) else {
                missing.push(name);
                continue;
            };
            run.news(case, &format!("starting {name}"));
            // They end with this process, however that ends.
            let mut command = match machine::program("setpriv") {
                Some(setpriv) => {
                    let mut command = Command::new(setpriv);
                    command.args(["--pdeathsig", "KILL"]).arg(program);
                    command
                }
                None => Command::new(program),
            };
            if name == "nbdkit" {
                command
                    .args(["--foreground", "--exit-with-parent", "--threads=16", "--unix"])
                    .arg(socket(name));
                command.args(["memory", &format!("size={}", pages * PAGE_BYTES as u64)]);
            } else {
                let path = directory.0.join("file.raw");
                write_file(&path, pages).map_err(Error::at("a file for qemu-nbd"))?;
                command.args([
                    "--persistent",
                    "--shared=16",
                    "--format=raw",
                    "--cache=writeback",
                    "--read-only",
                ]);
                command.arg("--socket").arg(socket(name)).arg(path);
            }
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            children.push(Running(child.map_err(Error::at(name))?));
            wait_for(&socket(name), name)?;
            servers.push((name, socket(name)));
            if name == "nbdkit" {
                // What was never written is no memory, and reading it no copy.
                let fill = Fio { name: name.into(), options: fill_options(&socket(name)), quick: true };
                fill.run(Duration::ZERO)?;
            }
        }
        Ok(Field {
            servers,
            missing,
            partition,
            _server: server,
            _object: object,
            _cache: cache,
            _children: children,
            _directory: directory,
            pages,
        })
    }
}

fn uri(socket: &Path) -> String {
    format!("--uri=nbd+unix:///?socket={}", socket.display())
}

fn fill_options(socket: &Path) -> Vec<String> {
    let rest = "--ioengine=nbd --rw=write --bs=1M --iodepth=4 --time_based=0 --runtime=0";
    rest.split(' ').map(str::to_owned).chain([uri(socket)]).collect()
}

fn wait_for(socket: &Path, name: &str) -> Result<(), Error> {
    let begun = Instant::now();
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        if begun.elapsed() > START_MAX {
            return Err(Error::new(format!("{name} does not listen")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn write_file(path: &Path, pages: u64) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let mut page = vec![0; PAGE_BYTES];
    for number in 0..pages {
        content::fill(number, &mut page);
        file.write_all(&page)?;
    }
    Ok(())
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let mut row = Row::new(run.suite, case);
        if !Fio::is_here() {
            row.notes.push("fio is not installed, and nothing was measured".into());
            return Ok(vec![row]);
        }
        for name in &self.missing {
            row.notes.push(format!("{name} is not installed and did not run"));
        }
        let job = |(name, socket): &(&'static str, PathBuf)| {
            let rest = format!(
                "--ioengine=nbd --rw=randread --bs={} --iodepth={} --norandommap=1 --randrepeat=0",
                case.bytes.0, case.depth.0
            );
            let options = rest.split(' ').map(str::to_owned).chain([uri(socket)]);
            Fio { name: (*name).into(), options: options.collect(), quick: run.options.quick }
        };
        let wanted =
            self.servers.iter().filter(|(name, _)| case.contestants.iter().any(|known| known == name));
        let jobs: Vec<Fio> = wanted.map(job).collect();
        let teams: Vec<&dyn Team> = jobs.iter().map(|job| job as &dyn Team).collect();
        let plan = run.plan(case, (27.0, Duration::from_secs(1), Clock::Wall), teams.len());
        let before = self.partition.stat();
        let slices = run.compete(case, plan, &teams)?;
        let after = self.partition.stat();
        row.compare(case, plan, &teams, &slices);
        row.count("disk_bytes", self.pages * PAGE_BYTES as u64);
        row.count("hits_counted", after.hits - before.hits);
        row.count("misses", after.misses - before.misses);
        Ok(vec![row])
    }
}
