//! ARC. For comparison only.
//!
//! Megiddo, Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache" (FAST '03), figure 4. It
//! has no parameter. The ratio of the ghost lists is a fraction here, as in libCacheSim; the paper
//! leaves open whether it is rounded.

use super::lists::Lists;
use crate::cache::Cache;

/// Resident pages with one recent use; T1 in the paper.
pub(super) const ONCE: usize = 0;
/// Resident pages with at least two recent uses; T2.
pub(super) const OFTEN: usize = 1;
/// Ghosts of pages that left [`ONCE`]; B1.
pub(super) const ONCE_GHOSTS: usize = 2;
/// Ghosts of pages that left [`OFTEN`]; B2.
pub(super) const OFTEN_GHOSTS: usize = 3;

/// The lists of ARC and of CAR.
pub(super) struct Adaptive<T> {
    pub capacity: u64,
    /// The target number of pages in [`ONCE`]; p in the paper.
    pub target: f64,
    pub pages: Lists<T>,
}

impl<T> Adaptive<T> {
    pub fn new(capacity: u64) -> Self {
        Adaptive { capacity, target: 0.0, pages: Lists::new(4) }
    }

    pub fn len(&self, list: usize) -> u64 {
        self.pages.len(list)
    }

    pub fn resident(&self) -> u64 {
        self.len(ONCE) + self.len(OFTEN)
    }

    /// Moves the target after a ghost returned: up after a ghost of [`ONCE_GHOSTS`], down
    /// otherwise, by the ratio of the ghost lists and at least by one page.
    pub fn adapt(&mut self, ghost_list: usize) {
        let (once, often) = (self.len(ONCE_GHOSTS) as f64, self.len(OFTEN_GHOSTS) as f64);
        self.target = match ghost_list {
            ONCE_GHOSTS => (self.target + (often / once).max(1.0)).min(self.capacity as f64),
            _ => (self.target - (once / often).max(1.0)).max(0.0),
        };
    }
}

pub(super) type Arc = Adaptive<()>;

impl Arc {
    /// REPLACE of the paper: one page becomes a ghost.
    fn replace(&mut self, for_often_ghost: bool) {
        let once = self.len(ONCE) as f64;
        let from_once = once > 0.0 && (once > self.target || (for_often_ghost && once == self.target))
            || self.len(OFTEN) == 0;
        let (from, to) = if from_once { (ONCE, ONCE_GHOSTS) } else { (OFTEN, OFTEN_GHOSTS) };
        self.pages.move_oldest(from, to);
    }

    /// Makes room for an unknown page; case IV of the paper.
    fn make_room_for_new(&mut self) {
        let full = self.resident() == self.capacity;
        if self.len(ONCE) + self.len(ONCE_GHOSTS) == self.capacity {
            if self.len(ONCE) == self.capacity {
                return self.pages.remove_oldest(ONCE);
            }
            self.pages.remove_oldest(ONCE_GHOSTS);
        } else if self.pages.known() == 2 * self.capacity {
            self.pages.remove_oldest(OFTEN_GHOSTS);
        }
        if full {
            self.replace(false);
        }
    }
}

impl Cache for Arc {
    fn access(&mut self, page: u64) -> bool {
        let Some(node) = self.pages.find(page) else {
            self.make_room_for_new();
            self.pages.push(ONCE, page, ());
            return false;
        };
        let list = self.pages.list(node);
        let is_ghost = list == ONCE_GHOSTS || list == OFTEN_GHOSTS;
        if is_ghost {
            self.adapt(list);
            self.replace(list == OFTEN_GHOSTS);
        }
        self.pages.move_to(OFTEN, node);
        !is_ghost
    }

    fn resident_pages(&self) -> u64 {
        self.resident()
    }
}

#[cfg(test)]
mod tests {
    use octavo_random::Random;

    use super::*;

    fn stays_in_bounds<T>()
    where
        Adaptive<T>: Cache,
    {
        for capacity in [1, 2, 7, 32] {
            let mut cache = Adaptive::<T>::new(capacity);
            let mut random = Random::new(capacity);
            for _ in 0..20_000 {
                cache.access(random.below(1 + random.clone().below(4 * capacity)));
                assert!((0.0..=capacity as f64).contains(&cache.target), "{}", cache.target);
                assert!(cache.resident_pages() <= capacity);
                assert!(cache.len(ONCE) + cache.len(ONCE_GHOSTS) <= capacity);
                assert!(cache.pages.known() <= 2 * capacity);
            }
        }
    }

    #[test]
    fn the_target_and_the_ghosts_of_arc_and_car_stay_in_bounds() {
        stays_in_bounds::<()>();
        stays_in_bounds::<bool>();
    }

    #[test]
    fn a_ghost_of_a_page_used_once_gives_such_pages_more_room() {
        let mut arc = Arc::new(4);
        // 1 and 2 are used twice, 3 to 6 once: 3 and 4 become ghosts.
        arc.run(&[1, 2, 1, 2, 3, 4, 5, 6]);
        assert_eq!((arc.len(ONCE), arc.len(OFTEN), arc.len(ONCE_GHOSTS), arc.target), (2, 2, 2, 0.0));
        assert!(!arc.access(3));
        assert_eq!((arc.len(ONCE), arc.len(OFTEN), arc.len(ONCE_GHOSTS), arc.target), (1, 3, 2, 1.0));
        assert!(arc.access(6) && arc.access(1));
        assert!(!arc.access(5));
    }
}
