//! LIRS. For comparison only.
//!
//! Jiang, Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy to Improve
//! Buffer Cache Performance" (SIGMETRICS '02). The paper's parameter: a hundredth of the cache, and
//! at least a page, is for pages of high recency (HIR). The paper leaves its stack unbounded; here
//! it has at most twice as many entries as the cache has pages, as in libCacheSim, and the ghost
//! that left the cache first is forgotten first.
//!
//! libCacheSim departs from the paper at a hit of a resident HIR page that is no longer in the
//! stack: it turns the oldest LIR page into a HIR page, which evicts another HIR page, although no
//! page needs the place (`hit_RD_HIRinQ`). The paper changes no page's status there (its case 2b),
//! and neither does this file; `tests/libcachesim.rs` says by how much the miss ratios differ, at
//! most 0.0014.

use super::lists::Lists;
use crate::cache::Cache;

const STACK: usize = 0;
/// Resident HIR pages, the next victim first.
const QUEUE: usize = 0;
/// Ghosts, in the order in which they left the cache.
const GHOSTS: usize = 1;

/// The status of a page follows from its lists:
///
/// | page | in the stack | in the queues |
/// |---|---|---|
/// | LIR: low recency, stays | yes | no |
/// | HIR: high recency, resident | yes or no | [`QUEUE`] |
/// | ghost: HIR, not resident | yes | [`GHOSTS`] |
pub(super) struct Lirs {
    capacity: u64,
    low_max: u64,
    /// The number of LIR pages.
    low: u64,
    stack: Lists,
    queues: Lists,
}

impl Lirs {
    /// `capacity` is at least two: a cache of one page has nothing to decide.
    pub fn new(capacity: u64) -> Self {
        assert!(capacity >= 2);
        let low_max = capacity - (capacity / 100).max(1);
        Lirs { capacity, low_max, low: 0, stack: Lists::new(1), queues: Lists::new(2) }
    }

    /// Makes a page a LIR page and the newest of the stack. If there are then too many LIR pages,
    /// the oldest becomes a HIR page.
    fn make_low(&mut self, page: u64, stacked: Option<u32>) {
        self.make_newest(page, stacked);
        self.low += 1;
        if self.low > self.low_max {
            let oldest = self.stack.oldest(STACK).expect("a LIR page is in the stack");
            self.queues.push(QUEUE, self.stack.page(oldest), ());
            self.stack.remove(oldest);
            self.low -= 1;
        }
        self.prune();
    }

    fn make_newest(&mut self, page: u64, stacked: Option<u32>) {
        match stacked {
            Some(node) => self.stack.move_to(STACK, node),
            None => {
                self.stack.push(STACK, page, ());
            }
        }
    }

    /// Removes pages from the stack's old end until a LIR page is there.
    fn prune(&mut self) {
        while let Some(oldest) = self.stack.oldest(STACK)
            && let Some(queued) = self.queues.find(self.stack.page(oldest))
        {
            self.stack.remove(oldest);
            if self.queues.list(queued) == GHOSTS {
                self.queues.remove(queued);
            }
        }
    }

    fn evict_if_full(&mut self) {
        if self.resident_pages() < self.capacity {
            return;
        }
        let node = self.queues.oldest(QUEUE).expect("a full cache has a HIR page");
        match self.stack.find(self.queues.page(node)) {
            Some(_) => self.queues.move_to(GHOSTS, node),
            None => self.queues.remove(node),
        }
    }

    fn hit(&mut self, page: u64, stacked: Option<u32>, queued: Option<u32>) {
        match (stacked, queued) {
            (_, None) => {
                self.make_newest(page, stacked);
                self.prune();
            }
            (Some(_), Some(queued)) => {
                self.queues.remove(queued);
                self.make_low(page, stacked);
            }
            (None, Some(queued)) => {
                self.make_newest(page, None);
                self.queues.move_to(QUEUE, queued);
            }
        }
    }

    fn bring_in(&mut self, page: u64, stacked: Option<u32>, ghost: Option<u32>) {
        // The ghost leaves its list first. Otherwise the page that it displaces could become a
        // ghost and push it out of the list.
        if let Some(ghost) = ghost {
            self.queues.remove(ghost);
        }
        self.evict_if_full();
        if ghost.is_some() || self.low < self.low_max {
            return self.make_low(page, stacked);
        }
        self.make_newest(page, None);
        self.queues.push(QUEUE, page, ());
    }
}

impl Cache for Lirs {
    fn access(&mut self, page: u64) -> bool {
        let (stacked, queued) = (self.stack.find(page), self.queues.find(page));
        let ghost = queued.filter(|queued| self.queues.list(*queued) == GHOSTS);
        let is_resident = ghost.is_none() && (stacked.is_some() || queued.is_some());
        if is_resident {
            self.hit(page, stacked, queued);
        } else {
            self.bring_in(page, stacked, ghost);
        }
        while self.stack.len(STACK) > 2 * self.capacity
            && let Some(ghost) = self.queues.oldest(GHOSTS)
        {
            let stacked = self.stack.find(self.queues.page(ghost)).expect("a ghost is in the stack");
            self.stack.remove(stacked);
            self.queues.remove(ghost);
        }
        is_resident
    }

    fn resident_pages(&self) -> u64 {
        self.low + self.queues.len(QUEUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a page is in the stack, and which queue it is in.
    fn place(lirs: &Lirs, page: u64) -> (bool, Option<usize>) {
        let queued = lirs.queues.find(page).map(|node| lirs.queues.list(node));
        (lirs.stack.find(page).is_some(), queued)
    }

    const LOW: (bool, Option<usize>) = (true, None);
    const HIGH: (bool, Option<usize>) = (false, Some(QUEUE));
    const HIGH_STACKED: (bool, Option<usize>) = (true, Some(QUEUE));
    const GHOST: (bool, Option<usize>) = (true, Some(GHOSTS));

    #[test]
    fn a_page_that_returns_while_it_is_in_the_stack_takes_the_place_of_the_oldest_low_one() {
        // Room for two LIR pages and one HIR page.
        let mut lirs = Lirs::new(3);
        let [a, b, c, d] = [1, 2, 3, 4];
        assert_eq!(lirs.run(&[a, b, c]), 3);
        assert_eq!((place(&lirs, a), place(&lirs, b), place(&lirs, c)), (LOW, LOW, HIGH_STACKED));
        // D takes the place of C, which stays in the stack as a ghost: a, b, c, d.
        assert!(!lirs.access(d));
        assert_eq!(place(&lirs, c), GHOST);
        // C returns: A, the oldest LIR page, moves from the stack to the queue, from which D
        // leaves.
        assert!(!lirs.access(c));
        assert_eq!((place(&lirs, c), place(&lirs, a), place(&lirs, d)), (LOW, HIGH, GHOST));
        // B is used: it is the newest, and the oldest in the stack, D, a ghost, is forgotten.
        assert!(lirs.access(b));
        assert_eq!((place(&lirs, d), lirs.resident_pages()), ((false, None), 3));
        // A is used twice: back in the stack as HIR, then LIR in the place of C.
        assert!(lirs.access(a) && lirs.access(a));
        assert_eq!((place(&lirs, a), place(&lirs, c)), (LOW, HIGH));
    }

    #[test]
    fn a_loop_larger_than_the_cache_hits_nearly_once_per_page_of_the_cache() {
        let mut lirs = Lirs::new(100);
        let mut hits = 0;
        for _ in 0..50 {
            hits = (0..150).filter(|page| lirs.access(*page)).count();
        }
        assert_eq!(hits, 99);
    }
}
