//! Blocking calls: run a task to its end on a borrowed lane.

use std::ops::Range;

use octavo_table::SegmentIndex;

use super::dispatch::Batch;
use super::handle::Handle;
use super::task::{Ended, Job, NONE, Task};
use crate::error::Error;
use crate::memory::Lent;
use crate::position::{ByteOffset, PageIndex};
use crate::request::{Read, ReadOfBatch};
use crate::state::partition::ObjectInner;
use crate::sync::Arc;
use crate::wait::Waiter;

/// An open store. Cheap to clone. [`Object::close`] closes it, and so does the drop of its last
/// handle:
///
/// - At once, without a sync, if no page is dirty and no request is in flight.
/// - Otherwise the cache writes the dirty pages in the background, and then closes the object. If
///   the store refuses them, they stay dirty and are retried, and an event says so
///   ([`Happened::WritebackFailed`](crate::Happened::WritebackFailed));
///   [`Partition::objects`](crate::Partition::objects) returns a handle.
/// - Without a background thread ([`CacheConfig::background`](crate::CacheConfig::background)), an
///   object with dirty pages stays open.
#[derive(Clone)]
pub struct Object {
    pub(crate) inner: Arc<ObjectInner>,
    /// Declared after `inner`, so that its drop finds one reference fewer.
    pub(crate) lanes: Arc<Handle>,
}

impl Object {
    /// Runs a task to its end.
    pub(crate) fn run(&self, task: Task) -> Result<(), Error> {
        self.lanes.borrow()?.run(task)
    }

    /// Runs a job on the caller's memory, in one piece.
    pub(crate) fn run_bytes(
        &self,
        job: Job,
        offset: ByteOffset,
        memory: *mut u8,
        len: usize,
    ) -> Result<(), Error> {
        self.run_lent(job, offset, Lent::one_piece(memory), len)
    }

    /// Runs a job on the caller's memory.
    pub(crate) fn run_lent(
        &self,
        job: Job,
        offset: ByteOffset,
        memory: Lent,
        len: usize,
    ) -> Result<(), Error> {
        self.run(Task::new(job, self.inner.clone(), offset, memory, len))
    }

    /// Writes back the dirty pages of a range, in order. Makes nothing durable.
    pub(crate) fn clean_pages(&self, pages: Range<PageIndex>) -> Result<(), Error> {
        self.run(Task::cleaning_pages(&self.inner, pages))
    }

    /// Writes back the object's dirty pages in one segment.
    pub(crate) fn clean_segment(&self, segment: SegmentIndex) -> Result<(), Error> {
        self.run(Task::cleaning_of(&self.inner, segment))
    }

    /// Sleeps until the waiter that `register` registers is woken. If `register` returns false,
    /// returns immediately.
    pub(crate) fn nap(&self, register: impl FnOnce(&mut dyn FnMut() -> Waiter) -> bool) -> Result<(), Error> {
        self.lanes.borrow()?.nap(&self.inner, register);
        Ok(())
    }

    /// Performs the reads of a batch whose indices are in `missing`, with adjacent pages in one
    /// I/O.
    #[cold]
    pub(crate) fn read_missing(&self, reads: &mut [Read<'_>], missing: &[usize]) -> Result<(), Error> {
        let lane = self.lanes.borrow()?;
        for number in missing {
            self.inner.check(reads[*number].start(), reads[*number].buffer.len() as u64)?;
        }
        let mut work = lane.work();
        let mut batch = Batch::default();
        for number in missing {
            lane.add(&mut work, &mut batch, Task::reading(&self.inner, &mut reads[*number]));
        }
        lane.start_all(&mut work, &mut batch);
        lane.flush(&mut work);
        drop(work);
        lane.work_until(|work| work.finished.len() == missing.len());
        lane.work().finished.drain(..).try_for_each(Ended::result)
    }

    /// Does what `read_batch` does, in mode `message`: sends reads of other nodes' pages to those
    /// nodes, and performs the other reads meanwhile.
    #[cold]
    pub(crate) fn read_batch_by_message(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        self.inner.count_read(reads.len() as u64, reads.iter().map(|read| read.buffer.len() as u64).sum());
        reads.iter().try_for_each(|read| self.inner.check(read.start(), read.buffer.len() as u64))?;
        let partition = &*self.inner.partition;
        let lane = self.lanes.borrow()?;
        let mut work = lane.work();
        let waits = work.tasks.insert(Task::of_pages(Job::Nap, &self.inner, NONE));
        // Counts as one outstanding operation, so that the task does not end while letters are
        // still being added.
        work.tasks[waits].outstanding = 1;
        let mut own = Vec::with_capacity(reads.len());
        for read in reads.iter_mut() {
            let (offset, len) = (read.start(), read.buffer.len());
            let to = partition.other_node(self.inner.tag_at(offset));
            match to.filter(|_| len > 0 && self.inner.in_one_page(offset, len)) {
                Some(to) => {
                    let letter = (waits, offset, read.buffer.as_mut_ptr(), len, false);
                    lane.post_letter(&mut work, to, &self.inner, letter);
                }
                None => own.push(Read { offset: read.offset, buffer: &mut *read.buffer }),
            }
        }
        lane.flush(&mut work);
        drop(work);
        let missing = self.inner.read_many_counted(&mut own);
        let mut work = lane.work();
        for number in &missing {
            lane.start(&mut work, Task::reading(&self.inner, &mut own[*number]));
        }
        lane.flush(&mut work);
        lane.step(&mut work, waits);
        drop(work);
        lane.work_until(|work| work.finished.len() == missing.len() + 1);
        lane.work().finished.drain(..).try_for_each(Ended::result)
    }
}
