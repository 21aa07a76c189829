//! Writing: into the page (write-back), or into the store first and then into the page
//! (write-through).
//!
//! Writes to one page are serialised by its slot's state, which is held across the I/O of a
//! write-through; readers go on reading the old bytes until the new ones are in the store. A
//! write-back holds it for the length of a copy. A page that finds no slot is written to the
//! store at once, as a stray.

use std::cell::Cell;

use octavo_disk::{IoBuffer, IoError};
use octavo_table::recording::Step;
use octavo_table::{Claim, Found, SetGuard, SlotIndex, State, Tag, Word};

use crate::WAYS;
use crate::bounce::Bounce;
use crate::clean;
use crate::config::CacheMode;
use crate::copy;
use crate::counters::Count;
use crate::lane::{Gathered, Lane, RUN_PAGES_MAX, Work};
use crate::object::ObjectInner;
use crate::partition::PartitionInner;
use crate::record::place_of;
use crate::sync::Arc;
use crate::task::{Kind, Pages, Role, Span, TaskId, Transfer, TransferPage};

/// How often a page is looked at before its task steps back.
const TRIES: usize = 4;

/// What a look at a page led to.
enum Look {
    /// The page has the bytes.
    Done,
    /// The task will be told: by a fill, by whoever holds the page, or by the bounce pool.
    Later,
    /// The slot is the caller's; its bytes go to the store first. `claimed`: Filling, else Storing.
    Store { slot: SlotIndex, claimed: bool },
    /// Write-back has no room for another dirty page: to the store first, as a write-through.
    StoreFirst,
    /// The page is dirty and pinned, and its set full: what it has goes to the store, then it can
    /// be dropped.
    CleanFirst,
    /// The state changed under our eyes.
    Again,
}

/// One page of a write, as it is tried.
struct Attempt<'a> {
    lane: &'a Arc<Lane>,
    object: &'a Arc<ObjectInner>,
    partition: &'a PartitionInner,
    id: TaskId,
    page: u64,
    tag: Tag,
    span: Span,
    /// The write covers all of the page that lies inside the object; looked at again when a slot is
    /// claimed.
    whole: Cell<bool>,
}

/// Tries one page of a write, and as many of those behind it as go to the store in the same I/O.
pub(crate) fn page(
    lane: &Arc<Lane>,
    work: &mut Work,
    id: TaskId,
    object: &Arc<ObjectInner>,
    page: u64,
    first: bool,
) {
    let mut attempt = Attempt::new(lane, work, id, object, page);
    let partition = attempt.partition;
    if attempt.is_cut(work) {
        return;
    }
    if first {
        let there = partition.count_write(attempt.tag, || partition.find_near(attempt.tag).is_some());
        let bytes = work.tasks[id].span(page).len;
        if there {
            partition.weigh_write(attempt.tag, bytes);
        }
        if partition.places.charged {
            partition.charge_access(attempt.tag, bytes, 1);
        }
    }
    if partition.mode == CacheMode::Writeback {
        match attempt.try_often(work, |attempt, work| attempt.write_page(work)) {
            Look::StoreFirst | Look::CleanFirst => {}
            _ => return,
        }
    }
    // The store first. Bounce pages before slots: whoever waits for one holds nothing.
    let task = &work.tasks[id];
    let adjacent = if page + 1 == task.next { task.end - page } else { 1 };
    let wanted = adjacent.min(RUN_PAGES_MAX as u64) as usize;
    let Some(mut bounce) = lane.shared.bounce.take(&object.bounced, wanted, || lane.waiter(id, page)) else {
        return work.registered(id);
    };
    let mut run: Option<Pages> = None;
    let mut taken = 0;
    while taken < bounce.pages {
        let number = taken;
        let step = attempt.try_often(work, |attempt, work| attempt.store_page(work, &mut bounce, number));
        let (slot, claimed) = match step {
            Look::Store { slot, claimed } => (slot, claimed),
            Look::CleanFirst => {
                let mut own = bounce.split_off(taken);
                own.shorten(1);
                clean::begin_one(lane, work, id, object, attempt.page, own);
                break;
            }
            _ => break,
        };
        let held = TransferPage { slot: Some(slot), task: id, role: Role::Bring, mark: claimed as u64 };
        match &mut run {
            None => run = Some(Pages::one(held)),
            Some(pages) => pages.push(held),
        }
        taken += 1;
        if taken < bounce.pages {
            // The next page of the run is tried here and not by the task's cursor.
            work.tasks[id].next += 1;
            attempt = Attempt::new(lane, work, id, object, page + taken as u64);
            partition.count_write(attempt.tag, || partition.table.find(attempt.tag).is_some());
        }
    }
    let Some(pages) = run else { return };
    bounce.shorten(taken);
    let buffer = [IoBuffer { ptr: bounce.at(0), len: taken * partition.page_bytes() }];
    work.tasks[id].outstanding += 1;
    let transfer = Transfer {
        kind: Kind::Store,
        object: object.clone(),
        page,
        pages,
        bounce: Some(bounce),
        tag: attempt.tag,
    };
    lane.push(work, transfer, octavo_disk::Op::Write, &buffer);
}

impl<'a> Attempt<'a> {
    fn new(lane: &'a Arc<Lane>, work: &Work, id: TaskId, object: &'a Arc<ObjectInner>, page: u64) -> Self {
        let partition = &*object.partition;
        let span = work.tasks[id].span(page);
        let whole = Cell::new(false);
        Attempt { lane, object, partition, id, page, tag: object.tag(page), span, whole }
    }

    fn covers_all(&self) -> bool {
        let Span { skip, len, .. } = self.span;
        let end = (self.page << self.partition.page_shift) + (skip + len) as u64;
        skip == 0 && (len == self.partition.page_bytes() || end >= self.object.len_bytes())
    }

    /// Looks a few times; then lets the task come back later, so that no thread turns for ever.
    fn try_often(&self, work: &mut Work, mut look: impl FnMut(&Self, &mut Work) -> Look) -> Look {
        for _ in 0..TRIES {
            match look(self, work) {
                Look::Again => {}
                step => return step,
            }
        }
        work.tasks[self.id].outstanding += 1;
        self.lane.retry(self.id, self.page);
        Look::Later
    }

    /// Write-back: the bytes go into the page.
    fn write_page(&self, work: &mut Work) -> Look {
        let (partition, table) = (self.partition, &self.partition.table);
        let full_of_dirt = table.dirty_pages() >= partition.dirty_max_pages();
        if let Some(found) = partition.find_near(self.tag)
            && let Some(step) = self.in_place(found, full_of_dirt)
        {
            return step;
        }
        let mut guard = table.lock(self.tag);
        if let Some(found) = guard.find(self.tag) {
            return match found.word.state() {
                State::Clean | State::Dirty if found.word.pins() > 0 => {
                    self.supersede(work, guard, found, full_of_dirt)
                }
                // It has come since, or it has moved to where only the guard looks for it.
                State::Clean | State::Dirty => {
                    drop(guard);
                    self.in_place(found, full_of_dirt).unwrap_or(Look::Again)
                }
                _ => self.wait(work, found.index, found.word),
            };
        }
        if full_of_dirt {
            return self.too_dirty();
        }
        if self.elsewhere(work) {
            return Look::Later;
        }
        match self.claim(&mut guard) {
            Claim::Claimed { slot, evicted } => {
                drop(guard);
                partition.arrived(evicted.is_some());
                if self.whole.get() {
                    partition.overtake(self.tag, table.slot(slot).load());
                    self.fill_whole(slot);
                    partition.publish(slot, true);
                    partition.note_dirty();
                    return Look::Done;
                }
                if partition.elect(self.tag, slot) {
                    return Look::Again;
                }
                self.gather(work, slot, Role::Patch);
                Look::Later
            }
            Claim::Full => {
                let waiter = || self.lane.waiter(self.id, self.page);
                match self.lane.shared.bounce.take(&self.object.bounced, 1, waiter) {
                    Some(bounce) => self.stray(work, guard, bounce),
                    None => {
                        work.registered(self.id);
                        Look::Later
                    }
                }
            }
        }
    }

    /// The bytes go into a page that is there, if nobody has it in hands or pinned. A dirty page
    /// may change whatever the limit says.
    fn in_place(&self, found: Found<'_>, full_of_dirt: bool) -> Option<Look> {
        let (partition, table) = (self.partition, &self.partition.table);
        if full_of_dirt && found.word.state() == State::Clean {
            return Some(self.too_dirty());
        }
        // The recording has the write as one step, so that no move finds the page busy that a
        // replay would find quiet.
        let note = partition.note();
        let before = found.slot().begin_write(found.word).ok()?;
        partition.overtake(self.tag, before);
        self.copy_into(found.index);
        table.touch(&found);
        let waited = table.end_write(found.index, before, true);
        note.step(self.tag, || Step::Overwrite);
        if waited {
            partition.waiters.wake(found.index);
        }
        partition.note_dirty();
        if partition.places.replicates {
            partition.wrote(self.tag, &found, before);
        }
        Some(Look::Done)
    }

    /// P1.
    fn claim(&self, guard: &mut SetGuard<'_, WAYS>) -> Claim {
        let note = self.partition.note();
        let claim = guard.claim(self.tag);
        note.claimed(self.tag, &claim);
        claim
    }

    /// P8: takes a clean page for the store, and tells the policy. False: its state has changed.
    fn begin_store(&self, found: &Found<'_>) -> bool {
        let note = self.partition.note();
        if found.slot().begin_store(found.word).is_err() {
            return false;
        }
        self.partition.table.touch(found);
        note.step(self.tag, || Step::BeginStore);
        true
    }

    /// Write-through: the bytes go into a bounce page, and the slot is held for them.
    fn store_page(&self, work: &mut Work, bounce: &mut Bounce, number: usize) -> Look {
        let (partition, table) = (self.partition, &self.partition.table);
        let mut guard = table.lock(self.tag);
        if let Some(found) = guard.find(self.tag) {
            return match found.word.state() {
                State::Clean => match self.begin_store(&found) {
                    true => {
                        drop(guard);
                        // SAFETY: the bounce page is ours; a Storing page's bytes do not change (P8).
                        unsafe {
                            copy::copy_out(
                                partition.frames.at(found.index),
                                bounce.at(number),
                                partition.page_bytes(),
                            )
                        };
                        self.copy_over(bounce.at(number));
                        Look::Store { slot: found.index, claimed: false }
                    }
                    false => Look::Again,
                },
                // It became dirty meanwhile (write-back only): then it may change in place.
                State::Dirty if found.word.pins() == 0 && !found.word.writeback() => {
                    drop(guard);
                    match self.write_page(work) {
                        // Clean again by now: the next look stores it.
                        Look::StoreFirst => Look::Again,
                        step => step,
                    }
                }
                State::Dirty if found.word.pins() > 0 && !found.word.writeback() => {
                    self.supersede(work, guard, found, true)
                }
                _ => self.wait(work, found.index, found.word),
            };
        }
        if self.elsewhere(work) {
            return Look::Later;
        }
        match self.claim(&mut guard) {
            Claim::Claimed { slot, evicted } => {
                drop(guard);
                partition.arrived(evicted.is_some());
                if !self.whole.get() {
                    if partition.elect(self.tag, slot) {
                        return Look::Again;
                    }
                    self.gather(work, slot, Role::Bring);
                    return Look::Later;
                }
                self.fill_bounce(bounce.at(number));
                Look::Store { slot, claimed: true }
            }
            // The bounce page at hand is the stray's: whoever holds one does not wait for another.
            Claim::Full => {
                let mut own = bounce.split_off(number);
                own.shorten(1);
                self.stray(work, guard, own)
            }
        }
    }

    /// A write to a pinned page: the pins keep the old slot as a snapshot, and the new bytes get
    /// another.
    fn supersede(
        &self,
        work: &mut Work,
        mut guard: SetGuard<'_, WAYS>,
        found: Found<'_>,
        full_of_dirt: bool,
    ) -> Look {
        let partition = self.partition;
        if found.word.writeback() {
            return self.wait(work, found.index, found.word);
        }
        if full_of_dirt && found.word.state() == State::Clean {
            return self.too_dirty();
        }
        let note = partition.note();
        let claim = guard.claim_beside(self.tag);
        let place = place_of(&claim);
        let Claim::Claimed { slot, evicted } = claim else {
            note.step(self.tag, || Step::Supersede(place));
            // No other way is free. A clean page can be dropped: its bytes are in the store. A dirty one is
            // written back first.
            drop(guard);
            return match found.word.state() {
                State::Clean => self.drop_pinned(),
                _ => Look::CleanFirst,
            };
        };
        partition.arrived(evicted.is_some());
        let old = found.index;
        let Ok(taken) = found.slot().begin_move(found.word) else {
            let waited = guard.remove(slot);
            note.step(self.tag, || Step::SupersedeRefused(place));
            drop(guard);
            partition.counters.add(Count::Departures, 1);
            if waited {
                partition.waiters.wake(slot);
            }
            return Look::Again;
        };
        partition.overtake(self.tag, taken);
        partition.overtake(self.tag, partition.table.slot(slot).load());
        // SAFETY: the old frame holds still (Writing, and pins only read), the new one is ours (Filling).
        unsafe { copy::copy_in(partition.frames.at(old), partition.frames.at(slot), partition.page_bytes()) };
        self.copy_into(slot);
        let waited_new = partition.table.publish(slot, true);
        let waited_old = guard.remove_moved(old, taken);
        note.step(self.tag, || Step::Supersede(place));
        drop(guard);
        partition.counters.add(Count::EvictionsWrite, 1);
        [(waited_new, slot), (waited_old, old)]
            .iter()
            .filter(|w| w.0)
            .for_each(|w| partition.waiters.wake(w.1));
        partition.note_dirty();
        Look::Done
    }

    /// A clean, pinned page whose set is full: the slot goes, and the page is written as one that
    /// has none.
    fn drop_pinned(&self) -> Look {
        let partition = self.partition;
        let mut guard = partition.table.lock(self.tag);
        let note = partition.note();
        if let Some(found) = guard.find(self.tag)
            && found.word.state() == State::Clean
            && guard.remove_quiet(&found, false).is_ok()
        {
            note.step(self.tag, || Step::Drop { even_dirty: false });
            partition.counters.add(Count::EvictionsWrite, 1);
        }
        Look::Again
    }

    /// Whether the object was cut, or closed, while this write was on its way; then it fails.
    fn is_cut(&self, work: &mut Work) -> bool {
        let is_cut = self.page << self.partition.page_shift >= self.object.len_bytes();
        if is_cut {
            let task = &mut work.tasks[self.id];
            task.fail(self.object.past_end(task.offset, task.len as u64));
        }
        is_cut
    }

    /// Whether somebody serves the page without a slot, or clears its range; then the task is
    /// registered there. Or the page is no more. Under the set's lock.
    fn elsewhere(&self, work: &mut Work) -> bool {
        let waiter = || self.lane.waiter(self.id, self.page);
        let registered =
            self.partition.strays.wait(self.tag, waiter) || self.object.ranges.wait(self.page, waiter);
        if registered {
            work.registered(self.id);
        }
        // Under the lock and after the look at the ranges, so that no change of the length is on its way:
        // what lies behind an end that is no more must be kept, and what is brought in now is not
        // looked for by who closes the object.
        self.whole.set(self.covers_all());
        registered || self.is_cut(work)
    }

    fn wait(&self, work: &mut Work, slot: SlotIndex, seen: Word) -> Look {
        match self.partition.wait_for(self.lane, work, self.id, self.page, slot, seen) {
            true => Look::Later,
            false => Look::Again,
        }
    }

    fn too_dirty(&self) -> Look {
        self.partition.tell_cleaner(true);
        Look::StoreFirst
    }

    /// The page has no slot: straight to the store (its old bytes first, where the write does not
    /// cover them).
    fn stray(&self, work: &mut Work, guard: SetGuard<'_, WAYS>, bounce: Bounce) -> Look {
        let (partition, id, page) = (self.partition, self.id, self.page);
        guard.overtake_orphans(self.tag);
        partition.strays.add(self.tag);
        drop(guard);
        partition.tell_cleaner(true);
        partition.counters.add(Count::Bypasses, 1);
        let (kind, op) = match self.whole.get() {
            true => (Kind::StrayWrite, octavo_disk::Op::Write),
            false => (Kind::StrayUpdate, octavo_disk::Op::Read),
        };
        if self.whole.get() {
            self.fill_bounce(bounce.at(0));
        }
        let buffer = [IoBuffer { ptr: bounce.at(0), len: partition.page_bytes() }];
        let pages = Pages::one(TransferPage { slot: None, task: id, role: Role::Bring, mark: 0 });
        let transfer =
            Transfer { kind, object: self.object.clone(), page, pages, bounce: Some(bounce), tag: self.tag };
        work.tasks[id].outstanding += 1;
        self.lane.push(work, transfer, op, &buffer);
        Look::Later
    }

    fn gather(&self, work: &mut Work, slot: SlotIndex, role: Role) {
        work.tasks[self.id].outstanding += 1;
        let object = self.object.clone();
        work.gathered.push(Gathered { object, page: self.page, slot, task: self.id, role });
    }

    /// The caller's bytes into a frame that is ours (Writing or Filling); optimistic readers may be
    /// looking.
    fn copy_into(&self, slot: SlotIndex) {
        let frame = self.partition.frames.at(slot).wrapping_add(self.span.skip);
        // SAFETY: we own the slot, and the span is the task's memory; racing readers are allowed for by
        // `copy_in`.
        unsafe { copy::copy_in(self.span.memory, frame, self.span.len) };
    }

    /// The caller's bytes into a claimed frame, and zeros behind them (past the object's end).
    fn fill_whole(&self, slot: SlotIndex) {
        self.copy_into(slot);
        let rest = self.partition.page_bytes() - self.span.len;
        // SAFETY: as in `copy_into`.
        unsafe { copy::zero_in(self.partition.frames.at(slot).wrapping_add(self.span.len), rest) };
    }

    /// The caller's bytes over a bounce page's.
    fn copy_over(&self, bounce: *mut u8) {
        // SAFETY: the bounce page is ours, the span is the task's.
        unsafe { copy::copy_in(self.span.memory, bounce.wrapping_add(self.span.skip), self.span.len) };
    }

    fn fill_bounce(&self, bounce: *mut u8) {
        self.copy_over(bounce);
        let rest = self.partition.page_bytes() - self.span.len;
        // SAFETY: the bounce page is ours.
        unsafe { copy::zero_in(bounce.wrapping_add(self.span.len), rest) };
    }
}

/// A write-through has reached the store, or has not.
pub(crate) fn stored(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let Transfer { object, page: first, pages, bounce, .. } = transfer;
    let partition = &*object.partition;
    let bounce = bounce.expect("a store travels in bounce pages");
    let id = pages.iter().next().expect("a transfer has pages").task;
    for (number, held) in pages.iter().enumerate() {
        let slot = held.slot.expect("a store holds slots");
        let tag = object.tag(first + number as u64);
        let claimed = held.mark == 1;
        if result.is_err() {
            // What the store holds now is unknown: the page goes, and the next read finds out.
            partition.release(tag, slot);
            continue;
        }
        let frame = partition.frames.at(slot);
        if claimed {
            partition.overtake(tag, partition.table.slot(slot).load());
            // SAFETY: a claimed frame is ours (P1); the bounce page is ours.
            unsafe { copy::copy_in(bounce.at(number), frame, partition.page_bytes()) };
            partition.publish(slot, false);
        } else if let Some(taken) = partition.table.slot(slot).store_to_write() {
            partition.overtake(tag, taken);
            // SAFETY: the slot is Writing, and ours; the bounce page is ours.
            unsafe { copy::copy_in(bounce.at(number), frame, partition.page_bytes()) };
            let note = partition.note();
            let waited = partition.table.slot(slot).end_write(false);
            note.step(tag, || Step::EndStore);
            if waited {
                partition.waiters.wake(slot);
            }
        } else {
            // Pinned: the pins keep their snapshot, and the next read fetches the new bytes.
            partition.counters.add(Count::EvictionsWrite, 1);
            partition.remove(tag, slot);
        }
    }
    if let Err(source) = &result {
        partition.counters.add(Count::WriteErrors, 1);
        work.tasks[id].fail(object.io_error(source));
    }
    drop(bounce);
    lane.step(work, id);
}

/// A page without a slot has been written, or has not.
pub(crate) fn stray_written(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let id = transfer.pages.iter().next().expect("a stray is one page").task;
    let partition = &transfer.object.partition;
    if let Err(source) = &result {
        partition.counters.add(Count::WriteErrors, 1);
        work.tasks[id].fail(transfer.object.io_error(source));
    }
    drop(transfer.bounce);
    partition.strays.remove(transfer.tag);
    lane.step(work, id);
}
