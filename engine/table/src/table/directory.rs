//! The directory: it names the segment of each entry's pages, and the entry that is moving to
//! another segment.
//!
//! The *level* is the number of tag bits in use: a directory of level l has 2^l entries. A page's
//! entry is given by the bits above its set bits, lowest first, so neighbouring groups of pages
//! have neighbouring entries, and a run of pages meets a range of entries. The directory doubles in
//! place: entry e of level l stays where it is, and entry e + 2^l is its copy.

use super::Table;
use super::deal::Given;
use crate::index::{SegmentIndex, SetNumber};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::word::tag::Tag;

const RECORD_VALID: u64 = 1 << 63;
const SEGMENT_BITS: u32 = 16;
const ENTRY_BITS: u32 = 24;

/// A move of one directory entry from one segment to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub(crate) level: u32,
    pub(crate) entry: u32,
    pub(crate) from: SegmentIndex,
    pub(crate) to: SegmentIndex,
}

impl Move {
    pub(crate) fn of(Given { entry, from, to }: Given, level: u32) -> Move {
        Move { level, entry, from, to }
    }

    pub(crate) fn record(self) -> u64 {
        let (from, to) = (self.from.0 as u64, self.to.0 as u64);
        let entry = (self.entry as u64) << (2 * SEGMENT_BITS);
        RECORD_VALID
            | (self.level as u64) << (2 * SEGMENT_BITS + ENTRY_BITS)
            | entry
            | to << SEGMENT_BITS
            | from
    }

    /// Returns the segment that the entry leaves.
    pub fn from(self) -> SegmentIndex {
        self.from
    }

    fn from_record(record: u64) -> Option<Move> {
        let part = |shift: u32, bits: u32| (record >> shift) as u32 & ((1 << bits) - 1);
        (record & RECORD_VALID != 0).then(|| Move {
            level: part(2 * SEGMENT_BITS + ENTRY_BITS, 6),
            entry: part(2 * SEGMENT_BITS, ENTRY_BITS),
            from: SegmentIndex(part(0, SEGMENT_BITS)),
            to: SegmentIndex(part(SEGMENT_BITS, SEGMENT_BITS)),
        })
    }
}

impl<const W: usize> Table<W> {
    /// Returns the set that the directory names for the page now.
    #[inline(always)]
    pub(crate) fn set_of(&self, tag: Tag) -> SetNumber {
        // Acquire: pairs with the end of a move (R4), so that the new segment's sets are seen as
        // the mover left them.
        let first = self.entry_of(tag).load(Ordering::Acquire);
        SetNumber(first | tag.set(self.layout().set_mask) as u32)
    }

    /// Returns the number of a segment's first set, which is the value of the directory entries
    /// that name the segment.
    #[inline(always)]
    pub(crate) fn first_set(&self, segment: SegmentIndex) -> u32 {
        segment.0 << self.layout().set_shift
    }

    /// Returns the segment that an entry names.
    pub(crate) fn named_by(&self, entry: u32) -> SegmentIndex {
        self.segment_of_set(SetNumber(entry))
    }

    #[inline(always)]
    pub(crate) fn set_in(&self, segment: SegmentIndex, tag: Tag) -> SetNumber {
        SetNumber(self.first_set(segment) | tag.set(self.layout().set_mask) as u32)
    }

    /// Returns the page's entry at the current level.
    #[inline(always)]
    fn entry_of(&self, tag: Tag) -> &AtomicU32 {
        // Acquire: pairs with `set_level`.
        let mask = self.header().directory_mask.load(Ordering::Acquire);
        self.entry(tag.entry(self.layout().set_shift, mask as usize))
    }

    /// Returns the current level: the number of directory bits in use.
    pub(crate) fn level(&self) -> u32 {
        // Relaxed: only one thread resizes at a time.
        self.header().directory_mask.load(Ordering::Relaxed).trailing_ones()
    }

    /// Makes a filled level the current one. Release: pairs with `entry_of`.
    pub(crate) fn set_level(&self, level: u32) {
        assert!((1..=Tag::DIRECTORY_BITS).contains(&level));
        self.header().directory_mask.store((1 << level) - 1, Ordering::Release);
    }

    /// Returns whether a page has this entry at a level.
    pub(crate) fn has_entry(&self, tag: Tag, level: u32, entry: u32) -> bool {
        tag.entry(self.layout().set_shift, (1 << level) - 1) == entry as usize
    }

    /// Returns the set of another segment that has the same place there as `set` has in its own.
    pub(crate) fn beside(&self, set: SetNumber, segment: SegmentIndex) -> SetNumber {
        SetNumber(self.first_set(segment) | set.0 & self.layout().set_mask as u32)
    }

    /// Returns the record of the move in progress and its target segment, if the page's entry is
    /// the one that moves; otherwise 0 and `None`.
    pub(crate) fn move_of(&self, tag: Tag) -> (u64, Option<SegmentIndex>) {
        // Acquire: pairs with `advance` (R1, R4).
        let record = self.header().moving.load(Ordering::Acquire);
        let concerned = Move::from_record(record).filter(|mv| self.has_entry(tag, mv.level, mv.entry));
        match concerned {
            Some(mv) => (record, Some(mv.to)),
            None => (0, None),
        }
    }

    pub(crate) fn double_directory(&self) {
        let level = self.level();
        for entry in 0..1usize << level {
            let named = self.entry(entry).load(Ordering::Relaxed);
            self.entry((1 << level) + entry).store(named, Ordering::Relaxed);
        }
        self.set_level(level + 1);
        self.dealer.forget_counts();
    }

    /// Returns the segment of each entry.
    pub(crate) fn owners(&self) -> impl Iterator<Item = SegmentIndex> {
        let named = |entry| self.entry(entry).load(Ordering::Relaxed);
        (0..1 << self.level()).map(move |entry| self.named_by(named(entry)))
    }

    /// Returns the number of directory entries of each segment, in use or not.
    pub(crate) fn entry_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.shape().segments_max as usize];
        self.owners().for_each(|segment| counts[segment.0 as usize] += 1);
        counts
    }

    /// Returns the number of directory entries of each segment in use, which shows how evenly the
    /// load is spread.
    pub fn entries_per_segment(&self) -> Vec<usize> {
        let counts = self.entry_counts();
        self.segments().map(|segment| counts[segment.0 as usize]).collect()
    }
}
