//! ARC. For comparison only.
//!
//! Megiddo, Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache" (FAST '03), figure 4. It
//! has no parameter. The ratio of the ghost lists is a fraction here, as in libCacheSim; the paper
//! leaves open whether it is rounded.

use super::Policy;
use super::pages::{Lists, Pages};
use crate::Cache;

/// Used once lately; T1 in the paper.
const ONCE: usize = 0;
/// Used at least twice; T2.
const OFTEN: usize = 1;
/// Left from [`ONCE`]; B1.
const ONCE_GHOSTS: usize = 2;
/// Left from [`OFTEN`]; B2.
const OFTEN_GHOSTS: usize = 3;

pub(super) struct Arc {
    capacity: u64,
    /// How many pages [`ONCE`] should have; p.
    target: f64,
    /// The list that the page is in.
    pages: Pages<usize>,
    lists: Lists,
}

impl Arc {
    pub fn new(capacity: u64) -> Self {
        Arc { capacity, target: 0.0, pages: Pages::new(), lists: Lists::new(4) }
    }

    fn len(&self, list: usize) -> u64 {
        self.lists.len(list)
    }

    fn move_to(&mut self, list: usize, node: u32) {
        self.lists.remove(self.pages[node], node);
        self.pages[node] = list;
        self.lists.push(list, node);
    }

    fn forget_oldest(&mut self, list: usize) {
        self.pages.remove(self.lists.pop_oldest(list));
    }

    /// REPLACE of the paper: one page becomes a ghost.
    fn replace(&mut self, for_often_ghost: bool) {
        let once = self.len(ONCE) as f64;
        let from_once = once > 0.0 && (once > self.target || (for_often_ghost && once == self.target))
            || self.len(OFTEN) == 0;
        let (from, to) = if from_once { (ONCE, ONCE_GHOSTS) } else { (OFTEN, OFTEN_GHOSTS) };
        let node = self.lists.oldest(from).expect("the cache is full");
        self.move_to(to, node);
    }

    /// A page that nobody knows comes; case IV of the paper.
    fn make_room_for_new(&mut self) {
        let full = self.resident_pages() == self.capacity;
        if self.len(ONCE) + self.len(ONCE_GHOSTS) == self.capacity {
            if self.len(ONCE) == self.capacity {
                return self.forget_oldest(ONCE);
            }
            self.forget_oldest(ONCE_GHOSTS);
        } else if self.pages.len() == 2 * self.capacity {
            self.forget_oldest(OFTEN_GHOSTS);
        }
        if full {
            self.replace(false);
        }
    }
}

/// By how much the target moves when a ghost of the list of `own` pages returns and the other ghost
/// list has `other`.
pub(super) fn step(own: u64, other: u64) -> f64 {
    (other as f64 / own as f64).max(1.0)
}

impl Cache for Arc {
    fn access(&mut self, page: u64) -> bool {
        let Some(node) = self.pages.find(page) else {
            self.make_room_for_new();
            self.lists.push(ONCE, self.pages.insert(page, ONCE));
            return false;
        };
        let (once_ghosts, often_ghosts) = (self.len(ONCE_GHOSTS), self.len(OFTEN_GHOSTS));
        let list = self.pages[node];
        match list {
            ONCE_GHOSTS => {
                self.target = (self.target + step(once_ghosts, often_ghosts)).min(self.capacity as f64);
                self.replace(false);
            }
            OFTEN_GHOSTS => {
                self.target = (self.target - step(often_ghosts, once_ghosts)).max(0.0);
                self.replace(true);
            }
            _ => {}
        }
        self.move_to(OFTEN, node);
        list == ONCE || list == OFTEN
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Arc {
    fn resident_pages(&self) -> u64 {
        self.len(ONCE) + self.len(OFTEN)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages::Random;
    use super::*;

    #[test]
    fn the_target_and_the_ghosts_stay_in_bounds() {
        for capacity in [1, 2, 7, 32] {
            let mut arc = Arc::new(capacity);
            let mut random = Random(capacity);
            for _ in 0..20_000 {
                arc.access(random.below(1 + random.clone().below(4 * capacity)));
                assert!((0.0..=capacity as f64).contains(&arc.target), "{}", arc.target);
                assert!(arc.resident_pages() <= capacity);
                assert!(arc.len(ONCE) + arc.len(ONCE_GHOSTS) <= capacity);
                assert!(arc.pages.len() <= 2 * capacity);
            }
        }
    }

    #[test]
    fn a_ghost_of_a_page_used_once_gives_such_pages_more_room() {
        let mut arc = Arc::new(4);
        // 1 and 2 are used twice, 3 to 6 once: 3 and 4 become ghosts.
        for page in [1, 2, 1, 2, 3, 4, 5, 6] {
            arc.access(page);
        }
        assert_eq!((arc.len(ONCE), arc.len(OFTEN), arc.len(ONCE_GHOSTS), arc.target), (2, 2, 2, 0.0));
        assert!(!arc.access(3));
        assert_eq!((arc.len(ONCE), arc.len(OFTEN), arc.len(ONCE_GHOSTS), arc.target), (1, 3, 2, 1.0));
        assert!(arc.access(6) && arc.access(1));
        assert!(!arc.access(5));
    }
}
