//! References: the same work without a cache, as fast as we can make it.
//!
//! * [`Gather`]: copies random places of one large array on huge pages. No hit can be faster: there
//!   is no lookup, no check and no counter. One loop is plain and one prefetches; the faster one is
//!   the reference. The places come from a stream of indices that is made before the run.
//!   [`Gather::lines`] reads one cache line of each place and keeps nothing: the reference of a
//!   pin.
//! * [`Array::read_words`], [`Array::write_words`]: copies from and to memory that several threads
//!   read and write. Each word is read and written atomically; nothing more is guaranteed.
//! * [`DirectFile`]: blocking reads and writes past the kernel's page cache, with private pages.
//! * [`PrivateIo`]: I/O of a store through the engine's own ring, with private pages. No miss can
//!   be faster: there is no table, no frame and no waiter.
//!
//! All of them leave the bytes in the caller's buffers, as the engine does.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{NonNull, copy_nonoverlapping};
use std::sync::atomic::{AtomicU64, Ordering};

use octavo_disk::{AlignedBytes, IoBuffer, Op, Ring, RingOptions, Store};

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl};

use crate::content::{self, PAGE_BYTES};

// ---- Hits

/// Offsets in a stream of indices are multiples of `1 << UNIT_SHIFT` bytes (128).
pub const UNIT_SHIFT: u32 = 7;

/// Zeroed memory, on huge pages as far as the kernel provides them.
pub struct Array {
    base: NonNull<u8>,
    len: usize,
    mapped: NonNull<u8>,
    mapped_len: usize,
}

const HUGE_PAGE: usize = 2 << 20;

impl Array {
    pub fn new(len: usize) -> io::Result<Array> {
        let len = len.next_multiple_of(HUGE_PAGE);
        let mapped_len = len + HUGE_PAGE;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping affects no existing memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), mapped_len, protection, flags, -1, 0) };
        let mapped = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED);
        let mapped = mapped.ok_or_else(io::Error::last_os_error)?;
        let base = mapped.as_ptr().wrapping_add(mapped.as_ptr().align_offset(HUGE_PAGE));
        // SAFETY: inside the mapping. A refusal only costs speed, and rows report the bytes that
        // are on huge pages.
        unsafe { libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE) };
        let base = NonNull::new(base).expect("inside a mapping");
        Ok(Array { base, len, mapped, mapped_len })
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: initialised memory of this mapping, borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Copies whole words out, while other threads may write them.
    pub fn read_words(&self, offset: usize, into: &mut [u8]) {
        for (word, at) in into.as_chunks_mut::<8>().0.iter_mut().zip((offset..).step_by(8)) {
            *word = self.word(at).load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    /// Copies whole words in, while other threads may read them.
    pub fn write_words(&self, offset: usize, from: &[u8]) {
        for (word, at) in from.as_chunks::<8>().0.iter().zip((offset..).step_by(8)) {
            self.word(at).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "a word inside the array");
        // SAFETY: inside the mapping and aligned; while the array is shared, words are only touched
        // atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().wrapping_add(at).cast()) }
    }
}

// SAFETY: the memory belongs to no particular thread. A shared reference allows plain reads by
// `Gather`, and atomic accesses to words.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and no reference into it is left.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
    }
}

/// The kinds of loops over the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Copies one place after the other. The processor overlaps the copies as far as it can.
    Plain,
    /// Copies one place while it prefetches the first lines of a later one.
    Prefetching,
}

/// Copies of `len` bytes each from places of an array. Copy `n` goes to buffer `n % (into.len() /
/// len)`.
pub struct Gather<'a> {
    array: &'a Array,
    /// Offsets in the array, in units.
    places: &'a [u32],
    len: usize,
}

/// The number of copies by which a prefetching walk requests the lines of a place in advance: for
/// short copies, and for whole pages.
pub const AHEAD_SHORT: usize = 16;
pub const AHEAD_PAGE: usize = 2;

/// The bytes of a page that a prefetching walk requests. The hardware prefetches the rest of the
/// page by itself.
const PREFETCH_BYTES_MAX: usize = 1024;

impl<'a> Gather<'a> {
    /// Creates a walk that copies 128 bytes or a page from each place. Checks once that all places
    /// lie in the array, so that the walks need no check.
    pub fn new(array: &'a Array, places: &'a [u32], len: usize) -> Gather<'a> {
        assert!(len == 128 || len == PAGE_BYTES, "reads are of 128 bytes or of a page");
        let last = places.iter().max().map_or(0, |place| (*place as usize) << UNIT_SHIFT);
        assert!(last + len <= array.len, "a place outside the array");
        Gather { array, places, len }
    }

    /// Copies the places with these numbers in the stream.
    pub fn copy(&self, walk: Walk, numbers: Range<usize>, into: &mut [u8]) {
        // Hide the length from the compiler, so that it calls the C library's copy instead of
        // unrolling its own.
        let len = black_box(self.len);
        match (walk, self.len) {
            #[cfg(target_arch = "x86_64")]
            (Walk::Plain, 128) if is_x86_feature_detected!("avx512f") => {
                self.run::<0>(numbers, 128, into, copy_128_avx512)
            }
            #[cfg(target_arch = "x86_64")]
            (Walk::Prefetching, 128) if is_x86_feature_detected!("avx512f") => {
                self.run::<AHEAD_SHORT>(numbers, 128, into, copy_128_avx512)
            }
            (Walk::Plain, _) => self.run::<0>(numbers, len, into, copy_by_libc),
            (Walk::Prefetching, 128) => self.run::<AHEAD_SHORT>(numbers, len, into, copy_by_libc),
            (Walk::Prefetching, _) => self.run::<AHEAD_PAGE>(numbers, len, into, copy_by_libc),
        }
    }

    /// Reads the first cache line of each of these places.
    pub fn lines(&self, numbers: Range<usize>) {
        for place in &self.places[numbers] {
            let line =
                self.array.base.as_ptr().wrapping_add((*place as usize) << UNIT_SHIFT).cast::<[u64; 8]>();
            // SAFETY: `Gather::new` checked the places, which are multiples of 128 bytes.
            let words = unsafe { line.read() };
            black_box(words.into_iter().fold(0, |all, word| all ^ word));
        }
    }

    #[inline(always)]
    fn run<const AHEAD: usize>(
        &self,
        numbers: Range<usize>,
        len: usize,
        into: &mut [u8],
        copy: impl Fn(*const u8, *mut u8, usize),
    ) {
        let buffers = into.len() / len;
        assert!(buffers.is_power_of_two(), "buffers are counted by a mask");
        let at =
            |place: u32| self.array.base.as_ptr().wrapping_add((place as usize) << UNIT_SHIFT).cast_const();
        let later = &self.places[numbers.start + AHEAD..numbers.end + AHEAD];
        for (number, (place, later)) in self.places[numbers].iter().zip(later).enumerate() {
            if AHEAD > 0 {
                prefetch(at(*later), len.min(PREFETCH_BYTES_MAX));
            }
            let to = into.as_mut_ptr().wrapping_add((number & (buffers - 1)) * len);
            copy(at(*place), to, len);
            black_box(to);
        }
    }
}

/// Copies by the C library, which adapts to the processor.
#[inline(always)]
fn copy_by_libc(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: `Gather::new` checked the places, `run` the buffers; an array and a caller's buffers
    // do not overlap.
    unsafe { copy_nonoverlapping(from, to, len) };
}

/// Copies 128 bytes with two loads and two stores, which is faster than any call.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn copy_128_avx512(from: *const u8, to: *mut u8, _: usize) {
    // SAFETY: as in `copy_by_libc`; chosen only where the processor has AVX-512. Registers from 16
    // up need no `vzeroupper`.
    unsafe {
        std::arch::asm!(
            "vmovdqu64 zmm16, zmmword ptr [{from}]",
            "vmovdqu64 zmm17, zmmword ptr [{from} + 64]",
            "vmovdqu64 zmmword ptr [{to}], zmm16",
            "vmovdqu64 zmmword ptr [{to} + 64], zmm17",
            from = in(reg) from, to = in(reg) to, out("xmm16") _, out("xmm17") _,
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
fn prefetch(from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..len).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(offset).cast()) };
    }
    // On other processors both walks are plain.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, len);
}

/// A file that blocking calls read and write past the kernel's page cache.
pub struct DirectFile(File);

impl DirectFile {
    /// Opens a file with O_DIRECT.
    pub fn open(path: &Path) -> io::Result<DirectFile> {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_DIRECT).open(path).map(DirectFile)
    }

    /// Returns whether the kernel reports that the file is open with O_DIRECT.
    pub fn is_direct(&self) -> bool {
        fcntl_getfl(&self.0).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
    }

    /// Reads `page` into an aligned buffer of one page.
    pub fn read(&self, page: u64, into: &mut AlignedBytes) -> io::Result<()> {
        self.0.read_exact_at(into, page * PAGE_BYTES as u64)
    }

    /// Reads whole pages from `offset` on, which is the start of a page.
    pub fn read_run(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    /// Writes `page` from an aligned buffer of one page.
    pub fn write(&self, page: u64, from: &AlignedBytes) -> io::Result<()> {
        self.0.write_all_at(from, page * PAGE_BYTES as u64)
    }

    /// Makes all written bytes durable.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Drops the clean pages of a file from the kernel's page cache, and turns off its read-ahead.
pub fn drop_cached(file: &File) -> io::Result<()> {
    expect_random(file)?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Tells the kernel that reads of a file come in random order, so that it reads nothing ahead.
pub fn expect_random(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::Random)?)
}

// ---- Misses and writes

/// Reads and writes of pages of a store from and to private memory, through a private ring.
pub struct PrivateIo {
    // Dropped before the buffers: it waits for the I/O in flight.
    ring: Ring,
    store: Store,
    /// Whether a slot, and so its buffer, has an I/O in flight.
    in_flight: Vec<bool>,
    buffers: Vec<AlignedBytes>,
}

impl PrivateIo {
    /// Creates buffers for `depth` reads and writes in flight, of up to `run_pages` pages each.
    pub fn new(store: &Store, depth: usize, run_pages: usize) -> io::Result<PrivateIo> {
        let buffers = (0..depth).map(|_| AlignedBytes::new(run_pages * PAGE_BYTES)).collect();
        let ring = Ring::new(&RingOptions::default())?;
        Ok(PrivateIo { ring, store: store.clone(), in_flight: vec![false; depth], buffers })
    }

    /// Pushes a read of `page` into the buffer of `slot`, which has no I/O in flight.
    pub fn read(&mut self, slot: usize, page: u64) {
        self.push(Op::Read, slot, page, 1);
    }

    /// Pushes a write of the content of `count` pages from page `first` on, by `slot`, which has no
    /// I/O in flight.
    pub fn write(&mut self, slot: usize, first: u64, count: usize) {
        assert!(!self.in_flight[slot], "a slot has one I/O at a time");
        content::fill_run(first, &mut self.buffers[slot][..count * PAGE_BYTES]);
        self.push(Op::Write, slot, first, count);
    }

    fn push(&mut self, op: Op, slot: usize, first: u64, count: usize) {
        assert!(!std::mem::replace(&mut self.in_flight[slot], true), "a slot has one I/O at a time");
        let buffer = &mut self.buffers[slot];
        assert!(count * PAGE_BYTES <= buffer.len(), "a run fits in its buffer");
        let buffer = IoBuffer { len: count * PAGE_BYTES, ..buffer.io_buffer() };
        // SAFETY: the buffer outlives the ring, which waits when it is dropped. While the slot is
        // in flight, `push` starts no other I/O on the buffer, and `write` and `page` do not touch
        // it.
        unsafe { self.ring.push(&self.store, op, first * PAGE_BYTES as u64, &[buffer], slot as u64) };
    }

    /// Submits, and waits for at least one completion. Adds the completed slots to `done`.
    pub fn wait(&mut self, done: &mut Vec<usize>) -> Result<(), octavo_disk::IoError> {
        let mut outcome = Ok(());
        self.ring.wait(
            &mut |slot, result| {
                self.in_flight[slot as usize] = false;
                done.push(slot as usize);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(result);
            },
            None,
        );
        outcome
    }

    /// Returns the bytes of a completed read, in its private page.
    pub fn page(&self, slot: usize) -> &[u8] {
        assert!(!self.in_flight[slot], "the read of this page is still in flight");
        &self.buffers[slot]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_walk_copies_the_places_of_its_stream_in_order() {
        let mut array = Array::new(1 << 20).unwrap();
        for (number, byte) in array.bytes_mut().iter_mut().enumerate() {
            *byte = (number >> UNIT_SHIFT) as u8;
        }
        let places: Vec<u32> = (0..100).map(|number| number * 32 % 8192).collect();
        let (short_copies, pages) =
            (Gather::new(&array, &places, 128), Gather::new(&array, &places, PAGE_BYTES));
        for walk in [Walk::Plain, Walk::Prefetching] {
            let mut short = [0u8; 4 * 128];
            short_copies.copy(walk, 3..9, &mut short);
            // Copies 4 and 5 of the range are the last in buffers 0 and 1, 2 and 3 in the others.
            for (buffer, number) in [(0, 7), (1, 8), (2, 5), (3, 6)] {
                assert_eq!(short[buffer * 128..][..128], [places[number] as u8; 128], "{walk:?}");
            }
            let mut page = [0u8; PAGE_BYTES];
            pages.copy(walk, 10..12, &mut page);
            assert_eq!(page[..128], [places[11] as u8; 128]);
            assert_eq!(page[PAGE_BYTES - 128..], [(places[11] + 31) as u8; 128]);
        }
    }

    #[test]
    fn words_are_read_as_they_were_written() {
        let array = Array::new(HUGE_PAGE).unwrap();
        let bytes: Vec<u8> = (0..128).collect();
        array.write_words(4096, &bytes);
        let mut read = [0; 128];
        array.read_words(4096, &mut read);
        assert_eq!(read[..], bytes[..]);
        Gather::new(&array, &[0, 32], 128).lines(0..2);
    }

    #[test]
    #[should_panic(expected = "a place outside the array")]
    fn a_place_outside_the_array_is_refused() {
        let array = Array::new(HUGE_PAGE).unwrap();
        Gather::new(&array, &[(HUGE_PAGE >> UNIT_SHIFT) as u32 - 31], PAGE_BYTES);
    }

    #[test]
    fn private_reads_leave_the_stores_bytes_in_their_pages() {
        let store = Store::memory("pages", 16 * PAGE_BYTES as u64);
        let mut reads = PrivateIo::new(&store, 2, 1).unwrap();
        reads.read(0, 3);
        reads.read(1, 4);
        let mut done = Vec::new();
        while done.len() < 2 {
            reads.wait(&mut done).unwrap();
        }
        assert_eq!([reads.page(0), reads.page(1)], [[0; PAGE_BYTES]; 2]);
    }
}
