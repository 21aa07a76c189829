//! CAR: ARC whose two lists of resident pages are clocks. For comparison only.
//!
//! Bansal, Modha, "CAR: Clock with Adaptive Replacement" (FAST '04), figure 2. It has no parameter.
//! Ratios are fractions, as in `arc.rs`, and the lists have the same numbers. The hand of a clock
//! is at the oldest page of its list; a ghost list has its earliest ghost first.

use super::arc::{OFTEN, OFTEN_GHOSTS, ONCE, ONCE_GHOSTS, adapted};
use super::lists::Lists;
use super::policy::Policy;

pub(super) struct Car {
    capacity: u64,
    /// How many pages [`ONCE`] should have; p in the paper.
    target: f64,
    /// Whether each page was used since the hand passed it.
    pages: Lists<bool>,
}

impl Car {
    pub fn new(capacity: u64) -> Self {
        Car { capacity, target: 0.0, pages: Lists::new(4) }
    }

    fn len(&self, list: usize) -> u64 {
        self.pages.len(list)
    }

    /// replace() of the paper: turns the hands until a page that was not used becomes a ghost.
    fn replace(&mut self) {
        loop {
            let from_once = self.len(ONCE) as f64 >= self.target.max(1.0);
            let (clock, ghosts) = if from_once { (ONCE, ONCE_GHOSTS) } else { (OFTEN, OFTEN_GHOSTS) };
            let node = self.pages.oldest(clock).expect("the cache is full");
            if !std::mem::take(&mut self.pages[node]) {
                return self.pages.move_to(ghosts, node);
            }
            self.pages.move_to(OFTEN, node);
        }
    }
}

impl Policy for Car {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page).map(|node| (node, self.pages.list(node)));
        if let Some((node, ONCE | OFTEN)) = known {
            self.pages[node] = true;
            return true;
        }
        if self.resident_pages() == self.capacity {
            self.replace();
            if known.is_none() && self.len(ONCE) + self.len(ONCE_GHOSTS) == self.capacity {
                self.pages.remove_oldest(ONCE_GHOSTS);
            } else if known.is_none() && self.pages.known() == 2 * self.capacity {
                self.pages.remove_oldest(OFTEN_GHOSTS);
            }
        }
        match known {
            None => {
                self.pages.push(ONCE, page, false);
            }
            Some((ghost, list)) => {
                self.target = adapted(self.target, &self.pages, list, self.capacity);
                self.pages.move_to(OFTEN, ghost);
            }
        }
        false
    }

    fn resident_pages(&self) -> u64 {
        self.len(ONCE) + self.len(OFTEN)
    }
}

#[cfg(test)]
mod tests {
    use octavo_random::Random;

    use super::*;

    #[test]
    fn the_target_and_the_ghosts_stay_in_bounds() {
        for capacity in [1, 2, 7, 32] {
            let mut car = Car::new(capacity);
            let mut random = Random::new(capacity);
            for _ in 0..20_000 {
                car.access(random.below(1 + random.clone().below(4 * capacity)));
                assert!((0.0..=capacity as f64).contains(&car.target), "{}", car.target);
                assert!(car.resident_pages() <= capacity);
                assert!(car.len(ONCE) + car.len(ONCE_GHOSTS) <= capacity);
                assert!(car.pages.known() <= 2 * capacity);
            }
        }
    }

    #[test]
    fn used_pages_of_the_first_clock_move_to_the_second() {
        let mut car = Car::new(3);
        car.run(&[1, 2, 3, 1, 2]);
        assert_eq!((car.len(ONCE), car.len(OFTEN)), (3, 0));
        // 4 turns the hand past 1 and 2, which were used, and takes 3.
        assert!(!car.access(4));
        assert_eq!((car.len(ONCE), car.len(OFTEN), car.len(ONCE_GHOSTS)), (1, 2, 1));
        assert!(car.access(1) && car.access(2) && car.access(4));
        assert!(!car.access(3));
        assert_eq!(car.target, 1.0);
    }
}
