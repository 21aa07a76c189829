//! `octavo`, the default policy: it chooses its eviction order by the load.
//!
//! No eviction order is the best for every load. Five orders run side by side on miniatures of the
//! partition, and the sets follow the order whose miniature misses least (`learner` says how recent
//! and earlier misses are weighted):
//!
//! * *density*: expected hits per unit of time from now on, learned from pages of the same history
//!   and age (Beckmann, Chen, Cidon, "LHD", NSDI '18, with the features of this file);
//! * *rate*: the number of uses, divided by the time since the last use (after Blankstein, Sen,
//!   Freedman, "Hyperbolic Caching", ATC '17); but a page that was used only once is evicted first,
//!   unless it came in within the last eighth of a turnover (the small queue of Yang et al.,
//!   "S3-FIFO", SOSP '23);
//! * *lrfu*: the number of uses, whose weight halves every eight turnovers of the set (Lee et al.,
//!   SIGMETRICS '99);
//! * *lfu*: the number of uses; among equals the most recently used page is evicted. Best for
//!   loops, where it keeps the same part of the loop;
//! * *recency*: the square root of the number of uses, divided by the time since the last use. It
//!   differs little from *lru* and suits loads where old uses predict nothing.
//!
//! A page's sixteen bits are its history. Ghosts keep the history, and a page that returns
//! continues with it:
//!
//! | bits | what |
//! |---|---|
//! | 15..8 | the set's clock at the last use |
//! | 7..2 | uses, saturating; several uses between two arrivals in the set count as one |
//! | 1..0 | last interval between uses, in turnovers: none yet, below 1/4, below 3, longer |
//!
//! Time is the set's own clock, which advances by one tick when a page comes in. A turnover is as
//! many ticks as the set has ways.

use super::lead::{BUCKETS, Order};
use super::view::{Policy, View};
use crate::sync::atomic::Ordering::Relaxed;

/// The policy that chooses its eviction order by the load; see the head of this file.
pub struct Octavo;

const USES_MAX: u16 = 63;

/// The search for a victim reduces larger ages to this, so that eight bits hold the age of every
/// page, and of its ghost later on.
const AGE_MAX: u8 = 180;

fn uses(meta: u16) -> u16 {
    meta >> 2 & USES_MAX
}

/// Returns the ticks since the last use.
pub(crate) fn age(meta: u16, clock: u16) -> u8 {
    (clock as u8).wrapping_sub((meta >> 8) as u8)
}

fn history(clock: u16, uses: u16, interval: u16) -> u16 {
    clock << 8 | uses.min(USES_MAX) << 2 | interval
}

fn interval(age: u8, ways: usize) -> u16 {
    match age as usize {
        age if age < ways.div_ceil(4) => 1,
        age if age < 3 * ways => 2,
        _ => 3,
    }
}

/// Returns the history of a page after one more use.
fn used_again(meta: u16, clock: u16, ways: usize) -> u16 {
    history(clock, uses(meta) + 1, interval(age(meta, clock), ways))
}

/// Returns the index of the cell, below `CLASSES * BUCKETS`, for a history and an age.
#[inline(always)]
pub(crate) fn cell(meta: u16, age: u8) -> usize {
    FIRST_CELL[meta as usize & 0xff] as usize + BUCKET[age as usize] as usize
}

/// The first cell of a history, by its lower byte.
const FIRST_CELL: [u16; 256] = {
    let mut cells = [0; 256];
    let mut meta = 0;
    while meta < cells.len() {
        let by_uses = match meta >> 2 {
            0..=1 => 0,
            2 => 1,
            3 => 2,
            4..=5 => 3,
            6..=8 => 4,
            9..=15 => 5,
            16..=31 => 6,
            _ => 7,
        };
        cells[meta] = ((by_uses * 4 + (meta & 3)) * BUCKETS) as u16;
        meta += 1;
    }
    cells
};

/// The bucket of an age.
const BUCKET: [u8; 256] = {
    let mut buckets = [0; 256];
    let mut age = 0;
    while age < buckets.len() {
        let odd = 2 * age + 1;
        let doubling = odd.ilog2() as usize;
        // The two bits after the highest.
        buckets[age] = (4 * doubling + ((odd << 2 >> doubling) & 3)) as u8;
        age += 1;
    }
    buckets
};

/// `log2(uses) * 256`.
const LOG2_256: [u32; USES_MAX as usize + 1] = [
    0, 0, 256, 406, 512, 594, 662, 719, 768, 812, 850, 886, 918, 947, 975, 1000, 1024, 1046, 1068, 1087,
    1106, 1124, 1142, 1158, 1174, 1189, 1203, 1217, 1231, 1244, 1256, 1268, 1280, 1291, 1302, 1313, 1324,
    1334, 1343, 1353, 1362, 1372, 1380, 1389, 1398, 1406, 1414, 1422, 1430, 1437, 1445, 1452, 1459, 1466,
    1473, 1480, 1487, 1493, 1500, 1506, 1512, 1518, 1524, 1530,
];

/// `sqrt(uses) * 256`.
const SQRT_256: [u16; USES_MAX as usize + 1] = {
    let mut roots = [0u16; USES_MAX as usize + 1];
    let mut uses = 0;
    while uses < roots.len() {
        roots[uses] = ((uses as u32) << 16).isqrt() as u16;
        uses += 1;
    }
    roots
};

/// Half-life of a use in `Order::Lrfu`, in turnovers.
const HALF_LIFE: u32 = 8;

/// `2^24 / (age + 1)`, rounded up: a multiplication by it replaces a division, with exact results
/// for the numbers that `Order::Rate` divides.
const PER_TICK: [u32; 256] = {
    let mut quotients = [0; 256];
    let mut age = 0;
    while age < quotients.len() {
        quotients[age] = (1u32 << 24).div_ceil(age as u32 + 1);
        age += 1;
    }
    quotients
};

/// Returns the worth of a page by an order; the page with the least worth is evicted. `density`
/// returns the density of a cell.
#[inline(always)]
fn worth(order: Order, meta: u16, age: u8, ways: usize, density: impl Fn(usize) -> u16) -> u32 {
    let uses = uses(meta) as u32;
    let youth = u8::MAX - age;
    let (worth, among_equals) = match order {
        Order::Density => (density(cell(meta, age)) as u32, youth),
        Order::Rate => {
            let rate = ((uses as u64 * 256 * PER_TICK[age as usize] as u64) >> 24) as u32;
            let is_due = uses == 1 && age as usize >= ways / 8;
            (if is_due { 0 } else { rate }, youth)
        }
        Order::Lrfu => (LOG2_256[uses as usize] * HALF_LIFE * ways as u32 + youth as u32 * 256, youth),
        // A page that has not been used for `AGE_MAX` ticks is worth nothing, however often it was
        // used before.
        Order::Lfu => (if age < AGE_MAX { uses } else { 0 }, age),
        Order::Recency => {
            (((SQRT_256[uses as usize] as u64 * PER_TICK[age as usize] as u64) >> 16) as u32, youth)
        }
    };
    worth << 8 | among_equals as u32
}

/// Returns the way that an order evicts. Limits the ages of all ways to `AGE_MAX`.
#[inline(always)]
pub(crate) fn victim_by(
    order: Order,
    view: &View<'_>,
    candidates: u32,
    density: impl Fn(usize) -> u16,
) -> usize {
    // One loop per order, so that no loop tests the order at each way.
    match order {
        Order::Density => least(Order::Density, view, candidates, density),
        Order::Rate => least(Order::Rate, view, candidates, density),
        Order::Lrfu => least(Order::Lrfu, view, candidates, density),
        Order::Lfu => least(Order::Lfu, view, candidates, density),
        Order::Recency => least(Order::Recency, view, candidates, density),
    }
}

#[inline(always)]
fn least(order: Order, view: &View<'_>, candidates: u32, density: impl Fn(usize) -> u16) -> usize {
    let mut least = u32::MAX;
    for way in 0..view.ways() {
        let meta = view.meta(way);
        // The bits are stored even if they do not change, because a branch on the age would be hard
        // to predict.
        let age = age(meta, view.clock).min(AGE_MAX);
        view.set_meta(way, view.clock.wrapping_sub(age as u16) << 8 | meta & 0xff);
        // The number that is compared includes the way; a way that is no candidate gets the highest
        // number.
        let excluded = (candidates >> way & 1).wrapping_sub(1);
        let worth = worth(order, meta, age, view.ways(), &density);
        least = least.min(worth << WAY_BITS | way as u32 | excluded);
    }
    (least & ((1 << WAY_BITS) - 1)) as usize
}

/// Number of bits of a way's number. The worth of a page has the other 27 bits; a test shows that
/// no order needs more.
const WAY_BITS: u32 = 5;

impl Policy for Octavo {
    const GHOSTS: bool = true;
    const LEARNS: bool = true;

    #[inline(always)]
    fn touched(meta: u16, clock: u16, ways: usize) -> u16 {
        used_again(meta, clock, ways)
    }

    fn admitted(view: &View<'_>, ghost: Option<u16>) -> u16 {
        match ghost {
            Some(meta) => used_again(meta, view.clock, view.ways()),
            None => history(view.clock, 1, 0),
        }
    }

    fn rebased(meta: u16, then: u16, now: u16) -> u16 {
        now.wrapping_sub(age(meta, then) as u16) << 8 | meta & 0xff
    }

    fn victim(view: &View<'_>, candidates: u32) -> usize {
        match view.lead {
            Some(lead) => {
                let order = lead.order();
                let densities = if order == Order::Density { lead.densities() } else { &[] };
                victim_by(order, view, candidates, |cell| densities[cell].load(Relaxed))
            }
            // Without a learner: the order that differs little from lru.
            None => victim_by(Order::Recency, view, candidates, |_| 0),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn ages_fall_into_buckets_in_order_and_fill_them() {
        assert_eq!((BUCKET[0], BUCKET[255] as usize + 1), (0, BUCKETS));
        assert!(BUCKET.is_sorted());
    }

    #[test]
    fn a_history_counts_its_uses_and_its_last_interval() {
        let mut meta = history(250, 1, 0);
        meta = used_again(meta, 252, 16);
        assert_eq!((uses(meta), meta & 3, age(meta, 252)), (2, 1, 0));
        // The clock's low byte wraps.
        meta = used_again(meta, 262, 16);
        assert_eq!((uses(meta), meta & 3, age(meta, 263)), (3, 2, 1));
        meta = used_again(meta, 262 + 48, 16);
        assert_eq!((uses(meta), meta & 3), (4, 3));
        for _ in 0..100 {
            meta = used_again(meta, 400, 16);
        }
        assert_eq!(uses(meta), USES_MAX);
        assert_eq!(age(Octavo::rebased(meta, 410, 77), 77), 10);
    }

    #[test]
    fn each_order_evicts_the_page_that_its_definition_says() {
        let by = |order, meta| worth(order, meta, age(meta, 100), 16, |cell| cell as u16);
        let (old_often, new_once) = (history(60, 9, 2), history(98, 1, 0));
        assert!(by(Order::Recency, old_often) < by(Order::Recency, new_once));
        assert!(by(Order::Lfu, old_often) > by(Order::Lfu, new_once));
        assert!(by(Order::Rate, old_often) < by(Order::Rate, history(99, 1, 0)));
        assert!(by(Order::Rate, old_often) > by(Order::Rate, new_once));
        assert!(by(Order::Lrfu, old_often) > by(Order::Lrfu, new_once));
        // Among pages of equal worth, `Lfu` evicts the most recently used one, the others the least
        // recently used one.
        let (older, younger) = (history(97, 1, 0), history(98, 1, 0));
        assert!(by(Order::Lfu, older) > by(Order::Lfu, younger));
        assert!(by(Order::Lrfu, older) < by(Order::Lrfu, younger));
        assert!(by(Order::Recency, older) < by(Order::Recency, younger));
        // Of two pages used at the same time, the one used more often stays.
        assert!(by(Order::Recency, history(97, 4, 2)) > by(Order::Recency, older));
        // A page of the maximum age is evicted first, not last.
        assert!(
            by(Order::Lfu, history(100u16.wrapping_sub(AGE_MAX as u16), 9, 2)) < by(Order::Lfu, new_once)
        );
    }

    #[test]
    fn the_worth_of_a_page_leaves_room_for_the_number_of_its_way() {
        // Under miri only both ends of the range.
        let step = if cfg!(miri) { AGE_MAX as usize } else { 1 };
        let all = (0..=AGE_MAX).step_by(step).flat_map(|age| (0..=USES_MAX).map(move |uses| (age, uses)));
        for ((age, uses), order) in all.flat_map(|page| Order::ALL.map(|order| (page, order))) {
            let worth = worth(order, history(0, uses, 0), age, 32, |_| u16::MAX);
            assert!(worth < (1 << (u32::BITS - WAY_BITS)) - 1, "{order:?}: {uses} uses, {age} ticks ago");
        }
    }

    #[test]
    fn multiplying_by_the_table_equals_dividing() {
        for (age, quotient) in PER_TICK.iter().enumerate() {
            for uses in 0..=USES_MAX as u64 {
                assert_eq!(
                    (uses * 256 * *quotient as u64) >> 24,
                    uses * 256 / (age as u64 + 1),
                    "{uses} {age}"
                );
            }
        }
    }

    #[test]
    fn the_logarithms_are_right() {
        for (uses, log) in LOG2_256.iter().enumerate().skip(1) {
            assert!(((uses as f64).log2() * 256.0 - *log as f64).abs() <= 0.5, "{uses}");
        }
    }
}
