//! The interface of every policy: the view of one set, and the trait.

use super::balance::Balance;
use super::lead::Lead;
use crate::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use crate::word::ghost::{Ghosts, ghosts_of};

/// The state of a set that a policy may read and change while the set's lock is held.
pub struct View<'s> {
    meta: &'s [AtomicU16],
    hand: &'s AtomicU8,
    /// Number of pages that came into this set, modulo 2^16: the policy's time.
    pub clock: u16,
    /// The ghosts: prints and policy bits of pages that left.
    pub ghosts: Ghosts<'s>,
    /// The order and densities that the partition has learned, for a policy that learns.
    pub(crate) lead: Option<&'s Lead>,
    /// The balance that the partition's sets share, for a policy that balances.
    pub(crate) balance: Option<&'s Balance>,
}

impl<'s> View<'s> {
    pub(crate) fn new(
        meta: &'s [AtomicU16],
        hand: &'s AtomicU8,
        clock: u16,
        ghosts: Ghosts<'s>,
        lead: Option<&'s Lead>,
        balance: Option<&'s Balance>,
    ) -> Self {
        View { meta, hand, clock, ghosts, lead, balance }
    }

    /// Returns the number of ways of the set.
    pub fn ways(&self) -> usize {
        self.meta.len()
    }

    /// Returns the policy's bits of a way. Relaxed: hits may change them at any time, and a lost
    /// touch costs a guess, not a page.
    pub fn meta(&self, way: usize) -> u16 {
        self.meta[way].load(Ordering::Relaxed)
    }

    /// Returns the policy's bits of all ways, if the set has `N` ways.
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    pub(crate) fn meta_of_all<const N: usize>(&self) -> Option<&[AtomicU16; N]> {
        self.meta.as_array()
    }

    /// Sets the policy's bits of a way. Relaxed: as `meta`.
    pub fn set_meta(&self, way: usize, meta: u16) {
        self.meta[way].store(meta, Ordering::Relaxed);
    }

    /// Resets the hand and drops the ghosts, for a change of policy.
    pub(crate) fn start_over(&self) {
        self.set_hand(0);
        self.ghosts.clear();
    }

    /// Returns the set's hand. Relaxed: used only under the set's lock.
    pub fn hand(&self) -> usize {
        self.hand.load(Ordering::Relaxed) as usize
    }

    /// Moves the hand. Relaxed: as `hand`.
    pub fn set_hand(&self, way: usize) {
        self.hand.store(way as u8, Ordering::Relaxed);
    }
}

/// An eviction policy: how hits and arrivals change the sixteen bits of a way, and which page is
/// evicted.
pub trait Policy {
    /// Whether evicted pages become ghosts.
    const GHOSTS: bool = false;

    /// Whether `touched` is called at every hit. Otherwise a hit only marks its page, and `touched`
    /// is called for the marked pages when the next page comes into the set. Because the policy's
    /// clock stands still between arrivals, the policy loses nothing by that except the number of
    /// hits.
    const COUNTS_HITS: bool = false;

    /// Whether misses, and hits that set a mark, are reported to the partition's learner.
    const LEARNS: bool = false;

    /// Whether the partition's sets share a balance.
    const BALANCES: bool = false;

    /// Returns the maximum number of ghosts of a set of `ways` ways.
    fn ghosts_max(ways: usize) -> usize {
        if Self::GHOSTS { ghosts_of(ways) } else { 0 }
    }

    /// Returns the bits after a hit at `clock`, in a set of `ways` ways. If they have not changed,
    /// the hit stores nothing.
    fn touched(meta: u16, clock: u16, ways: usize) -> u16;

    /// Returns the bits of a page that comes in; `ghost` holds the bits of its ghost, if it has
    /// one.
    fn admitted(view: &View<'_>, ghost: Option<u16>) -> u16;

    /// Returns the bits of a page that moves from a set whose clock shows `then` to one whose clock
    /// shows `now`.
    fn rebased(meta: u16, then: u16, now: u16) -> u16;

    /// Returns the way to evict among `candidates` (a bit per way, at least one).
    fn victim(view: &View<'_>, candidates: u32) -> usize;
}

/// Returns the ways of a mask, lowest first.
pub(crate) fn ways_of(mask: u32) -> impl Iterator<Item = usize> {
    let without_lowest = |m: &u32| Some(m & m.wrapping_sub(1));
    std::iter::successors(Some(mask), without_lowest)
        .take_while(|m| *m != 0)
        .map(|m| m.trailing_zeros() as usize)
}
