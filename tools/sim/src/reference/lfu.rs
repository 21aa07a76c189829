//! LFU: evicts the page with the fewest accesses since it came in. For comparison only.
//!
//! Among pages of equal count, the one with the oldest last access leaves. Counts are exact, are
//! never halved, and are forgotten with the page.

use std::collections::{BTreeMap, HashMap};

use crate::cache::Cache;
use crate::footprint::BuildPageHasher;

pub(super) struct Lfu {
    capacity: u64,
    now: u64,
    /// The count and the last access of each page.
    pages: HashMap<u64, (u64, u64), BuildPageHasher>,
    /// The page of each count and last access: the next victim first.
    order: BTreeMap<(u64, u64), u64>,
}

impl Lfu {
    pub fn new(capacity: u64) -> Self {
        Lfu { capacity, now: 0, pages: HashMap::default(), order: BTreeMap::new() }
    }
}

impl Cache for Lfu {
    fn access(&mut self, page: u64) -> bool {
        let known = self.pages.get(&page).copied();
        if let Some(known) = known {
            self.order.remove(&known);
        } else if self.resident_pages() == self.capacity {
            let (_, victim) = self.order.pop_first().expect("the cache is full");
            self.pages.remove(&victim);
        }
        self.now += 1;
        let uses = (known.map_or(1, |(count, _)| count + 1), self.now);
        self.pages.insert(page, uses);
        self.order.insert(uses, page);
        known.is_some()
    }

    fn resident_pages(&self) -> u64 {
        self.pages.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_frequent_page_leaves_and_among_equals_the_least_recent() {
        let mut lfu = Lfu::new(3);
        assert_eq!(lfu.run(&[1, 1, 1, 2, 3, 2, 3]), 3);
        // Counts 3, 2, 2: 2 leaves for 4, then 4 for 2.
        assert_eq!(lfu.run(&[4, 2, 1, 3]), 2);
        assert!(!lfu.access(4));
        assert_eq!((lfu.order.len(), lfu.resident_pages()), (3, 3));
    }
}
