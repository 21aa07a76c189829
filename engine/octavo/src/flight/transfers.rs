//! A lane's I/O. The owner turns gathered pages into transfers, adjacent pages into one. Any thread
//! takes completions and finishes their transfers.
//!
//! Not here: what happens to the pages of a finished transfer (`read.rs`, `write.rs`,
//! `writeback.rs`, `discard.rs`).

use std::iter::Peekable;
use std::ops::Range;
use std::time::Duration;
use std::vec::Drain;

use octavo_disk::{IoBuffer, IoError, Ring};

use super::lane::{Gathered, Lane, Work};
use super::read;
use super::task::{Ended, Kind, Pages, Role, Transfer, TransferPage};
use crate::memory::copy;
use crate::position::PageIndex;
use crate::sync::{Arc, MutexGuard};

/// Most pages of one I/O: 256 KiB with 4 KiB pages, enough for devices to reach their full
/// bandwidth.
pub(crate) const RUN_PAGES_MAX: usize = 64;

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

    /// Does what `flush` does, for a caller that waits for nothing else. If the gathered pages form
    /// a single read and nothing else is in flight, this thread performs the read with one plain
    /// system call. Other tasks that want its pages are woken as usual.
    ///
    /// Returns the ended task if the lane then has nothing else in flight. The caller need not
    /// wait, and the lane has no completions that other threads could take.
    pub(super) fn flush_and_wait(&self, mut work: MutexGuard<'_, Work>) -> Option<Ended> {
        sort(&mut work.gathered);
        let is_one_run = (1..=RUN_PAGES_MAX).contains(&work.gathered.len())
            && work.gathered.windows(2).all(|pair| follows(&pair[0], &pair[1]));
        // A simulated disk advances only while threads look at their rings: use the ring.
        if !is_one_run || !work.transfers.is_empty() || self.shared.simulated() {
            self.flush(&mut work);
            return None;
        }
        let mut buffers = NO_BUFFERS;
        let transfer = next_run(&mut work.gathered.drain(..).peekable(), &mut buffers).expect("a run");
        drop(work);
        let object = &transfer.object;
        let (buffers, offset) =
            (&buffers[..transfer.pages.count()], object.partition.page_size.start_of(transfer.page));
        // SAFETY: as in `push`.
        let result = unsafe { self.ring.run(&object.store, octavo_disk::Op::Read, offset.0, buffers) };
        copy::prefetch(buffers[0].ptr, buffers[0].len);
        let mut work = self.work();
        if result.is_ok() {
            read::deliver(&work, &transfer);
        }
        read::filled(self, &mut work, transfer, result);
        let is_alone = work.waiting == 0 && work.transfers.is_empty() && work.tasks.is_empty();
        if is_alone { work.finished.pop_front() } else { None }
    }

    /// Queues the I/O of a transfer.
    pub fn push(&self, work: &mut Work, transfer: Transfer, op: octavo_disk::Op, buffers: &[IoBuffer]) {
        let entry = work.transfers.vacant_entry();
        let token = entry.key() as u64;
        let Transfer { object, page, .. } = &*entry.insert(transfer);
        let offset = object.partition.page_size.start_of(*page);
        // SAFETY: the buffers are frames in state Filling, which no other thread touches and which
        // stay mapped, or bounce pages that the transfer owns. Both stay valid until `complete` has
        // taken the transfer.
        unsafe { self.ring.push(&object.store, op, offset.0, buffers, token) };
    }

    /// Queues the clearing of a range of pages.
    pub fn push_clear(
        &self,
        work: &mut Work,
        transfer: Transfer,
        op: octavo_disk::Op,
        pages: Range<PageIndex>,
    ) {
        let page_size = transfer.object.partition.page_size;
        let (offset, len) = (page_size.start_of(pages.start).0, page_size.len_of(pages.end - pages.start));
        let entry = work.transfers.vacant_entry();
        let token = entry.key() as u64;
        self.ring.push_clear(&entry.insert(transfer).object.store, op, offset, len, token);
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

/// Sorts by object and page. Sorting by the object's address would make a test run irreproducible
/// from its seed.
fn sort(gathered: &mut [Gathered]) {
    if gathered.len() > 1 {
        gathered.sort_by_key(|g| (g.object.id, g.page));
    }
}

/// Whether `next` follows `page` in the same object.
fn follows(page: &Gathered, next: &Gathered) -> bool {
    Arc::ptr_eq(&page.object, &next.object) && page.page + 1 == next.page
}

/// Takes the first run of adjacent pages. Returns its transfer, and stores in `buffers` where its
/// bytes go.
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
