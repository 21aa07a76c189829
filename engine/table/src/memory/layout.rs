//! The layout of a table's memory. It consists of offsets and has no addresses, so that the memory
//! may be mapped anywhere.
//!
//! ```text
//!  header | directory | segment records | fronts | tags | sets
//!
//!  fronts: fingerprint u8 [W] | shown u64 | marks u32 | told u32, of every set of segment 0, then
//!          of segment 1, and so on
//!  tags:   u64 [W], the same
//!  sets:   head | word u64 [W] | ghost u32 [ghosts], the same
//!  head:   policy u16 [W] | lock u32, occupied u32 | ahead, spent |
//!          clock u16, hand, ghost head, ghost count, orphans, away
//! ```
//!
//! | bytes a set | 8 ways | 16 ways | 32 ways | touched by |
//! |---|---|---|---|---|
//! | front | 24 | 32 | 64 | every lookup, every change of a page |
//! | tags | 64 | 128 | 256 | a hit: one of them |
//! | words | 64 | 128 | 256 | misses, writes, pins |
//! | head | 40 | 56 | 88 | misses (and hits, for a policy that counts them) |
//! | ghosts | 56 | 128 | 256 | misses only |
//! | to whole lines | 0 | 8 | 40 | |
//! | all | 248 | 480 | 960 | |
//! | a page | 31 | 30 | 30 | |
//!
//! The data that a hit reads is separate from the data that only misses and writes use, and each
//! kind is dense: per page, two bytes of fronts and eight of tags, 2.5 MiB for 1 GiB of pages. The
//! fronts alone, 512 KiB, stay in the second-level cache. A lookup therefore knows at once which
//! frame to fetch, and the tag and the bytes arrive together instead of one after the other (a hit
//! of 4 KiB took 1.15 times as long with the fingerprints in the heads). A hit touches two lines of
//! the table: a front, half a line with 16 ways, and a tag. For the policy a hit sets one bit, in
//! the front that it has already read.
//!
//! The directory adds 4 bytes per entry, and has 64 to 128 entries per segment (half of that with
//! eight ways): with 512 pages per segment, at most 1 byte per page. Not here: which step may
//! change which field (`set`, `slot`, `resize`).

#[cfg(not(any(loom, shuttle)))]
use std::mem::offset_of;

use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use crate::word::ghost::ghosts_of;
use crate::word::lock::SetLock;
use crate::word::tag::Tag;

/// Hints, a bit per way. Only guesses depend on them, so the model checkers need not see them. All
/// accesses are Relaxed.
pub(crate) type Hints = std::sync::atomic::AtomicU32;

/// The fields of a set that a hit reads besides a tag.
#[repr(C)]
pub(crate) struct Front<const W: usize> {
    /// Eight bits of each way's tag. They change at a claim, under the lock, and are stale while
    /// the slot is free.
    pub fingerprints: [AtomicU8; W],
    /// Which ways may be read, and the version of the set (P13 of `slot`).
    pub shown: AtomicU64,
    /// A bit per way: its page was hit since the last page came into the set. Hits set the bits
    /// without the lock; the next arrival passes them to the policy and clears them.
    pub marks: Hints,
    /// A bit per way: its page is in the monitor's sample and was hit since the last page came into
    /// the set. Such a page's mark stays clear, so that the monitor sees all its hits.
    pub told: Hints,
}

/// The first line of a set: the state of its policy and its lock.
#[repr(C, align(8))]
pub(crate) struct Head<const W: usize> {
    /// The policy's bits of each way. They change under the lock; a policy that counts hits also
    /// changes them at hits.
    pub meta: [AtomicU16; W],
    pub lock: SetLock,
    /// A bit per way: it is claimed and not yet removed. Changes under the lock.
    pub occupied: AtomicU32,
    /// A bit per way: its page was read ahead and not requested since.
    pub ahead: Hints,
    /// A bit per way: its page is spent. Either it was read ahead and has been requested once, or
    /// it came in for a single request (`claim_once`). Such pages are evicted before others.
    pub spent: Hints,
    /// Number of pages that came in, modulo 2^16. Changes under the lock.
    pub clock: AtomicU16,
    pub hand: AtomicU8,
    pub ghost_head: AtomicU8,
    pub ghost_count: AtomicU8,
    /// Bits of the nodes that may have copies of pages that have left this set (T7 of `twin`).
    /// Changes under the lock.
    pub orphans: AtomicU8,
    /// A bit per sixteenth of all tags: pages of this set with such tags may lie at their place on
    /// another node (T9). Changes under the lock.
    pub away: AtomicU16,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    // `Glance` (`lookup.rs`) relies on it.
    assert!(offset_of!(Front<8>, shown) == 8 && offset_of!(Front<8>, marks) == 16);
    assert!(offset_of!(Front<16>, shown) == 16 && offset_of!(Front<16>, marks) == 24);
    assert!(offset_of!(Front<32>, shown) == 32 && offset_of!(Front<32>, marks) == 40);
    assert!(front_bytes::<8>() == 24 && front_bytes::<16>() == 32 && front_bytes::<32>() == 64);
    assert!(size_of::<Head<8>>() == 40 && size_of::<Head<16>>() == 56 && size_of::<Head<32>>() == 88);
    assert!(all_bytes::<8>() == 248 && all_bytes::<16>() == 480 && all_bytes::<32>() == 960);
    // With the directory: 1 byte a page, or half a byte with eight ways.
    assert!(all_bytes::<8>() + 4 <= 8 * METADATA_BYTES_PER_PAGE_MAX);
    assert!(all_bytes::<16>() + 16 <= 16 * METADATA_BYTES_PER_PAGE_MAX);
    assert!(all_bytes::<32>() + 32 <= 32 * METADATA_BYTES_PER_PAGE_MAX);
};

/// Budget of metadata per page in bytes, ghosts and directory included.
pub const METADATA_BYTES_PER_PAGE_MAX: usize = 32;

/// Returns the offset of a set's words, behind its head.
pub(crate) const fn words_at<const W: usize>() -> usize {
    size_of::<Head<W>>()
}

/// Returns the offset of a set's ghosts, behind its words.
pub(crate) const fn ghosts_at<const W: usize>() -> usize {
    words_at::<W>() + W * size_of::<AtomicU64>()
}

/// Returns the bytes from one front to the next. A front of 16 or 32 ways lies within a line. In
/// the budget of a set of eight ways there is no room for that, but its fields lie within lines.
pub(crate) const fn front_bytes<const W: usize>() -> usize {
    let bytes = size_of::<Front<W>>();
    if W == 8 { bytes } else { bytes.next_power_of_two() }
}

/// Returns the bytes of a set without its front and its tags.
pub(crate) const fn set_bytes<const W: usize>() -> usize {
    let bytes = ghosts_at::<W>() + ghosts_of(W) * size_of::<AtomicU32>();
    // Whole lines, so that each head begins a line. In the budget of a set of eight ways there is
    // no room for that.
    bytes.next_multiple_of(if W == 8 { align_of::<Head<W>>() } else { LINE })
}

/// Returns the bytes of a set, front and tags included.
pub(crate) const fn all_bytes<const W: usize>() -> usize {
    set_bytes::<W>() + front_bytes::<W>() + W * size_of::<AtomicU64>()
}

/// Needed under the model checkers, as that of `Head`.
#[cfg(any(loom, shuttle))]
impl<const W: usize> Default for Front<W> {
    fn default() -> Self {
        Front {
            fingerprints: std::array::from_fn(|_| AtomicU8::default()),
            shown: AtomicU64::default(),
            marks: Hints::default(),
            told: Hints::default(),
        }
    }
}

/// Needed under the model checkers, where zeroed memory is not a valid head.
#[cfg(any(loom, shuttle))]
impl<const W: usize> Default for Head<W> {
    fn default() -> Self {
        Head {
            meta: std::array::from_fn(|_| AtomicU16::default()),
            lock: SetLock::default(),
            occupied: AtomicU32::default(),
            clock: AtomicU16::default(),
            hand: AtomicU8::default(),
            ghost_head: AtomicU8::default(),
            ghost_count: AtomicU8::default(),
            orphans: AtomicU8::default(),
            away: AtomicU16::default(),
            ahead: Hints::default(),
            spent: Hints::default(),
        }
    }
}

/// The first line of a table's memory.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Header {
    /// The number of directory entries in use, less one.
    pub directory_mask: AtomicU64,
    /// Number of segments in use.
    pub live: AtomicU32,
    /// The record of the entry that is moving to another segment (see `resize`), or 0.
    pub moving: AtomicU64,
    /// Number of dirty pages in the table; never too low.
    pub dirty: AtomicU64,
}

/// The state of a segment, apart from its sets.
#[derive(Default)]
#[repr(C, align(16))]
pub(crate) struct SegmentRecord {
    /// 1 while the segment is part of the table.
    pub live: AtomicU32,
    /// Number of dirty pages in the segment; never too low.
    pub dirty: AtomicU32,
    /// Number of pages that came here from another slot, modulo 2^32. A walk that sees the number
    /// change visits the segment again.
    pub arrivals: AtomicU32,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<SegmentRecord>() == 16);

/// The size of a table: sets per segment and maximum number of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Maximum number of segments: 1 to [`SEGMENTS_MAX`].
    pub segments_max: u32,
    /// Sets in a segment: a power of two up to 2^[`Tag::SET_BITS`].
    pub sets_per_segment: u32,
}

impl Shape {
    /// Checks that a table of this shape, in sets of `ways` ways, can be created.
    ///
    /// # Errors
    /// A sentence that says which number is out of range.
    pub fn check(self, ways: u32) -> Result<(), String> {
        let Shape { segments_max, sets_per_segment } = self;
        if !(1..=SEGMENTS_MAX).contains(&segments_max) {
            return Err(format!("a table has 1 to {SEGMENTS_MAX} segments, not {segments_max}"));
        }
        if !sets_per_segment.is_power_of_two() || sets_per_segment > SETS_PER_SEGMENT_MAX {
            return Err(format!(
                "a segment has a power of two of sets, at most {SETS_PER_SEGMENT_MAX}, not {sets_per_segment}"
            ));
        }
        match u64::from(segments_max) * u64::from(sets_per_segment) * u64::from(ways) {
            0..=SLOTS_MAX => Ok(()),
            slots => Err(format!("a table has at most {SLOTS_MAX} slots, not {slots}")),
        }
    }
}

/// Maximum number of slots of a table: their numbers have 32 bits.
const SLOTS_MAX: u64 = 1 << 32;

/// Maximum number of segments of one table: 128 GiB of frames with segments of 2 MiB.
pub const SEGMENTS_MAX: u32 = 1 << 16;

/// Maximum number of sets of one segment.
pub const SETS_PER_SEGMENT_MAX: u32 = 1 << Tag::SET_BITS;

/// Returns the minimum number of directory entries per segment, with sets of `ways`. The loads of
/// two segments therefore differ by at most one part in this number. The budget of a set of eight
/// ways has room for fewer. The models of loom have few, because a resize moves them one by one.
pub const fn entries_per_segment(ways: usize) -> u32 {
    match ways {
        _ if cfg!(loom) => 2,
        8 => 32,
        _ => 64,
    }
}

/// Returns the maximum number of bytes of the directory that a segment in use accounts for: less
/// than twice the minimum of entries. Levels not yet in use are not touched.
pub(crate) const fn directory_bytes_per_segment<const W: usize>() -> usize {
    2 * entries_per_segment(W) as usize * size_of::<AtomicU32>()
}

/// Offsets of all parts, computed once from a shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub shape: Shape,
    pub level_max: u32,
    pub records_at: usize,
    pub fronts_at: usize,
    pub tags_at: usize,
    pub segments_at: usize,
    pub bytes: usize,
    pub slots_per_segment_shift: u32,
    pub set_shift: u32,
    pub set_mask: usize,
}

/// Offset of the directory.
pub(crate) const DIRECTORY_AT: usize = size_of::<Header>();

const LINE: usize = 64;

impl Layout {
    pub fn new<const W: usize>(shape: Shape) -> Layout {
        assert!(W.is_power_of_two() && (1..=32).contains(&W), "a set has up to 32 ways, a power of two");
        shape.check(W as u32).expect("a table of this shape can be made");
        let (segments, sets) = (shape.segments_max as usize, shape.sets_per_segment as usize);
        let level_max = (entries_per_segment(W) * shape.segments_max.next_power_of_two()).trailing_zeros();
        assert!(level_max <= Tag::DIRECTORY_BITS);
        let directory_bytes = size_of::<AtomicU32>() << level_max;
        let records_at = (DIRECTORY_AT + directory_bytes).next_multiple_of(LINE);
        let fronts_at = (records_at + segments * size_of::<SegmentRecord>()).next_multiple_of(LINE);
        let tags_at = (fronts_at + segments * sets * front_bytes::<W>()).next_multiple_of(LINE);
        let segments_at = (tags_at + segments * sets * W * size_of::<AtomicU64>()).next_multiple_of(LINE);
        // Sets are contiguous across segments, so that a set's number alone gives its offset.
        let bytes = segments_at + segments * sets * set_bytes::<W>();
        let slots_per_segment_shift = (sets * W).trailing_zeros();
        Layout {
            shape,
            level_max,
            records_at,
            fronts_at,
            tags_at,
            segments_at,
            bytes,
            slots_per_segment_shift,
            set_shift: sets.trailing_zeros(),
            set_mask: sets - 1,
        }
    }

    /// Returns the bytes of the directory at its highest level.
    pub fn directory_bytes(&self) -> usize {
        size_of::<AtomicU32>() << self.level_max
    }

    /// Returns the lowest level that gives each of `live` segments its share of entries.
    pub fn level_for<const W: usize>(&self, live: u32) -> u32 {
        (entries_per_segment(W) * live.max(1).next_power_of_two()).trailing_zeros().min(self.level_max)
    }
}
