//! What every policy is written against: the view of one set, and the trait.

use super::balance::Balance;
use super::lead::Lead;
use crate::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use crate::word::ghost::{Ghosts, ghosts_of};

/// What a policy may look at and change while the set's lock is held.
pub struct View<'s> {
    meta: &'s [AtomicU16],
    hand: &'s AtomicU8,
    /// Pages that came into this set so far, modulo 2^16: the policy's time.
    pub clock: u16,
    /// Identities and metadata of pages that left.
    pub ghosts: Ghosts<'s>,
    /// What the partition has learned, for a policy that learns.
    pub(crate) lead: Option<&'s Lead>,
    /// What the partition's sets aim at together, for a policy that balances.
    pub(crate) balance: Option<&'s Balance>,
}

impl<'s> View<'s> {
    pub(crate) fn new(
        meta: &'s [AtomicU16],
        hand: &'s AtomicU8,
        clock: u16,
        ghosts: Ghosts<'s>,
        lead: Option<&'s Lead>,
    ) -> Self {
        View { meta, hand, clock, ghosts, lead, balance: None }
    }

    pub(crate) fn with_balance(self, balance: Option<&'s Balance>) -> Self {
        View { balance, ..self }
    }

    /// Ways of the set.
    pub fn ways(&self) -> usize {
        self.meta.len()
    }

    /// The policy's bits of a way. Relaxed: hits may change them at any time, and a lost touch
    /// costs a guess, not a page.
    pub fn meta(&self, way: usize) -> u16 {
        self.meta[way].load(Ordering::Relaxed)
    }

    /// Changes the policy's bits of a way. Relaxed: as `meta`.
    pub fn set_meta(&self, way: usize, meta: u16) {
        self.meta[way].store(meta, Ordering::Relaxed);
    }

    /// Forgets the hand and the ghosts: another policy begins.
    pub(crate) fn start_over(&self) {
        self.set_hand(0);
        self.ghosts.clear();
    }

    /// The set's hand. Relaxed: only touched under the set's lock.
    pub fn hand(&self) -> usize {
        self.hand.load(Ordering::Relaxed) as usize
    }

    /// Moves the hand. Relaxed: as `hand`.
    pub fn set_hand(&self, way: usize) {
        self.hand.store(way as u8, Ordering::Relaxed);
    }
}

/// A policy: what a hit, an arrival and a departure do to the sixteen bits of a way.
pub trait Policy {
    /// Whether pages that leave are remembered as ghosts.
    const GHOSTS: bool = false;

    /// Whether `touched` is called at every hit. Else a hit only marks its page, and `touched` is
    /// called for the marked pages when the next page comes into the set: a policy whose time
    /// stands still between arrivals loses nothing by that but counts.
    const COUNTS_HITS: bool = false;

    /// Whether the partition's learner is shown misses and marks.
    const LEARNS: bool = false;

    /// Whether the partition's sets share a balance.
    const BALANCES: bool = false;

    /// How many ghosts a set of so many ways has at most.
    fn ghosts_max(ways: usize) -> usize {
        if Self::GHOSTS { ghosts_of(ways) } else { 0 }
    }

    /// The bits after a hit at `clock`, in a set of `ways`. They are written only where they
    /// differ.
    fn touched(meta: u16, clock: u16, ways: usize) -> u16;

    /// The bits of a page that comes in; `ghost` holds what was remembered of it.
    fn admitted(view: &View<'_>, ghost: Option<u16>) -> u16;

    /// The bits of a page that moves from a set whose clock shows `then` to one whose clock shows
    /// `now`.
    fn rebased(meta: u16, then: u16, now: u16) -> u16;

    /// The way to give up among `candidates` (a bit per way, at least one).
    fn victim(view: &View<'_>, candidates: u32) -> usize;
}

/// The ways of a mask, lowest first.
pub(crate) fn ways_of(mask: u32) -> impl Iterator<Item = usize> {
    let without_lowest = |m: &u32| Some(m & m.wrapping_sub(1));
    std::iter::successors(Some(mask), without_lowest)
        .take_while(|m| *m != 0)
        .map(|m| m.trailing_zeros() as usize)
}

/// A stamp as old by the clock `now` as it was by the clock `then`.
pub(super) fn stamp_rebased(stamp: u16, then: u16, now: u16) -> u16 {
    now.wrapping_sub(then.wrapping_sub(stamp))
}

/// The candidate whose stamp lies furthest behind the set's clock (stamps wrap; the distance does
/// not care).
pub(super) fn oldest(view: &View<'_>, candidates: u32) -> usize {
    ways_of(candidates)
        .max_by_key(|way| (view.clock.wrapping_sub(view.meta(*way)), std::cmp::Reverse(*way)))
        .expect("a victim is asked for among at least one candidate")
}
