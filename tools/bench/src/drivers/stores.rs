//! Stores to memory that other threads read, for each hit: counted, not timed.
//!
//! A hit reads shared memory and writes counters that only its own thread writes. All that it may
//! store where others read is what it tells the policy: its page's mark, if it is the first since a
//! page came into the set, or with a policy that counts hits the page's bits where they change;
//! a first mark of a page that the learner follows is a lesson, which stores some dozens of words;
//! and every hit of a page that the monitor of miss curves follows is put into the thread's ring,
//! where only the drain looks, some times a second. One thread runs accesses through a table
//! without frames, by the engine's own code, and asks before each hit what it will store. With more
//! threads a hit stores what it does with one: stamps, frequencies and the sampler are in these
//! counts, and there is nothing else.
//!
//! The share of hits is set by the number of pages that the accesses fall on, found by bisection.

use octavo_table::{Claim, Mixer, Shape, Table};

use crate::Error;
use crate::case::Case;
use crate::drivers::{Run, Stage};
use crate::report::Row;
use crate::stream;

/// Words that a lesson stores at most: the lock's two, and seven or so in each of five miniatures.
const STORES_OF_LESSON: f64 = 40.0;

/// Stores to shared lines of an access to a page that the monitor follows: an entry of eight bytes
/// in a ring that is the thread's own, whose lines the drain takes, each once.
const STORES_OF_SHOWN: f64 = 1.0 / 8.0;

/// The same where threads share a ring: its place, the ring's end, what was seen of late.
const STORES_OF_SHOWN_TOGETHER: f64 = 3.0;

/// Accesses after which somebody looks at what the monitor was shown.
const DRAINED_AFTER: usize = 4096;

/// Nothing lasts from case to case.
pub struct Counter;

/// What some accesses did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    hits: u64,
    misses: u64,
    marks: u64,
    lessons: u64,
    shown: u64,
    /// The monitor's rings: so many threads have one of their own.
    rings: usize,
}

impl Counts {
    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// Runs `warm` accesses to a steady state and counts in as many more as are asked for.
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
            return Err(Error::new("a page that nobody holds could not be claimed"));
        };
        let waited = table.publish(slot, false);
        debug_assert!(!waited, "nobody else is there to wait");
        counts.misses += 1;
    }
    counts.rings = table.monitor().map_or(0, |monitor| monitor.rings());
    Ok(counts)
}

impl Stage for Counter {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let slots = (case.memory.0 >> 12).max(512);
        let (probe, counted) = match run.options.quick {
            true => (slots as usize * 4, slots as usize * 4),
            false => (slots as usize * 12, slots as usize * 40),
        };
        let wanted = f64::from(case.hits.0) / 100.0;
        // All resident: few enough that no set is short of ways. Else between that and far too many.
        let (mut few, mut many) = (slots / 4, slots * 64);
        let mut pages = few;
        if case.hits.0 < 100 {
            for round in 0..12 {
                run.news(case, &format!("looking for a hit ratio of {wanted}, {} of 12", round + 1));
                pages = few.midpoint(many);
                match count(case, pages, probe, probe / 2)?.hit_ratio() > wanted {
                    true => few = pages,
                    false => many = pages,
                }
            }
        }
        run.news(case, "counting");
        // Every page that is resident is asked for at last.
        let counts = count(case, pages, counted, counted)?;
        let through = |number: u64| number as f64 / counts.hits.max(1) as f64;
        let mut row = Row::new(run.suite, case);
        row.number("hit_ratio", counts.hit_ratio());
        row.count("pages", pages);
        row.count("hits_counted", counts.hits);
        row.number("first_marks_per_hit", through(counts.marks));
        row.number("lessons_per_hit", through(counts.lessons));
        row.number("monitored_per_hit", through(counts.shown));
        let of_policy = through(counts.marks) + STORES_OF_LESSON * through(counts.lessons);
        row.number("shared_stores_per_hit_unwatched", of_policy);
        let of_shown = if counts.rings > 1 { STORES_OF_SHOWN } else { STORES_OF_SHOWN_TOGETHER };
        row.count("monitor_rings", counts.rings as u64);
        row.number("shared_stores_per_hit", of_policy + of_shown * through(counts.shown));
        Ok(vec![row])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn where_all_is_resident_a_page_is_marked_once_and_never_again() {
        let mut case = Suite::find("stores", true).unwrap().cases[0].clone();
        case = case.with_memory_bytes(2 << 20);
        // 128 pages: far fewer than there are slots, and a set has room for all that fall into it.
        let cold = count(&case, 128, 0, 50_000).unwrap();
        assert!(cold.misses <= 128 && cold.marks <= 128 * 16 && cold.marks > 0, "{cold:?}");
        let warm = count(&case, 128, 50_000, 50_000).unwrap();
        assert_eq!((warm.misses, warm.marks, warm.lessons), (0, 0, 0), "{warm:?}");
    }
}
