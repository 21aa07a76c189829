//! Lookups of records through a cache of bounded size, beside Linux with the same bound (HotStorage '12, Figure 7).
//!
//! Keys of records of 1 KiB are drawn as YCSB's mix C draws them. `linux` is a process of its own in a memory control group (version 1 or 2) whose limit is
//! Octavo's frames and a little for the process itself; it reads records with pread through the kernel's page cache. Where no such group can be
//! made, it does not run, and the row says so. `direct` reads the record's page past any cache.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use octavo::disk::AlignedBytes;
use octavo::{Cache, Object, Partition};

use crate::Error;
use crate::case::{Case, Mix};
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage, cache};
use crate::report::Row;
use crate::scratch::Scratch;
use crate::statistics::Histogram;
use crate::stream::{self, Pages};
use crate::turns::{Team, Worker};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["octavo", "linux", "direct"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "memory", "file", "policy"];

const RECORD_BYTES: usize = 1024;
const RECORDS_PER_PAGE: u64 = (PAGE_BYTES / RECORD_BYTES) as u64;

/// What the process takes itself: its code, stacks and the kernel's tables for it.
const PROCESS_BYTES: u64 = 16 << 20;

/// Lookups between two looks at the clock.
const TURN: usize = 32;

/// A file, and a cache before it.
pub struct Field {
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    _cache: Cache,
    scratch: Scratch,
}

impl Field {
    /// Makes both.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let scratch = Scratch::new(case, "", run)?;
        let (cache, partition) = cache(case, case.memory.0, 8 << 20)?;
        let object = partition.open(scratch.open()?, "file")?;
        Ok(Field { object, partition, _cache: cache, scratch })
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let mut row = Row::new(run.suite, case);
        let mut teams: Vec<Box<dyn Team + '_>> = Vec::new();
        for name in &case.contestants {
            if name != "linux" {
                teams.push(Box::new(Client { name, field: self, case }));
                continue;
            }
            match Linux::start(run.options.program.as_deref(), &self.scratch, case) {
                Ok(linux) => teams.push(Box::new(linux)),
                Err(error) => row.notes.push(format!("linux did not run: {error}")),
            }
        }
        let teams: Vec<&dyn Team> = teams.iter().map(|team| &**team).collect();
        let plan = run.plan(case, (20.0, Duration::from_millis(500), Clock::Wall), teams.len());
        let before = self.partition.stat();
        let slices = run.compete(case, plan, &teams)?;
        let after = self.partition.stat();
        row.compare(case, plan, &teams, &slices);
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        row.number("hit_ratio", hits as f64 / (hits + misses).max(1) as f64);
        row.count("cache_bytes", after.max_bytes);
        row.count("file_bytes", self.scratch.file_bytes);
        Ok(vec![row])
    }
}

fn check(key: u64, record: &[u8], who: &str) -> Result<(), Error> {
    let skip = (key % RECORDS_PER_PAGE) as usize * RECORD_BYTES;
    match content::is_right(key / RECORDS_PER_PAGE, skip, record) {
        true => Ok(()),
        false => Err(Error::new(format!("wrong bytes in record {key}, {who}"))),
    }
}

struct Client<'t> {
    name: &'t str,
    field: &'t Field,
    case: &'t Case,
}

impl Team for Client<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let records = self.field.scratch.pages() * RECORDS_PER_PAGE;
        let keys = stream::keys(Mix::C, records, thread as u64 + 1 + self.case.threads.0 as u64)?;
        Ok(Box::new(Lookups { client: self, keys, page: AlignedBytes::new(PAGE_BYTES) }))
    }
}

struct Lookups<'t> {
    client: &'t Client<'t>,
    keys: Pages,
    page: AlignedBytes,
}

impl Worker for Lookups<'_> {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        let field = self.client.field;
        for key in self.keys.by_ref().take(TURN) {
            let record = match self.client.name {
                "octavo" => {
                    field.object.read_at(key * RECORD_BYTES as u64, &mut self.page[..RECORD_BYTES])?;
                    &self.page[..RECORD_BYTES]
                }
                _ => {
                    let read = field.scratch.direct.read(key / RECORDS_PER_PAGE, &mut self.page);
                    read.map_err(Error::at("a direct read"))?;
                    &self.page[(key % RECORDS_PER_PAGE) as usize * RECORD_BYTES..][..RECORD_BYTES]
                }
            };
            check(key, record, self.client.name)?;
        }
        Ok(TURN as u64)
    }
}

// ---- Linux --------------------------------------------------------------------------------------------------------

/// A process with a bound on its memory, the kernel's page cache for it included.
struct Linux {
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    child: Child,
    group: PathBuf,
}

impl Linux {
    fn start(program: Option<&Path>, scratch: &Scratch, case: &Case) -> Result<Linux, Error> {
        let program = program.ok_or_else(|| Error::new("there is no program to run in a control group"))?;
        let group = make_group(case.memory.0 + PROCESS_BYTES)?;
        let mut command = Command::new(program);
        command
            .args(["bench", "--bounded-reader"])
            .arg(&scratch.path)
            .args(["--seconds", &case.threads.0.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| {
            let _ = std::fs::remove_dir(&group);
            Error::new(format!("{}: {error}", program.display()))
        })?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::new("a process without pipes"));
        };
        let joined = std::fs::write(group.join("cgroup.procs"), child.id().to_string());
        let linux = Linux { pipes: Mutex::new((stdin, BufReader::new(stdout))), child, group };
        joined.map_err(Error::at("a control group"))?;
        Ok(linux)
    }
}

/// A memory control group with a limit.
fn make_group(limit_bytes: u64) -> Result<PathBuf, Error> {
    let name = format!("octavo-bench-{}", std::process::id());
    let tried = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
    let mut why = String::from("no memory control groups are mounted");
    for (root, limit) in tried.into_iter().filter(|(root, _)| Path::new(root).join("cgroup.procs").exists()) {
        let group = Path::new(root).join(&name);
        // Version 2 wants to be told that children have limits; version 1 has no such file.
        let _ = std::fs::write(Path::new(root).join("cgroup.subtree_control"), "+memory");
        let made = std::fs::create_dir(&group);
        match made.and_then(|()| std::fs::write(group.join(limit), limit_bytes.to_string())) {
            Ok(()) => return Ok(group),
            Err(error) => why = format!("{}: {error}", group.display()),
        }
        let _ = std::fs::remove_dir(&group);
    }
    Err(Error::new(why))
}

impl Drop for Linux {
    fn drop(&mut self) {
        // What has ended needs no end, and what cannot be removed stays.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(&self.group);
    }
}

impl Team for Linux {
    fn name(&self) -> &str {
        "linux"
    }

    fn worker<'t>(&'t self, _: usize) -> Result<Box<dyn Worker + 't>, Error> {
        Ok(Box::new(crate::fio::Outside))
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn run_whole(&self, time: Duration) -> Result<f64, Error> {
        let mut pipes = self.pipes.lock().map_err(|_| Error::new("a lock is poisoned"))?;
        let (to, from) = &mut *pipes;
        writeln!(to, "{}", time.as_millis().max(1))
            .and_then(|()| to.flush())
            .map_err(Error::at("the process"))?;
        let mut line = String::new();
        from.read_line(&mut line).map_err(Error::at("the process"))?;
        line.trim().parse().map_err(|_| Error::new(format!("the bounded process says \"{}\"", line.trim())))
    }
}

/// The bounded process: reads milliseconds from standard input, a line each, looks records up for so long, and writes lookups per second.
pub fn serve(path: &Path, threads: usize) -> Result<(), Error> {
    let what = path.display().to_string();
    let file = File::open(path).map_err(Error::at(&what))?;
    let records = file.metadata().map_err(Error::at(&what))?.len() / RECORD_BYTES as u64;
    let keys = (0..threads).map(|thread| stream::keys(Mix::C, records, thread as u64 + 1));
    let mut keys = keys.collect::<Result<Vec<_>, _>>()?;
    for line in std::io::stdin().lines() {
        let line = line.map_err(Error::at("standard input"))?;
        let time =
            Duration::from_millis(line.trim().parse().map_err(|_| Error::new("a number is expected"))?);
        let file = &file;
        let rates: Result<Vec<f64>, Error> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                keys.iter_mut().map(|keys| scope.spawn(move || look_up(file, keys, time))).collect();
            let fallen = |_| Err(Error::new("a thread has panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(fallen)).collect()
        });
        println!("{:.1}", rates?.iter().sum::<f64>());
    }
    Ok(())
}

fn look_up(file: &File, keys: &mut Pages, time: Duration) -> Result<f64, Error> {
    let (begun, mut count, mut record) = (Instant::now(), 0u64, [0; RECORD_BYTES]);
    while begun.elapsed() < time {
        for key in keys.by_ref().take(TURN) {
            file.read_exact_at(&mut record, key * RECORD_BYTES as u64).map_err(Error::at("a read"))?;
            check(key, &record, "linux")?;
            count += 1;
        }
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
