//! CAR: ARC whose two lists of resident pages are clocks. For comparison only.
//!
//! Bansal, Modha, "CAR: Clock with Adaptive Replacement" (FAST '04), figure 2. It has no parameter.
//! Ratios are fractions, as in `arc.rs`, and the lists have the same numbers. The hand of a clock
//! is at the oldest page of its list; a ghost list has its earliest ghost first.

use super::arc::{Adaptive, OFTEN, OFTEN_GHOSTS, ONCE, ONCE_GHOSTS};
use crate::cache::Cache;

/// ARC's lists; the state of a page says whether it was used since the hand passed it.
pub(super) type Car = Adaptive<bool>;

impl Car {
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

impl Cache for Car {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page).map(|node| (node, self.pages.list(node)));
        if let Some((node, ONCE | OFTEN)) = known {
            self.pages[node] = true;
            return true;
        }
        if self.resident() == self.capacity {
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
                self.adapt(list);
                self.pages.move_to(OFTEN, ghost);
            }
        }
        false
    }

    fn resident_pages(&self) -> u64 {
        self.resident()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
