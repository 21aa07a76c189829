//! The frames of a partition: one reserved range of addresses, backed by memory one segment at a
//! time.
//!
//! Addresses are never unmapped while the partition lives. A reader that looks at a frame by an
//! outdated word sees zeros at worst, and then learns from the word that its copy is invalid. A
//! returned segment goes back to the kernel whole.
//!
//! Not here: who may access a frame and when (the slot's protocol in `octavo_table`).

use std::ptr::NonNull;

use octavo_table::{SegmentIndex, SlotIndex};

const HUGE_PAGE: usize = 2 << 20;

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

    fn advise(&self, offset: usize, len: usize, advice: i32) {
        assert!(offset + len <= self.len);
        if !cfg!(any(miri, shuttle)) {
            // SAFETY: inside our mapping. DONTNEED is called only for memory that nothing uses:
            // frames of slots that are all free, buffers that were returned.
            unsafe { libc::madvise(self.at(offset).cast(), len, advice) };
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
    page_shift: u32,
    segment_bytes: usize,
}

impl Frames {
    pub fn reserve(page_bytes: u32, segment_bytes: usize, segments_max: u32) -> std::io::Result<Frames> {
        let mapping = Mapping::reserve(segment_bytes * segments_max as usize)?;
        Ok(Frames { mapping, page_shift: page_bytes.trailing_zeros(), segment_bytes })
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

    /// Gives a segment's memory back to the kernel. All its slots must be free
    /// (`Table::retire`).
    pub fn give_back(&self, segment: SegmentIndex) {
        self.mapping.give_back(segment.0 as usize * self.segment_bytes, self.segment_bytes);
    }

    /// The frame of a slot.
    #[inline(always)]
    pub fn at(&self, slot: SlotIndex) -> *mut u8 {
        self.mapping.at((slot.0 as usize) << self.page_shift)
    }
}
