//! Churn: hits among misses that fill the cache and then turn it over, and how the time of hits
//! changes once the cache is full.
//!
//! A quarter of the frames holds *hot* pages, which are read again and again and stay resident. The
//! case's `hits` percent of the reads go there. The other reads go through the rest of the file in
//! order, so that nearly all of them miss: no page is read again before all the others were read.
//! (A policy can still keep some of them; rows report the hit ratio.) Timed operations are the
//! reads of hot pages.
//!
//! `octavo-filling` is emptied before each of its slices except for the hot pages, so that its
//! misses find free frames. `octavo` is full, so that its misses evict pages. The two caches have
//! the same settings and cache the same file. `bare` reads hot pages from an array, and the others
//! directly.

use std::sync::atomic::{AtomicU64, Ordering};

use octavo::Advice;
use octavo::disk::AlignedBytes;
use octavo_random::{Random, mix, scale};

use crate::case::Case;
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::machine;
use crate::reference::{Array, UNIT_SHIFT};
use crate::report::Row;
use crate::scratch::Scratch;
use crate::stage::{Driver, Run, Subject, cache_config, offset, partition_config};
use crate::statistics::Histogram;
use crate::turns::{Pace, Team, Worker, timed};

pub const DRIVER: Driver = Driver {
    name: "churn",
    purpose: "hits among misses that fill and turn over the cache",
    contestants: &["octavo", "octavo-filling", "bare"],
    scenery: &["store", "memory", "file", "policy"],
    check,
    memory: |needs| needs.file + needs.frames * 9 / 4,
    set: |case, run| {
        let pair = TwoCaches::new(case, run)?;
        Ok(Box::new(move |case, run| pair.run(case, run).map(|row| vec![row])))
    },
};

/// Operations of a turn.
const TURN: usize = 32;

fn check(case: &Case) -> Result<(), String> {
    if case.file.0 < 4 * case.memory.0 {
        return Err("churn needs a file at least four times as large as memory".into());
    }
    match case.bytes.0 {
        128 | 4096 => Ok(()),
        other => Err(format!("bytes = {other}: 128 or 4096 are possible")),
    }
}

/// A full cache and one that fills, both over the same file, and an array with the hot pages.
struct TwoCaches {
    full: Side,
    filling: Side,
    array: Array,
    scratch: Scratch,
    hot_pages: u64,
    /// Resident bytes of this process when the stage was set.
    resident_bytes: u64,
}

struct Side {
    subject: Subject,
    /// The number of cold pages read so far.
    cold: AtomicU64,
}

impl TwoCaches {
    fn new(case: &Case, run: &mut Run<'_>) -> Result<TwoCaches, Error> {
        let scratch = Scratch::new(case, "", run)?;
        let hot_pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        run.news(case, "filling the caches");
        let side = || -> Result<Side, Error> {
            let cache = cache_config(case.memory.0, 16 << 20);
            let subject = Subject::new(cache, partition_config(case), scratch.open()?)?;
            Ok(Side { subject, cold: AtomicU64::new(hot_pages) })
        };
        let mut array = Array::new(hot_pages as usize * PAGE_BYTES).map_err(Error::at("an array"))?;
        let (full, filling) = (side()?, side()?);
        content::fill_run(0, &mut array.bytes_mut()[..hot_pages as usize * PAGE_BYTES]);
        let mut pair = TwoCaches { full, filling, array, scratch, hot_pages, resident_bytes: 0 };
        // Hot pages alternate with cold ones until no frame is free.
        for round in 0..8 * hot_pages {
            pair.full.subject.touch([round % hot_pages, pair.next_cold(&pair.full)])?;
        }
        pair.resident_bytes = machine::resident_bytes();
        Ok(pair)
    }

    fn next_cold(&self, side: &Side) -> u64 {
        // Relaxed: every page is read; the order does not matter.
        let number = side.cold.fetch_add(1, Ordering::Relaxed);
        self.hot_pages + number % (self.scratch.pages() - self.hot_pages)
    }

    /// Evicts all pages of the filling cache except the hot ones.
    fn empty(&self) -> Result<(), Error> {
        let (subject, from) = (&self.filling.subject, offset(self.hot_pages));
        subject.object.advise(from, self.scratch.file_bytes - from, Advice::DontNeed)?;
        subject.touch(0..self.hot_pages)
    }

    fn run(&self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        let team = |name| {
            let team = Team::new(name, move |thread| Ok(self.worker(name, case, thread)));
            if name == "octavo-filling" { team.before(|| self.empty()) } else { team }
        };
        let teams: Vec<Team<'_>> = case.contestants.iter().map(|name| team(&**name)).collect();
        let pace = Pace::new(9.0, 150).timed();
        let ((mut row, _), did) = self.full.subject.measure(|| run.race(case, pace, &teams))?;
        row.add("hits_counted", did.hits());
        row.add("misses", did.misses());
        row.add("evictions", did.of(|stat| stat.evictions.capacity));
        row.add("bypasses", did.of(|stat| stat.bypasses));
        row.add("hit_ratio", did.hit_ratio());
        // At most the memory of one cache, because the filling one was empty. More would be a leak.
        let grown = machine::resident_bytes().saturating_sub(self.resident_bytes);
        row.add("resident_grown_mib", grown as f64 / f64::from(1 << 20));
        let p99 = |name: &str| row.standing(name).and_then(|standing| standing.p99_ns);
        if let (Some(full), Some(filling)) = (p99("octavo"), p99("octavo-filling")) {
            row.add("p99_full_through_filling", full / filling.max(1.0));
        }
        let filling = self.filling.subject.partition.stat();
        if filling.resident_bytes >= filling.max_bytes && case.has("octavo-filling") {
            row.notes.push("the filling cache became full within a slice".into());
        }
        Ok(row)
    }

    /// Creates a worker that reads hot and cold pages. The reads of hot pages are timed.
    fn worker<'t>(&'t self, name: &'t str, case: &'t Case, thread: usize) -> impl Worker + 't {
        let mut random = Random::new((thread as u64 + 1) << 40);
        let (len, side) = (case.bytes.0, if name == "octavo-filling" { &self.filling } else { &self.full });
        // `whole` is for direct reads.
        let (mut whole, mut buffer) = (AlignedBytes::new(PAGE_BYTES), AlignedBytes::new(len as usize));
        move |mut times: Option<&mut Histogram>| {
            for _ in 0..TURN {
                let drawn = random.next_u64();
                let (is_hot, other) = (case.hits.has(drawn), mix(drawn));
                let page = if is_hot { scale(other, self.hot_pages) } else { self.next_cold(side) };
                let skip = scale(mix(other), PAGE_BYTES as u64 / len) * len;
                let at = offset(page) + skip;
                let mut untimed = None;
                let times = if is_hot { &mut times } else { &mut untimed };
                timed(times, || match (name, is_hot) {
                    ("bare", true) => {
                        debug_assert!(at.is_multiple_of(1 << UNIT_SHIFT), "a place of the array");
                        self.array.read_words(at as usize, &mut buffer);
                        Ok(())
                    }
                    ("bare", false) => {
                        self.scratch.direct.read(page, &mut whole).map_err(Error::at("a direct read"))?;
                        buffer.copy_from_slice(&whole[skip as usize..][..len as usize]);
                        Ok(())
                    }
                    _ => side.subject.object.read_at(at, &mut buffer).map_err(Error::from),
                })?;
                content::check(page, skip as usize, &buffer, name)?;
            }
            Ok(TURN as u64)
        }
    }
}
