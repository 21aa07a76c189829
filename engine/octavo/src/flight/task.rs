//! Tasks and transfers. A *task* is one request that could not be answered immediately; a
//! *transfer* is one I/O.
//!
//! A task knows its bytes and which of its pages are not done; a transfer knows the slots that it
//! holds. Both belong to the lane on which they were submitted. Any thread that takes a completion
//! of the lane may finish the transfer; only the lane's owner tries pages.

use std::ops::Range;
use std::time::Instant;

use octavo_disk::IoError;
use octavo_table::SlotIndex;

use super::discard::{self, ClearState};
use super::holes::Search;
use super::writeback::SyncState;
use crate::error::Error;
use crate::memory::{Bounce, Lent};
use crate::position::{ByteOffset, PageIndex};
use crate::request::{Op, Read, ReadOfBatch};
use crate::state::counters::Count;
use crate::state::partition::ObjectInner;
use crate::sync::Arc;
use crate::wait::TaskId;

/// A range that contains every page that an object can have.
pub(crate) const EVERY: Range<PageIndex> = PageIndex(0)..PageIndex(u64::MAX >> 16);

/// A range without pages.
pub(crate) const NONE: Range<PageIndex> = PageIndex(0)..PageIndex(0);

/// What a task does, with the state that only this kind of task has.
pub(crate) enum Job {
    /// Copies the object's bytes to the caller's memory.
    Read,
    /// Brings pages in; no bytes are copied.
    Populate,
    /// Brings in pages that a stream of reads will probably want. No caller waits for the task.
    Ahead,
    /// Copies the caller's bytes to the object; then, if `durable`, becomes a `Sync` of the range.
    Write { durable: bool },
    /// Writes back the dirty pages of the range; then, if wanted, syncs the store.
    Sync(Box<SyncState>),
    /// Clears the range; then, if its state says `durable`, becomes a `Sync` of the range.
    Clear(Box<ClearState>),
    /// Finds the holes of the range.
    Holes(Box<Search>),
    /// Does nothing but wait until its one waiter is woken.
    Nap,
}

/// One request in flight.
pub(crate) struct Task {
    pub job: Job,
    pub object: Arc<ObjectInner>,
    /// The caller's memory: `len` bytes, which correspond to the object's bytes from `offset` on.
    pub memory: Lent,
    pub offset: ByteOffset,
    pub len: usize,
    /// Pages not tried yet: `next..end`.
    pub next: PageIndex,
    pub end: PageIndex,
    /// Pages to try again. The next one is the last of the vector.
    pub again: Vec<PageIndex>,
    /// Number of transfers, registrations, messages and retries that the task waits for.
    pub outstanding: usize,
    /// The task has waited: something was outstanding when its owner left it.
    pub has_waited: bool,
    // Boxed: tasks are moved several times, and few fail.
    pub error: Option<Box<Error>>,
    /// The queue request that this task answers: its number and operation.
    pub request: Option<(u64, Op)>,
    /// Number of requests that were submitted together. If not 0, messages may request the task's
    /// pages from their nodes.
    pub batch: u32,
    /// The key of the bundle, and the index of the letter in it, that this task answers.
    pub served: Option<(usize, usize)>,
}

/// The part of a task's bytes that lies in one page.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// Offset in the page.
    pub skip: usize,
    pub len: usize,
    /// These bytes in the caller's memory.
    pub memory: Lent,
}

impl Task {
    #[inline(always)]
    pub fn new(job: Job, object: Arc<ObjectInner>, offset: ByteOffset, memory: Lent, len: usize) -> Task {
        let Range { start: next, end } = object.partition.page_size.page_range(offset, len as u64);
        Task {
            job,
            object,
            memory,
            offset,
            len,
            next,
            end,
            again: Vec::new(),
            outstanding: 0,
            has_waited: false,
            error: None,
            request: None,
            batch: 0,
            served: None,
        }
    }

    /// Creates a task for one read of a batch.
    #[inline(always)]
    pub fn reading(object: &Arc<ObjectInner>, read: &mut Read<'_>) -> Task {
        let memory = Lent::one_piece(read.buffer.as_mut_ptr());
        Task::new(Job::Read, object.clone(), read.start(), memory, read.buffer.len())
    }

    /// Makes a task whose only page was tried before, and its access counted.
    pub fn tried_once(mut self) -> Task {
        self.again.push(self.next);
        self.next = self.end;
        self
    }

    /// Makes a task whose pages before `page` are done. Its range remains that of the request, by
    /// which streams of reads are detected.
    pub fn starting_at(mut self, page: PageIndex) -> Task {
        self.next = page;
        self
    }

    /// Creates a task for whole pages, without memory of the caller.
    pub fn of_pages(job: Job, object: &Arc<ObjectInner>, pages: Range<PageIndex>) -> Task {
        let mut task = Task::new(job, object.clone(), ByteOffset(0), Lent::NONE, 0);
        (task.next, task.end) = (pages.start, pages.end);
        task
    }

    /// Creates a pass of the cleaner: a task that writes back up to about `pages_max` dirty pages
    /// of the object, in the order of their offsets, and makes nothing durable.
    pub fn pass(object: &Arc<ObjectInner>, pages_max: u64) -> Task {
        Task::of_pages(Job::Sync(SyncState::new(false, pages_max)), object, EVERY)
    }

    /// Returns the next page to try, and whether it is tried for the first time.
    pub fn next_page(&mut self) -> Option<(PageIndex, bool)> {
        if let Some(page) = self.again.pop() {
            return Some((page, false));
        }
        (self.next < self.end).then(|| {
            self.next += 1;
            (self.next - 1, true)
        })
    }

    /// Returns the pages that the task's bytes touch.
    pub fn page_range(&self) -> Range<PageIndex> {
        self.object.partition.page_size.page_range(self.offset, self.len as u64)
    }

    /// Returns the task's bytes in `page`.
    pub fn span(&self, page: PageIndex) -> Span {
        let page_size = self.object.partition.page_size;
        let start = page_size.start_of(page).max(self.offset);
        let end = page_size.start_of(page + 1).min(self.offset + self.len as u64);
        let len = (end - start) as usize;
        Span {
            skip: page_size.offset_in_page(start),
            len,
            memory: match &self.job {
                Job::Clear(_) => Lent::one_piece(discard::zeros()),
                _ => self.memory.part((start - self.offset) as usize, len),
            },
        }
    }

    /// Whether every page was tried and no part of the task is left to begin.
    pub fn is_through(&self) -> bool {
        let is_begun = match &self.job {
            Job::Clear(clear) => clear.is_begun(),
            Job::Holes(_) => self.has_searched(),
            _ => true,
        };
        is_begun && self.next >= self.end && self.again.is_empty()
    }

    /// Enters the task's next phase, and returns whether there is one. A durable write or clearing
    /// continues as a sync of its range; a sync that has written its pages continues with a sync of
    /// the store.
    pub fn enter_next_phase(&mut self) -> bool {
        let is_durable = match &mut self.job {
            Job::Sync(sync) => return sync.flush && !std::mem::replace(&mut sync.flushing, true),
            Job::Write { durable } => *durable,
            Job::Clear(clear) => clear.durable,
            _ => false,
        };
        if is_durable {
            Range { start: self.next, end: self.end } = self.page_range();
            self.job = Job::Sync(SyncState::new(true, u64::MAX));
        }
        is_durable
    }

    /// Keeps the first error.
    pub fn fail(&mut self, error: Error) {
        self.error.get_or_insert_with(|| Box::new(error));
    }

    /// Counts a failed I/O under `count`, and keeps its error.
    pub fn fail_io(&mut self, count: Count, source: &IoError) {
        self.object.partition.counters.add(count, 1);
        self.fail(self.object.io_error(source));
    }
}

/// The result of a task that has ended.
pub(crate) struct Ended {
    /// The id that the task had. Another task may have the same id now.
    pub task: TaskId,
    error: Option<Box<Error>>,
    /// The task has waited for nothing.
    pub at_once: bool,
    /// The queue request that the task answers.
    pub request: Option<(u64, Op)>,
}

impl Ended {
    pub fn new(id: TaskId, task: &mut Task) -> Ended {
        let at_once = !task.has_waited;
        Ended { task: id, error: task.error.take(), at_once, request: task.request.take() }
    }

    pub fn result(self) -> Result<(), Error> {
        self.error.map_or(Ok(()), |error| Err(*error))
    }
}

/// What happens to a page when its transfer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Fill: copy the task's part of the page to the caller's memory.
    Deliver,
    /// Fill: copy the caller's bytes over their part of the page, and make the page dirty.
    Patch,
    /// Fill: a write or clearing tries the page again; for a task that only brings pages in, the
    /// page is done. Other transfers: nothing more happens to the page.
    Bring,
    /// Write-through with a slot that was claimed for it (Filling): publish the page.
    Publish,
    /// Write-through of a resident page (Storing): change it in place.
    EndStore,
    /// Write-back for a task that waits until the page is clean, and then tries the page again.
    Retry,
}

/// A page of a transfer.
#[derive(Clone, Copy)]
pub(crate) struct TransferPage {
    /// The slot that the transfer holds, or (write-back) whose bytes it copied. None for a stray.
    pub slot: Option<SlotIndex>,
    pub task: TaskId,
    pub role: Role,
    /// Write-back: the version of the page that is written. Otherwise 0.
    pub version: u64,
}

/// What an I/O does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads from the store into frames.
    Fill,
    /// Writes bounce pages to the store, then copies them to the frames (write-through).
    Store,
    /// Writes bounce pages to the store (write-back). The frames have the same bytes, or newer
    /// ones.
    Clean,
    /// Reads a stray into a bounce page, for the caller.
    StrayRead,
    /// Reads a stray into a bounce page. The page is then changed in part and written.
    StrayUpdate,
    /// Writes a stray from a bounce page.
    StrayWrite,
    /// Syncs the store.
    Flush,
    /// Tells the store to clear a range, up to page `end`. The pages of the range are held or not
    /// resident.
    Clear { op: octavo_disk::Op, is_fast: bool, end: PageIndex },
    /// Asks the store for its holes.
    Survey,
}

/// An I/O in flight.
pub(crate) struct Transfer {
    pub kind: Kind,
    pub object: Arc<ObjectInner>,
    /// The first page. The others follow it in the object.
    pub page: PageIndex,
    pub pages: Pages,
    pub bounce: Option<Bounce>,
    /// When the I/O was made.
    pub made_at: Instant,
}

/// The pages of a transfer. A single page, as in most misses, allocates nothing.
pub(crate) struct Pages {
    first: TransferPage,
    rest: Vec<TransferPage>,
}

impl Pages {
    pub fn one(first: TransferPage) -> Pages {
        Pages { first, rest: Vec::new() }
    }

    /// For an I/O without slots.
    pub fn none(task: TaskId) -> Pages {
        Pages::one(TransferPage { slot: None, task, role: Role::Bring, version: 0 })
    }

    pub fn push(&mut self, page: TransferPage) {
        self.rest.push(page);
    }

    /// Adds a page to a run that may be empty.
    pub fn extend(run: &mut Option<Pages>, page: TransferPage) {
        match run {
            None => *run = Some(Pages::one(page)),
            Some(pages) => pages.push(page),
        }
    }

    pub fn first(&self) -> TransferPage {
        self.first
    }

    pub fn count(&self) -> usize {
        1 + self.rest.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = TransferPage> + '_ {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }
}
