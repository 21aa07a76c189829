//! Accounted accesses: accesses that are counted, recorded, and charged for their distance.
//!
//! A plain hit only adds to a counter (`hit.rs`). All other accesses come here: a task's first look
//! at a page, and every read while a recording is active or accesses are counted by node. The verbs
//! in `flight` therefore need not know about recordings or nodes.

use octavo_recording::Step;
use octavo_table::{Found, Tag};

use super::hit::{AHEAD, OPTIMISTIC_TRIES};
use crate::memory::{Lent, copy};
use crate::position::ByteOffset;
use crate::request::{Read, ReadOfBatch};
use crate::state::counters::Count;
use crate::state::partition::{ObjectInner, PartitionInner};

/// What `read_recorded` adds to the counters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counting {
    /// A hit counts as a hit and as a request. A miss is not counted yet: the caller looks again.
    Requests,
    /// The look counts as a hit or a miss.
    Accesses,
    /// Nothing is counted: the access already was.
    Nothing,
}

impl PartitionInner {
    /// Serves a task's read of `len` bytes, from offset `skip` in a page, if the page is resident.
    /// The `first` look counts as a hit or a miss; a later look only tells the policy.
    ///
    /// # Safety
    /// As `copy_resident`.
    pub unsafe fn read_counted(&self, tag: Tag, skip: usize, to: Lent, len: usize, first: bool) -> bool {
        let Some(to) = to.one() else {
            // SAFETY: the caller's promise.
            return unsafe { self.read_in_pieces(tag, skip, to, len, first) };
        };
        let counting = if first { Counting::Accesses } else { Counting::Nothing };
        let charge = |hit: bool| {
            if first && !(hit && self.places.replicates) {
                self.charge_access(tag, len, 1);
            }
        };
        if self.is_recorded_whole()
            // SAFETY: the caller's promise.
            && let Some(hit) = unsafe { self.read_recorded(tag, skip, to, len, counting) }
        {
            charge(hit);
            return hit;
        }
        let hit = match self.places.replicates {
            // SAFETY: as above.
            true => unsafe { self.read_near(tag, skip, to, len, 1) },
            // SAFETY: as above.
            false => unsafe { self.copy_resident(tag, skip, to, len) },
        };
        if first {
            self.count_access(tag, false, hit || self.is_overlooked(tag));
            charge(hit);
        } else if hit {
            // Only record the touch: the copy has already told the policy.
            self.note().step(tag, || Step::Touch);
        }
        hit
    }

    /// Does what `read_counted` does for bytes that go to several pieces of memory: pins the page
    /// while it copies, so that all pieces get the same version. A recording gets the hit after it
    /// happened, as that of a pin.
    ///
    /// # Safety
    /// As `copy_resident`.
    #[cold]
    #[inline(never)]
    pub unsafe fn read_in_pieces(&self, tag: Tag, skip: usize, to: Lent, len: usize, first: bool) -> bool {
        let found = self.table.find(tag).filter(|found| found.word.readable() && self.pin(found));
        if let Some(found) = &found {
            // SAFETY: pinned bytes do not change (P6), and `to` is the caller's promise.
            unsafe { to.copy_out(self.frames.at(found.index).wrapping_add(skip), len) };
            match first {
                true => self.pinned_first(tag, found),
                false => self.touch(tag, found),
            }
            self.unpin(found.index);
        } else if first {
            self.count_access(tag, false, self.is_overlooked(tag));
        }
        if first {
            self.charge_access(tag, len, 1);
        }
        found.is_some()
    }

    /// Counts a pin of a resident page as a hit, and tells the policy.
    #[inline(always)]
    pub fn pinned_first(&self, tag: Tag, found: &Found<'_>) {
        self.table.touch(found);
        self.count_access(tag, false, true);
    }

    /// Whether a look without locks has not found a page that is resident: a resize is moving the
    /// page. The access is then a hit, which the caller serves under the set's lock.
    fn is_overlooked(&self, tag: Tag) -> bool {
        self.table.lock(tag).find(tag).is_some_and(|found| found.word.readable())
    }

    /// Counts a write's first look at a page, of which the write changes `bytes` bytes.
    pub fn count_first_write(&self, tag: Tag, bytes: usize) {
        if self.count_write(tag, || self.find_near(tag).is_some()) {
            self.weigh_write(tag, bytes);
        }
        self.charge_access(tag, bytes, 1);
    }

    /// Does what `copy_resident` does while every step of the table is recorded: looking up the
    /// page, telling the policy, counting and recording are one step. Returns `None` if not every
    /// step is recorded, or if pages may have twins.
    ///
    /// # Safety
    /// As `copy_resident`.
    #[cold]
    #[inline(never)]
    pub unsafe fn read_recorded(
        &self,
        tag: Tag,
        skip: usize,
        to: *mut u8,
        len: usize,
        counting: Counting,
    ) -> Option<bool> {
        let find = || self.table.find(tag).filter(|found| found.word.readable());
        for is_last in (0..OPTIMISTIC_TRIES).map(|attempt| attempt + 1 == OPTIMISTIC_TRIES) {
            // 1. Copy the bytes. The page may be evicted during the copy.
            let copied = find().map(|found| {
                let frame = self.frames.at(found.index).wrapping_add(skip);
                // SAFETY: as in `copy_found`.
                unsafe { copy::copy_out(frame, to, len) };
                found.slot().unchanged(found.word)
            });
            // 2. Under the tape's lock no other recorded step happens: is the page resident now?
            let writing = self.writing_all().filter(|_| !self.places.replicates)?;
            let there = find();
            let served = match (copied, &there) {
                (Some(true), Some(_)) => true,
                (None, None) => false,
                // The caller looks again, and that look is counted.
                _ if counting == Counting::Requests => return Some(false),
                // On the last try a writer may still own the page. The access then counts as a hit,
                // and the caller serves it under the set's lock.
                _ if is_last => false,
                _ => continue,
            };
            if let Some(found) = &there {
                self.table.touch(found);
            }
            match (counting, there.is_some()) {
                (Counting::Requests, false) | (Counting::Nothing, false) => return Some(false),
                (Counting::Requests, true) => self.counters.add_hit(len as u64),
                (Counting::Accesses, true) => self.counters.add(Count::Hits, 1),
                (Counting::Accesses, false) => self.counters.add(Count::Misses, 1),
                (Counting::Nothing, true) => {
                    writing.step(tag, Step::Touch);
                    return Some(served);
                }
            }
            self.count_place_of(tag, false, there.is_some());
            writing.access(tag, false, there.is_some());
            return Some(served);
        }
        unreachable!("the last try returns")
    }
}

impl ObjectInner {
    /// Reads a range inside the page `tag`, and counts the hit, if the page is resident. Otherwise
    /// returns `false`, and has counted nothing.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes, and the range lies in the page.
    #[inline(always)]
    pub unsafe fn read_hit(&self, tag: Tag, offset: ByteOffset, to: *mut u8, len: usize) -> bool {
        let Some(counts) = self.partition.counters.at_hand() else {
            // SAFETY: the caller's promise.
            return unsafe { self.read_accounted(offset, to, len) };
        };
        let skip = self.partition.page_size.offset_in_page(offset);
        // SAFETY: as above.
        let is_hit = unsafe { self.partition.copy_resident(tag, skip, to, len) };
        if is_hit {
            counts.add_hit(len as u64);
        }
        is_hit
    }

    /// Serves the hits of a batch while no counter is at hand: counts, records and charges each
    /// hit. Returns the indices of the other reads.
    #[cold]
    pub fn read_many_accounted(&self, reads: &mut [Read<'_>]) -> Vec<usize> {
        let partition = &*self.partition;
        if !partition.places.replicates && partition.is_recorded_whole() {
            return self.read_many_recorded(reads);
        }
        self.count_read(reads.len() as u64, reads.iter().map(|read| read.buffer.len() as u64).sum());
        self.read_many_counted(reads)
    }

    /// Serves the hits of a batch, and counts them as hits but not as requests. Returns the
    /// indices of the other reads.
    pub fn read_many_counted<R: ReadOfBatch>(&self, reads: &mut [R]) -> Vec<usize> {
        if self.partition.places.replicates {
            return self.read_many_near(reads);
        }
        let mut missing = Vec::new();
        self.read_many(reads, &mut missing);
        self.count_hits(reads, &missing);
        missing
    }

    /// Does what `read_many_accounted` does while every step of the table is recorded: one read
    /// after the other.
    fn read_many_recorded(&self, reads: &mut [Read<'_>]) -> Vec<usize> {
        let mut missing = Vec::new();
        for (number, read) in reads.iter_mut().enumerate() {
            let (offset, len) = (read.start(), read.buffer.len());
            let is_inside =
                len > 0 && self.check(offset, len as u64).is_ok() && self.in_one_page(offset, len);
            let to = read.buffer.as_mut_ptr();
            // SAFETY: the buffer is valid for its length, and the range lies in one page.
            if !(is_inside && unsafe { self.read_accounted(offset, to, len) }) {
                self.count_read(1, len as u64);
                missing.push(number);
            }
        }
        missing
    }

    /// Counts the hits of a batch: all reads except the `missing` ones, whose indices are in
    /// ascending order.
    fn count_hits<R: ReadOfBatch>(&self, reads: &[R], missing: &[usize]) {
        let (partition, hits) = (&*self.partition, (reads.len() - missing.len()) as u64);
        partition.counters.add(Count::Hits, hits);
        if partition.counters.hits_need_only_counting() {
            return;
        }
        let mut missing = missing.iter().peekable();
        for (number, read) in reads.iter().enumerate() {
            if missing.next_if(|missing| **missing == number).is_none() {
                let tag = self.tag_at(read.start());
                partition.charge_access(tag, read.len(), reads.len() as u64);
                partition.record_access(tag, false, true);
            }
        }
    }

    /// Reads a range inside one page while no counter is at hand. Counts, records and charges a
    /// hit. Returns whether the read was a hit.
    ///
    /// # Safety
    /// As `read_hit`.
    #[cold]
    #[inline(never)]
    pub unsafe fn read_accounted(&self, offset: ByteOffset, to: *mut u8, len: usize) -> bool {
        let partition = &*self.partition;
        // Recordings and twins take locks, which a child of `fork` must not.
        if partition.shared.is_forked() {
            return false;
        }
        let (tag, skip) = (self.tag_at(offset), partition.page_size.offset_in_page(offset));
        if partition.is_recorded_whole()
            // SAFETY: the caller's promise.
            && let Some(hit) = unsafe { partition.read_recorded(tag, skip, to, len, Counting::Requests) }
        {
            if hit {
                partition.charge_access(tag, len, 1);
            }
            return hit;
        }
        // SAFETY: as above.
        if !unsafe { partition.read_near(tag, skip, to, len, 1) } {
            return false;
        }
        partition.counters.add_hit(len as u64);
        partition.record_access(tag, false, true);
        true
    }

    /// Serves the hits of a batch in a partition with twins, and counts them. Returns the
    /// indices of the other reads.
    fn read_many_near<R: ReadOfBatch>(&self, reads: &mut [R]) -> Vec<usize> {
        let partition = &*self.partition;
        let (mut missing, together) = (Vec::new(), reads.len() as u64);
        for first in (0..reads.len()).step_by(AHEAD) {
            let end = (first + AHEAD).min(reads.len());
            reads[first..end].iter().for_each(|read| partition.prefetch_near(self.tag_at(read.start())));
            for (number, read) in reads.iter_mut().enumerate().take(end).skip(first) {
                let (tag, len) = (self.tag_at(read.start()), read.len());
                let skip = partition.page_size.offset_in_page(read.start());
                let is_inside =
                    self.check(read.start(), len as u64).is_ok() && self.in_one_page(read.start(), len);
                let to = read.memory();
                // SAFETY: the memory is valid for its length, and the range lies in one page.
                let read_near = || unsafe { partition.read_near(tag, skip, to, len, together) };
                if is_inside && read_near() {
                    partition.counters.add(Count::Hits, 1);
                    partition.record_access(tag, false, true);
                } else {
                    missing.push(number);
                }
            }
        }
        missing
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::{Duration, Instant};

    use octavo_disk::Store;
    use octavo_table::{Mover, SlotIndex};

    use super::*;
    use crate::pages::mover::PageMover;
    use crate::{Cache, CacheConfig, Object, PartitionConfig};

    /// Pages beside each other may lie in one segment.
    const PAGES: u64 = 1024;
    const READS: u64 = 8;
    const PAGE: u64 = 4096;

    /// Moves pages, and has other threads read the first of them while they move.
    struct Meanwhile<'m, 'scope, 'env, R> {
        mover: PageMover<'m>,
        object: &'m Object,
        scope: &'scope std::thread::Scope<'scope, 'env>,
        read: &'env R,
        reads: u64,
    }

    impl<R: Fn(u64) + Sync> Mover for Meanwhile<'_, '_, '_, R> {
        fn copy(&mut self, from: SlotIndex, to: SlotIndex) {
            if self.reads == READS {
                return self.mover.copy(from, to);
            }
            self.reads += 1;
            let partition = &*self.object.inner.partition;
            let (_, page) = partition.page_of(partition.table.slot(from).tag());
            let (read, before) = (self.read, partition.counters.sum(Count::Misses));
            self.scope.spawn(move || read(page.0 * PAGE));
            // The read ends after the move. A wrong miss is counted before the read waits.
            let end = Instant::now() + Duration::from_millis(20);
            while Instant::now() < end && partition.counters.sum(Count::Misses) == before {
                std::thread::yield_now();
            }
            self.mover.copy(from, to);
        }

        fn wake(&mut self, slot: SlotIndex) {
            self.mover.wake(slot);
        }
    }

    /// Sixty-four disks of one image once read it 64 times with one miss too many: a shrinking
    /// partition was moving a page when it was read, and the look without locks did not find it.
    #[test]
    fn reads_of_pages_that_a_resize_is_moving_count_as_hits() {
        // Few segments, so that pages lie in the one that leaves.
        let config = CacheConfig { memory_max_bytes: 16 << 20, background: false, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        let object = partition.open(Store::memory("m", PAGES * PAGE), "o").unwrap();
        object.read_at(0, &mut vec![0; (PAGES * PAGE) as usize]).unwrap();
        let inner = &*object.inner.partition;
        let count = |count| inner.counters.sum(count);
        let read = |offset: u64| object.read_at(offset, &mut [0; 8]).unwrap();
        let (misses, fills, hits) = (count(Count::Misses), count(Count::Fills), count(Count::Hits));
        std::thread::scope(|scope| {
            let mover = PageMover::new(inner);
            let mut mover = Meanwhile { mover, object: &object, scope, read: &read, reads: 0 };
            let segment = inner.table.segment_to_leave(&[]).unwrap();
            for entry in inner.table.leave(segment) {
                assert_eq!(inner.table.advance(entry, &mut mover).busy, None);
            }
            assert_eq!(mover.reads, READS);
        });
        assert_eq!((count(Count::Misses), count(Count::Fills)), (misses, fills));
        assert_eq!(count(Count::Hits), hits + READS);
    }
}
