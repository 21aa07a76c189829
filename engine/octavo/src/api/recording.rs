//! Recordings: starts and stops the recording of a partition, and hands its blocks to the
//! caller.
//!
//! Not here: events as bytes (`octavo_recording`), writing events down
//! (`pages/record.rs`), the blocks not yet taken (`state/tape.rs`).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use octavo_recording::{Encoder, Event, Header, PAGE_BITS, Secret, Step, WHOLE};
use octavo_table::SegmentIndex;

use crate::control::{self, Partition};
use crate::error::Error;
use crate::memory::Charge;
use crate::state::partition::{ObjectInner, PartitionInner, Still};
use crate::state::tape::{BLOCK_BYTES, BUFFER_BYTES, Handed, RecordingEnd, RecordingStat, Tape};
use crate::sync::{Arc, lock};
use crate::ways::WAYS;

/// A recording's blocks take 1/16 of the buffer share, but at least [`BLOCKS_MIN`] and at most
/// [`BLOCKS_MAX`] blocks.
const RESERVE_DIVISOR: u64 = 16;
const BLOCKS_MIN: usize = 4;
const BLOCKS_MAX: usize = 64;

impl PartitionInner {
    /// Returns the header of a recording, or of a part of one.
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

    /// Writes events that describe the partition: its segments, what the policy has learned, and
    /// the objects' names. Stops early enough to leave half of the `blocks` for later events; an
    /// object left out is known by its number.
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
    /// Starts recording the partition's accesses and returns the [`Recording`] that delivers the
    /// blocks. Call [`Recording::take`] from a dedicated thread. Dropping the `Recording` ends it.
    ///
    /// `sample_below` sets the sampled fraction of the pages, `sample_below / WHOLE`, from 1 to
    /// [`WHOLE`]. [`WHOLE`] records all pages and every step of the table; a smaller value records
    /// a sample of the pages and no steps. A recording started right after the partition was
    /// created is exact.
    ///
    /// # Errors
    /// [`Error::Config`] if `sample_below` is out of range or an earlier [`Recording`] of the
    /// partition has not been dropped, [`Error::NoMemory`] if the buffer share has no room,
    /// [`Error::Io`] if a page that must move back to its home node cannot be written,
    /// [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, Taken, disk::Store, recording::WHOLE};
    /// # use std::time::Duration;
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let mut recording = partition.record(WHOLE)?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.read_at(0, &mut [0; 512])?;
    /// partition.stop_recording();
    /// while let Taken::Block(block) = recording.take(Duration::from_secs(1)) {
    ///     println!("{} bytes", block.len());
    ///     recording.give_back(block);
    /// }
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn record(&self, sample_below: u32) -> Result<Recording, Error> {
        let inner = &self.inner;
        inner.shared.check_process()?;
        if !(1..=WHOLE).contains(&sample_below) {
            return Err(Error::Config(format!(
                "partition {:?}: cannot start a recording: sample_below is {sample_below}, must be 1 to \
                 {WHOLE} ({WHOLE} records every page)",
                self.name()
            )));
        }
        let reserve = &inner.shared.reserve;
        let blocks = (reserve.max_bytes() / RESERVE_DIVISOR) as usize / BUFFER_BYTES;
        let blocks = blocks.clamp(BLOCKS_MIN, BLOCKS_MAX);
        let what = format!("recording partition {:?}", self.name());
        let already = || {
            let name = self.name();
            Error::Config(format!(
                "partition {name:?} already has a recording: stop it and drop its Recording first"
            ))
        };
        if self.recording_stat().is_some() {
            return Err(already());
        }
        let bytes = (blocks * BUFFER_BYTES) as u64;
        let charge = control::with_room(&self.core, bytes, || reserve.charge(bytes, &what))?;
        let mut spare: Vec<Vec<u8>> = (0..blocks).map(|_| Vec::with_capacity(BUFFER_BYTES)).collect();
        // Lock order: the tape comes after `resizing` and the list of objects, because a resize and
        // an `open` lock it while they hold those.
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
        // From here on no thread makes copies or moves mains away from home.
        inner.end_copies();
        if !inner.may_replicate() {
            self.bring_mains_home()?;
        }
        recording
    }

    /// Ends the recording, if there is one. Events written so far can still be taken.
    pub fn stop_recording(&self) {
        let inner = &self.inner;
        inner.shared.unless_forked(|| {
            if let Some(tape) = lock(&inner.recorder.tape).as_mut().filter(|tape| tape.end.is_none()) {
                inner.end_recording(tape, RecordingEnd::Stopped);
                inner.end_block(tape);
            }
            inner.recorder.something.notify_all();
        });
    }

    /// Returns the progress of the recording, or `None` if there is none.
    pub fn recording_stat(&self) -> Option<RecordingStat> {
        let tape = &self.inner.recorder.tape;
        self.inner.shared.unless_forked(|| lock(tape).as_ref().map(|tape| tape.stat))
    }
}

/// A recording in progress: delivers what is recorded of a partition as blocks of bytes.
pub struct Recording {
    partition: Partition,
    header: Header,
    list: Listing,
    /// Number of blocks in total.
    blocks: usize,
    _charge: Charge,
}

/// The list of resident pages at the beginning of a part.
struct Listing {
    /// The next segment to list.
    next: u32,
    /// Bytes of the recording when the list began.
    began_bytes: u64,
    /// Bytes written until the list was complete, including events that happened meanwhile.
    bytes: Option<u64>,
}

impl Listing {
    fn begin(began_bytes: u64) -> Listing {
        Listing { next: 0, began_bytes, bytes: None }
    }

    /// A list with nothing to write.
    fn done() -> Listing {
        Listing { next: u32::MAX, began_bytes: 0, bytes: Some(0) }
    }
}

/// The result of [`Recording::take`].
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// A block of events, for [`Decoder`](crate::recording::Decoder).
    Block(Vec<u8>),
    /// The header of the part that [`Recording::begin_part`] began; the blocks after it belong to
    /// that part.
    Part(Header),
    /// The recording has ended, and every block was taken.
    Ended(RecordingEnd),
}

impl Recording {
    /// Returns the header: the parameters of the partition's table.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the partition that is being recorded.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Returns the next block. Waits until a block is full, or until `patience` has passed since
    /// the block's first event (or since this call, if it had one already). Without events it
    /// sleeps and uses no CPU, until [`Partition::stop_recording`].
    pub fn take(&mut self, patience: Duration) -> Taken {
        self.list_some();
        let inner = &self.partition.inner;
        let mut guard = lock(&inner.recorder.tape);
        let mut was_patient = false;
        // Waits without a limit for the first event, then at most `patience` for the block to
        // fill. After that it ends the block itself, and the next iteration returns it. A full
        // block or the end of the recording returns at once.
        loop {
            let tape = guard.as_mut().expect("the tape lives as long as its Recording");
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

    /// Returns a block's memory to the recording, for later blocks.
    pub fn give_back(&mut self, mut block: Vec<u8>) {
        block.clear();
        if let Some(tape) = lock(&self.partition.inner.recorder.tape).as_mut() {
            tape.spare.push(block);
        }
    }

    /// Begins another part, which can be read without the parts before it. [`Taken::Part`]
    /// follows the last block of the current part. Returns `false` and begins no part if:
    /// - the recording has ended, or fewer than two empty blocks are left;
    /// - the partition is being resized, or its list of objects is in use (an object is being
    ///   opened, say);
    /// - the page list at the beginning of the current part is not complete;
    /// - that page list is more than half of the current part: otherwise page lists would make up
    ///   most of the recording.
    pub fn begin_part(&mut self) -> bool {
        let inner = &self.partition.inner;
        let written = |tape: &Tape| tape.stat.event_bytes + tape.encoder.len() as u64;
        let Some(list_bytes) = self.list.bytes else { return false };
        let (began, name) = (self.list.began_bytes, self.partition.name());
        let begun = inner.try_hold_still(|still| {
            let mut guard = lock(&inner.recorder.tape);
            // Needs one block for the end of the current part, and one to continue.
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

    /// Lists the pages of the next segments, as long as there is room. Each set is listed under
    /// its lock: the list includes the effects of earlier events on its pages; later events come
    /// after it.
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
                    // Counted under the tape's lock, while no thread pins.
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
        let inner = &self.partition.inner;
        inner.shared.unless_forked(|| {
            self.partition.stop_recording();
            *lock(&inner.recorder.tape) = None;
        });
    }
}

const _: () = assert!(PAGE_BITS == crate::state::partition::PAGE_INDEX_BITS);
