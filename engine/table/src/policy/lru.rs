//! `lru`: the least recently used page is evicted first.
//!
//! Time is the set's clock, which moves when a page comes in. Hits between two arrivals have the
//! same time, so a page that is hit often is stamped once per arrival and not once per hit. The
//! order differs from exact LRU only among pages hit since the last arrival, and such a page is a
//! victim only if all pages of the set were hit.

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
