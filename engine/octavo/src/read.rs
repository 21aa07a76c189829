//! Reading: the hit without lock or store, the miss with one fill for all who want the page, the
//! bypass.

use octavo_disk::{IoBuffer, IoError};
use octavo_table::recording::Step;
use octavo_table::{Claim, Found, SlotIndex, Tag, Word};

use crate::copy;
use crate::counters::Count;
use crate::error::Error;
use crate::lane::{Gathered, Lane, Work};
use crate::object::ObjectInner;
use crate::partition::PartitionInner;
use crate::record::place_of;
use crate::sync::Arc;
use crate::task::{Job, Kind, Pages, Role, Task, TaskId, Transfer, TransferPage};

/// How often an optimistic copy is tried before the page is pinned.
const OPTIMISTIC_TRIES: usize = 4;

/// From here on a copy is worth asking for its first lines before its slot is confirmed.
const LONG_BYTES: usize = 512;

impl PartitionInner {
    /// P13: copies part of a page, if it is there and holds still. No lock, no system call, no
    /// shared store but the policy's.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes, and `skip + len` is at most a page.
    #[inline(always)]
    pub unsafe fn read_hit(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        let Some(candidate) = self.table.candidate(tag) else { return false };
        if len >= LONG_BYTES {
            // While the slot is on its way, so can be the bytes that it speaks for.
            copy::prefetch_frame(self.frames.at(candidate).wrapping_add(skip), LONG_BYTES);
        }
        // SAFETY: the caller's promise.
        if unsafe {
            self.copy_candidate::<false>(
                candidate,
                tag,
                self.frames.at(candidate).wrapping_add(skip),
                to,
                len,
            )
        } {
            return true;
        }
        // SAFETY: as above.
        unsafe { self.read_hit_again(tag, skip, to, len) }
    }

    /// `read_hit` of up to `copy::INLINE_BYTES`, counted. It calls nothing, so that it saves and
    /// spills nothing: what a hit does next to waiting for memory is what keeps the processor
    /// from beginning the next one. False: nothing is counted, and `read_hit` has to look.
    ///
    /// # Safety
    /// As `read_hit`.
    #[inline(always)]
    pub unsafe fn read_short_hit(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        let Some(counts) = self.counters.at_hand() else { return false };
        let Some(candidate) = self.table.candidate(tag) else { return false };
        let Some(glance) = self.table.glance(candidate, tag) else { return false };
        let frame = self.frames.at(candidate).wrapping_add(skip);
        // SAFETY: as in `copy_found`.
        unsafe { copy::copy_out_inline(frame, to, len) };
        if !glance.is_still_shown() {
            return false;
        }
        self.table.touch_at(&glance, tag);
        counts.add_hit(len as u64);
        true
    }

    /// The other tries of `read_hit`, by P3: the first match was another page's, or somebody was at
    /// a page of the set.
    ///
    /// # Safety
    /// As `read_hit`.
    #[cold]
    #[inline(never)]
    pub unsafe fn read_hit_again(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        for _ in 0..OPTIMISTIC_TRIES {
            let Some(found) = self.table.find(tag) else { return false };
            if !found.word.readable() {
                return false;
            }
            // SAFETY: the caller's promise.
            if unsafe { self.copy_found(&found, skip, to, len) } {
                return true;
            }
        }
        false
    }

    /// `read_hit` where every step of the table is recorded: the look, what the policy is told, the
    /// count and the event are one step. None: not all is
    /// recorded, or pages have copies.
    ///
    /// # Safety
    /// As `read_hit`.
    #[cold]
    #[inline(never)]
    pub unsafe fn read_recorded(
        &self,
        tag: Tag,
        skip: usize,
        to: *mut u8,
        len: usize,
        asks: Asks,
    ) -> Option<bool> {
        let find = || self.table.find(tag).filter(|found| found.word.readable());
        for is_last in (0..OPTIMISTIC_TRIES).map(|attempt| attempt + 1 == OPTIMISTIC_TRIES) {
            // 1. The bytes, which may be gone when they have been copied.
            let copied = find().map(|found| {
                let frame = self.frames.at(found.index).wrapping_add(skip);
                // SAFETY: as in `copy_found`.
                unsafe { copy::copy_out(frame, to, len) };
                found.slot().unchanged(found.word)
            });
            // 2. Whether the page is there now, when nothing else changes.
            let writing = self.writing_all().filter(|_| !self.places.replicates)?;
            let there = find();
            let served = match (copied, &there) {
                (Some(true), Some(_)) => true,
                (None, None) => false,
                // Somebody who looks again counts it.
                _ if asks == Asks::Hits => return Some(false),
                // In a page's last try a writer may be at it still: it is a hit, which is served
                // under the set's lock.
                _ if is_last => false,
                _ => continue,
            };
            if let Some(found) = &there {
                self.table.touch(found);
            }
            match (asks, there.is_some()) {
                (Asks::Hits, false) | (Asks::Again, false) => return Some(false),
                (Asks::Hits, true) => self.counters.add_hit(len as u64),
                (Asks::First, true) => self.counters.add(Count::Hits, 1),
                (Asks::First, false) => self.counters.add(Count::Misses, 1),
                (Asks::Again, true) => {
                    writing.step(tag, Step::Touch);
                    return Some(served);
                }
            }
            self.count_place_of(tag, false, there.is_some());
            writing.access(tag, false, there.is_some());
            return Some(served);
        }
        unreachable!("the last try returns")
    }

    /// Where the bytes for an offset in the object lie, if its page is in this slot.
    #[inline(always)]
    pub fn byte_at(&self, slot: SlotIndex, offset: u64) -> *const u8 {
        self.frames.at(slot).wrapping_add(offset as usize & self.page_mask)
    }

    /// P13 for the first slot with a page's fingerprint. False: it is another page's, or some page
    /// of the set was hidden meanwhile.
    ///
    /// # Safety
    /// `from` lies in the slot's frame, and so do `len` bytes from there on; `to` is valid for as
    /// many. `WIDE` only if `copy::is_wide`.
    #[inline(always)]
    pub unsafe fn copy_candidate<const WIDE: bool>(
        &self,
        candidate: SlotIndex,
        tag: Tag,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> bool {
        let Some(glance) = self.table.glance(candidate, tag) else { return false };
        // SAFETY: as in `copy_found`.
        unsafe { copy::copy_out_known::<WIDE>(from, to, len) };
        let good = glance.is_still_shown();
        if good {
            self.table.touch_at(&glance, tag);
        }
        good
    }

    /// P3 for a page that was found.
    ///
    /// # Safety
    /// As `read_hit`.
    #[inline(always)]
    pub unsafe fn copy_found(&self, found: &Found<'_>, skip: usize, to: *mut u8, len: usize) -> bool {
        let frame = self.frames.at(found.index).wrapping_add(skip);
        // SAFETY: the frame is mapped for the partition's life; the copy may race with a writer, which
        // `copy_out` allows.
        unsafe { copy::copy_out(frame, to, len) };
        let good = found.slot().unchanged(found.word);
        if good {
            self.table.touch(found);
        }
        good
    }
}

/// What is to be counted of a recorded look at a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// A hit, as a request too. Whoever misses looks again.
    Hits,
    /// A hit or a miss.
    First,
    /// Nothing: it was counted before.
    Again,
}

/// Tries one page of a read (or of a populate, which copies nothing).
pub(crate) fn page(
    lane: &Arc<Lane>,
    work: &mut Work,
    id: TaskId,
    object: Arc<ObjectInner>,
    page: u64,
    first: bool,
) {
    let partition = &*object.partition;
    let tag = object.tag(page);
    let wanted = work.tasks[id].job == Job::Read;
    let span = work.tasks[id].span(page);
    // 1. A hit.
    let asks = if first { Asks::First } else { Asks::Again };
    let recorded = match wanted && partition.is_recorded_whole() {
        // SAFETY: the span lies in the task's memory and in one page.
        true => unsafe { partition.read_recorded(tag, span.skip, span.memory, span.len, asks) },
        false => None,
    };
    let hit = match wanted {
        true if let Some(hit) = recorded => hit,
        // SAFETY: the span lies in the task's memory and in one page.
        true if partition.places.replicates => unsafe {
            partition.read_near(tag, span.skip, span.memory, span.len, 1)
        },
        // SAFETY: as above.
        true => unsafe { partition.read_hit(tag, span.skip, span.memory, span.len) },
        false => partition.table.find(tag).is_some(),
    };
    if first && wanted {
        if recorded.is_none() {
            partition.count_access(tag, false, hit);
        }
        if partition.places.charged && !(hit && partition.places.replicates) {
            partition.charge_access(tag, span.len, 1);
        }
    } else if hit && wanted && recorded.is_none() {
        // `read_hit` has told the policy.
        partition.note().step(tag, || Step::Touch);
    }
    if hit {
        return;
    }
    // 2. Under the set's lock nobody can bring the page in or evict it. A turn is repeated when a
    //    writer comes and goes in between; after a few the task steps back and tries again later.
    for _ in 0..OPTIMISTIC_TRIES {
        let mut guard = partition.table.lock(tag);
        if let Some(found) = guard.find(tag) {
            if found.word.readable() {
                // Pinned, it can be copied at leisure.
                let note = partition.note();
                if found.slot().pin(found.word).is_ok() {
                    note.step(tag, || Step::Pin { slot: found.index.0 });
                    drop(guard);
                    if wanted {
                        let frame = partition.frames.at(found.index).wrapping_add(span.skip);
                        // SAFETY: pinned bytes do not change (P6), and the span is the task's.
                        unsafe { copy::copy_out(frame, span.memory, span.len) };
                        let note = partition.note();
                        partition.table.touch(&found);
                        note.step(tag, || Step::Touch);
                    }
                    let note = partition.note();
                    partition.unpin(found.index);
                    note.unpinned(found.index);
                    return;
                }
                continue;
            }
            if !wanted {
                return;
            }
            if partition.wait_for(lane, work, id, page, found.index, found.word) {
                return;
            }
            continue;
        }
        // 3. Not here. Perhaps somebody serves it without a slot, or clears its range.
        let busy = partition.strays.wait(tag, || lane.waiter(id, page))
            || object.ranges.wait(page, || lane.waiter(id, page));
        if busy {
            work.registered(id);
            return;
        }
        // 4. Bring it in; where the set has no place, read around it.
        let note = partition.note();
        let is_once = object.streams.is_once();
        let claim = if is_once { guard.claim_once(tag) } else { guard.claim(tag) };
        let place = || place_of(&claim);
        note.step(tag, || if is_once { Step::ClaimOnce(place()) } else { Step::Claim(place()) });
        match claim {
            Claim::Claimed { slot, evicted } => {
                drop(guard);
                partition.arrived(evicted.is_some());
                if partition.elect(tag, slot) {
                    continue;
                }
                let role = if wanted { Role::Deliver } else { Role::Bring };
                work.tasks[id].outstanding += 1;
                work.gathered.push(Gathered { object, page, slot, task: id, role });
            }
            Claim::Full if !wanted => {}
            Claim::Full => match lane.shared.bounce.take(&object.bounced, 1, || lane.waiter(id, page)) {
                None => work.registered(id),
                Some(bounce) => {
                    partition.strays.add(tag);
                    drop(guard);
                    partition.tell_cleaner(true);
                    partition.counters.add(Count::Bypasses, 1);
                    work.tasks[id].outstanding += 1;
                    let buffer = [IoBuffer { ptr: bounce.at(0), len: partition.page_bytes() }];
                    let pages =
                        Pages::one(TransferPage { slot: None, task: id, role: Role::Deliver, mark: 0 });
                    let transfer = Transfer {
                        kind: Kind::StrayRead,
                        object: object.clone(),
                        page,
                        pages,
                        bounce: Some(bounce),
                        tag,
                    };
                    lane.push(work, transfer, octavo_disk::Op::Read, &buffer);
                }
            },
        }
        return;
    }
    work.tasks[id].outstanding += 1;
    lane.retry(id, page);
}

/// A fill has succeeded: copies its bytes to those who asked for them. `filled` does the rest.
pub(crate) fn deliver(work: &Work, transfer: &Transfer) {
    if transfer.kind != Kind::Fill {
        return;
    }
    for (number, filled) in transfer.pages.iter().enumerate() {
        if let (Role::Deliver, Some(slot)) = (filled.role, filled.slot) {
            let span = work.tasks[filled.task].span(transfer.page + number as u64);
            let frame = transfer.object.partition.frames.at(slot);
            // SAFETY: the frame is ours until `publish` (P1, P2), and the span is the task's own memory.
            unsafe { copy::copy_out(frame.wrapping_add(span.skip), span.memory, span.len) }
        }
    }
}

/// A fill has ended, and was delivered: publish, tell those who wait.
pub(crate) fn filled(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let partition = &*transfer.object.partition;
    if result.is_err() && transfer.pages.count() > 1 {
        return split(lane, work, transfer);
    }
    for (number, filled) in transfer.pages.iter().enumerate() {
        let page = transfer.page + number as u64;
        let slot = filled.slot.expect("a fill holds slots");
        let task = &mut work.tasks[filled.task];
        if let Err(source) = &result {
            partition.counters.add(Count::ReadErrors, 1);
            partition.release(transfer.object.tag(page), slot);
            if !matches!(task.job, Job::Populate | Job::Ahead) {
                task.fail(transfer.object.io_error(source));
            }
            lane.step(work, filled.task);
            continue;
        }
        partition.counters.add(Count::Fills, 1);
        if filled.role == Role::Patch {
            partition.overtake(transfer.object.tag(page), partition.table.slot(slot).load());
            let span = task.span(page);
            let frame = partition.frames.at(slot);
            // SAFETY: the frame is ours until `publish` (P1, P2), and the span is the task's own memory.
            unsafe { copy::copy_in(span.memory, frame.wrapping_add(span.skip), span.len) }
        }
        partition.publish(slot, filled.role == Role::Patch);
        if filled.role == Role::Patch {
            // Now, and not when the slot was claimed: the cleaner looks for pages that are dirty, and sleeps
            // if there is none.
            partition.note_dirty();
        }
        match (filled.role, task.job) {
            // A part of a page that goes to the store first: now that the rest is here, try again.
            (Role::Bring, Job::Write { .. } | Job::Clear { .. }) => lane.retry(filled.task, page),
            _ => lane.step(work, filled.task),
        }
    }
}

/// A long I/O has failed: read each of its pages alone, so that a bad block costs only its own
/// page.
fn split(lane: &Lane, work: &mut Work, transfer: Transfer) {
    let partition = &transfer.object.partition;
    for (number, filled) in transfer.pages.iter().enumerate() {
        let slot = filled.slot.expect("a fill holds slots");
        let buffer = [IoBuffer { ptr: partition.frames.at(slot), len: partition.page_bytes() }];
        let alone = Transfer {
            kind: Kind::Fill,
            object: transfer.object.clone(),
            page: transfer.page + number as u64,
            pages: Pages::one(filled),
            bounce: None,
            tag: Tag::default(),
        };
        lane.push(work, alone, octavo_disk::Op::Read, &buffer);
    }
    lane.ring.submit();
}

/// The bytes of a page without a slot have come.
pub(crate) fn stray_came(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let Transfer { kind, object, page, pages, bounce, tag } = transfer;
    let partition = object.partition.clone();
    let bounce = bounce.expect("a stray has a bounce page");
    let id = pages.iter().next().expect("a stray is one page").task;
    let task: &mut Task = &mut work.tasks[id];
    let span = task.span(page);
    let bytes = bounce.at(0).wrapping_add(span.skip);
    match (result, kind) {
        (Err(source), _) => {
            partition.counters.add(Count::ReadErrors, 1);
            task.fail(object.io_error(&source));
        }
        (Ok(()), Kind::StrayRead) => {
            // SAFETY: the bounce page is ours, the span is the task's.
            unsafe { copy::copy_out(bytes, span.memory, span.len) };
        }
        (Ok(()), _) => {
            // SAFETY: as above.
            unsafe { copy::copy_in(span.memory, bytes, span.len) };
            let buffer = [IoBuffer { ptr: bounce.at(0), len: partition.page_bytes() }];
            let transfer =
                Transfer { kind: Kind::StrayWrite, object, page, pages, bounce: Some(bounce), tag };
            lane.push(work, transfer, octavo_disk::Op::Write, &buffer);
            lane.ring.submit();
            return;
        }
    }
    drop(bounce);
    partition.strays.remove(tag);
    lane.step(work, id);
}

impl ObjectInner {
    /// An error of the store, with the object's name.
    pub fn io_error(&self, source: &IoError) -> Error {
        Error::Io { object: self.name.clone(), source: source.clone() }
    }
}

impl PartitionInner {
    /// A page has taken a slot.
    pub fn arrived(&self, evicted: bool) {
        self.counters.add(Count::Arrivals, 1);
        if evicted {
            self.counters.add(Count::EvictionsCapacity, 1);
        }
    }

    /// P2, and whoever waits is told.
    pub fn publish(&self, slot: octavo_table::SlotIndex, dirty: bool) {
        let note = self.note();
        let waited = self.table.publish(slot, dirty);
        note.step_of(slot, || Step::Publish { dirty });
        if waited {
            self.waiters.wake(slot);
        }
    }

    /// P9 for a slot that the caller owns: its page is gone, and whoever waits is told.
    pub fn release(&self, tag: Tag, slot: octavo_table::SlotIndex) {
        self.counters.add(Count::Departures, 1);
        self.remove(tag, slot);
    }

    /// P9, and whoever waits is told.
    pub fn remove(&self, tag: Tag, slot: octavo_table::SlotIndex) {
        let mut guard = self.table.lock(tag);
        let note = self.note();
        let waited = guard.remove(slot);
        note.step(tag, || Step::Release);
        drop(guard);
        if waited {
            self.waiters.wake(slot);
        }
    }

    /// P5.
    pub fn unpin(&self, slot: octavo_table::SlotIndex) {
        self.table.slot(slot).unpin();
    }

    /// Registers a task with a slot that somebody else has in hands. False: its state has ended,
    /// look again.
    pub fn wait_for(
        &self,
        lane: &Arc<Lane>,
        work: &mut Work,
        id: TaskId,
        page: u64,
        slot: octavo_table::SlotIndex,
        seen: Word,
    ) -> bool {
        let registered = self.waiters.register(&self.table, slot, seen, || lane.waiter(id, page)).is_ok();
        if registered {
            work.registered(id);
        }
        registered
    }
}
