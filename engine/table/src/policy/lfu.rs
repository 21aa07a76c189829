//! `lfu` and `nrlfu`: the least frequently used page is evicted first (HotStorage '12, section 3).
//!
//! The frequency is one byte. It stops at 255, so that further hits of a very hot page store
//! nothing. The next search for a victim then halves the frequencies of the whole set and of its
//! ghosts. Among pages of equal frequency, the one whose frequency changed longest ago is evicted.
//! `nrlfu` keeps the frequencies of evicted pages in ghosts and reinstates them on return; `lfu`
//! starts again at one.

use super::view::{Policy, View, ways_of};

const FREQUENCY_MAX: u16 = 255;

fn frequency(meta: u16) -> u16 {
    meta & FREQUENCY_MAX
}

fn stamped(frequency: u16, clock: u16) -> u16 {
    (clock << 8) | frequency
}

fn halved(meta: u16) -> u16 {
    (meta & !FREQUENCY_MAX) | (frequency(meta) / 2)
}

/// Least frequently used; with `GHOSTS`, with the frequencies of non-resident pages.
pub struct LeastFrequent<const GHOSTS: bool>;

/// Least frequently used.
pub type Lfu = LeastFrequent<false>;

/// Least frequently used, with the frequencies of non-resident pages.
pub type NrLfu = LeastFrequent<true>;

impl<const GHOSTS: bool> Policy for LeastFrequent<GHOSTS> {
    const GHOSTS: bool = GHOSTS;
    const COUNTS_HITS: bool = true;

    #[inline(always)]
    fn touched(meta: u16, clock: u16, _ways: usize) -> u16 {
        match frequency(meta) {
            FREQUENCY_MAX => meta,
            f => stamped(f + 1, clock),
        }
    }

    fn admitted(view: &View<'_>, ghost: Option<u16>) -> u16 {
        let before = ghost.map_or(0, frequency);
        stamped((before + 1).min(FREQUENCY_MAX), view.clock)
    }

    /// Keeps the age modulo 256, because the stamp is the low byte of the clock.
    fn rebased(meta: u16, then: u16, now: u16) -> u16 {
        let age = (then as u8).wrapping_sub((meta >> 8) as u8);
        stamped(frequency(meta), (now as u8).wrapping_sub(age) as u16)
    }

    fn victim(view: &View<'_>, candidates: u32) -> usize {
        let all = 0..view.ways();
        if all.clone().any(|way| frequency(view.meta(way)) == FREQUENCY_MAX) {
            all.for_each(|way| view.set_meta(way, halved(view.meta(way))));
            view.ghosts.change_all(halved);
        }
        let now = view.clock as u8;
        ways_of(candidates)
            .min_by_key(|way| {
                let meta = view.meta(*way);
                (frequency(meta), std::cmp::Reverse(now.wrapping_sub((meta >> 8) as u8)))
            })
            .expect("a policy is asked for a victim only with at least one candidate")
    }
}
