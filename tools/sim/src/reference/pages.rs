//! What the reference policies are built from: an index of pages, and lists that link numbers of
//! nodes.
//!
//! A page that a policy knows, in the cache or as a ghost, is a *node*: a `u32` that indexes
//! vectors. So there is no pointer, no counted reference and no allocation per page; what was freed
//! is used again. What is not here: any policy, and any bound on how many pages are known.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Index, IndexMut};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Pages by their number, with `T` for each.
pub(super) struct Pages<T> {
    index: HashMap<u64, u32, BuildHasherDefault<Mix>>,
    nodes: Vec<(u64, T)>,
    free: Vec<u32>,
}

impl<T> Pages<T> {
    pub fn new() -> Self {
        Pages { index: HashMap::default(), nodes: Vec::new(), free: Vec::new() }
    }

    pub fn len(&self) -> u64 {
        self.index.len() as u64
    }

    pub fn find(&self, page: u64) -> Option<u32> {
        self.index.get(&page).copied()
    }

    /// Adds a page that is not there.
    pub fn insert(&mut self, page: u64, state: T) -> u32 {
        let node = match self.free.pop() {
            Some(node) => {
                self.nodes[node as usize] = (page, state);
                node
            }
            None => {
                assert!(self.nodes.len() < NONE as usize, "a policy knows at most {NONE} pages");
                self.nodes.push((page, state));
                (self.nodes.len() - 1) as u32
            }
        };
        let before = self.index.insert(page, node);
        debug_assert_eq!(before, None, "the page was there");
        node
    }

    /// Forgets a page; its node may be another page's from now on.
    pub fn remove(&mut self, node: u32) {
        let removed = self.index.remove(&self.page(node));
        debug_assert_eq!(removed, Some(node));
        self.free.push(node);
    }

    pub fn page(&self, node: u32) -> u64 {
        self.nodes[node as usize].0
    }
}

impl<T> Index<u32> for Pages<T> {
    type Output = T;

    fn index(&self, node: u32) -> &T {
        &self.nodes[node as usize].1
    }
}

impl<T> IndexMut<u32> for Pages<T> {
    fn index_mut(&mut self, node: u32) -> &mut T {
        &mut self.nodes[node as usize].1
    }
}

/// Lists by number, each from its oldest to its newest node. A node is in at most one list of one
/// `Lists`.
pub(super) struct Lists {
    links: Vec<Link>,
    ends: Vec<Ends>,
}

#[derive(Clone, Copy)]
struct Link {
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

impl Lists {
    /// `count` empty lists.
    pub fn new(count: usize) -> Self {
        Lists { links: Vec::new(), ends: vec![EMPTY; count] }
    }

    /// One more empty list; its number.
    pub fn add(&mut self) -> usize {
        self.ends.push(EMPTY);
        self.ends.len() - 1
    }

    pub fn len(&self, list: usize) -> u64 {
        self.ends[list].len
    }

    pub fn oldest(&self, list: usize) -> Option<u32> {
        some(self.ends[list].oldest)
    }

    /// The node that is one newer in its list.
    pub fn newer(&self, node: u32) -> Option<u32> {
        some(self.links[node as usize].newer)
    }

    /// Appends a node that is in no list.
    pub fn push(&mut self, list: usize, node: u32) {
        self.insert_between(list, self.ends[list].newest, node, NONE);
    }

    /// Puts a node that is in no list before all others.
    pub fn push_oldest(&mut self, list: usize, node: u32) {
        self.insert_between(list, NONE, node, self.ends[list].oldest);
    }

    /// Puts a node that is in no list behind `older`, which is in this one.
    pub fn insert_after(&mut self, list: usize, older: u32, node: u32) {
        self.insert_between(list, older, node, self.links[older as usize].newer);
    }

    pub fn remove(&mut self, list: usize, node: u32) {
        let Link { older, newer } = self.links[node as usize];
        match some(older) {
            Some(older) => self.links[older as usize].newer = newer,
            None => self.ends[list].oldest = newer,
        }
        match some(newer) {
            Some(newer) => self.links[newer as usize].older = older,
            None => self.ends[list].newest = older,
        }
        self.ends[list].len -= 1;
    }

    /// Makes a node of the list its newest.
    pub fn renew(&mut self, list: usize, node: u32) {
        if self.ends[list].newest != node {
            self.remove(list, node);
            self.push(list, node);
        }
    }

    /// Takes the oldest node out of a list that is not empty.
    pub fn pop_oldest(&mut self, list: usize) -> u32 {
        let node = self.ends[list].oldest;
        assert!(node != NONE, "the list is empty");
        self.remove(list, node);
        node
    }

    fn insert_between(&mut self, list: usize, older: u32, node: u32, newer: u32) {
        if self.links.len() <= node as usize {
            self.links.resize(node as usize + 1, Link { older: NONE, newer: NONE });
        }
        self.links[node as usize] = Link { older, newer };
        match some(older) {
            Some(older) => self.links[older as usize].newer = node,
            None => self.ends[list].oldest = node,
        }
        match some(newer) {
            Some(newer) => self.links[newer as usize].older = node,
            None => self.ends[list].newest = node,
        }
        self.ends[list].len += 1;
    }
}

fn some(node: u32) -> Option<u32> {
    (node != NONE).then_some(node)
}

/// A hasher of page numbers: two multiplications. Nobody attacks a simulation.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A bijection whose high and low bits all depend on all bits of the number.
pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ (mixed >> 32)
}

/// Numbers that look random, for tests: splitmix64.
#[cfg(test)]
#[derive(Clone)]
pub(super) struct Random(pub u64);

#[cfg(test)]
impl Random {
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(lists: &Lists, list: usize) -> Vec<u32> {
        let forward: Vec<u32> =
            std::iter::successors(lists.oldest(list), |node| lists.newer(*node)).collect();
        let mut backward: Vec<u32> = std::iter::successors(some(lists.ends[list].newest), |node| {
            some(lists.links[*node as usize].older)
        })
        .collect();
        backward.reverse();
        assert_eq!(forward, backward);
        assert_eq!(forward.len() as u64, lists.len(list));
        forward
    }

    #[test]
    fn lists_agree_with_vectors_under_random_operations() {
        let mut random = Random(42);
        let mut lists = Lists::new(2);
        let mut twin = [Vec::new(), Vec::new()];
        for _ in 0..20_000 {
            let node = random.below(12) as u32;
            let at = (0..2).find(|list| twin[*list].contains(&node));
            match at {
                None => {
                    let list = random.below(2) as usize;
                    match random.below(3) {
                        0 => {
                            lists.push(list, node);
                            twin[list].push(node);
                        }
                        1 => {
                            lists.push_oldest(list, node);
                            twin[list].insert(0, node);
                        }
                        _ => {
                            let Some(older) = twin[list].first().copied() else { continue };
                            lists.insert_after(list, older, node);
                            twin[list].insert(1, node);
                        }
                    }
                }
                Some(list) if random.below(3) == 0 => {
                    lists.remove(list, node);
                    twin[list].retain(|other| *other != node);
                }
                Some(list) if random.below(2) == 0 => {
                    assert_eq!(lists.pop_oldest(list), twin[list].remove(0));
                }
                Some(list) => {
                    lists.renew(list, node);
                    twin[list].retain(|other| *other != node);
                    twin[list].push(node);
                }
            }
            for (list, twin) in twin.iter().enumerate() {
                assert_eq!(&nodes(&lists, list), twin);
            }
        }
    }

    #[test]
    fn a_removed_page_is_not_found_and_its_node_is_used_again() {
        let mut pages = Pages::new();
        let first = pages.insert(u64::MAX, 'a');
        let second = pages.insert(0, 'b');
        pages.remove(first);
        assert_eq!((pages.find(u64::MAX), pages.find(0), pages.len()), (None, Some(second), 1));
        assert_eq!(pages.insert(7, 'c'), first);
        assert_eq!((pages.page(first), pages[first], pages[second]), (7, 'c', 'b'));
    }
}
