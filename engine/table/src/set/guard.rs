//! A set under its lock: find, claim, remove. Every change of which page sits in which slot goes
//! through this guard.
//!
//! The lock protects `occupied`, the clock, the hand, the ghosts, and the choice of the way that a
//! page gets. It does not protect the slots' words, which change by compare-and-swap (see `slot`),
//! nor the policy's bits, which hits may write.
//!
//! While a directory entry moves to another segment (see `resize`), its pages may be in either of
//! two sets. The guard then holds both locks, finds pages in either set and claims only in the new
//! one. If a page may be away from home (T9 of `twin`), the guard holds the locks of all its
//! places, and claims at home.

use crate::broken::{self, Step};
use crate::index::{Found, SetNumber, SlotIndex};
use crate::memory::layout::{Head, Hints};
use crate::policy::{Policy, PolicyKind, View, change, ways_of, with_policy};
use crate::sync::atomic::Ordering;
use crate::table::Table;
use crate::word::ghost::Ghosts;
use crate::word::lock::SetLockGuard;
use crate::word::slot::{State, Word};
use crate::word::tag::Tag;

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The caller owns a slot in state Filling for its page.
    Claimed {
        /// The claimed slot.
        slot: SlotIndex,
        /// The page that was evicted for it.
        evicted: Option<Tag>,
    },
    /// Every way is pinned, dirty or busy: no slot is available for the page now.
    Full,
}

/// The locked places of a page on nodes other than its own (T9).
pub(crate) struct Away<'t> {
    pub sets: Vec<SetNumber>,
    /// No place of the page is moving to another segment.
    pub is_still: bool,
    pub(super) _locks: Vec<SetLockGuard<'t>>,
}

/// One locked set; two while its entry moves; the sets of all places of a page that may be away
/// from home.
pub struct SetGuard<'t, const W: usize> {
    table: &'t Table<W>,
    home: SetNumber,
    /// The set that the entry moves to, also locked.
    next: Option<SetNumber>,
    /// The page's places on other nodes (T9).
    away: Option<Box<Away<'t>>>,
    _locks: (SetLockGuard<'t>, Option<SetLockGuard<'t>>),
}

impl<'t, const W: usize> SetGuard<'t, W> {
    pub(crate) fn new(
        table: &'t Table<W>,
        home: SetNumber,
        next: Option<SetNumber>,
        locks: (SetLockGuard<'t>, Option<SetLockGuard<'t>>),
    ) -> Self {
        SetGuard { table, home, next, away: None, _locks: locks }
    }

    pub(crate) fn with_away(self, away: Away<'t>) -> Self {
        SetGuard { away: Some(Box::new(away)), ..self }
    }

    /// Returns the page, if it is resident, in whichever of the locked sets it is. No other thread
    /// can bring it in or remove it while the guard lives.
    pub fn find(&self, tag: Tag) -> Option<Found<'t>> {
        let in_next = self.next.and_then(|set| self.table.find_in(set, tag));
        let at_home = in_next.or_else(|| self.table.find_in(self.home, tag));
        at_home.or_else(|| self.away.as_ref()?.sets.iter().find_map(|set| self.table.find_in(*set, tag)))
    }

    /// Returns whether a way of the set that a claim would use is free or can be evicted. A hint: a
    /// thread that needs no lock may pin the page of that way before the claim.
    pub fn has_room(&self) -> bool {
        let set = self.next.unwrap_or(self.home);
        (0..W).any(|way| self.table.slot_in(set, way).load().evictable())
    }

    /// Takes a slot for a page that [`Self::find`] did not find (P1), and reports a miss: a free
    /// slot, or the slot of the policy's victim. Tries each way at most once.
    pub fn claim(&mut self, tag: Tag) -> Claim {
        debug_assert!(self.find(tag).is_none(), "claim of a page that is already in its set");
        self.table.show_miss(tag);
        self.claim_for(tag, true)
    }

    /// Claims as [`Self::claim`] does, for a page that will be requested only once: it is evicted
    /// before others.
    pub fn claim_once(&mut self, tag: Tag) -> Claim {
        let claim = self.claim(tag);
        self.note(claim, |head| &head.spent)
    }

    /// Claims as [`Self::claim`] does, for a page that is read ahead: the claim is not counted as a
    /// miss. A page that is evicted before any request counts as wasted.
    pub fn claim_ahead(&mut self, tag: Tag) -> Claim {
        debug_assert!(self.find(tag).is_none(), "claim of a page that is already in its set");
        let claim = self.claim_for(tag, false);
        self.note(claim, |head| &head.ahead)
    }

    /// Sets the claimed way's bit in a hint.
    fn note(&self, claim: Claim, hint: impl Fn(&Head<W>) -> &Hints) -> Claim {
        if let Claim::Claimed { slot, .. } = claim {
            let (set, way) = self.table.place_of(slot);
            hint(self.table.head(set)).fetch_or(1 << way, Ordering::Relaxed);
        }
        claim
    }

    /// Claims as [`Self::claim`] does, for a page that comes from another table, with the policy's
    /// bits that it had there ([`Self::policy_bits`]). The claim is not counted as a miss, and the
    /// set's clock does not move.
    pub fn claim_known(&mut self, tag: Tag, bits: u16) -> Claim {
        debug_assert!(self.find(tag).is_none(), "claim of a page that is already in its set");
        let claim = self.claim_for(tag, false);
        if let Claim::Claimed { slot, .. } = claim {
            let (set, way) = self.table.place_of(slot);
            let head = self.table.head(set);
            // Relaxed: the set's lock is held.
            let clock = head.clock.load(Ordering::Relaxed).wrapping_sub(1);
            head.clock.store(clock, Ordering::Relaxed);
            let meta = with_policy!(self.table.policy(), P => P::rebased(bits, 0, clock));
            head.meta[way].store(meta, Ordering::Relaxed);
        }
        claim
    }

    /// Returns the policy's bits of a page, converted to a clock of 0. They include a hit that is
    /// marked but not yet passed to the policy.
    pub fn policy_bits(&self, found: &Found<'_>) -> u16 {
        let (set, way) = self.table.place_of(found.index);
        let head = self.table.head(set);
        // Relaxed, all of it: hits may write marks and bits at any time; the result is a hint.
        let (meta, clock) = (head.meta[way].load(Ordering::Relaxed), head.clock.load(Ordering::Relaxed));
        let front = self.table.front(set);
        let marked = front.marks.load(Ordering::Relaxed) | front.told.load(Ordering::Relaxed);
        with_policy!(self.table.policy(), P => {
            let is_untold = !P::COUNTS_HITS && marked >> way & 1 == 1;
            P::rebased(if is_untold { P::touched(meta, clock, W) } else { meta }, clock, 0)
        })
    }

    fn claim_for(&mut self, tag: Tag, is_miss: bool) -> Claim {
        let set = self.next.unwrap_or(self.home);
        with_policy!(self.table.policy(), P => self.claim_by::<P>(set, tag, is_miss))
    }

    /// Takes a second slot for a resident page: in the new set, if its entry moves, or else in its
    /// own set, for a write to a pinned page. That write continues in the new slot, and the old
    /// slot becomes the snapshot for the pins (`Slot::begin_move`, copy, publish, `remove_moved`,
    /// all under this guard).
    pub fn claim_beside(&mut self, tag: Tag) -> Claim {
        self.claim_for(tag, false)
    }

    /// Releases a slot taken by `Slot::begin_move` (P9) once its page is published in another, and
    /// updates the counts of dirty pages and of arrivals. `taken` is the word that `begin_move`
    /// replaced. Returns whether a waiter must be woken.
    #[must_use]
    pub fn remove_moved(&mut self, slot: SlotIndex, taken: Word) -> bool {
        self.remove_moved_to(self.next.unwrap_or(self.home), slot, taken)
    }

    /// Does what `remove_moved` does, for a page that is now published in `set`.
    pub(crate) fn remove_moved_to(&self, set: SetNumber, slot: SlotIndex, taken: Word) -> bool {
        // Release: pairs with `walk`. A thread that sees the arrival counted sees the page in its
        // new slot. A thread that sees the page gone from the old slot sees the count, because
        // `remove` releases too.
        let arrived_in = self.table.segment_of_set(set);
        if !broken::is(Step::ForgetArrival) {
            self.table.record(arrived_in).arrivals.fetch_add(1, Ordering::Release);
        }
        self.vacate(slot);
        // The page's copies stay valid: the new slot has their bits.
        let waited = self.table.slot(slot).remove().waited();
        if taken.state() == State::Dirty {
            self.table.count_dirty(slot, -1);
        }
        waited
    }

    pub(crate) fn table(&self) -> &'t Table<W> {
        self.table
    }

    pub(crate) fn away(&self) -> Option<&Away<'t>> {
        self.away.as_deref()
    }

    /// Returns the set that the directory names, and the set that the entry moves to, if it moves.
    pub(crate) fn sets(&self) -> (SetNumber, Option<SetNumber>) {
        (self.home, self.next)
    }

    /// Passes the hits since the last arrival to the policy and clears the marks.
    pub(crate) fn catch_up<P: Policy>(&self, set: SetNumber) {
        // Relaxed, all of it: a mark that is set between the load and the store is lost, which
        // costs a guess.
        let front = self.table.front(set);
        let marked = front.marks.load(Ordering::Relaxed) | front.told.load(Ordering::Relaxed);
        if marked == 0 {
            return;
        }
        front.marks.store(0, Ordering::Relaxed);
        front.told.store(0, Ordering::Relaxed);
        // The marks are from an earlier policy: this one sets none.
        if P::COUNTS_HITS {
            return;
        }
        let view = self.view(set);
        for way in ways_of(marked) {
            view.set_meta(way, P::touched(view.meta(way), view.clock, W));
        }
    }

    fn claim_by<P: Policy>(&self, set: SetNumber, tag: Tag, is_miss: bool) -> Claim {
        self.catch_up::<P>(set);
        self.drop_home_copy(set, tag);
        let head = self.table.head(set);
        let occupied = head.occupied.load(Ordering::Relaxed);
        // T7.
        let orphans = self.orphans();
        let mut view = self.view(set);
        // 1. A way without a page. A Detached slot is still a snapshot for its pins and is skipped.
        for way in ways_of(!occupied & Table::<W>::ALL_WAYS) {
            let slot = self.table.slot_in(set, way);
            let word = slot.load();
            if word.state() == State::Free && slot.claim_as(State::Filling, word, tag, orphans) {
                let ghost = self.take_ghost::<P>(&view, tag, is_miss);
                self.admit::<P>(set, &mut view, way, tag, ghost);
                return Claim::Claimed { slot: self.table.index_of(set, way), evicted: None };
            }
        }
        // 2. The policy's victim: first among copies of other nodes' pages, then among spent pages
        //   (read ahead or by a scan, and already requested once), then among all. A way that
        //   cannot be evicted is no longer a candidate.
        let mut candidates = occupied;
        let mut copies = if self.table.copies_yield() { self.copies_of(set) } else { 0 };
        let mut spent = head.spent.load(Ordering::Relaxed) & occupied;
        while candidates != 0 {
            let first = if copies != 0 { copies } else { spent };
            let way = P::victim(&view, if first != 0 { first } else { candidates });
            debug_assert!(candidates >> way & 1 == 1, "a policy names one of the candidates");
            candidates &= !(1 << way);
            copies &= !(1 << way);
            spent &= !(1 << way);
            let slot = self.table.slot_in(set, way);
            let word = slot.load();
            if !word.evictable() {
                continue;
            }
            let old = slot.tag();
            let meta = view.meta(way);
            // Another thread may pin the page before this claim: then the next candidate is tried.
            if !slot.claim_as(State::Filling, word, tag, orphans) {
                continue;
            }
            // The page's ghost is taken before the victim becomes a ghost, because the victim's may
            // replace it.
            let ghost = self.take_ghost::<P>(&view, tag, is_miss);
            let evicted = self.left_in::<P>(set, &view, word, old, meta);
            self.admit::<P>(set, &mut view, way, tag, ghost);
            return Claim::Claimed { slot: self.table.index_of(set, way), evicted };
        }
        Claim::Full
    }

    /// Records that a way with this word and tag was taken. Returns the page that was evicted, if
    /// the way held a page and not a copy.
    pub(crate) fn left<P: Policy>(&self, set: SetNumber, word: Word, old: Tag, meta: u16) -> Option<Tag> {
        self.left_in::<P>(set, &self.view(set), word, old, meta)
    }

    #[inline(always)]
    fn left_in<P: Policy>(
        &self,
        set: SetNumber,
        view: &View<'_>,
        word: Word,
        old: Tag,
        meta: u16,
    ) -> Option<Tag> {
        let evicted = (word.state() == State::Clean).then_some(old)?;
        // T7.
        self.remember_orphans(set, word.twins());
        if P::GHOSTS {
            view.ghosts.push(evicted.ghost_print(), meta);
        }
        Some(evicted)
    }

    /// Removes the ghost of a page and returns its policy bits. A miss of a page with a ghost is
    /// counted, because more memory would have saved it.
    #[inline(always)]
    fn take_ghost<P: Policy>(&self, view: &View<'_>, tag: Tag, is_miss: bool) -> Option<u16> {
        let ghost = if P::GHOSTS { view.ghosts.take(tag.ghost_print()) } else { None };
        if ghost.is_some() && is_miss {
            self.table.tally().ghost_hits.fetch_add(1, Ordering::Relaxed);
        }
        ghost
    }

    /// Updates the set for an arrival, after the claim has succeeded.
    #[inline(always)]
    fn admit<P: Policy>(
        &self,
        set: SetNumber,
        view: &mut View<'_>,
        way: usize,
        tag: Tag,
        ghost: Option<u16>,
    ) {
        let head = self.table.head(set);
        // Relaxed, all of it: the set's lock orders it, and optimistic readers treat fingerprints
        // as hints.
        view.clock = view.clock.wrapping_add(1);
        head.clock.store(view.clock, Ordering::Relaxed);
        self.table.fingerprints(set)[way].store(tag.fingerprint(), Ordering::Relaxed);
        head.occupied.store(head.occupied.load(Ordering::Relaxed) | 1 << way, Ordering::Relaxed);
        self.forget_ahead(set, way);
        view.set_meta(way, P::admitted(view, ghost));
    }

    /// Clears a way's `ahead` and `spent` bits: its page has left. A page that was read ahead and
    /// never requested counts as wasted.
    pub(crate) fn forget_ahead(&self, set: SetNumber, way: usize) {
        let (head, bit) = (self.table.head(set), 1u32 << way);
        // Relaxed: hints.
        if head.ahead.load(Ordering::Relaxed) & bit != 0 {
            head.ahead.fetch_and(!bit, Ordering::Relaxed);
            self.table.tally().ahead_wasted.fetch_add(1, Ordering::Relaxed);
        }
        if head.spent.load(Ordering::Relaxed) & bit != 0 {
            head.spent.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Passes the pages of the set on to another policy (see `policy::change`).
    pub(crate) fn change_policy(&self, set: SetNumber, old: PolicyKind, new: PolicyKind) {
        with_policy!(old, P => self.catch_up::<P>(set));
        let head = self.table.head(set);
        // Relaxed: the set's lock is held.
        let occupied = head.occupied.load(Ordering::Relaxed);
        let (order, count) = change::order(old, &self.view(set), occupied);
        self.view(set).start_over();
        for (turn, way) in order[..count].iter().enumerate() {
            head.clock.store(head.clock.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            change::readmit(new, &self.view(set), *way as usize, turn >= count / 2);
        }
    }

    /// Releases a slot that the caller owns (P9): it becomes Free, or Detached while it is pinned.
    /// Overtakes the page's copies on other nodes (T5). Returns whether a waiter must be woken.
    #[must_use]
    pub fn remove(&mut self, slot: SlotIndex) -> bool {
        self.vacate(slot);
        let tag = self.table.slot(slot).tag();
        let removed = self.table.slot(slot).remove();
        if removed.twins() != 0 {
            self.table.overtake(tag, removed.twins());
        }
        removed.waited()
    }

    /// Removes a held page and discards its bytes (P14). Returns whether a waiter must be woken.
    #[must_use]
    pub fn remove_held(&mut self, slot: SlotIndex) -> bool {
        debug_assert!(self.table.slot(slot).load().held());
        let waited = self.remove(slot);
        self.table.count_dirty(slot, -1);
        waited
    }

    /// Removes a clean page that no thread owns and that has no write-back in flight (P9), and
    /// overtakes its copies (T5). With `even_dirty` it also removes a dirty page, and discards its
    /// bytes. Returns the word that was replaced.
    ///
    /// # Errors
    /// The word that forbids it.
    pub fn remove_quiet(&mut self, found: &Found<'_>, even_dirty: bool) -> Result<Word, Word> {
        let tag = found.tag();
        let removed = found.slot().remove_quiet(found.word, even_dirty)?;
        self.vacate(found.index);
        if removed.twins() != 0 {
            self.table.overtake(tag, removed.twins());
        }
        if removed.state() == State::Dirty {
            self.table.count_dirty(found.index, -1);
        }
        Ok(removed)
    }

    pub(crate) fn vacate(&self, slot: SlotIndex) {
        let (set, way) = self.table.place_of(slot);
        debug_assert!(self.has(set), "a slot of this set");
        let head = self.table.head(set);
        head.occupied.store(head.occupied.load(Ordering::Relaxed) & !(1 << way), Ordering::Relaxed);
        self.forget_ahead(set, way);
    }

    fn has(&self, set: SetNumber) -> bool {
        let is_away = || self.away.as_ref().is_some_and(|away| away.sets.contains(&set));
        set == self.home || Some(set) == self.next || is_away()
    }

    pub(crate) fn view(&self, set: SetNumber) -> View<'t> {
        let head: &'t Head<W> = self.table.head(set);
        let ghosts = Ghosts::new(self.table.ghosts(set), &head.ghost_head, &head.ghost_count);
        let clock = head.clock.load(Ordering::Relaxed);
        View::new(&head.meta, &head.hand, clock, ghosts, self.table.lead(), self.table.balance())
    }

    /// Returns the pages of the set, or of both sets while the entry moves.
    pub fn pages(&self) -> impl Iterator<Item = Found<'t>> {
        let (table, home) = (self.table, self.home);
        [Some(home), self.next].into_iter().flatten().flat_map(move |set| table.pages_in(set))
    }
}
