//! Clearing a range: discard and zero. Afterwards the range reads as zeros; if the store refuses,
//! nothing that was acknowledged is lost.
//!
//! - **C1 edges**: the parts of pages at the range's ends are written with zeros, like any write.
//! - **C2 close**: the whole pages are closed ([`Ranges`](crate::wait::Ranges)): no page is
//!   brought in there, and none becomes dirty.
//! - **C3 take**: every resident page of the range is taken, under its set's lock. A clean page is
//!   dropped, because the store has its bytes. A dirty page is held (P14): readers go on with its
//!   bytes; writes and syncs wait. The range ends before the first page that is busy (a fill, a
//!   write, a write-back, a stray); pages taken behind it are given back. If nothing is left, the
//!   task registers with the busy page and starts again at C2.
//! - **C4 tell**: the store clears the range, with one I/O through the ring.
//! - **C5 cleared**: held pages are dropped. **C6 refused**: held pages are dirty again, in the
//!   version that they had. What the store holds for the clean pages is unknown (zeros or the old
//!   bytes); the next read finds out.
//! - **C7 open**: the waiters go on, and the clearing continues with the rest of its range.
//!
//! While a clearing holds pages, its I/O is in flight, and any thread that takes the completion
//! does C5 to C7: no thread waits for the one that began it. Between C3 and C7 a read sees the old
//! bytes of a held page, or waits; it sees zeros only after C7. A write or write-back of a page of
//! the range comes before C2 or after C7, so no older bytes reach the store after the zeros.
//!
//! Not here: how a store clears (`octavo_disk`), the sync that follows a durable clearing
//! (`task.rs`), changes of length (`api/lifecycle.rs`).

use std::ops::Range;

use octavo_disk::IoError;
use octavo_table::{Found, SetGuard, SlotIndex, State, Tag, Word};

use super::lane::{Lane, Work};
use super::task::{Job, Kind, NONE, Pages, Role, Task, Transfer, TransferPage};
use super::write;
use crate::config::PAGE_BYTES_MAX;
use crate::error::Error;
use crate::position::{ByteOffset, PageIndex, page_count, pages_in};
use crate::state::counters::Count;
use crate::state::partition::ObjectInner;
use crate::sync::{Arc, lock};
use crate::wait::{RESUME, TaskId, Waiter};
use crate::ways::WAYS;

/// The source of all zeros; read only.
static ZEROS: [u8; PAGE_BYTES_MAX] = [0; PAGE_BYTES_MAX];

/// What is left of a clearing.
pub(crate) struct ClearState {
    /// The task then becomes a sync of the range.
    pub durable: bool,
    /// Discard or zero.
    op: octavo_disk::Op,
    /// Pages of which only a part is cleared.
    edges: Vec<PageIndex>,
    /// The whole pages.
    whole: Range<PageIndex>,
    /// Where the range ends; that may be the object's end, inside the last of the whole pages.
    end: ByteOffset,
    /// A part of the whole pages is being cleared by the store.
    in_flight: bool,
}

impl ClearState {
    /// Whether nothing is left to begin.
    pub fn is_begun(&self) -> bool {
        self.edges.is_empty() && self.whole.is_empty()
    }
}

impl Task {
    /// A task that clears a range: `op` is a discard or a zero.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::PastEnd`], [`Error::Closed`]; [`Error::Failed`] if `durable`.
    pub fn clearing(
        object: &Arc<ObjectInner>,
        op: octavo_disk::Op,
        offset: ByteOffset,
        len: u64,
        durable: bool,
    ) -> Result<Task, Error> {
        object.check_writable()?;
        object.check(offset, len)?;
        if durable {
            object.check_not_failed()?;
        }
        let touched = object.partition.page_size.page_range(offset, len);
        let whole = object.whole_pages(offset, len);
        let mut edges = Vec::new();
        if !touched.is_empty() {
            edges.extend([touched.start, touched.end - 1]);
            edges.dedup();
            edges.retain(|page| !whole.contains(page));
        }
        let clear = ClearState { durable, op, edges, whole, end: offset + len, in_flight: false };
        let job = Job::Clear(Box::new(clear));
        let mut task = Task::new(job, object.clone(), offset, std::ptr::null_mut(), len as usize);
        // The clearing itself goes through its pages, not the task's cursor.
        Range { start: task.next, end: task.end } = NONE;
        Ok(task)
    }

    /// The state of a clearing.
    fn clear(&mut self) -> &mut ClearState {
        match &mut self.job {
            Job::Clear(clear) => clear,
            _ => unreachable!("only a clearing clears"),
        }
    }
}

/// The zeros that edges are written with.
pub(crate) fn zeros() -> *mut u8 {
    ZEROS.as_ptr().cast_mut()
}

/// Continues a clearing as far as possible.
pub(crate) fn advance(lane: &Arc<Lane>, work: &mut Work, id: TaskId, object: &Arc<ObjectInner>) {
    let task = &mut work.tasks[id];
    if task.error.is_some() {
        let clear = task.clear();
        (clear.edges, clear.whole) = (Vec::new(), NONE);
        return task.again.clear();
    }
    // C1.
    let tried = std::mem::take(&mut task.again);
    let edges = std::mem::take(&mut task.clear().edges);
    tried.into_iter().for_each(|page| write::page(lane, work, id, object, page, false));
    edges.into_iter().for_each(|page| write::page(lane, work, id, object, page, true));
    // C2 to C4, one piece at a time: the end of this one begins the next.
    let clear = work.tasks[id].clear();
    if clear.whole.is_empty() || clear.in_flight {
        return;
    }
    let (op, pages) = (clear.op, clear.whole.clone());
    if !object.ranges.close(pages.clone(), || lane.waiter(id, RESUME)) {
        return work.registered(id);
    }
    if !is_still_right(&mut work.tasks[id], object, &pages) {
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
    work.tasks[id].clear().in_flight = true;
    work.tasks[id].outstanding += 1;
    let held = TransferPage { slot: None, task: id, role: Role::Bring, version: 0 };
    let transfer = Transfer {
        kind: Kind::Clear { end },
        object: object.clone(),
        page: pages.start,
        pages: Pages::one(held),
        bounce: None,
        tag: Tag::default(),
    };
    lane.push_clear(work, transfer, op, pages.start..end);
}

/// Whether a clearing may go on with these pages. If the object was cut or closed meanwhile, the
/// task fails. If the object has grown, its former last page becomes an edge. While the range is
/// closed, the length stays.
fn is_still_right(task: &mut Task, object: &ObjectInner, pages: &Range<PageIndex>) -> bool {
    if let Err(error) = object.check(task.offset, task.len as u64) {
        task.fail(error);
        return false;
    }
    let clear = task.clear();
    let is_longer = object.len_bytes() > clear.end.0;
    let has_edge = is_longer && object.partition.page_size.start_of(pages.end) > clear.end;
    if has_edge {
        clear.whole.end -= 1;
        clear.edges.push(clear.whole.end);
    }
    !has_edge
}

/// Lets the task start over.
fn again(lane: &Lane, work: &mut Work, id: TaskId) {
    work.tasks[id].outstanding += 1;
    lane.retry(id, RESUME);
}

/// Ends the clearing of a part of the range, up to page `end`: C5 to C7.
pub(crate) fn cleared(
    lane: &Lane,
    work: &mut Work,
    transfer: Transfer,
    end: PageIndex,
    result: Result<(), IoError>,
) {
    let (object, id) = (&transfer.object, transfer.pages.first().task);
    let pages = transfer.page..end;
    match result.is_ok() {
        true => drop(object.drop_held(&pages)),
        false => drop(object.give_back(&pages)),
    }
    object.ranges.open(&pages);
    let task = &mut work.tasks[id];
    let clear = task.clear();
    clear.in_flight = false;
    clear.whole.start = pages.end;
    let is_whole = clear.whole.is_empty();
    if let Err(source) = result {
        object.partition.counters.add(Count::WriteErrors, 1);
        task.fail(object.io_error(&source));
    }
    match is_whole || task.error.is_some() {
        true => lane.step(work, id),
        // The owner begins the rest; nothing is held meanwhile.
        false => lane.retry(id, RESUME),
    }
}

/// A page that cannot be taken now.
pub(crate) struct Busy {
    page: PageIndex,
    /// Its slot; None for a stray.
    slot: Option<(SlotIndex, Word)>,
}

impl Busy {
    /// Registers for the end of the page's busy state. False: it has ended.
    pub fn register(&self, object: &ObjectInner, waiter: impl FnOnce() -> Waiter) -> bool {
        let partition = &*object.partition;
        match self.slot {
            Some((slot, word)) if word.owned() || word.writeback() => {
                partition.wait_for_slot(slot, word, waiter)
            }
            Some(_) => false,
            None => partition.strays.wait(object.tag(self.page), waiter),
        }
    }
}

impl ObjectInner {
    /// The pages that lie in a range with all of their bytes; bytes past the object's end do not
    /// count.
    pub fn whole_pages(&self, offset: ByteOffset, len: u64) -> Range<PageIndex> {
        let (size, end) = (self.partition.page_size, offset + len);
        let first = size.page_range(ByteOffset(0), offset.0).end;
        let last =
            if end.0 == self.len_bytes() { size.page_range(offset, len).end } else { size.page_of(end) };
        if first < last { first..last } else { NONE }
    }

    /// Visits the resident pages of a range with their sets locked: by a lookup of each page, or
    /// by a walk if that is shorter.
    pub fn for_each_page(
        &self,
        pages: &Range<PageIndex>,
        mut visit: impl FnMut(&mut SetGuard<'_, WAYS>, Found<'_>, PageIndex),
    ) {
        let partition = &*self.partition;
        if page_count(pages) <= partition.table.slots_count() / 4 {
            for page in pages_in(pages) {
                let tag = self.tag(page);
                let mut guard = partition.table.lock(tag);
                if let Some(found) = guard.find(tag) {
                    visit(&mut guard, found, page);
                }
            }
            return;
        }
        // Without moves: a page that moves could be overlooked in both places.
        let _still = lock(&partition.moves);
        partition.table.for_each_page(|guard, found| {
            let (object, page) = partition.page_of(found.tag());
            if object == self.id && pages.contains(&page) {
                visit(guard, found, page);
            }
        });
    }

    /// C3, for a closed range: takes all pages that are not busy. Returns the first busy one.
    pub fn take_pages(&self, pages: &Range<PageIndex>) -> Option<Busy> {
        let partition = &*self.partition;
        let mut busy: Option<Busy> = None;
        let mut meet = |page: PageIndex, slot: Option<(SlotIndex, Word)>| {
            if busy.as_ref().is_none_or(|busy| page < busy.page) {
                busy = Some(Busy { page, slot });
            }
        };
        self.for_each_page(pages, |guard, found, page| {
            let taken = match found.word.state() {
                // Taken already: a walk may show a page twice.
                State::Storing if found.word.held() => Ok(()),
                State::Dirty => found.slot().hold(found.word),
                _ => partition.drop_quiet(guard, &found, Count::EvictionsDiscard),
            };
            // Includes a page whose state has changed meanwhile.
            if let Err(word) = taken {
                meet(page, Some((found.index, word)));
            }
        });
        // Copies of pages that left earlier (T7). Copies of resident pages go with their pages.
        self.overtake_orphans(pages);
        // No stray begins in a closed range.
        let stray = partition.strays.lowest(|tag| {
            let (object, page) = partition.page_of(tag);
            (object == self.id && pages.contains(&page)).then_some(page)
        });
        if let Some(page) = stray {
            meet(page, None);
        }
        busy
    }

    /// Makes sure that no copy of a page that is not resident is read any more.
    fn overtake_orphans(&self, pages: &Range<PageIndex>) {
        let partition = &*self.partition;
        if !partition.places.replicates {
            return;
        }
        if page_count(pages) <= partition.table.slots_count() / 4 {
            pages_in(pages).map(|page| self.tag(page)).for_each(|tag| {
                partition.table.lock(tag).overtake_orphans(tag);
            });
            return;
        }
        partition.table.overtake_all(|tag| {
            let (object, page) = partition.page_of(tag);
            object == self.id && pages.contains(&page)
        });
    }

    /// C6. Returns the number of held pages.
    pub fn give_back(&self, pages: &Range<PageIndex>) -> usize {
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

    /// C5. Returns the number of held pages.
    pub fn drop_held(&self, pages: &Range<PageIndex>) -> u64 {
        let partition = &*self.partition;
        let (mut held, mut waited) = (0, Vec::new());
        self.for_each_page(pages, |guard, found, _| {
            if !found.word.held() {
                return;
            }
            waited.extend(partition.drop_held(guard, &found).then_some(found.index));
            held += 1;
        });
        waited.into_iter().for_each(|slot| partition.waiters.wake(slot));
        held
    }
}
