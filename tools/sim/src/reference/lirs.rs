//! LIRS. For comparison only.
//!
//! Jiang, Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy to Improve
//! Buffer Cache Performance" (SIGMETRICS '02). The paper's parameter: a hundredth of the cache, and
//! at least a page, is for pages of high recency (HIR). The paper leaves its stack unbounded; here
//! it has at most twice as many entries as the cache has pages, as in libCacheSim, and what left
//! the cache first is forgotten first.
//!
//! libCacheSim departs from the paper where a resident HIR page that is no longer in the stack is
//! used: it turns the oldest LIR page into a HIR page, which pushes another one out, though nobody
//! takes the place (`hit_RD_HIRinQ`). The paper changes no page's status there (its case 2b), and
//! neither do we; `tests/libcachesim.rs` says by how much the miss ratios differ, at most 0.0014.

use super::Policy;
use super::pages::{Lists, Pages};
use crate::Cache;

/// What is known of a page. Every LIR page is in the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Low recency: stays.
    Low,
    /// High recency, in the cache and in the queue.
    High { stacked: bool },
    /// High recency, not in the cache; it is in the stack, or else it would be forgotten.
    Ghost,
}

const STACK: usize = 0;
/// Resident HIR pages, the next victim first.
const QUEUE: usize = 0;
/// Ghosts, those that left first, first. No node is in the queue and here.
const GHOSTS: usize = 1;

pub(super) struct Lirs {
    capacity: u64,
    low_max: u64,
    low: u64,
    pages: Pages<Kind>,
    stack: Lists,
    queues: Lists,
}

impl Lirs {
    /// `capacity` is at least two: of one page, there is nothing to decide.
    pub fn new(capacity: u64) -> Self {
        assert!(capacity >= 2);
        let high_max = (capacity / 100).max(1);
        Lirs {
            capacity,
            low_max: capacity - high_max,
            low: 0,
            pages: Pages::new(),
            stack: Lists::new(1),
            queues: Lists::new(2),
        }
    }

    /// Makes a page the newest of the stack, in which it is or is not, as a LIR page. The oldest
    /// one of too many becomes a HIR page.
    fn make_low(&mut self, node: u32, stacked: bool) {
        if stacked {
            self.stack.renew(STACK, node);
        } else {
            self.stack.push(STACK, node);
        }
        self.pages[node] = Kind::Low;
        self.low += 1;
        if self.low > self.low_max {
            let oldest = self.stack.pop_oldest(STACK);
            debug_assert_eq!(self.pages[oldest], Kind::Low, "the stack was pruned");
            self.pages[oldest] = Kind::High { stacked: false };
            self.queues.push(QUEUE, oldest);
            self.low -= 1;
        }
        self.prune();
    }

    /// Takes pages off the stack's old end until a LIR page is there.
    fn prune(&mut self) {
        while let Some(oldest) = self.stack.oldest(STACK) {
            match self.pages[oldest] {
                Kind::Low => return,
                Kind::High { .. } => {
                    self.stack.remove(STACK, oldest);
                    self.pages[oldest] = Kind::High { stacked: false };
                }
                Kind::Ghost => self.forget(oldest),
            }
        }
    }

    fn forget(&mut self, ghost: u32) {
        self.stack.remove(STACK, ghost);
        self.queues.remove(GHOSTS, ghost);
        self.pages.remove(ghost);
    }

    fn evict(&mut self) {
        let node = self.queues.pop_oldest(QUEUE);
        match self.pages[node] {
            Kind::High { stacked: true } => {
                self.pages[node] = Kind::Ghost;
                self.queues.push(GHOSTS, node);
            }
            Kind::High { stacked: false } => self.pages.remove(node),
            kind => unreachable!("{kind:?} in the queue"),
        }
    }

    fn hit(&mut self, node: u32) {
        match self.pages[node] {
            Kind::Low => {
                self.stack.renew(STACK, node);
                self.prune();
            }
            Kind::High { stacked: true } => {
                self.queues.remove(QUEUE, node);
                self.make_low(node, true);
            }
            Kind::High { stacked: false } => {
                self.pages[node] = Kind::High { stacked: true };
                self.stack.push(STACK, node);
                self.queues.renew(QUEUE, node);
            }
            Kind::Ghost => unreachable!("a ghost is no hit"),
        }
    }

    fn bring_in(&mut self, page: u64, ghost: Option<u32>) {
        if let Some(ghost) = ghost {
            // It leaves the ghosts before it can be forgotten by what it displaces.
            self.queues.remove(GHOSTS, ghost);
            if self.resident_pages() == self.capacity {
                self.evict();
            }
            return self.make_low(ghost, true);
        }
        if self.resident_pages() == self.capacity {
            self.evict();
        }
        if self.low < self.low_max {
            let node = self.pages.insert(page, Kind::Low);
            return self.make_low(node, false);
        }
        let node = self.pages.insert(page, Kind::High { stacked: true });
        self.stack.push(STACK, node);
        self.queues.push(QUEUE, node);
    }
}

impl Cache for Lirs {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page);
        let resident = known.is_some_and(|node| self.pages[node] != Kind::Ghost);
        match known {
            Some(node) if resident => self.hit(node),
            _ => self.bring_in(page, known),
        }
        while self.stack.len(STACK) > 2 * self.capacity {
            let Some(ghost) = self.queues.oldest(GHOSTS) else { break };
            self.forget(ghost);
        }
        resident
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Lirs {
    fn resident_pages(&self) -> u64 {
        self.low + self.queues.len(QUEUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(lirs: &Lirs, page: u64) -> Option<Kind> {
        lirs.pages.find(page).map(|node| lirs.pages[node])
    }

    #[test]
    fn a_page_that_returns_while_it_is_in_the_stack_takes_the_place_of_the_oldest_low_one() {
        // Room for two LIR pages and one HIR page.
        let mut lirs = Lirs::new(3);
        let [a, b, c, d] = [1, 2, 3, 4];
        for page in [a, b, c] {
            assert!(!lirs.access(page));
        }
        assert_eq!((kind(&lirs, a), kind(&lirs, b)), (Some(Kind::Low), Some(Kind::Low)));
        assert_eq!(kind(&lirs, c), Some(Kind::High { stacked: true }));
        // D takes the place of C, which stays in the stack as a ghost: a, b, c, d.
        assert!(!lirs.access(d));
        assert_eq!(kind(&lirs, c), Some(Kind::Ghost));
        // C returns: A, the oldest LIR page, leaves the stack and waits in the queue, from which D leaves.
        assert!(!lirs.access(c));
        assert_eq!((kind(&lirs, c), kind(&lirs, a)), (Some(Kind::Low), Some(Kind::High { stacked: false })));
        assert_eq!(kind(&lirs, d), Some(Kind::Ghost));
        // B is used: it is the newest, and the oldest in the stack, D, a ghost, is forgotten.
        assert!(lirs.access(b));
        assert_eq!((kind(&lirs, d), lirs.resident_pages()), (None, 3));
        // A is used twice: back in the stack as HIR, then LIR in the place of C.
        assert!(lirs.access(a) && lirs.access(a));
        assert_eq!((kind(&lirs, a), kind(&lirs, c)), (Some(Kind::Low), Some(Kind::High { stacked: false })));
    }

    #[test]
    fn a_loop_that_is_larger_than_the_cache_hits_nearly_as_often_as_there_are_pages() {
        let mut lirs = Lirs::new(100);
        let mut hits = 0;
        for _ in 0..50 {
            hits = (0..150).filter(|page| lirs.access(*page)).count();
        }
        assert_eq!(hits, 99);
    }
}
