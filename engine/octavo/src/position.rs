//! Positions in an object. Bytes and pages are different types, so that no call takes one for the
//! other; [`PageSize`] is the only place that turns one into the other.
//!
//! Not here: slots (`octavo_table`), where the bytes of resident pages lie (`memory/frames.rs`).

use std::ops::{Add, AddAssign, Range, Sub, SubAssign};

/// An offset in an object, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteOffset(pub u64);

/// A page of an object: its offset in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageIndex(pub u64);

/// The size of a partition's pages, a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageSize {
    shift: u32,
    bytes: usize,
    /// `bytes - 1`.
    mask: usize,
}

impl PageSize {
    /// The smallest pages, in bytes.
    pub const BYTES_LEAST: usize = 4096;
    /// The largest pages, in bytes.
    pub const BYTES_MOST: usize = 1 << 20;

    /// A page size in bytes, a power of two.
    pub fn new(bytes: usize) -> PageSize {
        debug_assert!(bytes.is_power_of_two());
        PageSize { shift: bytes.trailing_zeros(), bytes, mask: bytes - 1 }
    }

    #[inline(always)]
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// The page size's binary logarithm.
    pub fn shift(self) -> u32 {
        self.shift
    }

    /// The page that contains `offset`.
    #[inline(always)]
    pub fn page_of(self, offset: ByteOffset) -> PageIndex {
        PageIndex(offset.0 >> self.shift)
    }

    /// The position of `offset` within its page, in bytes.
    #[inline(always)]
    pub fn offset_in_page(self, offset: ByteOffset) -> usize {
        offset.0 as usize & self.mask
    }

    /// The offset at which `page` begins.
    #[inline(always)]
    pub fn start_of(self, page: PageIndex) -> ByteOffset {
        ByteOffset(page.0 << self.shift)
    }

    /// The offset at which the page of `offset` begins.
    pub fn round_down(self, offset: ByteOffset) -> ByteOffset {
        ByteOffset(offset.0 & !(self.mask as u64))
    }

    /// The length of a number of pages, in bytes.
    pub fn len_of(self, pages: u64) -> u64 {
        pages << self.shift
    }

    /// How many whole pages a number of bytes holds.
    pub fn whole_pages_in(self, len_bytes: u64) -> u64 {
        len_bytes >> self.shift
    }

    /// The pages that contain the `len` bytes from `offset` on; none if `len` is 0. If the
    /// range's last byte would lie beyond `u64::MAX`, the range ends with the page that contains
    /// offset `u64::MAX`.
    #[inline(always)]
    pub fn page_range(self, offset: ByteOffset, len: u64) -> Range<PageIndex> {
        match len {
            0 => PageIndex(0)..PageIndex(0),
            _ => self.page_of(offset)..self.page_of(ByteOffset(offset.0.saturating_add(len - 1))) + 1,
        }
    }

    /// Whether `len` bytes from `offset` on lie in one page.
    #[inline(always)]
    pub fn in_one_page(self, offset: ByteOffset, len: usize) -> bool {
        self.offset_in_page(offset) + len <= self.bytes
    }
}

impl PageIndex {
    /// The page `distance` pages away, if there can be one.
    pub fn checked_add_signed(self, distance: i64) -> Option<PageIndex> {
        self.0.checked_add_signed(distance).map(PageIndex)
    }
}

/// The pages of a range, in order.
pub(crate) fn pages_in(pages: &Range<PageIndex>) -> impl Iterator<Item = PageIndex> + use<> {
    (pages.start.0..pages.end.0).map(PageIndex)
}

/// How many pages a range has.
pub(crate) fn page_count(pages: &Range<PageIndex>) -> u64 {
    pages.end.0.saturating_sub(pages.start.0)
}

impl Add<u64> for PageIndex {
    type Output = PageIndex;

    #[inline(always)]
    fn add(self, pages: u64) -> PageIndex {
        PageIndex(self.0 + pages)
    }
}

impl Sub for PageIndex {
    type Output = u64;

    fn sub(self, before: PageIndex) -> u64 {
        self.0 - before.0
    }
}

impl Sub<u64> for PageIndex {
    type Output = PageIndex;

    fn sub(self, pages: u64) -> PageIndex {
        PageIndex(self.0 - pages)
    }
}

impl SubAssign<u64> for PageIndex {
    fn sub_assign(&mut self, pages: u64) {
        self.0 -= pages;
    }
}

impl AddAssign<u64> for PageIndex {
    fn add_assign(&mut self, pages: u64) {
        self.0 += pages;
    }
}

impl Sub for ByteOffset {
    type Output = u64;

    #[inline(always)]
    fn sub(self, before: ByteOffset) -> u64 {
        self.0 - before.0
    }
}

impl Add<u64> for ByteOffset {
    type Output = ByteOffset;

    #[inline(always)]
    fn add(self, bytes: u64) -> ByteOffset {
        ByteOffset(self.0 + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_bytes_turn_into_each_other() {
        let size = PageSize::new(4096);
        assert_eq!(size.page_of(ByteOffset(8191)), PageIndex(1));
        assert_eq!(
            (size.offset_in_page(ByteOffset(8191)), size.start_of(PageIndex(1))),
            (4095, ByteOffset(4096))
        );
        assert_eq!(size.round_down(ByteOffset(8191)), ByteOffset(4096));
        let pages = |offset, len| size.page_range(ByteOffset(offset), len);
        assert_eq!(page_count(&pages(5000, 0)), 0);
        assert_eq!(pages(4096, 4096), PageIndex(1)..PageIndex(2));
        assert_eq!(pages(4095, 2), PageIndex(0)..PageIndex(2));
        assert_eq!(pages_in(&pages(4095, 8193)).collect::<Vec<_>>(), [0, 1, 2].map(PageIndex));
        assert_eq!(pages(4096, u64::MAX).end, PageIndex(1 << 52));
        assert!(size.in_one_page(ByteOffset(4096), 4096) && !size.in_one_page(ByteOffset(4097), 4096));
    }
}
