//! `lru`: the page that was used longest ago leaves first.
//!
//! Time is the set's clock, which moves when a page comes in: hits between two arrivals are not
//! told apart, so a page that is hit often is stamped once per arrival and not once per hit. The
//! order differs from exact LRU only among pages hit since the last arrival, which are victims only
//! where all the set was.

use super::view::{Policy, View, oldest, stamp_rebased};

/// Least recently used. The bits are the set's clock at the last use.
pub struct Lru;

impl Policy for Lru {
    #[inline(always)]
    fn touched(_meta: u16, clock: u16, _ways: usize) -> u16 {
        clock
    }

    fn admitted(view: &View<'_>, _ghost: Option<u16>) -> u16 {
        view.clock
    }

    fn rebased(meta: u16, then: u16, now: u16) -> u16 {
        stamp_rebased(meta, then, now)
    }

    fn victim(view: &View<'_>, candidates: u32) -> usize {
        oldest(view, candidates)
    }
}
