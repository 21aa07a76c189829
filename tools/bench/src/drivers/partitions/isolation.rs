//! A neighbour with `min` beside a scanner: the neighbour's hit ratio and the time of its hits
//! while the scanner rests, scans through a partition, and scans without a cache. The three take
//! turns in short slices. The reaper's thread runs as in a server.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use octavo::disk::AlignedBytes;
use octavo::{Cache, Object, Partition, PartitionConfig};

use super::goal::{Goal, judge};
use super::house::config;
use crate::case::Case;
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::machine;
use crate::report::Row;
use crate::scratch::Scratch;
use crate::stage::{Run, hit_ratio, offset};
use crate::statistics::Histogram;
use crate::stream;

/// What the scanner does: nothing, scans through its partition, scans directly, ends.
const WAYS: [&str; 3] = ["alone", "partition", "no cache"];
const ALONE: u32 = 0;
const CACHED: u32 = 1;
const DIRECT: u32 = 2;
const OVER: u32 = 3;

/// The sums over the slices with one kind of scan.
#[derive(Default)]
struct Heard {
    hits: Option<Histogram>,
    counts: (u64, u64),
    scanned: u64,
    time: Duration,
}

/// Measures the neighbour.
pub fn run(case: &Case, files: &[Scratch; 2], run: &mut Run<'_>, row: &mut Row) -> Result<(), Error> {
    let cache = Cache::new(config(case.memory.0))?;
    let config = |name: &str| PartitionConfig { policy: case.policy.0, ..PartitionConfig::new(name) };
    let promised = case.memory.0 / 4 * 3;
    let neighbour = cache.partition(PartitionConfig {
        min_bytes: promised,
        start_bytes: Some(promised),
        ..config("neighbour")
    })?;
    let scanner = cache.partition(PartitionConfig {
        read_ahead_max_bytes: case.ahead.0,
        start_bytes: Some(case.memory.0 / 8),
        ..config("scanner")
    })?;
    let own = neighbour.open(files[0].open()?, "neighbour")?;
    let scanned = scanner.open(files[1].open()?, "scanner")?;

    let seconds = run.time(case, 24.0).as_secs_f64();
    let (settling, rounds, slice) = match run.options.quick {
        true => (Duration::from_millis(100), 2, Duration::from_millis(20)),
        false => {
            let rounds = (seconds * 0.7 / 0.75).max(3.0) as usize;
            (Duration::from_secs_f64(seconds * 0.3 / 2.0), rounds, Duration::from_millis(250))
        }
    };
    let (what, progress) = (AtomicU32::new(ALONE), AtomicU64::new(0));
    let heard = std::thread::scope(|scope| {
        let scan = || scan(&scanned, &files[1], &what, &progress);
        let scanning = scope.spawn(scan);
        let mut reader = Reader::new(case, &neighbour, &own)?;
        let listened = (|| {
            // Let sizes settle, without the scanner and with it.
            for way in [ALONE, CACHED] {
                what.store(way, Relaxed);
                reader.read_for(settling, None)?;
            }
            let mut heard: [Heard; 3] = Default::default();
            for round in 0..rounds {
                run.step(case, &format!("round {} of {rounds}", round + 1))?;
                for (way, heard) in (ALONE..).zip(&mut heard) {
                    what.store(way, Relaxed);
                    // An I/O of the previous slice must not count in this one.
                    reader.read_for(slice / 10, None)?;
                    let (before, begun) = (progress.load(Relaxed), Instant::now());
                    let times = heard.hits.get_or_insert_with(Histogram::new);
                    let (hits, misses) = reader.read_for(slice, Some(times))?;
                    heard.counts.0 += hits;
                    heard.counts.1 += misses;
                    heard.scanned += progress.load(Relaxed) - before;
                    heard.time += begun.elapsed();
                }
            }
            Ok(heard)
        })();
        what.store(OVER, Relaxed);
        let ended = scanning.join().unwrap_or_else(|_| Err(Error::new("the scanner has panicked")));
        ended.and(listened)
    })?;
    tell(row, &heard);
    row.add("min_bytes", promised);
    row.add("neighbour_bytes", neighbour.stat().charged_bytes);
    row.add("scanner_bytes", scanner.stat().charged_bytes);
    Ok(())
}

fn tell(row: &mut Row, heard: &[Heard; 3]) {
    let ratio = |heard: &Heard| hit_ratio(heard.counts.0, heard.counts.1);
    let p99 = |heard: &Heard| heard.hits.as_ref().map_or(0.0, |times| times.percentile_ns(0.99));
    let [alone, cached, direct] = heard;
    row.add("hit_ratio_alone", ratio(alone));
    row.add("hit_ratio", ratio(cached));
    let change = 100.0 * (ratio(cached) - ratio(alone)).abs();
    judge(row, ("hit_ratio_change_points", "hit_ratio_change_goal"), change, Goal::Below(0.5));
    row.add("hit_p99_ns_alone", p99(alone));
    row.add("hit_p99_ns_no_cache", p99(direct));
    row.add("hit_p99_ns", p99(cached));
    let slower = p99(cached) / p99(direct).max(1.0);
    judge(row, ("hit_p99_ratio", "hit_p99_goal"), slower, Goal::Below(1.5));
    let speed = |heard: &Heard| heard.scanned as f64 / heard.time.as_secs_f64().max(1e-9);
    row.add("scanned_pages_per_s", speed(cached));
    row.add("scanned_pages_per_s_no_cache", speed(direct));
    row.notes.push(format!("the scanner: {}", WAYS.join(", then ")));
}

/// The neighbour's reader.
struct Reader<'r> {
    partition: &'r Partition,
    object: &'r Object,
    pages: stream::Pages,
    page: AlignedBytes,
}

impl<'r> Reader<'r> {
    fn new(case: &Case, partition: &'r Partition, object: &'r Object) -> Result<Reader<'r>, Error> {
        machine::pin(0);
        // Twice as many pages as the memory has; few of them are popular.
        let pages = (2 * case.memory.0).min(case.file.0) / PAGE_BYTES as u64;
        let pages = stream::pages(&case.workload, pages, 1)?;
        Ok(Reader { partition, object, pages, page: AlignedBytes::new(PAGE_BYTES) })
    }

    /// Reads for `time`, and adds the times of hits to `times`. Returns hits and misses.
    fn read_for(&mut self, time: Duration, mut times: Option<&mut Histogram>) -> Result<(u64, u64), Error> {
        let (before, begun) = (self.partition.stat(), Instant::now());
        while begun.elapsed() < time {
            for number in self.pages.by_ref().take(64) {
                let is_hit = times.is_some() && self.object.is_resident(offset(number));
                let asked = Instant::now();
                self.object.read_at(offset(number), &mut self.page)?;
                if let Some(times) = times.as_deref_mut().filter(|_| is_hit) {
                    times.add(asked.elapsed().as_nanos() as u64);
                }
                content::check(number, 0, &self.page, "the neighbour")?;
            }
        }
        let after = self.partition.stat();
        Ok((after.hits - before.hits, after.misses - before.misses))
    }
}

/// Scans the file again and again at full speed, in the way that `what` says.
fn scan(object: &Object, file: &Scratch, what: &AtomicU32, progress: &AtomicU64) -> Result<(), Error> {
    machine::pin(1);
    let mut page = AlignedBytes::new(PAGE_BYTES);
    let mut number = 0;
    loop {
        match what.load(Relaxed) {
            ALONE => std::thread::sleep(Duration::from_millis(1)),
            CACHED => object.read_at(offset(number), &mut page)?,
            DIRECT => file.direct.read(number, &mut page).map_err(Error::at("a direct read"))?,
            _ => return Ok(()),
        }
        number = (number + 1) % file.pages();
        // Relaxed, as all accesses here: a count, and a flag that takes effect soon.
        progress.fetch_add(1, Relaxed);
    }
}
