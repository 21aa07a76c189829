//! S3-FIFO. For comparison only.
//!
//! Yang, Zhang, Qiu, Yue, Rashmi, "FIFO Queues are All You Need for Cache Eviction" (SOSP '23). The
//! parameters are those of the paper's evaluation and of libCacheSim: the small queue holds a tenth
//! of the cache, the ghosts are nine tenths of it, a page moves to the main queue if it was used at
//! least twice while it was in the small one, and counts saturate at three. As in libCacheSim, a
//! new page goes to the main queue if the small one is full and the cache was never full yet.

use super::lists::Lists;
use crate::cache::Cache;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 2;

const USES_MAX: u8 = 3;
const USES_TO_MOVE: u8 = 2;

pub(super) struct S3Fifo {
    capacity: u64,
    small_max: u64,
    was_full: bool,
    /// The uses of each page in its present queue.
    pages: Lists<u8>,
}

impl S3Fifo {
    pub fn new(capacity: u64) -> Self {
        S3Fifo { capacity, small_max: (capacity / 10).max(1), was_full: false, pages: Lists::new(3) }
    }

    /// Evicts one page of the small queue, or empties it into the main one.
    fn evict_small(&mut self) {
        while let Some(node) = self.pages.oldest(SMALL) {
            let to = if self.pages[node] >= USES_TO_MOVE { MAIN } else { GHOSTS };
            self.pages.move_to(to, node);
            self.pages[node] = 0;
            if to == GHOSTS {
                if self.pages.len(GHOSTS) > self.capacity * 9 / 10 {
                    self.pages.remove_oldest(GHOSTS);
                }
                return;
            }
        }
    }

    fn evict_main(&mut self) {
        loop {
            let node = self.pages.oldest(MAIN).expect("the main queue is not empty");
            if self.pages[node] == 0 {
                return self.pages.remove(node);
            }
            self.pages[node] -= 1;
            self.pages.move_to(MAIN, node);
        }
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page);
        if let Some(node) = known {
            if self.pages.list(node) != GHOSTS {
                self.pages[node] = (self.pages[node] + 1).min(USES_MAX);
                return true;
            }
            self.pages.remove(node);
        }
        while self.resident_pages() == self.capacity {
            self.was_full = true;
            if self.pages.len(MAIN) > self.capacity - self.small_max || self.pages.len(SMALL) == 0 {
                self.evict_main();
            } else {
                self.evict_small();
            }
        }
        let to_main = known.is_some() || (!self.was_full && self.pages.len(SMALL) >= self.small_max);
        self.pages.push(if to_main { MAIN } else { SMALL }, page, 0);
        false
    }

    fn resident_pages(&self) -> u64 {
        self.pages.len(SMALL) + self.pages.len(MAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_returns_to_the_main_queue_and_its_oldest_page_leaves() {
        // One small page, nine main ones, nine ghosts.
        let mut cache = S3Fifo::new(10);
        let lens = |cache: &S3Fifo| [SMALL, MAIN, GHOSTS].map(|list| cache.pages.len(list));
        assert_eq!(cache.run(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), 10);
        assert_eq!(lens(&cache), [1, 9, 0]);
        // 10 pushes 0 out, which returns and leaves the small queue empty.
        assert_eq!(cache.run(&[10, 0]), 2);
        assert_eq!(lens(&cache), [0, 10, 1]);
        // The main queue is too long: 1 leaves it for 11, without a ghost.
        assert!(!cache.access(11));
        assert!(cache.access(0) && cache.access(2) && cache.pages.find(1).is_none());
    }
}
