//! What is in flight: tasks (one per request that could not be answered at once) and transfers (one
//! per I/O).
//!
//! A task knows its bytes and which of its pages are not done. A transfer knows the slots it holds.
//! Both live in the lane that they were submitted on; any thread that takes a completion of the
//! lane may finish a transfer, only the lane's owner tries pages.

use octavo_table::{SlotIndex, Tag};

use crate::bounce::Bounce;
use crate::clean::{Cleaning, Round};
use crate::clear::{self, Clear};
use crate::error::Error;
use crate::object::ObjectInner;
use crate::queue::Op;
use crate::sync::Arc;

/// The end of all pages.
pub(crate) const END: u64 = u64::MAX >> 16;

/// The number of a task in its lane.
pub(crate) type TaskId = usize;

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Copy the object's bytes to the caller's.
    Read,
    /// Bring the pages in; nobody wants their bytes yet.
    Populate,
    /// The same for pages that nobody asked for; nobody waits for it.
    Ahead,
    /// Copy the caller's bytes to the object's; then, if `durable`, become a Sync of the same
    /// range.
    Write { durable: bool },
    /// Write the dirty pages of the range; then, if `flush`, make the store durable.
    Sync { flush: bool },
    /// Clear the range; then, if `durable`, become a Sync of it.
    Clear { durable: bool },
    /// Wait for whatever it was registered with.
    Nap,
}

/// A request in flight.
pub(crate) struct Task {
    pub job: Job,
    pub object: Arc<ObjectInner>,
    /// The caller's bytes: `len` of them at `memory`, for the object's bytes from `offset` on.
    pub memory: *mut u8,
    pub offset: u64,
    pub len: usize,
    /// Pages not tried yet: `next..end`.
    pub next: u64,
    pub end: u64,
    /// Pages to be tried again.
    pub again: Vec<u64>,
    /// Transfers and registrations that will bring it on.
    pub outstanding: usize,
    /// Set for a Sync once its pages are done and the store's own sync is what is left.
    pub flushing: bool,
    /// The first of the object's flushes that covers it; 0 until it asks for one.
    pub flush_needed: u64,
    /// Pages that a Sync may still clean (for the cleaner).
    pub clean_left: u64,
    /// How many pages a Sync collects at once, where it was to be more than a few.
    pub round: Option<Box<Round>>,
    /// How a Sync's write-backs go; None until it has begun.
    pub cleaning: Option<Cleaning>,
    /// What is left of a Clear.
    pub clear: Option<Box<Clear>>,
    // Boxed: a task is moved some times, and few fail.
    pub error: Option<Box<Error>>,
    /// A page of a sync that could not be written; the others are tried all the same.
    pub late_error: Option<Box<Error>>,
    /// The request of a queue that this task answers.
    pub request: Option<(u64, Op)>,
    /// Its pages may be asked for at their nodes, by message: so many requests were submitted with
    /// it. 0: they may not.
    pub batch: u32,
    /// The bundle, and the letter in it, that this task answers.
    pub served: Option<(usize, usize)>,
}

// SAFETY: `memory` is the caller's, lent for the task's life (blocking calls wait for its end,
// queues own their buffers).
unsafe impl Send for Task {}

/// The part of a task's bytes that lies in one page.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// Where in the page it starts.
    pub skip: usize,
    pub len: usize,
    /// Where in the caller's memory.
    pub memory: *mut u8,
}

impl Task {
    #[inline(always)]
    pub fn new(job: Job, object: Arc<ObjectInner>, offset: u64, memory: *mut u8, len: usize) -> Task {
        let shift = object.partition.page_shift;
        let (next, end) = match len {
            0 => (0, 0),
            _ => (offset >> shift, ((offset + len as u64 - 1) >> shift) + 1),
        };
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
            flushing: false,
            flush_needed: 0,
            clean_left: u64::MAX,
            round: None,
            cleaning: None,
            clear: None,
            error: None,
            late_error: None,
            request: None,
            batch: 0,
            served: None,
        }
    }

    /// One that writes up to about `pages_max` dirty pages of all, in the order of their offsets;
    /// makes nothing durable.
    pub fn pass(object: &Arc<ObjectInner>, pages_max: u64) -> Task {
        let mut task = Task::new(Job::Sync { flush: false }, object.clone(), 0, std::ptr::null_mut(), 0);
        (task.end, task.clean_left) = (END, pages_max);
        task
    }

    /// The task's bytes in `page`.
    pub fn span(&self, page: u64) -> Span {
        let page_bytes = self.object.partition.page_bytes() as u64;
        let start = (page * page_bytes).max(self.offset);
        let end = ((page + 1) * page_bytes).min(self.offset + self.len as u64);
        Span {
            skip: (start - page * page_bytes) as usize,
            len: (end - start) as usize,
            memory: match self.job {
                Job::Clear { .. } => clear::zeros(),
                _ => self.memory.wrapping_add((start - self.offset) as usize),
            },
        }
    }

    /// Keeps the first error.
    pub fn fail(&mut self, error: Error) {
        self.error.get_or_insert_with(|| Box::new(error));
    }
}

/// What is left of a task that is over.
pub(crate) struct Ended {
    /// Its number, which may be another's by now.
    pub task: TaskId,
    error: Option<Box<Error>>,
    /// The request of a queue that it answers.
    pub request: Option<(u64, Op)>,
}

impl Ended {
    pub fn new(id: TaskId, task: &mut Task) -> Ended {
        Ended { task: id, error: task.error.take(), request: task.request.take() }
    }

    pub fn result(self) -> Result<(), Error> {
        self.error.map_or(Ok(()), |error| Err(*error))
    }
}

/// What a transfer does with a page when its bytes have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Copy the task's part to the caller.
    Deliver,
    /// Copy the caller's part over it and call the page dirty.
    Patch,
    /// Let the task try the page again (or, for a Populate, be done with it).
    Bring,
}

/// A page of a transfer.
#[derive(Clone, Copy)]
pub(crate) struct TransferPage {
    /// The slot that is held, or whose bytes were copied (write-back). None for a page without a
    /// slot.
    pub slot: Option<SlotIndex>,
    pub task: TaskId,
    pub role: Role,
    /// Clear: where the range of pages ends. Write-back: the version that travels. Write-through: 1
    /// where the slot was claimed for it (Filling), 0 where it is Storing.
    pub mark: u64,
}

/// What an I/O in flight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Store to frames.
    Fill,
    /// Bounce pages to the store, then to the frames (write-through).
    Store,
    /// Bounce pages to the store; the frames are ahead or equal (write-back).
    Clean,
    /// A page that found no slot, to a bounce page and on to the caller.
    StrayRead,
    /// The same, to be patched and written (a part of a page).
    StrayUpdate,
    /// A bounce page to the store, for a page that found no slot.
    StrayWrite,
    /// The store's own sync.
    Flush,
    /// A range that the store clears; its pages are held, or not there.
    Clear,
}

/// An I/O in flight.
pub(crate) struct Transfer {
    pub kind: Kind,
    pub object: Arc<ObjectInner>,
    /// The first page; the others follow it.
    pub page: u64,
    pub pages: Pages,
    pub bounce: Option<Bounce>,
    /// The page's tag, for strays.
    pub tag: Tag,
}

/// One page, or several: the usual single miss allocates nothing.
pub(crate) struct Pages {
    first: TransferPage,
    rest: Vec<TransferPage>,
}

impl Pages {
    pub fn one(first: TransferPage) -> Pages {
        Pages { first, rest: Vec::new() }
    }

    pub fn push(&mut self, page: TransferPage) {
        self.rest.push(page);
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
