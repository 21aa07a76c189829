//! Lookups of records through a cache, with the same memory limit for all contestants (HotStorage
//! '12, Figure 7).
//!
//! Each contestant is a process in a memory control group (version 1 or 2) whose limit is the
//! case's `memory`. All draw the same keys, those of YCSB's mix C. `octavo` reads through its
//! cache, whose `memory_max` is the limit less [`PROCESS_BYTES`]. `linux` reads with pread through
//! the kernel's page cache, which the group's limit bounds. `linux-random` does the same after
//! POSIX_FADV_RANDOM, on a file of its own, because it would hit pages that `linux` has brought
//! into the page cache. `direct` reads the record's pages with O_DIRECT, without any cache.
//!
//! Before anything is timed, every cache is warmed up until it has turned over
//! ([`Reader::warm_up`]). The pages that a contestant reads from the store are those that the
//! kernel counts for its process: `read_bytes` in /proc/self/io. This counts all reads of block
//! devices, both those into the page cache and those with O_DIRECT.
//!
//! Without control groups, or on a store that itself consists of page cache (a file in tmpfs), the
//! Linux contestants do not run, and the row says so.

use std::collections::BTreeMap;
use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use octavo::disk::AlignedBytes;
use octavo::{CacheConfig, PartitionConfig, PolicyName};
use octavo_random::mix;

use crate::case::{Case, Mix, Place};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::group::Group;
use crate::reference::{DirectFile, expect_random};
use crate::report::Row;
use crate::scratch::{Running, Scratch, open_unlocked};
use crate::stage::{Driver, Run, Subject};
use crate::stream::{self, Pages};
use crate::turns::{Pace, Team};

pub const DRIVER: Driver = Driver {
    name: "bounded",
    purpose: "lookups with a memory limit, beside Linux with the same limit",
    contestants: &["octavo", "linux", "linux-random", "direct"],
    scenery: &["store", "memory", "file", "policy"],
    check,
    // The Linux contestants have two files.
    memory: |needs| 2 * needs.file + needs.frames * needs.contestants,
    set: |case, run| {
        let scratch = Scratch::new(case, "", run)?;
        let mut processes = Processes { scratch, other_scratch: None, started: BTreeMap::new() };
        Ok(Box::new(move |case, run| processes.run(case, run).map(|row| vec![row])))
    },
};

/// The memory of Octavo's process besides `memory_max`: its heap, stacks, and the kernel's tables.
const PROCESS_BYTES: u64 = 4 << 20;

/// The part of `memory_max` for the rings of threads with blocking calls.
const BUFFERS_BYTES: u64 = 2 << 20;

/// The smallest limit: a smaller one leaves too little memory for a cache.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Lookups between two looks at the clock.
const TURN: usize = 32;

fn check(case: &Case) -> Result<(), String> {
    if case.memory.0 < MEMORY_BYTES_MIN {
        return Err(format!("memory of {} bytes: at least {MEMORY_BYTES_MIN} are possible", case.memory.0));
    }
    match case.bytes.0 {
        bytes @ 128..=4096 if bytes.is_power_of_two() => Ok(()),
        bytes => Err(format!("bytes = {bytes}: a power of two from 128 to 4096 is possible")),
    }
}

/// A file, and the processes that look up records in it.
struct Processes {
    scratch: Scratch,
    /// The file of `linux-random`, which must not find pages that `linux` has read.
    other_scratch: Option<Scratch>,
    /// The process of each contestant, or the reason why there is none.
    started: BTreeMap<String, Result<Process, String>>,
}

impl Processes {
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

    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        for name in &case.contestants {
            if !self.started.contains_key(name) {
                let started = self.start(name, case, run);
                self.started.insert(name.clone(), started.map_err(|error| error.to_string()));
            }
        }
        let (mut lookups, mut notes) = (Vec::new(), Vec::new());
        for name in &case.contestants {
            match &self.started[name] {
                Err(error) => notes.push(format!("{name} did not run: {error}")),
                Ok(process) => {
                    run.step(case, &format!("warming up {name}"))?;
                    if let [turnovers, 1.0] = process.ask(&format!("warm {}", case.bytes.0))?[..] {
                        notes.push(format!(
                            "the warm-up of {name} ended after {} s, when it had read {turnovers:.1} times \
                            its memory",
                            WARM_TIME.as_secs()
                        ));
                    }
                    lookups.push(Lookups { name, process, case, sums: Mutex::default() });
                }
            }
        }
        let teams: Vec<Team<'_>> = lookups.iter().map(Lookups::team).collect();
        let (mut row, _) = run.race(case, Pace::new(9.0, 250), &teams)?;
        drop(teams);
        for (standing, lookups) in row.contestants.iter_mut().zip(&lookups) {
            let sums = lock(&lookups.sums)?;
            standing.store_pages_per_op = Some(sums.pages / sums.lookups.max(1.0));
        }
        row.add("file_bytes", self.scratch.file_bytes);
        row.add("octavo_memory_max_bytes", case.memory.0 - PROCESS_BYTES);
        row.notes = notes;
        Ok(row)
    }
}

/// The sums of a contestant's slices.
#[derive(Default)]
struct Sums {
    slices: u64,
    lookups: f64,
    /// Pages that its process read from the store.
    pages: f64,
}

struct Lookups<'t> {
    name: &'t str,
    process: &'t Process,
    case: &'t Case,
    sums: Mutex<Sums>,
}

impl Lookups<'_> {
    fn team(&self) -> Team<'_> {
        Team::program(self.name, |time| self.run(time))
    }

    /// Runs one slice. Returns lookups per second.
    fn run(&self, time: Duration) -> Result<f64, Error> {
        let mut sums = lock(&self.sums)?;
        sums.slices += 1;
        let (threads, bytes) = (self.case.threads.0, self.case.bytes.0);
        // In a round, all contestants draw the same keys. Each round and each case has different
        // keys, because caches stay warm from case to case.
        let seed = sums.slices + ((threads as u64) << 32) + (bytes << 48);
        let line = format!("run {bytes} {threads} {} {seed}", time.as_millis().max(1));
        let [rate, more, read] = self.process.ask(&line)?[..] else {
            return Err(Error::new("a bounded process must answer a run with three figures"));
        };
        sums.lookups += more;
        sums.pages += read;
        Ok(rate)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Error> {
    mutex.lock().map_err(|_| Error::new("a lock is poisoned"))
}

// ---- A contestant's process, from outside

/// A process with a memory limit that includes its share of the kernel's page cache. The group can
/// be removed once the process has ended, so it drops last.
struct Process {
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    _child: Running,
    _group: Option<Group>,
}

impl Process {
    fn start(name: &str, program: &Path, file: &Path, case: &Case) -> Result<Process, Error> {
        // Octavo bounds itself, and direct reads take no memory: neither needs the group.
        let group = match Group::new(name, case.memory.0) {
            Err(error) if name.starts_with("linux") => return Err(error),
            group => group.ok(),
        };
        let mut command = Command::new(program);
        command.args(["bench", "--bounded-reader"]).arg(file);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = Running(child.map_err(Error::at(&program.display().to_string()))?);
        let (Some(stdin), Some(stdout)) = (child.0.stdin.take(), child.0.stdout.take()) else {
            return Err(Error::new("a bounded process has no pipes"));
        };
        group.as_ref().map_or(Ok(()), |group| group.join(child.0.id()))?;
        let pipes = Mutex::new((stdin, BufReader::new(stdout)));
        let process = Process { pipes, _child: child, _group: group };
        process.ask(&format!("{name} {} {}", case.memory.0, case.policy.0.name()))?;
        Ok(process)
    }

    /// Sends a line, and returns the figures of the answer.
    fn ask(&self, line: &str) -> Result<Vec<f64>, Error> {
        let (to, from) = &mut *lock(&self.pipes)?;
        writeln!(to, "{line}").and_then(|()| to.flush()).map_err(Error::at("a bounded process"))?;
        let mut answer = String::new();
        from.read_line(&mut answer).map_err(Error::at("a bounded process"))?;
        if answer.is_empty() {
            return Err(Error::new("a bounded process has ended; if it had an error, that is printed above"));
        }
        let figures = answer.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        figures.map_err(|_| Error::new(format!("a bounded process answers \"{}\"", answer.trim())))
    }
}

// ---- A contestant's process, from inside

/// A cache has turned over when the bytes that it has read are this many times its memory: once to
/// fill the memory, and once to replace the first pages.
const TURNOVERS: f64 = 2.0;

/// The number of threads of a warm-up: enough for a device to have many reads in flight.
const WARM_THREADS: usize = 8;

/// Lookups of each thread of a warm-up between two checks for its end.
const WARM_LOOKUPS: u64 = 4096;

/// A warm-up ends after this many lookups per record: by then a file that nearly fits has all of
/// its popular records in memory.
const WARM_LOOKUPS_PER_RECORD: u64 = 16;

/// A warm-up also ends after this time.
const WARM_TIME: Duration = Duration::from_secs(30);

/// The way in which a contestant reads records.
enum Way {
    Octavo(Subject),
    Linux(File),
    Direct(DirectFile),
}

/// A file with records, and the way to read them.
struct Reader {
    way: Way,
    name: String,
    file_bytes: u64,
    memory_bytes: u64,
    /// The size of records, and what the process had read from the store when it first read such
    /// ones.
    warmed: Option<(usize, u64)>,
}

/// Serves one contestant, as a process of its own. Standard input has its name and settings in the
/// first line, then orders `warm` and `run`; the answers are lines of figures.
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
            _ => return Err(Error::new(format!("\"{line}\" is no order for a bounded process"))),
        }
    }
    Ok(())
}

/// Pages that this process has read from block devices.
fn store_pages() -> u64 {
    let io = read_to_string("/proc/self/io").unwrap_or_default();
    let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse::<u64>().ok());
    bytes.unwrap_or(0) / PAGE_BYTES as u64
}

impl Reader {
    fn open(path: &Path, first: &str) -> Result<Reader, Error> {
        let words: Vec<&str> = first.split(' ').collect();
        let [name, memory, policy] = words[..] else {
            return Err(Error::new(format!("\"{first}\" names no contestant")));
        };
        let memory_bytes: u64 =
            memory.parse().map_err(|_| Error::new(format!("\"{memory}\" is no memory limit")))?;
        let what = path.display().to_string();
        let file = File::open(path).map_err(Error::at(&what))?;
        let file_bytes = open_unlocked(path)?.len_bytes();
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

    /// Looks up records until the cache has turned over, each record has been looked up many times,
    /// or time has run out. Returns the bytes read as a multiple of the cache's memory, and whether
    /// time ran out.
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

    /// Looks up records on some threads, up to `most` on each. Returns lookups per second, and
    /// their number.
    fn look_up(
        &self,
        bytes: usize,
        threads: usize,
        seed: u64,
        most: u64,
        until: Instant,
    ) -> Result<(f64, u64), Error> {
        let records = self.file_bytes / bytes as u64;
        let keys = (0..threads as u64).map(|thread| stream::keys(Mix::C, records, mix(seed) ^ thread));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let done: Result<Vec<(f64, u64)>, Error> = std::thread::scope(|scope| {
            let threads: Vec<_> = keys
                .into_iter()
                .map(|keys| scope.spawn(move || self.look_up_here(bytes, keys, most, until)))
                .collect();
            let panicked = |_| Err(Error::new("a thread that looks up records has panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
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
                    Way::Octavo(subject) => {
                        subject.object.read_at(offset, &mut page[..bytes])?;
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
                content::check(number, skip, record, &self.name)?;
                count += 1;
            }
        }
        Ok((count as f64 / begun.elapsed().as_secs_f64(), count))
    }
}

/// Opens a file behind a cache that takes `memory_max_bytes` for everything.
fn open_cached(path: &Path, memory_max_bytes: u64, policy: &str) -> Result<Way, Error> {
    let known = PolicyName::ALL.into_iter().find(|known| known.name() == policy);
    let policy = known.ok_or_else(|| Error::new(format!("\"{policy}\" is no policy")))?;
    let cache = CacheConfig {
        memory_max_bytes,
        buffers_max_bytes: Some(BUFFERS_BYTES),
        page_bytes: PAGE_BYTES as u32,
        ..CacheConfig::default()
    };
    let partition = PartitionConfig { policy, ..PartitionConfig::new("bench") };
    Ok(Way::Octavo(Subject::new(cache, partition, open_unlocked(path)?)?))
}
