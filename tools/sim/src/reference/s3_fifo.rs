//! S3-FIFO. For comparison only.
//!
//! Yang, Zhang, Qiu, Yue, Rashmi, "FIFO Queues are All You Need for Cache Eviction" (SOSP '23). The
//! parameters are those of the paper's evaluation and of libCacheSim: the small queue holds a tenth
//! of the cache, the ghosts are nine tenths of it, a page moves to the main queue if it was used at
//! least twice while it was in the small one, and counts saturate at three. As in libCacheSim, a
//! new page that finds the small queue full before the cache was full for the first time goes to
//! the main one.

use super::Policy;
use super::pages::{Lists, Pages};
use crate::Cache;

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const GHOSTS: u8 = 2;

const USES_MAX: u8 = 3;
const USES_TO_MOVE: u8 = 2;

#[derive(Clone, Copy)]
struct State {
    list: u8,
    uses: u8,
}

pub(super) struct S3Fifo {
    capacity: u64,
    small_max: u64,
    ghosts_max: u64,
    was_full: bool,
    pages: Pages<State>,
    lists: Lists,
}

impl S3Fifo {
    pub fn new(capacity: u64) -> Self {
        S3Fifo {
            capacity,
            small_max: (capacity / 10).max(1),
            ghosts_max: capacity * 9 / 10,
            was_full: false,
            pages: Pages::new(),
            lists: Lists::new(3),
        }
    }

    fn len(&self, list: u8) -> u64 {
        self.lists.len(list as usize)
    }

    fn pop(&mut self, list: u8) -> u32 {
        self.lists.pop_oldest(list as usize)
    }

    fn put(&mut self, node: u32, list: u8, uses: u8) {
        self.pages[node] = State { list, uses };
        self.lists.push(list as usize, node);
    }

    /// One page leaves, or else the small queue is empty now.
    fn evict_small(&mut self) {
        while self.len(SMALL) > 0 {
            let node = self.pop(SMALL);
            if self.pages[node].uses >= USES_TO_MOVE {
                self.put(node, MAIN, 0);
                continue;
            }
            self.put(node, GHOSTS, 0);
            if self.len(GHOSTS) > self.ghosts_max {
                let oldest = self.pop(GHOSTS);
                self.pages.remove(oldest);
            }
            return;
        }
    }

    fn evict_main(&mut self) {
        loop {
            let node = self.pop(MAIN);
            match self.pages[node].uses {
                0 => return self.pages.remove(node),
                uses => self.put(node, MAIN, uses - 1),
            }
        }
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page);
        if let Some(node) = known {
            let state = &mut self.pages[node];
            if state.list != GHOSTS {
                state.uses = (state.uses + 1).min(USES_MAX);
                return true;
            }
            self.lists.remove(GHOSTS as usize, node);
            self.pages.remove(node);
        }
        while self.resident_pages() == self.capacity {
            self.was_full = true;
            if self.len(MAIN) > self.capacity - self.small_max || self.len(SMALL) == 0 {
                self.evict_main();
            } else {
                self.evict_small();
            }
        }
        let to_main = known.is_some() || (!self.was_full && self.len(SMALL) >= self.small_max);
        let list = if to_main { MAIN } else { SMALL };
        let node = self.pages.insert(page, State { list, uses: 0 });
        self.lists.push(list as usize, node);
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for S3Fifo {
    fn resident_pages(&self) -> u64 {
        self.len(SMALL) + self.len(MAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_returns_to_the_main_queue_whose_oldest_page_leaves() {
        // One small page, nine main ones, nine ghosts.
        let mut cache = S3Fifo::new(10);
        assert_eq!(cache.run(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), 10);
        assert_eq!((cache.len(SMALL), cache.len(MAIN)), (1, 9));
        // 10 pushes 0 out, which returns and leaves the small queue empty.
        assert_eq!(cache.run(&[10, 0]), 2);
        assert_eq!((cache.len(SMALL), cache.len(MAIN), cache.len(GHOSTS)), (0, 10, 1));
        // The main queue is too long: 1 leaves it for 11, without a ghost.
        assert!(!cache.access(11));
        assert!(cache.access(0) && cache.access(2) && cache.pages.find(1).is_none());
    }
}
