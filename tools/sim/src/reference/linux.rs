//! What Linux does with the pages of files, without and with refault distances. For comparison
//! only.
//!
//! Two lists, inactive and active, after `mm/swap.c` (`folio_mark_accessed`) and `mm/vmscan.c`
//! (`inactive_is_low`, `shrink_active_list`) of Linux 6.x, an approximation of CLOCK-Pro by its own
//! account. A page comes in inactive; its second access while it is inactive makes it active. Pages
//! leave from the inactive list's old end; read and written pages (not mapped ones) get no second
//! chance there. While the inactive list is low, the oldest active pages become inactive; it is low
//! below an equal share, or, for more than 1 GiB of pages of 4 KiB, below a share of one to the
//! square root of ten times the GiB.
//!
//! Refault distances after `mm/workingset.c`: a clock ticks at each eviction and activation. A page
//! that comes back within as many ticks as there are active pages comes in active.
//!
//! What is not here: batches of 32 pages, the per-CPU lists on the way, read-ahead, anonymous
//! memory, the multi-generational LRU.

use super::Policy;
use super::pages::{Lists, Pages};
use crate::Cache;

const INACTIVE: u8 = 0;
const ACTIVE: u8 = 1;
/// Pages that left, those that left first, first; only with refault distances.
const GHOSTS: u8 = 2;

const PAGES_PER_GIB: u64 = 1 << 18;

#[derive(Clone, Copy)]
struct State {
    list: u8,
    /// `PG_referenced`: a further access while the page is inactive activates it.
    referenced: bool,
    /// When the page left, for ghosts.
    left: u64,
}

pub(super) struct Linux {
    capacity: u64,
    refaults: bool,
    /// Evictions and activations so far; `nonresident_age`.
    age: u64,
    pages: Pages<State>,
    lists: Lists,
}

impl Linux {
    /// `refaults`: with refault distances.
    pub fn new(capacity: u64, refaults: bool) -> Self {
        Linux { capacity, refaults, age: 0, pages: Pages::new(), lists: Lists::new(3) }
    }

    fn len(&self, list: u8) -> u64 {
        self.lists.len(list as usize)
    }

    fn put(&mut self, node: u32, list: u8) {
        self.pages[node].list = list;
        self.lists.push(list as usize, node);
    }

    /// Moves a node from its list to the newest of another.
    fn move_to(&mut self, list: u8, node: u32) {
        self.lists.remove(self.pages[node].list as usize, node);
        self.put(node, list);
    }

    fn inactive_is_low(&self) -> bool {
        let gib = (self.len(INACTIVE) + self.len(ACTIVE)) / PAGES_PER_GIB;
        let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
        self.len(INACTIVE) * ratio < self.len(ACTIVE)
    }

    fn evict(&mut self) {
        while self.inactive_is_low() {
            let node = self.lists.pop_oldest(ACTIVE as usize);
            self.put(node, INACTIVE);
        }
        let node = self.lists.pop_oldest(INACTIVE as usize);
        if !self.refaults {
            return self.pages.remove(node);
        }
        self.pages[node] = State { list: GHOSTS, referenced: false, left: self.age };
        self.put(node, GHOSTS);
        self.age += 1;
        // One that left longer ago than there are pages could never be active again.
        while let Some(oldest) = self.lists.oldest(GHOSTS as usize) {
            if self.age - self.pages[oldest].left <= self.capacity {
                break;
            }
            self.lists.remove(GHOSTS as usize, oldest);
            self.pages.remove(oldest);
        }
    }

    fn mark(&mut self, node: u32) {
        let state = &mut self.pages[node];
        if state.list == INACTIVE && state.referenced {
            state.referenced = false;
            self.age += 1;
            self.move_to(ACTIVE, node);
        } else {
            state.referenced = true;
        }
    }
}

impl Cache for Linux {
    fn access(&mut self, page: u64) -> bool {
        let mut list = INACTIVE;
        if let Some(node) = self.pages.find(page) {
            if self.pages[node].list != GHOSTS {
                self.mark(node);
                return true;
            }
            if self.age - self.pages[node].left <= self.len(ACTIVE) {
                list = ACTIVE;
            }
            self.lists.remove(GHOSTS as usize, node);
            self.pages.remove(node);
        }
        if self.resident_pages() == self.capacity {
            self.evict();
        }
        if list == ACTIVE {
            self.age += 1;
        }
        // The access that brings a page in is its first: it is referenced now.
        let node = self.pages.insert(page, State { list, referenced: true, left: 0 });
        self.lists.push(list as usize, node);
        false
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Linux {
    fn resident_pages(&self) -> u64 {
        self.len(INACTIVE) + self.len(ACTIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_used_twice_outlive_a_scan() {
        let mut linux = Linux::new(4, false);
        assert_eq!(linux.run(&[1, 1, 2, 2, 3, 4]), 4);
        assert_eq!((linux.len(INACTIVE), linux.len(ACTIVE)), (2, 2));
        linux.run(&[5, 6, 7, 8, 9]);
        assert!(linux.access(1) && linux.access(2) && linux.access(9) && !linux.access(3));
    }

    #[test]
    fn a_page_that_returns_soon_comes_in_active_with_refault_distances() {
        let (mut with, mut without) = (Linux::new(4, true), Linux::new(4, false));
        // 3 left for 5 and returns at once: within two ticks, and two pages are active.
        let pages = [1, 1, 2, 2, 3, 4, 5, 3, 6, 7];
        assert_eq!((with.run(&pages), without.run(&pages)), (8, 8));
        assert!(with.access(3) && !without.access(3));
        assert!(with.access(2) && !with.access(1));
    }
}
