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
//! | `Object::read_at`, inside one page | `read_hit` | `copy_resident`, then `copy_again` |
//! | `Object::read_at`, several pages | `read_run` | `copy_candidate`, then `copy_again` |
//! | `Object::read_batch` | `read_many` | `copy_candidate`, then `copy_again` |
//!
//! A hit takes three steps:
//!
//! 1. *Find* (`Table::candidate_known`): compare the fingerprints of the page's set, all at once.
//!    The first match is the *candidate* slot.
//! 2. *Copy* the bytes optimistically: a writer may change them during the copy.
//! 3. *Check* that the bytes did not change, by one word of the whole set (P13). If this check is
//!    inconclusive, `copy_again` repeats the read and checks the slot's own word (P3).
//!
//! In a few percent of the hits the candidate is another page with the same fingerprint.
//! `copy_beyond` then looks at the other slots.
//!
//! A read that fails here is not necessarily a miss: the slow path (`flight/read.rs`) looks again
//! under the set's lock. While a recording is active or accesses are counted by node,
//! `Counters::at_hand` returns `None` and every read takes the accounted path (`access.rs`)
//! instead. A thread whose last read was in another partition takes the accounted path once, too.
//!
//! # What a hit costs
//!
//! A hit waits for memory. What decides the rate of hits is how many of them fit into the
//! processor's reorder window, so each instruction counts. The budget of a hit of 128 bytes, in
//! instructions (x86-64 with AVX2 and without AVX-512; `cargo xtask instructions` checks the sum):
//!
//! | step | single | batch | |
//! |---|---|---|---|
//! | range | 9 | 12 | partition, offset in the page, object's end, page's end; batch: length |
//! | page index | 3 | 2 | a shift by a variable takes 3 without BMI2 |
//! | tag | 15 | 15 | offset, near, far, upper (`tag.rs`) |
//! | directory, set | 8 | 8 | mask, entry, set in the segment |
//! | probe | 10 | 10 | address of the front, four vector instructions, lowest way |
//! | slot, frame | 5 | 5 | |
//! | prefetch, store | | 11 | tag, first and last line; then what the copy needs of the lookup |
//! | load | | 8 | what the lookup stored |
//! | shown ways, tag | 4 | 4 | P13 |
//! | copy | 12 | 10 | AVX-512 takes 5 less |
//! | re-check, mark | 6 | 7 | P13; one test for the shown bit and the mark |
//! | counters | 7 | | thread's block, hits, bytes; batch: once |
//! | loop | | 8 | |
//!
//! The rest of the recorded number is the loop of the caller, and what a few pages take in
//! addition: those that the monitor follows, and those whose fingerprint is also another page's.
//!
//! A hit touches two lines of the table, the front of the set and the tag, and those of its bytes.
//! `copy_inline` and `read_inline` use AVX2 and BMI2 without asking: `ObjectInner::inline_end` is 0
//! on a processor without them.
//!
//! Not here: misses (`flight/read.rs`), pins (`api/pin.rs`).

use std::hint::cold_path;
use std::mem::MaybeUninit;

use octavo_table::{Candidate, Found, SlotIndex, Tag};

use crate::memory::copy::{self, Width};
use crate::position::ByteOffset;
use crate::request::ReadOfBatch;
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::ways::WAYS;

/// A batch looks up each read this many reads before it copies the read's bytes: enough to keep the
/// memory system busy.
pub(crate) const AHEAD: usize = 12;

/// A batch is served in parts of this many reads, and a run (`run.rs`) in parts of this many pages,
/// so that the places of those that were looked up are bounded. More than most batches have.
pub(crate) const TOGETHER: usize = 64;

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

/// The widths as constants.
const UNKNOWN: u8 = Width::Unknown as u8;
const AVX2: u8 = Width::Avx2 as u8;
const AVX512: u8 = Width::Avx512 as u8;

const fn width_of(width: u8) -> Width {
    match width {
        AVX512 => Width::Avx512,
        AVX2 => Width::Avx2,
        _ => Width::Unknown,
    }
}

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
        let is_inside = offset < self.inline_end() && skip + len <= partition.page_bytes();
        if len > copy::INLINE_BYTES || !is_inside {
            cold_path();
            return false;
        }
        // SAFETY: the caller's promise, and the range lies in one page. The processor has inline
        // hits, because `inline_end` is not 0.
        unsafe { partition.copy_inline(self.near_tag_at(partition, offset), skip, to, len) }
    }

    /// Returns the tag of the page that contains `offset`, and the slot that may hold it.
    #[inline(always)]
    pub fn candidate_at(&self, partition: &PartitionInner, offset: ByteOffset) -> (Tag, Option<SlotIndex>) {
        if offset >= self.inline_end() {
            let tag = self.tag_at(offset);
            return (tag, partition.table.candidate(tag));
        }
        let tag = self.near_tag_at(partition, offset);
        // SAFETY: `inline_end` is not 0, and `copy::is_inline` implies AVX2 and BMI2.
        let candidate = unsafe { partition.table.candidate_known::<true>(tag) };
        (tag, candidate.map(|candidate| candidate.slot))
    }
}

impl PartitionInner {
    /// Does what `copy_resident` does, for at most `copy::INLINE_BYTES` bytes, and also counts the
    /// hit. Returns `false`, with nothing counted, if the caller must try `copy_resident`.
    ///
    /// This function makes no calls, so it neither saves nor spills registers.
    ///
    /// # Safety
    /// As `copy_resident`, `len` is at most `copy::INLINE_BYTES`, and `copy::is_inline`.
    #[inline(always)]
    pub unsafe fn copy_inline(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        // SAFETY: `copy::is_inline` implies AVX2 and BMI2.
        let Some(candidate) = (unsafe { self.table.candidate_known::<true>(tag) }) else {
            cold_path();
            return false;
        };
        let Some(glance) = self.table.glance_at(candidate, tag) else {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_beyond_counted(candidate, tag, skip, to, len) };
        };
        let frame = self.frames.at(candidate.slot).wrapping_add(skip);
        // SAFETY: as in `copy_found`; the width is the processor's.
        unsafe { copy::copy_out_inline(self.width, frame, to, len) };
        // Last, so that no register holds the counters during the copy.
        let Some(counts) = self.counters.at_hand() else {
            cold_path();
            return false;
        };
        if !self.table.hit(&glance) {
            cold_path();
            return false;
        }
        counts.add_hit(len as u64);
        true
    }

    /// `copy_beyond`, and counts the hit.
    ///
    /// # Safety
    /// As `copy_resident`.
    #[cold]
    #[inline(never)]
    unsafe fn copy_beyond_counted(
        &self,
        candidate: Candidate<'_, WAYS>,
        tag: Tag,
        skip: usize,
        to: *mut u8,
        len: usize,
    ) -> bool {
        let Some(counts) = self.counters.at_hand() else { return false };
        // SAFETY: the caller's promise.
        let is_hit = unsafe { self.copy_beyond(candidate, tag, skip, to, len) };
        if is_hit {
            counts.add_hit(len as u64);
        }
        is_hit
    }

    /// P13 for a page whose candidate slot belongs to another page with the same fingerprint: looks
    /// at the other slots.
    ///
    /// # Safety
    /// As `copy_resident`.
    #[inline(always)]
    unsafe fn copy_beyond(
        &self,
        candidate: Candidate<'_, WAYS>,
        tag: Tag,
        skip: usize,
        to: *mut u8,
        len: usize,
    ) -> bool {
        let Some((glance, slot)) = self.table.glance_beyond(candidate, tag) else { return false };
        // SAFETY: as in `copy_found`.
        unsafe { copy::copy_out(self.frames.at(slot).wrapping_add(skip), to, len) };
        self.table.hit(&glance)
    }

    /// P13: copies `len` bytes, from offset `skip` in a page, if the page is resident and no writer
    /// interferes. Takes no lock, makes no system call, and stores to shared memory only for the
    /// policy.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes, and `skip + len` is at most a page.
    #[inline(always)]
    pub unsafe fn copy_resident(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        // SAFETY: it relies on nothing.
        let Some(candidate) = (unsafe { self.table.candidate_known::<false>(tag) }) else { return false };
        let from = self.frames.at(candidate.slot).wrapping_add(skip);
        if len >= LONG_BYTES {
            // Fetch the page's bytes in parallel with the slot that confirms them.
            copy::prefetch_frame(from, LONG_BYTES);
        }
        // SAFETY: the caller's promise.
        if unsafe { self.copy_candidate(Width::Unknown, candidate, tag, from, to, len) } {
            return true;
        }
        // SAFETY: as above.
        unsafe { self.copy_again(tag, skip, to, len) }
    }

    /// P13 for the candidate slot. Returns `false` if the slot belongs to another page, or if any
    /// page of the set was changed or removed during the copy.
    ///
    /// # Safety
    /// The `len` bytes at `from` lie in the slot's frame; `to` is valid for `len` bytes. The
    /// processor has vectors of this width.
    #[inline(always)]
    pub unsafe fn copy_candidate(
        &self,
        width: Width,
        candidate: Candidate<'_, WAYS>,
        tag: Tag,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> bool {
        let Some(glance) = self.table.glance_at(candidate, tag) else { return false };
        // SAFETY: as in `copy_found`.
        unsafe { copy::copy_out_known(width, from, to, len) };
        self.table.hit(&glance)
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
        match copy::width() {
            // SAFETY: the width implies AVX2, BMI1 and BMI2.
            #[cfg(target_arch = "x86_64")]
            Width::Avx512 => unsafe { self.read_many_avx512(reads, missing) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => unsafe { self.read_many_avx2(reads, missing) },
            _ => self.read_many_as::<UNKNOWN, R>(reads, missing),
        }
    }

    /// `read_many` compiled with the extensions that come with AVX-512. A batch is long enough to
    /// pay for the choice; a single read is not.
    ///
    /// # Safety
    /// Only if `copy::width` is `Avx512`.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn read_many_avx512<R: ReadOfBatch>(&self, reads: &mut [R], missing: &mut Vec<usize>) -> u64 {
        self.read_many_as::<AVX512, R>(reads, missing)
    }

    /// `read_many` compiled with the extensions that come with AVX2.
    ///
    /// # Safety
    /// Only if `copy::width` is at least `Avx2`.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn read_many_avx2<R: ReadOfBatch>(&self, reads: &mut [R], missing: &mut Vec<usize>) -> u64 {
        self.read_many_as::<AVX2, R>(reads, missing)
    }

    #[inline(always)]
    fn read_many_as<const WIDTH: u8, R: ReadOfBatch>(
        &self,
        reads: &mut [R],
        missing: &mut Vec<usize>,
    ) -> u64 {
        let is_short = |read: Option<&R>| read.is_none_or(|read| read.len() <= SHORT_BYTES);
        // The first and the last read decide. A long read between short ones is then read on its
        // own, without prefetch (`locate::<false>`).
        match is_short(reads.first()) && is_short(reads.last()) {
            true => self.read_many_ahead::<WIDTH, false, R>(reads, missing),
            false => self.read_many_ahead::<WIDTH, true, R>(reads, missing),
        }
    }

    #[inline(always)]
    fn read_many_ahead<const WIDTH: u8, const LONG: bool, R: ReadOfBatch>(
        &self,
        reads: &mut [R],
        missing: &mut Vec<usize>,
    ) -> u64 {
        let partition = &*self.partition;
        let mut bytes = 0;
        for (part, reads) in reads.chunks_mut(TOGETHER).enumerate() {
            let (mut ahead, before) = ([const { MaybeUninit::uninit() }; TOGETHER], missing.len());
            for number in 0..reads.len().min(AHEAD) {
                self.locate::<WIDTH, LONG, R>(partition, &reads[number], &mut ahead[number]);
            }
            let before_last = reads.len().saturating_sub(AHEAD);
            for number in 0..before_last {
                // SAFETY: `number < before_last`, so `number + AHEAD` is an index of `reads`.
                let read = unsafe { reads.get_unchecked(number + AHEAD) };
                self.locate::<WIDTH, LONG, R>(partition, read, &mut ahead[number + AHEAD]);
                bytes += reads[number].len() as u64;
                // SAFETY: this read was located `AHEAD` turns ago, and the next `AHEAD_LONG` after
                // it. The width is the caller's promise.
                if !unsafe { self.read_located::<WIDTH, LONG, R>(partition, reads, number, &ahead) } {
                    missing.push(number);
                }
            }
            // The same for the last reads, without a test in each turn.
            for number in before_last..reads.len() {
                bytes += reads[number].len() as u64;
                // SAFETY: as above; all reads were located.
                if !unsafe { self.read_located::<WIDTH, LONG, R>(partition, reads, number, &ahead) } {
                    missing.push(number);
                }
            }
            missing[before..].iter_mut().for_each(|number| *number += part * TOGETHER);
        }
        // SAFETY: the caller's promise.
        unsafe { copy::close(width_of(WIDTH)) };
        bytes
    }

    /// Copies one located read of a batch. Returns whether it was a hit.
    ///
    /// # Safety
    /// The read was located, and so were the next `AHEAD_LONG` reads, or all up to the end. The
    /// processor has vectors of this width.
    #[inline(always)]
    unsafe fn read_located<const WIDTH: u8, const LONG: bool, R: ReadOfBatch>(
        &self,
        partition: &PartitionInner,
        reads: &mut [R],
        number: usize,
        ahead: &[MaybeUninit<Option<Located<'_>>>; TOGETHER],
    ) -> bool {
        // Long reads are prefetched later than they are located: otherwise the first-level cache
        // would evict their lines before the copy.
        if LONG
            && let Some(read) = reads.get(number + AHEAD_LONG)
            && read.len() > SHORT_BYTES
            // SAFETY: the caller's promise.
            && let Some(located) = unsafe { ahead[number + AHEAD_LONG].assume_init_ref() }
        {
            copy::prefetch_frame(located.from, read.len());
        }
        let read = &mut reads[number];
        // SAFETY: the caller's promise.
        let Some(located) = (unsafe { ahead[number].assume_init_ref() }) else {
            return self.read_page_again(read);
        };
        let Located { candidate, tag, from } = *located;
        let (to, len) = (read.memory(), read.len());
        if !LONG {
            // SAFETY: `locate::<false>` locates no longer reads. Saves the copy a comparison.
            unsafe { std::hint::assert_unchecked(len <= SHORT_BYTES) };
        }
        // SAFETY: `locate` has checked that the range lies in one page, and the buffer is valid
        // for its length. The width is the caller's promise.
        let is_hit = unsafe { partition.copy_candidate(width_of(WIDTH), candidate, tag, from, to, len) };
        is_hit || self.read_located_again(located, read)
    }

    /// Serves one located read of a batch, after its optimistic copy has failed.
    #[cold]
    #[inline(never)]
    fn read_located_again<R: ReadOfBatch>(&self, located: &Located<'_>, read: &mut R) -> bool {
        let Located { candidate, tag, .. } = *located;
        let (partition, len, to) = (&*self.partition, read.len(), read.memory());
        let skip = partition.page_size.offset_in_page(read.start());
        // SAFETY: the buffer is valid for its length, and `locate` has checked that the range lies
        // in one page.
        let is_hit = unsafe { partition.copy_beyond(candidate, tag, skip, to, len) };
        is_hit || self.read_page_again(read)
    }

    /// Finds the candidate slot of a read in a batch, and prefetches what its copy needs. The
    /// result goes to `place`: `None` if no fingerprint matched, or if the read lies in the last
    /// page, crosses a page boundary, or, unless `LONG`, has more than `SHORT_BYTES`.
    #[inline(always)]
    fn locate<'p, const WIDTH: u8, const LONG: bool, R: ReadOfBatch>(
        &self,
        partition: &'p PartitionInner,
        read: &R,
        place: &mut MaybeUninit<Option<Located<'p>>>,
    ) {
        let (start, len) = (read.start(), read.len());
        let skip = partition.page_size.offset_in_page(start);
        let is_short = len <= SHORT_BYTES;
        // The object's last page, which may be partial, is left to `read_page_again`.
        if start >= self.near_end() || skip + len > partition.page_bytes() || !(LONG || is_short) {
            cold_path();
            return not_located(place);
        }
        let tag = self.near_tag_at(partition, start);
        let candidate = match WIDTH {
            // SAFETY: it relies on nothing.
            UNKNOWN => unsafe { partition.table.candidate_known::<false>(tag) },
            // SAFETY: a known width implies AVX2 and BMI2.
            _ => unsafe { partition.table.candidate_known::<true>(tag) },
        };
        let Some(candidate) = candidate else { return not_located(place) };
        partition.table.prefetch_tag(candidate.slot);
        let from = partition.frames.at(candidate.slot).wrapping_add(skip).cast_const();
        if is_short {
            copy::prefetch_ends(from, len);
        }
        place.write(Some(Located { candidate, tag, from }));
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

/// A call, so that the compiler does not merge the two ways to fill a place, which would take more
/// instructions of a hit.
#[cold]
#[inline(never)]
fn not_located(place: &mut MaybeUninit<Option<Located<'_>>>) {
    place.write(None);
}

/// A read of a batch between its lookup and its copy.
#[derive(Clone, Copy)]
struct Located<'p> {
    candidate: Candidate<'p, WAYS>,
    tag: Tag,
    /// The read's bytes, if its page is in the slot.
    from: *const u8,
}

#[cfg(all(test, target_arch = "x86_64", not(any(miri, loom, shuttle))))]
mod tests {
    use octavo_disk::Store;

    use super::*;
    use crate::{Advice, Cache, CacheConfig, PartitionConfig, Read};

    /// A batch of nearly all of them has several parts.
    const PAGES: u64 = 3 * TOGETHER as u64;
    const PAGE: u64 = 4096;

    /// On a machine with AVX-512, ordinary batches run only the widest version, so the test calls
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
            let offset = |page: u64| page * PAGE + (page * 50 % PAGE).min(PAGE - len.max(1) as u64);
            let pages = || (0..PAGES - 1).map(|number| number * 37 % (PAGES - 1));
            let read = |width: Width| {
                let mut buffers = vec![vec![0xEE; len]; PAGES as usize - 1];
                let places = pages().zip(&mut buffers);
                let mut reads: Vec<Read<'_>> =
                    places.map(|(page, buffer)| Read { offset: offset(page), buffer }).collect();
                let mut missing = Vec::new();
                let bytes = match width {
                    // SAFETY: the test passes only widths that the processor has.
                    Width::Avx512 => unsafe { object.inner.read_many_avx512(&mut reads, &mut missing) },
                    // SAFETY: as above.
                    Width::Avx2 => unsafe { object.inner.read_many_avx2(&mut reads, &mut missing) },
                    Width::Unknown => object.inner.read_many_as::<UNKNOWN, _>(&mut reads, &mut missing),
                };
                assert_eq!(bytes, (len as u64) * (PAGES - 1));
                (missing, buffers)
            };
            let (missing, buffers) = read(Width::Unknown);
            for (number, page) in pages().enumerate() {
                assert_eq!(missing.contains(&number), !there.contains(&page), "{len} bytes of page {page}");
                let is_read = |(offset, found): (u64, &u8)| *found == byte(offset);
                let is_right = (offset(page)..).zip(&buffers[number]).all(is_read);
                assert!(!there.contains(&page) || is_right, "{len} bytes of page {page}");
            }
            let (all, best) = ([Width::Avx2, Width::Avx512], copy::width());
            for width in all.into_iter().filter(|width| *width as u8 <= best as u8) {
                let again = read(width);
                assert_eq!((&missing, &buffers), (&again.0, &again.1), "{len} bytes, {width:?}");
            }
        }
    }
}
