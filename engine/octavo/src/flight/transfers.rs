//! A lane's I/O. The owner turns gathered pages into transfers, adjacent pages into one. Any thread
//! takes completions and finishes their transfers.
//!
//! Not here: what happens to the pages of a finished transfer (`read.rs`, `write.rs`,
//! `writeback.rs`, `discard.rs`).

use std::iter::Peekable;
use std::time::{Duration, Instant};
use std::vec::Drain;

use octavo_disk::{IoBuffer, IoError, Ring};
use slab::Slab;

use super::lane::{Gathered, Lane, Work};
use super::task::{Ended, Kind, Pages, Role, Task, Transfer, TransferPage};
use super::{holes, read};
use crate::memory::copy;
use crate::state::latency::Timed;
use crate::state::partition::ObjectInner;
use crate::sync::{Arc, MutexGuard};

/// Most pages of one I/O: 256 KiB with 4 KiB pages, enough for devices to reach their full
/// bandwidth.
pub(crate) const RUN_PAGES_MAX: usize = 64;

/// Most bytes of one I/O, for larger pages. A longer one would delay the others on its device.
const RUN_BYTES_MAX: usize = 4 << 20;

/// Returns the most pages that one I/O of an object moves.
pub(crate) fn run_pages_max(object: &ObjectInner) -> usize {
    RUN_PAGES_MAX.min(RUN_BYTES_MAX / object.partition.page_bytes())
}

/// Initial capacity of the list of completions that are taken together.
const TAKEN_USUALLY: usize = 32;

impl Work {
    /// Prefetches the memory that finishing a transfer will touch.
    fn prefetch(&self, token: u64) {
        let transfer = &self.transfers[token as usize];
        if transfer.kind == Kind::Fill {
            let (partition, held) = (&transfer.object.partition, transfer.pages.first());
            if let (Some(slot), Role::Deliver) = (held.slot, held.role) {
                copy::prefetch_frame(partition.frames.at(slot), partition.page_bytes());
            }
        }
    }
}

impl Lane {
    /// Sends the filled bundles, turns the gathered pages into transfers (adjacent pages into one)
    /// and submits all of them.
    pub fn flush(&self, work: &mut Work) {
        self.post_all(work);
        let mut gathered = std::mem::take(&mut work.gathered);
        sort(&mut gathered, &work.tasks);
        let mut room = NO_BUFFERS;
        let mut rest = gathered.drain(..).peekable();
        while let Some(transfer) = next_run(&mut rest, &work.tasks) {
            self.push_from(work, transfer, &mut room);
        }
        drop(rest);
        work.gathered = gathered;
        self.ring.submit();
    }

    /// Does what `flush` does, for a caller that waits for nothing else. If the gathered pages form
    /// a single read and nothing else is in flight, this thread performs the read with one plain
    /// system call. Other tasks that want its pages are woken as usual.
    ///
    /// Returns the ended task if the lane then has nothing else in flight. The caller need not
    /// wait, and the lane has no completions that other threads could take.
    pub(super) fn flush_and_wait(&self, mut work: MutexGuard<'_, Work>) -> Option<Ended> {
        let Work { gathered, tasks, .. } = &mut *work;
        sort(gathered, tasks);
        let mut runs = gathered.chunk_by(|page, next| follows(page, next, tasks));
        let is_one_run =
            runs.next().is_some_and(|run| run.len() <= run_pages_max(&tasks[run[0].task].object))
                && runs.next().is_none();
        // A simulated disk advances only while threads look at their rings: use the ring.
        if !is_one_run || !work.transfers.is_empty() || self.shared.simulated() {
            self.flush(&mut work);
            return None;
        }
        let Work { gathered, tasks, .. } = &mut *work;
        let transfer = next_run(&mut gathered.drain(..).peekable(), tasks).expect("a run");
        drop(work);
        let mut room = NO_BUFFERS;
        let (buffers, offset) = (transfer.buffers(&mut room), transfer.offset());
        // SAFETY: as in `push_from`.
        let result = unsafe { self.ring.run(&transfer.object.store, octavo_disk::Op::Read, offset, buffers) };
        copy::prefetch(buffers[0].ptr, buffers[0].len);
        transfer.count_time();
        let mut work = self.work();
        if result.is_ok() {
            read::deliver(&work, &transfer);
        }
        read::filled(self, &mut work, transfer, result);
        let is_alone = work.waiting == 0 && work.transfers.is_empty() && work.tasks.is_empty();
        if is_alone { work.finished.pop_front() } else { None }
    }

    /// Queues the I/O of a transfer.
    pub fn push(&self, work: &mut Work, transfer: Transfer) {
        self.push_from(work, transfer, &mut { NO_BUFFERS });
    }

    /// Does what `push` does, with `room` for the list of buffers.
    fn push_from(&self, work: &mut Work, transfer: Transfer, room: &mut [IoBuffer; RUN_PAGES_MAX]) {
        let entry = work.transfers.vacant_entry();
        let token = entry.key() as u64;
        let transfer = &*entry.insert(transfer);
        let (store, offset) = (&transfer.object.store, transfer.offset());
        let op = match transfer.kind {
            Kind::Fill | Kind::StrayRead | Kind::StrayUpdate => octavo_disk::Op::Read,
            Kind::Store | Kind::Clean | Kind::StrayWrite => octavo_disk::Op::Write,
            Kind::Flush => octavo_disk::Op::Sync,
            Kind::Clear { op, is_fast, end } => {
                let len = transfer.object.partition.page_size.len_of(end - transfer.page);
                return match is_fast {
                    true => self.ring.push_clear_fast(store, op, offset, len, token),
                    false => self.ring.push_clear(store, op, offset, len, token),
                };
            }
            Kind::Survey => {
                let survey = holes::survey_of(&work.tasks[transfer.pages.first().task]);
                return self.ring.push_survey(store, survey, token);
            }
        };
        // SAFETY: the buffers are frames in state Filling, which no other thread touches and which
        // stay mapped, or bounce pages that the transfer owns. Both stay valid until `complete` has
        // taken the transfer.
        unsafe { self.ring.push(store, op, offset, transfer.buffers(room), token) };
    }

    /// Takes completions from the ring with `take` and finishes their transfers under one lock. Any
    /// thread may call this. Returns the number of completions taken.
    fn finish(&self, take: impl FnOnce(&Ring, &mut dyn FnMut(u64, Result<(), IoError>))) -> usize {
        let mut taken: Vec<(u64, Result<(), IoError>)> = Vec::new();
        take(&self.ring, &mut |token, result| {
            if taken.is_empty() {
                taken.reserve(TAKEN_USUALLY);
            }
            taken.push((token, result));
        });
        let count = taken.len();
        if count == 0 {
            return 0;
        }
        let mut work = self.work();
        // 1. Copy to all callers first, and prefetch the next page during each copy: copies wait
        //    for memory, and the work below would otherwise wait between them.
        for (number, (token, result)) in taken.iter().enumerate() {
            if let Some((next, _)) = taken.get(number + 1) {
                work.prefetch(*next);
            }
            if result.is_ok() {
                read::deliver(&work, &work.transfers[*token as usize]);
            }
        }
        // 2. Everything else.
        for (token, result) in taken {
            self.complete(&mut work, token, result);
        }
        count
    }

    /// Takes completions without waiting. Returns the number of completions taken.
    pub(super) fn reap(&self) -> usize {
        self.finish(|ring, take| _ = ring.reap(take))
    }

    /// Sleeps in the ring until a completion or a wake-up arrives, or the timeout has passed.
    /// Returns the number of completions taken.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> usize {
        self.finish(|ring, take| _ = ring.wait(take, timeout))
    }
}

const NO_BUFFERS: [IoBuffer; RUN_PAGES_MAX] = [IoBuffer { ptr: std::ptr::null_mut(), len: 0 }; RUN_PAGES_MAX];

impl Transfer {
    /// Counts the time of the I/O, which has just ended.
    pub fn count_time(&self) {
        let (counters, time) = (&self.object.partition.counters, self.made_at.elapsed());
        match self.kind {
            Kind::Survey => return,
            Kind::StrayRead | Kind::StrayUpdate | Kind::StrayWrite => counters.add_time(Timed::Bypass, time),
            Kind::Fill | Kind::Store | Kind::Clean | Kind::Flush | Kind::Clear { .. } => {}
        }
        counters.add_time(Timed::Store, time);
    }

    /// Where the I/O begins in the store.
    fn offset(&self) -> u64 {
        self.object.partition.page_size.start_of(self.page).0
    }

    /// Lists in `room` the memory of the I/O: its bounce pages, or the frames of its slots.
    fn buffers<'r>(&self, room: &'r mut [IoBuffer; RUN_PAGES_MAX]) -> &'r [IoBuffer] {
        let partition = &*self.object.partition;
        let page_bytes = partition.page_bytes();
        if let Some(bounce) = &self.bounce {
            room[0] = IoBuffer { ptr: bounce.at(0), len: self.pages.count() * page_bytes };
            return &room[..1];
        }
        for (buffer, held) in room.iter_mut().zip(self.pages.iter()) {
            let Some(slot) = held.slot else { return &[] };
            *buffer = IoBuffer { ptr: partition.frames.at(slot), len: page_bytes };
        }
        &room[..self.pages.count()]
    }
}

/// Sorts by object and page. Sorting by the object's address would make a test run irreproducible
/// from its seed.
fn sort(gathered: &mut [Gathered], tasks: &Slab<Task>) {
    if gathered.len() > 1 {
        gathered.sort_by_key(|g| (tasks[g.task].object.id, g.page));
    }
}

/// Whether `next` follows `page` in the same object.
fn follows(page: &Gathered, next: &Gathered, tasks: &Slab<Task>) -> bool {
    page.page + 1 == next.page && Arc::ptr_eq(&tasks[page.task].object, &tasks[next.task].object)
}

/// Takes the first run of adjacent pages, and returns its transfer.
fn next_run(gathered: &mut Peekable<Drain<'_, Gathered>>, tasks: &Slab<Task>) -> Option<Transfer> {
    let held = |g: &Gathered| TransferPage { slot: Some(g.slot), task: g.task, role: g.role, version: 0 };
    let mut last = gathered.next()?;
    let (object, page) = (tasks[last.task].object.clone(), last.page);
    let mut pages = Pages::one(held(&last));
    let most = run_pages_max(&object);
    while pages.count() < most
        && let Some(next) = gathered.next_if(|next| follows(&last, next, tasks))
    {
        pages.push(held(&next));
        last = next;
    }
    Some(Transfer { kind: Kind::Fill, object, page, pages, bounce: None, made_at: Instant::now() })
}
