//! A lane's I/O: pages that were gathered become transfers, adjacent ones in one; completions are
//! taken and finished, by any thread. Not here: what a transfer's end does to its pages (`read.rs`,
//! `write.rs`, `clean.rs`, `clear.rs`).

use std::iter::Peekable;
use std::time::Duration;
use std::vec::Drain;

use octavo_disk::{IoBuffer, IoError, Ring};

use super::lane::{Gathered, Lane, Work};
use super::task::{Ended, Kind, Pages, Role, Transfer, TransferPage};
use crate::memory::copy;
use crate::sync::{Arc, MutexGuard};

/// Most pages of one I/O: 256 KiB at pages of 4 KiB, where devices have long reached their
/// bandwidth.
pub(crate) const RUN_PAGES_MAX: usize = 64;

/// Completions that are mostly taken at once.
const TAKEN_USUALLY: usize = 32;

impl Work {
    /// Asks the processor for what a transfer will touch when it is finished.
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
    /// Makes transfers of what was gathered, adjacent pages in one, and hands all to the kernel.
    pub fn flush(&self, work: &mut Work) {
        self.post_all(work);
        let mut gathered = std::mem::take(&mut work.gathered);
        sort(&mut gathered);
        let mut buffers = NO_BUFFERS;
        let mut rest = gathered.drain(..).peekable();
        while let Some(transfer) = next_run(&mut rest, &mut buffers) {
            let count = transfer.pages.count();
            self.push(work, transfer, octavo_disk::Op::Read, &buffers[..count]);
        }
        drop(rest);
        work.gathered = gathered;
        self.ring.submit();
    }

    /// `flush` for a caller that waits for nothing else: where one read is all that is to be done,
    /// this thread does it itself, with one plain system call. Others who want the page are
    /// told as ever.
    ///
    /// The task, if it has ended by that and the lane has nothing else: then there is nothing to
    /// wait for, nobody has told us anything, and there is nothing that we leave to others.
    pub(super) fn flush_and_wait(&self, mut work: MutexGuard<'_, Work>) -> Option<Ended> {
        sort(&mut work.gathered);
        let is_one_run = (1..=RUN_PAGES_MAX).contains(&work.gathered.len())
            && work.gathered.windows(2).all(|pair| follows(&pair[0], &pair[1]));
        // A simulated disk lets time pass only for those who look at it through their ring.
        if !is_one_run || !work.transfers.is_empty() || self.shared.simulated() {
            self.flush(&mut work);
            return None;
        }
        let mut buffers = NO_BUFFERS;
        let transfer = next_run(&mut work.gathered.drain(..).peekable(), &mut buffers).expect("a run");
        drop(work);
        let object = &transfer.object;
        let (buffers, offset) =
            (&buffers[..transfer.pages.count()], transfer.page << object.partition.page_shift);
        // SAFETY: as in `push`.
        let result = unsafe { self.ring.run(&object.store, octavo_disk::Op::Read, offset, buffers) };
        copy::prefetch(buffers[0].ptr, buffers[0].len);
        let mut work = self.work();
        if result.is_ok() {
            self.deliver(&work, &transfer);
        }
        self.finish_read(&mut work, transfer, result);
        let is_alone = work.waiting == 0 && work.transfers.is_empty() && work.tasks.is_empty();
        if is_alone { work.finished.pop_front() } else { None }
    }

    /// Queues a transfer's I/O.
    pub fn push(&self, work: &mut Work, transfer: Transfer, op: octavo_disk::Op, buffers: &[IoBuffer]) {
        let entry = work.transfers.vacant_entry();
        let token = entry.key() as u64;
        let Transfer { object, page, .. } = &*entry.insert(transfer);
        let offset = page << object.partition.page_shift;
        // SAFETY: the buffers are frames in state Filling, which nobody else touches and which are never
        // given back, or bounce pages that the transfer owns; both stay until `complete` has taken
        // the transfer.
        unsafe { self.ring.push(&object.store, op, offset, buffers, token) };
    }

    /// Queues the clearing of a range of pages.
    pub fn push_clear(
        &self,
        work: &mut Work,
        transfer: Transfer,
        op: octavo_disk::Op,
        pages: std::ops::Range<u64>,
    ) {
        let shift = transfer.object.partition.page_shift;
        let (offset, len) = (pages.start << shift, (pages.end - pages.start) << shift);
        let entry = work.transfers.vacant_entry();
        let token = entry.key() as u64;
        self.ring.push_clear(&entry.insert(transfer).object.store, op, offset, len, token);
    }

    /// Takes completions, by `take` from the ring, and finishes their transfers: under one lock,
    /// and while one is finished, the first bytes of the next are on their way. Any thread may.
    /// Returns how many.
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
        // 1. All copies to callers, one after the other: they wait for memory, and what is done below would
        //    wait for each of them.
        for (number, (token, result)) in taken.iter().enumerate() {
            if let Some((next, _)) = taken.get(number + 1) {
                work.prefetch(*next);
            }
            if result.is_ok() {
                self.deliver(&work, &work.transfers[*token as usize]);
            }
        }
        // 2. Everything else.
        for (token, result) in taken {
            self.complete(&mut work, token, result);
        }
        count
    }

    /// Takes what has completed, without waiting. Returns how many.
    pub(super) fn reap(&self) -> usize {
        self.finish(|ring, take| _ = ring.reap(take))
    }

    /// Sleeps in the ring until something has completed, somebody wakes it or the time is over.
    /// Returns how many have.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> usize {
        self.finish(|ring, take| _ = ring.wait(take, timeout))
    }
}

const NO_BUFFERS: [IoBuffer; RUN_PAGES_MAX] = [IoBuffer { ptr: std::ptr::null_mut(), len: 0 }; RUN_PAGES_MAX];

/// By their places, and not by address: a run repeats from its seed.
fn sort(gathered: &mut [Gathered]) {
    if gathered.len() > 1 {
        gathered.sort_by_key(|g| (g.object.id, g.page));
    }
}

/// Whether a page is the next of the same object.
fn follows(page: &Gathered, next: &Gathered) -> bool {
    Arc::ptr_eq(&page.object, &next.object) && page.page + 1 == next.page
}

/// The transfer of the first pages that are adjacent, and where their bytes go.
fn next_run(
    gathered: &mut Peekable<Drain<'_, Gathered>>,
    buffers: &mut [IoBuffer; RUN_PAGES_MAX],
) -> Option<Transfer> {
    let Gathered { object, page, slot, task, role } = gathered.next()?;
    let buffer =
        |slot| IoBuffer { ptr: object.partition.frames.at(slot), len: object.partition.page_bytes() };
    let mut pages = Pages::one(TransferPage { slot: Some(slot), task, role, version: 0 });
    buffers[0] = buffer(slot);
    while pages.count() < RUN_PAGES_MAX
        && let Some(next) =
            gathered.next_if(|g| Arc::ptr_eq(&g.object, &object) && g.page == page + pages.count() as u64)
    {
        buffers[pages.count()] = buffer(next.slot);
        pages.push(TransferPage { slot: Some(next.slot), task: next.task, role: next.role, version: 0 });
    }
    Some(Transfer { kind: Kind::Fill, object, page, pages, bounce: None, tag: Default::default() })
}
