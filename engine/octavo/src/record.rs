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
//! What is not here: what events look like (`octavo_table::recording`), files, threads, time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use octavo_table::recording::{Encoder, Event, Header, PAGE_BITS, Place, Secret, Step, Totals, WHOLE};
use octavo_table::{Claim, SegmentIndex, SlotIndex, Tag};

use crate::WAYS;
use crate::budget::Charge;
use crate::counters::Count;
use crate::error::Error;
use crate::object::Object;
use crate::partition::{Partition, PartitionInner, Still};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};

/// A block is handed on when it has so many bytes: enough to compress well, little to lose.
const BLOCK_BYTES: usize = 64 << 10;

/// What a block takes: its last event, and the totals behind it, may reach over the end.
const BUFFER_BYTES: usize = BLOCK_BYTES + Encoder::EVENT_BYTES_MAX + 64;

/// A recording takes this part of the memory for buffers, and so many blocks at least and at most.
const RESERVE_SHARE: u64 = 16;
const BLOCKS_MIN: usize = 4;
const BLOCKS_MAX: usize = 64;

/// A partition's side of a recording.
pub(crate) struct Recorder {
    /// Pages whose sample number is below are recorded. 0: nothing is; `WHOLE`: the steps of the
    /// table too.
    below: AtomicU32,
    tape: Mutex<Option<Tape>>,
    /// Told when there may be something to take.
    something: Condvar,
}

/// What was written and not taken.
struct Tape {
    encoder: Encoder,
    full: VecDeque<Handed>,
    /// Memory for blocks to come.
    spare: Vec<Vec<u8>>,
    end: Option<RecordingEnd>,
    /// The partition's counts when it began.
    began: Totals,
    /// Whoever takes waits for the first event of a block.
    waited_for: bool,
    /// What the recording tells of itself.
    stat: RecordingStat,
}

/// What is handed on.
enum Handed {
    Block(Vec<u8>),
    /// What follows is of another part.
    Part(Header),
}

/// Why a recording has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingEnd {
    /// Somebody said so.
    Stopped,
    /// The blocks were not taken as fast as they filled.
    FellBehind,
}

/// How far a recording is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingStat {
    /// Accesses written down.
    pub accesses: u64,
    /// Bytes of all events, as they are handed on.
    pub event_bytes: u64,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { below: AtomicU32::new(0), tape: Mutex::new(None), something: Condvar::new() }
    }

    #[inline(always)]
    pub fn below(&self) -> u32 {
        // Relaxed: who sees it too early or too late looks again under the tape's lock, or belongs to
        // before.
        self.below.load(Ordering::Relaxed)
    }
}

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

    /// A page was claimed, or was not.
    #[inline(always)]
    pub fn claimed(self, tag: Tag, claim: &Claim) {
        self.step(tag, || Step::Claim(place_of(claim)));
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

    fn totals(&self) -> Totals {
        Totals { hits: self.counters.sum(Count::Hits), misses: self.counters.sum(Count::Misses) }
    }

    fn totals_since(&self, before: Totals) -> Totals {
        let Totals { hits, misses } = self.totals();
        Totals { hits: hits.wrapping_sub(before.hits), misses: misses.wrapping_sub(before.misses) }
    }

    /// Hands on what was written, and says what was counted until then. Without memory for another
    /// block it is the last.
    fn end_block(&self, tape: &mut Tape) -> Totals {
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

    /// What a recording, or a part of it, begins with.
    fn header(&self, name: &str, sample_below: u32, still: &Still<'_>) -> Header {
        Header {
            partition: name.into(),
            policy: self.table.policy(),
            ways: WAYS as u32,
            page_bytes: self.page_bytes() as u32,
            shape: self.table.shape(),
            nodes: self.table.nodes(),
            segments: (still.segments.len() as u32).max(1),
            secret: if sample_below == WHOLE { self.secret } else { Secret::Untold },
            sample_below,
            from_the_first: false,
        }
    }

    /// Tells which segments there are, what was learned and how objects are called, in so many
    /// blocks as leave some of the `blocks` for what happens. What is left out has its number
    /// for a name.
    fn introduce(&self, tape: &mut Tape, still: &Still<'_>, blocks: usize) {
        let runs = still.segments.chunk_by(|one, next| one.0 + 1 == next.0);
        let live = runs.map(|run| Event::Live { first: run[0].0, count: run.len() as u32 });
        let name = |object: &&Object| Event::Opened { object: object.0.id, name: object.name().into() };
        let learned = self.table.learned().map(Event::Learned);
        for event in live.chain(learned).chain(still.objects.iter().map(name)) {
            if tape.encoder.len() >= BLOCK_BYTES {
                if tape.spare.len() <= blocks / 2 {
                    break;
                }
                self.end_block(tape);
            }
            tape.encoder.push(&event);
        }
    }

    fn end_recording(&self, tape: &mut Tape, end: RecordingEnd) {
        tape.end = Some(end);
        self.recorder.below.store(0, Ordering::Relaxed);
        self.counters.set_at_hand(!self.places.counted);
    }
}

impl Partition {
    /// Begins to record, and gives the end from which blocks are to be taken, by a thread that does
    /// nothing else. `sample_below` of [`WHOLE`] pages are recorded, and none of the table's
    /// steps; or all, and all of them. A partition that is recorded as soon as it is made is
    /// recorded exactly. Dropping the [`Recording`] ends it.
    pub fn record(&self, sample_below: u32) -> Result<Recording, Error> {
        let inner = &self.0;
        inner.shared.check_process()?;
        if !(1..=WHOLE).contains(&sample_below) {
            return Err(Error::Config(format!("a sample of {sample_below} of {WHOLE} pages")));
        }
        let reserve = &inner.shared.reserve;
        let blocks = (reserve.max_bytes() / RESERVE_SHARE) as usize / BUFFER_BYTES;
        let blocks = blocks.clamp(BLOCKS_MIN, BLOCKS_MAX);
        let what = format!("recording partition {:?}", self.name());
        let already = || Error::Config(format!("partition {:?} is being recorded already", self.name()));
        if self.recording_stat().is_some() {
            return Err(already());
        }
        let charge = reserve.charge((blocks * BUFFER_BYTES) as u64, &what)?;
        let mut spare: Vec<Vec<u8>> = (0..blocks).map(|_| Vec::with_capacity(BUFFER_BYTES)).collect();
        // The tape's lock comes last: whoever resizes or opens takes it too.
        let recording = inner.hold_still(|still| {
            let before = still.history.events.as_deref().filter(|_| inner.is_untouched());
            let (from_the_first, header) =
                (before.is_some(), inner.header(self.name(), sample_below, &still));
            let header = match before.is_some() && sample_below == WHOLE {
                true => Header { policy: still.history.policy, segments: still.history.segments, ..header },
                false => header,
            };
            let header = Header { from_the_first, ..header };
            let mut begun = Tape {
                encoder: Encoder::new(spare.pop().expect("at least one")),
                full: VecDeque::new(),
                spare,
                end: None,
                began: inner.totals(),
                waited_for: false,
                stat: RecordingStat::default(),
            };
            let before = before.filter(|_| sample_below == WHOLE).unwrap_or_default();
            before.iter().for_each(|event| begun.encoder.push(event));
            inner.introduce(&mut begun, &still, blocks);
            let mut tape = lock(&inner.recorder.tape);
            if tape.is_some() {
                return Err(already());
            }
            *tape = Some(begun);
            inner.recorder.below.store(sample_below, Ordering::Relaxed);
            inner.counters.set_at_hand(false);
            let list = if from_the_first { Listing::done() } else { Listing::begin(0) };
            Ok(Recording { partition: self.clone(), header, list, blocks, _charge: charge })
        });
        // Nobody makes copies or brings mains away any more.
        inner.end_copies();
        if !inner.may_replicate() {
            self.bring_mains_home()?;
        }
        recording
    }

    /// Ends the recording, if there is one; what was written until now can still be taken.
    pub fn stop_recording(&self) {
        let inner = &self.0;
        if inner.shared.is_forked() {
            return;
        }
        if let Some(tape) = lock(&inner.recorder.tape).as_mut().filter(|tape| tape.end.is_none()) {
            inner.end_recording(tape, RecordingEnd::Stopped);
            inner.end_block(tape);
        }
        inner.recorder.something.notify_all();
    }

    /// How far the recording is, if there is one.
    pub fn recording_stat(&self) -> Option<RecordingStat> {
        if self.0.shared.is_forked() {
            return None;
        }
        lock(&self.0.recorder.tape).as_ref().map(|tape| tape.stat)
    }
}

/// What is being recorded of a partition, as blocks of bytes.
pub struct Recording {
    partition: Partition,
    header: Header,
    list: Listing,
    /// How many blocks there are.
    blocks: usize,
    _charge: Charge,
}

/// The list of a part's pages.
struct Listing {
    /// The next segment whose pages are to be listed.
    next: u32,
    /// Bytes of the recording when it began.
    began_bytes: u64,
    /// Bytes that were written until it was whole; what happened meanwhile is among them.
    bytes: Option<u64>,
}

impl Listing {
    fn begin(began_bytes: u64) -> Listing {
        Listing { next: 0, began_bytes, bytes: None }
    }

    /// There is nothing to list.
    fn done() -> Listing {
        Listing { next: u32::MAX, began_bytes: 0, bytes: Some(0) }
    }
}

/// What [`Recording::take`] gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// A block, for [`Decoder`](crate::recording::Decoder).
    Block(Vec<u8>),
    /// The part that [`Recording::begin_part`] has begun: blocks from here on are its.
    Part(Header),
    /// It has ended, and everything was taken.
    Ended(RecordingEnd),
}

impl Recording {
    /// What the table is made of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The partition.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// The next block. Waits until one is full, or as long as `patience` after its first event.
    /// Where nothing happens it waits and uses no processor; [`Partition::stop_recording`] ends
    /// that.
    pub fn take(&mut self, patience: Duration) -> Taken {
        self.list_some();
        let inner = &self.partition.0;
        let mut guard = lock(&inner.recorder.tape);
        let mut was_patient = false;
        // A turn follows a wait, which ends by an event, a block, the end or the time; all but the first
        // give a block or the end.
        loop {
            let tape = guard.as_mut().expect("it is there as long as its recording");
            match tape.full.pop_front() {
                Some(Handed::Block(block)) => return Taken::Block(block),
                Some(Handed::Part(header)) => return Taken::Part(header),
                None => {}
            }
            if let Some(end) = tape.end {
                return Taken::Ended(end);
            }
            if tape.encoder.is_empty() {
                tape.waited_for = true;
                guard =
                    inner.recorder.something.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            }
            if was_patient {
                inner.end_block(tape);
                continue;
            }
            was_patient = true;
            guard = inner
                .recorder
                .something
                .wait_timeout(guard, patience)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard);
        }
    }

    /// Gives a block's memory back, for blocks to come.
    pub fn give_back(&mut self, mut block: Vec<u8>) {
        block.clear();
        if let Some(tape) = lock(&self.partition.0.recorder.tape).as_mut() {
            tape.spare.push(block);
        }
    }

    /// Begins another part, which says something also without those before it. [`Taken::Part`]
    /// follows the last block of the one before. False: not now, for the partition is resized,
    /// or the list of the pages that the last part began with is not whole, or is
    /// more than half of it, so that lists would be most of the recording.
    pub fn begin_part(&mut self) -> bool {
        let inner = &self.partition.0;
        let written = |tape: &Tape| tape.stat.event_bytes + tape.encoder.len() as u64;
        let Some(list_bytes) = self.list.bytes else { return false };
        let (began, name) = (self.list.began_bytes, self.partition.name());
        let begun = inner.try_hold_still(|still| {
            let mut guard = lock(&inner.recorder.tape);
            // A block for the end of the last part, and one to go on with.
            let tape = guard.as_mut().filter(|tape| tape.end.is_none() && tape.spare.len() > 1)?;
            if written(tape) - began < 2 * list_bytes {
                return None;
            }
            let totals = inner.end_block(tape);
            tape.full.push_back(Handed::Part(inner.header(name, self.header.sample_below, &still)));
            tape.encoder.push(&Event::Totals(totals));
            let began = tape.stat.event_bytes;
            inner.introduce(tape, &still, self.blocks);
            Some(began)
        });
        self.list = match begun.flatten() {
            Some(began) => Listing::begin(began),
            None => return false,
        };
        true
    }

    /// Lists the pages of the next segments, as long as there is room for them. Each set is listed
    /// under its lock, so that what happened to its pages before is in the list and what
    /// happens later is behind it.
    fn list_some(&mut self) {
        let inner = &self.partition.0;
        let table = &inner.table;
        if self.list.bytes.is_some() {
            return;
        }
        while self.list.next < table.shape().segments_max {
            let room = lock(&inner.recorder.tape).as_ref().is_some_and(|tape| tape.spare.len() > 1);
            if !room {
                return;
            }
            let segment = SegmentIndex(self.list.next);
            self.list.next += 1;
            if !table.is_live(segment) {
                continue;
            }
            table.for_each_page_of(segment, |guard, found| {
                if u32::from(found.tag().sample()) >= self.header.sample_below {
                    return;
                }
                if found.word.readable() {
                    let dirty = found.word.state() == octavo_table::State::Dirty || found.word.held();
                    let (key, bits) = (inner.key_of_tag(found.tag()), guard.policy_bits(&found));
                    inner.record(|| Event::Resident { key, dirty, bits });
                }
                if found.word.pins() > 0 {
                    // Counted while nobody pins.
                    let note = inner.note();
                    let pins = found.slot().load().pins() as u32;
                    note.step(found.tag(), || Step::Held { slot: found.index.0, pins });
                }
            });
        }
        if let Some(tape) = lock(&inner.recorder.tape).as_ref() {
            let written = tape.stat.event_bytes + tape.encoder.len() as u64;
            self.list.bytes = Some(written - self.list.began_bytes);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.partition.0.shared.is_forked() {
            return;
        }
        self.partition.stop_recording();
        *lock(&self.partition.0.recorder.tape) = None;
    }
}

const _: () = assert!(PAGE_BITS == crate::partition::PAGE_INDEX_BITS);
