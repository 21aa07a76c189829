//! Mains away from home: a page is on the node that writes it most, and not in the set that its tag
//! names.
//!
//! The protocol is T9 to T11 of `twin`. This file finds such a page, with and without a lock, and
//! moves a main to another node and back home. Not here: which pages are worth a move (the engine).
//! In a table that has never moved a main away, a lookup costs one load of a flag more, and only if
//! it has not found the page at home.

use super::resize::{Mover, Pass};
use crate::broken::{self, Step};
use crate::index::{Found, NodeId, SetNumber, SlotIndex};
use crate::policy::with_policy;
use crate::set::guard::SetGuard;
use crate::sync::atomic::Ordering;
use crate::table::Table;
use crate::word::slot::{State, TWIN_BITS};
use crate::word::tag::Tag;

/// The outcome of [`Table::bring_main`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// The new slot of the main. `None` if the page is not resident, the main was already there or
    /// busy, no way was available, the node has no segment of its own, or one of the page's places
    /// is moving.
    pub to: Option<SlotIndex>,
    /// The page that was evicted for the main.
    pub displaced: Option<Tag>,
}

/// Returns the bit that a page has in the `away` bits of its home set.
fn away_bit(tag: Tag) -> u16 {
    1 << (tag.ghost_print() % 16)
}

impl<const W: usize> Table<W> {
    /// Returns the slot that holds the page's main, or a copy, at the page's place on a node. Takes
    /// no lock and stores nothing.
    #[inline]
    pub fn find_at(&self, tag: Tag, node: NodeId) -> Option<Found<'_>> {
        let set = self.set_of(self.twin_place(tag, node));
        self.find_where(set, tag, |word| word.is_copy() || word.findable())
    }

    /// Finds a page as [`Table::find`] does, for a thread of `node`: if the page belongs to another
    /// node and mains may be away from home, looks first at the page's place on `node`.
    #[inline]
    pub fn find_from(&self, tag: Tag, node: NodeId) -> Option<Found<'_>> {
        let near = match self.has_away() && self.owner_of(tag) != node {
            true => self.find_in(self.set_of(self.twin_place(tag, node)), tag),
            false => None,
        };
        near.or_else(|| self.find(tag))
    }

    /// Continues a `find` that has not found the page at home.
    #[cold]
    #[inline(never)]
    pub(crate) fn find_away(&self, tag: Tag) -> Option<Found<'_>> {
        let home = self.set_of(tag);
        if !self.has_away() || !self.may_be_away(home, tag) {
            return None;
        }
        let sets = (0..self.nodes()).map(|node| self.set_of(self.twin_place(tag, NodeId(node))));
        sets.filter(|set| *set != home).find_map(|set| self.find_in(set, tag))
    }

    /// Returns whether a main was ever away from home.
    #[inline(always)]
    pub fn has_away(&self) -> bool {
        // Relaxed: a hint. Under the page's lock the bits of its home set decide.
        self.has_away.load(Ordering::Relaxed)
    }

    fn may_be_away(&self, home: SetNumber, tag: Tag) -> bool {
        // Relaxed: read under the set's lock, or used as a hint.
        self.head(home).away.load(Ordering::Relaxed) & away_bit(tag) != 0
    }

    /// T10: moves a page's main to its place on a node.
    pub fn bring_main(&self, tag: Tag, node: NodeId, may_displace: bool, mover: &mut dyn Mover) -> Switch {
        let mut switch = Switch::default();
        switch.to = self.try_to_bring(tag, node, may_displace, &mut switch.displaced, mover);
        switch
    }

    fn try_to_bring(
        &self,
        tag: Tag,
        node: NodeId,
        may_displace: bool,
        displaced: &mut Option<Tag>,
        mover: &mut dyn Mover,
    ) -> Option<SlotIndex> {
        let guard = self.lock_places(tag);
        let to = self.set_of(self.twin_place(tag, node));
        // 1. The main must be quiet, and no place may be moving. If the node has no segment of its
        //    own, its place is in a segment of another node.
        let main = guard.find(tag)?;
        let is_still = guard.away().is_some_and(|away| away.is_still);
        let is_there = self.place_of(main.index).0 == to;
        let is_of_node = self.node_of_segment(self.segment_of_set(to)) == node;
        if !main.word.quiet() || !is_still || is_there || !is_of_node {
            return None;
        }
        // 2. A way: that of the page's own copy there, if it has one, or another. A copy that is
        //   being made forbids the switch.
        let (slot, left) = guard.claim_for_main(to, tag, may_displace)?;
        *displaced = left;
        // 3. From now on every lookup of the page under its lock looks in all its places.
        guard.note_away(tag);
        // 4. The move itself, as R2 moves a page.
        let Ok(taken) = main.slot().begin_move(main.word) else {
            guard.vacate(slot);
            if self.slot(slot).remove().waited() {
                mover.wake(slot);
            }
            return None;
        };
        if !broken::is(Step::SwitchWithoutBits) {
            self.slot(slot).add_twins(taken.twins());
        }
        mover.copy(main.index, slot);
        guard.adopt(main.index, slot);
        if self.publish(slot, taken.state() == State::Dirty) {
            mover.wake(slot);
        }
        if guard.remove_moved_to(to, main.index, taken) {
            mover.wake(main.index);
        }
        Some(slot)
    }

    /// Moves all quiet mains that are away back home. If the result has a `busy` slot, its main was
    /// not quiet: call again.
    pub fn bring_home(&self, mover: &mut dyn Mover) -> Pass {
        let mut pass = Pass::default();
        if !self.has_away() {
            return pass;
        }
        let all = self.segments().flat_map(|segment| self.sets_of(segment));
        let away = all.flat_map(|set| self.pages_in(set).map(move |page| (set, page.tag())));
        let away: Vec<Tag> =
            away.filter(|(set, tag)| self.set_of(*tag) != *set).map(|(_, tag)| tag).collect();
        for tag in away {
            let mut guard = self.lock_places(tag);
            let (home, next) = guard.sets();
            if let Some(page) = guard.find(tag)
                && ![Some(home), next].contains(&Some(self.place_of(page.index).0))
            {
                self.move_page(&mut guard, page, mover, &mut pass);
            }
        }
        pass
    }
}

impl<const W: usize> SetGuard<'_, W> {
    /// T9, under the lock of a page's home set: returns whether the page may be away.
    #[inline(always)]
    pub(crate) fn may_be_away(&self, tag: Tag) -> bool {
        let (home, next) = self.sets();
        self.table().may_be_away(home, tag) || next.is_some_and(|next| self.table().may_be_away(next, tag))
    }

    /// T9, T11: records in the page's home set that the page may be away, and that every node may
    /// have orphans of the set's pages.
    fn note_away(&self, tag: Tag) {
        let (home, _) = self.sets();
        self.table().has_away.store(true, Ordering::Relaxed);
        self.remember_away(home, away_bit(tag));
        if !broken::is(Step::ForgetAwayOrphans) {
            self.remember_orphans(home, ((1u32 << TWIN_BITS) - 1) as u8);
        }
    }

    pub(crate) fn remember_away(&self, set: SetNumber, bits: u16) {
        if bits != 0 {
            // Relaxed: under the lock.
            self.table().head(set).away.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Takes a way for the page's main. Returns `None` if no way is available, or if a copy of the
    /// page is being made there.
    fn claim_for_main(
        &self,
        set: SetNumber,
        tag: Tag,
        may_displace: bool,
    ) -> Option<(SlotIndex, Option<Tag>)> {
        let (table, taken) = (self.table(), State::Filling);
        let own = match table.find_copy_in(set, tag) {
            None => 0,
            Some(copy) if copy.word.state() == State::Copying => return None,
            Some(copy) => 1 << table.place_of(copy.index).1,
        };
        with_policy!(table.policy(), P => self.claim_spare::<P>(set, tag, taken, own, may_displace))
    }

    /// Releases the copy at home of a page that comes in there. The copy was made while the page
    /// was away.
    pub(crate) fn drop_home_copy(&self, set: SetNumber, tag: Tag) {
        if self.table().has_away() {
            // A copy that is being made stays: it is a valid copy of the page.
            self.drop_copies_of(set, |copied| copied == tag);
        }
    }
}
