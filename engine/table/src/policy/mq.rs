//! `mq`: eight queues by frequency, from which pages fall back with time (Zhou, Philbin, Li, "The
//! Multi-Queue Replacement Algorithm for Second Level Buffer Caches", USENIX ATC '01).
//!
//! A page used *f* times is in queue log2 *f*. A page that is not used for a lifetime is appended
//! to the queue below, and after another lifetime to the one below that. The first page of the
//! lowest queue is evicted. Ghosts (the paper's Qout) keep their frequency, and a page that returns
//! continues from it.
//!
//! | bits | what |
//! |---|---|
//! | 15..9 | uses minus 1, saturating; several uses between two arrivals in the set count as one |
//! | 8..0 | the set's clock at the last use |
//!
//! The queue is not stored: it is computed from uses and age when a victim is chosen. The paper
//! checks the first pages of the queues once per access, and so may move a page a little late; here
//! every page falls in time. The paper's lifetime is an estimate of the most frequent time between
//! uses of a page. Here it is one turnover of the set, which is as many arrivals as the set has
//! ways. On recorded traces, lifetimes of two and four turnovers caused as many misses on average
//! and more in the worst case, and so did counting every use.

use super::view::{Policy, View, ways_of};

/// Multi-Queue.
pub struct Mq;

const USES_MAX: u16 = 128;
const STAMP: u16 = (1 << 9) - 1;

/// The search for a victim reduces larger ages to this, so that nine bits hold every age.
const AGE_MAX: u16 = 480;

/// The highest queue. Its pages can fall to the lowest queue even in a set of 32 ways.
const QUEUE_MAX: u16 = USES_MAX.ilog2() as u16;
const _: () = assert!(QUEUE_MAX == 7 && QUEUE_MAX * 32 < AGE_MAX && AGE_MAX < STAMP);

fn uses(meta: u16) -> u16 {
    (meta >> 9) + 1
}

fn age(meta: u16, clock: u16) -> u16 {
    clock.wrapping_sub(meta) & STAMP
}

fn used(uses: u16, clock: u16) -> u16 {
    (uses.min(USES_MAX) - 1) << 9 | clock & STAMP
}

/// Returns the queue of a page of this age, and the time that the page has been in it.
fn place(meta: u16, age: u16, ways: usize) -> (u16, u16) {
    let lifetime = ways as u16;
    let queue = uses(meta).ilog2() as u16;
    let fallen = (age / lifetime).min(queue);
    (queue - fallen, age - fallen * lifetime)
}

impl Policy for Mq {
    const GHOSTS: bool = true;

    #[inline(always)]
    fn touched(meta: u16, clock: u16, _ways: usize) -> u16 {
        used(uses(meta) + 1, clock)
    }

    fn admitted(view: &View<'_>, ghost: Option<u16>) -> u16 {
        used(ghost.map_or(0, uses) + 1, view.clock)
    }

    fn rebased(meta: u16, then: u16, now: u16) -> u16 {
        used(uses(meta), now.wrapping_sub(age(meta, then)))
    }

    fn victim(view: &View<'_>, candidates: u32) -> usize {
        let mut first = (u16::MAX, 0, 0);
        for way in ways_of(candidates) {
            let meta = view.meta(way);
            let mut age = age(meta, view.clock);
            if age > AGE_MAX {
                age = AGE_MAX;
                view.set_meta(way, used(uses(meta), view.clock.wrapping_sub(AGE_MAX)));
            }
            let (queue, waited) = place(meta, age, view.ways());
            first = first.min((queue, u16::MAX - waited, way));
        }
        first.2
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn uses_choose_the_queue_and_time_takes_it_down() {
        let queue = |uses, age| place(used(uses, 0), age, 16);
        for (uses, expected) in [(1, 0), (2, 1), (3, 1), (4, 2), (7, 2), (8, 3), (127, 6), (128, 7), (999, 7)]
        {
            assert_eq!(queue(uses, 0), (expected, 0), "{uses} uses");
        }
        assert_eq!(queue(8, 15), (3, 15));
        assert_eq!(queue(8, 16), (2, 0));
        assert_eq!(queue(8, 47), (1, 15));
        assert_eq!(queue(8, 48), (0, 0));
        // There is no queue below the lowest: the page stays there.
        assert_eq!(queue(8, 200), (0, 152));
        assert_eq!(place(used(128, 0), AGE_MAX, 32), (0, AGE_MAX - 7 * 32));
    }

    #[test]
    fn a_use_counts_from_where_the_page_was_and_stops_at_the_highest_queue() {
        let mut meta = used(1, 510);
        meta = Mq::touched(meta, 514, 16);
        // The stamp wraps.
        assert_eq!((uses(meta), age(meta, 515)), (2, 1));
        for _ in 0..300 {
            meta = Mq::touched(meta, 600, 16);
        }
        assert_eq!((uses(meta), age(meta, 600)), (USES_MAX, 0));
        let moved = Mq::rebased(meta, 650, 9);
        assert_eq!((uses(moved), age(moved, 9)), (USES_MAX, 50));
    }

    #[test]
    fn the_first_of_the_lowest_queue_leaves() {
        let uses_and_ages = [(2, 3), (2, 32), (1, 30), (8, 7), (16, 10), (4, 7), (4, 12), (128, 30)];
        let set = crate::learning::miniature::Miniature::of_one_set(8, 1000);
        let view = set.first_set(None);
        for (way, (uses, age)) in uses_and_ages.into_iter().enumerate() {
            view.set_meta(way, used(uses, 1000 - age));
        }
        let mut left = 0xff;
        let mut order = Vec::new();
        while left != 0 {
            let way = Mq::victim(&view, left);
            left &= !(1 << way);
            order.push(way);
        }
        // Eight ways. 2 and 1 are in queue 0, for 30 and 24 arrivals; 6 fell to queue 1 four
        // arrivals ago, and 0 came there three ago; 5 is still in queue 2; 3 is in queue 3 for
        // longer than 4, which fell there; 7 fell from queue 7 to queue 4.
        assert_eq!(order, [2, 1, 6, 0, 5, 3, 4, 7]);
    }
}
