//! A change of policy: the pages of a set stay, and the new policy takes over the order in which
//! the old one would have evicted them.
//!
//! The policies' bits differ in meaning, so they are not translated. The old policy names one
//! victim after the other, and the new one admits the ways in that order, as if their pages had
//! come in one by one. The half that the old policy would have kept longest counts as used once
//! since then. Ghosts are dropped, because their bits belong to the old policy.

use super::kind::{PolicyKind, with_policy};
use super::view::{Policy, View};

/// Returns the ways of a mask, first victim first, and their number; array elements from that
/// number on are meaningless.
pub(crate) fn order(old: PolicyKind, view: &View<'_>, occupied: u32) -> ([u8; 32], usize) {
    let (mut ways, mut count, mut left) = ([0; 32], 0, occupied);
    while left != 0 {
        let way = with_policy!(old, P => P::victim(view, left));
        left &= !(1 << way);
        ways[count] = way as u8;
        count += 1;
    }
    (ways, count)
}

/// Admits the next way of that order. The caller has advanced the set's clock for it.
pub(crate) fn readmit(new: PolicyKind, view: &View<'_>, way: usize, used: bool) {
    let ways = view.ways();
    with_policy!(new, P => {
        let meta = P::admitted(view, None);
        view.set_meta(way, if used { P::touched(meta, view.clock, ways) } else { meta });
    });
}
