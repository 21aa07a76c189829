//! Blocking calls: a task of an object that runs to its end on a borrowed lane.

use std::ops::Range;

use octavo_table::SegmentIndex;

use super::dispatch::Batch;
use super::lanes::Lanes;
use super::task::{Ended, Job, NONE, Task};
use crate::error::Error;
use crate::position::{ByteOffset, PageIndex};
use crate::request::Read;
use crate::state::partition::ObjectInner;
use crate::sync::Arc;
use crate::wait::Waiter;

/// An open store. Cheap to clone; it stays open until [`Object::close`], or until its cache is
/// dropped.
#[derive(Clone)]
pub struct Object {
    pub(crate) inner: Arc<ObjectInner>,
    pub(crate) lanes: Arc<Lanes>,
}

impl Object {
    /// Runs a task to its end.
    pub(crate) fn run(&self, task: Task) -> Result<(), Error> {
        self.lanes.borrow()?.run(task)
    }

    /// Runs a job for bytes of the caller's.
    pub(crate) fn run_bytes(
        &self,
        job: Job,
        offset: ByteOffset,
        memory: *mut u8,
        len: usize,
    ) -> Result<(), Error> {
        self.run(Task::new(job, self.inner.clone(), offset, memory, len))
    }

    /// Writes up to about `pages_max` dirty pages, in the order of their offsets. Makes nothing
    /// durable.
    pub(crate) fn clean(&self, pages_max: u64) -> Result<(), Error> {
        self.run(Task::pass(&self.inner, pages_max))
    }

    /// Writes the dirty pages of a range.
    pub(crate) fn clean_pages(&self, pages: Range<PageIndex>) -> Result<(), Error> {
        self.run(Task::cleaning_pages(&self.inner, pages))
    }

    /// Writes the dirty pages of one segment.
    pub(crate) fn clean_segment(&self, segment: SegmentIndex) -> Result<(), Error> {
        self.run(Task::cleaning_of(&self.inner, segment))
    }

    /// Sleeps until the waiter given to `register` is woken. Returns at once if `register` returns
    /// false.
    pub(crate) fn nap(&self, register: impl FnOnce(&mut dyn FnMut() -> Waiter) -> bool) -> Result<(), Error> {
        self.lanes.borrow()?.nap(&self.inner, register);
        Ok(())
    }

    /// Reads those of a batch that are `missing`, by their numbers, with adjacent pages in one
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

    /// `read_batch` in mode `message`: requests pages of other nodes from there, and reads the
    /// pages of this thread's node meanwhile.
    #[cold]
    pub(crate) fn read_batch_by_message(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        self.inner.count_read(reads.len() as u64, reads.iter().map(|read| read.buffer.len() as u64).sum());
        reads.iter().try_for_each(|read| self.inner.check(read.start(), read.buffer.len() as u64))?;
        let partition = &*self.inner.partition;
        let lane = self.lanes.borrow()?;
        let mut work = lane.work();
        let waits = work.tasks.insert(Task::of_pages(Job::Nap, &self.inner, NONE));
        // Keeps the task from ending while letters are still being added.
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
