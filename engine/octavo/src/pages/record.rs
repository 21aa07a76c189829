//! Recording: writes a partition's accesses and table steps into blocks of bytes, for another
//! thread to take.
//!
//! This file protects the order of events. All events are written under one lock, the tape's,
//! which is held over the table step that an event describes ([`Note`]). So any two steps, by
//! any two threads, are in the recording in the order in which the table made them.
//!
//! - The moves of a resize are recorded so, set by set.
//! - Hits of single reads, batches and queues are one step each: the look, the touch of the
//!   policy and the event.
//! - Two things are recorded after they happened: a pin's hit, and a change of the policy under
//!   traffic.
//!
//! So a replay repeats the accesses of one thread exactly, even if the cleaner and the reaper
//! run beside it, and those of many threads nearly so.
//!
//! A partition that does not record pays one look at a flag per step of a miss or a write. Its
//! hits pay nothing: the value that a hit reads to find its counter also says whether a
//! recording must see the hit (`Counters::set_at_hand`).
//!
//! A thread that writes an event never waits for the taker. If all blocks are full and none was
//! taken, the recording ends and the partition continues. The tape's lock is a leaf: it is taken
//! under a set's lock, `resizing` or the list of objects, and under it only words, policies, the
//! bytes of pages that move or are written, and the list of counters are touched. A recording
//! begins while nothing is resized or opened, so that its header fits what follows.
//!
//! A taker that writes files begins a new *part* from time to time (`Recording::begin_part` in
//! `api/recording.rs`). A part has its own header, the names of the open objects, and a list of the
//! resident pages, so that it can be read without the parts before it. A reader that has read the
//! part before skips the list. A recording that begins after its partition's first page begins as a
//! part does; one that begins before that page begins with the history of the directory.
//!
//! Not here: the format of events (`octavo_recording`), files, threads, time.

use std::sync::atomic::Ordering;

use octavo_recording::{Encoder, Event, Place, Step, Totals, WHOLE};
use octavo_table::{Claim, SlotIndex, Tag};

use crate::state::counters::Count;
use crate::state::partition::PartitionInner;
use crate::state::tape::{BLOCK_BYTES, Handed, RecordingEnd, Tape};
use crate::sync::{MutexGuard, lock};
use crate::ways::WAYS;

/// The exclusive right to write the next event. Taken before a table step whose effect other
/// threads can see. Empty if the partition records no steps.
pub(crate) struct Note<'p>(Option<Writing<'p>>);

/// The tape's lock, held over a step.
pub(crate) struct Writing<'p> {
    partition: &'p PartitionInner,
    tape: MutexGuard<'p, Option<Tape>>,
}

impl Note<'_> {
    /// Records the step that was made.
    #[inline(always)]
    pub fn step(self, tag: Tag, step: impl FnOnce() -> Step) {
        if let Some(writing) = self.0 {
            writing.step(tag, step());
        }
    }

    /// Records the step that was made, of the page that the slot still holds.
    #[inline(always)]
    pub fn step_of(self, slot: SlotIndex, step: impl FnOnce() -> Step) {
        if let Some(writing) = self.0 {
            let tag = writing.partition.table.slot(slot).tag();
            writing.step(tag, step());
        }
    }

    /// Records that a pin was dropped.
    #[inline(always)]
    pub fn unpinned(self, slot: SlotIndex) {
        if let Some(writing) = self.0 {
            writing.write(|encoder| encoder.push(&Event::Unpin { slot: slot.0 }));
        }
    }

    /// Records an event that is no step of a page.
    #[inline(always)]
    pub fn event(self, event: impl FnOnce() -> Event) {
        if let Some(writing) = self.0 {
            writing.write(|encoder| encoder.push(&event()));
        }
    }
}

/// The outcome of a claim, as a recording has it.
pub(crate) fn place_of(claim: &Claim) -> Place {
    match claim {
        Claim::Full => Place::Full,
        Claim::Claimed { slot, evicted } => {
            Place::Way { way: (slot.0 as usize % WAYS) as u8, evicted: evicted.is_some() }
        }
    }
}

impl Writing<'_> {
    /// Records a step of a page.
    #[cold]
    #[inline(never)]
    pub fn step(self, tag: Tag, step: Step) {
        let key = self.partition.key_of_tag(tag);
        self.write(|encoder| encoder.step(key, step));
    }

    /// Records an access that the caller has counted.
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
    /// Takes a note for a step of the table, with or without the set's lock held: make the step,
    /// then record it. While the note lives, no other thread makes a recorded step.
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
        // Recordings begin and end under this lock. By now the recording may be a sample, which
        // has no steps.
        Note((self.recorder.below() == WHOLE).then_some(writing))
    }

    /// `note` for an event that samples record too.
    pub fn note_of_all(&self) -> Note<'_> {
        Note((self.recorder.below() != 0).then(|| self.writing()))
    }

    /// Whether every step of the table is recorded.
    pub fn is_recorded_whole(&self) -> bool {
        self.recorder.below() == WHOLE
    }

    fn writing(&self) -> Writing<'_> {
        Writing { partition: self, tape: lock(&self.recorder.tape) }
    }

    /// Whether the partition is recorded, whole or by a sample.
    pub fn is_recorded(&self) -> bool {
        self.recorder.below() != 0
    }

    /// Records an event that samples record too.
    pub fn record(&self, event: impl FnOnce() -> Event) {
        if self.recorder.below() != 0 {
            self.writing().write(|encoder| encoder.push(&event()));
        }
    }

    /// Records a step that samples record too, if the recording is a sample and has the page. A
    /// whole recording gets the step through its [`Note`].
    pub fn record_sampled(&self, tag: Tag, step: impl FnOnce() -> Step) {
        if !matches!(self.recorder.below(), 0 | WHOLE) && u32::from(tag.sample()) < self.recorder.below() {
            self.writing().step(tag, step());
        }
    }

    /// Counts an access.
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

    /// Records an access that was already counted, if the partition records the page. With
    /// several nodes, also counts the access by the page's node.
    #[cold]
    #[inline(never)]
    pub fn record_access(&self, tag: Tag, write: bool, hit: bool) {
        self.count_place_of(tag, write, hit);
        if u32::from(tag.sample()) >= self.recorder.below() || self.shared.is_forked() {
            return;
        }
        let key = self.key_of_tag(tag);
        let mut guard = lock(&self.recorder.tape);
        // Another recording, of fewer pages, may have begun in the meantime.
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

    /// Counts a write's look at a page, and returns whether the page was resident. While every
    /// step is recorded, nothing comes between the look and its event.
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

    /// Takes the tape's lock: whatever the caller reads and changes while it is held is one step
    /// in the recording. Returns `None` if not every step is recorded.
    pub fn writing_all(&self) -> Option<Writing<'_>> {
        let writing = self.writing();
        // Recordings begin and end under this lock.
        self.is_recorded_whole().then_some(writing)
    }

    /// With several nodes, counts an access by its page's node. Not for reads of partitions with
    /// twins: `read_near` has counted those by where it found the page.
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

    /// Hands the current block to the taker, ended by the totals until now, which it returns.
    /// Ends the recording if no memory for another block is left.
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
