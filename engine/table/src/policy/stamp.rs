//! `fifo` and `lru`: the page with the oldest stamp is evicted first.
//!
//! A page's bits are a stamp: the set's clock when the page came in (`fifo`; hits change nothing)
//! or when it was last used (`lru`). The clock advances when a page comes in. Hits between two
//! arrivals have the same time, so a page that is hit often is stamped once per arrival and not
//! once per hit. The order of `lru` differs from exact LRU only among pages hit since the last
//! arrival, and such a page is a victim only if all pages of the set were hit.

use super::view::{Policy, View, ways_of};

/// Evicts the page with the oldest stamp; with `USES`, hits stamp too.
pub struct OldestStamp<const USES: bool>;

/// First in, first out.
pub type Fifo = OldestStamp<false>;

/// Least recently used.
pub type Lru = OldestStamp<true>;

impl<const USES: bool> Policy for OldestStamp<USES> {
    #[inline(always)]
    fn touched(meta: u16, clock: u16, _ways: usize) -> u16 {
        if USES { clock } else { meta }
    }

    fn admitted(view: &View<'_>, _ghost: Option<u16>) -> u16 {
        view.clock
    }

    fn rebased(meta: u16, then: u16, now: u16) -> u16 {
        now.wrapping_sub(then.wrapping_sub(meta))
    }

    /// Stamps wrap, which does not affect their distances from the clock.
    fn victim(view: &View<'_>, candidates: u32) -> usize {
        ways_of(candidates)
            .max_by_key(|way| (view.clock.wrapping_sub(view.meta(*way)), std::cmp::Reverse(*way)))
            .expect("a policy is asked for a victim only with at least one candidate")
    }
}
