//! Mode `replicate`: copies pages to the nodes that read them (after PaCaR: Coquisart, Sopena,
//! Gouicem, EuroSys '26). A page's *main* is the page itself; a *twin* is its copy on another
//! node.
//!
//! The protocol is in `octavo_table` (T1 to T11 in `twin`): which twin may be read, and how a write
//! finds and overtakes twins. This file does what the table cannot: it copies the bytes, and
//! decides when a twin is worth making.
//!
//! - *Twins.* One in `threshold` remote reads copies its page to a free way of the reader's node.
//!   Pages are therefore chosen in proportion to how often they are read remotely, and no page
//!   needs a counter.
//! - *Refresh.* A write to a page makes its twins *stale* (it *overtakes* them). The next read of a
//!   stale twin copies the page again. If the twin was not read between the last two writes, only
//!   one such read in eight does.
//! - *Worth.* One page in 64 is a probe. If twins of probes are read too rarely between two writes,
//!   only probes get twins until that changes (`state/nodes/worth.rs`).
//! - *Switch.* A node that has written a page sixteen times in a row, with no write of another node
//!   in between, gets the page's main (`state/nodes/writers.rs`). Its writes are then local, until
//!   writes of another node move the main to that node or home.
//! - *Footprint.* Twins take free ways, or ways of other twins, and are evicted before any page is.
//!   A page that was evicted is restored from its twin without I/O. No twins are made while the
//!   system is short of memory, or while every step of the partition is recorded.
//!
//! Not here: reads of pages of the thread's own node, and misses.

use octavo_table::{Copying, Found, NodeId, SlotIndex, State, Tag, Word};

use crate::memory::copy::{self, Width};
use crate::numa::Replication;
use crate::numa::cost::waits_of;
use crate::pages::mover::PageMover;
use crate::state::counters::Count;
use crate::state::nodes::is_probe;
use crate::state::partition::PartitionInner;
use crate::sync::{Ordering, try_lock, yield_now};

/// Number of times that copying a page is tried while the page is being written.
const COPY_TRIES: usize = 2;

/// If a twin was not read since it was last copied, one read in this many refreshes it.
const DOUBTFUL_TURNS: u64 = 8;

impl PartitionInner {
    /// Serves a read by a thread of any node from the page's main, from the node's twin, or by
    /// making a twin, and counts the hit as local or remote. Returns `false` if the page is not
    /// resident or is being written.
    ///
    /// # Safety
    /// As `copy_resident`.
    pub unsafe fn read_near(&self, tag: Tag, skip: usize, to: *mut u8, len: usize, together: u64) -> bool {
        let here = self.shared.numa.here();
        if !self.places.replicates {
            // SAFETY: the caller's promise.
            let is_hit = unsafe { self.copy_resident(tag, skip, to, len) };
            if is_hit {
                self.charge_access(tag, len, together);
            }
            return is_hit;
        }
        let mut stale = None;
        // A page's own node (`owner_of`) has no twin of the page unless the main is away. A node to
        // which the page's entry has moved for balance (`node_of`) needs no twin.
        let is_home_here = self.table.node_of(tag) == here;
        let is_own = is_home_here || self.table.owner_of(tag) == here;
        // SAFETY: the caller's promise.
        if is_own && unsafe { self.read_at_home(tag, skip, to, len) } {
            self.found_at(tag, (is_home_here, is_home_here), len, together);
            return true;
        }
        let brings = !self.places.chooses || self.auto.brings(tag);
        if !is_own && brings || self.table.has_away() {
            match self.table.find_at(tag, here) {
                // This node has the main, which is away from home.
                // SAFETY: the caller's promise.
                Some(main) if main.word.readable() && unsafe { self.copy_found(&main, skip, to, len) } => {
                    self.found_at(tag, (is_home_here, true), len, together);
                    return true;
                }
                Some(found) if found.word.state() == State::Twin => {
                    // SAFETY: the frame is mapped for the partition's life; the copy may race
                    // with a thread that takes the frame, which `copy_out` allows.
                    unsafe { copy::copy_out(self.frames.at(found.index).wrapping_add(skip), to, len) };
                    if found.slot().is_still_twin(found.word) {
                        self.table.touch(&found);
                        self.counters.add(Count::TwinHits, 1);
                        if is_probe(tag) {
                            self.worth.probe_hit();
                        }
                        self.found_at(tag, (is_home_here, true), len, together);
                        return true;
                    }
                }
                found => {
                    stale = found.filter(|found| found.word.is_copy());
                    if stale.is_some() && is_probe(tag) {
                        self.worth.probe_stale();
                    }
                }
            }
            let weighs = self.shared.numa.replication.weighs && !self.places.chooses;
            if brings && (!weighs || self.worth.allows(tag)) && self.wants_copies() {
                // SAFETY: the caller's promise.
                if unsafe { self.read_by_copy(tag, here, stale, (skip, to, len), together) } {
                    return true;
                }
            }
        }
        // SAFETY: as above.
        let is_hit = unsafe { self.copy_resident(tag, skip, to, len) };
        if is_hit {
            self.found_at(tag, (is_home_here, self.node_of(tag) == here), len, together);
        }
        is_hit
    }

    /// Does what `copy_resident` does, for a page that is at home.
    ///
    /// # Safety
    /// As `copy_resident`.
    unsafe fn read_at_home(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        if !self.table.has_away() {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_resident(tag, skip, to, len) };
        }
        // SAFETY: it relies on nothing.
        let Some(candidate) = (unsafe { self.table.candidate_known::<false>(tag) }) else { return false };
        let frame = self.frames.at(candidate.slot).wrapping_add(skip);
        // SAFETY: as above.
        unsafe { self.copy_candidate(Width::Unknown, candidate, tag, frame, to, len) }
    }

    /// Prefetches the set in which `read_near` will look first.
    pub fn prefetch_near(&self, tag: Tag) {
        let here = self.shared.numa.here();
        match self.table.owner_of(tag) == here {
            true => self.table.prefetch_set(tag),
            false => self.table.prefetch_twin_set(tag, here),
        }
    }

    /// Counts and charges a hit: local if `is_here` (the page was found on this node), else remote.
    /// `is_home_here`: this node is the page's home.
    fn found_at(&self, tag: Tag, (is_home_here, is_here): (bool, bool), len: usize, together: u64) {
        self.weigh(tag, (is_home_here, is_here), len, together);
        self.counters.add(if is_here { Count::LocalHits } else { Count::RemoteHits }, 1);
        self.charge_at(is_here, len, together);
    }

    /// Whether pages may have twins and leave home. Not while every step is recorded: a replay
    /// has every page at home.
    pub fn may_replicate(&self) -> bool {
        !self.is_recorded_whole()
    }

    /// Whether twins may be made and mains moved now.
    fn wants_copies(&self) -> bool {
        // Relaxed, both: hints.
        self.may_replicate() && !self.shared.is_short.load(Ordering::Relaxed)
    }

    /// T1 to T4: makes or refreshes a twin, and reads from it. Returns `false` if this read should
    /// not make one, or if the page is not resident or is being written.
    ///
    /// # Safety
    /// As `copy_resident`.
    unsafe fn read_by_copy(
        &self,
        tag: Tag,
        here: NodeId,
        stale: Option<Found<'_>>,
        (skip, to, len): (usize, *mut u8, usize),
        together: u64,
    ) -> bool {
        let Replication { threshold, refresh, yields, .. } = self.shared.numa.replication;
        let is_refresh = stale.is_some();
        // A page that is not resident must not get a twin.
        if !self.table.find(tag).is_some_and(|main| main.word.readable()) {
            return false;
        }
        let copying = match stale {
            None if self.counters.turn(Count::CopyTurns).is_multiple_of(u64::from(threshold)) => {
                self.table.begin_copy(tag, here, !yields)
            }
            Some(found) if found.word.state() == State::Stale && refresh && self.was_read(&found) => {
                self.table.begin_refresh(&found, here)
            }
            _ => None,
        };
        let Some(copying) = copying else { return false };
        self.counters.add(Count::EvictionsCapacity, u64::from(copying.displaced.is_some()));
        if !self.copy_page(tag, &copying) {
            return false;
        }
        // SAFETY: the frame is ours until the twin is published, and has the bytes that the page
        // had a moment ago. The rest is the caller's promise.
        unsafe { copy::copy_out(self.frames.at(copying.index).wrapping_add(skip), to, len) };
        // Publishing may fail because a write overtook the twin: the read still came before that
        // write.
        copying.publish();
        self.counters.add(if is_refresh { Count::TwinsRefreshed } else { Count::TwinsMade }, 1);
        self.counters.add(Count::RemoteHits, 1);
        self.weigh_copy(tag, len, together);
        // Waits for the main's lines, and the page's bytes.
        self.charge(false, waits_of(1), self.page_bytes() as u64);
        self.charge_at(true, len, together);
        true
    }

    /// T2 and T3: links the twin to its main, and copies the page.
    fn copy_page(&self, tag: Tag, copying: &Copying<'_>) -> bool {
        for _ in 0..COPY_TRIES {
            let Some(main) = self.table.find(tag) else { return false };
            let Some(word) = copying.link(&main) else { continue };
            let (from, to) = (self.frames.at(main.index), self.frames.at(copying.index));
            // SAFETY: both frames are mapped for the partition's life, and the copy may race with a
            // writer of the main and with readers of the old twin, which `copy_between` allows.
            unsafe { copy::copy_between(from, to, self.page_bytes()) };
            if main.slot().unchanged(word) {
                self.table.touch(&main);
                return true;
            }
        }
        false
    }

    /// Whether to refresh a stale twin: it was read since it was last copied, or this is the one
    /// read in eight.
    fn was_read(&self, found: &Found<'_>) -> bool {
        self.table.take_mark(found) || self.counters.turn(Count::DoubtfulTurns).is_multiple_of(DOUBTFUL_TURNS)
    }

    /// T5: marks a page's twins stale. The caller has hidden the page from its readers by replacing
    /// the word `taken`, and has not changed its bytes yet.
    #[inline]
    pub fn overtake(&self, tag: Tag, taken: Word) {
        if taken.twins() != 0 {
            self.overtake_twins(tag, taken.twins());
        }
    }

    #[cold]
    fn overtake_twins(&self, tag: Tag, bits: u8) {
        let overtaken = self.table.overtake(tag, bits);
        self.counters.add(Count::TwinsOvertaken, u64::from(overtaken));
        let nodes = u64::from(bits.count_ones());
        self.weigh_bringing(tag, |prices| prices.overtaking(nodes));
        // Finding the twins, and marking them stale.
        self.charge(false, nodes * waits_of(1), 0);
    }

    /// T7: fills a claimed page from one of its twins and publishes the page. Returns `false` if no
    /// twin can be used: the caller must read the store.
    #[inline]
    pub fn elect(&self, tag: Tag, slot: SlotIndex) -> bool {
        self.places.replicates && self.elect_twin(tag, slot)
    }

    #[cold]
    fn elect_twin(&self, tag: Tag, slot: SlotIndex) -> bool {
        if self.table.slot(slot).load().twins() == 0 || !self.shared.numa.replication.elect {
            return false;
        }
        for node in (0..self.table.nodes()).map(NodeId) {
            let Some(twin) = self.table.find_twin(tag, node) else { continue };
            if twin.word.state() != State::Twin {
                continue;
            }
            let (from, to) = (self.frames.at(twin.index), self.frames.at(slot));
            // SAFETY: the slot is ours until it is published, and the copy may race with a thread
            // that takes the twin's frame, which `copy_between` allows.
            unsafe { copy::copy_between(from, to, self.page_bytes()) };
            if twin.slot().is_still_twin(twin.word) {
                self.counters.add(Count::Elections, 1);
                self.publish(slot, false);
                return true;
            }
        }
        false
    }

    /// Notes a write to a page at the slot where it was found; `before` is the word that the write
    /// replaced. If this node has written the page often enough, moves the page's main to this
    /// node.
    #[inline]
    pub fn wrote(&self, tag: Tag, found: &Found<'_>, before: Word) {
        if self.places.replicates {
            self.wrote_copied(tag, found, before);
        }
    }

    #[inline(never)]
    fn wrote_copied(&self, tag: Tag, found: &Found<'_>, before: Word) {
        let (here, wanted) = (self.shared.numa.here(), self.shared.numa.replication.switch_writes);
        let is_here = self.table.node_of_segment(self.table.segment_of(found.index)) == here;
        // A main that is away from home may always move back.
        let brings = || !self.places.chooses || self.auto.brings(tag) || self.table.node_of(tag) == here;
        if !is_here && wanted > 0 && brings() && self.writers.wrote(here, tag, before.version(), wanted) {
            self.bring_main(tag, here);
        }
    }

    /// T10: moves a page's main to this node.
    #[cold]
    fn bring_main(&self, tag: Tag, here: NodeId) {
        // While other pages move or a walk over dirty pages runs, leave the main where it is; a
        // later write tries again.
        let Some(_still) = try_lock(&self.moves) else { return };
        if !self.wants_copies() {
            return;
        }
        let may_displace = !self.shared.numa.replication.yields;
        let switch = self.table.bring_main(tag, here, may_displace, &mut PageMover::new(self));
        self.counters.add(Count::EvictionsCapacity, u64::from(switch.displaced.is_some()));
        if switch.to.is_some() {
            self.counters.add(Count::Switches, 1);
            let bytes = self.page_bytes() as u64;
            self.weigh_bringing(tag, |prices| prices.switch(bytes));
            // Waits for the sets of the main's places, and the page's bytes.
            self.charge(false, 2 * waits_of(1), bytes);
        }
    }

    /// Drops all twins if none may be made now.
    pub fn end_copies(&self) {
        // The loop ends: a thread that is making a twin waits for no other thread, and few twins
        // are being made.
        while self.places.replicates && !self.wants_copies() && !self.table.drop_copies() {
            yield_now();
        }
    }
}
