//! A load generator with the flows of four of Filebench's workloads: which operations a thread
//! repeats, on files of which sizes. <https://github.com/filebench/filebench>
//!
//! Differences from Filebench: directories have one level; a file is used by one thread at a time;
//! in `oltp`, readers do not use processor time between reads.
//!
//! | workload | a thread repeats |
//! |---|---|
//! | `webserver` | reads ten files, appends to a log |
//! | `fileserver` | creates and writes a file; appends to one; reads one; deletes one; `stat` |
//! | `varmail` | deletes a file; creates, appends, syncs; reads, appends, syncs; reads |
//! | `oltp` | reads 2 KiB. Other threads write 2 KiB for 10 reads, and a log for 3200 |

use std::fs::{File, OpenOptions, create_dir_all, metadata, read_dir, remove_file};
use std::io::{Read, Result, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use octavo_random::Random;

use crate::error::Error;

/// The names of the workloads.
pub const NAMES: [&str; 4] = ["webserver", "fileserver", "varmail", "oltp"];

/// Files of a directory, except in `varmail`, where one directory has them all.
const DIRECTORY_FILES: u64 = 20;

/// The mean of appended bytes, as in all of Filebench's workloads here.
const APPEND_BYTES: u64 = 16 << 10;

/// The size of reads and writes of whole files, at most.
const IO_BYTES: usize = 1 << 20;

/// Files of the database, bytes of its reads and writes, and of writes to its log.
const OLTP_FILES: u64 = 10;
const OLTP_BYTES: usize = 2 << 10;
const OLTP_LOG_BYTES: usize = 256 << 10;

/// Threads of the database that write pages.
const OLTP_WRITERS: usize = 10;

/// Reads for each page written and for each write to the log, and the most writes that are pending
/// before readers wait.
const OLTP_READS_PER_WRITE: u64 = 10;
const OLTP_READS_PER_LOG: u64 = 3200;
const OLTP_PENDING_MAX: u64 = 2000;

/// What a workload does, and on what files.
#[derive(Clone, Debug)]
pub struct Flow {
    pub name: String,
    pub threads: usize,
    pub directory: PathBuf,
    /// The number of names that files may have.
    pub names: u64,
    pub seed: u64,
}

impl Flow {
    /// Returns the number of names whose files have `bytes` together.
    pub fn names_of(name: &str, bytes: u64) -> u64 {
        match name {
            "oltp" => OLTP_FILES,
            // A part of the names has no file.
            _ => (bytes as f64 / mean_bytes(name) as f64 / filled(name)) as u64 + 1,
        }
    }

    /// Returns the words that [`Flow::parse`] takes.
    pub fn line(&self, time: Duration) -> String {
        let Flow { name, threads, directory, names, seed } = self;
        format!("{name} {threads} {names} {seed} {} {}", time.as_millis(), directory.display())
    }

    /// Parses a line. Returns the flow, and its time.
    pub fn parse(line: &str) -> Option<(Flow, Duration)> {
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let [name, threads, names, seed, ms, directory] = words[..] else { return None };
        let flow = Flow {
            name: NAMES.contains(&name).then(|| name.into())?,
            threads: threads.parse().ok()?,
            directory: directory.into(),
            names: names.parse().ok()?,
            seed: seed.parse().ok()?,
        };
        Some((flow, Duration::from_millis(ms.parse().ok()?)))
    }

    fn path(&self, number: u64) -> PathBuf {
        let directory = match &*self.name {
            "varmail" | "oltp" => 0,
            _ => number / DIRECTORY_FILES,
        };
        self.directory.join(format!("{directory:05}")).join(format!("{number:07}"))
    }

    /// Makes the files of the workload, which have `bytes` together.
    pub fn fill(&self, bytes: u64) -> Result<()> {
        let mut random = Random::new(self.seed);
        for number in 0..self.names {
            let path = self.path(number);
            path.parent().map_or(Ok(()), create_dir_all)?;
            let len = match &*self.name {
                "oltp" => bytes / OLTP_FILES,
                name => gamma(&mut random, mean_bytes(name)),
            };
            if random.unit() < filled(&self.name) {
                write_whole(&File::create(path)?, len, &random.bytes(IO_BYTES.min(len as usize + 1)))?;
            }
        }
        File::create(self.directory.join("log")).map(drop)
    }

    /// Runs the workload. Returns the number of operations, and the seconds that they took.
    pub fn run(&self, time: Duration) -> Result<(u64, f64)> {
        let pools = Pools::new(self)?;
        let log = OpenOptions::new().append(true).open(self.directory.join("log"))?;
        log.set_len(0)?;
        let begun = Instant::now();
        let until = begun + time;
        let (database, pools, log) = (&Database::default(), &pools, &log);
        let writers = if self.name == "oltp" { OLTP_WRITERS + 1 } else { 0 };
        let act = move |thread: usize, random: &mut Random| match &*self.name {
            "webserver" => self.serve_pages(pools, log, random),
            "fileserver" => self.serve_files(pools, random),
            "varmail" => self.serve_mail(pools, random),
            _ if thread < writers => database.write(pools, log, thread, random),
            _ => database.read(pools, random),
        };
        let work = move |thread: usize| -> Result<u64> {
            let mut random = Random::new(octavo_random::mix(self.seed) ^ thread as u64);
            let mut count = 0;
            while Instant::now() < until {
                count += act(thread, &mut random)?;
            }
            Ok(count)
        };
        let counts: Result<Vec<u64>> = scope(|scope| {
            let threads: Vec<_> =
                (0..writers + self.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            let panicked = |_| Err(std::io::Error::other("a thread has panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        Ok((counts?.iter().sum(), begun.elapsed().as_secs_f64()))
    }

    fn serve_pages(&self, pools: &Pools, mut log: &File, random: &mut Random) -> Result<u64> {
        for _ in 0..10 {
            let number = pools.existing.take(random);
            read_whole(&mut File::open(self.path(number))?)?;
            pools.existing.put(number);
        }
        log.write_all(pools.bytes_to_append(random))?;
        // Each read is an open, a read and a close.
        Ok(10 * 3 + 1)
    }

    fn serve_files(&self, pools: &Pools, random: &mut Random) -> Result<u64> {
        let number = pools.missing.take(random);
        let len = gamma(random, mean_bytes(&self.name));
        write_whole(&File::create(self.path(number))?, len, &pools.content)?;
        pools.existing.put(number);
        let number = pools.existing.take(random);
        let mut file = OpenOptions::new().append(true).open(self.path(number))?;
        file.write_all(pools.bytes_to_append(random))?;
        drop(file);
        pools.existing.put(number);
        let number = pools.existing.take(random);
        read_whole(&mut File::open(self.path(number))?)?;
        pools.existing.put(number);
        let number = pools.existing.take(random);
        remove_file(self.path(number))?;
        pools.missing.put(number);
        let number = pools.existing.take(random);
        metadata(self.path(number))?;
        pools.existing.put(number);
        Ok(3 + 3 + 3 + 1 + 1)
    }

    fn serve_mail(&self, pools: &Pools, random: &mut Random) -> Result<u64> {
        let number = pools.existing.take(random);
        remove_file(self.path(number))?;
        pools.missing.put(number);
        let number = pools.missing.take(random);
        let mut file = File::create(self.path(number))?;
        file.write_all(pools.bytes_to_append(random))?;
        file.sync_all()?;
        drop(file);
        pools.existing.put(number);
        let number = pools.existing.take(random);
        let mut file = OpenOptions::new().read(true).append(true).open(self.path(number))?;
        read_whole(&mut file)?;
        file.write_all(pools.bytes_to_append(random))?;
        file.sync_all()?;
        drop(file);
        pools.existing.put(number);
        let number = pools.existing.take(random);
        read_whole(&mut File::open(self.path(number))?)?;
        pools.existing.put(number);
        Ok(1 + 4 + 5 + 3)
    }
}

/// Mean bytes of a file.
fn mean_bytes(name: &str) -> u64 {
    if name == "fileserver" { 128 << 10 } else { 16 << 10 }
}

/// The share of names that have a file at the beginning.
fn filled(name: &str) -> f64 {
    if matches!(name, "fileserver" | "varmail") { 0.8 } else { 1.0 }
}

/// Draws a size from a gamma distribution with shape 1.5, Filebench's default.
fn gamma(random: &mut Random, mean: u64) -> u64 {
    let log = |unit: f64| -(1.0 - unit).max(1e-12).ln();
    let normal = (2.0 * log(random.unit())).sqrt() * (std::f64::consts::TAU * random.unit()).cos();
    ((log(random.unit()) + normal * normal / 2.0) / 1.5 * mean as f64) as u64 + 1
}

/// Reads a file with a buffer of its size: a direct read takes memory for the whole buffer.
fn read_whole(file: &mut File) -> Result<()> {
    let mut buffer = vec![0; IO_BYTES.min(file.metadata()?.len() as usize + 1)];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

fn write_whole(mut file: &File, len: u64, content: &[u8]) -> Result<()> {
    let mut left = len as usize;
    while left > 0 {
        let len = left.min(content.len());
        file.write_all(&content[..len])?;
        left -= len;
    }
    Ok(())
}

/// Names that can be taken: a name belongs to one thread until that puts it back.
#[derive(Default)]
struct Pool(Mutex<Vec<u64>>);

impl Pool {
    fn take(&self, random: &mut Random) -> u64 {
        loop {
            if let Ok(mut names) = self.0.lock()
                && !names.is_empty()
            {
                let at = random.below(names.len() as u64) as usize;
                return names.swap_remove(at);
            }
            // Other threads have all names: each puts one back soon.
            sleep(Duration::from_micros(100));
        }
    }

    fn put(&self, name: u64) {
        if let Ok(mut names) = self.0.lock() {
            names.push(name);
        }
    }
}

/// Names with and without a file, and bytes to write.
struct Pools {
    existing: Pool,
    missing: Pool,
    content: Vec<u8>,
    /// The files of the database.
    files: Vec<File>,
    len: u64,
}

impl Pools {
    fn new(flow: &Flow) -> Result<Pools> {
        let mut is_there = vec![false; flow.names as usize];
        for directory in read_dir(&flow.directory)?.filter_map(|entry| Some(entry.ok()?.path())) {
            let Ok(entries) = read_dir(directory) else { continue };
            for entry in entries {
                let number = entry?.file_name().to_string_lossy().parse::<usize>();
                if let Some(there) = number.ok().and_then(|number| is_there.get_mut(number)) {
                    *there = true;
                }
            }
        }
        let numbers = |wanted: bool| {
            let all = is_there.iter().zip(0..).filter(move |(there, _)| **there == wanted);
            Pool(Mutex::new(all.map(|(_, number)| number).collect()))
        };
        let (existing, missing) = (numbers(true), numbers(false));
        let content = Random::new(flow.seed).bytes(IO_BYTES);
        let database = if flow.name == "oltp" { flow.names } else { 0 };
        let open = |number| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(libc::O_DSYNC).open(flow.path(number))
        };
        let files = (0..database).map(open).collect::<Result<Vec<File>>>()?;
        let len = files.first().map_or(Ok(0), |file| file.metadata().map(|data| data.len()))?;
        Ok(Pools { existing, missing, content, files, len })
    }

    fn bytes_to_append(&self, random: &mut Random) -> &[u8] {
        let len = (gamma(random, APPEND_BYTES) as usize).min(IO_BYTES);
        let from = random.below((IO_BYTES - len + 1) as u64) as usize;
        &self.content[from..from + len]
    }

    /// Returns a file of the database, and a place in it.
    fn place(&self, random: &mut Random) -> (&File, u64) {
        let file = &self.files[random.below(self.files.len() as u64) as usize];
        let slots = self.len / OLTP_BYTES as u64;
        (file, random.below(slots.max(1)) * OLTP_BYTES as u64)
    }
}

/// Counts of the database's reads and writes. All are Relaxed: they only pace threads.
#[derive(Default)]
struct Database {
    reads: AtomicU64,
    writes: AtomicU64,
    logs: AtomicU64,
}

impl Database {
    fn read(&self, pools: &Pools, random: &mut Random) -> Result<u64> {
        let due = self.reads.load(Relaxed) / OLTP_READS_PER_WRITE;
        if due > self.writes.load(Relaxed) + OLTP_PENDING_MAX {
            sleep(Duration::from_micros(100));
            return Ok(0);
        }
        let (file, at) = pools.place(random);
        file.read_exact_at(&mut [0; OLTP_BYTES], at)?;
        self.reads.fetch_add(1, Relaxed);
        Ok(1)
    }

    /// Writes what is due. Thread 0 writes the log.
    fn write(&self, pools: &Pools, mut log: &File, thread: usize, random: &mut Random) -> Result<u64> {
        let (written, reads_each) = match thread {
            0 => (&self.logs, OLTP_READS_PER_LOG),
            _ => (&self.writes, OLTP_READS_PER_WRITE),
        };
        if self.reads.load(Relaxed) / reads_each <= written.load(Relaxed) {
            sleep(Duration::from_micros(500));
            return Ok(0);
        }
        written.fetch_add(1, Relaxed);
        if thread == 0 {
            log.write_all(&pools.content[..OLTP_LOG_BYTES])?;
            log.sync_data()?;
        } else {
            let (file, at) = pools.place(random);
            file.write_all_at(&pools.content[..OLTP_BYTES], at)?;
        }
        Ok(1)
    }
}

/// Runs a flow in this process, and prints its operations and seconds.
pub fn serve(line: &str) -> std::result::Result<(), Error> {
    let (flow, time) = Flow::parse(line).ok_or_else(|| Error::new(format!("\"{line}\" is no flow")))?;
    let (count, seconds) = flow.run(time).map_err(Error::at(&flow.name))?;
    println!("{count} {seconds}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_workload_runs_on_its_files() {
        for name in NAMES {
            let directory = std::env::temp_dir().join(format!("octavo-flow-{name}-{}", std::process::id()));
            std::fs::create_dir(&directory).unwrap();
            let names = Flow::names_of(name, 2 << 20);
            let flow = Flow { name: name.into(), threads: 3, directory: directory.clone(), names, seed: 1 };
            flow.fill(2 << 20).unwrap();
            let (parsed, time) = Flow::parse(&flow.line(Duration::from_millis(100))).unwrap();
            let (count, seconds) = parsed.run(time).unwrap();
            assert!(count > 10 && seconds >= 0.1, "{name}: {count} in {seconds} s");
            std::fs::remove_dir_all(&directory).unwrap();
        }
        assert!(Flow::parse("webserver 1 2 3").is_none() && Flow::parse("mail 1 2 3 4 /").is_none());
    }

    #[test]
    fn sizes_have_their_mean() {
        let mut random = Random::new(1);
        let sum: u64 = (0..100_000).map(|_| gamma(&mut random, 16 << 10)).sum();
        assert!((sum / 100_000).abs_diff(16 << 10) < 400, "{}", sum / 100_000);
    }

    #[test]
    fn files_have_about_the_bytes_that_are_wanted() {
        let directory = Path::new("/d");
        let names = Flow::names_of("varmail", 16 << 20);
        assert_eq!(names, 1281);
        let flow = Flow { name: "varmail".into(), threads: 1, directory: directory.into(), names, seed: 1 };
        assert_eq!(flow.path(7), Path::new("/d/00000/0000007"));
    }
}
