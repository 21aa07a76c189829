//! Growing and shrinking by a segment at a time, while reads continue.
//!
//! The directory maps bits of a tag to a segment. A segment that joins takes an equal share
//! of entries from the other segments of its node, or all entries of the node if it is the node's
//! first; one that leaves gives its entries to segments of its node, or to any if it is the node's
//! last. Entries move one by one:
//!
//! - **R1** The mover writes the move's record (entry, from, to) into the header, with release. One
//!   move at a time.
//! - **R2** For each place in a segment the mover locks the set of the old and of the new segment,
//!   in the order of the segments. It moves the quiet pages of the entry, and the quiet mains away
//!   from home whose place there belongs to the entry (T9 of `twin`): claim in the new set (P1),
//!   copy, publish (P2), count the arrival, release the old slot (P9). Dirty pages stay dirty;
//!   pinned pages leave a snapshot behind. A clean page is released if the new set has no way for
//!   it. A busy page stays, and the pass is repeated later.
//! - **R3** A thread that locks a set of the entry after the mover has passed sees the record,
//!   because the mover held the same lock. A thread that sees the record locks both sets, finds
//!   pages in either, and claims in the new one only. So an old set that the mover has passed gains
//!   no page of the entry.
//! - **R4** When a pass leaves nothing behind, the mover changes the entry, and then clears the
//!   record, both with release: a thread that no longer sees the record sees the new entry.
//! - **R5** A segment that R4 has left without entries is taken out of use once each of its slots
//!   is Free or Detached. A page comes into a set only under the set's lock and through an entry
//!   (R3), so the Free slots stay free, and their frames may go back to the kernel. A Detached slot
//!   keeps its frame, in or out of use, until the last unpin makes it Free (P5). The acquire load
//!   that finds a slot Free pairs with P5 and P9: all reads of the frame's bytes by pins are over.
//!   A segment may join again while it has Detached slots, which claims skip (P1).
//! - **R6** A segment without pages gives its entries away at once, without records. The mover
//!   holds the locks of all its sets, finds each slot Free or Detached and no orphans or mains away
//!   from home (T7, T9), and changes the entries, with release. A thread that has locked one of
//!   these sets before has brought in no page; one that locks a set of an entry afterwards sees the
//!   new entry, because the mover has held the same lock.
//!
//! A reader without a lock may look in the old segment at any time. It finds the page, or nothing.
//! It never finds another page, because tags are compared in full, and never old bytes, because the
//! old slot is taken (`begin_move`) before the page can change in its new one. A miss is certain
//! only under the lock.
//!
//! A walk over all segments may visit a page's new segment before the page arrives and its old
//! segment after the page has left. For that case each segment counts arrivals: a walk that no
//! longer finds the page in the old segment sees that the count of the new one has changed, and
//! visits that segment again.
//!
//! The directory doubles in place: the new half is a copy of the old one. A reader that still uses
//! the old mask may look in the segment of the wrong half, which is an old segment, as above.

use crate::broken::{self, Step};
use crate::index::{Found, NodeId, SegmentIndex, SetNumber, SlotIndex};
use crate::policy::{Policy, with_policy};
use crate::set::guard::{Claim, SetGuard};
use crate::sync::atomic::Ordering;
use crate::table::Table;
use crate::table::directory::Move;
use crate::word::slot::{State, Word};
use crate::word::tag::Tag;

/// The outcome of a pass over an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Number of pages copied to their new set.
    pub copied: u64,
    /// Number of clean pages released because no way was available in their new set.
    pub let_go: u64,
    /// Number of pages evicted from the new sets to make room.
    pub evicted: u64,
    /// A slot of the old segment that was busy: repeat the pass when it is not. `None` if the entry
    /// has moved completely.
    pub busy: Option<SlotIndex>,
}

/// The parts of a move that the caller does, because the table has no bytes and no waiters.
pub trait Mover {
    /// Copies the frame of slot `from` to that of slot `to`.
    fn copy(&mut self, from: SlotIndex, to: SlotIndex);
    /// Wakes the waiters of a slot whose busy state has ended.
    fn wake(&mut self, slot: SlotIndex);
    /// Returns whether the steps of the move are recorded. If so, the mover keeps other steps of
    /// the table out between [`Self::begin_step`] and [`Self::end_step`], which enclose each step.
    /// Default: false.
    fn is_recorded(&self) -> bool {
        false
    }
    /// Announces a step. The locks of the sets that it concerns are held.
    fn begin_step(&mut self) {}
    /// Ends the step. `None` if it changed nothing.
    fn end_step(&mut self, _: Option<MoveStep>) {}
}

/// A step of a move, as a recording has it among the other steps of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// R1. A repeated pass does not begin with it.
    Begin,
    /// R2 for one set of the old segment, by its place there.
    Set(u32),
    /// R4, or the end of a pass that left a busy page behind.
    End {
        /// R4.
        done: bool,
    },
}

/// A mover for tables whose frames have no bytes and whose slots have no waiters, as in simulators.
pub struct NoBytes;

impl Mover for NoBytes {
    fn copy(&mut self, _: SlotIndex, _: SlotIndex) {}
    fn wake(&mut self, _: SlotIndex) {}
}

impl<const W: usize> Table<W> {
    /// Brings a segment into use, and returns the moves that give it a fair share of entries. The
    /// segment's frames must be usable before this call.
    ///
    /// # Panics
    /// If the segment is in use, or a move is in progress.
    pub fn join(&self, segment: SegmentIndex) -> Vec<Move> {
        assert!(!self.is_live(segment), "{segment:?} cannot join: it is in use already");
        self.assert_no_move();
        let live = self.live_segments() + 1;
        // Release, here and in `take_out`: pairs with `is_live`. A walk that finds the segment out
        // of use sees that its pages have arrived elsewhere (`walk`).
        self.record(segment).live.store(1, Ordering::Release);
        self.header().live.store(live, Ordering::Relaxed);
        self.tell_capacity();
        while self.level() < self.layout().level_for::<W>(live) {
            self.double_directory();
        }
        let level = self.level();
        self.entries_for(segment).into_iter().map(|given| Move::of(given, level)).collect()
    }

    /// Returns the moves that empty a segment.
    ///
    /// # Panics
    /// If the segment is not in use or is the last one, or a move is in progress.
    pub fn leave(&self, segment: SegmentIndex) -> Vec<Move> {
        assert!(
            self.is_live(segment) && self.live_segments() > 1,
            "{segment:?} cannot leave: it is not in use, or the only one"
        );
        self.assert_no_move();
        let level = self.level();
        self.entries_of_leaving(segment).into_iter().map(|given| Move::of(given, level)).collect()
    }

    /// Returns the moves that empty several segments at once, those of one segment after the other,
    /// in the order of `segments`. Each entry moves once, to a segment that stays: as many calls of
    /// [`Self::leave`] would move most entries several times. For one segment the same as `leave`.
    ///
    /// # Panics
    /// If a segment is not in use, none would stay, or a move is in progress.
    pub fn leave_all(&self, segments: &[SegmentIndex]) -> Vec<Move> {
        if let [segment] = segments {
            return self.leave(*segment);
        }
        assert!(
            segments.iter().all(|segment| self.is_live(*segment))
                && self.live_segments() as usize > segments.len(),
            "{segments:?} cannot leave: one is not in use, or no other one is"
        );
        self.assert_no_move();
        let level = self.level();
        self.entries_of_leaving_all(segments).into_iter().map(|given| Move::of(given, level)).collect()
    }

    /// R6: makes the moves that are left of one leaving segment, if it has no page. Returns whether
    /// it did. Must not be used while the table's steps are recorded.
    ///
    /// # Panics
    /// If another move is in progress, a move was made before another resize, or the moves leave
    /// different segments.
    pub fn give_entries(&self, moves: &[Move]) -> bool {
        let Some(from) = moves.first().map(|mv| mv.from) else { return true };
        // Relaxed: as in `advance`. A move that has begun may have pages in its new segment only.
        if self.header().moving.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let sets: Vec<SetNumber> = self.sets_of(from).collect();
        let mut locks = Vec::with_capacity(sets.len());
        for set in &sets {
            locks.push(self.head(*set).lock.lock());
            // Relaxed: the set's lock is held.
            let head = self.head(*set);
            let has_orphans = head.orphans.load(Ordering::Relaxed) != 0;
            let has_away = head.away.load(Ordering::Relaxed) != 0;
            let is_empty = (0..W)
                .all(|way| matches!(self.slot_in(*set, way).load().state(), State::Free | State::Detached));
            if has_orphans || has_away || !is_empty && !broken::is(Step::GiveWithPages) {
                return false;
            }
        }
        let level = self.level();
        for mv in moves {
            let owner = self.entry(mv.entry as usize).load(Ordering::Relaxed);
            assert!(
                mv.level == level && mv.from == from && self.named_by(owner) == from,
                "the entry has another owner, or the directory has doubled since the move was planned"
            );
            // Release: pairs with `set_of`.
            self.entry(mv.entry as usize).store(self.first_set(mv.to), Ordering::Release);
            self.dealer.note_moved(mv.from, mv.to);
        }
        drop(locks);
        true
    }

    /// Returns the moves that take up to `count` entries from one node's segments to another's.
    /// They may be fewer, because each segment keeps at least a quarter of its share.
    ///
    /// # Panics
    /// If both nodes are the same, or a move is in progress.
    pub fn shift(&self, from: NodeId, to: NodeId, count: usize) -> Vec<Move> {
        self.assert_no_move();
        let level = self.level();
        self.entries_to_shift(from, to, count).into_iter().map(|given| Move::of(given, level)).collect()
    }

    /// Takes an emptied segment out of use (R5). Snapshots for pins may stay in it: the caller
    /// keeps their frames ([`Self::snapshots_in`]).
    ///
    /// # Errors
    /// A slot that still has a page.
    ///
    /// # Panics
    /// If directory entries still name the segment.
    pub fn retire(&self, segment: SegmentIndex) -> Result<(), SlotIndex> {
        self.check_empty(segment)?;
        self.take_out(segment);
        Ok(())
    }

    /// Checks that an emptied segment can be taken out of use (R5). After success no page can come
    /// into the segment, so the answer stays valid.
    ///
    /// # Errors
    /// As [`Self::retire`].
    ///
    /// # Panics
    /// As [`Self::retire`].
    pub fn check_empty(&self, segment: SegmentIndex) -> Result<(), SlotIndex> {
        assert!(!self.has_entries(segment), "{segment:?} cannot retire: it still has directory entries");
        for set in self.sets_of(segment) {
            let _lock = self.head(set).lock.lock();
            for way in 0..W {
                let state = self.slot_in(set, way).load().state();
                if !matches!(state, State::Free | State::Detached) {
                    return Err(self.index_of(set, way));
                }
            }
        }
        Ok(())
    }

    /// Takes a segment out of use that [`Self::check_empty`] has found empty.
    pub fn take_out(&self, segment: SegmentIndex) {
        self.record(segment).live.store(0, Ordering::Release);
        self.header().live.store(self.live_segments() - 1, Ordering::Relaxed);
        self.tell_capacity();
    }

    /// Returns the slots of a segment out of use that keep a snapshot for pins, in ascending order
    /// (R5). The frames of all other slots may go back to the system. A slot that is not among them
    /// never is again before the segment joins.
    pub fn snapshots_in(&self, segment: SegmentIndex) -> Vec<SlotIndex> {
        debug_assert!(!self.is_live(segment), "{segment:?} is in use");
        let keeps = |word: Word| word.state() != State::Free && !broken::is(Step::GiveBackSnapshots);
        self.slots_of(segment).filter(|(_, word)| keeps(*word)).map(|(slot, _)| slot).collect()
    }

    /// Makes one pass of a move (R1 to R4): moves those pages of the entry that are quiet. Call
    /// again with the same move until the result has no `busy` slot.
    ///
    /// # Panics
    /// If another move is in progress, or the move was made before another resize.
    pub fn advance(&self, mv: Move, mover: &mut dyn Mover) -> Pass {
        let before = self.header().moving.load(Ordering::Relaxed);
        assert!(before == 0 || before == mv.record(), "another move is in progress");
        let level = self.level();
        let owner = self.entry(mv.entry as usize).load(Ordering::Relaxed);
        assert!(
            mv.level == level && self.named_by(owner) == mv.from,
            "{mv:?} was made before another resize"
        );
        if before == 0 {
            self.begin_move(mv, mover);
        }
        let mut pass = Pass::default();
        (0..self.shape().sets_per_segment).for_each(|place| self.advance_set(mv, place, mover, &mut pass));
        mover.begin_step();
        let done = pass.busy.is_none();
        if done {
            // R4. Release, both: pairs with `set_of` and `move_of`.
            self.entry(mv.entry as usize).store(self.first_set(mv.to), Ordering::Release);
            self.dealer.note_moved(mv.from, mv.to);
            self.header().moving.store(0, Ordering::Release);
        }
        mover.end_step(Some(MoveStep::End { done }));
        pass
    }

    /// R1.
    pub fn begin_move(&self, mv: Move, mover: &mut dyn Mover) {
        // A thread that has locked a set of the entry without seeing the record claims in the old
        // set. In a recording, that claim must come before this step. So if steps are recorded, the
        // mover holds the locks of all these sets, taken in their order, while it writes the
        // record.
        let locks: Vec<_> = match mover.is_recorded() {
            true => self.sets_of(mv.from).map(|set| self.head(set).lock.lock()).collect(),
            false => Vec::new(),
        };
        mover.begin_step();
        // Release: pairs with `move_of`.
        self.header().moving.store(mv.record(), Ordering::Release);
        mover.end_step(Some(MoveStep::Begin));
        drop(locks);
    }

    /// R2 for one set of the old segment, by its place there.
    pub fn advance_set(&self, mv: Move, place: u32, mover: &mut dyn Mover, pass: &mut Pass) {
        let home = SetNumber(self.first_set(mv.from) + place);
        let next = self.beside(home, mv.to);
        let (first, second) = (home.min(next), home.max(next));
        let locks = (self.head(first).lock.lock(), Some(self.head(second).lock.lock()));
        let mut guard = SetGuard::new(self, home, Some(next), locks);
        mover.begin_step();
        // T8.
        guard.remember_orphans(next, self.head(home).orphans.load(Ordering::Relaxed));
        guard.remember_away(next, self.head(home).away.load(Ordering::Relaxed));
        let node = self.nodes.of_entry(mv.entry);
        let is_placed = |tag: Tag| self.has_entry(self.twin_place(tag, node), mv.level, mv.entry);
        let busy = guard.drop_copies_of(home, is_placed);
        pass.busy = busy.or(pass.busy);
        // A page that is away from home and lies here by its place moves with that place (T9). A
        // page whose home this set has become in the meantime, by another entry, stays.
        let moves =
            |tag: Tag| self.has_entry(tag, mv.level, mv.entry) || self.set_of(tag) != home && is_placed(tag);
        let mut step = None;
        for page in self.pages_in(home).filter(|page| moves(page.tag())) {
            step = Some(MoveStep::Set(place));
            self.move_page(&mut guard, page, mover, pass);
        }
        mover.end_step(step);
    }

    /// R2 for one page.
    pub(crate) fn move_page(
        &self,
        guard: &mut SetGuard<'_, W>,
        page: Found<'_>,
        mover: &mut dyn Mover,
        pass: &mut Pass,
    ) {
        // 0. A page that cannot move now must not evict another page.
        if !page.word.quiet() {
            pass.busy = Some(page.index);
            return;
        }
        // 1. A slot in the new set.
        let Claim::Claimed { slot: to, evicted } = guard.claim_beside(page.tag()) else {
            match guard.remove_quiet(&page, false) {
                Ok(_) => pass.let_go += 1,
                Err(_) => pass.busy = Some(page.index),
            }
            return;
        };
        pass.evicted += evicted.is_some() as u64;
        // 2. Take the old slot, so that its bytes do not change.
        let Ok(taken) = page.slot().begin_move(page.word) else {
            if guard.remove(to) {
                mover.wake(to);
            }
            pass.busy = Some(page.index);
            return;
        };
        // 3. The bytes and the policy's bits.
        let dirty = taken.state() == State::Dirty;
        self.slot(to).add_twins(taken.twins());
        mover.copy(page.index, to);
        guard.adopt(page.index, to);
        if self.publish(to, dirty) {
            mover.wake(to);
        }
        // 4. The old slot is released.
        if guard.remove_moved(page.index, taken) {
            mover.wake(page.index);
        }
        pass.copied += 1;
    }

    /// The moves of one resize are computed together from the current directory, so all of them
    /// must end before the next resize begins.
    fn assert_no_move(&self) {
        assert!(
            self.header().moving.load(Ordering::Relaxed) == 0,
            "a move is in progress: finish it before the next resize"
        );
    }
}

impl<const W: usize> SetGuard<'_, W> {
    /// Gives a moved page the policy's bits that it had before, converted to its new set's clock,
    /// and its `ahead` and `spent` bits.
    pub(crate) fn adopt(&self, from: SlotIndex, to: SlotIndex) {
        let table = self.table();
        let ((old_set, old_way), (new_set, new_way)) = (table.place_of(from), table.place_of(to));
        let (old, new) = (table.head(old_set), table.head(new_set));
        with_policy!(table.policy(), P => self.catch_up::<P>(old_set));
        // Relaxed: both sets' locks are held; the bits themselves are hints.
        let meta = old.meta[old_way].load(Ordering::Relaxed);
        let (then, now) = (old.clock.load(Ordering::Relaxed), new.clock.load(Ordering::Relaxed));
        let meta = with_policy!(table.policy(), P => P::rebased(meta, then, now));
        new.meta[new_way].store(meta, Ordering::Relaxed);
        for (from, to) in [(&old.ahead, &new.ahead), (&old.spent, &new.spent)] {
            // Cleared at the old way, so that releasing it does not count the page as wasted.
            // Relaxed: hints.
            if from.load(Ordering::Relaxed) >> old_way & 1 == 1 {
                from.fetch_and(!(1 << old_way), Ordering::Relaxed);
                to.fetch_or(1 << new_way, Ordering::Relaxed);
            }
        }
    }
}
