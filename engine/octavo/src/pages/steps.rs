//! One function per step of the slot protocol (P1 to P14 of `octavo_table`).
//!
//! A step is more than a change of a slot's word. As far as its step needs it, each function:
//!
//! - makes the step in the table,
//! - writes the step to the recording,
//! - counts it,
//! - marks the page's twins (its copies on other nodes) stale,
//! - and wakes the waiters.
//!
//! The verbs in `flight` therefore cannot forget any of these, and know neither recordings nor
//! nodes.

use octavo_recording::Step;
use octavo_table::{Claim, Found, SetGuard, SlotIndex, State, Tag, Word};

use super::record::place_of;
use crate::memory::copy;
use crate::position::PageIndex;
use crate::state::counters::Count;
use crate::state::partition::PartitionInner;
use crate::wait::Waiter;
use crate::ways::WAYS;

/// Why a slot is claimed for a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claiming {
    /// To fill the page from the store.
    Fill,
    /// To fill a page that will be used once.
    FillOnce,
    /// To read a page ahead, before a request needs it.
    Ahead,
    /// To write the whole page.
    Overwrite,
}

/// A page that comes from another process, with its history there.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub page: PageIndex,
    /// See [`octavo_table::SetGuard::policy_bits`].
    pub bits: u16,
}

/// The outcome of a claim.
pub(crate) enum Claimed<'t> {
    /// The caller owns the slot, in state Filling.
    Slot(SlotIndex),
    /// The page was restored from a twin, without I/O, and is resident.
    Resident,
    /// No way of the set can be evicted. The set is still locked.
    Full(SetGuard<'t, WAYS>),
}

/// The outcome of a write to a pinned page.
pub(crate) enum Superseded {
    /// The new bytes are in another slot; the pins keep the old slot.
    Done,
    /// The page's state changed concurrently: look again.
    Changed,
    /// No other way of the set is free.
    Full,
}

impl PartitionInner {
    /// P1: claims a slot for a page that is not resident. Unlocks the set unless it is full.
    pub fn claim<'t>(&'t self, mut guard: SetGuard<'t, WAYS>, tag: Tag, claiming: Claiming) -> Claimed<'t> {
        let note = self.note();
        let claim = match claiming {
            Claiming::Fill | Claiming::Overwrite => guard.claim(tag),
            Claiming::FillOnce => guard.claim_once(tag),
            Claiming::Ahead => guard.claim_ahead(tag),
        };
        let step = || match claiming {
            Claiming::Fill | Claiming::Overwrite => Step::Claim(place_of(&claim)),
            Claiming::FillOnce => Step::ClaimOnce(place_of(&claim)),
            Claiming::Ahead => Step::ClaimAhead(place_of(&claim)),
        };
        note.step(tag, step);
        if claiming == Claiming::Ahead {
            self.record_sampled(tag, step);
        }
        let Claim::Claimed { slot, evicted } = claim else { return Claimed::Full(guard) };
        drop(guard);
        self.arrived(evicted.is_some());
        match matches!(claiming, Claiming::Fill | Claiming::FillOnce) && self.elect(tag, slot) {
            true => Claimed::Resident,
            false => Claimed::Slot(slot),
        }
    }

    /// P1 for a page with a history. Returns `None` if the set is full. The partition must not be
    /// recorded: a recording has no such step.
    pub fn claim_known(&self, mut guard: SetGuard<'_, WAYS>, tag: Tag, known: Known) -> Option<SlotIndex> {
        let Claim::Claimed { slot, evicted } = guard.claim_known(tag, known.bits) else { return None };
        drop(guard);
        self.arrived(evicted.is_some());
        Some(slot)
    }

    /// P2: makes a claimed page readable, and wakes its waiters.
    pub fn publish(&self, slot: SlotIndex, dirty: bool) {
        let note = self.note();
        let waited = self.table.publish(slot, dirty);
        note.step_of(slot, || Step::Publish { dirty });
        self.wake(slot, waited);
    }

    /// P2 for a claimed page that a write changes before it becomes readable: `write` puts the
    /// bytes into the frame. `dirty` says that the store does not have these bytes; if false, the
    /// store has just taken them.
    pub fn publish_written(&self, tag: Tag, slot: SlotIndex, dirty: bool, write: impl FnOnce(*mut u8)) {
        self.overtake(tag, self.table.slot(slot).load());
        write(self.frames.at(slot));
        self.publish(slot, dirty);
        if dirty {
            // Ring only now, not at the claim: the cleaner looks for dirty pages, and sleeps again
            // if it finds none.
            self.note_dirty();
        }
    }

    /// P9 for a slot that the caller owns, after its I/O has failed: removes the page.
    pub fn release(&self, tag: Tag, slot: SlotIndex) {
        self.counters.add(Count::Departures, 1);
        self.remove(tag, slot);
    }

    fn remove(&self, tag: Tag, slot: SlotIndex) {
        let mut guard = self.table.lock(tag);
        let note = self.note();
        let waited = guard.remove(slot);
        note.step(tag, || Step::Release);
        drop(guard);
        self.wake(slot, waited);
    }

    /// P9 for a page that no thread owns or pins, and that is not being written back. Counts the
    /// eviction under `reason`. The error is the slot's current word.
    pub fn drop_quiet(
        &self,
        guard: &mut SetGuard<'_, WAYS>,
        found: &Found<'_>,
        reason: Count,
    ) -> Result<(), Word> {
        let (note, tag) = (self.note(), found.tag());
        guard.remove_quiet(found, false)?;
        note.step(tag, || Step::Drop { even_dirty: false });
        self.counters.add(reason, 1);
        Ok(())
    }

    /// P9 for a held page (P14) whose bytes the store has cleared. Returns whether the caller
    /// must wake waiters once it has unlocked the set.
    pub fn drop_held(&self, guard: &mut SetGuard<'_, WAYS>, found: &Found<'_>) -> bool {
        let (note, tag) = (self.note(), found.tag());
        let waited = guard.remove_held(found.index);
        note.step(tag, || Step::Drop { even_dirty: true });
        self.counters.add(Count::EvictionsDiscard, 1);
        waited
    }

    /// P4: pins a page. Returns `false` if the page's state has changed.
    #[inline(always)]
    pub fn pin(&self, found: &Found<'_>) -> bool {
        let note = self.note();
        let is_pinned = found.slot().pin(found.word).is_ok();
        if is_pinned {
            note.step(found.tag(), || Step::Pin { slot: found.index.0 });
        }
        is_pinned
    }

    /// P5: unpins a slot.
    #[inline(always)]
    pub fn unpin(&self, slot: SlotIndex) {
        let note = self.note();
        self.table.slot(slot).unpin();
        note.unpinned(slot);
    }

    /// Tells the policy about an access that was already counted.
    pub fn touch(&self, tag: Tag, found: &Found<'_>) {
        let note = self.note();
        self.table.touch(found);
        note.step(tag, || Step::Touch);
    }

    /// P6 and P7: changes a page in place; `write` puts the bytes into the frame. Returns
    /// `false` if the page is owned or pinned, or if its state has changed.
    pub fn overwrite(&self, tag: Tag, found: &Found<'_>, write: impl FnOnce(*mut u8)) -> bool {
        // The note spans the whole write, which is one step of the recording. Otherwise a resize
        // could find the page busy here but not in a replay.
        let note = self.note();
        let Some(before) = self.begin_overwrite(tag, found) else { return false };
        write(self.frames.at(found.index));
        let waited = self.end_overwrite(before, found);
        note.step(tag, || Step::Overwrite);
        self.overwritten(before, tag, found, waited);
        true
    }

    /// P6 alone, for a page whose steps are not recorded. The caller puts the bytes into the frame,
    /// then calls `end_overwrite` and `overwritten`.
    #[inline(always)]
    pub fn begin_overwrite(&self, tag: Tag, found: &Found<'_>) -> Option<Word> {
        let before = found.slot().begin_write(found.word).ok()?;
        self.overtake(tag, before);
        Some(before)
    }

    /// P7 alone, and tells the policy. Returns whether a waiter must be woken.
    #[inline(always)]
    pub fn end_overwrite(&self, before: Word, found: &Found<'_>) -> bool {
        self.table.touch(found);
        self.table.end_write(found, before, true)
    }

    /// What follows P7: wakes waiters, and tells the cleaner and the nodes.
    #[inline(always)]
    pub fn overwritten(&self, before: Word, tag: Tag, found: &Found<'_>, waited: bool) {
        self.wake(found.index, waited);
        if before.state() != State::Dirty {
            // A page that was dirty has been reported, and is counted until it is clean.
            self.note_dirty();
        }
        self.wrote(tag, found, before);
    }

    /// P8, first half: takes ownership of a clean page whose new bytes go to the store first, and
    /// tells the policy. Returns `false` if the page's state has changed.
    pub fn begin_store(&self, tag: Tag, found: &Found<'_>) -> bool {
        let note = self.note();
        if found.slot().begin_store(found.word).is_err() {
            return false;
        }
        self.table.touch(found);
        note.step(tag, || Step::BeginStore);
        true
    }

    /// P8, second half: the store has the bytes, and `write` puts them into the page's frame. A
    /// page that was pinned in the meantime is removed instead, and its pins keep their
    /// snapshot.
    pub fn end_store(&self, tag: Tag, slot: SlotIndex, write: impl FnOnce(*mut u8)) {
        let Some(taken) = self.table.slot(slot).store_to_write() else {
            self.counters.add(Count::EvictionsWrite, 1);
            return self.remove(tag, slot);
        };
        self.overtake(tag, taken);
        write(self.frames.at(slot));
        let note = self.note();
        let waited = self.table.slot(slot).end_write(false);
        note.step(tag, || Step::EndStore);
        self.wake(slot, waited);
    }

    /// P9 for a write to a pinned page: moves the page to another slot, where `write` puts the
    /// new bytes over a copy of the old ones. The pins keep the old slot as a snapshot.
    pub fn supersede(
        &self,
        tag: Tag,
        mut guard: SetGuard<'_, WAYS>,
        found: &Found<'_>,
        write: impl FnOnce(*mut u8),
    ) -> Superseded {
        let note = self.note();
        let claim = guard.claim_beside(tag);
        let place = place_of(&claim);
        let Claim::Claimed { slot, evicted } = claim else {
            note.step(tag, || Step::Supersede(place));
            return Superseded::Full;
        };
        self.arrived(evicted.is_some());
        let old = found.index;
        let Ok(taken) = found.slot().begin_move(found.word) else {
            let waited = guard.remove(slot);
            note.step(tag, || Step::SupersedeRefused(place));
            drop(guard);
            self.counters.add(Count::Departures, 1);
            self.wake(slot, waited);
            return Superseded::Changed;
        };
        self.overtake(tag, taken);
        self.overtake(tag, self.table.slot(slot).load());
        // SAFETY: no other thread changes the old frame (Writing, and pins only read), and the new
        // frame is ours (Filling).
        unsafe { copy::copy_in(self.frames.at(old), self.frames.at(slot), self.page_bytes()) };
        write(self.frames.at(slot));
        let waited_new = self.table.publish(slot, true);
        let waited_old = guard.remove_moved(old, taken);
        note.step(tag, || Step::Supersede(place));
        drop(guard);
        self.counters.add(Count::EvictionsWrite, 1);
        self.wake(slot, waited_new);
        self.wake(old, waited_old);
        self.note_dirty();
        Superseded::Done
    }

    /// P10: sets the write-back flag of a dirty page. Returns the page's word with the flag, or
    /// `None` if its state has changed. From then on the page may be read and written, but
    /// neither evicted nor moved.
    pub fn begin_writeback(&self, tag: Tag, found: &Found<'_>) -> Option<Word> {
        let note = self.note();
        found.slot().begin_writeback(found.word).ok()?;
        // Load the word before the note is dropped: a write that ends later makes another version,
        // also in the recording.
        let begun = found.slot().load();
        note.step(tag, || Step::BeginWriteback);
        Some(begun)
    }

    /// P11: ends the write-back of `version`; `written` says whether the store has taken that
    /// version. Returns whether the page is clean now.
    pub fn end_writeback(&self, slot: SlotIndex, version: u64, written: bool) -> bool {
        let note = self.note();
        let ended = self.table.end_writeback(slot, version, written);
        note.step_of(slot, || Step::EndWriteback { written });
        self.wake(slot, ended.waited);
        ended.cleaned
    }

    /// Starts to serve a page without a slot, because its set is full. Tasks that want the page
    /// wait until the stray is removed. If the stray `writes`, it also marks the page's orphaned
    /// twins stale.
    pub fn begin_stray(&self, guard: SetGuard<'_, WAYS>, tag: Tag, writes: bool) {
        if writes {
            guard.overtake_orphans(tag);
        }
        self.strays.add(tag);
        drop(guard);
        self.tell_cleaner(true);
        self.counters.add(Count::Bypasses, 1);
    }

    /// P12: registers a waiter for the end of a slot's busy state. Returns `false` if that state
    /// has already ended: the caller must look again.
    pub fn wait_for_slot(&self, slot: SlotIndex, seen: Word, waiter: impl FnOnce() -> Waiter) -> bool {
        self.waiters.register(&self.table, slot, seen, waiter).is_ok()
    }

    /// Counts a page that has taken a slot, and its eviction of another page, if it `evicted` one.
    fn arrived(&self, evicted: bool) {
        self.counters.add(Count::Arrivals, 1);
        if evicted {
            self.counters.add(Count::EvictionsCapacity, 1);
        }
    }

    fn wake(&self, slot: SlotIndex, waited: bool) {
        if waited {
            self.waiters.wake(slot);
        }
    }
}
