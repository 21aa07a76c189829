//! Where everything lies in a table's memory: offsets only, no addresses, so that the memory may be mapped anywhere.
//!
//! ```text
//!  header | directory, one copy per level | segment records | fingerprints of all sets | marks of all sets | segment 0 | segment 1 | ...
//!
//!  segment:   set 0 | set 1 | ...
//!  set:       head | slot [W] | ghost [W * GHOSTS_PER_WAY]
//!  head:      policy u16 [W] | lock u32, occupied u32, clock u16, hand, ghost head, ghost count, spare u8 [3] | told, ahead, spent, spare u32
//! ```
//!
//! | bytes a set | 8 ways | 16 ways | 32 ways | touched by |
//! |---|---|---|---|---|
//! | fingerprints | 8 | 16 | 32 | every lookup |
//! | marks | 4 | 4 | 4 | hits, misses |
//! | head | 48 | 64 | 96 | misses (and hits, for a policy that counts them) |
//! | slots (tag, word) | 128 | 256 | 512 | a hit: one line of them |
//! | ghosts | 64 | 128 | 256 | misses only |
//! | to whole lines | 0 | 0 | 32 | |
//! | all | 252 | 468 | 932 | |
//! | a page | 31 | 29 | 29 | |
//!
//! The fingerprints lie apart and close together: a byte a page, 256 KiB for 1 GiB, which the second cache holds. So a lookup knows
//! at once which frame to ask for, and the slot and the bytes come at the same time instead of one after the other (a hit of 4 KiB
//! took 1.15 times as long with the fingerprints in the heads). What a hit tells the policy is a bit, in a denser array, so that it
//! touches no other far line than the slot's.
//!
//! The directory adds 4 bytes an entry and 16 to 32 entries a segment per level (twice that with the levels before it):
//! at 512 pages a segment at most 0.5 bytes a page. What is not here: who may change what (`set`, `resize`).

use crate::ghost::GHOSTS_PER_WAY;
use crate::lock::SetLock;
use crate::slot::Slot;
use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use crate::tag::Tag;

/// Bits per way that nothing but guesses depends on: the model checkers need not see them. All access is Relaxed.
pub(crate) type Hints = std::sync::atomic::AtomicU32;

/// The first line of a set: what its policy and lock keep.
#[repr(C, align(16))]
pub(crate) struct Head<const W: usize> {
    /// The policy's bits of each way. Changes under the lock; and at hits, where the policy counts them.
    pub meta: [AtomicU16; W],
    pub lock: SetLock,
    /// A bit per way that was claimed and not removed since. Changes under the lock.
    pub occupied: AtomicU32,
    /// Pages that came in, modulo 2^16. Changes under the lock.
    pub clock: AtomicU16,
    pub hand: AtomicU8,
    pub ghost_head: AtomicU8,
    pub ghost_count: AtomicU8,
    spare: [AtomicU8; 3],
    /// A bit per way: its page is in the monitor's sample and was hit since a page came into the set. Its mark stays down instead, so that
    /// all its hits are seen.
    pub told: Hints,
    /// A bit per way: its page was read ahead, and nobody has asked for it yet.
    pub ahead: Hints,
    /// A bit per way: its page was read ahead and asked for once. It leaves before others.
    pub spent: Hints,
    spare_to_line: Hints,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    assert!(size_of::<Head<8>>() == 48);
    assert!(size_of::<Head<16>>() == 64);
    assert!(size_of::<Head<32>>() == 96);
    assert!(set_bytes::<8>() + 8 + 4 < 8 * METADATA_BYTES_PER_PAGE_MAX);
    assert!(set_bytes::<16>() + 16 + 4 < 16 * METADATA_BYTES_PER_PAGE_MAX);
    assert!(set_bytes::<32>() + 32 + 4 < 32 * METADATA_BYTES_PER_PAGE_MAX);
};

/// The budget of metadata, ghosts and directory included.
pub const METADATA_BYTES_PER_PAGE_MAX: usize = 32;

/// Where a set's slots lie, behind its head.
pub(crate) const fn slots_at<const W: usize>() -> usize {
    size_of::<Head<W>>()
}

/// Where a set's ghosts lie, behind its slots.
pub(crate) const fn ghosts_at<const W: usize>() -> usize {
    slots_at::<W>() + W * size_of::<Slot>()
}

/// Bytes of a set.
pub(crate) const fn set_bytes<const W: usize>() -> usize {
    let bytes = ghosts_at::<W>() + W * GHOSTS_PER_WAY * size_of::<AtomicU32>();
    // Whole lines, so that a head lies in one; a set of eight has no room for that in the budget.
    bytes.next_multiple_of(if W == 8 { align_of::<Head<W>>() } else { LINE })
}

/// Under the model checkers zeroed memory is no head.
#[cfg(any(loom, shuttle))]
impl<const W: usize> Head<W> {
    pub fn new() -> Self {
        Head {
            meta: std::array::from_fn(|_| AtomicU16::new(0)),
            lock: SetLock::new(),
            occupied: AtomicU32::new(0),
            clock: AtomicU16::new(0),
            hand: AtomicU8::new(0),
            ghost_head: AtomicU8::new(0),
            ghost_count: AtomicU8::new(0),
            spare: std::array::from_fn(|_| AtomicU8::new(0)),
            told: Hints::new(0),
            ahead: Hints::new(0),
            spent: Hints::new(0),
            spare_to_line: Hints::new(0),
        }
    }
}

/// The first line of a table's memory.
#[repr(C, align(64))]
pub(crate) struct Header {
    /// 63 less the directory bits in use, which only grow.
    pub directory_shift: AtomicU32,
    /// Segments that hold directory entries.
    pub live: AtomicU32,
    /// The entry that is on its way to another segment (see `resize`); 0: none.
    pub moving: AtomicU64,
    /// Dirty pages in the table; never less than there are.
    pub dirty: AtomicU64,
}

/// What is known of a segment besides its sets.
#[repr(C, align(16))]
pub(crate) struct SegmentRecord {
    /// 1 while the segment is part of the table.
    pub live: AtomicU32,
    /// Dirty pages in the segment; never less than there are.
    pub dirty: AtomicU32,
    /// Pages that came here from another slot, modulo 2^32: a walk that saw it change walks the segment again.
    pub arrivals: AtomicU32,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<SegmentRecord>() == 16);

/// How many sets, and how many segments at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Segments that the table can grow to: 1 to [`SEGMENTS_MAX`].
    pub segments_max: u32,
    /// Sets in a segment: a power of two up to 2^[`Tag::SET_BITS`].
    pub sets_per_segment: u32,
}

impl Shape {
    /// Whether a table of such sets can be made; the error says why not.
    pub fn check(self, ways: u32) -> Result<(), String> {
        let Shape { segments_max, sets_per_segment } = self;
        if !(1..=SEGMENTS_MAX).contains(&segments_max) {
            return Err(format!("{segments_max} segments, where there are 1 to {SEGMENTS_MAX}"));
        }
        if !sets_per_segment.is_power_of_two() || sets_per_segment > 1 << Tag::SET_BITS {
            return Err(format!("segments of {sets_per_segment} sets"));
        }
        match u64::from(segments_max) * u64::from(sets_per_segment) * u64::from(ways) {
            0..=SLOTS_MAX => Ok(()),
            slots => Err(format!("{slots} slots")),
        }
    }
}

/// Slots have numbers of 32 bits.
const SLOTS_MAX: u64 = 1 << 32;

/// Most segments of one table. At 2 MiB a segment that is 128 GiB.
pub const SEGMENTS_MAX: u32 = 1 << 16;

/// Directory entries per segment at a table's full size, at least; evenness between segments is one part in this.
pub const ENTRIES_PER_SEGMENT: u32 = 16;

/// Offsets of everything, computed once from a shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub shape: Shape,
    pub level_max: u32,
    pub directory_at: usize,
    pub records_at: usize,
    pub fingerprints_at: usize,
    pub marks_at: usize,
    pub segments_at: usize,
    pub segment_stride: usize,
    pub bytes: usize,
    pub slots_per_segment_shift: u32,
    pub set_shift: u32,
    pub set_mask: usize,
}

const LINE: usize = 64;

impl Layout {
    pub fn new<const W: usize>(shape: Shape) -> Layout {
        assert!(W.is_power_of_two() && (1..=32).contains(&W), "a set has up to 32 ways, a power of two");
        assert!((1..=SEGMENTS_MAX).contains(&shape.segments_max), "1 to {SEGMENTS_MAX} segments");
        let (segments, sets) = (shape.segments_max as usize, shape.sets_per_segment as usize);
        assert!(sets.is_power_of_two() && sets <= 1 << Tag::SET_BITS, "sets in a segment");
        let level_max = (ENTRIES_PER_SEGMENT * shape.segments_max.next_power_of_two()).trailing_zeros();
        assert!(level_max <= Tag::DIRECTORY_BITS);
        let directory_at = size_of::<Header>();
        // Level l lies at entry 2^l, so the copies of all levels lie one behind the other.
        let records_at = (directory_at + (size_of::<AtomicU32>() << (level_max + 1))).next_multiple_of(LINE);
        let fingerprints_at = (records_at + segments * size_of::<SegmentRecord>()).next_multiple_of(LINE);
        let fingerprints_bytes = segments * sets * W * size_of::<AtomicU8>();
        let marks_at = (fingerprints_at + fingerprints_bytes).next_multiple_of(LINE);
        let segments_at = (marks_at + segments * sets * size_of::<AtomicU32>()).next_multiple_of(LINE);
        // Sets lie one behind the other across segments, so that a set's number alone gives its place.
        let segment_stride = sets * set_bytes::<W>();
        let bytes = segments_at + segments * segment_stride;
        let slots_per_segment_shift = (sets * W).trailing_zeros();
        assert!(
            (shape.segments_max as u64) << slots_per_segment_shift <= 1 << 32,
            "slot numbers have 32 bits"
        );
        Layout {
            shape,
            level_max,
            directory_at,
            records_at,
            fingerprints_at,
            marks_at,
            segments_at,
            segment_stride,
            bytes,
            slots_per_segment_shift,
            set_shift: sets.trailing_zeros(),
            set_mask: sets - 1,
        }
    }

    /// The least level that gives every one of `live` segments its share of entries.
    pub fn level_for(&self, live: u32) -> u32 {
        (ENTRIES_PER_SEGMENT * live.max(1).next_power_of_two()).trailing_zeros().min(self.level_max)
    }
}
