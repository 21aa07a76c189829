//! Recording: the accesses to a partition's pages and the steps of its table, as blocks of bytes
//! for somebody to take.
//!
//! What this file protects is the order. Events are written under one lock, the tape's, which is
//! held over the step of the table that an event tells of ([`Note`]): two steps are in the
//! recording as they were in the table, whoever made them. That holds for the moves of a resize,
//! set by set, and for hits of single reads, batches and queues: the look, what the policy is told
//! and the event are one step. Only a pin's hit, and a change of the
//! policy under traffic, are written after they were done. So the accesses of one thread happen
//! again in a replay exactly, also beside the cleaner and the
//! reaper; those of many threads nearly.
//!
//! A partition that does not record pays a look at a flag per step of a miss or a write, and
//! nothing per hit: what hits look at anyway says to whom they are not to be told
//! (`Counters::set_at_hand`).
//!
//! Whoever records never waits: when nobody has taken the blocks and all are full, the recording
//! ends and the partition goes on. The tape's lock is a leaf, taken under a set's lock, `resizing`
//! or the list of objects; under it only words, policies, the bytes of pages that move or are
//! written, and the list of counters are touched. A recording begins while nothing is resized and
//! nothing opened, so that its header and what follows fit.
//!
//! Who writes files begins another *part* now and then ([`Recording::begin_part`]): it has a header
//! of its own, the names of what is open, and then a list of the pages that are there, so that it
//! says something also when the parts before it are gone. Whoever reads from the first part on
//! passes the lists over. A recording that begins later than its partition's first page begins as a
//! part does; one that begins before, with all that has
//! happened to the directory.
//!
//! What is not here: what events look like (`octavo_recording`), files, threads, time.

use std::sync::atomic::Ordering;

use octavo_recording::{Encoder, Event, Place, Step, Totals, WHOLE};
use octavo_table::{Claim, SlotIndex, Tag};

use crate::state::counters::Count;
use crate::state::partition::PartitionInner;
use crate::state::tape::{BLOCK_BYTES, Handed, RecordingEnd, Tape};
use crate::sync::{MutexGuard, lock};
use crate::ways::WAYS;

/// The right to write the next event, and no one else's turn: taken before a step of the table that
/// others may see the effect of. Nothing where the partition does not record.
pub(crate) struct Note<'p>(Option<Writing<'p>>);

/// The tape, held over a step.
pub(crate) struct Writing<'p> {
    partition: &'p PartitionInner,
    tape: MutexGuard<'p, Option<Tape>>,
}

impl Note<'_> {
    /// The step was made.
    #[inline(always)]
    pub fn step(self, tag: Tag, step: impl FnOnce() -> Step) {
        if let Some(writing) = self.0 {
            writing.step(tag, step());
        }
    }

    /// The step was made, of the page that the slot holds still.
    #[inline(always)]
    pub fn step_of(self, slot: SlotIndex, step: impl FnOnce() -> Step) {
        if let Some(writing) = self.0 {
            let tag = writing.partition.table.slot(slot).tag();
            writing.step(tag, step());
        }
    }

    /// A pin has gone.
    #[inline(always)]
    pub fn unpinned(self, slot: SlotIndex) {
        if let Some(writing) = self.0 {
            writing.write(|encoder| encoder.push(&Event::Unpin { slot: slot.0 }));
        }
    }

    /// What happened is told by itself.
    #[inline(always)]
    pub fn event(self, event: impl FnOnce() -> Event) {
        if let Some(writing) = self.0 {
            writing.write(|encoder| encoder.push(&event()));
        }
    }
}

/// Where a claim led.
pub(crate) fn place_of(claim: &Claim) -> Place {
    match claim {
        Claim::Full => Place::Full,
        Claim::Claimed { slot, evicted } => {
            Place::Way { way: (slot.0 as usize % WAYS) as u8, evicted: evicted.is_some() }
        }
    }
}

impl Writing<'_> {
    /// A step of a page's.
    #[cold]
    #[inline(never)]
    pub fn step(self, tag: Tag, step: Step) {
        let key = self.partition.key_of_tag(tag);
        self.write(|encoder| encoder.step(key, step));
    }

    /// A look at a page, counted by the caller.
    pub fn access(mut self, tag: Tag, write: bool, hit: bool) {
        if let Some(tape) = self.tape.as_mut().filter(|tape| tape.end.is_none()) {
            tape.stat.accesses += 1;
        }
        let key = self.partition.key_of_tag(tag);
        self.write(|encoder| encoder.access(key, write, hit));
    }

    fn write(mut self, write: impl FnOnce(&mut Encoder)) {
        let Some(tape) = self.tape.as_mut().filter(|tape| tape.end.is_none()) else { return };
        write(&mut tape.encoder);
        let first = std::mem::take(&mut tape.waited_for);
        let full = tape.encoder.len() >= BLOCK_BYTES;
        if full {
            self.partition.end_block(tape);
        }
        drop(self.tape);
        if first || full {
            self.partition.recorder.something.notify_one();
        }
    }
}

impl PartitionInner {
    /// A step of the table follows, under the set's lock or without one, and then its event. While
    /// the note lives, nobody else makes one.
    #[inline(always)]
    pub fn note(&self) -> Note<'_> {
        match self.recorder.below() {
            WHOLE => self.note_whole(),
            _ => Note(None),
        }
    }

    #[cold]
    #[inline(never)]
    fn note_whole(&self) -> Note<'_> {
        // A child of `fork` records nothing.
        if self.shared.is_forked() {
            return Note(None);
        }
        let writing = self.writing();
        // Under the lock nothing begins or ends: it may be a sample by now, which has no steps.
        Note((self.recorder.below() == WHOLE).then_some(writing))
    }

    /// `note`, of something that samples tell of, too.
    pub fn note_of_all(&self) -> Note<'_> {
        Note((self.recorder.below() != 0).then(|| self.writing()))
    }

    /// Whether all steps of the table are recorded.
    pub fn is_recorded_whole(&self) -> bool {
        self.recorder.below() == WHOLE
    }

    fn writing(&self) -> Writing<'_> {
        Writing { partition: self, tape: lock(&self.recorder.tape) }
    }

    /// Whether somebody records it.
    pub fn is_recorded(&self) -> bool {
        self.recorder.below() != 0
    }

    /// Writes an event that samples have too.
    pub fn record(&self, event: impl FnOnce() -> Event) {
        if self.recorder.below() != 0 {
            self.writing().write(|encoder| encoder.push(&event()));
        }
    }

    /// Writes a step that samples have too, if this is one and has the page; whole recordings have
    /// it by its [`Note`].
    pub fn record_sampled(&self, tag: Tag, step: impl FnOnce() -> Step) {
        if !matches!(self.recorder.below(), 0 | WHOLE) && u32::from(tag.sample()) < self.recorder.below() {
            self.writing().step(tag, step());
        }
    }

    /// Counts a look at a page.
    #[inline(always)]
    pub fn count_access(&self, tag: Tag, write: bool, hit: bool) {
        let count = if hit { Count::Hits } else { Count::Misses };
        match self.counters.at_hand() {
            Some(counts) => counts.add(count, 1),
            None => {
                self.counters.add(count, 1);
                self.record_access(tag, write, hit);
            }
        }
    }

    /// Writes a look at a page that was counted already, if the partition records; and counts whose
    /// page it was, where there are nodes.
    #[cold]
    #[inline(never)]
    pub fn record_access(&self, tag: Tag, write: bool, hit: bool) {
        self.count_place_of(tag, write, hit);
        if u32::from(tag.sample()) >= self.recorder.below() || self.shared.is_forked() {
            return;
        }
        let key = self.key_of_tag(tag);
        let mut guard = lock(&self.recorder.tape);
        // Another recording may have begun meanwhile, of fewer pages.
        if u32::from(tag.sample()) >= self.recorder.below() {
            return;
        }
        let Some(tape) = guard.as_mut().filter(|tape| tape.end.is_none()) else { return };
        tape.stat.accesses += 1;
        tape.encoder.access(key, write, hit);
        if tape.waited_for || tape.encoder.len() >= BLOCK_BYTES {
            Writing { partition: self, tape: guard }.write(|_| {});
        }
    }

    /// Counts a look at a page for a write, and says whether the page was there. Where all is
    /// recorded nothing comes between the look and its event.
    #[inline(always)]
    pub fn count_write(&self, tag: Tag, look: impl Fn() -> bool) -> bool {
        if self.is_recorded_whole()
            && let Some(hit) = self.count_recorded_write(tag, &look)
        {
            return hit;
        }
        let hit = look();
        self.count_access(tag, true, hit);
        hit
    }

    #[cold]
    #[inline(never)]
    fn count_recorded_write(&self, tag: Tag, look: &dyn Fn() -> bool) -> Option<bool> {
        let writing = self.writing_all()?;
        let hit = look();
        self.counters.add(if hit { Count::Hits } else { Count::Misses }, 1);
        self.count_place_of(tag, true, hit);
        writing.access(tag, true, hit);
        Some(hit)
    }

    /// What is looked at and changed while it lives is in the recording as one step. None: not all
    /// is recorded.
    pub fn writing_all(&self) -> Option<Writing<'_>> {
        let writing = self.writing();
        // Under the lock nothing begins or ends.
        self.is_recorded_whole().then_some(writing)
    }

    /// Counts whose page was looked at, where there are nodes. Where pages have copies, their reads
    /// were counted by what they found.
    pub fn count_place_of(&self, tag: Tag, write: bool, hit: bool) {
        if self.places.counted && (write || !self.places.replicates) {
            self.count_place(tag, write, hit);
        }
    }

    pub fn totals(&self) -> Totals {
        Totals { hits: self.counters.sum(Count::Hits), misses: self.counters.sum(Count::Misses) }
    }

    fn totals_since(&self, before: Totals) -> Totals {
        let Totals { hits, misses } = self.totals();
        Totals { hits: hits.wrapping_sub(before.hits), misses: misses.wrapping_sub(before.misses) }
    }

    /// Hands on what was written, and says what was counted until then. Without memory for another
    /// block it is the last.
    pub fn end_block(&self, tape: &mut Tape) -> Totals {
        let totals = self.totals_since(tape.began);
        tape.encoder.push(&Event::Totals(totals));
        let next = tape.spare.pop();
        if next.is_none() && tape.end.is_none() {
            self.end_recording(tape, RecordingEnd::FellBehind);
        }
        tape.stat.event_bytes += tape.encoder.len() as u64;
        tape.full.push_back(Handed::Block(tape.encoder.take(next.unwrap_or_default())));
        totals
    }

    pub fn end_recording(&self, tape: &mut Tape, end: RecordingEnd) {
        tape.end = Some(end);
        self.recorder.below.store(0, Ordering::Relaxed);
        self.counters.set_at_hand(!self.places.counted);
    }
}
