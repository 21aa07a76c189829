//! Clearing a range: discard and zero. Afterwards it reads as zeros; if the store refuses, nothing
//! that was acknowledged is lost.
//!
//! - **C1 edges**: parts of pages at the range's ends are written with zeros, as any write is.
//! - **C2 close**: the whole pages are closed ([`Ranges`](crate::waiters::Ranges)): nothing is
//!   brought in there, no page becomes dirty.
//! - **C3 take**: every page of the range that is there is taken, under its set's lock. A clean one
//!   is dropped, for the store has its bytes; a dirty one is held (P14): readers go on with its
//!   bytes, writes and syncs wait. The range ends before the first page that is in somebody's hands
//!   (a fill, a write, a write-back, a stray): what was taken behind it is given back. If nothing
//!   is left the task registers with that page, and begins again at C2 when it is told.
//! - **C4 tell**: the store clears the range: one I/O, through the ring.
//! - **C5 cleared**: held pages are dropped. **C6 refused**: they are dirty again, in the version
//!   that they had; what the store holds for the clean ones is unknown, zeros or what was there,
//!   and the next read finds out.
//! - **C7 open**: whoever waited goes on, and the clearing with what is left of its range.
//!
//! So while a clearing holds anything, its I/O is in flight, and whoever takes the completion does
//! C5 to C7: nobody waits for the thread that began it. Between C3 and C7 a read sees the old bytes
//! of a held page, or waits; zeros are seen after C7 only. A write to a page of the range
//! comes before C2 or after C7, and so does a write-back, so that no older bytes reach the store
//! after the zeros.
//!
//! What is not here: how a store clears (`octavo_disk`), lengths and letting go (`range.rs`).

use std::ops::Range;

use octavo_disk::IoError;
use octavo_table::recording::Step;
use octavo_table::{Found, SetGuard, SlotIndex, State, Tag, Word};

use crate::WAYS;
use crate::config::PAGE_BYTES_MAX;
use crate::counters::Count;
use crate::error::Error;
use crate::lane::{Lane, RESUME, Work};
use crate::object::{Object, ObjectInner};
use crate::partition::PartitionInner;
use crate::sync::{Arc, lock};
use crate::task::{Job, Kind, Pages, Role, Task, TaskId, Transfer, TransferPage};
use crate::write;

/// What edges are written with; only ever read.
static ZEROS: [u8; PAGE_BYTES_MAX] = [0; PAGE_BYTES_MAX];

/// What is left of a clearing.
pub(crate) struct Clear {
    /// How the store is told.
    op: octavo_disk::Op,
    /// The pages of which a part is cleared.
    edges: Vec<u64>,
    /// The whole pages.
    whole: Range<u64>,
    /// Where it ends in bytes; that may be the object's end, and inside the last of the whole
    /// pages.
    end_bytes: u64,
    /// A piece of the whole pages is at the store.
    in_flight: bool,
}

impl Clear {
    /// Whether nothing is left to begin.
    pub fn is_begun(&self) -> bool {
        self.edges.is_empty() && self.whole.is_empty()
    }
}

impl Object {
    /// The range reads as zeros afterwards, and the store may give its space back. Where the store
    /// refuses it fails: each byte is what it was, or zero.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.run_clear(octavo_disk::Op::Discard, offset, len)
    }

    /// The range reads as zeros afterwards; its space stays allocated where the store can do that.
    /// Fails as [`discard`](Object::discard) does.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.run_clear(octavo_disk::Op::Zero, offset, len)
    }

    fn run_clear(&self, op: octavo_disk::Op, offset: u64, len: u64) -> Result<(), Error> {
        let task = self.clear_task(op, offset, len, false)?;
        self.0.partition.shared.lane()?.run(task)
    }

    /// The task that clears a range.
    pub(crate) fn clear_task(
        &self,
        op: octavo_disk::Op,
        offset: u64,
        len: u64,
        durable: bool,
    ) -> Result<Task, Error> {
        let inner = &self.0;
        inner.check_writable()?;
        inner.check(offset, len)?;
        if durable {
            inner.check_not_failed()?;
        }
        let page_bytes = inner.partition.page_bytes() as u64;
        let page_of = |offset: u64| offset >> inner.partition.page_shift;
        let end = offset + len;
        let first = offset.next_multiple_of(page_bytes);
        let last = if end == inner.len_bytes() { end } else { inner.partition.page_start(end) };
        let mut edges = Vec::new();
        if offset < first.min(end) {
            edges.push(page_of(offset));
        }
        // In the page that begins the range, too, there may be nothing but an edge.
        if last.max(first) < end {
            edges.push(page_of(end));
        }
        let whole = if first < last { page_of(first)..page_of(last + page_bytes - 1) } else { 0..0 };
        let mut task =
            Task::new(Job::Clear { durable }, inner.clone(), offset, std::ptr::null_mut(), len as usize);
        // Its pages are the clearing's matter, not the cursor's.
        (task.next, task.end) = (0, 0);
        task.clear = Some(Box::new(Clear { op, edges, whole, end_bytes: end, in_flight: false }));
        Ok(task)
    }
}

/// Where the zeros of an edge lie.
pub(crate) fn zeros() -> *mut u8 {
    ZEROS.as_ptr().cast_mut()
}

/// Goes on with a clearing as far as it can go.
pub(crate) fn advance(lane: &Arc<Lane>, work: &mut Work, id: TaskId, object: &Arc<ObjectInner>) {
    let task = &mut work.tasks[id];
    let Some(clear) = &mut task.clear else { return };
    if task.error.is_some() {
        (clear.edges, clear.whole) = (Vec::new(), 0..0);
        return task.again.clear();
    }
    // C1.
    let tried = std::mem::take(&mut task.again);
    let edges = std::mem::take(&mut clear.edges);
    tried.into_iter().for_each(|page| write::page(lane, work, id, object, page, false));
    edges.into_iter().for_each(|page| write::page(lane, work, id, object, page, true));
    // C2 to C4, one piece at a time: the next is begun by whoever ends this one.
    let Some(clear) = &mut work.tasks[id].clear else { return };
    if clear.whole.is_empty() || clear.in_flight {
        return;
    }
    let (op, pages) = (clear.op, clear.whole.clone());
    if !object.ranges.close(pages.clone(), || lane.waiter(id, RESUME)) {
        return work.registered(id);
    }
    // It was cut, or closed, while the task was on its way. While the range is closed that cannot
    // happen.
    let task = &work.tasks[id];
    if let Err(error) = object.check(task.offset, task.len as u64) {
        object.ranges.open(&pages);
        work.tasks[id].fail(error);
        return again(lane, work, id);
    }
    let Some(clear) = &mut work.tasks[id].clear else { return };
    // The object has grown since it ended in the last page: that one is an edge. While the range is
    // closed its length stays.
    let is_longer = object.len_bytes() > clear.end_bytes;
    if is_longer && pages.end << object.partition.page_shift > clear.end_bytes {
        clear.whole.end -= 1;
        clear.edges.push(clear.whole.end);
        object.ranges.open(&pages);
        return again(lane, work, id);
    }
    let busy = object.take_pages(&pages);
    let end = busy.as_ref().map_or(pages.end, |busy| busy.page);
    if end < pages.end {
        object.give_back(&(end..pages.end));
        object.ranges.shorten(&pages, end);
    }
    if let Some(busy) = busy.filter(|busy| busy.page == pages.start) {
        return match busy.register(object, || lane.waiter(id, RESUME)) {
            true => work.registered(id),
            false => again(lane, work, id),
        };
    }
    if let Some(clear) = &mut work.tasks[id].clear {
        clear.in_flight = true;
    }
    work.tasks[id].outstanding += 1;
    let held = TransferPage { slot: None, task: id, role: Role::Bring, mark: end };
    let transfer = Transfer {
        kind: Kind::Clear,
        object: object.clone(),
        page: pages.start,
        pages: Pages::one(held),
        bounce: None,
        tag: Tag::default(),
    };
    lane.push_clear(work, transfer, op, pages.start..end);
}

/// Lets the task look again.
fn again(lane: &Lane, work: &mut Work, id: TaskId) {
    work.tasks[id].outstanding += 1;
    lane.retry(id, RESUME);
}

/// The store has cleared a piece of a range, or has not: C5 to C7.
pub(crate) fn cleared(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let object = &transfer.object;
    let held = transfer.pages.first();
    let pages = transfer.page..held.mark;
    match result.is_ok() {
        true => drop(object.drop_held(&pages)),
        false => drop(object.give_back(&pages)),
    }
    object.ranges.open(&pages);
    let task = &mut work.tasks[held.task];
    let clear = task.clear.as_mut().expect("a clearing's task");
    clear.in_flight = false;
    clear.whole.start = pages.end;
    let is_whole = clear.whole.is_empty();
    if let Err(source) = result {
        object.partition.counters.add(Count::WriteErrors, 1);
        task.fail(object.io_error(&source));
    }
    match is_whole || task.error.is_some() {
        true => lane.step(work, held.task),
        // What is left is the owner's to begin; nothing is held meanwhile.
        false => lane.retry(held.task, RESUME),
    }
}

/// A page that cannot be taken now.
pub(crate) struct Busy {
    page: u64,
    /// Where it is; none if it is a stray.
    slot: Option<(SlotIndex, Word)>,
}

impl Busy {
    /// Registers with whoever has the page. False: nobody has it any more.
    pub fn register(&self, object: &ObjectInner, waiter: impl FnOnce() -> crate::lane::Waiter) -> bool {
        let partition = &*object.partition;
        match self.slot {
            Some((slot, word)) if word.owned() || word.writeback() => {
                partition.waiters.register(&partition.table, slot, word, waiter).is_ok()
            }
            Some(_) => false,
            None => partition.strays.wait(object.tag(self.page), waiter),
        }
    }
}

impl ObjectInner {
    /// Shows the pages of a range that are there, with their sets locked: each by its own lookup,
    /// or by a walk where that is shorter.
    pub fn for_each_page(
        &self,
        pages: &Range<u64>,
        mut visit: impl FnMut(&mut SetGuard<'_, WAYS>, Found<'_>, u64),
    ) {
        let partition = &*self.partition;
        if pages.end.saturating_sub(pages.start) <= partition.table.slots_count() / 4 {
            for page in pages.clone() {
                let tag = self.tag(page);
                let mut guard = partition.table.lock(tag);
                if let Some(found) = guard.find(tag) {
                    visit(&mut guard, found, page);
                }
            }
            return;
        }
        // Without moves, for a page that moves could be overlooked in both places.
        let _still = lock(&partition.moves);
        partition.table.for_each_page(|guard, found| {
            let (object, page) = partition.page_of(found.tag());
            if object == self.id && pages.contains(&page) {
                visit(guard, found, page);
            }
        });
    }

    /// C3, for a range that is closed: takes all pages but those that are in somebody's hands, and
    /// tells the first of those.
    pub fn take_pages(&self, pages: &Range<u64>) -> Option<Busy> {
        let partition = &*self.partition;
        let mut busy: Option<Busy> = None;
        let mut meet = |page: u64, slot: Option<(SlotIndex, Word)>| {
            if busy.as_ref().is_none_or(|busy| page < busy.page) {
                busy = Some(Busy { page, slot });
            }
        };
        self.for_each_page(pages, |guard, found, page| {
            let taken = match found.word.state() {
                // Taken already: a walk may show a page twice.
                State::Storing if found.word.held() => Ok(()),
                State::Dirty => found.slot().hold(found.word),
                _ => partition
                    .drop_quiet(guard, &found, false)
                    .map(|_| partition.counters.add(Count::EvictionsDiscard, 1)),
            };
            // Also one that changed under our eyes.
            if let Err(word) = taken {
                meet(page, Some((found.index, word)));
            }
        });
        // Copies of pages that had left before (T7); those of pages that were there go with them.
        self.overtake_orphans(pages);
        // None begins in a closed range.
        let stray = partition.strays.lowest(|tag| {
            let (object, page) = partition.page_of(tag);
            (object == self.id && pages.contains(&page)).then_some(page)
        });
        if let Some(page) = stray {
            meet(page, None);
        }
        busy
    }

    /// Makes sure that no copy of a page that is not there is read any more.
    fn overtake_orphans(&self, pages: &Range<u64>) {
        let partition = &*self.partition;
        if !partition.places.replicates {
            return;
        }
        if pages.end.saturating_sub(pages.start) <= partition.table.slots_count() / 4 {
            pages.clone().map(|page| self.tag(page)).for_each(|tag| {
                partition.table.lock(tag).overtake_orphans(tag);
            });
            return;
        }
        partition.table.overtake_all(|tag| {
            let (object, page) = partition.page_of(tag);
            object == self.id && pages.contains(&page)
        });
    }

    /// C6. Tells how many there were.
    pub fn give_back(&self, pages: &Range<u64>) -> usize {
        let (mut held, mut waited) = (0, Vec::new());
        self.for_each_page(pages, |_, found, _| {
            if found.word.held() {
                held += 1;
                waited.extend(found.slot().let_go().then_some(found.index));
            }
        });
        waited.into_iter().for_each(|slot| self.partition.waiters.wake(slot));
        held
    }

    /// C5. Tells how many there were.
    pub fn drop_held(&self, pages: &Range<u64>) -> u64 {
        let partition = &*self.partition;
        let (mut held, mut waited) = (0, Vec::new());
        self.for_each_page(pages, |guard, found, _| {
            if !found.word.held() {
                return;
            }
            let (note, tag) = (partition.note(), found.tag());
            if guard.remove_held(found.index) {
                waited.push(found.index);
            }
            note.step(tag, || Step::Drop { even_dirty: true });
            partition.counters.add(Count::EvictionsDiscard, 1);
            held += 1;
        });
        waited.into_iter().for_each(|slot| partition.waiters.wake(slot));
        held
    }
}

impl PartitionInner {
    /// P9 for a page that nobody has in hands.
    pub fn drop_quiet(
        &self,
        guard: &mut SetGuard<'_, WAYS>,
        found: &Found<'_>,
        even_dirty: bool,
    ) -> Result<Word, Word> {
        let (note, tag) = (self.note(), found.tag());
        let dropped = guard.remove_quiet(found, even_dirty)?;
        note.step(tag, || Step::Drop { even_dirty });
        Ok(dropped)
    }
}
