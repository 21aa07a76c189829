//! Linux's policy for the pages of files, with and without refault distances. For comparison only.
//!
//! Two lists, inactive and active, modelled on `mm/swap.c` (`folio_mark_accessed`) and
//! `mm/vmscan.c` (`inactive_is_low`, `shrink_active_list`) of Linux 6.x, which describes the policy
//! as an approximation of CLOCK-Pro. A page comes in inactive; its second access while it is
//! inactive makes it active. Pages leave from the inactive list's old end; read and written pages
//! (not mapped ones) get no second chance there. While the inactive list is low, the oldest active
//! pages become inactive. The inactive list is low if it is shorter than the active one; with 1 GiB
//! of pages of 4 KiB or more, if there are more active pages than inactive ones times the square
//! root of ten times the GiB.
//!
//! Refault distances are modelled on `mm/workingset.c`: a clock ticks at each eviction and
//! activation. A page that comes back within as many ticks as there are active pages comes in
//! active.
//!
//! What is not here: batches of 32 pages, the per-CPU lists through which pages reach the LRU
//! lists, read-ahead, anonymous memory, the multi-generational LRU.

use super::lists::Lists;
use crate::cache::Cache;

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;
/// Evicted pages, the first evicted first; only with refault distances.
const GHOSTS: usize = 2;

const PAGES_PER_GIB: u64 = 1 << 18;

#[derive(Clone, Copy)]
struct State {
    /// `PG_referenced`: another access while the page is inactive activates it.
    referenced: bool,
    /// For ghosts: the age at which the page was evicted.
    left: u64,
}

pub(super) struct Linux {
    capacity: u64,
    refaults: bool,
    /// Evictions and activations so far; `nonresident_age`.
    age: u64,
    pages: Lists<State>,
}

impl Linux {
    /// Creates a cache, with refault distances if `refaults` is set.
    pub fn new(capacity: u64, refaults: bool) -> Self {
        Linux { capacity, refaults, age: 0, pages: Lists::new(3) }
    }

    fn inactive_is_low(&self) -> bool {
        let gib = self.resident_pages() / PAGES_PER_GIB;
        let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
        self.pages.len(INACTIVE) * ratio < self.pages.len(ACTIVE)
    }

    fn evict(&mut self) {
        while self.inactive_is_low() {
            self.pages.move_oldest(ACTIVE, INACTIVE);
        }
        if !self.refaults {
            return self.pages.remove_oldest(INACTIVE);
        }
        let node = self.pages.move_oldest(INACTIVE, GHOSTS);
        self.pages[node] = State { referenced: false, left: self.age };
        self.age += 1;
        // A ghost that left more ticks ago than the cache has pages could never come in active
        // again.
        while let Some(oldest) = self.pages.oldest(GHOSTS)
            && self.age - self.pages[oldest].left > self.capacity
        {
            self.pages.remove(oldest);
        }
    }

    fn mark(&mut self, node: u32) {
        let activates = self.pages.list(node) == INACTIVE && self.pages[node].referenced;
        self.pages[node].referenced = !activates;
        if activates {
            self.age += 1;
            self.pages.move_to(ACTIVE, node);
        }
    }
}

impl Cache for Linux {
    fn access(&mut self, page: u64) -> bool {
        let mut list = INACTIVE;
        if let Some(node) = self.pages.find(page) {
            if self.pages.list(node) != GHOSTS {
                self.mark(node);
                return true;
            }
            if self.age - self.pages[node].left <= self.pages.len(ACTIVE) {
                list = ACTIVE;
            }
            self.pages.remove(node);
        }
        if self.resident_pages() == self.capacity {
            self.evict();
        }
        self.age += u64::from(list == ACTIVE);
        // The access that brings a page in is its first, so it is referenced now.
        self.pages.push(list, page, State { referenced: true, left: 0 });
        false
    }

    fn resident_pages(&self) -> u64 {
        self.pages.len(INACTIVE) + self.pages.len(ACTIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_used_twice_outlive_a_scan() {
        let mut linux = Linux::new(4, false);
        assert_eq!(linux.run(&[1, 1, 2, 2, 3, 4]), 4);
        assert_eq!((linux.pages.len(INACTIVE), linux.pages.len(ACTIVE)), (2, 2));
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
