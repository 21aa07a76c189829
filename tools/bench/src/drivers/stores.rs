//! Stores to memory that other threads read, per hit: counted, not timed.
//!
//! A hit reads shared memory, and writes counters that only its own thread writes. Its only stores
//! to memory that other threads read are its messages to the policy and the monitor:
//!
//! - the page's mark, if this is its first hit since a page came into the set; with a policy that
//!   counts hits the page's policy bits, if they change,
//! - for the first mark of a page that the learner follows a *lesson*, some dozens of words,
//! - for every hit of a page that the monitor of miss curves follows an entry in the thread's ring,
//!   which only the drain reads, a few times a second.
//!
//! One thread runs accesses through a table without frames, by the engine's own code, and asks
//! before each hit what it will store. A hit stores the same with more threads: these counts
//! include stamps, frequencies and the sampler, and a hit stores nothing else.
//!
//! Bisection finds the number of accessed pages that gives the case's share of hits.

use octavo_table::{Claim, Mixer, Shape, Table};

use crate::case::Case;
use crate::error::Error;
use crate::report::Row;
use crate::stage::{Driver, Run, hit_ratio};
use crate::stream;

pub const DRIVER: Driver = Driver {
    name: "stores",
    purpose: "stores of hits to memory that other threads read",
    contestants: &[],
    scenery: &[],
    check: |_| Ok(()),
    // A table without frames.
    memory: |needs| needs.frames / 50,
    set: |_, _| Ok(Box::new(rows)),
};

/// The most words that a lesson stores: two of the lock, and about seven in each of five
/// miniatures.
const STORES_OF_LESSON: f64 = 40.0;

/// Stores to shared lines per access to a page that the monitor follows: an entry of eight bytes in
/// a ring of the thread's own. The drain takes each line of 64 bytes once.
const STORES_OF_SHOWN: f64 = 1.0 / 8.0;

/// The same number if threads share a ring: the entry, the ring's end, and the recently seen pages.
const STORES_OF_SHOWN_TOGETHER: f64 = 3.0;

/// Accesses between two drains of the monitor's rings.
const DRAINED_AFTER: usize = 4096;

/// The counts of some accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    hits: u64,
    misses: u64,
    marks: u64,
    lessons: u64,
    shown: u64,
    /// The monitor's rings: this many threads have a ring of their own.
    rings: usize,
}

impl Counts {
    fn hit_ratio(&self) -> f64 {
        hit_ratio(self.hits, self.misses)
    }
}

/// Runs `warm` accesses to reach a steady state, then `counted` ones that count.
fn count(case: &Case, pages: u64, warm: usize, counted: usize) -> Result<Counts, Error> {
    let segments_max = (case.memory.0 >> 21).max(1) as u32;
    let shape = Shape { segments_max, sets_per_segment: 32 };
    let table: Table<16> = Table::new(shape, case.policy.0, segments_max);
    table.watch(table.slots_count(), table.slots_count() * 4096 / 100);
    let mixer = Mixer::new(1);
    let mut counts = Counts::default();
    for (number, page) in stream::pages(&case.workload, pages, 1)?.take(warm + counted).enumerate() {
        if number == warm {
            counts = Counts::default();
        }
        let tag = mixer.tag(page);
        if number % DRAINED_AFTER == 0 {
            table.drain_monitor();
        }
        if let Some(found) = table.find(tag) {
            let (stores, lesson, shown) = table.stores_of_hit(&found);
            table.touch(&found);
            counts.hits += 1;
            counts.shown += u64::from(shown);
            counts.marks += u64::from(stores);
            counts.lessons += u64::from(lesson);
            continue;
        }
        let Claim::Claimed { slot, .. } = table.lock(tag).claim(tag) else {
            return Err(Error::new("a page that no thread holds could not be claimed"));
        };
        let waited = table.publish(slot, false);
        debug_assert!(!waited, "no other thread exists that could wait");
        counts.misses += 1;
    }
    counts.rings = table.monitor().map_or(0, |monitor| monitor.rings());
    Ok(counts)
}

fn rows(case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
    let slots = (case.memory.0 >> 12).max(512);
    let (probe, counted) = match run.options.quick {
        true => (slots as usize * 4, slots as usize * 4),
        false => (slots as usize * 12, slots as usize * 40),
    };
    let wanted = f64::from(case.hits.0) / 100.0;
    // `few` pages are all resident: every set has room. `many` pages are far too many.
    let (mut few, mut many) = (slots / 4, slots * 64);
    let mut pages = few;
    if case.hits.0 < 100 {
        for round in 0..12 {
            run.step(case, &format!("bisecting for a hit ratio of {wanted}, {} of 12", round + 1))?;
            pages = few.midpoint(many);
            match count(case, pages, probe, probe / 2)?.hit_ratio() > wanted {
                true => few = pages,
                false => many = pages,
            }
        }
    }
    run.news(case, "counting");
    // The warm-up is as long as the count, so that every resident page has been accessed.
    let counts = count(case, pages, counted, counted)?;
    let through = |number: u64| number as f64 / counts.hits.max(1) as f64;
    let mut row = Row::new(run.suite, case);
    row.add("hit_ratio", counts.hit_ratio());
    row.add("pages", pages);
    row.add("hits_counted", counts.hits);
    row.add("first_marks_per_hit", through(counts.marks));
    row.add("lessons_per_hit", through(counts.lessons));
    row.add("monitored_per_hit", through(counts.shown));
    let of_policy = through(counts.marks) + STORES_OF_LESSON * through(counts.lessons);
    row.add("shared_stores_per_hit_unwatched", of_policy);
    let of_shown = if counts.rings > 1 { STORES_OF_SHOWN } else { STORES_OF_SHOWN_TOGETHER };
    row.add("monitor_rings", counts.rings as u64);
    row.add("shared_stores_per_hit", of_policy + of_shown * through(counts.shown));
    Ok(vec![row])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn with_all_pages_resident_a_page_is_marked_once() {
        let case = Suite::find("stores", true).unwrap().cases[0].clone().with_memory_bytes(2 << 20);
        // 128 pages: far fewer than slots, so every set has room for its pages.
        let cold = count(&case, 128, 0, 50_000).unwrap();
        assert!(cold.misses <= 128 && cold.marks <= 128 * 16 && cold.marks > 0, "{cold:?}");
        let warm = count(&case, 128, 50_000, 50_000).unwrap();
        assert_eq!((warm.misses, warm.marks, warm.lessons), (0, 0, 0), "{warm:?}");
    }
}
