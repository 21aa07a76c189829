//! Twins: copies of a page on the nodes that read it from afar (after PaCaR: Coquisart, Sopena,
//! Gouicem, EuroSys '26).
//!
//! A page's *main* is in the set that the directory names, as it is without twins, or *away* from
//! there (T9). All operations on the page act on its main. A *twin* on node n is in a set of that
//! node: the set that the page would have if the bits of its tag that select the node selected n
//! ([`Table::twin_place`]). It keeps the page's own tag; its state distinguishes it from a main.
//! Twins therefore need no table of their own: they use free ways of the sets, are evicted before
//! pages (by default), and are released when their entry moves. A thread that finds a twin reads
//! lines of its own node only, because the twin's own word says whether it may be read.
//!
//! The protocol protects one property: a twin that may be read has the bytes of the page's last
//! write. The main's word has a bit for each node (node n has bit n modulo four), its *twins*. A
//! node's bit is set before bytes are copied to that node. A thread that takes the main away from
//! its readers finds the bits in the word that it replaced, looks for copies on those nodes, and
//! marks each twin's own word. This costs the writer accesses to a few lines of other nodes, once
//! per copy, and the reader nothing. A flag at the main would cost each reader of a twin an access
//! to a line of another node.
//!
//! | state | may be read | who may change the bytes | leaves to |
//! |---|---|---|---|
//! | Copying | | its maker | Twin, Stale |
//! | Twin | by P3, this state as readable | no thread | Stale, Free, Filling, Copying (other) |
//! | Stale | | no thread | Copying (the same page or another), Filling, Free |
//!
//! - **T1 begin** A reader takes a way for the copy. Under the set's lock, if the set has neither a
//!   copy of the page nor its main: Free, or a Twin or Stale of another page, or, if the copy may
//!   displace a page, Clean -> Copying by P1 (with its release fence, then the tag). Or, to
//!   *refresh* a copy, without a lock: Stale -> Copying, version + 1, then a release fence.
//! - **T2 link** A compare-and-swap adds the node's bit to the main's readable word, with release
//!   and acquire. The maker swaps even if the bit is already set: without the swap, the next writer
//!   might not see this copy.
//! - **T3 copy** The main's bytes, by P3 from the linked word.
//! - **T4 publish** A compare-and-swap of exactly the word that T1 wrote: Copying -> Twin, with
//!   release. If it fails, T5 has overtaken the copy: then Copying -> Stale, version + 1.
//! - **T5 overtake** A thread that took the main away from its readers (P6, P8's second half and
//!   move, P9, or a claim by T7) overtakes the copies before it changes bytes and before it reports
//!   completion. For each bit of the word that it replaced, it looks up the page's copy on the
//!   bit's nodes and, if there is one: Twin -> Stale, or Copying -> Copying; version + 1 in both
//!   cases. No copy can be linked until the main is readable again. The end of a write (P7) clears
//!   the bits.
//! - **T6 read** P3: the twin's word before and after the bytes.
//! - **T7 orphans** A main with twins that is evicted (P1) leaves them behind as orphans, which
//!   have the bytes that the store has. The main's set keeps the main's bits for ever, and the word
//!   of each page that is claimed there begins with the set's bits. The thread that claims a page
//!   looks for a twin of it before it reads from the store (*election*). A thread that changes or
//!   discards a page without a slot overtakes the page's orphans, by the bits of the set and under
//!   the set's lock.
//! - **T8 move** While an entry moves (R2), the copies whose place belongs to the entry are
//!   released; one that is being made counts as busy. New copies go into the new set only, as pages
//!   do. A page that moves keeps its bits, and the new set gets the old set's orphan bits.
//! - **T9 places** A page has a *place*, which is a set, on each node. Its *home* is the place that
//!   its own tag names. A page comes in at home only (P1), under the home set's lock, which is the
//!   page's lock. Later its main may be at any of its places. One of sixteen bits in the home set
//!   then says so; each bit stands for a sixteenth of all tags. The bit is set before the main
//!   leaves, and never cleared. A thread that locks a page whose bit is set locks all places of the
//!   page, in the order of sets, and so finds the page wherever it is. A page is therefore in one
//!   slot at most. A lookup without a lock tries home first.
//! - **T10 switch** A node that writes a page again and again gets its main. Under the locks of all
//!   places, none of which is moving, the main is moved as in R2: to the way of the page's own copy
//!   on that node, to a free way, to that of another copy, or, if the main may displace a page, to
//!   that of a Clean page. The twins' bits move with the main: no byte changes, so every other copy
//!   stays valid. The node that the main leaves, even the home node, may then make a copy as any
//!   other node may. Writes by another node bring the main to that node, or home, in the same way.
//! - **T11 leaving** A main that is away is evicted like any other page of the set where it is,
//!   under that set's lock alone. The page's next claim does not look at that set's orphan bits, so
//!   the home set has had the bits of all nodes since T9. While an entry moves, the mains whose
//!   place belongs to the entry move with it (R2).
//!
//! Why a writer finds every copy: the copy's slot and tag were written before T2, which releases.
//! If the writer's swap of the main's word comes after T2, it acquires, so the writer sees the slot
//! and the tag. If it comes before, T2 fails. If an entry's move put the copy in a new set, T1 saw
//! that move under the lock; so the writer sees it too, and looks in both sets.
//!
//! Not here: how mains come to be away (`away`); when a copy is worth its cost, and the bytes (the
//! engine).

use crate::broken::{self, Step};
use crate::index::{Found, NodeId, SegmentIndex, SetNumber, SlotIndex};
use crate::policy::{Policy, ways_of, with_policy};
use crate::set::guard::SetGuard;
use crate::sync::atomic::{Ordering, fence};
use crate::table::Table;
use crate::word::slot::{Slot, State, TWIN_BITS, Word};
use crate::word::tag::Tag;

/// Returns the bit of a node.
pub(crate) fn bit_of(node: NodeId) -> u8 {
    1 << (node.0 % TWIN_BITS)
}

impl Slot<'_> {
    /// T1, for a copy of the same page that is refreshed. Returns the slot's new word.
    pub(crate) fn begin_refresh(&self, seen: Word) -> Option<Word> {
        debug_assert!(seen.state() == State::Stale);
        let next = seen.with_state(State::Copying).next_version();
        // Acquire: pairs with `overtake` and `give_up`.
        self.word.compare_exchange(seen.0, next.0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Pairs with the fence of T6.
        fence(Ordering::Release);
        Some(next)
    }

    /// T2, for a main whose word `seen` was readable. Returns the linked word, for T3.
    pub(crate) fn link(&self, seen: Word, bit: u8) -> Option<Word> {
        let trusts = broken::is(Step::LinkOnce) && seen.with_twins(bit) == seen || broken::is(Step::NoLink);
        if trusts && seen.readable() {
            return Some(seen);
        }
        // Release: pairs with the thread that takes the main, which must see the copy (T5).
        // Acquire: pairs with P2 and P7, for the main's bytes.
        let linked = self.change(seen, Ordering::AcqRel, |now| {
            (now.readable() && now.version() == seen.version()).then_some(now.with_twins(bit))
        });
        linked.ok().map(|replaced| replaced.with_twins(bit))
    }

    /// T4. Returns false if the copy was overtaken; it is then Stale.
    pub(crate) fn publish_copy(&self, begun: Word) -> bool {
        let next = begun.with_state(State::Twin);
        // Release: pairs with T6. Acquire on failure: pairs with T5.
        let Err(now) = self.word.compare_exchange(begun.0, next.0, Ordering::Release, Ordering::Acquire)
        else {
            return true;
        };
        if broken::is(Step::PublishOvertaken) {
            self.word.store(Word(now).with_state(State::Twin).0, Ordering::Release);
            return true;
        }
        self.give_up_copy();
        false
    }

    /// Gives up a copy that was begun: it becomes Stale. Only T5 changes the word in the meantime,
    /// once for each writer.
    pub(crate) fn give_up_copy(&self) {
        // Release: the maker's bytes come before those of the next maker (T1, P1).
        self.change_own(|now| {
            debug_assert!(now.state() == State::Copying, "only its maker ends a copy: {now:?}");
            now.with_state(State::Stale).next_version()
        });
    }

    /// T5 for one copy that was found in this slot. Returns true if the copy can no longer be read,
    /// or will not be published.
    pub(crate) fn overtake(&self, seen: Word) -> bool {
        if broken::is(Step::NoOvertake) {
            return false;
        }
        // Acquire: pairs with T4. Release: the next maker's copy comes after. The maker may publish
        // between the lookup and this swap. If another thread has taken the slot for another page,
        // nothing is left to do.
        let overtaken = self.change(seen, Ordering::AcqRel, |now| match now.state() {
            _ if now.version() != seen.version() => None,
            State::Twin => Some(now.with_state(State::Stale).next_version()),
            State::Copying => Some(now.next_version()),
            _ => None,
        });
        overtaken.is_ok()
    }

    /// T6, the re-check: returns whether the bytes read since `seen`, the word of a Twin, was
    /// loaded are the page's.
    #[inline(always)]
    pub fn is_still_twin(&self, seen: Word) -> bool {
        debug_assert!(seen.state() == State::Twin);
        // Pairs with the release fences of P1 and T1; the load after it needs no ordering of its
        // own.
        fence(Ordering::Acquire);
        Word(self.word.load(Ordering::Relaxed)) == seen || broken::is(Step::NoRecheck)
    }

    /// T8, under the lock: releases a copy. Returns false if the copy is being made.
    fn remove_copy(&self, seen: Word) -> bool {
        let removed = self.change(seen, Ordering::AcqRel, |now| {
            (now.state() != State::Copying).then_some(now.with_state(State::Free).next_version())
        });
        removed.is_ok()
    }

    /// Adds the twins' bits that a page had in its old slot to its new, claimed slot (T8, T10). The
    /// claimant calls this.
    pub(crate) fn add_twins(&self, bits: u8) {
        if bits != 0 {
            // Relaxed: `publish` releases. Only waiters change the word in the meantime.
            self.word.fetch_or(Word(0).with_twins(bits).0, Ordering::Relaxed);
        }
    }
}

/// A copy that is being made. Dropping it without [`Copying::publish`] gives the copy up.
pub struct Copying<'t> {
    slot: Slot<'t>,
    /// The number of the copy's slot, and of its frame, which no other thread changes.
    pub index: SlotIndex,
    /// The page that was evicted for the copy.
    pub displaced: Option<Tag>,
    begun: Word,
    bit: u8,
    ended: bool,
}

impl Copying<'_> {
    /// T2 for the page's main, as a lookup found it. Returns the linked word: copy the bytes, then
    /// check this word with `Slot::unchanged` (T3). Returns `None` if the main is not readable or
    /// has changed.
    pub fn link(&self, main: &Found<'_>) -> Option<Word> {
        main.slot().link(main.word, self.bit)
    }

    /// T4. Returns false if a write has overtaken the copy. The copied bytes may be used even then,
    /// if T3 has confirmed them: they were the page's when they were read.
    pub fn publish(mut self) -> bool {
        self.ended = true;
        self.slot.publish_copy(self.begun)
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.slot.give_up_copy();
        }
    }
}

impl<const W: usize> Table<W> {
    /// Returns the page's copy on a node other than its own. In state Twin the copy may be read by
    /// T6. Takes no lock and stores nothing.
    #[inline]
    pub fn find_twin(&self, tag: Tag, node: NodeId) -> Option<Found<'_>> {
        self.find_copy_in(self.set_of(self.twin_place(tag, node)), tag)
    }

    /// Prefetches the fingerprints of the set where a node's copy of a page would be.
    #[inline]
    pub fn prefetch_twin_set(&self, tag: Tag, node: NodeId) {
        self.prefetch_set(self.twin_place(tag, node));
    }

    /// T1 for a page that has no copy on the node. Returns `None` if the page has a copy or its
    /// main there, or if no way is available. The copy takes the way of another page's main only if
    /// it `may_displace`.
    pub fn begin_copy(&self, tag: Tag, node: NodeId, may_displace: bool) -> Option<Copying<'_>> {
        let mut guard = self.lock(self.twin_place(tag, node));
        let (index, displaced) = guard.claim_copy(tag, may_displace)?;
        // From now on, a thread that overtakes the copy changes this word. A write that ends before
        // T2 does not concern the copy.
        let slot = self.slot(index);
        Some(Copying { slot, index, displaced, begun: slot.load(), bit: bit_of(node), ended: false })
    }

    /// T1 for a copy that was found Stale.
    pub fn begin_refresh<'t>(&'t self, found: &Found<'t>, node: NodeId) -> Option<Copying<'t>> {
        let slot = found.slot();
        // The tag was compared between the load of the word and this swap (P4).
        let begun = slot.begin_refresh(found.word)?;
        Some(Copying { slot, index: found.index, displaced: None, begun, bit: bit_of(node), ended: false })
    }

    /// T5: overtakes the page's copies on the nodes of these bits, so that none can be read or
    /// published any more. Returns their number. The caller has taken the main away from its
    /// readers, or holds the set's lock if the page has no slot.
    #[cold]
    pub fn overtake(&self, tag: Tag, bits: u8) -> u32 {
        let nodes = (0..self.nodes()).map(NodeId).filter(|node| bits & bit_of(*node) != 0);
        nodes.map(|node| self.overtake_at(tag, node)).sum()
    }

    fn overtake_at(&self, tag: Tag, node: NodeId) -> u32 {
        let place = self.twin_place(tag, node);
        // The record of the move is read before the entry: if the move ends in between, the entry
        // already names the new segment.
        let (_, target) = self.move_of(place);
        let sets = [Some(self.set_of(place)), target.map(|segment| self.set_in(segment, place))];
        let copies = sets.into_iter().flatten().filter_map(|set| self.find_copy_in(set, tag));
        copies.map(|found| u32::from(found.slot().overtake(found.word))).sum()
    }

    /// T5, for walks: overtakes all copies in the table whose pages `concerned` selects. Those
    /// pages must have no slot, and get none in the meantime.
    pub fn overtake_all(&self, mut concerned: impl FnMut(Tag) -> bool) {
        if !self.has_copies() {
            return;
        }
        for set in self.segments().flat_map(|segment| self.sets_of(segment)) {
            for way in 0..W {
                let slot = self.slot_in(set, way);
                let word = slot.load();
                if word.is_copy() && concerned(slot.tag()) {
                    slot.overtake(word);
                }
            }
        }
    }

    /// Releases all copies except those that are being made. Returns false if there are such
    /// copies: then call again.
    pub fn drop_copies(&self) -> bool {
        let mut none_left = true;
        for set in self.segments().flat_map(|segment| self.sets_of(segment)) {
            let guard = self.lock_set(set);
            none_left &= guard.drop_copies_of(set, |_| true).is_none();
        }
        none_left
    }

    /// Returns the number of copies in a segment, and the number of those that may be read. Counts
    /// without a lock.
    pub fn copies_in_segment(&self, segment: SegmentIndex) -> (usize, usize) {
        if !self.has_copies() {
            return (0, 0);
        }
        let words = || {
            self.sets_of(segment).flat_map(|set| (0..W).map(move |way| self.slot_in(set, way).load().state()))
        };
        let fresh = words().filter(|state| *state == State::Twin).count();
        (fresh + words().filter(|state| matches!(state, State::Stale | State::Copying)).count(), fresh)
    }

    pub(crate) fn find_copy_in(&self, set: SetNumber, tag: Tag) -> Option<Found<'_>> {
        self.find_where(set, tag, Word::is_copy)
    }
}

impl<const W: usize> SetGuard<'_, W> {
    /// T1, under the lock of the set that the copy goes to.
    fn claim_copy(&mut self, tag: Tag, may_displace: bool) -> Option<(SlotIndex, Option<Tag>)> {
        let table = self.table();
        let (home, next) = self.sets();
        let is_here = |set| table.find_where(set, tag, |word| word.is_copy() || word.findable()).is_some();
        if [Some(home), next].into_iter().flatten().any(is_here) {
            return None;
        }
        table.note_copies();
        let (set, taken) = (next.unwrap_or(home), State::Copying);
        with_policy!(table.policy(), P => self.claim_spare::<P>(set, tag, taken, 0, may_displace))
    }

    /// Takes a way for a copy or a main of a page: one of the ways `first` (any free way, if
    /// `first` is 0), or else that of a copy; that of another page only if it `may_displace`.
    /// Returns the slot and the page that was evicted.
    pub(crate) fn claim_spare<P: Policy>(
        &self,
        set: SetNumber,
        tag: Tag,
        taken: State,
        first: u32,
        may_displace: bool,
    ) -> Option<(SlotIndex, Option<Tag>)> {
        self.catch_up::<P>(set);
        let table = self.table();
        let head = table.head(set);
        // Relaxed, all of it: as in `claim`.
        let occupied = head.occupied.load(Ordering::Relaxed);
        let take = |way: usize| {
            let slot = table.slot_in(set, way);
            let word = slot.load();
            let old = slot.tag();
            let may = word.evictable() && (may_displace || word.state() != State::Clean);
            (may && slot.claim_as(taken, word, tag, 0)).then_some((word, old))
        };
        let free = if first != 0 { first } else { !occupied & Table::<W>::ALL_WAYS };
        let mut found = ways_of(free).find(|way| take(*way).is_some()).map(|way| (way, None));
        let mut candidates = if may_displace { occupied } else { self.copies_of(set) };
        while found.is_none() && candidates != 0 {
            let way = P::victim(&self.view(set), candidates);
            candidates &= !(1 << way);
            let meta = self.view(set).meta(way);
            found = take(way).map(|(word, old)| (way, self.left::<P>(set, word, old, meta)));
        }
        let (way, displaced) = found?;
        table.fingerprints(set)[way].store(tag.fingerprint(), Ordering::Relaxed);
        head.occupied.store(head.occupied.load(Ordering::Relaxed) | 1 << way, Ordering::Relaxed);
        self.forget_ahead(set, way);
        // The set's clock does not advance, and the new page counts as the youngest.
        let view = self.view(set);
        view.set_meta(way, P::admitted(&view, None));
        Some((table.index_of(set, way), displaced))
    }

    /// Returns the ways of copies that are evicted first: the Stale ones if there are any,
    /// otherwise the Twins.
    pub(crate) fn copies_of(&self, set: SetNumber) -> u32 {
        let table = self.table();
        if !table.has_copies() {
            return 0;
        }
        let of = |wanted: State| {
            (0..W)
                .filter(|way| table.slot_in(set, *way).load().state() == wanted)
                .fold(0, |ways, way| ways | 1 << way)
        };
        match of(State::Stale) {
            0 => of(State::Twin),
            stale => stale,
        }
    }

    /// T8: releases the copies in a set whose pages `concerned` selects. Copies that are being made
    /// are left; returns the slot of one of them, if there are any.
    pub(crate) fn drop_copies_of(
        &self,
        set: SetNumber,
        concerned: impl Fn(Tag) -> bool,
    ) -> Option<SlotIndex> {
        let table = self.table();
        let mut busy = None;
        for way in 0..if table.has_copies() { W } else { 0 } {
            let slot = table.slot_in(set, way);
            let word = slot.load();
            if !word.is_copy() || !concerned(slot.tag()) {
                continue;
            }
            let index = table.index_of(set, way);
            match slot.remove_copy(word) {
                true => self.vacate(index),
                false => busy = Some(index),
            }
        }
        busy
    }

    /// T7, under the lock of a page that has no slot: overtakes its copies. Returns their number.
    pub fn overtake_orphans(&self, tag: Tag) -> u32 {
        match self.orphans() {
            0 => 0,
            bits => self.table().overtake(tag, bits),
        }
    }

    /// Returns the bits of the nodes that may have orphans of the set's pages.
    pub(crate) fn orphans(&self) -> u8 {
        if broken::is(Step::ForgetOrphans) {
            return 0;
        }
        let (home, next) = self.sets();
        // Relaxed: under the lock.
        let of = |set: SetNumber| self.table().head(set).orphans.load(Ordering::Relaxed);
        of(home) | next.map_or(0, of)
    }

    /// T7, T8: records that nodes with these bits may have orphans of the set's pages.
    pub(crate) fn remember_orphans(&self, set: SetNumber, bits: u8) {
        if bits != 0 {
            self.table().head(set).orphans.fetch_or(bits, Ordering::Relaxed);
        }
    }
}
