//! `clock`: second chance. A hit sets a bit; the hand clears bits until it finds a page without
//! one.

use super::view::{Policy, View};

const REFERENCED: u16 = 1;

/// Second chance inside a set.
pub struct Clock;

impl Policy for Clock {
    #[inline(always)]
    fn touched(_meta: u16, _clock: u16, _ways: usize) -> u16 {
        REFERENCED
    }

    fn admitted(_view: &View<'_>, _ghost: Option<u16>) -> u16 {
        0
    }

    fn rebased(meta: u16, _then: u16, _now: u16) -> u16 {
        meta
    }

    fn victim(view: &View<'_>, candidates: u32) -> usize {
        // Two rounds are enough: the first clears every candidate's bit. Because a hit may set a
        // bit again in the meantime, the number of steps is bounded, and in the end the way under
        // the hand is evicted.
        let mut way = view.hand() % view.ways();
        for _ in 0..2 * view.ways() {
            if candidates >> way & 1 == 1 {
                if view.meta(way) & REFERENCED == 0 {
                    break;
                }
                view.set_meta(way, 0);
            }
            way = (way + 1) % view.ways();
        }
        if candidates >> way & 1 == 0 {
            way = candidates.trailing_zeros() as usize;
        }
        view.set_hand((way + 1) % view.ways());
        way
    }
}
