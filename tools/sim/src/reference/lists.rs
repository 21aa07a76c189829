//! The pages that a reference policy knows, resident or ghost, each in one of several lists.
//!
//! A known page is a *node*: a `u32`, its index in one vector. There are no pointers, reference
//! counts or allocations per page, and the node of a forgotten page is used again. A list runs from
//! its oldest to its newest node. What is not here: any policy, and any limit on the known pages.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use crate::footprint::BuildPageHasher;

/// No node: the end of a list.
const NONE: u32 = u32::MAX;

/// Known pages, each with a state `T`, in numbered lists.
pub(super) struct Lists<T = ()> {
    index: HashMap<u64, u32, BuildPageHasher>,
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    ends: Vec<Ends>,
}

struct Node<T> {
    page: u64,
    state: T,
    list: u32,
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
    len: u64,
}

const EMPTY: Ends = Ends { oldest: NONE, newest: NONE, len: 0 };

impl<T> Lists<T> {
    /// Creates `count` empty lists, numbered from 0.
    pub fn new(count: usize) -> Self {
        Lists { index: HashMap::default(), nodes: Vec::new(), free: Vec::new(), ends: vec![EMPTY; count] }
    }

    /// Returns the number of known pages, in all lists together.
    pub fn known(&self) -> u64 {
        self.index.len() as u64
    }

    /// Returns the number of pages in `list`.
    pub fn len(&self, list: usize) -> u64 {
        self.ends[list].len
    }

    /// Returns the node of a known page.
    pub fn find(&self, page: u64) -> Option<u32> {
        self.index.get(&page).copied()
    }

    /// Returns the page of a node.
    pub fn page(&self, node: u32) -> u64 {
        self.nodes[node as usize].page
    }

    /// Returns the list that a node is in.
    pub fn list(&self, node: u32) -> usize {
        self.nodes[node as usize].list as usize
    }

    /// Returns the oldest node of `list`.
    pub fn oldest(&self, list: usize) -> Option<u32> {
        some(self.ends[list].oldest)
    }

    /// Returns the next newer node of the node's list.
    pub fn newer(&self, node: u32) -> Option<u32> {
        some(self.nodes[node as usize].newer)
    }

    /// Adds an unknown page as the newest of `list`.
    pub fn push(&mut self, list: usize, page: u64, state: T) -> u32 {
        let node = self.insert(page, state);
        self.link(list, self.ends[list].newest, node, NONE);
        node
    }

    /// Adds an unknown page to `list` as the next older neighbour of the node `newer`, or as the
    /// newest page if `newer` is None.
    pub fn push_before(&mut self, list: usize, newer: Option<u32>, page: u64, state: T) -> u32 {
        let Some(newer) = newer else { return self.push(list, page, state) };
        let node = self.insert(page, state);
        self.link(list, self.nodes[newer as usize].older, node, newer);
        node
    }

    /// Makes a node the newest of `list`, whichever list it was in.
    pub fn move_to(&mut self, list: usize, node: u32) {
        if self.ends[list].newest != node {
            self.unlink(node);
            self.link(list, self.ends[list].newest, node, NONE);
        }
    }

    /// Moves the oldest node of `from`, which is not empty, to the newest place of `to`.
    pub fn move_oldest(&mut self, from: usize, to: usize) -> u32 {
        let node = self.oldest(from).expect("the list is not empty");
        self.move_to(to, node);
        node
    }

    /// Forgets a page. Its node may stand for another page from now on.
    pub fn remove(&mut self, node: u32) {
        self.unlink(node);
        let removed = self.index.remove(&self.page(node));
        debug_assert_eq!(removed, Some(node));
        self.free.push(node);
    }

    /// Forgets the oldest page of `list`, which is not empty.
    pub fn remove_oldest(&mut self, list: usize) {
        self.remove(self.ends[list].oldest);
    }

    fn insert(&mut self, page: u64, state: T) -> u32 {
        let new = Node { page, state, list: 0, older: NONE, newer: NONE };
        let node = self.free.pop().unwrap_or(self.nodes.len() as u32);
        match self.nodes.get_mut(node as usize) {
            Some(free) => *free = new,
            None => {
                assert!(node < NONE, "a policy knows fewer than {NONE} pages");
                self.nodes.push(new);
            }
        }
        let before = self.index.insert(page, node);
        debug_assert_eq!(before, None, "the page was known");
        node
    }

    fn link(&mut self, list: usize, older: u32, node: u32, newer: u32) {
        self.connect(list, older, node);
        self.connect(list, node, newer);
        self.nodes[node as usize].list = list as u32;
        self.ends[list].len += 1;
    }

    fn unlink(&mut self, node: u32) {
        let Node { list, older, newer, .. } = self.nodes[node as usize];
        self.connect(list as usize, older, newer);
        self.ends[list as usize].len -= 1;
    }

    /// Makes two nodes neighbours; [`NONE`] makes the other one an end of the list.
    fn connect(&mut self, list: usize, older: u32, newer: u32) {
        match some(older) {
            Some(older) => self.nodes[older as usize].newer = newer,
            None => self.ends[list].oldest = newer,
        }
        match some(newer) {
            Some(newer) => self.nodes[newer as usize].older = older,
            None => self.ends[list].newest = older,
        }
    }
}

impl<T> Index<u32> for Lists<T> {
    type Output = T;

    fn index(&self, node: u32) -> &T {
        &self.nodes[node as usize].state
    }
}

impl<T> IndexMut<u32> for Lists<T> {
    fn index_mut(&mut self, node: u32) -> &mut T {
        &mut self.nodes[node as usize].state
    }
}

fn some(node: u32) -> Option<u32> {
    (node != NONE).then_some(node)
}

#[cfg(test)]
mod tests {
    use octavo_random::Random;

    use super::*;

    fn pages(lists: &Lists, list: usize) -> Vec<u64> {
        let forward: Vec<u32> =
            std::iter::successors(lists.oldest(list), |node| lists.newer(*node)).collect();
        let older = |node: &u32| some(lists.nodes[*node as usize].older);
        let backward: Vec<u32> = std::iter::successors(some(lists.ends[list].newest), older).collect();
        assert!(forward.iter().eq(backward.iter().rev()));
        assert_eq!(forward.len() as u64, lists.len(list));
        assert!(forward.iter().all(|node| lists.list(*node) == list));
        forward.into_iter().map(|node| lists.page(node)).collect()
    }

    #[test]
    fn lists_agree_with_vectors_under_random_operations() {
        let mut random = Random::new(42);
        let mut lists = Lists::new(2);
        let mut twin = [Vec::new(), Vec::new()];
        for _ in 0..20_000 {
            let page = random.below(12);
            let list = random.below(2) as usize;
            let known = lists.find(page);
            assert_eq!(known.is_some(), twin.concat().contains(&page));
            match (known, random.below(3)) {
                (None, 0) => {
                    lists.push(list, page, ());
                    twin[list].push(page);
                }
                (None, 1) => {
                    let newer = lists.oldest(list);
                    lists.push_before(list, newer, page, ());
                    twin[list].insert(0, page);
                }
                (None, _) => {
                    let newer = lists.oldest(list).and_then(|oldest| lists.newer(oldest));
                    lists.push_before(list, newer, page, ());
                    let at = 1.min(twin[list].len());
                    let at = if newer.is_none() { twin[list].len() } else { at };
                    twin[list].insert(at, page);
                }
                (Some(node), 0) => {
                    lists.remove(node);
                    twin.iter_mut().for_each(|pages| pages.retain(|other| *other != page));
                }
                (Some(_), 1) if !twin[list].is_empty() => {
                    lists.move_oldest(list, 1 - list);
                    let oldest = twin[list].remove(0);
                    twin[1 - list].push(oldest);
                }
                (Some(node), _) => {
                    lists.move_to(list, node);
                    twin.iter_mut().for_each(|pages| pages.retain(|other| *other != page));
                    twin[list].push(page);
                }
            }
            assert_eq!([pages(&lists, 0), pages(&lists, 1)], twin);
        }
    }

    #[test]
    fn a_removed_page_is_not_found_and_its_node_is_used_again() {
        let mut lists = Lists::new(1);
        let first = lists.push(0, u64::MAX, 'a');
        let second = lists.push(0, 0, 'b');
        lists.remove(first);
        assert_eq!((lists.find(u64::MAX), lists.find(0), lists.known()), (None, Some(second), 1));
        assert_eq!(lists.push(0, 7, 'c'), first);
        assert_eq!((lists.page(first), lists[first], lists[second]), (7, 'c', 'b'));
    }
}
