//! The table of one partition: a directory of segments, each a row of page sets.
//!
//! It answers which slot a page sits in. It does no I/O, knows no clock and no threads, holds no page bytes and no
//! addresses: frame *n* belongs to slot *n*, and where frames lie is the caller's business.
//!
//! The lookup (`find`) takes no lock and stores nothing. It may miss a page that is moving; whoever believes a miss
//! takes the set's lock and looks again ([`Table::lock`]), which is what a claim needs anyway.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic as plain;

use crate::layout::{
    Front, Head, Header, Layout, SegmentRecord, Shape, all_bytes, ghosts_at, set_bytes, words_at,
};
use crate::memory::Memory;
use crate::monitor::{MissCurve, Monitor};
use crate::nodes::Nodes;
use crate::policy::{Balance, Learner, Policy, PolicyKind, with_policy};
use crate::probe::ProbeKind;
use crate::set::SetGuard;
use crate::slot::{Shown, Slot, State, Word};
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
    slot: Slot<'t>,
    /// Its slot, and frame.
    pub index: SlotIndex,
    /// Its word at that moment.
    pub word: Word,
}

/// A page that was seen at a glance (P13): what is read of it now is the page's if [`Table::is_still_shown`] says so afterwards.
#[derive(Clone, Copy)]
pub struct Glance<const W: usize> {
    slot: SlotIndex,
    shown: Shown<W>,
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
    /// Misses of pages that their set remembered: about what three times the memory would have saved, for a policy with ghosts.
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
    tally: Tally,
    #[cfg_attr(any(loom, shuttle), allow(dead_code))]
    probe: ProbeKind,
    pub(crate) nodes: Nodes,
}

impl<const W: usize> Table<W> {
    pub(crate) const ALL_WAYS: u32 = if W == 32 { u32::MAX } else { (1 << W) - 1 };

    /// How many bytes of memory a table of this shape has; they are touched only as segments come into use.
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
    /// `memory` is zeroed, aligned to 64, valid for [`Self::memory_bytes`] bytes, and nothing else uses it while the table lives.
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

    /// Makes what a policy needs besides the sets. It stays, and rests while another policy is followed.
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

    /// The policy that its sets follow.
    #[inline(always)]
    pub fn policy(&self) -> PolicyKind {
        PolicyKind::ALL[self.policy.load(Ordering::Relaxed) as usize]
    }

    /// Follows another policy from now on, which takes over the pages in the order in which the old one would have let them go. Pages, pins and I/O
    /// are not concerned. One call at a time, and none while the table is resized.
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

    /// Begins to watch what the table would miss at sizes up to `most_pages`, with at most so many bytes. Says how many that takes; 0: too few
    /// to say anything.
    pub fn watch(&self, most_pages: u64, bytes_max: u64) -> u64 {
        if let Some(monitor) = Monitor::new(self.policy(), most_pages, bytes_max, W) {
            return self.monitor.get_or_init(|| monitor).bytes();
        }
        0
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

    /// What the sets have counted.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Slots in use, whether or not they hold a page.
    pub fn slots_count(&self) -> u64 {
        (self.live_segments() as u64) << self.layout().slots_per_segment_shift
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

    // ---- Lookup -----------------------------------------------------------------------------------------------

    /// The page, if it is where the directory says now. No lock, no store. A None is to be believed only under the set's lock.
    #[inline(always)]
    pub fn find(&self, tag: Tag) -> Option<Found<'_>> {
        self.find_in(self.set_of(tag), tag)
    }

    /// Asks the processor for the fingerprints of a page's set.
    #[inline(always)]
    pub fn prefetch_set(&self, tag: Tag) {
        prefetch(self.fingerprints(self.set_of(tag)));
    }

    /// The first slot whose fingerprint is the page's, in the set that the directory names: that it holds another page happens a few times in a
    /// hundred.
    #[inline(always)]
    pub fn candidate(&self, tag: Tag) -> Option<SlotIndex> {
        let set = self.set_of(tag);
        let ways = self.matching(set, tag.fingerprint());
        (ways != 0).then(|| self.index_of(set, ways.trailing_zeros() as usize))
    }

    /// Asks the processor for a slot's tag.
    #[inline(always)]
    pub fn prefetch_tag(&self, slot: SlotIndex) {
        prefetch(self.tag_at(slot));
    }

    /// P13: the page, if it is in this slot and may be read now. None says nothing but that `find` has to look.
    #[inline(always)]
    pub fn glance(&self, slot: SlotIndex, tag: Tag) -> Option<Glance<W>> {
        let (set, way) = Self::split(slot);
        // What is shown first, with acquire, then the tag.
        let shown = Shown::load(&self.front(set).shown);
        // Relaxed: as `Slot::tag`.
        let is_it = self.tag_at(slot).load(Ordering::Relaxed) == tag.0;
        (is_it && shown.has(way)).then_some(Glance { slot, shown })
    }

    /// P13, the re-check: whether what was read since the glance is the page's, untorn. False where any page of the set was hidden.
    #[inline(always)]
    pub fn is_still_shown(&self, glance: &Glance<W>) -> bool {
        glance.shown.holds(&self.front(Self::split(glance.slot).0).shown)
    }

    /// `touch` of what was seen at a glance.
    #[inline(always)]
    pub fn touch_at(&self, glance: &Glance<W>, tag: Tag) -> bool {
        self.touch_slot(glance.slot, || tag)
    }

    /// The page, if it is in this slot and may be pinned now. None says nothing but that `find` has to look.
    #[inline(always)]
    pub fn confirm(&self, index: SlotIndex, tag: Tag) -> Option<Found<'_>> {
        let (set, way) = Self::split(index);
        let slot = self.slot_in(set, way as usize);
        // P4: the word first, with acquire, then the tag.
        let word = slot.load();
        (slot.tag() == tag && word.readable()).then_some(Found { slot, index, word })
    }

    /// Tells the policy of a hit, by the page's mark. Stores only at a page's first hit since a page came into its set, and for pages that the
    /// monitor follows; a policy that counts every hit has no marks. True: the page was read ahead, and this is the first who wants it.
    #[inline(always)]
    pub fn touch(&self, found: &Found<'_>) -> bool {
        self.touch_slot(found.index, || found.tag())
    }

    #[inline(always)]
    fn touch_slot(&self, slot: SlotIndex, tag: impl FnOnce() -> Tag) -> bool {
        let (set, way) = Self::split(slot);
        // Relaxed: a hint to the policy. Two hits at the same time on neighbours may lose one's mark, which costs a guess.
        let is_marked = self.front(set).marks.load(Ordering::Relaxed) >> way & 1 != 0;
        !is_marked && self.first_hit(set, way, tag())
    }

    /// A hit of a page whose mark is down: its first since a page came into the set, any of a page that the monitor follows, any where
    /// the policy counts them.
    #[cold]
    #[inline(never)]
    fn first_hit(&self, set: SetNumber, way: u32, tag: Tag) -> bool {
        if self.counts_hits.load(Ordering::Relaxed) {
            return self.count_hit(set, way, tag);
        }
        let ahead = self.take_ahead(set, way);
        let (front, bit) = (self.front(set), 1 << way);
        let is_first = match self.monitor().filter(|monitor| monitor.follows(tag)) {
            Some(monitor) => {
                monitor.show(tag, ahead);
                // A page that is hot is told of once, and only read from then on.
                let told = &front.told;
                told.load(Ordering::Relaxed) & bit == 0 && told.fetch_or(bit, Ordering::Relaxed) & bit == 0
            }
            None => {
                // Relaxed: as in `touch_slot`.
                front.marks.store(front.marks.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
                true
            }
        };
        if is_first {
            self.teach(tag);
        }
        ahead
    }

    /// A page that was read ahead is wanted: from now on it leaves before others, until it is wanted again. Relaxed: hints, and whoever else changes
    /// these words does so by read-modify-write too.
    fn take_ahead(&self, set: SetNumber, way: u32) -> bool {
        let (head, bit) = (self.head(set), 1u32 << way);
        let ahead = head.ahead.load(Ordering::Relaxed) & bit != 0
            && head.ahead.fetch_and(!bit, Ordering::Relaxed) & bit != 0;
        if ahead {
            head.spent.fetch_or(bit, Ordering::Relaxed);
            self.tally.ahead_used.fetch_add(1, Ordering::Relaxed);
        } else if head.spent.load(Ordering::Relaxed) & bit != 0 {
            head.spent.fetch_and(!bit, Ordering::Relaxed);
        }
        ahead
    }

    /// Shows the monitor and the learner, if they are there and follow the page, that a page was asked for that is not there.
    pub(crate) fn show_miss(&self, tag: Tag) {
        if let Some(monitor) = self.monitor().filter(|monitor| monitor.follows(tag)) {
            monitor.show(tag, false);
        }
        self.teach(tag);
    }

    /// What `touch` would store of a hit now, for tools that count; no hit asks. First: a mark, or changed bits of the policy. Second: the learner would
    /// be shown it. Third: the monitor would be.
    #[doc(hidden)]
    pub fn stores_of_hit(&self, found: &Found<'_>) -> (bool, bool, bool) {
        let (set, way) = self.place_of(found.index);
        // Relaxed, all of it: a count, and nobody else is there.
        let (head, front) = (self.head(set), self.front(set));
        let shown = self.monitor().is_some_and(|monitor| monitor.follows(found.tag()));
        if self.counts_hits.load(Ordering::Relaxed) {
            let (old, clock) = (head.meta[way].load(Ordering::Relaxed), head.clock.load(Ordering::Relaxed));
            return (with_policy!(self.policy(), P => P::touched(old, clock, W)) != old, false, shown);
        }
        let marks =
            if shown { front.told.load(Ordering::Relaxed) } else { front.marks.load(Ordering::Relaxed) };
        let marked = marks >> way & 1 == 0;
        (marked, marked && self.learner().is_some_and(|learner| learner.follows(found.tag())), shown)
    }

    /// Shows the learner, if there is one and it follows the page, a miss or the first hit since a page came into the set.
    fn teach(&self, tag: Tag) {
        if let Some(learner) = self.learner()
            && learner.follows(tag)
            // What another policy's sets do would teach it wrong.
            && with_policy!(self.policy(), P => P::LEARNS)
        {
            learner.show(tag);
        }
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

    /// Bytes, besides the table's memory, that a policy takes for what it learns about a table of `slots`.
    pub fn learning_bytes(policy: PolicyKind, slots: u64) -> usize {
        if with_policy!(policy, P => P::LEARNS) { Learner::bytes(slots, W) } else { 0 }
    }

    fn count_hit(&self, set: SetNumber, way: u32, tag: Tag) -> bool {
        let head = self.head(set);
        let (meta, bit) = (&head.meta[way as usize], 1 << way);
        // Relaxed, all of it: as above.
        let old = meta.load(Ordering::Relaxed);
        let clock = head.clock.load(Ordering::Relaxed);
        let new = with_policy!(self.policy(), P => P::touched(old, clock, W));
        if new != old {
            meta.store(new, Ordering::Relaxed);
        }
        if let Some(monitor) = self.monitor()
            && monitor.follows(tag)
        {
            monitor.show(tag, head.ahead.load(Ordering::Relaxed) & bit != 0);
        }
        (head.ahead.load(Ordering::Relaxed) | head.spent.load(Ordering::Relaxed)) & bit != 0
            && self.take_ahead(set, way)
    }

    #[inline(always)]
    pub(crate) fn find_in(&self, set: SetNumber, tag: Tag) -> Option<Found<'_>> {
        let mut ways = self.matching(set, tag.fingerprint());
        while ways != 0 {
            let way = ways.trailing_zeros();
            ways &= ways - 1;
            let slot = self.slot_in(set, way as usize);
            // P3: the word first, with acquire, then the tag.
            let word = slot.load();
            if slot.tag() == tag && word.findable() {
                return Some(Found { slot, index: self.index_of(set, way as usize), word });
            }
        }
        None
    }

    #[cfg(not(any(loom, shuttle)))]
    #[inline(always)]
    fn matching(&self, set: SetNumber, fingerprint: u8) -> u32 {
        // For 8 and 16 ways every x86-64 has the one best comparison; the compiler may know.
        let kind = match W {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            ..=16 => ProbeKind::Sse2,
            _ => self.probe,
        };
        // SAFETY: the array has W bytes, whose places are multiples of W from the start of a line; all who write them store
        // single bytes atomically; the kind is supported.
        unsafe { crate::probe::find::<W>(kind, self.fingerprints(set).as_ptr().cast(), fingerprint) }
    }

    #[cfg(any(loom, shuttle))]
    fn matching(&self, set: SetNumber, fingerprint: u8) -> u32 {
        let equal = |way: &usize| self.fingerprints(set)[*way].load(Ordering::Relaxed) == fingerprint;
        (0..W).filter(equal).fold(0, |mask, way| mask | 1 << way)
    }

    /// The set where the directory says the page belongs now.
    #[inline(always)]
    pub(crate) fn set_of(&self, tag: Tag) -> SetNumber {
        // Acquire: pairs with the end of a move, so that the new segment's sets are seen as the mover left them.
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

    /// Puts a level in force that has been filled. Level l has its entries at places 2^l and on, in the order of the tags' first l bits: the
    /// word says how far a tag is shifted and what is added then. Release: pairs with `entry_of`.
    pub(crate) fn set_level(&self, level: u32) {
        assert!((1..=Tag::DIRECTORY_BITS).contains(&level));
        self.header().directory.store(64 << level | u64::from(64 - level), Ordering::Release);
    }

    // ---- Under the lock ---------------------------------------------------------------------------------------

    /// Locks the set of a page, so that it can be neither brought in nor removed by anybody else.
    pub fn lock(&self, tag: Tag) -> SetGuard<'_, W> {
        // A turn is repeated only when a move of this very entry began or ended between the look and the lock. Moves take
        // thousands of set locks each, so this ends; the number of turns is bounded by the number of moves.
        loop {
            let home = self.set_of(tag);
            let (seen, target) = self.move_of(tag);
            // Between the two stores of R4 the entry names the new segment already: then one set is all there is to lock.
            let target = target.map(|segment| self.set_in(segment, tag)).filter(|next| *next != home);
            // Two locks are taken in the order of their segments.
            let (first, second) = match target {
                Some(next) if next < home => (next, Some(home)),
                next => (home, next),
            };
            let lock = self.head(first).lock.lock();
            let second = second.map(|set| self.head(set).lock.lock());
            // Whoever passed this set as the mover did so under its lock, so that its record is visible now; and the
            // record is taken down only after the entry was changed (see `resize`, R4).
            let (now, _) = self.move_of(tag);
            if now == seen && self.set_of(tag) == home {
                return SetGuard::new(self, home, target, (lock, second));
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

    /// Shows every page that was there all the time of the walk, and some that came or went, a set at a time under its lock. A page
    /// that moves meanwhile may be shown twice. The guard is for finding and removing the page that is shown.
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

    /// Visits every segment in use, and again each in which pages arrived since from another slot: no page slips past from a slot that
    /// is yet to be visited into one that was. The turns are bounded by the arrivals, for all but the last follow one.
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

    // ---- Transitions that count dirty pages ---------------------------------------------------------------------

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

    /// Dirty pages in the table: exact when it is quiet, never too few for a page whose write has been replied to.
    pub fn dirty_pages(&self) -> u64 {
        self.header().dirty.load(Ordering::Relaxed)
    }

    /// Shows the dirty pages, without a lock: segments that have none are passed over. A page that moves may be shown twice.
    pub fn for_each_dirty(&self, mut visit: impl FnMut(SlotIndex, Tag, Word)) {
        self.walk(|segment| {
            // Acquire: pairs with `count_dirty`; a page that is counted no more has arrived elsewhere or is clean.
            if self.record(segment).dirty.load(Ordering::Acquire) == 0 {
                return;
            }
            for found in self.sets_of(segment).flat_map(|set| self.pages_in(set)) {
                // Writing may be a dirty page under change: its writer has not been replied to, or it was dirty before.
                if matches!(found.word.state(), State::Dirty | State::Writing) {
                    visit(found.index, found.tag(), found.word);
                }
            }
        });
    }

    /// Counted before a page becomes dirty and after it became clean, so that the count is never too low.
    pub(crate) fn count_dirty(&self, slot: SlotIndex, change: i32) {
        let record = self.record(self.segment_of(slot));
        // Release: pairs with `for_each_dirty`. A page that became dirty needs none: `publish` and `end_write` release after the
        // count, and a sync that must see the page has synchronised with its writer.
        record.dirty.fetch_add(change as u32, Ordering::Release);
        // Relaxed: nothing orders on the total.
        self.header().dirty.fetch_add(change as i64 as u64, Ordering::Relaxed);
    }

    // ---- Places -------------------------------------------------------------------------------------------------

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
    fn entry_at(&self, place: usize) -> &AtomicU32 {
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

    /// Eight bits of each way's tag, those of all sets one behind the other: a byte a page, which the second cache holds where it
    /// could not hold the heads. Changes at a claim, under the set's lock; stale for slots that are free.
    #[inline(always)]
    pub(crate) fn fingerprints(&self, set: SetNumber) -> &[AtomicU8; W] {
        // SAFETY: a byte for each way of each set lies there.
        unsafe { self.memory.at_fingerprints(set.0 as usize) }
    }

    /// What a hit looks at besides a fingerprint and a tag. Those of all sets one behind the other, so that they stay in the second cache.
    #[inline(always)]
    pub(crate) fn front(&self, set: SetNumber) -> &Front {
        // SAFETY: one for each set lies there.
        unsafe { self.memory.at_fronts(set.0 as usize) }
    }

    #[inline(always)]
    fn tag_at(&self, index: SlotIndex) -> &AtomicU64 {
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
    fn split(slot: SlotIndex) -> (SetNumber, u32) {
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

#[inline(always)]
fn prefetch<T>(at: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing and faults at nothing; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
