//! LRU, FIFO, CLOCK and SIEVE: policies of one list. For comparison only.
//!
//! CLOCK is Corbato's "A Paging Experiment with the Multics System" (1968), with one bit, written
//! as a queue whose marked pages get a second turn. SIEVE is Zhang, Yang, Yue, Vigfusson, Rashmi,
//! "SIEVE is Simpler than LRU" (NSDI '24). None has a parameter.

use super::Policy;
use super::pages::{Lists, NONE, Pages};
use crate::Cache;

/// Evicts the page that was used least recently.
pub(super) struct Lru {
    capacity: u64,
    pages: Pages<()>,
    list: Lists,
}

impl Lru {
    pub fn new(capacity: u64) -> Self {
        Lru { capacity, pages: Pages::new(), list: Lists::new(1) }
    }
}

impl Cache for Lru {
    fn access(&mut self, page: u64) -> bool {
        if let Some(node) = self.pages.find(page) {
            self.list.renew(0, node);
            return true;
        }
        if self.pages.len() == self.capacity {
            self.pages.remove(self.list.pop_oldest(0));
        }
        self.list.push(0, self.pages.insert(page, ()));
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Lru {
    fn resident_pages(&self) -> u64 {
        self.list.len(0)
    }
}

/// Evicts the page that came in first.
pub(super) struct Fifo {
    capacity: u64,
    pages: Pages<()>,
    list: Lists,
}

impl Fifo {
    pub fn new(capacity: u64) -> Self {
        Fifo { capacity, pages: Pages::new(), list: Lists::new(1) }
    }
}

impl Cache for Fifo {
    fn access(&mut self, page: u64) -> bool {
        if self.pages.find(page).is_some() {
            return true;
        }
        if self.pages.len() == self.capacity {
            self.pages.remove(self.list.pop_oldest(0));
        }
        self.list.push(0, self.pages.insert(page, ()));
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Fifo {
    fn resident_pages(&self) -> u64 {
        self.list.len(0)
    }
}

/// Evicts the first page that came in and was not used since; the ones before it lose their mark
/// and queue again.
pub(super) struct Clock {
    capacity: u64,
    /// Whether the page was used.
    pages: Pages<bool>,
    list: Lists,
}

impl Clock {
    pub fn new(capacity: u64) -> Self {
        Clock { capacity, pages: Pages::new(), list: Lists::new(1) }
    }

    fn evict(&mut self) {
        loop {
            let node = self.list.pop_oldest(0);
            if !std::mem::take(&mut self.pages[node]) {
                self.pages.remove(node);
                return;
            }
            self.list.push(0, node);
        }
    }
}

impl Cache for Clock {
    fn access(&mut self, page: u64) -> bool {
        if let Some(node) = self.pages.find(page) {
            self.pages[node] = true;
            return true;
        }
        if self.pages.len() == self.capacity {
            self.evict();
        }
        self.list.push(0, self.pages.insert(page, false));
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Clock {
    fn resident_pages(&self) -> u64 {
        self.list.len(0)
    }
}

/// CLOCK whose marked pages stay where they are while a hand passes from the oldest to the newest
/// page.
pub(super) struct Sieve {
    capacity: u64,
    /// Whether the page was used.
    pages: Pages<bool>,
    list: Lists,
    /// Where the search goes on; [`NONE`]: at the oldest.
    hand: u32,
}

impl Sieve {
    pub fn new(capacity: u64) -> Self {
        Sieve { capacity, pages: Pages::new(), list: Lists::new(1), hand: NONE }
    }

    fn evict(&mut self) {
        loop {
            let node =
                if self.hand == NONE { self.list.oldest(0).expect("the cache is full") } else { self.hand };
            self.hand = self.list.newer(node).unwrap_or(NONE);
            if !std::mem::take(&mut self.pages[node]) {
                self.list.remove(0, node);
                self.pages.remove(node);
                return;
            }
        }
    }
}

impl Cache for Sieve {
    fn access(&mut self, page: u64) -> bool {
        if let Some(node) = self.pages.find(page) {
            self.pages[node] = true;
            return true;
        }
        if self.pages.len() == self.capacity {
            self.evict();
        }
        self.list.push(0, self.pages.insert(page, false));
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Sieve {
    fn resident_pages(&self) -> u64 {
        self.list.len(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_page_stays_behind_sieve_s_hand_and_queues_again_with_clock() {
        let (mut sieve, mut clock) = (Sieve::new(3), Clock::new(3));
        // 4 takes the place of 2, for 1 was used; 5 that of 3. Then clock comes to 1 again, and sieve to 4.
        let pages = [1, 2, 3, 1, 4, 5, 6];
        assert_eq!((sieve.run(&pages), clock.run(&pages)), (6, 6));
        assert!(sieve.access(1) && !clock.access(1));
        assert!(sieve.access(5) && sieve.access(6) && !sieve.access(4));
    }
}
