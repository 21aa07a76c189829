//! Lookups of records through a cache, with the same bound on memory for everybody (HotStorage '12,
//! Figure 7).
//!
//! Each contestant is a process of its own in a memory control group (version 1 or 2) whose limit
//! is the case's `memory`, and draws the same keys as YCSB's mix C does. `octavo` reads through its
//! cache, whose `memory_max` leaves [`PROCESS_BYTES`] of the limit to the process. `linux` reads
//! with pread through the kernel's page cache, which the group's limit bounds; `linux-random` does
//! the same after POSIX_FADV_RANDOM, on a file of its own, for it would hit what `linux` has in the
//! page cache. `direct` reads the record's pages past any cache.
//!
//! Before anything is timed, every cache is warmed up until it has turned over
//! ([`Reader::warm_up`]). What a contestant reads of the store is what the kernel counts for its
//! process (`read_bytes` in /proc/self/io: what was handed to block devices, whether for the page
//! cache or for O_DIRECT).
//!
//! Without control groups, or on a store that is page cache itself (a file in tmpfs), Linux does
//! not run, and the row says so.

use std::collections::BTreeMap;
use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use octavo::disk::{AlignedBytes, OpenOptions, Store};
use octavo::{Cache, CacheConfig, Object, PartitionConfig, PolicyName};

use crate::Error;
use crate::case::{Case, Mix, Place};
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage};
use crate::fio::Outside;
use crate::reference::{DirectFile, expect_random};
use crate::report::Row;
use crate::scratch::Scratch;
use crate::stream::{self, Pages};
use crate::turns::{Team, Worker};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["octavo", "linux", "linux-random", "direct"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "memory", "file", "policy"];

/// What Octavo's process takes beside `memory_max`: its heap, stacks, and the kernel's tables for
/// it.
const PROCESS_BYTES: u64 = 4 << 20;

/// Of `memory_max`, for the rings of threads that read with blocking calls.
const BUFFERS_BYTES: u64 = 2 << 20;

/// Less leaves no cache to speak of.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Lookups between two looks at the clock.
const TURN: usize = 32;

/// Whether a case can be run; the error is a sentence.
pub fn check(case: &Case) -> Result<(), String> {
    if case.memory.0 < MEMORY_BYTES_MIN {
        return Err(format!("memory of {} bytes: {MEMORY_BYTES_MIN} at least are possible", case.memory.0));
    }
    match case.bytes.0 {
        bytes @ 128..=4096 if bytes.is_power_of_two() => Ok(()),
        bytes => Err(format!("bytes = {bytes}: records of a power of two from 128 to 4096 are possible")),
    }
}

/// A file, and the processes that look records up in it.
pub struct Field {
    scratch: Scratch,
    /// For `linux-random`, which must not find the pages that `linux` has read.
    other_scratch: Option<Scratch>,
    /// By their contestants' names, or why there is none.
    processes: BTreeMap<String, Result<Process, String>>,
}

impl Field {
    /// Makes the file.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let scratch = Scratch::new(case, "", run)?;
        Ok(Field { scratch, other_scratch: None, processes: BTreeMap::new() })
    }

    fn start(&mut self, name: &str, case: &Case, run: &mut Run<'_>) -> Result<Process, Error> {
        if name.starts_with("linux") && case.store != Place::Disk && !self.scratch.is_device {
            return Err(Error::new("a file in tmpfs is page cache itself; a RAM disk needs a loop device"));
        }
        let program = run.options.program.clone();
        let program = program.ok_or_else(|| Error::new("there is no program to run in a control group"))?;
        let scratch = match name {
            "linux-random" => self.other_scratch.insert(Scratch::new(case, ".random", run)?),
            _ => &self.scratch,
        };
        Process::start(name, &program, &scratch.path, case)
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let mut row = Row::new(run.suite, case);
        for name in &case.contestants {
            if !self.processes.contains_key(name) {
                let started = self.start(name, case, run);
                self.processes.insert(name.clone(), started.map_err(|error| error.to_string()));
            }
        }
        let mut teams = Vec::new();
        for name in &case.contestants {
            match &self.processes[name] {
                Err(error) => row.notes.push(format!("{name} did not run: {error}")),
                Ok(process) => {
                    run.news(case, &format!("warming up {name}"));
                    run.options.unless_stopped()?;
                    let bytes = case.bytes.0;
                    if let [turnovers, 1.0] = process.ask(&format!("warm {bytes}"))?[..] {
                        let seconds = WARM_TIME.as_secs();
                        row.notes.push(format!(
                            "the warm-up of {name} ended after {seconds} s, when it had read {turnovers:.1} times its memory"
                        ));
                    }
                    teams.push(Lookups { name, process, case, sums: Mutex::default() });
                }
            }
        }
        let team: Vec<&dyn Team> = teams.iter().map(|team| team as &dyn Team).collect();
        let plan = run.plan(case, (9.0, Duration::from_millis(250), Clock::Wall), team.len());
        let slices = run.compete(case, plan, &team)?;
        row.compare(case, plan, &team, &slices);
        for (standing, team) in row.contestants.iter_mut().zip(&teams) {
            let sums = team.sums()?;
            standing.store_pages_per_op = Some(sums.pages / sums.lookups.max(1.0));
        }
        row.count("file_bytes", self.scratch.file_bytes);
        row.count("octavo_memory_max_bytes", case.memory.0 - PROCESS_BYTES);
        Ok(vec![row])
    }
}

/// What a contestant did in all slices.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    slices: u64,
    lookups: f64,
    /// Pages that its process read of the store.
    pages: f64,
}

struct Lookups<'t> {
    name: &'t str,
    process: &'t Process,
    case: &'t Case,
    sums: Mutex<Sums>,
}

impl Lookups<'_> {
    fn sums(&self) -> Result<Sums, Error> {
        self.sums.lock().map(|sums| *sums).map_err(|_| Error::new("a lock is poisoned"))
    }
}

impl Team for Lookups<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, _: usize) -> Result<Box<dyn Worker + 't>, Error> {
        Ok(Box::new(Outside))
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn run_whole(&self, time: Duration) -> Result<f64, Error> {
        let Sums { slices, lookups, pages } = self.sums()?;
        let (threads, bytes, slices) = (self.case.threads.0, self.case.bytes.0, slices + 1);
        // The same keys for everybody in a round, and others in the next one and in the next case:
        // caches stay warm from case to case.
        let seed = slices + ((threads as u64) << 32) + (bytes << 48);
        let line = format!("run {bytes} {threads} {} {seed}", time.as_millis().max(1));
        let [rate, more, read] = self.process.ask(&line)?[..] else {
            return Err(Error::new("three figures are expected of a run"));
        };
        let sums = Sums { slices, lookups: lookups + more, pages: pages + read };
        self.sums.lock().map(|mut known| *known = sums).map_err(|_| Error::new("a lock is poisoned"))?;
        Ok(rate)
    }
}

// ---- A contestant's process
// ---------------------------------------------------------------------------------------

/// A process with a bound on its memory, the kernel's page cache for it included.
struct Process {
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    child: Child,
    group: Option<PathBuf>,
}

impl Process {
    fn start(name: &str, program: &Path, file: &Path, case: &Case) -> Result<Process, Error> {
        // Octavo is bounded anyhow, and what is read directly takes no memory.
        let group = match make_group(name, case.memory.0) {
            Err(error) if name.starts_with("linux") => return Err(error),
            group => group.ok(),
        };
        let mut command = Command::new(program);
        command.args(["bench", "--bounded-reader"]).arg(file);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| {
            remove_group(group.as_deref());
            Error::new(format!("{}: {error}", program.display()))
        })?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::new("a process without pipes"));
        };
        let joined = match &group {
            Some(group) => std::fs::write(group.join("cgroup.procs"), child.id().to_string()),
            None => Ok(()),
        };
        let process = Process { pipes: Mutex::new((stdin, BufReader::new(stdout))), child, group };
        joined.map_err(Error::at("a control group"))?;
        process.ask(&format!("{name} {} {}", case.memory.0, case.policy.0.name()))?;
        Ok(process)
    }

    /// Sends a line, and reads the figures of the line that answers it.
    fn ask(&self, line: &str) -> Result<Vec<f64>, Error> {
        let mut pipes = self.pipes.lock().map_err(|_| Error::new("a lock is poisoned"))?;
        let (to, from) = &mut *pipes;
        writeln!(to, "{line}").and_then(|()| to.flush()).map_err(Error::at("a bounded process"))?;
        let mut answer = String::new();
        from.read_line(&mut answer).map_err(Error::at("a bounded process"))?;
        if answer.is_empty() {
            return Err(Error::new("a bounded process has ended; its error is above, if it had one"));
        }
        let figures = answer.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        figures.map_err(|_| Error::new(format!("a bounded process says \"{}\"", answer.trim())))
    }
}

/// A memory control group with a limit.
fn make_group(name: &str, limit_bytes: u64) -> Result<PathBuf, Error> {
    let name = format!("octavo-bench-{}-{name}", std::process::id());
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
        remove_group(Some(&group));
    }
    Err(Error::new(why))
}

fn remove_group(group: Option<&Path>) {
    // What cannot be removed stays; there is nobody to tell.
    let _ = group.map(std::fs::remove_dir);
}

impl Drop for Process {
    fn drop(&mut self) {
        // What has ended needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_group(self.group.as_deref());
    }
}

// ---- Inside of it
// -------------------------------------------------------------------------------------------------

/// A cache has turned over when it has read this many times its memory: once to fill it, once more
/// to replace what came first.
const TURNOVERS: f64 = 2.0;

/// Threads of a warm-up, so that a device answers many reads at once.
const WARM_THREADS: usize = 8;

/// Lookups of a warm-up between two looks at what was read.
const WARM_LOOKUPS: u64 = 4096;

/// A warm-up ends after so many lookups for each record, when a file that nearly fits has all of
/// its popular records in memory,
const WARM_LOOKUPS_PER_RECORD: u64 = 16;

/// and after this time.
const WARM_TIME: Duration = Duration::from_secs(30);

enum Way {
    Octavo(Cached),
    Linux(File),
    Direct(DirectFile),
}

struct Cached {
    /// Before the cache, which it is a part of.
    object: Object,
    _cache: Cache,
}

/// A file, and how its records are read.
struct Reader {
    way: Way,
    name: String,
    file_bytes: u64,
    memory_bytes: u64,
    /// What the process had read of the store when records of this size were asked for first.
    warmed: Option<(usize, u64)>,
}

/// Serves one contestant: standard input says who it is, then `warm` and `run` a line each; answers
/// are lines of figures.
pub fn serve(path: &Path) -> Result<(), Error> {
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().transpose().map_err(Error::at("standard input"));
    let Some(first) = next()? else { return Ok(()) };
    let mut reader = Reader::open(path, &first)?;
    println!();
    while let Some(line) = next()? {
        let mut words = line.split_whitespace();
        let verb = words.next();
        let figures: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        match (verb, &figures[..]) {
            (Some("warm"), [bytes]) => {
                let (turnovers, ran_out) = reader.warm_up(*bytes as usize)?;
                println!("{turnovers:.3} {}", u8::from(ran_out));
            }
            (Some("run"), [bytes, threads, ms, seed]) => {
                let before = store_pages();
                let until = Instant::now() + Duration::from_millis(*ms);
                let (rate, lookups) =
                    reader.look_up(*bytes as usize, *threads as usize, *seed, u64::MAX, until)?;
                println!("{rate:.1} {lookups} {}", store_pages() - before);
            }
            _ => return Err(Error::new(format!("\"{line}\" is no order of a bounded process"))),
        }
    }
    Ok(())
}

/// Pages that this process has read of block devices.
fn store_pages() -> u64 {
    let io = read_to_string("/proc/self/io").unwrap_or_default();
    let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse::<u64>().ok());
    bytes.unwrap_or(0) / PAGE_BYTES as u64
}

impl Reader {
    fn open(path: &Path, who: &str) -> Result<Reader, Error> {
        let words: Vec<&str> = who.split(' ').collect();
        let [name, memory, policy] = words[..] else {
            return Err(Error::new(format!("\"{who}\" is no contestant")));
        };
        let memory_bytes: u64 = memory.parse().map_err(|_| Error::new("a limit is expected"))?;
        let what = path.display().to_string();
        let file = File::open(path).map_err(Error::at(&what))?;
        let file_bytes = Store::open(path, &OpenOptions { lock: false, ..OpenOptions::default() })
            .map_err(Error::at(&what))?
            .len_bytes();
        let way = match name {
            "octavo" => open_cached(path, memory_bytes.saturating_sub(PROCESS_BYTES), policy)?,
            "direct" => Way::Direct(DirectFile::open(path).map_err(Error::at(&what))?),
            _ => {
                if name == "linux-random" {
                    expect_random(&file).map_err(Error::at(&what))?;
                }
                Way::Linux(file)
            }
        };
        Ok(Reader { way, name: name.into(), file_bytes, memory_bytes, warmed: None })
    }

    /// Looks records up until the cache has turned over, or every record had its turn many times.
    /// Returns how many times its memory was read, and whether time ran out before.
    fn warm_up(&mut self, bytes: usize) -> Result<(f64, bool), Error> {
        let begun = match self.warmed {
            Some((known, begun)) if known == bytes => begun,
            _ => store_pages(),
        };
        self.warmed = Some((bytes, begun));
        let memory_pages = (self.memory_bytes / PAGE_BYTES as u64) as f64;
        let turnovers = || (store_pages() - begun) as f64 / memory_pages;
        let until = Instant::now() + WARM_TIME;
        let mut left = self.file_bytes / bytes as u64 * WARM_LOOKUPS_PER_RECORD;
        let mut seed = u64::MAX / 2;
        while !matches!(self.way, Way::Direct(_)) && turnovers() < TURNOVERS && left > 0 {
            if Instant::now() >= until {
                return Ok((turnovers(), true));
            }
            let (_, lookups) = self.look_up(bytes, WARM_THREADS, seed, WARM_LOOKUPS, until)?;
            (seed, left) = (seed + 1, left.saturating_sub(lookups));
        }
        Ok((turnovers(), false))
    }

    /// Looks records up on some threads, up to `most` on each. Returns lookups per second and how
    /// many they were.
    fn look_up(
        &self,
        bytes: usize,
        threads: usize,
        seed: u64,
        most: u64,
        until: Instant,
    ) -> Result<(f64, u64), Error> {
        let records = self.file_bytes / bytes as u64;
        let keys =
            (0..threads as u64).map(|thread| stream::keys(Mix::C, records, content::mix(seed) ^ thread));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let done: Result<Vec<(f64, u64)>, Error> = std::thread::scope(|scope| {
            let threads: Vec<_> = keys
                .into_iter()
                .map(|keys| scope.spawn(move || self.look_up_here(bytes, keys, most, until)))
                .collect();
            let fallen = |_| Err(Error::new("a thread has panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(fallen)).collect()
        });
        Ok(done?.into_iter().fold((0.0, 0), |(rate, count), (more, others)| (rate + more, count + others)))
    }

    fn look_up_here(
        &self,
        bytes: usize,
        mut keys: Pages,
        most: u64,
        until: Instant,
    ) -> Result<(f64, u64), Error> {
        let (begun, mut count, mut page) = (Instant::now(), 0, AlignedBytes::new(PAGE_BYTES));
        while count < most && Instant::now() < until {
            for key in keys.by_ref().take(TURN) {
                let offset = key * bytes as u64;
                let (number, skip) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
                let record = match &self.way {
                    Way::Octavo(cached) => {
                        cached.object.read_at(offset, &mut page[..bytes])?;
                        &page[..bytes]
                    }
                    Way::Linux(file) => {
                        file.read_exact_at(&mut page[..bytes], offset).map_err(Error::at("a read"))?;
                        &page[..bytes]
                    }
                    Way::Direct(file) => {
                        file.read(number, &mut page).map_err(Error::at("a direct read"))?;
                        &page[skip..skip + bytes]
                    }
                };
                if !content::is_right(number, skip, record) {
                    return Err(Error::new(format!("wrong bytes in record {key}, {}", self.name)));
                }
                count += 1;
            }
        }
        Ok((count as f64 / begun.elapsed().as_secs_f64(), count))
    }
}

/// A file before a cache with this much memory for everything.
fn open_cached(path: &Path, memory_max_bytes: u64, policy: &str) -> Result<Way, Error> {
    let policy = PolicyName::ALL.into_iter().find(|known| known.name() == policy);
    let policy = policy.ok_or_else(|| Error::new("a policy is expected"))?;
    let cache = Cache::new(CacheConfig {
        memory_max_bytes,
        buffers_max_bytes: Some(BUFFERS_BYTES),
        page_bytes: PAGE_BYTES as u32,
        ..CacheConfig::default()
    })?;
    let partition = cache.partition(PartitionConfig { policy, ..PartitionConfig::new("bench") })?;
    let options = OpenOptions { lock: false, ..OpenOptions::default() };
    let store = Store::open(path, &options).map_err(Error::at(&path.display().to_string()))?;
    Ok(Way::Octavo(Cached { object: partition.open(store, "file")?, _cache: cache }))
}
