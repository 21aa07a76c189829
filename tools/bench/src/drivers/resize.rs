//! Reads while the table grows and shrinks, and how evenly pages fall on segments at every size.
//!
//! The pages that are read are a quarter of the cache's at its largest, half of it at its smallest,
//! so that nearly all stay. A thread of its own resizes between the two for as long as the slices
//! of one contestant last; the other's slices find the table at rest, at its largest.
//! What is missing is read from a store in memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use octavo::disk::{AlignedBytes, Store};
use octavo::{Cache, Object, Partition};
use octavo_table::{Mixer, Mover, PolicyKind, Shape, SlotIndex, Table};

use crate::Error;
use crate::case::Case;
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage, cache, hits};
use crate::report::Row;
use crate::statistics::Histogram;
use crate::stream::{self, Pages};
use crate::turns::{Team, Worker, timed};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["octavo", "octavo-resizing"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["memory", "policy"];

/// Reads between two looks at the clock.
const TURN: usize = 256;

/// A cache, and something to read.
pub struct Field {
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    _cache: Cache,
    pages: u64,
    largest_bytes: u64,
}

impl Field {
    /// Makes them, at their largest.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let (cache, partition) = cache(case, case.memory.0, 8 << 20)?;
        let pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        let store = Store::memory("pages", pages * PAGE_BYTES as u64);
        run.news(case, "filling the store");
        hits::write_content(&store, pages)?;
        let object = partition.open(store, "pages")?;
        let largest_bytes = partition.stat().charged_bytes;
        Ok(Field { object, partition, _cache: cache, pages, largest_bytes })
    }
}

/// What the resizing thread is told, and what it did.
#[derive(Default)]
struct Resizer {
    runs: AtomicBool,
    ends: AtomicBool,
    busy: AtomicBool,
    resizes: AtomicU64,
    /// In microseconds, all of them together.
    time_us: AtomicU64,
}

impl Resizer {
    /// Resizes while it is told to. SeqCst throughout: this is no hot path.
    fn serve(&self, field: &Field) -> Result<(), octavo::Error> {
        let mut small = false;
        while !self.ends.load(Ordering::SeqCst) {
            self.busy.store(true, Ordering::SeqCst);
            if self.runs.load(Ordering::SeqCst) || small {
                small = !small;
                let bytes = if small { field.largest_bytes / 2 } else { field.largest_bytes };
                let begun = std::time::Instant::now();
                field.partition.resize(bytes)?;
                self.time_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::SeqCst);
                self.resizes.fetch_add(1, Ordering::SeqCst);
            } else {
                self.busy.store(false, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let resizer = Resizer::default();
        let team = |name| Reader { name, field: self, case, resizer: &resizer };
        let teams: Vec<Reader<'_>> = case.contestants.iter().map(|name| team(name)).collect();
        let teams: Vec<&dyn Team> = teams.iter().map(|team| team as &dyn Team).collect();
        let mut plan = run.plan(case, (9.0, Duration::from_millis(250), Clock::Wall), teams.len());
        plan.timed = case.timed.unwrap_or(true);
        let before = self.partition.stat();
        let (slices, resized) = std::thread::scope(|scope| {
            let resizing = scope.spawn(|| resizer.serve(self));
            let slices = run.compete(case, plan, &teams);
            resizer.ends.store(true, Ordering::SeqCst);
            (slices, resizing.join())
        });
        let slices = slices?;
        resized.map_err(|_| Error::new("the resizing thread has panicked"))??;
        let after = self.partition.stat();
        let mut row = Row::new(run.suite, case);
        row.compare(case, plan, &teams, &slices);
        let resizes = resizer.resizes.load(Ordering::SeqCst);
        row.count("resizes", resizes);
        row.number(
            "ms_a_resize",
            resizer.time_us.load(Ordering::SeqCst) as f64 / 1e3 / resizes.max(1) as f64,
        );
        row.count("evicted_by_resizes", after.evictions.resize - before.evictions.resize);
        row.count("misses", after.misses - before.misses);
        row.number(
            "hit_ratio",
            1.0 - (after.misses - before.misses) as f64
                / (after.hits + after.misses - before.hits - before.misses).max(1) as f64,
        );
        Ok(vec![row])
    }
}

struct Reader<'t> {
    name: &'t str,
    field: &'t Field,
    case: &'t Case,
    resizer: &'t Resizer,
}

impl Team for Reader<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&self) -> Result<(), Error> {
        if self.name == "octavo-resizing" {
            self.resizer.runs.store(true, Ordering::SeqCst);
            return Ok(());
        }
        // At rest and at its largest; the pages that shrinking cost are read again.
        while self.resizer.busy.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(200));
        }
        let mut byte = [0; 8];
        for page in 0..self.field.pages {
            self.field.object.read_at(page * PAGE_BYTES as u64, &mut byte)?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), Error> {
        self.resizer.runs.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let pages = stream::pages(&self.case.workload, self.field.pages, thread as u64 + 1)?;
        let buffer = AlignedBytes::new(self.case.bytes.0.min(PAGE_BYTES as u64) as usize);
        Ok(Box::new(Thread { object: &self.field.object, pages, buffer }))
    }
}

struct Thread<'t> {
    object: &'t Object,
    pages: Pages,
    buffer: AlignedBytes,
}

impl Worker for Thread<'_> {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        for page in self.pages.by_ref().take(TURN) {
            let mut read = || self.object.read_at(page * PAGE_BYTES as u64, &mut self.buffer);
            match &mut times {
                Some(times) => timed(times, read)?,
                None => read()?,
            }
            if !content::is_right(page, 0, &self.buffer) {
                return Err(Error::new(format!("wrong bytes in page {page} while the table is resized")));
            }
        }
        Ok(TURN as u64)
    }
}

// ---- Evenness
// -----------------------------------------------------------------------------------------------------

/// A table without frames that grows from one segment, a row at every size.
pub struct Evenness;

/// Moves nothing: the table is empty.
struct Nothing;

impl Mover for Nothing {
    fn copy(&mut self, _: SlotIndex, _: SlotIndex) {}
    fn wake(&mut self, _: SlotIndex) {}
}

impl Stage for Evenness {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let segments_max = (case.memory.0 >> 21).clamp(2, 4096) as u32;
        let shape = Shape { segments_max, sets_per_segment: 32 };
        let table: Table<16> = Table::new(shape, PolicyKind::Lru, 1);
        let mixer = Mixer::new(1);
        let mut rows = Vec::new();
        for segments in 1..=segments_max {
            if segments > 1 {
                let segment = table.spare_segment().ok_or_else(|| Error::new("the table grows no more"))?;
                for mv in table.join(segment).into_iter().rev() {
                    table.advance(mv, &mut Nothing);
                }
            }
            // Every size that is small, and then fewer and fewer.
            if segments > 32 && !segments.is_multiple_of(1 << (segments.ilog2() - 4)) {
                continue;
            }
            let entries = table.entries_per_segment();
            let live: Vec<f64> =
                entries.iter().filter(|count| **count > 0).map(|count| *count as f64).collect();
            let mean = live.iter().sum::<f64>() / live.len() as f64;
            let mut row = Row::new(run.suite, case);
            row.case = format!("{}_{segments}", case.name);
            row.count("segments", segments.into());
            row.number("load_max_through_mean", live.iter().copied().fold(0.0, f64::max) / mean);
            row.number("load_min_through_mean", live.iter().copied().fold(f64::INFINITY, f64::min) / mean);
            rows.push(row);
        }
        debug_assert!(table.find(mixer.tag(1)).is_none(), "the table is empty");
        Ok(rows)
    }
}
