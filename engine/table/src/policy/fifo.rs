//! `fifo`: the page that came in first is evicted first. A hit changes nothing.

use super::view::{Policy, View, oldest, stamp_rebased};

/// First in, first out. The bits are the set's clock at arrival.
pub struct Fifo;

impl Policy for Fifo {
    #[inline(always)]
    fn touched(meta: u16, _clock: u16, _ways: usize) -> u16 {
        meta
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
