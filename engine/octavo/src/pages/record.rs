//! Recording: writes a partition's accesses and table steps into blocks of bytes, which another
//! thread takes.
//!
//! This file guarantees the order of events. All events are written under one lock, the tape's,
//! which is held during the table step that an event describes ([`Note`]). Any two steps, even of
//! different threads, are therefore recorded in the order in which the table made them.
//!
//! - The moves of a resize are recorded this way, set by set.
//! - Each hit of a single read, a batch or a queue is one step: looking up the page, telling the
//!   policy and recording the event.
//! - Two things are recorded only after they happened, so other steps may come between: a pin's
//!   hit, and a change of the policy under traffic.
//!
//! A replay therefore repeats the accesses of one thread exactly, even if the cleaner and the
//! reaper ran concurrently. It repeats the accesses of many threads almost exactly.
//!
//! A partition that is not recorded pays one load of a flag for each step of a miss or a write. Its
//! hits pay nothing: the value that a hit loads to find its counter also tells whether a recording
//! must see the hit (`Counters::set_at_hand`).
//!
//! A thread that writes an event never waits for the thread that takes blocks. If no empty block is
//! left, the recording ends and the partition continues without it. The tape's lock may be taken
//! under a set's lock, `resizing` or the list of objects. While it is held, a thread touches only
//! words, policies, the bytes of pages that move or are written, and the list of counters. A
//! recording begins while nothing is resized or opened, so its header matches the events that
//! follow.
//!
//! A caller that writes the recording to files begins a new *part* from time to time
//! (`Recording::begin_part` in `api/recording.rs`). A part has its own header, the names of the
//! open objects, and a list of the resident pages, so that it can be read without the parts before
//! it. A reader that has read the part before skips the list. A recording that begins after the
//! partition's first access starts like such a part. A recording that begins before the first
//! access starts with the history of the directory instead.
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
/// threads can see. Empty if the partition's steps are not recorded.
pub(crate) struct Note<'p>(Option<Writing<'p>>);

/// The tape's lock, held during a step.
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

    /// Records the step that was made, for the page that the slot still holds.
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
        self.event(|| Event::Unpin { slot: slot.0 });
    }

    /// Records an event that is not a step of a page.
    #[inline(always)]
    pub fn event(self, event: impl FnOnce() -> Event) {
        if let Some(writing) = self.0 {
            writing.write(|encoder| encoder.push(&event()));
        }
    }
}

/// Returns the outcome of a claim in the form that a recording stores.
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
    /// Begins a step of the table, with or without the set's lock held: the caller makes the step,
    /// then records it with the note. While the note exists, no other thread makes a recorded step.
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
        // Recordings begin and end under this lock. The recording may have been replaced by a
        // sample, which has no steps.
        Note((self.recorder.below() == WHOLE).then_some(writing))
    }

    /// Begins an event that recordings of a sample contain, too.
    pub fn note_of_all(&self) -> Note<'_> {
        Note(self.is_recorded().then(|| self.writing()))
    }

    /// Whether every step of the table is recorded.
    pub fn is_recorded_whole(&self) -> bool {
        self.recorder.below() == WHOLE
    }

    fn writing(&self) -> Writing<'_> {
        Writing { partition: self, tape: lock(&self.recorder.tape) }
    }

    /// Whether the partition is recorded, completely or by a sample of its pages.
    pub fn is_recorded(&self) -> bool {
        self.recorder.below() != 0
    }

    /// Records an event that recordings of a sample contain, too.
    pub fn record(&self, event: impl FnOnce() -> Event) {
        self.note_of_all().event(event);
    }

    /// Ends the life of a closed object's number. The last reference to the object is being dropped
    /// (N3), so no event of it can follow (N4).
    pub fn end_life(&self, number: u64) {
        self.record(|| Event::Closed { object: number });
        self.returned.push(number);
    }

    /// Records a step in a recording of a sample, if the sample contains the page. A recording of
    /// all pages gets the step through its [`Note`].
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

    /// Records an access that was already counted, if the page is recorded. With several nodes,
    /// also counts the access by the page's node.
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

    /// Counts a write's look at a page, and returns whether the page was resident. While every step
    /// is recorded, no other step comes between the look and its event.
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

    /// Takes the tape's lock: all that the caller reads and changes while holding it is one step of
    /// the recording. Returns `None` if not every step is recorded.
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

    /// Ends the current block with the totals so far, hands it to the thread that takes blocks, and
    /// returns the totals. Ends the recording if no empty block is left.
    pub fn end_block(&self, tape: &mut Tape) -> Totals {
        let (now, began) = (self.totals(), tape.began);
        let (hits, misses) = (now.hits.wrapping_sub(began.hits), now.misses.wrapping_sub(began.misses));
        let totals = Totals { hits, misses };
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
