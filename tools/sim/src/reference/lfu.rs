//! LFU: evicts the page with the fewest accesses since it came in. For comparison only.
//!
//! After Shah, Mitra, Matani, "An O(1) algorithm for implementing the LFU cache eviction scheme"
//! (2010): each access count in use has the list of its pages. Among pages of equal count, the one
//! with the oldest last access leaves. Counts are exact, are never halved, and are forgotten with
//! the page.

use std::collections::BTreeMap;

use super::lists::Lists;
use super::policy::Policy;

pub(super) struct Lfu {
    capacity: u64,
    /// The count of each page.
    pages: Lists<u64>,
    /// The list of each count that some page has.
    lists: BTreeMap<u64, usize>,
    /// Empty lists, for other counts.
    unused: Vec<usize>,
}

impl Lfu {
    pub fn new(capacity: u64) -> Self {
        Lfu { capacity, pages: Lists::new(0), lists: BTreeMap::new(), unused: Vec::new() }
    }

    fn list_of(&mut self, count: u64) -> usize {
        let (pages, unused) = (&mut self.pages, &mut self.unused);
        *self.lists.entry(count).or_insert_with(|| unused.pop().unwrap_or_else(|| pages.add()))
    }

    fn drop_if_empty(&mut self, count: u64, list: usize) {
        if self.pages.len(list) == 0 {
            self.lists.remove(&count);
            self.unused.push(list);
        }
    }
}

impl Policy for Lfu {
    fn access(&mut self, page: u64) -> bool {
        if let Some(node) = self.pages.find(page) {
            let (count, from) = (self.pages[node], self.pages.list(node));
            let to = self.list_of(count + 1);
            self.pages.move_to(to, node);
            self.pages[node] = count + 1;
            self.drop_if_empty(count, from);
            return true;
        }
        if self.pages.known() == self.capacity {
            let (count, list) = self.lists.first_key_value().expect("the cache is full");
            let (count, list) = (*count, *list);
            self.pages.remove_oldest(list);
            self.drop_if_empty(count, list);
        }
        let list = self.list_of(1);
        self.pages.push(list, page, 1);
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
    fn the_least_frequent_page_leaves_and_among_equals_the_least_recent() {
        let mut lfu = Lfu::new(3);
        assert_eq!(lfu.run(&[1, 1, 1, 2, 3, 2, 3]), 3);
        // Counts 3, 2, 2: 2 leaves for 4, then 4 for 2.
        assert_eq!(lfu.run(&[4, 2, 1, 3]), 2);
        assert!(!lfu.access(4));
        // Three counts in use, one of which is new: lists are used again.
        assert_eq!((lfu.lists.len(), lfu.resident_pages()), (3, 3));
        assert!(lfu.lists.len() + lfu.unused.len() <= 4, "{:?}", lfu.lists);
    }
}
