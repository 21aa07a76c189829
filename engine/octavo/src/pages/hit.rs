//! A hit: a read of a resident page without a lock or a system call.
//!
//! Hits store to shared memory only for the policy (`touch` in `octavo_table`): they set a page's
//! mark at its first hit. If the policy counts every hit, or if the monitor follows the page, they
//! also change a count.
//!
//! The layers, top down:
//!
//! | caller | object | partition |
//! |---|---|---|
//! | `Object::read_at`, up to 128 bytes | `read_inline` | `copy_inline` |
//! | `Object::read_at`, inside one page | `read_page` | `copy_resident`, then `copy_again` |
//! | `Object::read_batch` | `read_many` | `copy_candidate`, then `copy_again` |
//!
//! A hit takes three steps:
//!
//! 1. *Find* (`Table::candidate`): compare the fingerprints of the page's set, all at once. The
//!    first match is the *candidate* slot.
//! 2. *Copy* the bytes optimistically: a writer may change them during the copy.
//! 3. *Check* that the bytes did not change, by one word of the whole set (P13). If this check is
//!    inconclusive, `copy_again` repeats the read and checks the slot's own word (P3).
//!
//! A read that fails here is not necessarily a miss: the slow path (`flight/read.rs`) looks again
//! under the set's lock. While a recording is active or accesses are counted by node,
//! `Counters::at_hand` returns `None` and every read takes the accounted path (`access.rs`)
//! instead. A thread whose last read was in another partition takes the accounted path once, too.
//!
//! Not here: misses (`flight/read.rs`), pins (`api/pin.rs`).

use std::mem::MaybeUninit;

use octavo_table::{Found, SlotIndex, Tag};

use crate::memory::copy;
use crate::position::ByteOffset;
use crate::request::ReadOfBatch;
use crate::state::partition::{ObjectInner, PartitionInner};

/// A batch looks up each read this many reads before it copies the read's bytes: enough to keep the
/// memory system busy.
pub(crate) const AHEAD: usize = 12;
const AHEAD_RING: usize = (AHEAD + 1).next_power_of_two();

/// Reads of up to this many bytes are prefetched when they are looked up: their first and last
/// cache lines.
const SHORT_BYTES: usize = copy::INLINE_BYTES;

/// Longer reads are prefetched this many reads before they are copied.
const AHEAD_LONG: usize = 3;

/// Most optimistic copies of one read. After that the slow path takes the set's lock and pins the
/// page.
pub(crate) const OPTIMISTIC_TRIES: usize = 4;

/// A read of at least this many bytes prefetches the first cache lines of its bytes before the
/// candidate slot is confirmed.
const LONG_BYTES: usize = 512;

// ---- One read

impl ObjectInner {
    /// Reads up to `copy::INLINE_BYTES` bytes inside one page and counts the hit. Returns `false`,
    /// with nothing counted, if the range is longer, crosses a page boundary or lies in the
    /// object's last page, or if `copy_inline` fails.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes.
    #[inline(always)]
    pub unsafe fn read_inline(&self, offset: ByteOffset, to: *mut u8, len: usize) -> bool {
        let partition = &*self.partition;
        let skip = partition.page_size.offset_in_page(offset);
        let is_inside = offset < self.last_page() && skip + len <= partition.page_bytes();
        if len > copy::INLINE_BYTES || !is_inside {
            return false;
        }
        // SAFETY: the caller's promise, and the range lies in one page.
        unsafe { partition.copy_inline(self.tag_at(offset), skip, to, len) }
    }

    /// Reads a range inside one page if the page is resident. Counts nothing.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes, and the range lies in one page.
    #[inline(always)]
    pub unsafe fn read_page(&self, offset: ByteOffset, to: *mut u8, len: usize) -> bool {
        let partition = &*self.partition;
        let skip = partition.page_size.offset_in_page(offset);
        // SAFETY: the caller's promise.
        unsafe { partition.copy_resident(self.tag_at(offset), skip, to, len) }
    }
}

impl PartitionInner {
    /// Does what `copy_resident` does, for at most `copy::INLINE_BYTES` bytes, and also counts the
    /// hit. Returns `false`, with nothing counted, if the caller must try `copy_resident`.
    ///
    /// This function makes no calls, so it neither saves nor spills registers: every extra
    /// instruction of a hit delays the processor's start on the next hit.
    ///
    /// # Safety
    /// As `copy_resident`, and `len` is at most `copy::INLINE_BYTES`.
    #[inline(always)]
    pub unsafe fn copy_inline(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        let Some(counts) = self.counters.at_hand() else { return false };
        let Some(candidate) = self.table.candidate(tag) else { return false };
        let Some(glance) = self.table.glance(candidate, tag) else { return false };
        let frame = self.frames.at(candidate).wrapping_add(skip);
        // SAFETY: as in `copy_found`.
        unsafe { copy::copy_out_inline(frame, to, len) };
        if !glance.is_still_shown() {
            return false;
        }
        self.table.touch_at(&glance, tag);
        counts.add_hit(len as u64);
        true
    }

    /// P13: copies `len` bytes, from offset `skip` in a page, if the page is resident and no writer
    /// interferes. Takes no lock, makes no system call, and stores to shared memory only for the
    /// policy.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes, and `skip + len` is at most a page.
    #[inline(always)]
    pub unsafe fn copy_resident(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        let Some(candidate) = self.table.candidate(tag) else { return false };
        if len >= LONG_BYTES {
            // Fetch the page's bytes in parallel with the slot that confirms them.
            copy::prefetch_frame(self.frames.at(candidate).wrapping_add(skip), LONG_BYTES);
        }
        // SAFETY: the caller's promise.
        if unsafe {
            self.copy_candidate::<false>(
                candidate,
                tag,
                self.frames.at(candidate).wrapping_add(skip),
                to,
                len,
            )
        } {
            return true;
        }
        // SAFETY: as above.
        unsafe { self.copy_again(tag, skip, to, len) }
    }

    /// P13 for the candidate slot. Returns `false` if the slot belongs to another page, or if any
    /// page of the set was changed or removed during the copy.
    ///
    /// # Safety
    /// The `len` bytes at `from` lie in the slot's frame; `to` is valid for `len` bytes. `WIDE`
    /// only if `copy::is_wide`.
    #[inline(always)]
    pub unsafe fn copy_candidate<const WIDE: bool>(
        &self,
        candidate: SlotIndex,
        tag: Tag,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> bool {
        let Some(glance) = self.table.glance(candidate, tag) else { return false };
        // SAFETY: as in `copy_found`.
        unsafe { copy::copy_out_known::<WIDE>(from, to, len) };
        let good = glance.is_still_shown();
        if good {
            self.table.touch_at(&glance, tag);
        }
        good
    }

    /// Repeats `copy_resident` by P3. Needed if the candidate slot belongs to another page, or if a
    /// page of the set was claimed or written during the copy.
    ///
    /// # Safety
    /// As `copy_resident`.
    #[cold]
    #[inline(never)]
    pub unsafe fn copy_again(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        for _ in 0..OPTIMISTIC_TRIES {
            let Some(found) = self.table.find(tag) else { return false };
            if !found.word.readable() {
                return false;
            }
            // SAFETY: the caller's promise.
            if unsafe { self.copy_found(&found, skip, to, len) } {
                return true;
            }
        }
        false
    }

    /// P3 for a page that `Table::find` has found. Returns `false` if the page changed during
    /// the copy.
    ///
    /// # Safety
    /// As `copy_resident`.
    #[inline(always)]
    pub unsafe fn copy_found(&self, found: &Found<'_>, skip: usize, to: *mut u8, len: usize) -> bool {
        let frame = self.frames.at(found.index).wrapping_add(skip);
        // SAFETY: the frame is mapped for the partition's life; the copy may race with a writer,
        // which `copy_out` allows.
        unsafe { copy::copy_out(frame, to, len) };
        let good = found.slot().unchanged(found.word);
        if good {
            self.table.touch(found);
        }
        good
    }

    /// Returns the address of the byte at `offset` of an object, if its page is in `slot`.
    #[inline(always)]
    pub fn byte_at(&self, slot: SlotIndex, offset: ByteOffset) -> *const u8 {
        self.frames.at(slot).wrapping_add(self.page_size.offset_in_page(offset))
    }
}

// ---- A batch of reads

impl ObjectInner {
    /// Serves the hits of a batch, appends the indices of the other reads to `missing`, and returns
    /// the total length of all reads in bytes. Each read is looked up `AHEAD` reads before it is
    /// copied, so its tag and bytes arrive in the processor's cache while earlier reads are copied.
    #[inline(always)]
    pub fn read_many<R: ReadOfBatch>(&self, reads: &mut [R], missing: &mut Vec<usize>) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if copy::is_wide() {
            // SAFETY: `is_wide` implies AVX2, BMI1 and BMI2.
            return unsafe { self.read_many_wide(reads, missing) };
        }
        self.read_many_as::<false, R>(reads, missing)
    }

    /// `read_many` compiled with the extensions that come with AVX-512: it executes a tenth fewer
    /// instructions. A batch is long enough to pay for the check; a single read is not.
    ///
    /// # Safety
    /// Only if `copy::is_wide`.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn read_many_wide<R: ReadOfBatch>(&self, reads: &mut [R], missing: &mut Vec<usize>) -> u64 {
        self.read_many_as::<true, R>(reads, missing)
    }

    #[inline(always)]
    fn read_many_as<const WIDE: bool, R: ReadOfBatch>(
        &self,
        reads: &mut [R],
        missing: &mut Vec<usize>,
    ) -> u64 {
        let is_short = |read: Option<&R>| read.is_none_or(|read| read.len() <= SHORT_BYTES);
        // The first and the last read decide. A long read between short ones is then read on its
        // own, without prefetch (`locate::<false>`).
        match is_short(reads.first()) && is_short(reads.last()) {
            true => self.read_many_ahead::<WIDE, false, R>(reads, missing),
            false => self.read_many_ahead::<WIDE, true, R>(reads, missing),
        }
    }

    #[inline(always)]
    fn read_many_ahead<const WIDE: bool, const LONG: bool, R: ReadOfBatch>(
        &self,
        reads: &mut [R],
        missing: &mut Vec<usize>,
    ) -> u64 {
        let partition = &*self.partition;
        let mut ahead = [const { MaybeUninit::<Located>::uninit() }; AHEAD_RING];
        let mut bytes = 0;
        for (number, read) in reads.iter().take(AHEAD).enumerate() {
            ahead[number].write(self.locate::<LONG, R>(partition, read));
        }
        let before_last = reads.len().saturating_sub(AHEAD);
        for number in 0..reads.len() {
            if number < before_last {
                // SAFETY: `number < before_last`, so `number + AHEAD` is an index of `reads`.
                let read = unsafe { reads.get_unchecked(number + AHEAD) };
                ahead[(number + AHEAD) % AHEAD_RING].write(self.locate::<LONG, R>(partition, read));
            }
            bytes += reads[number].len() as u64;
            // SAFETY: this read was located `AHEAD` turns ago, and the next `AHEAD_LONG` after
            // it.
            if !unsafe { self.read_located::<WIDE, LONG, R>(partition, reads, number, &ahead) } {
                missing.push(number);
            }
        }
        bytes
    }

    /// Copies one located read of a batch. Returns whether it was a hit.
    ///
    /// # Safety
    /// The read was located, and so were the next `AHEAD_LONG` reads, or all up to the end. `WIDE`
    /// only if `copy::is_wide`.
    #[inline(always)]
    unsafe fn read_located<const WIDE: bool, const LONG: bool, R: ReadOfBatch>(
        &self,
        partition: &PartitionInner,
        reads: &mut [R],
        number: usize,
        ahead: &[MaybeUninit<Located>; AHEAD_RING],
    ) -> bool {
        // Long reads are prefetched later than they are located: otherwise the first-level cache
        // would evict their lines before the copy.
        if LONG
            && let Some(read) = reads.get(number + AHEAD_LONG)
            && read.len() > SHORT_BYTES
        {
            // SAFETY: the caller's promise.
            let located = unsafe { ahead[(number + AHEAD_LONG) % AHEAD_RING].assume_init_ref() };
            if !located.from.is_null() {
                copy::prefetch_frame(located.from, read.len());
            }
        }
        let read = &mut reads[number];
        // SAFETY: the caller's promise.
        let Located { tag, from, slot } = *unsafe { ahead[number % AHEAD_RING].assume_init_ref() };
        let (to, len) = (read.memory(), read.len());
        if from.is_null() {
            return self.read_page_again(read);
        }
        if !LONG {
            // SAFETY: `locate::<false>` leaves `from` null for longer reads. Saves the copy a
            // comparison.
            unsafe { std::hint::assert_unchecked(len <= SHORT_BYTES) };
        }
        // SAFETY: `locate` has checked that the range lies in one page, and the buffer is valid
        // for its length. `WIDE` is the caller's promise.
        let is_hit = unsafe { partition.copy_candidate::<WIDE>(slot, tag, from, to, len) };
        is_hit || self.read_page_again(read)
    }

    /// Finds the candidate slot of a read in a batch, and prefetches what its copy needs. If `LONG`
    /// is false, reads of more than `SHORT_BYTES` are left to `read_page_again`.
    #[inline(always)]
    fn locate<const LONG: bool, R: ReadOfBatch>(&self, partition: &PartitionInner, read: &R) -> Located {
        // Does not use `tag_at`, which would load the partition's address again for each read.
        let tag = partition.tag_among(self.begun, partition.page_size.page_of(read.start()));
        let len = read.len();
        let skip = partition.page_size.offset_in_page(read.start());
        // The object's last page, which may be partial, is left to `read_page_again`.
        let is_inside = read.start() < self.last_page() && skip + len <= partition.page_bytes();
        let is_short = len <= SHORT_BYTES;
        match partition.table.candidate(tag) {
            Some(slot) if is_inside && (LONG || is_short) => {
                partition.table.prefetch_tag(slot);
                let from = partition.frames.at(slot).wrapping_add(skip).cast_const();
                if is_short {
                    copy::prefetch_ends(from, len);
                }
                Located { tag, from, slot }
            }
            _ => Located { tag, from: std::ptr::null(), slot: SlotIndex(0) },
        }
    }

    /// Serves one read of a batch by P3, after `locate` or the optimistic copy has failed.
    #[cold]
    #[inline(never)]
    fn read_page_again<R: ReadOfBatch>(&self, read: &mut R) -> bool {
        let (partition, len) = (&*self.partition, read.len());
        let (skip, to) = (partition.page_size.offset_in_page(read.start()), read.memory());
        self.check(read.start(), len as u64).is_ok()
            && self.in_one_page(read.start(), len)
            // SAFETY: the buffer is valid for its length, and the range lies in one page.
            && unsafe { partition.copy_again(self.tag_at(read.start()), skip, to, len) }
    }
}

/// A read of a batch between its lookup and its copy.
#[repr(align(32))]
struct Located {
    tag: Tag,
    /// The read's bytes, if its page is in `slot`. Null if no fingerprint matched, or if the
    /// read lies in the last page, crosses a page boundary, or is too long.
    from: *const u8,
    slot: SlotIndex,
}

#[cfg(all(test, target_arch = "x86_64", not(any(miri, loom, shuttle))))]
mod tests {
    use octavo_disk::Store;

    use super::*;
    use crate::{Advice, Cache, CacheConfig, PartitionConfig, Read};

    const PAGES: u64 = 64;
    const PAGE: u64 = 4096;

    /// On a machine with AVX-512, ordinary batches run only the wide version, so the test calls
    /// both.
    #[test]
    fn a_batch_reads_the_same_bytes_with_and_without_wide_copies() {
        let cache = Cache::new(CacheConfig { memory_max_bytes: 32 << 20, ..CacheConfig::default() }).unwrap();
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        let object = partition.open(Store::memory("m", PAGES * PAGE), "m").unwrap();
        let byte = |offset: u64| (offset * 7 % 251) as u8;
        let bytes: Vec<u8> = (0..PAGES * PAGE).map(byte).collect();
        object.write_at(0, &bytes).unwrap();
        // Evict every third page.
        (0..PAGES).step_by(3).for_each(|page| object.advise(page * PAGE, PAGE, Advice::DontNeed).unwrap());
        let there: Vec<u64> = (0..PAGES).filter(|page| object.is_resident(page * PAGE)).collect();
        assert_eq!(there.len() as u64, PAGES - PAGES.div_ceil(3));
        for len in [0, 1, 7, 16, 40, 64, 100, 127, 128, 129, 600, 4096] {
            let offset = |page: u64| page * PAGE + (page * 50).min(PAGE - len as u64);
            let pages = || (0..PAGES - 1).map(|number| number * 37 % (PAGES - 1));
            let read = |wide: bool| {
                let mut buffers = vec![vec![0xEE; len]; PAGES as usize - 1];
                let places = pages().zip(&mut buffers);
                let mut reads: Vec<Read<'_>> =
                    places.map(|(page, buffer)| Read { offset: offset(page), buffer }).collect();
                let mut missing = Vec::new();
                let bytes = match wide {
                    // SAFETY: the test passes `true` only if `copy::is_wide`.
                    true => unsafe { object.inner.read_many_wide(&mut reads, &mut missing) },
                    false => object.inner.read_many_as::<false, _>(&mut reads, &mut missing),
                };
                assert_eq!(bytes, (len as u64) * (PAGES - 1));
                (missing, buffers)
            };
            let (missing, buffers) = read(false);
            for (number, page) in pages().enumerate() {
                assert_eq!(missing.contains(&number), !there.contains(&page), "{len} bytes of page {page}");
                let is_read = |(offset, found): (u64, &u8)| *found == byte(offset);
                let is_right = (offset(page)..).zip(&buffers[number]).all(is_read);
                assert!(!there.contains(&page) || is_right, "{len} bytes of page {page}");
            }
            if copy::is_wide() {
                assert_eq!((missing, buffers), read(true), "{len} bytes");
            }
        }
    }
}
