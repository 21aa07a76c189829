//! Writes: into the page (write-back), or into the store first and then into the page
//! (write-through).
//!
//! The state of a page's slot serialises writes to the page. A write-through owns the slot during
//! its I/O, while readers still get the old bytes; a write-back owns it only during a copy. If the
//! page's set is full, the write goes to the store immediately, as a stray.

use octavo_disk::IoError;
use octavo_table::{Found, SetGuard, SlotIndex, State, Tag, Word};

use super::lane::{Lane, Work};
use super::owner::Owner;
use super::task::{Kind, Pages, Role, Span, Transfer, TransferPage};
use super::transfers::run_pages_max;
use super::writeback;
use crate::config::CacheMode;
use crate::memory::{Bounce, copy};
use crate::pages::steps::{Claimed, Claiming, Superseded};
use crate::position::PageIndex;
use crate::state::counters::Count;
use crate::state::partition::PartitionInner;
use crate::ways::WAYS;

/// Number of times that a page is tried before its task gives way and tries again later.
const TRIES: usize = 4;

/// The outcome of one try of a page.
enum Look {
    /// The page has the new bytes.
    Done,
    /// The task will be woken: by a fill, by the owner of the page, or by the bounce pool.
    Later,
    /// The task owns the slot. The bytes go to the store first; `role` says what happens when the
    /// store has them.
    Store { slot: SlotIndex, role: Role },
    /// The partition has reached its limit of dirty pages: write the page through.
    StoreFirst,
    /// The page is dirty and pinned, and its set is full: write it back first, so that it can be
    /// dropped.
    CleanFirst,
    /// The page's state has changed in the meantime: look again.
    Again,
}

/// One page of a write, while it is tried.
struct Attempt<'o, 'a> {
    owner: &'o mut Owner<'a>,
    partition: &'a PartitionInner,
    page: PageIndex,
    tag: Tag,
    span: Span,
    /// Whether the write covers all bytes of the page that lie inside the object. Computed under
    /// the set's lock, before a slot is claimed.
    whole: bool,
}

/// Tries one page of a write, and the pages after it that go to the store in the same I/O.
pub(crate) fn page(owner: &mut Owner<'_>, page: PageIndex, first: bool) {
    let mut attempt = Attempt::new(owner, page);
    let partition = attempt.partition;
    if attempt.is_cut() {
        return;
    }
    if first {
        partition.count_first_write(attempt.tag, attempt.span.len);
    }
    if partition.mode == CacheMode::Writeback {
        match attempt.try_often(Attempt::write_page) {
            Look::StoreFirst | Look::CleanFirst => {}
            _ => return,
        }
    }
    // Write to the store first. Take bounce pages before slots: a task that waits for a bounce page
    // owns no slot.
    let task = owner.task();
    let adjacent = if page + 1 == task.next { task.end - page } else { 1 };
    let wanted = adjacent.min(run_pages_max(&task.object) as u64) as usize;
    let Some(mut bounce) = owner.take_bounce(page, wanted) else { return };
    let mut run: Option<Pages> = None;
    let mut taken = 0;
    while taken < bounce.pages {
        let at = page + taken as u64;
        let mut attempt = Attempt::new(owner, at);
        if taken > 0 {
            // The next page of the run is tried here, so the task's cursor skips it.
            attempt.owner.task().next += 1;
            partition.count_first_write(attempt.tag, attempt.span.len);
        }
        match attempt.try_often(|attempt| attempt.store_page(&mut bounce, taken)) {
            Look::Store { slot, role } => {
                let held = TransferPage { slot: Some(slot), task: owner.id, role, version: 0 };
                Pages::extend(&mut run, held);
            }
            Look::CleanFirst => {
                let mut own = bounce.split_off(taken);
                own.shorten(1);
                writeback::begin_one(owner, at, own);
                break;
            }
            _ => break,
        }
        taken += 1;
    }
    let Some(pages) = run else { return };
    bounce.shorten(taken);
    owner.push(Kind::Store, page, pages, Some(bounce));
}

impl<'o, 'a> Attempt<'o, 'a> {
    fn new(owner: &'o mut Owner<'a>, page: PageIndex) -> Self {
        let (tag, span) = (owner.object.tag(page), owner.task().span(page));
        Attempt { partition: &owner.object.partition, owner, page, tag, span, whole: false }
    }

    fn covers_all(&self) -> bool {
        let Span { skip, len, .. } = self.span;
        let end = self.partition.page_size.start_of(self.page) + (skip + len) as u64;
        skip == 0 && (len == self.partition.page_bytes() || end.0 >= self.owner.object.len_bytes())
    }

    /// Tries a page a few times. If its state keeps changing, lets the task try it again later, so
    /// that no thread loops forever.
    fn try_often(&mut self, mut look: impl FnMut(&mut Self) -> Look) -> Look {
        for _ in 0..TRIES {
            match look(self) {
                Look::Again => {}
                step => return step,
            }
        }
        self.owner.retry(self.page);
        Look::Later
    }

    /// Write-back: puts the bytes into the page.
    fn write_page(&mut self) -> Look {
        let (partition, table) = (self.partition, &self.partition.table);
        let full_of_dirt = table.dirty_pages() >= partition.dirty_max_pages();
        if let Some(found) = partition.find_near(self.tag)
            && let Some(step) = self.in_place(&found, full_of_dirt)
        {
            return step;
        }
        let guard = table.lock(self.tag);
        if let Some(found) = guard.find(self.tag) {
            return match found.word.state() {
                State::Clean | State::Dirty if found.word.pins() > 0 => {
                    self.supersede(guard, found, full_of_dirt)
                }
                // The page has arrived in the meantime, or has moved to a place where only the
                // guard looks for it.
                State::Clean | State::Dirty => {
                    drop(guard);
                    self.in_place(&found, full_of_dirt).unwrap_or(Look::Again)
                }
                _ => self.wait(found.index, found.word),
            };
        }
        if full_of_dirt {
            return self.too_dirty();
        }
        if self.elsewhere() {
            return Look::Later;
        }
        match partition.claim(guard, self.tag, self.claiming()) {
            Claimed::Resident => Look::Again,
            Claimed::Slot(slot) if self.whole => {
                partition.publish_written(self.tag, slot, true, |frame| self.fill(frame));
                Look::Done
            }
            Claimed::Slot(slot) => {
                self.owner.gather(self.page, slot, Role::Patch);
                Look::Later
            }
            Claimed::Full(guard) => {
                if let Some(bounce) = self.owner.take_bounce(self.page, 1) {
                    self.stray(guard, bounce);
                }
                Look::Later
            }
        }
    }

    /// Returns the purpose of the claim. If the write covers only a part of the page, a fill reads
    /// the rest from the store.
    fn claiming(&self) -> Claiming {
        if self.whole { Claiming::Overwrite } else { Claiming::Fill }
    }

    /// Puts the bytes into a resident page that no thread owns or pins; otherwise returns `None`. A
    /// page that is already dirty may change even if the partition has reached its limit of dirty
    /// pages.
    fn in_place(&self, found: &Found<'_>, full_of_dirt: bool) -> Option<Look> {
        if full_of_dirt && found.word.state() == State::Clean {
            return Some(self.too_dirty());
        }
        self.partition.overwrite(self.tag, found, |frame| self.copy_over(frame)).then_some(Look::Done)
    }

    /// Write-through: puts the bytes into a bounce page, and takes ownership of the page's slot
    /// until the store has them.
    fn store_page(&mut self, bounce: &mut Bounce, number: usize) -> Look {
        let (partition, table) = (self.partition, &self.partition.table);
        let guard = table.lock(self.tag);
        if let Some(found) = guard.find(self.tag) {
            return self.store_resident(guard, found, bounce.at(number));
        }
        if self.elsewhere() {
            return Look::Later;
        }
        match partition.claim(guard, self.tag, self.claiming()) {
            Claimed::Resident => Look::Again,
            Claimed::Slot(slot) if self.whole => {
                self.fill(bounce.at(number));
                Look::Store { slot, role: Role::Publish }
            }
            Claimed::Slot(slot) => {
                self.owner.gather(self.page, slot, Role::Bring);
                Look::Later
            }
            // The stray takes over the bounce page that the task already holds: a task that holds a
            // bounce page never waits for another one.
            Claimed::Full(guard) => {
                let mut own = bounce.split_off(number);
                own.shorten(1);
                self.stray(guard, own);
                Look::Later
            }
        }
    }

    /// Does what `store_page` does, for a resident page.
    fn store_resident(&mut self, guard: SetGuard<'_, WAYS>, found: Found<'_>, bounce: *mut u8) -> Look {
        let (partition, word) = (self.partition, found.word);
        match word.state() {
            State::Clean => {
                if !partition.begin_store(self.tag, &found) {
                    return Look::Again;
                }
                drop(guard);
                let frame = partition.frames.at(found.index);
                // SAFETY: the bounce page is ours; a Storing page's bytes do not change (P8).
                unsafe { copy::copy_out(frame, bounce, partition.page_bytes()) };
                self.copy_over(bounce);
                Look::Store { slot: found.index, role: Role::EndStore }
            }
            // The page has become dirty in the meantime (write-back only), so it may change in
            // place.
            State::Dirty if word.pins() == 0 && !word.writeback() => {
                drop(guard);
                match self.write_page() {
                    // The page is clean again: the next try writes it through.
                    Look::StoreFirst => Look::Again,
                    look => look,
                }
            }
            State::Dirty if word.pins() > 0 && !word.writeback() => self.supersede(guard, found, true),
            _ => self.wait(found.index, word),
        }
    }

    /// Writes to a pinned page: the pins keep the old slot as a snapshot, and the new bytes get
    /// another slot.
    fn supersede(&mut self, guard: SetGuard<'_, WAYS>, found: Found<'_>, full_of_dirt: bool) -> Look {
        if found.word.writeback() {
            return self.wait(found.index, found.word);
        }
        let is_clean = found.word.state() == State::Clean;
        if full_of_dirt && is_clean {
            return self.too_dirty();
        }
        match self.partition.supersede(self.tag, guard, &found, |frame| self.copy_over(frame)) {
            Superseded::Done => Look::Done,
            Superseded::Changed => Look::Again,
            // A clean page can be dropped, because the store has its bytes. A dirty page must be
            // written back first.
            Superseded::Full if is_clean => self.drop_pinned(),
            Superseded::Full => Look::CleanFirst,
        }
    }

    /// Drops a clean, pinned page whose set is full. The next try writes the page as a stray.
    fn drop_pinned(&self) -> Look {
        let mut guard = self.partition.table.lock(self.tag);
        if let Some(found) = guard.find(self.tag)
            && found.word.state() == State::Clean
        {
            let _ = self.partition.drop_quiet(&mut guard, &found, Count::EvictionsWrite);
        }
        Look::Again
    }

    /// Returns whether the object was cut before this page, or closed, since the write was checked.
    /// If so, fails the task.
    fn is_cut(&mut self) -> bool {
        let object = self.owner.object;
        let is_cut = self.partition.page_size.start_of(self.page).0 >= object.len_bytes();
        if is_cut {
            let task = self.owner.task();
            task.fail(object.past_end(task.offset, task.len as u64));
        }
        is_cut
    }

    /// Returns whether the page cannot be claimed now: another task serves it without a slot or has
    /// closed its range (this task is then registered with it), or the page lies past the object's
    /// end (this task has then failed). The caller holds the set's lock.
    fn elsewhere(&mut self) -> bool {
        let registered = self.owner.waits_elsewhere(self.page, self.tag);
        // Read the length under the lock and after the check of the ranges: no change of the length
        // is in progress then. With a stale length, the write could overwrite bytes past a former
        // end with zeros, or bring in a page that a close would miss.
        self.whole = self.covers_all();
        registered || self.is_cut()
    }

    fn wait(&mut self, slot: SlotIndex, seen: Word) -> Look {
        match self.owner.waits(self.page, |waiter| self.partition.wait_for_slot(slot, seen, waiter)) {
            true => Look::Later,
            false => Look::Again,
        }
    }

    fn too_dirty(&self) -> Look {
        self.partition.tell_cleaner(true);
        Look::StoreFirst
    }

    /// Writes a page without a slot straight to the store. If the write covers only a part of the
    /// page, reads the old bytes first.
    fn stray(&mut self, guard: SetGuard<'_, WAYS>, bounce: Bounce) {
        self.partition.begin_stray(guard, self.tag, true);
        if self.whole {
            self.fill(bounce.at(0));
        }
        let kind = if self.whole { Kind::StrayWrite } else { Kind::StrayUpdate };
        self.owner.push(kind, self.page, Pages::none(self.owner.id), Some(bounce));
    }

    /// Copies the caller's bytes over a page: a bounce page, or a frame that this task owns
    /// (Writing or Filling) while optimistic readers may look at it.
    fn copy_over(&self, page: *mut u8) {
        // SAFETY: the page is ours, and the span is the task's memory. `copy_in` allows for racing
        // readers.
        unsafe { self.span.memory.copy_in(page.wrapping_add(self.span.skip), self.span.len) };
    }

    /// Copies the caller's bytes into a page that they cover, and fills the rest of the page (past
    /// the object's end) with zeros.
    fn fill(&self, page: *mut u8) {
        self.copy_over(page);
        let rest = self.partition.page_bytes() - self.span.len;
        // SAFETY: as in `copy_over`.
        unsafe { copy::zero_in(page.wrapping_add(self.span.len), rest) };
    }
}

/// Ends a write-through.
pub(crate) fn stored(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let Transfer { object, page: first, pages, bounce, .. } = transfer;
    let partition = &*object.partition;
    let bounce = bounce.expect("a store travels in bounce pages");
    let id = pages.first().task;
    for (number, held) in pages.iter().enumerate() {
        let slot = held.slot.expect("a store holds slots");
        let tag = object.tag(first + number as u64);
        let write = |frame: *mut u8| {
            // SAFETY: the frame is ours (Filling or Writing), and so is the bounce page.
            unsafe { copy::copy_in(bounce.at(number), frame, partition.page_bytes()) }
        };
        match (&result, held.role) {
            // The store's content is unknown now, so drop the page: the next read gets what the
            // store has.
            (Err(_), _) => partition.release(tag, slot),
            (Ok(()), Role::Publish) => partition.publish_written(tag, slot, false, write),
            (Ok(()), _) => partition.end_store(tag, slot, write),
        }
    }
    if let Err(source) = &result {
        work.tasks[id].fail_io(Count::WriteErrors, source);
    }
    drop(bounce);
    lane.step(work, id);
}
