//! The table of one partition: a directory of segments, each a row of page sets.
//!
//! It answers which slot a page sits in. It does no I/O, knows no clock and no threads, holds no
//! page bytes and no addresses: frame *n* belongs to slot *n*, and where frames lie is the caller's
//! business.
//!
//! The lookup (`find`) takes no lock and stores nothing. It may miss a page that is moving; whoever
//! believes a miss takes the set's lock and looks again ([`Table::lock`]), which is what a claim
//! needs anyway.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic as plain;

use crate::layout::{
    Front, Head, Header, Layout, SegmentRecord, Shape, all_bytes, ghosts_at, set_bytes, words_at,
};
use crate::memory::Memory;
use crate::monitor::{MissCurve, Monitor};
use crate::nodes::Nodes;
use crate::policy::{Balance, Learned, Learner, Policy, PolicyKind, with_policy};
use crate::probe::ProbeKind;
use crate::set::SetGuard;
use crate::slot::{Slot, State, Word};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::tag::Tag;

/// A segment of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIndex(pub u32);

/// A slot of a table, and the frame that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u32);

/// A set: all sets of segment 0, then those of segment 1, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetNumber(pub(crate) u32);

/// A page that was found, with the word it was found by.
#[derive(Clone, Copy)]
pub struct Found<'t> {
    pub(crate) slot: Slot<'t>,
    /// Its slot, and frame.
    pub index: SlotIndex,
    /// Its word at that moment.
    pub word: Word,
}

impl<'t> Found<'t> {
    /// The slot.
    #[inline(always)]
    pub fn slot(&self) -> Slot<'t> {
        self.slot
    }

    /// The page.
    pub fn tag(&self) -> Tag {
        self.slot.tag()
    }
}

/// What the sets count. Relaxed: figures, which order nothing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    /// Pages that were read ahead and asked for then.
    pub ahead_used: plain::AtomicU64,
    /// Pages that were read ahead and left before anybody asked for them.
    pub ahead_wasted: plain::AtomicU64,
    /// Misses of pages that their set remembered: about what would have been saved by
    /// [`Table::remembered_slots`] more.
    pub ghost_hits: plain::AtomicU64,
}

/// The page sets of one partition. `W` ways to a set.
pub struct Table<const W: usize = 16> {
    memory: Memory<W>,
    // No part of a protocol, so the model checkers need not see them.
    policy: plain::AtomicU8,
    counts_hits: plain::AtomicBool,
    learner: OnceLock<Learner>,
    balance: OnceLock<Balance>,
    monitor: OnceLock<Monitor>,
    /// A copy of another node's page was made at some time. Each set's lock orders what matters of
    /// it.
    has_copies: plain::AtomicBool,
    copies_yield: plain::AtomicBool,
    /// A main was away from home at some time (T9).
    pub(crate) has_away: plain::AtomicBool,
    tally: Tally,
    #[cfg_attr(any(loom, shuttle), allow(dead_code))]
    pub(crate) probe: ProbeKind,
    pub(crate) nodes: Nodes,
}

impl<const W: usize> Table<W> {
    pub(crate) const ALL_WAYS: u32 = if W == 32 { u32::MAX } else { (1 << W) - 1 };

    /// How many bytes of memory a table of this shape has; they are touched only as segments come
    /// into use.
    pub fn memory_bytes(shape: Shape) -> usize {
        Layout::new::<W>(shape).bytes
    }

    /// Bytes of metadata that one segment uses.
    pub fn segment_metadata_bytes(shape: Shape) -> usize {
        shape.sets_per_segment as usize * all_bytes::<W>()
    }

    /// Bytes of directory and segment records.
    pub fn fixed_bytes(shape: Shape) -> usize {
        Layout::new::<W>(shape).fingerprints_at
    }

    /// A table in memory of its own, with `live` segments in use.
    pub fn new(shape: Shape, policy: PolicyKind, live: u32) -> Self {
        Self::spread(shape, 1, policy, live)
    }

    /// `new`, of segments that are divided among so many nodes.
    pub fn spread(shape: Shape, nodes: u32, policy: PolicyKind, live: u32) -> Self {
        Self::start(Memory::heap(Layout::new::<W>(shape)), nodes, policy, live)
    }

    /// A table in memory that the caller keeps, its segments divided among so many nodes.
    ///
    /// # Safety
    /// `memory` is zeroed, aligned to 64, valid for [`Self::memory_bytes`] bytes, and nothing else
    /// uses it while the table lives.
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
            probe: ProbeKind::detect(),
            nodes: Nodes::new(nodes, layout.shape.segments_max, layout.level_max),
        };
        assert!(
            (1..=layout.shape.segments_max).contains(&live),
            "1 to {} segments",
            layout.shape.segments_max
        );
        let level = layout.level_for(live).max(table.nodes.level_min());
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

    /// Makes what a policy needs besides the sets. It stays, and rests while another policy is
    /// followed.
    fn prepare(&self, policy: PolicyKind) {
        if with_policy!(policy, P => P::LEARNS) {
            self.learner.get_or_init(|| Learner::new(self.slots_count(), W));
        }
        if with_policy!(policy, P => P::BALANCES) {
            self.balance.get_or_init(|| Balance::new(self.slots_count()));
        }
        // Relaxed, as the policy itself: whoever still follows the old one guesses worse for a moment.
        self.counts_hits.store(with_policy!(policy, P => P::COUNTS_HITS), Ordering::Relaxed);
        self.tell_capacity();
    }

    /// Whether its policy is told of every hit.
    pub(crate) fn counts_hits(&self) -> bool {
        self.counts_hits.load(Ordering::Relaxed)
    }

    /// The policy that its sets follow.
    #[inline(always)]
    pub fn policy(&self) -> PolicyKind {
        PolicyKind::ALL[self.policy.load(Ordering::Relaxed) as usize]
    }

    /// Follows another policy from now on, which takes over the pages in the order in which the old
    /// one would have let them go. Pages, pins and I/O are not concerned. One call at a time,
    /// and none while the table is resized.
    pub fn set_policy(&self, new: PolicyKind) {
        let old = self.policy();
        if old == new {
            return;
        }
        self.prepare(new);
        self.policy.store(new as u8, Ordering::Relaxed);
        // 2. Each set under its lock. One that a page came into meanwhile was led by a guess.
        for set in self.segments().flat_map(|segment| self.sets_of(segment)) {
            self.lock_set(set).change_policy(set, old, new);
        }
        if let Some(monitor) = self.monitor.get() {
            monitor.set_policy(new, self.learner());
        }
    }

    /// Begins to watch what the table would miss at sizes up to `most_pages`, with at most so many
    /// bytes. Says how many that takes; 0: too few to say anything.
    pub fn watch(&self, most_pages: u64, bytes_max: u64) -> u64 {
        self.begin_watch(most_pages, bytes_max, false)
    }

    /// `watch`, for a table that one thread at a time uses, whichever it is: what is seen does not
    /// depend on which.
    pub fn watch_alone(&self, most_pages: u64, bytes_max: u64) -> u64 {
        self.begin_watch(most_pages, bytes_max, true)
    }

    fn begin_watch(&self, most_pages: u64, bytes_max: u64, alone: bool) -> u64 {
        let monitor = Monitor::new(self.policy(), most_pages, bytes_max, W, alone);
        monitor.map_or(0, |monitor| self.monitor.get_or_init(|| monitor).bytes())
    }

    /// What is watched of the table, if something is.
    pub fn monitor(&self) -> Option<&Monitor> {
        self.monitor.get()
    }

    /// Takes what the monitor was shown through its miniatures; returns how much there was.
    pub fn drain_monitor(&self) -> u64 {
        self.monitor().map_or(0, |monitor| monitor.drain(self.learner()))
    }

    /// The miss curve of late, if it is watched.
    pub fn miss_curve(&self) -> Option<MissCurve> {
        self.monitor().map(Monitor::curve)
    }

    /// Whether something has been learned, or is to be when a policy that learns is followed again.
    pub fn has_learner(&self) -> bool {
        self.learner.get().is_some()
    }

    /// What the table has learned, if its policy learns.
    pub(crate) fn learner(&self) -> Option<&Learner> {
        self.learner.get()
    }

    /// What the sets aim at together, if their policy balances.
    pub(crate) fn balance(&self) -> Option<&Balance> {
        self.balance.get()
    }

    /// Tells the learner and the balance that the table has become larger or smaller.
    pub(crate) fn tell_capacity(&self) {
        if let Some(learner) = self.learner() {
            learner.set_capacity(self.slots_count());
        }
        if let Some(balance) = self.balance() {
            balance.set_capacity(self.slots_count());
        }
    }

    /// Bytes, besides the table's memory, that a policy takes for what it learns about a table of
    /// `slots`.
    pub fn learning_bytes(policy: PolicyKind, slots: u64) -> usize {
        if with_policy!(policy, P => P::LEARNS) { Learner::bytes(slots, W) } else { 0 }
    }

    /// What its policy has learned, if it learns.
    pub fn learned(&self) -> Option<Learned> {
        self.learner().filter(|_| with_policy!(self.policy(), P => P::LEARNS)).map(Learner::learned)
    }

    /// Goes on with what another table's policy has learned, if its own learns.
    pub fn adopt_learned(&self, learned: &Learned) {
        if let Some(learner) = self.learner() {
            learner.adopt(learned);
        }
    }

    /// Whether there may be copies of other nodes' pages.
    pub(crate) fn has_copies(&self) -> bool {
        self.has_copies.load(Ordering::Relaxed)
    }

    /// Whether copies of other nodes' pages leave before pages, as they do at first; else as the
    /// policy says.
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

    /// What the sets have counted.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Slots in use, whether or not they hold a page.
    pub fn slots_count(&self) -> u64 {
        (self.live_segments() as u64) << self.layout().slots_per_segment_shift
    }

    /// Pages that have left and are remembered, at most: none where the policy has no ghosts.
    pub fn remembered_slots(&self) -> u64 {
        let of_a_set = with_policy!(self.policy(), P => <P as Policy>::ghosts_max(W));
        self.slots_count() / W as u64 * of_a_set as u64
    }

    /// Segments in use.
    pub fn live_segments(&self) -> u32 {
        self.header().live.load(Ordering::Relaxed)
    }

    /// Whether a segment is in use.
    pub fn is_live(&self, segment: SegmentIndex) -> bool {
        // Acquire: pairs with `join` and `retire`.
        self.record(segment).live.load(Ordering::Acquire) == 1
    }

    /// The shape it was made with.
    pub fn shape(&self) -> Shape {
        self.layout().shape
    }

    /// Slots in a segment.
    pub fn slots_per_segment(&self) -> u32 {
        1 << self.layout().slots_per_segment_shift
    }

    /// The segment a slot lies in.
    pub fn segment_of(&self, slot: SlotIndex) -> SegmentIndex {
        SegmentIndex(slot.0 >> self.layout().slots_per_segment_shift)
    }

    // ---- Under the lock
    // ---------------------------------------------------------------------------------------

    /// Locks the set of a page, so that it can be neither brought in nor removed by anybody else.
    pub fn lock(&self, tag: Tag) -> SetGuard<'_, W> {
        // A turn is repeated only when a move of this very entry began or ended between the look and the
        // lock. Moves take thousands of set locks each, so this ends; the number of turns is
        // bounded by the number of moves.
        loop {
            let home = self.set_of(tag);
            let (seen, target) = self.move_of(tag);
            // Between the two stores of R4 the entry names the new segment already: then one set is all there
            // is to lock.
            let target = target.map(|segment| self.set_in(segment, tag)).filter(|next| *next != home);
            // Two locks are taken in the order of their segments.
            let (first, second) = match target {
                Some(next) if next < home => (next, Some(home)),
                next => (home, next),
            };
            let lock = self.head(first).lock.lock();
            let second = second.map(|set| self.head(set).lock.lock());
            // Whoever passed this set as the mover did so under its lock, so that its record is visible now;
            // and the record is taken down only after the entry was changed (see `resize`, R4).
            let (now, _) = self.move_of(tag);
            if now == seen && self.set_of(tag) == home {
                let guard = SetGuard::new(self, home, target, (lock, second));
                return if guard.may_be_away(tag) { self.lock_places_after(guard, tag) } else { guard };
            }
        }
    }

    /// Locks a set by its number, for walks over a whole table.
    pub(crate) fn lock_set(&self, set: SetNumber) -> SetGuard<'_, W> {
        SetGuard::new(self, set, None, (self.head(set).lock.lock(), None))
    }

    /// The sets of a segment.
    pub(crate) fn sets_of(&self, segment: SegmentIndex) -> impl Iterator<Item = SetNumber> + use<W> {
        let first = self.first_set(segment);
        (first..first + self.layout().shape.sets_per_segment).map(SetNumber)
    }

    /// The segments in use.
    pub fn segments(&self) -> impl Iterator<Item = SegmentIndex> {
        (0..self.layout().shape.segments_max).map(SegmentIndex).filter(|s| self.is_live(*s))
    }

    /// Shows every page that was there all the time of the walk, and some that came or went, a set
    /// at a time under its lock. A page that moves meanwhile may be shown twice. The guard is
    /// for finding and removing the page that is shown.
    pub fn for_each_page(&self, mut visit: impl FnMut(&mut SetGuard<'_, W>, Found<'_>)) {
        self.walk(|segment| self.for_each_page_of(segment, &mut visit));
    }

    /// Shows the pages of one segment, a set at a time under its lock.
    pub fn for_each_page_of(
        &self,
        segment: SegmentIndex,
        mut visit: impl FnMut(&mut SetGuard<'_, W>, Found<'_>),
    ) {
        for set in self.sets_of(segment) {
            let mut guard = self.lock_set(set);
            for found in self.pages_in(set) {
                visit(&mut guard, found);
            }
        }
    }

    /// Visits every segment in use, and again each in which pages arrived since from another slot:
    /// no page slips past from a slot that is yet to be visited into one that was. The turns
    /// are bounded by the arrivals, for all but the last follow one.
    fn walk(&self, mut visit: impl FnMut(SegmentIndex)) {
        let mut seen: Vec<Option<u32>> = vec![None; self.shape().segments_max as usize];
        let mut again = true;
        while std::mem::take(&mut again) {
            for segment in self.segments() {
                // Acquire: pairs with `remove_moved`; pages that were counted before are there for the visit.
                let arrivals = Some(self.record(segment).arrivals.load(Ordering::Acquire));
                if std::mem::replace(&mut seen[segment.0 as usize], arrivals) != arrivals {
                    visit(segment);
                    again = true;
                }
            }
        }
    }

    // ---- Transitions that count dirty pages
    // ---------------------------------------------------------------------

    /// P2 with the count of dirty pages kept.
    #[must_use]
    pub fn publish(&self, slot: SlotIndex, dirty: bool) -> bool {
        if dirty {
            self.count_dirty(slot, 1);
        }
        self.slot(slot).publish(dirty)
    }

    /// P7 with the count of dirty pages kept; `before` is the word that `begin_write` replaced.
    #[must_use]
    pub fn end_write(&self, slot: SlotIndex, before: Word, dirty: bool) -> bool {
        let was_dirty = before.state() == State::Dirty;
        debug_assert!(dirty || !was_dirty, "a write does not clean");
        if dirty && !was_dirty {
            self.count_dirty(slot, 1);
        }
        self.slot(slot).end_write(dirty)
    }

    /// P11 with the count of dirty pages kept.
    #[must_use]
    pub fn end_writeback(&self, slot: SlotIndex, version: u64, written: bool) -> crate::slot::EndedWriteback {
        let ended = self.slot(slot).end_writeback(version, written);
        if ended.cleaned {
            self.count_dirty(slot, -1);
        }
        ended
    }

    /// Dirty pages in the table: exact when it is quiet, never too few for a page whose write has
    /// been replied to.
    pub fn dirty_pages(&self) -> u64 {
        self.header().dirty.load(Ordering::Relaxed)
    }

    /// Shows the dirty pages, without a lock: segments that have none are passed over. A page that
    /// moves may be shown twice.
    pub fn for_each_dirty(&self, mut visit: impl FnMut(SlotIndex, Tag, Word)) {
        self.walk(|segment| {
            // Acquire: pairs with `count_dirty`; a page that is counted no more has arrived elsewhere or is
            // clean.
            if self.record(segment).dirty.load(Ordering::Acquire) == 0 {
                return;
            }
            for found in self.sets_of(segment).flat_map(|set| self.pages_in(set)) {
                // Writing may be a dirty page under change: its writer has not been replied to, or it was
                // dirty before. So may be a held one, if the store refuses (P14).
                if matches!(found.word.state(), State::Dirty | State::Writing) || found.word.held() {
                    visit(found.index, found.tag(), found.word);
                }
            }
        });
    }

    /// Counted before a page becomes dirty and after it became clean, so that the count is never
    /// too low.
    pub(crate) fn count_dirty(&self, slot: SlotIndex, change: i32) {
        let record = self.record(self.segment_of(slot));
        // Release: pairs with `for_each_dirty`. A page that became dirty needs none: `publish` and
        // `end_write` release after the count, and a sync that must see the page has synchronised
        // with its writer.
        record.dirty.fetch_add(change as u32, Ordering::Release);
        // Relaxed: nothing orders on the total.
        self.header().dirty.fetch_add(change as i64 as u64, Ordering::Relaxed);
    }

    // ---- Places
    // -------------------------------------------------------------------------------------------------

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
    pub(crate) fn entry(&self, level: u32, entry: usize) -> &AtomicU32 {
        debug_assert!(level <= self.layout().level_max && entry < 1 << level);
        self.entry_at((1usize << level) + entry)
    }

    #[inline(always)]
    pub(crate) fn entry_at(&self, place: usize) -> &AtomicU32 {
        debug_assert!(place < 2 << self.layout().level_max);
        // SAFETY: the layout has room for every entry of every level up to level_max.
        unsafe { self.memory.at_directory(place) }
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

    /// Eight bits of each way's tag, those of all sets one behind the other: a byte a page, which
    /// the second cache holds where it could not hold the heads. Changes at a claim, under the
    /// set's lock; stale for slots that are free.
    #[inline(always)]
    pub(crate) fn fingerprints(&self, set: SetNumber) -> &[AtomicU8; W] {
        // SAFETY: a byte for each way of each set lies there.
        unsafe { self.memory.at_fingerprints(set.0 as usize) }
    }

    /// What a hit looks at besides a fingerprint and a tag. Those of all sets one behind the other,
    /// so that they stay in the second cache.
    #[inline(always)]
    pub(crate) fn front(&self, set: SetNumber) -> &Front {
        // SAFETY: one for each set lies there.
        unsafe { self.memory.at_fronts(set.0 as usize) }
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
        let count = crate::ghost::ghosts_of(W);
        let at = self.layout().segments_at + self.set_at(set) + ghosts_at::<W>();
        // SAFETY: each set of each segment has its ghosts there, one behind the other.
        unsafe { self.memory.slice_at(at, count) }
    }

    /// The slot of an index that this table gave out.
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

    /// The set of another segment with the same number inside it.
    pub(crate) fn beside(&self, set: SetNumber, segment: SegmentIndex) -> SetNumber {
        SetNumber(self.first_set(segment) | set.0 & self.layout().set_mask as u32)
    }

    pub(crate) fn segment_of_set(&self, set: SetNumber) -> SegmentIndex {
        SegmentIndex(set.0 >> self.layout().set_shift)
    }

    pub(crate) fn pages_in(&self, set: SetNumber) -> impl Iterator<Item = Found<'_>> {
        (0..W).filter_map(move |way| {
            let slot = self.slot_in(set, way);
            let word = slot.load();
            word.findable().then(|| Found { slot, index: self.index_of(set, way), word })
        })
    }
}
