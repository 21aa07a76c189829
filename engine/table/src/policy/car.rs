//! `car`: one clock of pages that came once recently, one clock of pages that came again, and a
//! target that balances the two (Bansal, Modha, "CAR: Clock with Adaptive Replacement", FAST '04,
//! figure 2).
//!
//! A bit divides the pages of the set into the paper's T1 and T2, and the same bit divides its
//! ghosts into B1 and B2, oldest first as in the ring. A clock's hand is at its page with the
//! oldest stamp; a page that the hand passes gets a new stamp. The paper's rules for the directory
//! hold in each set: |T1| + |B1| is at most the number of ways, and so is the number of ghosts.
//!
//! The target, the number of pages that T1 should have, belongs to the partition
//! ([`Balance`](super::balance::Balance)), because one set sees too few returns. When a page with a
//! ghost returns, the target moves by as many pages of the whole partition as in the paper,
//! computed from the set's own |B1| and |B2|. A set compares its |T1| with its share of the target,
//! rounded to whole pages.
//!
//! | bits | what |
//! |---|---|
//! | 15 | the page came again: T2, and B2 once it has left |
//! | 14 | used since the hand passed; uses between two arrivals count as one, as in the paper |
//! | 13..0 | the set's clock when the page joined its list; among equals the lower way is older |
//!
//! On recorded and generated traces of more than 10 000 pages, at 1 to 40 % of them, the miss ratio
//! is 0.3 points above that of CAR over the whole partition, and at most 3.2 above. LRU inside sets
//! loses as much against LRU over the whole partition. Longer lists of ghosts than the paper's make
//! the miss ratio worse.
//!
//! Not here: the paper's bound over all sets together. A target of less than one page per set has
//! the same effect as one page per set.

use super::view::{Policy, View, ways_of};
use crate::word::ghost::ghosts_of;

/// CLOCK with adaptive replacement.
pub struct Car;

const AGAIN: u16 = 1 << 15;
const USED: u16 = 1 << 14;
const STAMP: u16 = USED - 1;

/// The search for a victim reduces larger ages to this, so that fourteen bits hold every age.
const AGE_MAX: u16 = 12_288;

fn age(meta: u16, clock: u16) -> u16 {
    clock.wrapping_sub(meta) & STAMP
}

fn stamped(list: u16, clock: u16) -> u16 {
    list | clock & STAMP
}

fn came_again(meta: u16) -> bool {
    meta & AGAIN != 0
}

/// Drops the ghost that the paper would have dropped when the last page came in. The arrival of a
/// page with a ghost breaks no rule.
fn keep_the_rules(view: &View<'_>) {
    let once = (0..view.ways()).filter(|way| !came_again(view.meta(*way))).count();
    if once + view.ghosts.count_of(|ghost| !came_again(ghost)) > view.ways() {
        view.ghosts.forget_oldest(|ghost| !came_again(ghost));
    } else if view.ghosts.count() > view.ways() {
        view.ghosts.forget_oldest(came_again);
    }
}

impl Policy for Car {
    const GHOSTS: bool = true;

    fn ghosts_max(ways: usize) -> usize {
        ghosts_of(ways).min(ways)
    }
    const BALANCES: bool = true;

    #[inline(always)]
    fn touched(meta: u16, _clock: u16, _ways: usize) -> u16 {
        meta | USED
    }

    fn admitted(view: &View<'_>, ghost: Option<u16>) -> u16 {
        let Some(ghost) = ghost else { return stamped(0, view.clock) };
        // The page's ghost is no longer in the ring, but still counts in its list.
        let again = view.ghosts.count_of(came_again) + usize::from(came_again(ghost));
        let once = view.ghosts.count() + 1 - again;
        let step = |own: usize, other: usize| (other as f64 / own as f64).max(1.0);
        if let Some(balance) = view.balance {
            balance.change(if came_again(ghost) { -step(again, once) } else { step(once, again) });
        }
        stamped(AGAIN, view.clock)
    }

    fn rebased(meta: u16, then: u16, now: u16) -> u16 {
        stamped(meta & !STAMP, now.wrapping_sub(age(meta, then)))
    }

    fn victim(view: &View<'_>, candidates: u32) -> usize {
        keep_the_rules(view);
        let target = view.balance.map_or(0.0, |balance| balance.target(view.ways())).round().max(1.0);
        let mut once = 0u32;
        for way in 0..view.ways() {
            let meta = view.meta(way);
            if age(meta, view.clock) > AGE_MAX {
                view.set_meta(way, stamped(meta & !STAMP, view.clock.wrapping_sub(AGE_MAX)));
            }
            once |= u32::from(!came_again(meta)) << way;
        }
        loop {
            let mut list = candidates & if once.count_ones() as f64 >= target { once } else { !once };
            if list == 0 {
                // No candidate is in that clock.
                list = candidates;
            }
            let oldest = |way: &usize| (age(view.meta(*way), view.clock), std::cmp::Reverse(*way));
            let way = ways_of(list).max_by_key(oldest).expect("at least one candidate");
            // Each iteration clears a page's bit, and no bit is set while the lock is held. So
            // there are at most as many iterations as ways, and one more.
            if view.meta(way) & USED == 0 {
                return way;
            }
            view.set_meta(way, stamped(AGAIN, view.clock));
            once &= !(1 << way);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::balance::Balance;
    use super::*;
    use crate::learning::miniature::{Miniature, Plain};
    use crate::word::tag::Tag;

    /// A set of four ways with its own balance.
    struct Set {
        miniature: Miniature,
        balance: Balance,
    }

    impl Set {
        fn new() -> Set {
            // The stamps wrap during the tests.
            Set { miniature: Miniature::of_one_set(4, STAMP - 5), balance: Balance::new(4) }
        }

        fn view(&self) -> View<'_> {
            self.miniature.first_set(Some(&self.balance))
        }

        fn access(&mut self, page: u16) -> bool {
            let guide = &mut Plain::<Car>::new(None, &self.balance);
            self.miniature.access(Tag(u64::from(page) << Tag::GHOST_PRINT_SHIFT), guide)
        }

        /// Returns the pages in the order of the ways.
        fn pages(&self) -> &[u16] {
            self.miniature.prints()
        }

        /// Returns the pages that came again, in the order of the ways.
        fn again(&self) -> Vec<u16> {
            let again = |way: &usize| came_again(self.view().meta(*way));
            (0..self.pages().len()).filter(again).map(|way| self.pages()[way]).collect()
        }
    }

    #[test]
    fn used_pages_move_to_the_second_clock_and_the_first_unused_one_leaves() {
        let mut set = Set::new();
        [1, 2, 3, 4].iter().for_each(|page| assert!(!set.access(*page)));
        assert!(set.access(1) && set.access(2));
        // The hand passes 1 and 2, which were used, and takes 3.
        assert!(!set.access(5));
        assert_eq!((set.pages(), set.again()), (&[1, 2, 5, 4][..], vec![1, 2]));
        assert_eq!(set.balance.target(4), 0.0);
        // 3 returns: its ghost says that the first clock should have had one page more; the page
        // joins the second clock.
        assert!(!set.access(3));
        assert_eq!((set.pages(), set.again()), (&[1, 2, 5, 3][..], vec![1, 2, 3]));
        assert_eq!(set.balance.target(4), 1.0);
        assert!(!set.access(4));
        assert_eq!((set.pages(), set.again()), (&[1, 2, 4, 3][..], vec![1, 2, 4, 3]));
        assert_eq!(set.balance.target(4), 2.0);
        // The first clock is empty, so the second evicts its oldest page. Then that page returns,
        // and gets the way of the page in the first clock.
        assert!(!set.access(6));
        assert_eq!(set.pages(), [6, 2, 4, 3]);
        assert!(!set.access(1));
        assert_eq!(set.pages(), [6, 1, 4, 3]);
        assert_eq!(set.balance.target(4), 1.0);
    }

    #[test]
    fn a_scan_leaves_no_more_ghosts_than_the_paper_and_the_second_clock_alone() {
        let mut set = Set::new();
        [1, 2, 3, 4, 1, 2].iter().for_each(|page| _ = set.access(*page));
        (100..120).for_each(|page| assert!(!set.access(page)));
        assert_eq!(set.again(), [1, 2]);
        // After the last arrival the rules hold: T1 has two pages, so B1 has two.
        keep_the_rules(&set.view());
        assert_eq!(set.view().ghosts.count(), 2);
        assert!(set.access(1) && set.access(2));
    }

    #[test]
    fn a_way_that_is_no_candidate_is_passed_over() {
        let mut set = Set::new();
        [1, 2, 3, 4, 3].iter().for_each(|page| _ = set.access(*page));
        assert_eq!(Car::victim(&set.view(), 0b1111), 0);
        assert_eq!(Car::victim(&set.view(), 0b1110), 1);
        // 3 was used: it moves to the second clock before 4 leaves.
        assert_eq!(Car::victim(&set.view(), 0b1100), 3);
        assert_eq!(set.again(), [3]);
        assert_eq!(Car::victim(&set.view(), 0b0100), 2);
    }

    #[test]
    fn the_balance_moves_by_pages_of_the_partition_and_stays_within_it() {
        let balance = Balance::new(1 << 20);
        balance.change(-3.0);
        assert_eq!(balance.target(16), 0.0);
        balance.change((1 << 18) as f64);
        assert_eq!(balance.target(16), 4.0);
        balance.set_capacity(1 << 10);
        assert_eq!(balance.target(16), 4.0);
        balance.change(64.0);
        assert_eq!(balance.target(16), 5.0);
        balance.change(1e9);
        assert_eq!(balance.target(16), 16.0);
    }

    #[test]
    fn a_page_that_moves_keeps_its_list_its_use_and_its_age() {
        let meta = stamped(AGAIN | USED, 7);
        let moved = Car::rebased(meta, 27, 3);
        assert_eq!((moved & !STAMP, age(moved, 3)), (AGAIN | USED, 20));
    }
}
