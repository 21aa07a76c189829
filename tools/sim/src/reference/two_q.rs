//! 2Q, the full version. For comparison only.
//!
//! Johnson, Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm"
//! (VLDB '94), with the paper's parameters: the queue of new pages holds a quarter of the cache,
//! ghosts are remembered for half of it.

use super::Policy;
use super::pages::{Lists, Pages};
use crate::Cache;

/// New pages, first in first out; A1in in the paper.
const NEW: usize = 0;
/// Pages that came back, least recently used first; Am.
const MAIN: usize = 1;
/// Pages that left [`NEW`], without their bytes; A1out.
const GHOSTS: usize = 2;

pub(super) struct TwoQ {
    capacity: u64,
    new_max: u64,
    ghosts_max: u64,
    /// The list that the page is in.
    pages: Pages<usize>,
    lists: Lists,
}

impl TwoQ {
    pub fn new(capacity: u64) -> Self {
        TwoQ {
            capacity,
            new_max: capacity / 4,
            ghosts_max: capacity / 2,
            pages: Pages::new(),
            lists: Lists::new(3),
        }
    }

    fn evict(&mut self) {
        if self.lists.len(NEW) <= self.new_max && self.lists.len(MAIN) > 0 {
            self.pages.remove(self.lists.pop_oldest(MAIN));
            return;
        }
        let node = self.lists.pop_oldest(NEW);
        self.pages[node] = GHOSTS;
        self.lists.push(GHOSTS, node);
        if self.lists.len(GHOSTS) > self.ghosts_max {
            self.pages.remove(self.lists.pop_oldest(GHOSTS));
        }
    }
}

impl Cache for TwoQ {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page);
        match known.map(|node| (node, self.pages[node])) {
            Some((_, NEW)) => return true,
            Some((node, MAIN)) => {
                self.lists.renew(MAIN, node);
                return true;
            }
            Some((node, _)) => {
                self.lists.remove(GHOSTS, node);
                self.pages.remove(node);
            }
            None => {}
        }
        if self.resident_pages() == self.capacity {
            self.evict();
        }
        let list = if known.is_some() { MAIN } else { NEW };
        self.lists.push(list, self.pages.insert(page, list));
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for TwoQ {
    fn resident_pages(&self) -> u64 {
        self.lists.len(NEW) + self.lists.len(MAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_returns_as_a_ghost_outlives_a_scan() {
        // One new page at least, two ghosts.
        let mut two_q = TwoQ::new(4);
        assert_eq!(two_q.run(&[1, 2, 3, 4, 5]), 5);
        // 1 is a ghost: it comes to the main list. 2 becomes one, and is forgotten during the scan.
        assert_eq!(two_q.run(&[1, 6, 7, 8, 9, 10, 1]), 6);
        assert!(!two_q.access(2));
        assert!(two_q.access(1));
    }
}
