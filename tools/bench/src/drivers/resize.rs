//! Reads while the table grows and shrinks.
//!
//! The pages that are read are a quarter of the largest cache and half of the smallest, so nearly
//! all of them stay. During the slices of `octavo-resizing` a thread resizes the partition back and
//! forth between the two sizes; during those of `octavo` the partition rests at its largest. Misses
//! are read from a store in memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use octavo::disk::AlignedBytes;

use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::drivers::hits::filled_store;
use crate::error::Error;
use crate::report::Row;
use crate::stage::{Driver, Run, Subject, cache_config, offset, partition_config};
use crate::stream;
use crate::turns::{Pace, Team, page_reads};

pub const DRIVER: Driver = Driver {
    name: "resize",
    purpose: "reads while the table grows and shrinks",
    contestants: &["octavo", "octavo-resizing"],
    scenery: &["memory", "policy"],
    check: |_| Ok(()),
    memory: |needs| needs.frames * 5 / 4,
    set: |case, run| {
        run.news(case, "filling the store");
        let pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        let cache = cache_config(case.memory.0, 8 << 20);
        let subject = Subject::new(cache, partition_config(case), filled_store(pages)?)?;
        let largest_bytes = subject.partition.stat().charged_bytes;
        Ok(Box::new(move |case, run| row(&subject, pages, largest_bytes, case, run).map(|row| vec![row])))
    },
};

/// Reads of a turn.
const TURN: usize = 256;

/// The orders for the resizing thread, and the counts of its work. All accesses are SeqCst: none is
/// hot.
#[derive(Default)]
struct Resizer {
    runs: AtomicBool,
    ends: AtomicBool,
    busy: AtomicBool,
    resizes: AtomicU64,
    /// The time of all resizes, in microseconds.
    time_us: AtomicU64,
}

impl Resizer {
    /// Resizes while `runs` is set, and then once more if the partition is small.
    fn serve(&self, subject: &Subject, largest_bytes: u64) -> Result<(), octavo::Error> {
        let mut small = false;
        while !self.ends.load(SeqCst) {
            self.busy.store(true, SeqCst);
            if self.runs.load(SeqCst) || small {
                small = !small;
                let begun = Instant::now();
                subject.partition.resize(if small { largest_bytes / 2 } else { largest_bytes })?;
                self.time_us.fetch_add(begun.elapsed().as_micros() as u64, SeqCst);
                self.resizes.fetch_add(1, SeqCst);
            } else {
                self.busy.store(false, SeqCst);
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    fn wait_until_idle(&self) {
        while self.busy.load(SeqCst) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn row(
    subject: &Subject,
    pages: u64,
    largest_bytes: u64,
    case: &Case,
    run: &mut Run<'_>,
) -> Result<Row, Error> {
    let resizer = Resizer::default();
    let team = |name| {
        let team = Team::new(name, |thread| {
            let read = |page, buffer: &mut AlignedBytes| Ok(subject.object.read_at(offset(page), buffer)?);
            let drawn = stream::pages(&case.workload, pages, thread as u64 + 1)?;
            let len = case.bytes.0.min(PAGE_BYTES as u64) as usize;
            Ok(page_reads((TURN, len), drawn, "read while the table is resized", read))
        });
        if name == "octavo-resizing" {
            return team
                .before(|| {
                    resizer.runs.store(true, SeqCst);
                    Ok(())
                })
                .after(|| {
                    resizer.runs.store(false, SeqCst);
                    Ok(())
                });
        }
        // Each slice begins at the largest size, with all pages that are read resident again.
        team.before(|| {
            resizer.wait_until_idle();
            subject.touch(0..pages)
        })
    };
    let teams: Vec<Team<'_>> = case.contestants.iter().map(|name| team(name)).collect();
    let ((mut row, _), did) = subject.measure(|| {
        let (raced, resized) = std::thread::scope(|scope| {
            let resizing = scope.spawn(|| resizer.serve(subject, largest_bytes));
            let raced = run.race(case, Pace::new(9.0, 250).timed(), &teams);
            resizer.ends.store(true, SeqCst);
            (raced, resizing.join())
        });
        let raced = raced?;
        resized.map_err(|_| Error::new("the resizing thread has panicked"))??;
        Ok(raced)
    })?;
    let resizes = resizer.resizes.load(SeqCst);
    row.add("resizes", resizes);
    row.add("ms_a_resize", resizer.time_us.load(SeqCst) as f64 / 1e3 / resizes.max(1) as f64);
    row.add("evicted_by_resizes", did.of(|stat| stat.evictions.resize));
    row.add("misses", did.misses());
    row.add("hit_ratio", did.hit_ratio());
    Ok(row)
}
