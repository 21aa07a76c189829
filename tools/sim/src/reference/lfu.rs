//! LFU: evicts the page with the fewest accesses since it came in. For comparison only.
//!
//! Constant time after Shah, Mitra, Matani, "An O(1) algorithm for implementing the LFU cache
//! eviction scheme" (2010): a chain of counts, each with the list of its pages. Among pages of
//! equal count the one whose last access is longest ago leaves. Counts are exact, are never halved,
//! and are forgotten with the page.

use super::Policy;
use super::pages::{Lists, Pages};
use crate::Cache;

pub(super) struct Lfu {
    capacity: u64,
    /// The list that the page is in.
    pages: Pages<u32>,
    /// A list of pages for every count in use.
    lists: Lists,
    /// The count of every list.
    counts: Vec<u64>,
    /// The lists in use, the lowest count first.
    chain: Lists,
    unused: Vec<u32>,
}

impl Lfu {
    pub fn new(capacity: u64) -> Self {
        Lfu {
            capacity,
            pages: Pages::new(),
            lists: Lists::new(0),
            counts: Vec::new(),
            chain: Lists::new(1),
            unused: Vec::new(),
        }
    }

    /// The list of `count`, which comes right behind list `after` or, with none, first.
    fn list_of(&mut self, count: u64, after: Option<u32>) -> u32 {
        let next = match after {
            Some(after) => self.chain.newer(after),
            None => self.chain.oldest(0),
        };
        if let Some(next) = next.filter(|next| self.counts[*next as usize] == count) {
            return next;
        }
        let list = self.unused.pop().unwrap_or_else(|| {
            self.counts.push(0);
            self.lists.add() as u32
        });
        self.counts[list as usize] = count;
        match after {
            Some(after) => self.chain.insert_after(0, after, list),
            None => self.chain.push_oldest(0, list),
        }
        list
    }

    fn drop_if_empty(&mut self, list: u32) {
        if self.lists.len(list as usize) == 0 {
            self.chain.remove(0, list);
            self.unused.push(list);
        }
    }
}

impl Cache for Lfu {
    fn access(&mut self, page: u64) -> bool {
        if let Some(node) = self.pages.find(page) {
            let from = self.pages[node];
            let to = self.list_of(self.counts[from as usize] + 1, Some(from));
            self.lists.remove(from as usize, node);
            self.lists.push(to as usize, node);
            self.pages[node] = to;
            self.drop_if_empty(from);
            return true;
        }
        if self.pages.len() == self.capacity {
            let list = self.chain.oldest(0).expect("the cache is full");
            self.pages.remove(self.lists.pop_oldest(list as usize));
            self.drop_if_empty(list);
        }
        let list = self.list_of(1, None);
        self.lists.push(list as usize, self.pages.insert(page, list));
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Lfu {
    fn resident_pages(&self) -> u64 {
        self.pages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rarest_page_leaves_and_of_equals_the_one_used_longest_ago() {
        let mut lfu = Lfu::new(3);
        assert_eq!(lfu.run(&[1, 1, 1, 2, 3, 2, 3]), 3);
        // Counts 3, 2, 2: 2 leaves for 4, then 4 for 2.
        assert_eq!(lfu.run(&[4, 2, 1, 3]), 2);
        assert!(!lfu.access(4));
        // Two counts in use, of which one is new: lists are used again.
        assert_eq!((lfu.chain.len(0), lfu.resident_pages()), (3, 3));
        assert!(lfu.counts.len() <= 4, "{:?}", lfu.counts);
    }
}
