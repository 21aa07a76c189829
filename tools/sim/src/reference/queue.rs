//! LRU, FIFO, CLOCK and SIEVE: policies of one list. For comparison only.
//!
//! CLOCK is Corbato's "A Paging Experiment with the Multics System" (1968), with one bit, written
//! as a queue that gives marked pages a second turn. SIEVE is Zhang, Yang, Yue, Vigfusson, Rashmi,
//! "SIEVE is Simpler than LRU" (NSDI '24). None has a parameter.

use super::lists::Lists;
use crate::cache::Cache;

/// What a [`Queue`] does at a hit and at an eviction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Evicts the least recently used page.
    Lru,
    /// Evicts the page that came in first.
    Fifo,
    /// Evicts the first page that was not used since it came in; used pages before it lose their
    /// mark and go to the end of the queue.
    Clock,
    /// Like [`Rule::Clock`], but used pages keep their places while a hand moves from the oldest to
    /// the newest page.
    Sieve,
}

/// A policy of one list.
pub(super) struct Queue {
    rule: Rule,
    capacity: u64,
    /// Whether each page was used since it came in, or since the eviction last passed it.
    pages: Lists<bool>,
    /// SIEVE's hand: the next candidate. None: the oldest page.
    hand: Option<u32>,
}

impl Queue {
    pub fn new(rule: Rule, capacity: u64) -> Self {
        Queue { rule, capacity, pages: Lists::new(1), hand: None }
    }

    fn evict(&mut self) {
        loop {
            let node = self.hand.or(self.pages.oldest(0)).expect("the cache is full");
            if self.rule == Rule::Sieve {
                self.hand = self.pages.newer(node);
            }
            // LRU and FIFO mark no page.
            if !std::mem::take(&mut self.pages[node]) {
                return self.pages.remove(node);
            }
            if self.rule == Rule::Clock {
                self.pages.move_to(0, node);
            }
        }
    }
}

impl Cache for Queue {
    fn access(&mut self, page: u64) -> bool {
        if let Some(node) = self.pages.find(page) {
            match self.rule {
                Rule::Lru => self.pages.move_to(0, node),
                Rule::Fifo => {}
                Rule::Clock | Rule::Sieve => self.pages[node] = true,
            }
            return true;
        }
        if self.pages.known() == self.capacity {
            self.evict();
        }
        self.pages.push(0, page, false);
        false
    }

    fn resident_pages(&self) -> u64 {
        self.pages.known()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sieve_keeps_a_used_page_in_place_and_clock_moves_it_to_the_end() {
        let (mut sieve, mut clock) = (Queue::new(Rule::Sieve, 3), Queue::new(Rule::Clock, 3));
        // 4 takes the place of 2, because 1 was used; 5 that of 3. Then CLOCK comes to 1 again, and
        // SIEVE to 4.
        let pages = [1, 2, 3, 1, 4, 5, 6];
        assert_eq!((sieve.run(&pages), clock.run(&pages)), (6, 6));
        assert!(sieve.access(1) && !clock.access(1));
        assert!(sieve.access(5) && sieve.access(6) && !sieve.access(4));
    }
}
