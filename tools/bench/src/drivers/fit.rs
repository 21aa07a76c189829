//! Files that fit: how much of a file is resident after one sequential pass, in frames that are
//! just enough for it, and how fast small random reads are in a cache a little larger than the
//! file.
//!
//! A case without contestants has a row for each way in which the partition came to its size, and
//! `resident` is the share of the file's pages that are resident after the pass: the mean over the
//! seeds 1 to 5 of the hash that places pages.
//! - `fresh`: created with frames for 1.01 times the file.
//! - `grown`: created with a quarter of these frames, and then resized as the reaper would.
//! - `shrunk`: created with four times as many frames.
//! - `memory_max`: a cache with the usual configuration, whose `memory_max` is 1.10 times the file.
//!
//! A case with contestants races them with reads of `bytes` at random places: `octavo` has a
//! `memory_max` of 1.15 times the file, `octavo-resident` of twice the file. Both have read the
//! whole file once.

use octavo::disk::AlignedBytes;
use octavo::{Cache, CacheConfig, Object, Partition};
use octavo_random::{Random, scale};

use crate::case::{Case, Clock};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::report::Row;
use crate::scratch::Scratch;
use crate::stage::{Delta, Driver, Run, Subject, offset, partition_config};
use crate::statistics::Histogram;
use crate::stream;
use crate::turns::{Pace, Team, Worker, timed};

pub const DRIVER: Driver = Driver {
    name: "fit",
    purpose: "files that just fit into a cache",
    contestants: &["octavo", "octavo-resident"],
    scenery: &["store", "file"],
    check: |case| match (case.file.0, case.bytes.0) {
        (file, _) if file < 8 * SEGMENT_BYTES => {
            Err(format!("file = {file}: at least {} are needed", 8 * SEGMENT_BYTES))
        }
        (_, bytes) if bytes == 0 || bytes > PAGE_BYTES as u64 || !bytes.is_power_of_two() => {
            Err(format!("bytes = {bytes}: a power of two up to {PAGE_BYTES} is possible"))
        }
        _ => Ok(()),
    },
    // At a time there are the two caches of the race, or one that shrinks from four times the file.
    memory: |needs| needs.file + needs.whole_file * 4,
    set: |case, run| {
        let scratch = Scratch::new(case, "", run)?;
        Ok(Box::new(move |case, run| match case.contestants.is_empty() {
            true => WAYS.iter().map(|way| way.row(&scratch, case, run)).collect(),
            false => race(&scratch, case, run).map(|row| vec![row]),
        }))
    },
};

const SEGMENT_BYTES: u64 = 2 << 20;

/// The seeds of the hash that places pages.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Bytes of a sequential read.
const READ_BYTES: usize = 128 << 10;

/// Reads of a turn.
const TURN: usize = 256;

/// Frames in percent of the file, and `memory_max` of the three cases in percent of the file.
const FRAMES_PERCENT: u64 = 101;
const TENTH_PERCENT: u64 = 110;
const RACE_PERCENT: u64 = 115;
const RESIDENT_PERCENT: u64 = 200;

/// The least ratio that the race should reach.
const RACE_GOAL: f64 = 0.95;

/// How a partition comes to its size.
enum Size {
    /// Frames for 1.01 times the file, after the partition began with this many of them.
    Frames { numerator: u64, denominator: u64 },
    /// Whatever a `memory_max` of 1.10 times the file leaves.
    MemoryMax,
}

/// A row of a case without contestants.
struct Way {
    name: &'static str,
    size: Size,
    /// The least share of the file that should be resident.
    goal: f64,
}

const WAYS: [Way; 4] = [
    Way { name: "fresh", size: Size::Frames { numerator: 1, denominator: 1 }, goal: 0.995 },
    Way { name: "grown", size: Size::Frames { numerator: 1, denominator: 4 }, goal: 0.97 },
    Way { name: "shrunk", size: Size::Frames { numerator: 4, denominator: 1 }, goal: 0.97 },
    Way { name: "memory_max", size: Size::MemoryMax, goal: 1.0 },
];

impl Way {
    fn row(&self, scratch: &Scratch, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        let mut shares = Vec::new();
        let (mut frames_bytes, mut read_bytes) = (0, 0);
        for seed in SEEDS {
            run.step(case, &format!("{}, seed {seed}", self.name))?;
            let (subject, pages) = self.subject(scratch, case, seed)?;
            shares.push(resident_after_pass(&subject.object, pages)?);
            frames_bytes = subject.partition.stat().max_bytes;
            read_bytes = offset(pages);
        }
        let mut row = Row { case: format!("{}_{}", case.name, self.name), ..Row::new(run.suite, case) };
        row.n = shares.len();
        row.add("resident", shares.iter().sum::<f64>() / shares.len() as f64);
        row.add("goal", self.goal);
        row.add("resident_min", shares.iter().copied().fold(1.0, f64::min));
        row.add("resident_max", shares.iter().copied().fold(0.0, f64::max));
        row.add("frames_bytes", frames_bytes);
        row.add("pass_bytes", read_bytes);
        Ok(row)
    }

    /// Makes a cache of the size, with pages of none but the file. Returns the pages to read.
    fn subject(&self, scratch: &Scratch, case: &Case, seed: u64) -> Result<(Subject, u64), Error> {
        let file_bytes = offset(scratch.pages());
        let usual = CacheConfig { seed: Some(seed), page_bytes: PAGE_BYTES as u32, ..CacheConfig::default() };
        let Size::Frames { numerator, denominator } = self.size else {
            let config = CacheConfig { memory_max_bytes: percent(file_bytes, TENTH_PERCENT), ..usual };
            return Ok((Subject::new(config, partition_config(case), scratch.open()?)?, scratch.pages()));
        };
        // The frames are whole segments, so the pass reads a little less than the whole file.
        let frames_bytes = percent(file_bytes, FRAMES_PERCENT) / SEGMENT_BYTES * SEGMENT_BYTES;
        let pages = (frames_bytes * 100 / FRAMES_PERCENT / PAGE_BYTES as u64).min(scratch.pages());
        let begin_bytes = frames_bytes * numerator / denominator / SEGMENT_BYTES * SEGMENT_BYTES;
        // Without a reaper, which would use the memory that is left over.
        let memory_max_bytes = percent(frames_bytes.max(begin_bytes), TENTH_PERCENT) + (16 << 20);
        let config = CacheConfig {
            memory_max_bytes,
            buffers_max_bytes: Some(4 << 20),
            segment_bytes: SEGMENT_BYTES,
            reaper: false,
            ..usual
        };
        let cache = Cache::new(config)?;
        let partition = created(&cache, case, begin_bytes)?;
        resize(&partition, frames_bytes)?;
        let object = partition.open(scratch.open()?, "file")?;
        Ok((Subject { object, partition, cache }, pages))
    }
}

/// Creates a partition with exactly `frames_bytes` of frames.
fn created(cache: &Cache, case: &Case, frames_bytes: u64) -> Result<Partition, Error> {
    let mut start_bytes = frames_bytes + frames_bytes / 128;
    for _ in 0..TRIES {
        let mut config = partition_config(case);
        config.start_bytes = Some(start_bytes);
        let partition = cache.partition(config)?;
        let got_bytes = partition.stat().max_bytes;
        if got_bytes == frames_bytes {
            return Ok(partition);
        }
        start_bytes = (start_bytes + frames_bytes).saturating_sub(got_bytes);
        let name = partition.name().to_owned();
        drop(partition);
        cache.remove_partition(&name)?;
    }
    Err(Error::new(format!("no partition has {frames_bytes} bytes of frames")))
}

/// Resizes a partition to exactly `frames_bytes` of frames.
fn resize(partition: &Partition, frames_bytes: u64) -> Result<(), Error> {
    let mut wanted_bytes = frames_bytes + frames_bytes / 128;
    let mut got_bytes = partition.stat().max_bytes;
    for _ in 0..TRIES {
        if got_bytes == frames_bytes {
            return Ok(());
        }
        partition.resize(wanted_bytes)?;
        got_bytes = partition.stat().max_bytes;
        wanted_bytes = (wanted_bytes + frames_bytes).saturating_sub(got_bytes);
    }
    Err(Error::new(format!("the partition has {got_bytes} bytes of frames instead of {frames_bytes}")))
}

/// Metadata and learning change with the size, so the first size that is asked for is off by a few
/// segments; the next ones correct that.
const TRIES: usize = 16;

fn percent(bytes: u64, percent: u64) -> u64 {
    (u128::from(bytes) * u128::from(percent) / 100) as u64
}

/// Reads the first pages of a file once, in their order.
fn pass(object: &Object, pages: u64) -> Result<(), Error> {
    let mut bytes = AlignedBytes::new(READ_BYTES);
    let read_pages = READ_BYTES / PAGE_BYTES;
    for first in (0..pages).step_by(read_pages) {
        let count = (pages - first).min(read_pages as u64) as usize;
        let bytes = &mut bytes[..count * PAGE_BYTES];
        object.read_at(offset(first), bytes)?;
        for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_BYTES)) {
            content::check(page, 0, bytes, "read in a pass")?;
        }
    }
    Ok(())
}

/// Reads the first pages of a file once. Returns the share of them that are resident then.
fn resident_after_pass(object: &Object, pages: u64) -> Result<f64, Error> {
    pass(object, pages)?;
    let resident = (0..pages).filter(|page| object.is_resident(offset(*page))).count();
    Ok(resident as f64 / pages as f64)
}

/// Returns a worker that reads `len` bytes at random places of a file, at multiples of `len`.
fn reader<'t>(object: &'t Object, pages: u64, len: usize, thread: usize) -> impl Worker + 't {
    // The same places for every contestant.
    let mut random = Random::new(stream::seed(0, thread));
    let mut buffer = AlignedBytes::new(len);
    let places = pages * (PAGE_BYTES / len) as u64;
    move |mut times: Option<&mut Histogram>| {
        for _ in 0..TURN {
            let at = scale(random.next_u64(), places) * len as u64;
            timed(&mut times, || Ok::<(), Error>(object.read_at(at, &mut buffer)?))?;
            let (page, skip) = (at / PAGE_BYTES as u64, at as usize % PAGE_BYTES);
            content::check(page, skip, &buffer, "read at random")?;
        }
        Ok(TURN as u64)
    }
}

fn race(scratch: &Scratch, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let (pages, len) = (scratch.pages(), case.bytes.0 as usize);
    let mut subjects = Vec::new();
    for name in &case.contestants {
        run.step(case, &format!("filling {name}"))?;
        let times = if name == "octavo" { RACE_PERCENT } else { RESIDENT_PERCENT };
        let config = CacheConfig {
            memory_max_bytes: percent(offset(pages), times),
            page_bytes: PAGE_BYTES as u32,
            seed: Some(*SEEDS.start()),
            ..CacheConfig::default()
        };
        let subject = Subject::new(config, partition_config(case), scratch.open()?)?;
        pass(&subject.object, pages)?;
        subjects.push(subject);
    }
    let teams: Vec<Team<'_>> = (case.contestants.iter().zip(&subjects))
        .map(|(name, subject)| Team::new(name, move |thread| Ok(reader(&subject.object, pages, len, thread))))
        .collect();
    let pace = Pace { clock: Clock::Wall, ..Pace::new(9.0, 120) };
    let before: Vec<_> = subjects.iter().map(|subject| subject.partition.stat()).collect();
    let (mut row, _) = run.race(case, pace, &teams)?;
    row.add("goal", RACE_GOAL);
    for ((name, subject), before) in case.contestants.iter().zip(&subjects).zip(before) {
        let did = Delta { before, after: subject.partition.stat() };
        let resident = did.after.resident_bytes as f64 / offset(pages) as f64;
        let (resident_key, hits_key) = match name == "octavo" {
            true => ("resident", "hit_ratio"),
            false => ("reference_resident", "reference_hit_ratio"),
        };
        row.add(resident_key, resident);
        row.add(hits_key, did.hit_ratio());
    }
    Ok(row)
}
