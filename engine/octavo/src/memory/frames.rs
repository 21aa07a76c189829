//! The frames of a partition: one reserved range of addresses, backed by memory one segment at a
//! time.
//!
//! Addresses are never unmapped while the partition lives. A reader that looks at a frame by an
//! outdated word sees zeros at worst, and then learns from the word that its copy is invalid. A
//! segment goes back to the kernel whole, except for the frames that pins keep.
//!
//! Not here: who may access a frame and when (the slot's protocol in `octavo_table`).

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;

use octavo_table::{SegmentIndex, SlotIndex};

const HUGE_PAGE: usize = 2 << 20;

/// Size of the kernel's pages, in bytes.
fn kernel_page_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        if cfg!(any(miri, shuttle)) {
            return 4096;
        }
        // SAFETY: the call changes nothing.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).expect("a system has a page size")
    })
}

/// A range of zeroed memory that this object owns.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; the slot's protocol says which thread may access which bytes when.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes, aligned to a huge page. The kernel provides memory as it is
    /// touched.
    pub fn reserve(len: usize) -> std::io::Result<Mapping> {
        let len = len.next_multiple_of(4096);
        if cfg!(any(miri, shuttle)) {
            let layout = std::alloc::Layout::from_size_align(len, 4096).map_err(std::io::Error::other)?;
            // SAFETY: the length is not zero.
            let base = unsafe { std::alloc::alloc_zeroed(layout) };
            return NonNull::new(base)
                .map(|base| Mapping { base, len })
                .ok_or_else(|| std::io::ErrorKind::OutOfMemory.into());
        }
        // Room to align; the parts before and after are unmapped again.
        let room = len + HUGE_PAGE;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), room, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let at = at.cast::<u8>();
        let before = at.align_offset(HUGE_PAGE);
        let base = at.wrapping_add(before);
        let unmap = |from: *mut u8, len: usize| {
            if len > 0 {
                // SAFETY: a part of the mapping just made, which nothing uses.
                unsafe { libc::munmap(from.cast(), len) };
            }
        };
        unmap(at, before);
        unmap(base.wrapping_add(len), room - before - len);
        let base = NonNull::new(base).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        Ok(Mapping { base, len })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.len);
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Asks for huge pages. A refusal is ignored: it only costs speed.
    pub fn want_huge_pages(&self, offset: usize, len: usize) {
        self.advise(offset, len, libc::MADV_HUGEPAGE);
    }

    /// Keeps the kernel from backing the mapping with huge pages: for memory of which only parts
    /// are used.
    pub fn want_small_pages(&self) {
        self.advise(0, self.len, libc::MADV_NOHUGEPAGE);
    }

    /// Gives the memory back to the kernel. The addresses stay mapped and read as zeros.
    pub fn give_back(&self, offset: usize, len: usize) {
        self.advise(offset, len, libc::MADV_DONTNEED);
    }

    /// Gives back a part of memory that huge pages may back. Unmapping a part of a huge page frees
    /// nothing before the whole page is unmapped or the system runs short of memory. MADV_FREE
    /// splits the page first (Linux 6.18: without it, the resident size falls but free memory does
    /// not rise).
    fn give_back_part(&self, part: Range<usize>) {
        self.advise(part.start, part.len(), libc::MADV_FREE);
        self.advise(part.start, part.len(), libc::MADV_DONTNEED);
    }

    fn advise(&self, offset: usize, len: usize, advice: i32) {
        assert!(offset + len <= self.len);
        if !cfg!(any(miri, shuttle)) {
            // SAFETY: inside our mapping. FREE and DONTNEED are called only for memory that nothing
            // uses: frames of free slots (R5) or of a partition that no handle uses, and buffers
            // that were returned.
            unsafe { libc::madvise(self.at(offset).cast(), len, advice) };
        } else if advice == libc::MADV_DONTNEED {
            // The heap stands in for a mapping, and no kernel zeroes returned memory.
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(self.at(offset), 0, len) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if cfg!(any(miri, shuttle)) {
            let layout = std::alloc::Layout::from_size_align(self.len, 4096).expect("as at the start");
            // SAFETY: allocated by `reserve` with this layout.
            unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
            return;
        }
        // SAFETY: our mapping, into which no reference exists any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The frames of one table: frame *n* belongs to slot *n*.
pub(crate) struct Frames {
    mapping: Mapping,
    page_bytes: usize,
    segment_bytes: usize,
}

impl Frames {
    pub fn reserve(page_bytes: u32, segment_bytes: usize, segments_max: u32) -> std::io::Result<Frames> {
        let mapping = Mapping::reserve(segment_bytes * segments_max as usize)?;
        Ok(Frames { mapping, page_bytes: page_bytes as usize, segment_bytes })
    }

    /// Bytes of a segment's frames.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Makes a segment's frames ready for use.
    pub fn commit(&self, segment: SegmentIndex) {
        if self.segment_bytes.is_multiple_of(HUGE_PAGE) {
            self.mapping.want_huge_pages(segment.0 as usize * self.segment_bytes, self.segment_bytes);
        }
    }

    /// The address of a segment's frames, and their length in bytes.
    pub fn segment(&self, segment: SegmentIndex) -> (*mut u8, usize) {
        (self.mapping.at(segment.0 as usize * self.segment_bytes), self.segment_bytes)
    }

    /// Gives the memory of a segment back to the kernel, except the frames of the slots `kept`,
    /// which are in ascending order. No thread may use the other frames. Returns the bytes that
    /// stay: whole pages of the kernel.
    pub fn give_back(&self, segment: SegmentIndex, kept: &[SlotIndex]) -> u64 {
        let start = segment.0 as usize * self.segment_bytes;
        if kept.is_empty() {
            self.mapping.give_back(start, self.segment_bytes);
            return 0;
        }
        if self.segment_bytes.is_multiple_of(HUGE_PAGE) {
            // Otherwise the kernel would fill the gaps again to make a huge page of the rest.
            self.mapping.advise(start, self.segment_bytes, libc::MADV_NOHUGEPAGE);
        }
        // The kernel takes and gives whole pages of its own, which may be larger than a frame.
        let (unit, mut kept_bytes, mut free) = (kernel_page_bytes(), self.segment_bytes, start);
        let frames = kept.iter().map(|slot| slot.0 as usize * self.page_bytes);
        let kept_ranges = frames.map(|at| at / unit * unit..(at + self.page_bytes).next_multiple_of(unit));
        let end = start + self.segment_bytes;
        for range in kept_ranges.chain(std::iter::once(end..end)) {
            if free < range.start {
                self.mapping.give_back_part(free..range.start);
                kept_bytes -= range.start - free;
            }
            free = range.end;
        }
        kept_bytes as u64
    }

    /// Gives the memory of some frames of one set back to the kernel. Their slots are free, and
    /// the caller holds the set's lock, so that no thread claims one. Memory stays if the kernel's
    /// pages are larger than frames.
    pub fn give_back_frames(&self, slots: &[SlotIndex]) {
        if !self.page_bytes.is_multiple_of(kernel_page_bytes()) {
            return;
        }
        for run in slots.chunk_by(|one, next| next.0 == one.0 + 1) {
            self.mapping.give_back(run[0].0 as usize * self.page_bytes, run.len() * self.page_bytes);
        }
    }

    /// The frame of a slot.
    #[inline(always)]
    pub fn at(&self, slot: SlotIndex) -> *mut u8 {
        self.mapping.at(slot.0 as usize * self.page_bytes)
    }
}
