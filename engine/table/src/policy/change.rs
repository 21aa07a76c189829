//! A change of policy: the pages of a set stay, and the new policy takes over the order in which
//! the old one would have let them go.
//!
//! What the policies' bits mean differs, so they are not translated: the old policy is asked for
//! one victim after the other, and the new one admits the ways in that order, as if they had come
//! one by one. The half that the old one would have kept longest counts as used once since. Ghosts
//! are forgotten, for what is remembered of them are bits of the old policy.

use super::kind::{PolicyKind, with_policy};
use super::view::{Policy, View};

/// The ways of a mask, first victim first; the numbers behind the count mean nothing.
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

/// Admits a way that has its turn in that order; the view's clock has moved for it.
pub(crate) fn readmit(new: PolicyKind, view: &View<'_>, way: usize, used: bool) {
    let ways = view.ways();
    with_policy!(new, P => {
        let meta = P::admitted(view, None);
        view.set_meta(way, if used { P::touched(meta, view.clock, ways) } else { meta });
    });
}
