//! CAR: ARC whose two lists of resident pages are clocks. For comparison only.
//!
//! Bansal, Modha, "CAR: Clock with Adaptive Replacement" (FAST '04), figure 2. It has no parameter.
//! Ratios are fractions, as in `arc.rs`.

use super::Policy;
use super::arc::step;
use super::pages::{Lists, Pages};
use crate::Cache;

/// The clock of pages used once lately, its hand at the oldest; T1 in the paper.
const ONCE: u8 = 0;
/// The clock of pages used at least twice; T2.
const OFTEN: u8 = 1;
/// Left from [`ONCE`], least recently left first; B1.
const ONCE_GHOSTS: u8 = 2;
/// Left from [`OFTEN`]; B2.
const OFTEN_GHOSTS: u8 = 3;

#[derive(Clone, Copy)]
struct State {
    list: u8,
    /// The page was used since the hand passed it.
    used: bool,
}

pub(super) struct Car {
    capacity: u64,
    /// How many pages [`ONCE`] should have; p.
    target: f64,
    pages: Pages<State>,
    lists: Lists,
}

impl Car {
    pub fn new(capacity: u64) -> Self {
        Car { capacity, target: 0.0, pages: Pages::new(), lists: Lists::new(4) }
    }

    fn len(&self, list: u8) -> u64 {
        self.lists.len(list as usize)
    }

    fn put(&mut self, node: u32, list: u8) {
        self.pages[node] = State { list, used: false };
        self.lists.push(list as usize, node);
    }

    fn forget_oldest(&mut self, list: u8) {
        self.pages.remove(self.lists.pop_oldest(list as usize));
    }

    /// replace() of the paper: turns the hands until a page that was not used becomes a ghost.
    fn replace(&mut self) {
        loop {
            let (clock, ghosts) = if self.len(ONCE) as f64 >= self.target.max(1.0) {
                (ONCE, ONCE_GHOSTS)
            } else {
                (OFTEN, OFTEN_GHOSTS)
            };
            let node = self.lists.pop_oldest(clock as usize);
            if !self.pages[node].used {
                return self.put(node, ghosts);
            }
            self.put(node, OFTEN);
        }
    }
}

impl Cache for Car {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page).map(|node| (node, self.pages[node].list));
        if let Some((node, ONCE | OFTEN)) = known {
            self.pages[node].used = true;
            return true;
        }
        if self.resident_pages() == self.capacity {
            self.replace();
            if known.is_none() {
                if self.len(ONCE) + self.len(ONCE_GHOSTS) == self.capacity {
                    self.forget_oldest(ONCE_GHOSTS);
                } else if self.pages.len() == 2 * self.capacity {
                    self.forget_oldest(OFTEN_GHOSTS);
                }
            }
        }
        let Some((node, list)) = known else {
            let node = self.pages.insert(page, State { list: ONCE, used: false });
            self.lists.push(ONCE as usize, node);
            return false;
        };
        let (once, often) = (self.len(ONCE_GHOSTS), self.len(OFTEN_GHOSTS));
        self.target = if list == ONCE_GHOSTS {
            (self.target + step(once, often)).min(self.capacity as f64)
        } else {
            (self.target - step(often, once)).max(0.0)
        };
        self.lists.remove(list as usize, node);
        self.put(node, OFTEN);
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Car {
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
            let mut car = Car::new(capacity);
            let mut random = Random(capacity);
            for _ in 0..20_000 {
                car.access(random.below(1 + random.clone().below(4 * capacity)));
                assert!((0.0..=capacity as f64).contains(&car.target), "{}", car.target);
                assert!(car.resident_pages() <= capacity);
                assert!(car.len(ONCE) + car.len(ONCE_GHOSTS) <= capacity);
                assert!(car.pages.len() <= 2 * capacity);
            }
        }
    }

    #[test]
    fn used_pages_of_the_first_clock_move_to_the_second() {
        let mut car = Car::new(3);
        for page in [1, 2, 3, 1, 2] {
            car.access(page);
        }
        assert_eq!((car.len(ONCE), car.len(OFTEN)), (3, 0));
        // 4 turns the hand past 1 and 2, which were used, and takes 3.
        assert!(!car.access(4));
        assert_eq!((car.len(ONCE), car.len(OFTEN), car.len(ONCE_GHOSTS)), (1, 2, 1));
        assert!(car.access(1) && car.access(2) && car.access(4));
        assert!(!car.access(3));
        assert_eq!(car.target, 1.0);
    }
}
