//! Dispatch: chooses the verb that continues a task or finishes a transfer.
//!
//! A task runs through these functions until it is done:
//!
//! 1. [`Lane::start`] adds the task to the lane and tries its pages (`advance`). Each page is
//!    served, or its slot is claimed and gathered for a fill, or the task registers with the
//!    condition that it must wait for.
//! 2. Completions and wake-ups continue the task: `complete` finishes a transfer, [`Lane::retry`]
//!    lets the owner try a page again, and [`Lane::step`] counts one outstanding operation as done.
//! 3. When nothing is outstanding, `settle` ends the task or starts its next phase.
//!
//! The verbs call each other through the lane; that recursion stays in this folder.

use octavo_disk::IoError;
use octavo_table::Tag;

use super::lane::{Lane, Work};
use super::owner::Owner;
use super::task::{Ended, Job, Kind, Task};
use super::{discard, holes, read, read_ahead, write, writeback};
use crate::memory::copy;
use crate::sync::Arc;
use crate::wait::{RESUME, TaskId};

/// Most tasks that are started together. The memory that they touch fits into the first-level
/// cache.
const BATCH: usize = 16;

/// Most pages that a `Populate` has in flight: enough for 32 I/Os of the largest size. Gathered
/// pages and transfers take heap memory that is not charged.
const POPULATE_PAGES_MAX: usize = 2048;

/// Bytes of a resident page that are prefetched together with its slot's tag.
const FRAME_BYTES_AHEAD: usize = 512;

/// Tasks to start together, with the tags of their first pages.
#[derive(Default)]
pub(crate) struct Batch {
    tasks: [(TaskId, Tag); BATCH],
    count: usize,
}

impl Lane {
    /// Starts a task: tries its pages and gathers the missing ones, which the next `flush` submits.
    /// Returns the task's id.
    pub fn start(self: &Arc<Self>, work: &mut Work, task: Task) -> TaskId {
        let id = work.tasks.insert(task);
        self.begin(work, id);
        id
    }

    /// Adds a task to a batch. Starts the batch if it is full.
    #[inline(always)]
    pub fn add(self: &Arc<Self>, work: &mut Work, batch: &mut Batch, task: Task) {
        let tag = task.object.tag(task.next);
        task.object.partition.table.prefetch_set(tag);
        batch.tasks[batch.count] = (work.tasks.insert(task), tag);
        batch.count += 1;
        if batch.count == BATCH {
            self.start_all(work, batch);
        }
    }

    /// Starts the tasks of a batch. Prefetches the memory of all their first pages before it starts
    /// the first task, so the waits for memory overlap.
    pub fn start_all(self: &Arc<Self>, work: &mut Work, batch: &mut Batch) {
        let count = std::mem::take(&mut batch.count);
        for (id, tag) in &batch.tasks[..count] {
            let partition = &work.tasks[*id].object.partition;
            match partition.table.candidate(*tag) {
                Some(slot) => {
                    partition.table.prefetch_tag(slot);
                    copy::prefetch_frame(partition.frames.at(slot), FRAME_BYTES_AHEAD);
                }
                None => partition.table.prefetch_miss(*tag),
            }
        }
        for (id, _) in &batch.tasks[..count] {
            let task = &mut work.tasks[*id];
            if matches!(task.job, Job::Read) {
                read::begin(task);
            }
            self.begin(work, *id);
        }
    }

    fn begin(self: &Arc<Self>, work: &mut Work, id: TaskId) {
        let task = &work.tasks[id];
        let is_read = matches!(task.job, Job::Read);
        let pages = task.page_range();
        let passes = is_read && task.object.streams.has_marker(&pages);
        let object = passes.then(|| task.object.clone());
        let gathered = work.gathered.len();
        self.advance(work, id);
        // The task still exists: it waits for the pages that it gathered.
        if is_read && work.gathered.len() > gathered {
            read_ahead::after_miss(self, work, id);
        } else if let Some(object) = object {
            read_ahead::after_hit(self, work, &object, &pages);
        }
    }

    /// Tries as many of a task's pages as possible now.
    pub(super) fn advance(self: &Arc<Self>, work: &mut Work, id: TaskId) {
        let task = &mut work.tasks[id];
        if task.error.is_some() {
            task.next = task.end;
            task.again.clear();
        }
        let object = &task.object.clone();
        let owner = &mut Owner { lane: self, work: &mut *work, id, object };
        match owner.task().job {
            Job::Nap => {}
            Job::Clear(_) => discard::advance(owner),
            Job::Holes(_) => holes::advance(owner),
            Job::Sync(_) => writeback::advance(owner),
            Job::Read | Job::Populate | Job::Ahead | Job::Write { .. } => advance_pages(owner),
        }
        self.settle(work, id);
    }

    /// Counts one operation that a task waited for as done.
    pub fn step(&self, work: &mut Work, id: TaskId) {
        work.tasks[id].outstanding -= 1;
        self.settle(work, id);
    }

    /// Lets the owner continue a task that has nothing outstanding.
    fn resume(&self, task: &mut Task, id: TaskId) {
        (task.outstanding, task.has_waited) = (1, true);
        self.retry(id, RESUME);
    }

    /// Ends a task that has nothing left to do, or starts its next phase.
    fn settle(&self, work: &mut Work, id: TaskId) {
        let task = &mut work.tasks[id];
        if task.outstanding > 0 {
            task.has_waited = true;
            return;
        }
        let is_done = task.is_through();
        if is_done
            && let Job::Sync(sync) = &mut task.job
            && let Some(error) = sync.late_error.take()
        {
            task.fail(error);
        }
        let has_failed = task.error.is_some();
        if !has_failed && !is_done {
            if matches!(task.job, Job::Populate) {
                self.resume(task, id);
            }
            return;
        }
        match !has_failed && task.enter_next_phase() {
            true => self.resume(task, id),
            false => self.end(work, id),
        }
    }

    fn end(&self, work: &mut Work, id: TaskId) {
        let task = &mut work.tasks[id];
        writeback::ended(task);
        let served = task.served.map(|letter| (letter, task.error.take()));
        if served.is_none() && !matches!(task.job, Job::Ahead) {
            work.finished.push_back(Ended::new(id, task));
        }
        work.tasks.remove(id);
        if let Some((letter, error)) = served {
            self.letter_done(work, letter, error.map(|error| *error));
        }
    }

    /// Finishes the transfer `token`.
    pub(super) fn complete(&self, work: &mut Work, token: u64, result: Result<(), IoError>) {
        let transfer = work.transfers.remove(token as usize);
        transfer.count_time();
        match transfer.kind {
            Kind::Fill => read::filled(self, work, transfer, result),
            Kind::StrayRead | Kind::StrayUpdate | Kind::StrayWrite => {
                read::stray_came(self, work, transfer, result);
            }
            Kind::Store => write::stored(self, work, transfer, result),
            Kind::Clean => writeback::cleaned(self, work, transfer, result),
            Kind::Flush => writeback::flushed(self, work, transfer, result),
            Kind::Clear { end, .. } => discard::cleared(self, work, transfer, end, result),
            Kind::Survey => holes::surveyed(self, &transfer),
        }
    }
}

/// Tries the pages of a task in turn.
fn advance_pages(owner: &mut Owner<'_>) {
    let most = match owner.task().job {
        Job::Populate => POPULATE_PAGES_MAX,
        _ => usize::MAX,
    };
    while owner.task().outstanding < most
        && let Some((page, first)) = owner.task().next_page()
    {
        if first && owner.task().batch > 0 && owner.lane.post_page(owner.work, owner.id, page) {
            continue;
        }
        match owner.task().job {
            Job::Write { .. } => write::page(owner, page, first),
            Job::Ahead => read_ahead::page(owner, page),
            _ => read::page(owner, page, first),
        }
    }
}
