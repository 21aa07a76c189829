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

#[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
mod x86_64;

mod worth;

use super::lead::Order;
use super::view::{Policy, View};
use crate::sync::atomic::Ordering::Relaxed;
use worth::{AGE_MAX, USES_MAX, uses, worth};
pub(crate) use worth::{age, cell};

/// The policy that chooses its eviction order by the load; see the head of this file.
pub struct Octavo;

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

/// Returns the way that an order evicts. Limits the ages of all ways to `AGE_MAX`.
#[inline(always)]
pub(crate) fn victim_by(
    order: Order,
    view: &View<'_>,
    candidates: u32,
    density: impl Fn(usize) -> u16,
) -> usize {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    if let Some(meta) = view.meta_of_all() {
        return x86_64::least(order, meta, view.clock, candidates, density);
    }
    least_each(order, view, candidates, density)
}

/// The search way by way: the reference implementation.
#[inline]
fn least_each(order: Order, view: &View<'_>, candidates: u32, density: impl Fn(usize) -> u16) -> usize {
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
    use super::worth::{BUCKET, LOG2_256, PER_TICK};
    use super::*;
    use crate::policy::lead::{BUCKETS, CLASSES};
    use crate::sync::atomic::{AtomicU8, AtomicU16};
    use crate::word::ghost::Ghosts;
    use octavo_random::Random;

    const CELLS: usize = CLASSES * BUCKETS;

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

    /// Asserts that both searches choose the same way and leave the same bits.
    fn assert_same_search(order: Order, bits: &[u16], clock: u16, candidates: u32, densities: &[u16]) {
        let search = |by: &dyn Fn(&View<'_>) -> usize| {
            let meta: Vec<AtomicU16> = bits.iter().map(|bits| AtomicU16::new(*bits)).collect();
            let (hand, head, count) = (AtomicU8::new(0), AtomicU8::new(0), AtomicU8::new(0));
            let view = View::new(&meta, &hand, clock, Ghosts::new(&[], &head, &count), None, None);
            let way = by(&view);
            (way, meta.iter().map(|meta| meta.load(Relaxed)).collect::<Vec<_>>())
        };
        let found = search(&|view| victim_by(order, view, candidates, |cell| densities[cell]));
        let expected = search(&|view| least_each(order, view, candidates, |cell| densities[cell]));
        assert_eq!(found, expected, "{order:?} {clock} {candidates:#x} {bits:?}");
    }

    #[test]
    fn the_search_agrees_with_its_twin_on_random_sets() {
        let mut random = Random::new(3);
        for round in 0..if cfg!(miri) { 10 } else { 20_000 } {
            // Few different densities, uses and ages, so that many pages are equal.
            let (many, clock) = (round % 3 == 0, random.next_u64() as u16);
            let any = if many { u64::MAX } else { 0x8003 };
            let densities: Vec<u16> = (0..CELLS).map(|_| (random.next_u64() & any) as u16).collect();
            let ways = [16, 16, 16, 8, 32, 5][round % 6];
            let page = |random: &mut Random| match random.below(3) {
                0 => random.next_u64() as u16,
                1 => history(clock.wrapping_sub(random.below(3) as u16), random.below(4) as u16, 1),
                _ => history(clock.wrapping_sub(175 + random.below(10) as u16), random.below(70) as u16, 2),
            };
            let bits: Vec<u16> = (0..ways).map(|_| page(&mut random)).collect();
            let all = u32::MAX >> (u32::BITS - ways);
            let some = random.next_u64() as u32 & all;
            for (order, candidates) in Order::ALL.iter().flat_map(|order| [(*order, all), (*order, some)]) {
                if candidates != 0 {
                    assert_same_search(order, &bits, clock, candidates, &densities);
                }
            }
        }
    }

    /// Sorted by worth, each page is compared with the next one: then the search orders all pages
    /// as `worth` does.
    #[test]
    #[cfg_attr(miri, ignore = "under miri the search is its twin")]
    fn the_search_orders_all_histories_and_ages_by_their_worth() {
        let densities: Vec<u16> = (0..CELLS).map(|cell| (cell as u16).wrapping_mul(0x9E37)).collect();
        for order in Order::ALL {
            let page = |bits: u16| (worth(order, bits, age(bits, 0), 16, |cell| densities[cell]), bits);
            let mut pages: Vec<(u32, u16)> =
                (0..=u16::MAX).filter(|bits| age(*bits, 0) <= AGE_MAX).map(page).collect();
            pages.sort_unstable();
            for (number, pair) in pages.windows(2).enumerate() {
                let (first, second) = (number % 16, (number / 16 + 1 + number) % 16);
                if first != second {
                    let mut bits = [0; 16];
                    (bits[first], bits[second]) = (pair[0].1, pair[1].1);
                    assert_same_search(order, &bits, 0, 1 << first | 1 << second, &densities);
                    (bits[first], bits[second]) = (pair[1].1, pair[0].1);
                    assert_same_search(order, &bits, 0, 1 << first | 1 << second, &densities);
                }
            }
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
