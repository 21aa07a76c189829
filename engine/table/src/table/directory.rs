//! The directory: which segment the pages of an entry are in, and which entry is on its way to
//! another.

use super::Table;
use crate::index::{SegmentIndex, SetNumber};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::word::tag::Tag;

const RECORD_VALID: u64 = 1 << 63;
const SEGMENT_BITS: u32 = 16;
const ENTRY_BITS: u32 = 24;

/// An entry of the directory that shall move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub(crate) level: u32,
    pub(crate) entry: u32,
    pub(crate) from: SegmentIndex,
    pub(crate) to: SegmentIndex,
}

impl Move {
    pub(crate) fn record(self) -> u64 {
        let (from, to) = (self.from.0 as u64, self.to.0 as u64);
        let entry = (self.entry as u64) << (2 * SEGMENT_BITS);
        RECORD_VALID
            | (self.level as u64) << (2 * SEGMENT_BITS + ENTRY_BITS)
            | entry
            | to << SEGMENT_BITS
            | from
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
    /// The set where the directory says the page belongs now.
    #[inline(always)]
    pub(crate) fn set_of(&self, tag: Tag) -> SetNumber {
        // Acquire: pairs with the end of a move, so that the new segment's sets are seen as the mover left
        // them.
        let first = self.entry_of(tag).load(Ordering::Acquire);
        SetNumber(first | tag.set(self.layout().set_mask) as u32)
    }

    /// The number of a segment's first set, by which directory entries name it.
    #[inline(always)]
    pub(crate) fn first_set(&self, segment: SegmentIndex) -> u32 {
        segment.0 << self.layout().set_shift
    }

    /// The segment that an entry names.
    pub(crate) fn named_by(&self, entry: u32) -> SegmentIndex {
        self.segment_of_set(SetNumber(entry))
    }

    #[inline(always)]
    pub(crate) fn set_in(&self, segment: SegmentIndex, tag: Tag) -> SetNumber {
        SetNumber(self.first_set(segment) | tag.set(self.layout().set_mask) as u32)
    }

    /// The page's entry at the level in force.
    #[inline(always)]
    fn entry_of(&self, tag: Tag) -> &AtomicU32 {
        // Acquire: pairs with `double_directory`, which fills a level before it names it.
        let directory = self.header().directory.load(Ordering::Acquire);
        self.entry_at(((tag.0 >> (directory % 64)) + directory / 64) as usize)
    }

    /// Directory bits in use.
    pub(crate) fn level(&self) -> u32 {
        // Relaxed: whoever resizes is alone in that.
        64 - (self.header().directory.load(Ordering::Relaxed) % 64) as u32
    }

    /// Puts a level in force that has been filled. Level l has its entries at places 2^l and on, in
    /// the order of the tags' first l bits: the word says how far a tag is shifted and what is
    /// added then. Release: pairs with `entry_of`.
    pub(crate) fn set_level(&self, level: u32) {
        assert!((1..=Tag::DIRECTORY_BITS).contains(&level));
        self.header().directory.store(64 << level | u64::from(64 - level), Ordering::Release);
    }

    /// The set of another segment with the same number inside it.
    pub(crate) fn beside(&self, set: SetNumber, segment: SegmentIndex) -> SetNumber {
        SetNumber(self.first_set(segment) | set.0 & self.layout().set_mask as u32)
    }

    /// The record of the move in progress, and where it takes the page of this tag, if it does.
    pub(crate) fn move_of(&self, tag: Tag) -> (u64, Option<SegmentIndex>) {
        // Acquire: pairs with `advance` (R1, R4).
        let record = self.header().moving.load(Ordering::Acquire);
        let concerned = Move::from_record(record).filter(|mv| tag.directory(mv.level) == mv.entry as usize);
        match concerned {
            Some(mv) => (record, Some(mv.to)),
            None => (0, None),
        }
    }

    pub(crate) fn double_directory(&self) {
        let level = self.level();
        for entry in 0..1usize << level {
            let named = self.entry(level, entry).load(Ordering::Relaxed);
            self.entry(level + 1, 2 * entry).store(named, Ordering::Relaxed);
            self.entry(level + 1, 2 * entry + 1).store(named, Ordering::Relaxed);
        }
        // Release: pairs with `entry_of`.
        self.set_level(level + 1);
    }

    pub(crate) fn entries_by_segment(&self) -> Vec<Vec<u32>> {
        let level = self.level();
        let mut entries = vec![Vec::new(); self.shape().segments_max as usize];
        for entry in 0..1u32 << level {
            let segment = self.named_by(self.entry(level, entry as usize).load(Ordering::Relaxed));
            entries[segment.0 as usize].push(entry);
        }
        entries
    }

    /// How many directory entries each segment in use holds: the evenness of the load.
    pub fn entries_per_segment(&self) -> Vec<usize> {
        let entries = self.entries_by_segment();
        self.segments().map(|segment| entries[segment.0 as usize].len()).collect()
    }

    /// Names a segment in every entry of a table that begins.
    pub(crate) fn deal_entries(&self, level: u32, live: &[SegmentIndex]) {
        // Divided once: a table of 128 GiB has a million entries, and 65536 segments.
        let mut own = vec![Vec::new(); self.nodes.count as usize];
        live.iter().for_each(|segment| own[self.node_of_segment(*segment).0 as usize].push(*segment));
        let mut dealt = vec![0; self.nodes.count as usize];
        for entry in 0..1u32 << level {
            let owner = self.nodes.of_entry(level, entry).0 as usize;
            let segments = if own[owner].is_empty() { live } else { &own[owner] };
            let segment = segments[dealt[owner] % segments.len()];
            dealt[owner] += 1;
            self.entry(level, entry as usize).store(self.first_set(segment), Ordering::Relaxed);
        }
    }
}
