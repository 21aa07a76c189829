//! The table of one partition: a directory of segments, each of which consists of page sets.
//!
//! The table says which slot a page is in. It does no I/O, reads no clock, starts no thread, and
//! holds neither bytes of pages nor addresses: frame *n* belongs to slot *n*, and the caller knows
//! where frames lie.
//!
//! The lookup (`find`) takes no lock and stores nothing. It may miss a page that is moving. A
//! caller that must be sure takes the set's lock ([`Table::lock`]), which a claim needs anyway, and
//! looks again.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic as plain;

use self::hands::Dealer;
use crate::index::{Found, SegmentIndex, SetNumber, SlotIndex};
use crate::learning::learner::Learner;
use crate::learning::monitor::Monitor;
use crate::memory::layout::{
    Front, Head, Header, Layout, SegmentRecord, Shape, all_bytes, directory_bytes_per_segment, front_bytes,
    ghosts_at, set_bytes, words_at,
};
use crate::memory::map::Memory;
use crate::memory::nodes::Nodes;
use crate::policy::PolicyKind;
use crate::policy::balance::Balance;
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::word::probe::ProbeKind;
use crate::word::slot::{Slot, Word};

pub(crate) mod deal;
pub(crate) mod directory;
pub(crate) mod dirty;
mod hands;
pub(crate) mod lookup;
pub(crate) mod nodes;
pub(crate) mod occupancy;
mod policy;
mod touch;

/// Statistics of a table, over all its sets. Relaxed: they order nothing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    /// Pages that were read ahead and requested afterwards.
    pub ahead_used: plain::AtomicU64,
    /// Pages that were read ahead and left their slot (evicted or removed) before any request.
    pub ahead_wasted: plain::AtomicU64,
    /// Misses of pages that had a ghost in their set: about the number of misses that
    /// [`Table::remembered_slots`] more slots would have saved.
    pub ghost_hits: plain::AtomicU64,
}

/// The page sets of one partition, in sets of `W` ways (default 16).
pub struct Table<const W: usize = 16> {
    memory: Memory<W>,
    // The `plain` atomics take part in no protocol, so the model checkers need not see them.
    policy: plain::AtomicU8,
    counts_hits: plain::AtomicBool,
    learner: OnceLock<Learner>,
    balance: OnceLock<Balance>,
    monitor: OnceLock<Monitor>,
    /// Whether a copy of another node's page was ever made. Relaxed: where the order matters, a
    /// set's lock provides it.
    has_copies: plain::AtomicBool,
    copies_yield: plain::AtomicBool,
    /// Whether a main was ever away from home (T9).
    pub(crate) has_away: plain::AtomicBool,
    tally: Tally,
    pub(crate) dealer: Dealer,
    #[cfg_attr(any(loom, shuttle), allow(dead_code))]
    pub(crate) probe: ProbeKind,
    pub(crate) nodes: Nodes,
}

impl<const W: usize> Table<W> {
    pub(crate) const ALL_WAYS: u32 = if W == 32 { u32::MAX } else { (1 << W) - 1 };

    /// Returns the bytes of memory that a table of this shape needs. The memory of a segment is not
    /// touched before the segment comes into use.
    pub fn memory_bytes(shape: Shape) -> usize {
        Layout::new::<W>(shape).bytes
    }

    /// Returns the bytes of metadata of one segment, its part of the directory included.
    pub fn segment_metadata_bytes(shape: Shape) -> usize {
        shape.sets_per_segment as usize * all_bytes::<W>() + directory_bytes_per_segment::<W>()
    }

    /// Returns the bytes that a table needs besides the metadata of its segments.
    pub fn fixed_bytes(shape: Shape) -> usize {
        let layout = Layout::new::<W>(shape);
        layout.fronts_at - layout.directory_bytes()
    }

    /// Creates a table of `shape`, in memory that it allocates, with `live` segments in use.
    ///
    /// # Examples
    ///
    /// ```
    /// use octavo_table::{Claim, Mixer, PolicyKind, Shape, Table};
    /// let shape = Shape { segments_max: 4, sets_per_segment: 32 };
    /// let table = Table::<16>::new(shape, PolicyKind::Octavo, 1);
    /// let tag = Mixer::new(42).tag(7);
    /// let Claim::Claimed { slot, evicted: None } = table.lock(tag).claim(tag) else { panic!() };
    /// // The caller reads the page into frame `slot` here.
    /// assert!(!table.publish(slot, false), "no thread waits for the page");
    /// assert_eq!(table.find(tag).map(|found| found.index), Some(slot));
    /// ```
    ///
    /// # Panics
    /// If `live` is not 1 to `segments_max`, or the shape is out of range ([`Shape::check`]).
    pub fn new(shape: Shape, policy: PolicyKind, live: u32) -> Self {
        Self::spread(shape, 1, policy, live)
    }

    /// Creates a table as [`Table::new`] does, with its segments divided among `nodes` nodes.
    pub fn spread(shape: Shape, nodes: u32, policy: PolicyKind, live: u32) -> Self {
        Self::start(Memory::heap(Layout::new::<W>(shape)), nodes, policy, live)
    }

    /// Creates a table in memory that the caller owns, with its segments divided among `nodes`
    /// nodes.
    ///
    /// # Safety
    /// `memory` is zeroed, aligned to 64, valid for [`Self::memory_bytes`] bytes, and not used for
    /// anything else while the table lives.
    pub unsafe fn in_memory(
        memory: NonNull<u8>,
        shape: Shape,
        nodes: u32,
        policy: PolicyKind,
        live: u32,
    ) -> Self {
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::given(memory, Layout::new::<W>(shape)) };
        Self::start(memory, nodes, policy, live)
    }

    fn start(memory: Memory<W>, nodes: u32, policy: PolicyKind, live: u32) -> Self {
        let layout = *memory.layout();
        let table = Table {
            memory,
            policy: plain::AtomicU8::new(policy as u8),
            counts_hits: plain::AtomicBool::new(false),
            learner: OnceLock::new(),
            balance: OnceLock::new(),
            monitor: OnceLock::new(),
            has_copies: plain::AtomicBool::new(false),
            copies_yield: plain::AtomicBool::new(true),
            has_away: plain::AtomicBool::new(false),
            tally: Tally::default(),
            dealer: Dealer::default(),
            probe: ProbeKind::detect(),
            nodes: Nodes::new(nodes, layout.shape.segments_max, layout.level_max),
        };
        assert!(
            (1..=layout.shape.segments_max).contains(&live),
            "a table begins with 1 to {} segments in use, not {live}",
            layout.shape.segments_max
        );
        let level = layout.level_for::<W>(live).max(table.nodes.level_min());
        let segments = Self::first_segments(layout.shape, nodes, live);
        table.deal_entries(level, &segments);
        for segment in segments {
            table.record(segment).live.store(1, Ordering::Relaxed);
        }
        table.header().live.store(live, Ordering::Relaxed);
        table.set_level(level);
        table.prepare(policy);
        table
    }

    /// Returns whether there may be copies of other nodes' pages.
    pub(crate) fn has_copies(&self) -> bool {
        self.has_copies.load(Ordering::Relaxed)
    }

    /// Sets whether copies of other nodes' pages are evicted before pages. If not, the policy alone
    /// chooses. Default: true.
    pub fn set_copies_yield(&self, yields: bool) {
        self.copies_yield.store(yields, Ordering::Relaxed);
    }

    pub(crate) fn copies_yield(&self) -> bool {
        self.copies_yield.load(Ordering::Relaxed)
    }

    pub(crate) fn note_copies(&self) {
        if !self.has_copies() {
            self.has_copies.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the counts of all sets.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the number of slots in use, with and without a page.
    pub fn slots_count(&self) -> u64 {
        (self.live_segments() as u64) << self.layout().slots_per_segment_shift
    }

    /// Returns the number of segments in use.
    pub fn live_segments(&self) -> u32 {
        self.header().live.load(Ordering::Relaxed)
    }

    /// Returns whether a segment is in use.
    pub fn is_live(&self, segment: SegmentIndex) -> bool {
        // Acquire: pairs with `join` and `retire`.
        self.record(segment).live.load(Ordering::Acquire) == 1
    }

    /// Returns the shape that the table was made with.
    pub fn shape(&self) -> Shape {
        self.layout().shape
    }

    /// Returns the number of slots in a segment.
    pub fn slots_per_segment(&self) -> u32 {
        1 << self.layout().slots_per_segment_shift
    }

    /// Returns the segment that a slot lies in.
    pub fn segment_of(&self, slot: SlotIndex) -> SegmentIndex {
        SegmentIndex(slot.0 >> self.layout().slots_per_segment_shift)
    }

    /// Returns the sets of a segment.
    pub(crate) fn sets_of(&self, segment: SegmentIndex) -> impl Iterator<Item = SetNumber> + use<W> {
        let first = self.first_set(segment);
        (first..first + self.layout().shape.sets_per_segment).map(SetNumber)
    }

    /// Returns the segments in use, in the order of their numbers.
    pub fn segments(&self) -> impl Iterator<Item = SegmentIndex> {
        (0..self.layout().shape.segments_max).map(SegmentIndex).filter(|s| self.is_live(*s))
    }

    /// Visits every segment in use, and visits a segment again if pages have arrived there from
    /// another slot since its last visit. So the walk does not miss a page that moves from a slot
    /// not yet visited into one already visited, in another segment or in its own set (P9). Every
    /// round but the first and the last follows an arrival, so the number of arrivals bounds the
    /// rounds.
    pub(crate) fn walk(&self, mut visit: impl FnMut(SegmentIndex)) {
        let mut seen: Vec<Option<u32>> = vec![None; self.shape().segments_max as usize];
        let mut again = true;
        while std::mem::take(&mut again) {
            for segment in self.segments() {
                // Acquire: pairs with `remove_moved`, so that the visit sees the pages that were
                // counted before.
                let arrivals = Some(self.record(segment).arrivals.load(Ordering::Acquire));
                if std::mem::replace(&mut seen[segment.0 as usize], arrivals) != arrivals {
                    visit(segment);
                    again = true;
                }
            }
        }
    }

    #[inline(always)]
    pub(crate) fn layout(&self) -> &Layout {
        self.memory.layout()
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the header lies at offset 0.
        unsafe { self.memory.at(0) }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, entry: usize) -> &AtomicU32 {
        debug_assert!(entry < 1 << self.layout().level_max);
        // SAFETY: the layout has room for every entry of every level up to level_max.
        unsafe { self.memory.at_directory(entry) }
    }

    pub(crate) fn record(&self, segment: SegmentIndex) -> &SegmentRecord {
        assert!(segment.0 < self.layout().shape.segments_max);
        // SAFETY: a record per segment lies there.
        unsafe { self.memory.at(self.layout().records_at + segment.0 as usize * size_of::<SegmentRecord>()) }
    }

    #[inline(always)]
    fn set_at(&self, set: SetNumber) -> usize {
        debug_assert!(self.segment_of_set(set).0 < self.layout().shape.segments_max);
        set.0 as usize * set_bytes::<W>()
    }

    #[inline(always)]
    pub(crate) fn head(&self, set: SetNumber) -> &Head<W> {
        // SAFETY: directory entries name segments below segments_max, and each has a head per set.
        unsafe { self.memory.at_sets(self.set_at(set)) }
    }

    /// Returns a set's fingerprints: eight bits of each way's tag.
    #[inline(always)]
    pub(crate) fn fingerprints(&self, set: SetNumber) -> &[AtomicU8; W] {
        &self.front(set).fingerprints
    }

    /// Returns a set's front: the fields that a hit reads besides a tag. The fronts of all sets are
    /// contiguous, two bytes per page, and so stay in the second-level cache.
    #[inline(always)]
    pub(crate) fn front(&self, set: SetNumber) -> &Front<W> {
        // SAFETY: one for each set lies there.
        unsafe { self.memory.at_fronts(set.0 as usize) }
    }

    /// Returns the set of a front.
    pub(crate) fn set_of_front(&self, front: &Front<W>) -> SetNumber {
        let distance = std::ptr::from_ref(front).addr() - std::ptr::from_ref(self.front(SetNumber(0))).addr();
        SetNumber((distance / front_bytes::<W>()) as u32)
    }

    #[inline(always)]
    pub(crate) fn tag_at(&self, index: SlotIndex) -> &AtomicU64 {
        // SAFETY: a tag for each slot lies there.
        unsafe { self.memory.at_tags(index.0 as usize) }
    }

    #[inline(always)]
    pub(crate) fn slot_in(&self, set: SetNumber, way: usize) -> Slot<'_> {
        debug_assert!(way < W);
        let place = words_at::<W>() + way * size_of::<AtomicU64>();
        // SAFETY: each set of each segment has W words.
        let word = unsafe { self.memory.at_sets(self.set_at(set) + place) };
        Slot::new(word, self.tag_at(self.index_of(set, way)), &self.front(set).shown, way, W)
    }

    pub(crate) fn ghosts(&self, set: SetNumber) -> &[AtomicU32] {
        let count = crate::word::ghost::ghosts_of(W);
        let at = self.layout().segments_at + self.set_at(set) + ghosts_at::<W>();
        // SAFETY: each set of each segment has its ghosts there, one behind the other.
        unsafe { self.memory.slice_at(at, count) }
    }

    /// Returns the slot with a number that this table has returned.
    #[inline(always)]
    pub fn slot(&self, index: SlotIndex) -> Slot<'_> {
        let (set, way) = self.place_of(index);
        self.slot_in(set, way)
    }

    #[inline(always)]
    pub(crate) fn index_of(&self, set: SetNumber, way: usize) -> SlotIndex {
        SlotIndex(set.0 * W as u32 + way as u32)
    }

    #[inline(always)]
    pub(crate) fn split(slot: SlotIndex) -> (SetNumber, u32) {
        (SetNumber(slot.0 / W as u32), slot.0 % W as u32)
    }

    #[inline(always)]
    pub(crate) fn place_of(&self, index: SlotIndex) -> (SetNumber, usize) {
        let set = SetNumber(index.0 / W as u32);
        assert!(self.segment_of_set(set).0 < self.layout().shape.segments_max);
        (set, index.0 as usize % W)
    }

    pub(crate) fn segment_of_set(&self, set: SetNumber) -> SegmentIndex {
        SegmentIndex(set.0 >> self.layout().set_shift)
    }

    /// Returns the slots of a segment, in the order of their numbers, with their words at this
    /// moment. Takes no lock.
    pub fn slots_of(&self, segment: SegmentIndex) -> impl Iterator<Item = (SlotIndex, Word)> {
        let ways = self.sets_of(segment).flat_map(|set| (0..W).map(move |way| (set, way)));
        ways.map(|(set, way)| (self.index_of(set, way), self.slot_in(set, way).load()))
    }

    pub(crate) fn pages_in(&self, set: SetNumber) -> impl Iterator<Item = Found<'_>> {
        (0..W).filter_map(move |way| {
            let slot = self.slot_in(set, way);
            let word = slot.load();
            word.findable().then(|| Found { slot, index: self.index_of(set, way), word })
        })
    }
}
