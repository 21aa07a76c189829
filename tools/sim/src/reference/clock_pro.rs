//! CLOCK-Pro: LIRS as a clock. For comparison only.
//!
//! Jiang, Chen, Zhang, "CLOCK-Pro: An Effective Improvement of the CLOCK Replacement" (USENIX ATC
//! '05), sections 4.2 and 4.3. It has no parameter: how many cold pages may be resident adapts
//! between one and all but one. What the paper leaves open: free frames take hot pages first and
//! a hundredth of cold ones last, as with LIRS; and a cold page whose mark says that it was used
//! during its test stays in its test when a hand passes that ends tests.
//!
//! libCacheSim's version is no check: it starts with the whole cache as its target for cold pages
//! and, beyond the target, does not bring pages in, for a miss ratio of 0.70 where LRU has 0.34 and
//! this one 0.35 (ARC's trace OLTP, a tenth of its pages). LIRS, which CLOCK-Pro approximates, has
//! 0.34.

use super::Policy;
use super::pages::{NONE, Pages};
use crate::Cache;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hot,
    /// Resident; `testing`: a use now shows a short reuse distance.
    Cold {
        testing: bool,
    },
    /// A cold page that left during its test.
    Ghost,
}

#[derive(Clone, Copy)]
struct State {
    kind: Kind,
    /// Used since a hand looked.
    used: bool,
    before: u32,
    after: u32,
}

pub(super) struct ClockPro {
    capacity: u64,
    /// How many cold pages may be resident; m_c in the paper.
    cold_target: u64,
    hot: u64,
    cold: u64,
    ghosts: u64,
    pages: Pages<State>,
    /// Turns hot pages that were not used into cold ones; new pages come in right behind it.
    hand_hot: u32,
    /// Finds pages to evict.
    hand_cold: u32,
    /// Ends tests, so that ghosts are no more than pages.
    hand_test: u32,
}

impl ClockPro {
    pub fn new(capacity: u64) -> Self {
        ClockPro {
            capacity,
            cold_target: (capacity / 100).max(1),
            hot: 0,
            cold: 0,
            ghosts: 0,
            pages: Pages::new(),
            hand_hot: NONE,
            hand_cold: NONE,
            hand_test: NONE,
        }
    }

    /// Puts a node that is not on the clock right behind the hot hand.
    fn link(&mut self, node: u32) {
        if self.hand_hot == NONE {
            (self.hand_hot, self.hand_cold, self.hand_test) = (node, node, node);
            (self.pages[node].before, self.pages[node].after) = (node, node);
            return;
        }
        let (before, after) = (self.pages[self.hand_hot].before, self.hand_hot);
        (self.pages[node].before, self.pages[node].after) = (before, after);
        self.pages[before].after = node;
        self.pages[after].before = node;
    }

    /// Takes a node off the clock; hands that point to it go on.
    fn unlink(&mut self, node: u32) {
        let State { before, after, .. } = self.pages[node];
        let next = if after == node { NONE } else { after };
        for hand in [&mut self.hand_hot, &mut self.hand_cold, &mut self.hand_test] {
            if *hand == node {
                *hand = next;
            }
        }
        self.pages[before].after = after;
        self.pages[after].before = before;
    }

    fn move_to_head(&mut self, node: u32) {
        self.unlink(node);
        self.link(node);
    }

    fn forget(&mut self, node: u32) {
        self.unlink(node);
        self.pages.remove(node);
    }

    fn raise_target(&mut self) {
        self.cold_target = (self.cold_target + 1).min((self.capacity - 1).max(1));
    }

    /// A hand that ends tests passes a cold page or a ghost. True: a ghost is gone.
    fn end_test(&mut self, node: u32) -> bool {
        let State { kind, used, .. } = self.pages[node];
        match kind {
            Kind::Cold { testing: true } if !used => self.pages[node].kind = Kind::Cold { testing: false },
            Kind::Ghost => {
                self.forget(node);
                self.ghosts -= 1;
            }
            _ => return false,
        }
        self.cold_target = (self.cold_target - 1).max(1);
        kind == Kind::Ghost
    }

    /// Turns the hot hand until one hot page, of which there is one, is cold.
    fn cool_one(&mut self) {
        loop {
            let node = self.hand_hot;
            self.hand_hot = self.pages[node].after;
            match self.pages[node].kind {
                Kind::Hot if self.pages[node].used => self.pages[node].used = false,
                Kind::Hot => {
                    self.pages[node].kind = Kind::Cold { testing: false };
                    self.hot -= 1;
                    self.cold += 1;
                    return;
                }
                _ => {
                    self.end_test(node);
                }
            }
        }
    }

    fn cool_down_to_target(&mut self) {
        while self.hot > self.capacity - self.cold_target {
            self.cool_one();
        }
    }

    /// Turns the cold hand until a page is out.
    fn evict(&mut self) {
        loop {
            if self.cold == 0 {
                self.cool_one();
            }
            let node = self.hand_cold;
            self.hand_cold = self.pages[node].after;
            let State { kind: Kind::Cold { testing }, used, .. } = self.pages[node] else { continue };
            self.pages[node].used = false;
            match (used, testing) {
                (true, true) => {
                    self.pages[node].kind = Kind::Hot;
                    self.cold -= 1;
                    self.hot += 1;
                    self.move_to_head(node);
                    self.raise_target();
                    self.cool_down_to_target();
                }
                (true, false) => {
                    self.pages[node].kind = Kind::Cold { testing: true };
                    self.move_to_head(node);
                }
                (false, true) => {
                    self.pages[node].kind = Kind::Ghost;
                    self.cold -= 1;
                    self.ghosts += 1;
                    return self.limit_ghosts();
                }
                (false, false) => {
                    self.cold -= 1;
                    return self.forget(node);
                }
            }
        }
    }

    fn limit_ghosts(&mut self) {
        while self.ghosts > self.capacity {
            let node = self.hand_test;
            self.hand_test = self.pages[node].after;
            self.end_test(node);
        }
    }
}

impl Cache for ClockPro {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.find(page);
        if let Some(node) = known {
            if self.pages[node].kind != Kind::Ghost {
                self.pages[node].used = true;
                return true;
            }
            self.forget(node);
            self.ghosts -= 1;
            self.raise_target();
        }
        let was_full = self.resident_pages() == self.capacity;
        if was_full {
            self.evict();
        }
        let hot = known.is_some() || (!was_full && self.hot < self.capacity - self.cold_target);
        let kind = if hot { Kind::Hot } else { Kind::Cold { testing: true } };
        if hot {
            self.hot += 1;
        } else {
            self.cold += 1;
        }
        let node = self.pages.insert(page, State { kind, used: false, before: NONE, after: NONE });
        self.link(node);
        self.cool_down_to_target();
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for ClockPro {
    fn resident_pages(&self) -> u64 {
        self.hot + self.cold
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages::Random;
    use super::*;

    #[test]
    fn the_clock_and_its_counts_agree() {
        for capacity in [1, 2, 3, 10, 40] {
            let mut clock = ClockPro::new(capacity);
            let mut random = Random(capacity);
            for _ in 0..5000 {
                clock.access(random.below(1 + random.clone().below(4 * capacity)));
                let (mut hot, mut cold, mut ghosts) = (0, 0, 0);
                let mut node = clock.hand_hot;
                loop {
                    match clock.pages[node].kind {
                        Kind::Hot => hot += 1,
                        Kind::Cold { .. } => cold += 1,
                        Kind::Ghost => ghosts += 1,
                    }
                    let after = clock.pages[node].after;
                    assert_eq!(clock.pages[after].before, node);
                    node = after;
                    if node == clock.hand_hot {
                        break;
                    }
                }
                assert_eq!((hot, cold, ghosts), (clock.hot, clock.cold, clock.ghosts));
                assert!(
                    hot + cold <= capacity && ghosts <= capacity && clock.pages.len() == hot + cold + ghosts
                );
                assert!((1..=capacity).contains(&clock.cold_target));
                assert!(hot <= capacity - clock.cold_target);
            }
        }
    }

    #[test]
    fn a_scan_does_not_push_hot_pages_out() {
        let mut clock = ClockPro::new(100);
        for page in (0..80).cycle().take(400) {
            clock.access(page);
        }
        for page in 1000..5000 {
            clock.access(page);
        }
        assert!((0..80).filter(|page| clock.access(*page)).count() >= 79);
    }
}
