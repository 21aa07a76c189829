//! Belady's optimum, of the whole cache and inside each set: what no policy can beat. For
//! comparison only.
//!
//! Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer" (IBM Systems Journal
//! 5(2), 1966): evict the page whose next access is furthest away. Every page that is accessed
//! comes in, as with all other policies here.
//!
//! The future is learnt in two passes. The first reads the source to its end into a log. The second
//! walks the log backwards and notes for each access when the same page is accessed next. Both logs
//! stay in memory up to a bound and go to files without a name in a scratch folder beyond it, 16
//! bytes an access; the second pass needs an entry per distinct page besides.
//!
//! Then no page is ever looked up. A page that is in the cache is known by the time of its next
//! access, and no two pages share one; so an access is a hit exactly if its own number is among
//! those times. For the whole cache they are a bit each, and words above words of bits
//! find the latest: an eighth of a byte an access and capacity. In a set they are as many numbers
//! as there are ways.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasherDefault;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pages::{Mix, mix};
use crate::source::{CHUNK, Source, SourceError};

/// The page is not accessed again.
pub const NEVER: u64 = u64::MAX;

/// An access, with its future.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The page.
    pub page: u64,
    /// The number of the page's next access, counted from zero over the whole trace, or [`NEVER`].
    pub next: u64,
}

/// A whole trace whose every access knows its future. It is read from its beginning, like a source.
pub struct Future {
    pages: Log,
    nexts: Log,
    at: u64,
}

impl Future {
    /// Reads `source` to its end. What needs more than `memory_max_bytes` goes to files in
    /// `scratch`, which have no name and so are gone with this value, or with the process.
    pub fn read(source: &mut dyn Source, scratch: &Path, memory_max_bytes: u64) -> Result<Self, SourceError> {
        let failed =
            |error: io::Error| SourceError(format!("scratch file in {}: {error}", scratch.display()));
        let mut pages = Log::Memory(Vec::new());
        let mut chunk = Vec::new();
        loop {
            chunk.clear();
            source.next(&mut chunk)?;
            if chunk.is_empty() {
                break;
            }
            if pages.needs_file(chunk.len(), memory_max_bytes / 2) {
                pages.move_to_file(scratch).map_err(failed)?;
            }
            pages.append(&chunk).map_err(failed)?;
        }
        let nexts = nexts(&pages, scratch).map_err(failed)?;
        Ok(Future { pages, nexts, at: 0 })
    }

    /// How many accesses there are.
    pub fn accesses(&self) -> u64 {
        self.pages.len()
    }

    /// Goes back to the first access.
    pub fn rewind(&mut self) {
        self.at = 0;
    }

    /// Appends the next accesses, about [`CHUNK`] of them; nothing once all were given.
    pub fn next(&mut self, accesses: &mut Vec<Access>) -> Result<(), SourceError> {
        let count = (self.accesses() - self.at).min(CHUNK as u64) as usize;
        let read = |log: &Log| {
            let mut numbers = vec![0; count];
            log.read(self.at, &mut numbers)
                .map_err(|error| SourceError(format!("scratch file, access {}: {error}", self.at)))?;
            Ok(numbers)
        };
        let (pages, nexts) = (read(&self.pages)?, read(&self.nexts)?);
        accesses.extend(pages.into_iter().zip(nexts).map(|(page, next)| Access { page, next }));
        self.at += count as u64;
        Ok(())
    }
}

/// How often the optimum misses at each of `capacities`: of the whole cache, or inside sets of
/// `ways` pages.
pub fn misses(
    future: &mut Future,
    capacities: &[u64],
    ways: Option<u32>,
    seed: u64,
) -> Result<Vec<u64>, SourceError> {
    enum Either {
        Global(Optimum),
        Sets(SetOptimum),
    }
    let accesses = future.accesses();
    let mut caches: Vec<Either> = capacities
        .iter()
        .map(|capacity| match ways {
            None => Either::Global(Optimum::new(*capacity, accesses)),
            Some(ways) => Either::Sets(SetOptimum::new(*capacity, ways, seed)),
        })
        .collect();
    let mut misses = vec![0; capacities.len()];
    let mut chunk = Vec::new();
    future.rewind();
    loop {
        chunk.clear();
        future.next(&mut chunk)?;
        if chunk.is_empty() {
            return Ok(misses);
        }
        for (cache, misses) in caches.iter_mut().zip(&mut misses) {
            *misses += match cache {
                Either::Global(cache) => cache.run(&chunk),
                Either::Sets(cache) => cache.run(&chunk),
            };
        }
    }
}

/// The optimum of a whole cache.
pub struct Optimum {
    capacity: u64,
    /// The times of the next accesses of resident pages.
    times: Times,
    /// Resident pages that are accessed again, and those that are not.
    awaited: u64,
    done: u64,
    now: u64,
}

impl Optimum {
    /// Of `capacity_pages`, at least one, for a trace of so many accesses.
    pub fn new(capacity_pages: u64, accesses: u64) -> Self {
        Optimum { capacity: capacity_pages.max(1), times: Times::new(accesses), awaited: 0, done: 0, now: 0 }
    }

    /// The pages that it holds at most.
    pub fn capacity_pages(&self) -> u64 {
        self.capacity
    }

    /// The trace's next accesses, in order; returns how many pages were not there.
    pub fn run(&mut self, accesses: &[Access]) -> u64 {
        accesses.iter().map(|access| u64::from(!self.access(access.next))).sum()
    }

    fn access(&mut self, next: u64) -> bool {
        let hit = self.times.remove(self.now);
        if hit {
            self.awaited -= 1;
        } else if self.awaited + self.done == self.capacity {
            if self.done > 0 {
                self.done -= 1;
            } else {
                self.times.remove_latest();
                self.awaited -= 1;
            }
        }
        if next == NEVER {
            self.done += 1;
        } else {
            self.times.insert(next);
            self.awaited += 1;
        }
        self.now += 1;
        hit
    }
}

/// The optimum inside each of many sets; pages are placed by their hash.
pub struct SetOptimum {
    ways: usize,
    sets: u64,
    seed: u64,
    /// The next access of each way's page. [`NEVER`] for pages that are done and for empty ways:
    /// both are taken first.
    nexts: Vec<u64>,
    now: u64,
}

impl SetOptimum {
    /// At most `capacity_pages`, in whole sets of `ways` pages and at least one set. `seed` places
    /// the pages.
    pub fn new(capacity_pages: u64, ways: u32, seed: u64) -> Self {
        let ways = ways.max(1) as usize;
        let sets = (capacity_pages / ways as u64).max(1);
        SetOptimum { ways, sets, seed: mix(seed), nexts: vec![NEVER; sets as usize * ways], now: 0 }
    }

    /// The pages that it holds at most.
    pub fn capacity_pages(&self) -> u64 {
        self.nexts.len() as u64
    }

    /// The trace's next accesses, in order; returns how many pages were not there.
    pub fn run(&mut self, accesses: &[Access]) -> u64 {
        accesses.iter().map(|access| u64::from(!self.access(access))).sum()
    }

    fn access(&mut self, access: &Access) -> bool {
        let set = ((u128::from(mix(access.page ^ self.seed)) * u128::from(self.sets)) >> 64) as usize;
        let ways = &mut self.nexts[set * self.ways..][..self.ways];
        let now = self.now;
        self.now += 1;
        let found = ways.iter().position(|next| *next == now);
        let way = found.unwrap_or_else(|| {
            ways.iter().enumerate().max_by_key(|(_, next)| **next).expect("a set has ways").0
        });
        ways[way] = access.next;
        found.is_some()
    }
}

/// A set of numbers below a bound, as bits; a bit of a level says whether a word of the level below
/// has one.
struct Times {
    levels: Vec<Vec<u64>>,
}

impl Times {
    fn new(end: u64) -> Self {
        let mut levels = Vec::new();
        let mut bits = end.max(1) as usize;
        loop {
            let words = bits.div_ceil(64);
            levels.push(vec![0; words]);
            if words == 1 {
                return Times { levels };
            }
            bits = words;
        }
    }

    fn insert(&mut self, number: u64) {
        let mut at = number as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    /// True: it was there.
    fn remove(&mut self, number: u64) -> bool {
        let mut at = number as usize;
        if self.levels[0][at / 64] >> (at % 64) & 1 == 0 {
            return false;
        }
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        true
    }

    /// Removes the latest of the numbers, of which there is one.
    fn remove_latest(&mut self) {
        let latest =
            self.levels.iter().rev().fold(0, |at, level| at * 64 + 63 - level[at].leading_zeros() as usize);
        self.remove(latest as u64);
    }
}

/// For each access of the log, when its page is accessed next.
fn nexts(pages: &Log, scratch: &Path) -> io::Result<Log> {
    let mut nexts = pages.of_same_kind(scratch)?;
    let mut later: HashMap<u64, u64, BuildHasherDefault<Mix>> = HashMap::default();
    let mut end = pages.len();
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let chunk = &mut chunk[..(end - start) as usize];
        pages.read(start, chunk)?;
        for (at, number) in chunk.iter_mut().enumerate().rev() {
            *number = later.insert(*number, start + at as u64).unwrap_or(NEVER);
        }
        nexts.write(start, chunk)?;
        end = start;
    }
    Ok(nexts)
}

/// Numbers in a row, in memory or in a file.
enum Log {
    Memory(Vec<u64>),
    File { file: File, len: u64 },
}

impl Log {
    fn len(&self) -> u64 {
        match self {
            Log::Memory(numbers) => numbers.len() as u64,
            Log::File { len, .. } => *len,
        }
    }

    /// Whether so many more numbers would take more memory than is allowed.
    fn needs_file(&self, more: usize, memory_max_bytes: u64) -> bool {
        matches!(self, Log::Memory(numbers) if (numbers.len() + more) as u64 * 8 > memory_max_bytes)
    }

    fn move_to_file(&mut self, scratch: &Path) -> io::Result<()> {
        let mut moved = Log::File { file: unnamed_file(scratch)?, len: 0 };
        if let Log::Memory(numbers) = self {
            numbers.chunks(CHUNK).try_for_each(|chunk| moved.append(chunk))?;
        }
        *self = moved;
        Ok(())
    }

    /// As many numbers, in memory if these are.
    fn of_same_kind(&self, scratch: &Path) -> io::Result<Log> {
        Ok(match self {
            Log::Memory(numbers) => Log::Memory(vec![0; numbers.len()]),
            Log::File { len, .. } => Log::File { file: unnamed_file(scratch)?, len: *len },
        })
    }

    fn append(&mut self, numbers: &[u64]) -> io::Result<()> {
        match self {
            Log::Memory(all) => all.extend_from_slice(numbers),
            Log::File { len, .. } => {
                let at = *len;
                *len += numbers.len() as u64;
                self.write(at, numbers)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, at: u64, numbers: &[u64]) -> io::Result<()> {
        match self {
            Log::Memory(all) => all[at as usize..][..numbers.len()].copy_from_slice(numbers),
            Log::File { file, .. } => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                file.write_all_at(&bytes, at * 8)?;
            }
        }
        Ok(())
    }

    fn read(&self, at: u64, numbers: &mut [u64]) -> io::Result<()> {
        match self {
            Log::Memory(all) => numbers.copy_from_slice(&all[at as usize..][..numbers.len()]),
            Log::File { file, .. } => {
                let mut bytes = vec![0; numbers.len() * 8];
                file.read_exact_at(&mut bytes, at * 8)?;
                for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
                    *number = u64::from_le_bytes(*bytes);
                }
            }
        }
        Ok(())
    }
}

/// A file that nobody else can open, and that is gone when it is closed.
fn unnamed_file(folder: &Path) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the number only has to differ from the others'.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".octavo-sim-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::super::pages::Random;
    use super::*;

    struct Given(Vec<Vec<u64>>);

    impl Source for Given {
        fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
            pages.extend(self.0.pop().unwrap_or_default());
            Ok(())
        }

        fn progress(&self) -> Option<f64> {
            None
        }
    }

    fn future(pages: &[u64], memory_max_bytes: u64) -> Future {
        let mut chunks: Vec<Vec<u64>> = pages.chunks(1000).map(<[u64]>::to_vec).collect();
        chunks.reverse();
        Future::read(&mut Given(chunks), &std::env::temp_dir(), memory_max_bytes).unwrap()
    }

    /// Belady as he says it: of the resident pages, the one whose next access is furthest away.
    fn naive(pages: &[u64], capacity: usize) -> u64 {
        let mut resident: Vec<u64> = Vec::new();
        let mut misses = 0;
        for (now, page) in pages.iter().enumerate() {
            if resident.contains(page) {
                continue;
            }
            misses += 1;
            if resident.len() == capacity {
                let next =
                    |page: &u64| pages[now..].iter().position(|later| later == page).unwrap_or(usize::MAX);
                let victim = (0..capacity).max_by_key(|way| next(&resident[*way])).unwrap();
                resident.remove(victim);
            }
            resident.push(*page);
        }
        misses
    }

    fn random_pages(random: &mut Random, count: usize) -> Vec<u64> {
        let distinct = 1 + random.below(60);
        (0..count).map(|_| random.below(1 + random.clone().below(distinct))).collect()
    }

    #[test]
    fn both_optima_agree_with_belady_as_he_says_it() {
        let mut random = Random(11);
        for round in 0..40 {
            let pages = random_pages(&mut random, 500);
            let mut future = future(&pages, u64::MAX);
            let capacities = [1, 2, 3, 8, 20, 100];
            let wanted: Vec<u64> =
                capacities.iter().map(|capacity| naive(&pages, *capacity as usize)).collect();
            assert_eq!(misses(&mut future, &capacities, None, 0).unwrap(), wanted, "round {round}");
            // One set is a whole cache of its ways.
            for ways in [1, 3, 8] {
                assert_eq!(
                    misses(&mut future, &[1], Some(ways), 9).unwrap(),
                    [naive(&pages, ways as usize)],
                    "round {round}, {ways} ways"
                );
            }
            // Sets split the trace.
            let split = SetOptimum::new(12, 3, 5);
            let set = |page: u64| (u128::from(mix(page ^ split.seed)) * 4) >> 64;
            let sum: u64 = (0..4)
                .map(|number| pages.iter().copied().filter(|page| set(*page) == number).collect::<Vec<u64>>())
                .map(|pages| naive(&pages, 3))
                .sum();
            assert_eq!(misses(&mut future, &[12], Some(3), 5).unwrap(), [sum], "round {round}");
        }
    }

    #[test]
    fn the_example_of_silberschatz_has_nine_faults() {
        let pages = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(misses(&mut future(&pages, u64::MAX), &[3, 20], None, 0).unwrap(), [9, 6]);
    }

    #[test]
    fn a_trace_in_files_has_the_same_future_as_one_in_memory() {
        let mut random = Random(12);
        let pages: Vec<u64> = (0..50_000).map(|_| random.below(3000)).collect();
        let (mut filed, mut held) = (future(&pages, 100_000), future(&pages, u64::MAX));
        assert!(matches!(filed.pages, Log::File { .. }) && matches!(held.pages, Log::Memory(_)));
        let (mut one, mut other) = (Vec::new(), Vec::new());
        while one.len() < pages.len() {
            filed.next(&mut one).unwrap();
            held.next(&mut other).unwrap();
        }
        assert_eq!(one, other);
        assert!(one.iter().map(|access| access.page).eq(pages.iter().copied()));
        filed.next(&mut one).unwrap();
        assert_eq!(one.len(), pages.len());
        let capacities = [10, 1000];
        assert_eq!(
            misses(&mut filed, &capacities, None, 0).unwrap(),
            misses(&mut held, &capacities, None, 0).unwrap()
        );
    }

    #[test]
    fn an_empty_trace_and_a_failing_source_are_told() {
        assert_eq!(misses(&mut future(&[], 0), &[1, 5], None, 0).unwrap(), [0, 0]);
        let folder = Path::new("/nowhere");
        let error = Future::read(&mut Given(vec![vec![1]]), folder, 0).err().unwrap();
        assert!(error.0.starts_with("scratch file in /nowhere: "), "{error}");
    }
}
