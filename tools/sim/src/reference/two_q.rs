//! 2Q, the full version. For comparison only.
//!
//! Johnson, Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm"
//! (VLDB '94), with the paper's parameters: the queue of new pages holds a quarter of the cache,
//! and the ghosts are half as many as its pages.

use super::lists::Lists;
use crate::cache::Cache;

/// New pages, first in first out; A1in in the paper.
const NEW: usize = 0;
/// Pages that came back, least recently used first; Am.
const MAIN: usize = 1;
/// Pages that left [`NEW`], without their bytes; A1out.
const GHOSTS: usize = 2;

pub(super) struct TwoQ {
    capacity: u64,
    pages: Lists,
}

impl TwoQ {
    pub fn new(capacity: u64) -> Self {
        TwoQ { capacity, pages: Lists::new(3) }
    }

    fn evict(&mut self) {
        if self.pages.len(NEW) <= self.capacity / 4 && self.pages.len(MAIN) > 0 {
            return self.pages.remove_oldest(MAIN);
        }
        self.pages.move_oldest(NEW, GHOSTS);
        if self.pages.len(GHOSTS) > self.capacity / 2 {
            self.pages.remove_oldest(GHOSTS);
        }
    }
}

impl Cache for TwoQ {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page);
        match known.map(|node| (node, self.pages.list(node))) {
            Some((_, NEW)) => return true,
            Some((node, MAIN)) => {
                self.pages.move_to(MAIN, node);
                return true;
            }
            Some((ghost, _)) => self.pages.remove(ghost),
            None => {}
        }
        if self.resident_pages() == self.capacity {
            self.evict();
        }
        self.pages.push(if known.is_some() { MAIN } else { NEW }, page, ());
        false
    }

    fn resident_pages(&self) -> u64 {
        self.pages.len(NEW) + self.pages.len(MAIN)
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
        // 1 is a ghost, so it moves to the main list. 2 becomes a ghost, and the scan pushes it
        // out.
        assert_eq!(two_q.run(&[1, 6, 7, 8, 9, 10, 1]), 6);
        assert!(!two_q.access(2));
        assert!(two_q.access(1));
    }
}
