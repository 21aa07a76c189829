//! Churn: hits among misses that fill and turn over the cache, and what becomes of the time of hits
//! when the cache is full.
//!
//! A quarter of the frames is hot: pages that are read again and again, and stay. So many reads in
//! a hundred go there; the others read the rest of the file in order, so that nearly every one of
//! them is a miss: none comes back before everything else was read (a policy may keep some of them,
//! and the hit ratio is counted). Where operations are timed, it
//! is the reads of hot pages. One contestant is emptied before each of its slices but for the hot
//! pages, so that its misses find room; the other is full, and its misses evict. Their caches are
//! alike and lie before the same file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use octavo::disk::AlignedBytes;
use octavo::{Advice, Cache, Object, Partition};

use crate::Error;
use crate::case::Case;
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage, cache};
use crate::machine;
use crate::reference::{Array, UNIT_SHIFT};
use crate::report::Row;
use crate::scratch::Scratch;
use crate::statistics::Histogram;
use crate::turns::{Team, Worker, timed};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["octavo", "octavo-filling", "bare"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "memory", "file", "policy"];

/// Operations between two looks at the clock.
const TURN: usize = 32;

/// Whether a case can be run; the error is a sentence.
pub fn check(case: &Case) -> Result<(), String> {
    if case.file.0 < 4 * case.memory.0 {
        return Err("churn needs a file four times as large as the cache".into());
    }
    match case.bytes.0 {
        128 | 4096 => Ok(()),
        other => Err(format!("bytes = {other}: 128 or 4096 are possible")),
    }
}

/// A file, and two caches before it.
pub struct Field {
    full: Side,
    filling: Side,
    array: Array,
    scratch: Scratch,
    hot_pages: u64,
    /// Resident bytes of this process once everything was filled.
    resident_bytes: u64,
}

struct Side {
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    _cache: Cache,
    /// The next page that nobody has read.
    cold: AtomicU64,
}

impl Side {
    fn new(case: &Case, scratch: &Scratch, hot_pages: u64) -> Result<Side, Error> {
        let (cache, partition) = cache(case, case.memory.0, 16 << 20)?;
        let object = partition.open(scratch.open()?, "file")?;
        Ok(Side { object, partition, _cache: cache, cold: AtomicU64::new(hot_pages) })
    }

    fn warm(&self, hot_pages: u64) -> Result<(), Error> {
        let mut byte = [0; 8];
        for page in 0..hot_pages {
            self.object.read_at(page * PAGE_BYTES as u64, &mut byte)?;
        }
        Ok(())
    }
}

impl Field {
    /// Makes them; the one cache is filled.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let scratch = Scratch::new(case, "", run)?;
        let hot_pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        run.news(case, "filling the caches");
        let (full, filling) = (Side::new(case, &scratch, hot_pages)?, Side::new(case, &scratch, hot_pages)?);
        // The hot pages in turn with others, until nothing is free.
        let mut byte = [0; 8];
        for round in 0..4 * hot_pages * 2 {
            for page in [round % hot_pages, full.next_cold(&scratch, hot_pages)] {
                full.object.read_at(page * PAGE_BYTES as u64, &mut byte)?;
            }
        }
        let mut array = Array::new(hot_pages as usize * PAGE_BYTES).map_err(Error::at("an array"))?;
        for (page, bytes) in (0..hot_pages).zip(array.bytes_mut().chunks_exact_mut(PAGE_BYTES)) {
            content::fill(page, bytes);
        }
        let resident_bytes = machine::resident_bytes();
        Ok(Field { full, filling, array, scratch, hot_pages, resident_bytes })
    }
}

impl Side {
    fn next_cold(&self, scratch: &Scratch, hot_pages: u64) -> u64 {
        // Relaxed: only that each page has its turn matters.
        hot_pages + self.cold.fetch_add(1, Ordering::Relaxed) % (scratch.pages() - hot_pages)
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let teams: Vec<Reader<'_>> =
            case.contestants.iter().map(|name| Reader { name, field: self, case }).collect();
        let teams: Vec<&dyn Team> = teams.iter().map(|team| team as &dyn Team).collect();
        let mut plan = run.plan(case, (9.0, Duration::from_millis(150), Clock::Wall), teams.len());
        plan.timed = case.timed.unwrap_or(true);
        let before = self.full.partition.stat();
        let slices = run.compete(case, plan, &teams)?;
        let after = self.full.partition.stat();
        let mut row = Row::new(run.suite, case);
        row.compare(case, plan, &teams, &slices);
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        row.count("hits_counted", hits);
        row.count("misses", misses);
        row.count("evictions", after.evictions.capacity - before.evictions.capacity);
        row.count("bypasses", after.bypasses - before.bypasses);
        row.number("hit_ratio", hits as f64 / (hits + misses).max(1) as f64);
        // The cache that fills has been empty, so this may be up to one cache. More is a leak.
        let grown = machine::resident_bytes().saturating_sub(self.resident_bytes);
        row.number("resident_grown_mib", grown as f64 / f64::from(1 << 20));
        let p99 = |name: &str| row.standing(name).and_then(|standing| standing.p99_ns);
        if let (Some(full), Some(filling)) = (p99("octavo"), p99("octavo-filling")) {
            row.number("p99_full_through_filling", full / filling.max(1.0));
        }
        let resident = self.filling.partition.stat();
        if resident.resident_bytes >= resident.max_bytes
            && case.contestants.iter().any(|n| n == "octavo-filling")
        {
            row.notes.push("the cache that was to be filling became full within a slice".into());
        }
        Ok(vec![row])
    }
}

struct Reader<'t> {
    name: &'t str,
    field: &'t Field,
    case: &'t Case,
}

impl Team for Reader<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&self) -> Result<(), Error> {
        if self.name != "octavo-filling" {
            return Ok(());
        }
        let Field { filling, hot_pages, scratch, .. } = self.field;
        let from = hot_pages * PAGE_BYTES as u64;
        filling.object.advise(from, scratch.file_bytes - from, Advice::DontNeed)?;
        filling.warm(*hot_pages)
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let seed = (thread as u64 + 1) << 40;
        Ok(Box::new(Thread {
            team: self,
            random: Box::new(content::random(seed)),
            page: AlignedBytes::new(PAGE_BYTES),
            buffer: AlignedBytes::new(self.case.bytes.0 as usize),
        }))
    }
}

struct Thread<'t> {
    team: &'t Reader<'t>,
    random: Box<dyn Iterator<Item = u64>>,
    page: AlignedBytes,
    buffer: AlignedBytes,
}

impl Worker for Thread<'_> {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        let Field { full, filling, scratch, hot_pages, .. } = self.team.field;
        let side = if self.team.name == "octavo-filling" { filling } else { full };
        let len = self.team.case.bytes.0;
        for random in self.random.by_ref().take(TURN) {
            let is_hot = content::below(random, 100) < self.team.case.hits.0.into();
            let other = content::mix(random);
            let page = match is_hot {
                true => content::below(other, *hot_pages),
                false => side.next_cold(scratch, *hot_pages),
            };
            let skip = content::below(content::mix(other), PAGE_BYTES as u64 / len) * len;
            let mut read = || self.team.read(side, is_hot, page, skip, (&mut self.buffer, &mut self.page));
            match &mut times {
                Some(times) if is_hot => timed(times, read)?,
                _ => read()?,
            }
            if !content::is_right(page, skip as usize, &self.buffer) {
                return Err(Error::new(format!("wrong bytes in page {page}, {}", self.team.name)));
            }
        }
        Ok(TURN as u64)
    }
}

impl Reader<'_> {
    #[inline]
    fn read(
        &self,
        side: &Side,
        is_hot: bool,
        page: u64,
        skip: u64,
        (buffer, private): (&mut AlignedBytes, &mut AlignedBytes),
    ) -> Result<(), Error> {
        let offset = page * PAGE_BYTES as u64 + skip;
        match (self.name, is_hot) {
            ("bare", true) => {
                debug_assert!(offset.is_multiple_of(1 << UNIT_SHIFT), "a place of the array");
                self.field.array.read_words(offset as usize, buffer);
                Ok(())
            }
            ("bare", false) => {
                self.field.scratch.direct.read(page, private).map_err(Error::at("a direct read"))?;
                let len = buffer.len();
                buffer.copy_from_slice(&private[skip as usize..][..len]);
                Ok(())
            }
            _ => Ok(side.object.read_at(offset, buffer)?),
        }
    }
}
