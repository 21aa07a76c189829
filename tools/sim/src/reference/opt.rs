//! Belady's optimum, for the whole cache and inside each set: no policy has fewer misses. For
//! comparison only.
//!
//! Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer" (IBM Systems Journal
//! 5(2), 1966): evict the page whose next access is furthest away. Every page that is accessed
//! comes in, as with all other policies here.
//!
//! The future is read in two passes. The first copies the source into a log. The second walks the
//! log backwards and notes for each access when the same page is accessed next. Both logs stay in
//! memory up to a limit and move to unnamed files in a scratch folder beyond it, 16 bytes an
//! access; the second pass also needs an entry per distinct page.
//!
//! After that, no page is ever looked up. A resident page is identified by the time of its next
//! access, which no two pages share, so an access is a hit exactly if its own number is among those
//! times. For the whole cache, each time is a bit in a hierarchy of bitmaps, which finds the latest
//! time; this takes an eighth of a byte per access, whatever the capacity. A set keeps one number
//! per way.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use tempfile::SpooledTempFile;

use crate::footprint::BuildPageHasher;
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

/// A whole trace in which each access knows its page's next access. It is read from its beginning,
/// like a source.
pub struct Future {
    pages: Log,
    nexts: Log,
    at: u64,
}

impl Future {
    /// Reads `source` to its end. Logs of more than `memory_max_bytes` move to files in `scratch`;
    /// the files have no name, so they are gone with this value or with the process.
    ///
    /// # Errors
    /// The source's own error, or one of a scratch file.
    pub fn read(source: &mut dyn Source, scratch: &Path, memory_max_bytes: u64) -> Result<Self, SourceError> {
        let failed =
            |error: io::Error| SourceError(format!("scratch file in {}: {error}", scratch.display()));
        let log = || Log::new(memory_max_bytes / 2, scratch);
        let mut pages = log();
        source.for_each_chunk(&mut |chunk| pages.write(pages.len, chunk).map_err(failed))?;
        let nexts = nexts(&mut pages, log()).map_err(failed)?;
        Ok(Future { pages, nexts, at: 0 })
    }

    /// Returns the number of accesses.
    pub fn accesses(&self) -> u64 {
        self.pages.len
    }

    /// Goes back to the first access.
    pub fn rewind(&mut self) {
        self.at = 0;
    }

    /// Appends the next accesses, about [`CHUNK`] of them; none at the end.
    ///
    /// # Errors
    /// A scratch file cannot be read.
    pub fn next(&mut self, accesses: &mut Vec<Access>) -> Result<(), SourceError> {
        let count = (self.accesses() - self.at).min(CHUNK as u64) as usize;
        let failed = |error| SourceError(format!("scratch file, access {}: {error}", self.at));
        let pages = self.pages.read(self.at, count).map_err(failed)?;
        let nexts = self.nexts.read(self.at, count).map_err(failed)?;
        accesses.extend(pages.into_iter().zip(nexts).map(|(page, next)| Access { page, next }));
        self.at += count as u64;
        Ok(())
    }
}

/// Returns the misses of the optimum at each of `capacities`: of the whole cache, or inside sets of
/// `ways` pages.
///
/// # Errors
/// A scratch file of `future` cannot be read.
pub fn misses(
    future: &mut Future,
    capacities: &[u64],
    ways: Option<u32>,
    seed: u64,
) -> Result<Vec<u64>, SourceError> {
    let accesses = future.accesses();
    let optimum = |capacity: &u64| Optimum::new(*capacity, ways, accesses, seed);
    let mut caches: Vec<Optimum> = capacities.iter().map(optimum).collect();
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
            *misses += cache.run(&chunk);
        }
    }
}

/// Returns the real capacity, in pages, of an optimum when `capacity_pages` are requested: at least
/// one page and, with `ways`, whole sets.
pub fn rounded(capacity_pages: u64, ways: Option<u32>) -> u64 {
    let ways = u64::from(ways.unwrap_or(1).max(1));
    (capacity_pages / ways).max(1) * ways
}

/// A cache that follows the optimum.
pub struct Optimum {
    now: u64,
    resident: Resident,
}

/// The times at which resident pages are accessed next.
enum Resident {
    Global {
        capacity: u64,
        times: Times,
        /// Resident pages that are accessed again, and those that are not.
        awaited: u64,
        done: u64,
    },
    Sets {
        ways: usize,
        seed: u64,
        /// The next access of each way's page. [`NEVER`] for pages that are not accessed again and
        /// for empty ways: both are replaced first.
        nexts: Vec<u64>,
    },
}

impl Optimum {
    /// Creates a cache of `capacity_pages`, raised to one page, for a trace of `accesses`; or, with
    /// `ways`, of as many whole sets as fit, at least one. `seed` places pages in sets by hash.
    pub fn new(capacity_pages: u64, ways: Option<u32>, accesses: u64, seed: u64) -> Self {
        let capacity = rounded(capacity_pages, ways);
        let resident = match ways {
            None => Resident::Global { capacity, times: Times::new(accesses), awaited: 0, done: 0 },
            Some(ways) => Resident::Sets {
                ways: ways.max(1) as usize,
                seed: mix(seed),
                nexts: vec![NEVER; capacity as usize],
            },
        };
        Optimum { now: 0, resident }
    }

    /// Runs the trace's next accesses, in order, and returns the misses.
    pub fn run(&mut self, accesses: &[Access]) -> u64 {
        let mut misses = 0;
        for access in accesses {
            misses += u64::from(!self.resident.access(self.now, access));
            self.now += 1;
        }
        misses
    }
}

impl Resident {
    fn access(&mut self, now: u64, access: &Access) -> bool {
        match self {
            Resident::Global { capacity, times, awaited, done } => {
                let hit = times.remove(now);
                if hit {
                    *awaited -= 1;
                } else if *awaited + *done == *capacity {
                    if *done > 0 {
                        *done -= 1;
                    } else {
                        times.remove_latest();
                        *awaited -= 1;
                    }
                }
                if access.next == NEVER {
                    *done += 1;
                } else {
                    times.insert(access.next);
                    *awaited += 1;
                }
                hit
            }
            Resident::Sets { ways, seed, nexts } => {
                let set = set(access.page, *seed, (nexts.len() / *ways) as u64);
                let ways = &mut nexts[set * *ways..][..*ways];
                let found = ways.iter().position(|next| *next == now);
                let latest = || ways.iter().enumerate().max_by_key(|(_, next)| **next);
                let way = found.unwrap_or_else(|| latest().expect("a set has ways").0);
                ways[way] = access.next;
                found.is_some()
            }
        }
    }
}

/// Returns the set of a page. `seed` is mixed.
fn set(page: u64, seed: u64, sets: u64) -> usize {
    octavo_random::scale(mix(page ^ seed), sets) as usize
}

/// A bijection in which every bit of the number changes high and low bits of the result.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ (mixed >> 32)
}

/// A set of numbers below a limit, as bits; each bit of a level says whether a word of the level
/// below has a bit that is set.
struct Times {
    levels: Vec<Vec<u64>>,
}

impl Times {
    fn new(end: u64) -> Self {
        let mut levels = vec![vec![0; (end.max(1) as usize).div_ceil(64)]];
        while let Some(top) = levels.last()
            && top.len() > 1
        {
            levels.push(vec![0; top.len().div_ceil(64)]);
        }
        Times { levels }
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

    /// Removes a number and returns whether it was in the set.
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

    /// Removes the greatest number of a set that is not empty.
    fn remove_latest(&mut self) {
        let latest =
            self.levels.iter().rev().fold(0, |at, level| at * 64 + 63 - level[at].leading_zeros() as usize);
        self.remove(latest as u64);
    }
}

/// Finds for each access of the log when its page is accessed next.
fn nexts(pages: &mut Log, mut nexts: Log) -> io::Result<Log> {
    let mut later: HashMap<u64, u64, BuildPageHasher> = HashMap::default();
    let mut end = pages.len;
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let mut chunk = pages.read(start, (end - start) as usize)?;
        for (at, number) in chunk.iter_mut().enumerate().rev() {
            *number = later.insert(*number, start + at as u64).unwrap_or(NEVER);
        }
        nexts.write(start, &chunk)?;
        end = start;
    }
    Ok(nexts)
}

/// A row of numbers, in memory or, if it grows too long, in an unnamed file.
struct Log {
    bytes: SpooledTempFile,
    len: u64,
}

impl Log {
    fn new(memory_max_bytes: u64, scratch: &Path) -> Log {
        let memory_max_bytes = usize::try_from(memory_max_bytes).unwrap_or(usize::MAX);
        Log { bytes: tempfile::spooled_tempfile_in(memory_max_bytes, scratch), len: 0 }
    }

    fn write(&mut self, at: u64, numbers: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.len = self.len.max(at + numbers.len() as u64);
        self.bytes.seek(SeekFrom::Start(at * 8))?;
        self.bytes.write_all(&bytes)
    }

    fn read(&mut self, at: u64, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.bytes.seek(SeekFrom::Start(at * 8))?;
        self.bytes.read_exact(&mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect())
    }
}

#[cfg(test)]
mod tests {
    use octavo_random::Random;

    use super::*;
    use crate::source::Pages;

    fn future(pages: &[u64], memory_max_bytes: u64) -> Future {
        Future::read(&mut Pages::new(pages.to_vec()), &std::env::temp_dir(), memory_max_bytes).unwrap()
    }

    /// Belady's rule, word for word: evict the resident page whose next access is furthest away.
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
    fn both_optima_agree_with_beladys_rule() {
        let mut random = Random::new(11);
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
            let of = |number| pages.iter().copied().filter(move |page| set(*page, mix(5), 4) == number);
            let sum: u64 = (0..4).map(|number| naive(&of(number).collect::<Vec<u64>>(), 3)).sum();
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
        let mut random = Random::new(12);
        let pages: Vec<u64> = (0..50_000).map(|_| random.below(3000)).collect();
        let (mut filed, mut held) = (future(&pages, 100_000), future(&pages, u64::MAX));
        assert!(filed.pages.bytes.is_rolled() && !held.pages.bytes.is_rolled());
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
    fn an_empty_trace_has_no_misses_and_a_missing_scratch_folder_is_an_error() {
        assert_eq!(misses(&mut future(&[], 0), &[1, 5], None, 0).unwrap(), [0, 0]);
        let folder = Path::new("/nowhere");
        let error = Future::read(&mut Pages::new(vec![1]), folder, 0).err().unwrap();
        assert!(error.0.starts_with("scratch file in /nowhere: "), "{error}");
    }
}
