//! Clearing a range: discard and zero. Afterwards it reads as zeros; if the store refuses, nothing
//! that was acknowledged is lost.
//!
//! - **C1 edges**: parts of pages at the range's ends are written with zeros, as any write is.
//! - **C2 close**: the whole pages are closed ([`Ranges`](crate::wait::Ranges)): nothing is
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
use octavo_table::{Found, SetGuard, SlotIndex, State, Tag, Word};

use super::lane::{Lane, Work};
use super::task::{Job, Kind, Pages, Role, Task, Transfer, TransferPage};
use super::write;
use crate::WAYS;
use crate::config::PAGE_BYTES_MAX;
use crate::error::Error;
use crate::state::counters::Count;
use crate::state::partition::ObjectInner;
use crate::sync::{Arc, lock};
use crate::wait::{RESUME, TaskId, Waiter};

/// What edges are written with; only ever read.
static ZEROS: [u8; PAGE_BYTES_MAX] = [0; PAGE_BYTES_MAX];

/// What is left of a clearing.
pub(crate) struct ClearState {
    /// The task then becomes a sync of the range.
    pub durable: bool,
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

impl ClearState {
    /// Whether nothing is left to begin.
    pub fn is_begun(&self) -> bool {
        self.edges.is_empty() && self.whole.is_empty()
    }
}

impl Task {
    /// Clears a range: `op` is a discard or a zero.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::PastEnd`], [`Error::Closed`]; [`Error::Failed`] if `durable`.
    pub fn clearing(
        object: &Arc<ObjectInner>,
        op: octavo_disk::Op,
        offset: u64,
        len: u64,
        durable: bool,
    ) -> Result<Task, Error> {
        object.check_writable()?;
        object.check(offset, len)?;
        if durable {
            object.check_not_failed()?;
        }
        let page_bytes = object.partition.page_bytes() as u64;
        let page_of = |offset: u64| offset >> object.partition.page_shift;
        let end = offset + len;
        let first = offset.next_multiple_of(page_bytes);
        let last = if end == object.len_bytes() { end } else { object.partition.page_start(end) };
        let mut edges = Vec::new();
        if offset < first.min(end) {
            edges.push(page_of(offset));
        }
        // In the page that begins the range, too, there may be nothing but an edge.
        if last.max(first) < end {
            edges.push(page_of(end));
        }
        let whole = if first < last { page_of(first)..page_of(last + page_bytes - 1) } else { 0..0 };
        let clear = ClearState { durable, op, edges, whole, end_bytes: end, in_flight: false };
        let job = Job::Clear(Box::new(clear));
        let mut task = Task::new(job, object.clone(), offset, std::ptr::null_mut(), len as usize);
        // Its pages are the clearing's matter, not the cursor's.
        (task.next, task.end) = (0, 0);
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

/// Where the zeros of an edge lie.
pub(crate) fn zeros() -> *mut u8 {
    ZEROS.as_ptr().cast_mut()
}

/// Goes on with a clearing as far as it can go.
pub(crate) fn advance(lane: &Arc<Lane>, work: &mut Work, id: TaskId, object: &Arc<ObjectInner>) {
    let task = &mut work.tasks[id];
    if task.error.is_some() {
        let clear = task.clear();
        (clear.edges, clear.whole) = (Vec::new(), 0..0);
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

/// Whether a clearing may go on with these pages. False: the object was cut or closed while the task
/// was on its way, and the task fails; or the object has grown, and what was its last page is an
/// edge now. While the range is closed the length stays.
fn is_still_right(task: &mut Task, object: &ObjectInner, pages: &Range<u64>) -> bool {
    if let Err(error) = object.check(task.offset, task.len as u64) {
        task.fail(error);
        return false;
    }
    let clear = task.clear();
    let is_longer = object.len_bytes() > clear.end_bytes;
    let has_edge = is_longer && pages.end << object.partition.page_shift > clear.end_bytes;
    if has_edge {
        clear.whole.end -= 1;
        clear.edges.push(clear.whole.end);
    }
    !has_edge
}

/// Lets the task look again.
fn again(lane: &Lane, work: &mut Work, id: TaskId) {
    work.tasks[id].outstanding += 1;
    lane.retry(id, RESUME);
}

/// The store has cleared a piece of a range, up to page `end`, or has not: C5 to C7.
pub(crate) fn cleared(
    lane: &Lane,
    work: &mut Work,
    transfer: Transfer,
    end: u64,
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
        // What is left is the owner's to begin; nothing is held meanwhile.
        false => lane.retry(id, RESUME),
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
                _ => partition.drop_quiet(guard, &found, Count::EvictionsDiscard),
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
            waited.extend(partition.drop_held(guard, &found).then_some(found.index));
            held += 1;
        });
        waited.into_iter().for_each(|slot| partition.waiters.wake(slot));
        held
    }
}
