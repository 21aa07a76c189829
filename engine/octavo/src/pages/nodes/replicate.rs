//! Mode `replicate`: pages that are read from afar are copied to the nodes that read them (PaCaR:
//! Coquisart, Sopena, Gouicem, EuroSys '26).
//!
//! The protocol is `octavo_table`'s (T1 to T11 in `twin`): which copy may be read, and how a write
//! finds and overtakes them. Here is what the table cannot know: the bytes, and when a copy is
//! worth its while.
//!
//! - *Twins.* One read from afar in `threshold` copies the page to a free way of the reader's node.
//!   Pages are chosen in proportion to how often they are read from afar, and none needs a counter.
//! - *Refresh.* A copy that a write has overtaken is made anew when it is read next; where nobody
//!   has read it between the last two writes, one read in eight makes it anew.
//! - *Worth.* One page in 64 is a probe. Where probes say that copies are read too seldom between
//!   two writes, only probes are copied from then on, until they say otherwise.
//! - *Switch.* A node that has written a page sixteen times in a row, nobody else in between, gets
//!   its main (`writers.rs`); so its writes are local, until another node's bring it there, or
//!   home.
//! - *Footprint.* Copies take free ways, or those of other copies, and are the first to leave for
//!   pages. A page that was evicted comes back from its copy without I/O. While the system is short
//!   of memory, or the partition is recorded step by step, none are made.
//!
//! What is not here: reads of pages that are the thread's own, and everything that a miss does.

use octavo_table::{Copying, Found, NodeId, SlotIndex, State, Tag, Word};

use crate::memory::copy;
use crate::numa::Replication;
use crate::pages::mover::PageMover;
use crate::state::counters::Count;
use crate::state::nodes::is_probe;
use crate::state::partition::PartitionInner;
use crate::sync::{Ordering, try_lock, yield_now};

/// How often a copy of a page that is being written is tried.
const COPY_TRIES: usize = 2;

/// One read in so many makes a copy anew that was of no use the last time.
const DOUBTFUL_TURNS: u64 = 8;

impl PartitionInner {
    /// Copies part of a page to a thread of any node, if it is there, and counts whose it was: from
    /// the page, from the node's copy of it, or by a new copy.
    ///
    /// # Safety
    /// As `copy_resident`.
    pub unsafe fn read_near(&self, tag: Tag, skip: usize, to: *mut u8, len: usize, together: u64) -> bool {
        let here = self.shared.numa.here();
        if !self.places.replicates {
            // SAFETY: the caller's promise.
            let is_hit = unsafe { self.copy_resident(tag, skip, to, len) };
            if is_hit && self.places.charged {
                self.charge_access(tag, len, together);
            }
            return is_hit;
        }
        let mut stale = None;
        // A page's own node has no copy of it, unless it is away; nor has one where its entry has gone for
        // balance any use for one.
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
                // The main, which is away from home here.
                // SAFETY: the caller's promise.
                Some(main) if main.word.readable() && unsafe { self.copy_found(&main, skip, to, len) } => {
                    self.found_at(tag, (is_home_here, true), len, together);
                    return true;
                }
                Some(found) if found.word.state() == State::Twin => {
                    // SAFETY: the frame is mapped for the partition's life; the copy may race with whoever
                    // takes it, which `copy_out` allows.
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

    /// `copy_resident` of a page that is at home.
    ///
    /// # Safety
    /// As `copy_resident`.
    unsafe fn read_at_home(&self, tag: Tag, skip: usize, to: *mut u8, len: usize) -> bool {
        if !self.table.has_away() {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_resident(tag, skip, to, len) };
        }
        let Some(candidate) = self.table.candidate(tag) else { return false };
        let frame = self.frames.at(candidate).wrapping_add(skip);
        // SAFETY: as above.
        unsafe { self.copy_candidate::<false>(candidate, tag, frame, to, len) }
    }

    /// Asks the processor for what `read_near` will look at first.
    pub fn prefetch_near(&self, tag: Tag) {
        let here = self.shared.numa.here();
        match self.table.owner_of(tag) == here {
            true => self.table.prefetch_set(tag),
            false => self.table.prefetch_twin_set(tag, here),
        }
    }

    /// Counts a read by whether its page's home, and the page, is here.
    fn found_at(&self, tag: Tag, (is_home_here, is_here): (bool, bool), len: usize, together: u64) {
        self.weigh(tag, (is_home_here, is_here), len, together);
        self.counters.add(if is_here { Count::LocalHits } else { Count::RemoteHits }, 1);
        if self.places.charged {
            self.charge_at(is_here, len, together);
        }
    }

    /// Whether its pages may be elsewhere than a recording would have them.
    pub fn may_replicate(&self) -> bool {
        !self.is_recorded_whole()
    }

    /// Whether copies may be made now.
    fn wants_copies(&self) -> bool {
        // Relaxed, both: hints.
        self.may_replicate() && !self.shared.is_short.load(Ordering::Relaxed)
    }

    /// T1 to T4, and the read from the copy. False: there is none to be made, or the page is not
    /// there, or is being written.
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
        // A page that is not there leaves no copy behind.
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
        // SAFETY: the frame is ours until the copy is published, and holds what the page held a moment ago;
        // the rest is the caller's promise.
        unsafe { copy::copy_out(self.frames.at(copying.index).wrapping_add(skip), to, len) };
        // Overtaken or not: the read came before the write.
        copying.publish();
        self.counters.add(if is_refresh { Count::TwinsRefreshed } else { Count::TwinsMade }, 1);
        self.counters.add(Count::RemoteHits, 1);
        self.weigh_copy(tag, len, together);
        if self.places.charged {
            self.charge_copy();
            self.charge_at(true, len, together);
        }
        true
    }

    /// T2 and T3.
    fn copy_page(&self, tag: Tag, copying: &Copying<'_>) -> bool {
        for _ in 0..COPY_TRIES {
            let Some(main) = self.table.find(tag) else { return false };
            let Some(word) = copying.link(&main) else { continue };
            let (from, to) = (self.frames.at(main.index), self.frames.at(copying.index));
            // SAFETY: both frames are mapped for the partition's life. Whoever changes the one, and whoever
            // still looks at the other, is allowed for.
            unsafe { copy::copy_between(from, to, self.page_bytes()) };
            if main.slot().unchanged(word) {
                self.table.touch(&main);
                return true;
            }
        }
        false
    }

    /// Whether an overtaken copy is made anew: it was read since it was made, or it is its turn.
    fn was_read(&self, found: &Found<'_>) -> bool {
        self.table.take_mark(found) || self.counters.turn(Count::DoubtfulTurns).is_multiple_of(DOUBTFUL_TURNS)
    }

    /// T5. By whoever has taken a page away from its readers, with the word that he replaced,
    /// before he changes its bytes.
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
        self.weigh_overtaking(tag, u64::from(bits.count_ones()));
        if self.places.charged {
            self.charge_overtaking(u64::from(bits.count_ones()));
        }
    }

    /// T7: a page that was claimed gets its bytes from a copy, if it has one, and is published.
    /// False: ask the store.
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
            // SAFETY: the slot is ours until it is published; whoever takes the twin's frame is allowed for.
            unsafe { copy::copy_between(from, to, self.page_bytes()) };
            if twin.slot().is_still_twin(twin.word) {
                self.counters.add(Count::Elections, 1);
                self.publish(slot, false);
                return true;
            }
        }
        false
    }

    /// A thread has written a page where it was found, and the word before was this: its main comes
    /// here if that is what the node's writes say.
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
        // What is away from home may always come back.
        let brings = || !self.places.chooses || self.auto.brings(tag) || self.table.node_of(tag) == here;
        if !is_here && wanted > 0 && brings() && self.writers.wrote(here, tag, before.version(), wanted) {
            self.bring_main(tag, here);
        }
    }

    /// T10.
    #[cold]
    fn bring_main(&self, tag: Tag, here: NodeId) {
        // While pages move or are walked over, another time.
        let Some(_still) = try_lock(&self.moves) else { return };
        if !self.wants_copies() {
            return;
        }
        let may_displace = !self.shared.numa.replication.yields;
        let switch = self.table.bring_main(tag, here, may_displace, &mut PageMover::new(self));
        self.counters.add(Count::EvictionsCapacity, u64::from(switch.displaced.is_some()));
        if switch.to.is_some() {
            self.counters.add(Count::Switches, 1);
            self.weigh_switch(tag);
            if self.places.charged {
                self.charge_switch();
            }
        }
    }

    /// Lets go of all copies, where none are to be made any more.
    pub fn end_copies(&self) {
        // Ends: who makes one waits for nobody, and few are being made.
        while self.places.replicates && !self.wants_copies() && !self.table.drop_copies() {
            yield_now();
        }
    }
}
