//! Recording a partition: begins and ends a recording, hands its blocks to the caller.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use octavo_recording::{Encoder, Event, Header, PAGE_BITS, Secret, Step, WHOLE};
use octavo_table::SegmentIndex;

use crate::control::Partition;
use crate::error::Error;
use crate::memory::Charge;
use crate::state::partition::{ObjectInner, PartitionInner, Still};
use crate::state::tape::{BLOCK_BYTES, BUFFER_BYTES, Handed, RecordingEnd, RecordingStat, Tape};
use crate::sync::{Arc, lock};
use crate::ways::WAYS;

/// A recording takes this part of the memory for buffers, and so many blocks at least and at most.
const RESERVE_SHARE: u64 = 16;
const BLOCKS_MIN: usize = 4;
const BLOCKS_MAX: usize = 64;

impl PartitionInner {
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
        let name = |object: &&Arc<ObjectInner>| Event::Opened {
            object: object.id,
            name: object.name.as_str().into(),
        };
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
}

impl Partition {
    /// Begins to record, and gives the end from which blocks are to be taken, by a thread that does
    /// nothing else. `sample_below` of [`WHOLE`] pages are recorded, and none of the table's
    /// steps; or all, and all of them. A partition that is recorded as soon as it is made is
    /// recorded exactly. Dropping the [`Recording`] ends it.
    pub fn record(&self, sample_below: u32) -> Result<Recording, Error> {
        let inner = &self.inner;
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
        let inner = &self.inner;
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
        if self.inner.shared.is_forked() {
            return None;
        }
        lock(&self.inner.recorder.tape).as_ref().map(|tape| tape.stat)
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
        let inner = &self.partition.inner;
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
        if let Some(tape) = lock(&self.partition.inner.recorder.tape).as_mut() {
            tape.spare.push(block);
        }
    }

    /// Begins another part, which says something also without those before it. [`Taken::Part`]
    /// follows the last block of the one before. False: not now, for the partition is resized,
    /// or the list of the pages that the last part began with is not whole, or is
    /// more than half of it, so that lists would be most of the recording.
    pub fn begin_part(&mut self) -> bool {
        let inner = &self.partition.inner;
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
        let inner = &self.partition.inner;
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
        if self.partition.inner.shared.is_forked() {
            return;
        }
        self.partition.stop_recording();
        *lock(&self.partition.inner.recorder.tape) = None;
    }
}

const _: () = assert!(PAGE_BITS == crate::state::partition::PAGE_INDEX_BITS);
