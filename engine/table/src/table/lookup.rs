//! The lookup without a lock: where a page may be, and whether it is there.
//!
//! The lowest bits of the tag select the set in the segment; the bits above them select the
//! directory entry, which names the segment; others are the fingerprint to compare. A result is a
//! hint until the slot's own word (P3, P4) or the set's (P13) has confirmed it, and `None` is
//! certain only under the set's lock. Nothing here stores. Not here: what a hit tells the policy
//! (`touch`), and changes of the directory (`resize`).

use super::Table;
use crate::index::{Found, SetNumber, SlotIndex};
use crate::memory::layout::{Front, set_bytes};
use crate::sync::atomic::Ordering;
use crate::word::operand;
use crate::word::prefetch::prefetch;
use crate::word::slot::{Shown, Word};
use crate::word::tag::Tag;

/// A page found by [`Table::glance`] (P13). The bytes that are then read from its frame are the
/// page's if [`Glance::is_still_shown`] returns true afterwards.
#[derive(Clone, Copy)]
pub struct Glance<'t, const W: usize> {
    pub(crate) front: &'t Front<W>,
    pub(crate) way: u32,
    pub(crate) shown: Shown<W>,
}

/// A slot that may hold a page, for a [`Table::glance_at`] later.
#[derive(Clone, Copy)]
pub struct Candidate<'t, const W: usize> {
    front: &'t Front<W>,
    /// The number of the slot.
    pub slot: SlotIndex,
}

impl<const W: usize> Glance<'_, W> {
    /// P13, the check of the way's bit and the re-check: returns whether the bytes read since the
    /// glance are certainly the page's, untorn. Returns false if the page could not be read, or if
    /// any page of the set was shown or hidden in the meantime.
    #[inline(always)]
    pub fn is_still_shown(&self) -> bool {
        self.holds() && self.shown.has(self.way)
    }

    /// P13, the re-check.
    #[inline(always)]
    pub(super) fn holds(&self) -> bool {
        self.shown.holds(self.front, &self.front.shown)
    }

    /// Returns whether the page may be read and is marked: one test for two bits, which nearly
    /// every page that is hit has. Relaxed, as in `Table::touch`.
    #[inline(always)]
    pub(super) fn is_shown_and_marked(&self) -> bool {
        const BEFORE: usize = size_of::<u64>();
        let Glance { front, way, shown } = *self;
        operand::both_have_at::<W, BEFORE, _>(front, &front.marks, shown.0 as u32, way)
    }
}

impl<const W: usize> Table<W> {
    /// Returns the page, if it is in its set or away from home (T9). Takes no lock and stores
    /// nothing. May miss a page that is moving: `None` is certain only under the set's lock.
    #[inline(always)]
    pub fn find(&self, tag: Tag) -> Option<Found<'_>> {
        match self.find_in(self.set_of(tag), tag) {
            None => self.find_away(tag),
            found => found,
        }
    }

    /// Prefetches the front of a page's set: all that [`Table::candidate`] reads, and all that a
    /// hit reads besides a tag.
    #[inline(always)]
    pub fn prefetch_set(&self, tag: Tag) {
        prefetch(self.front(self.set_of(tag)));
    }

    /// Does what [`prefetch_set`](Self::prefetch_set) does, and prefetches the set's lock with the
    /// fields that it protects: for a [`Table::lock`] later.
    #[inline(always)]
    pub fn prefetch_lock(&self, tag: Tag) {
        let set = self.set_of(tag);
        prefetch(self.front(set));
        prefetch(self.head(set));
    }

    /// Prefetches the tag and the word of the page's [`candidate`](Self::candidate): for a
    /// [`Table::find`] later.
    #[inline(always)]
    pub fn prefetch_page(&self, tag: Tag) {
        let set = self.set_of(tag);
        let ways = self.matching(self.front(set), tag.fingerprint());
        if ways != 0 {
            let way = ways.trailing_zeros() as usize;
            prefetch(self.tag_at(self.index_of(set, way)));
            prefetch(self.slot_in(set, way).word);
        }
    }

    /// Prefetches all lines of the page's set that a miss touches, except the front.
    pub fn prefetch_miss(&self, tag: Tag) {
        const LINE: usize = 64;
        let set = self.set_of(tag);
        let head = std::ptr::from_ref(self.head(set)).cast::<u8>();
        (0..set_bytes::<W>()).step_by(LINE).for_each(|offset| prefetch(head.wrapping_add(offset)));
        for way in (0..W as u32).step_by(LINE / size_of::<u64>()) {
            prefetch(self.tag_at(SlotIndex(self.index_of(set, 0).0 + way)));
        }
    }

    /// Returns the first slot of the page's set whose fingerprint is the page's. In a few percent
    /// of the cases the slot holds another page.
    #[inline(always)]
    pub fn candidate(&self, tag: Tag) -> Option<SlotIndex> {
        // SAFETY: it relies on nothing.
        unsafe { self.candidate_known::<false>(tag) }.map(|candidate| candidate.slot)
    }

    /// Does what [`candidate`](Self::candidate) does, with fewer instructions if `AVX2`: for
    /// callers that know the processor.
    ///
    /// # Safety
    /// `AVX2` only on a processor with AVX2 and BMI2.
    #[inline(always)]
    pub unsafe fn candidate_known<const AVX2: bool>(&self, tag: Tag) -> Option<Candidate<'_, W>> {
        // SAFETY: the caller's promise.
        let (front, first, ways) = unsafe { self.probe_known::<AVX2>(tag) };
        if ways == 0 {
            return None;
        }
        let way = ways.trailing_zeros();
        // SAFETY: a probe returns a bit for each of W ways. Saves a hit three instructions.
        unsafe { std::hint::assert_unchecked(way < W as u32) };
        Some(Candidate { front, slot: SlotIndex(first.0 + way) })
    }

    /// Prefetches a slot's tag.
    #[inline(always)]
    pub fn prefetch_tag(&self, slot: SlotIndex) {
        prefetch(self.tag_at(slot));
    }

    /// Prefetches a slot's word.
    #[inline(always)]
    pub fn prefetch_slot(&self, slot: SlotIndex) {
        prefetch(self.slot(slot).word);
    }

    /// P13: returns the page, if it is in this slot. The check at the end, [`Table::hit`] or
    /// [`Glance::is_still_shown`], tells whether it may be read. After `None`, call
    /// [`Table::find`].
    #[inline(always)]
    pub fn glance(&self, slot: SlotIndex, tag: Tag) -> Option<Glance<'_, W>> {
        self.glance_at(Candidate { front: self.front(Self::split(slot).0), slot }, tag)
    }

    /// P13: returns the page, if it is in a later slot of the set than the candidate's, and the
    /// slot: for candidates that hold another page with the same fingerprint.
    pub fn glance_beyond<'t>(
        &'t self,
        candidate: Candidate<'t, W>,
        tag: Tag,
    ) -> Option<(Glance<'t, W>, SlotIndex)> {
        let Candidate { front, slot: SlotIndex(slot) } = candidate;
        let (first, before) = (slot / W as u32 * W as u32, slot % W as u32);
        let mut ways = self.matching(front, tag.fingerprint()) & !1u32 << before;
        while ways != 0 {
            let slot = SlotIndex(first + ways.trailing_zeros());
            if let Some(glance) = self.glance_at(Candidate { front, slot }, tag) {
                return Some((glance, slot));
            }
            ways &= ways - 1;
        }
        None
    }

    /// [`Table::glance`] at a slot that was looked up before.
    #[inline(always)]
    pub fn glance_at<'t>(&'t self, candidate: Candidate<'t, W>, tag: Tag) -> Option<Glance<'t, W>> {
        let Candidate { front, slot } = candidate;
        // The word of shown ways first, with acquire, then the tag.
        let shown = Shown::load(&front.shown);
        // Relaxed: as `Slot::tag`.
        // SAFETY: there is a tag for each slot.
        let is_it = unsafe { operand::equals(self.memory.tags(), slot.0 as usize, tag.0) };
        is_it.then_some(Glance { front, way: slot.0 % W as u32, shown })
    }

    /// Returns the page, if it is in this slot and may be pinned now. After `None`, call
    /// [`Table::find`].
    #[inline(always)]
    pub fn confirm(&self, index: SlotIndex, tag: Tag) -> Option<Found<'_>> {
        let (set, way) = Self::split(index);
        let slot = self.slot_in(set, way as usize);
        // P4: the word first, with acquire, then the tag.
        let word = slot.load();
        (slot.tag() == tag && word.readable()).then_some(Found { slot, index, word })
    }

    #[inline(always)]
    pub(crate) fn find_in(&self, set: SetNumber, tag: Tag) -> Option<Found<'_>> {
        self.find_where(set, tag, Word::findable)
    }

    /// Returns the slot of a set whose tag is `tag` and whose word satisfies `will_do`.
    #[inline(always)]
    pub(crate) fn find_where(
        &self,
        set: SetNumber,
        tag: Tag,
        will_do: impl Fn(Word) -> bool,
    ) -> Option<Found<'_>> {
        let mut ways = self.matching(self.front(set), tag.fingerprint());
        while ways != 0 {
            let way = ways.trailing_zeros();
            ways &= ways - 1;
            let slot = self.slot_in(set, way as usize);
            // P3: the word first, with acquire, then the tag.
            let word = slot.load();
            if slot.tag() == tag && will_do(word) {
                return Some(Found { slot, index: self.index_of(set, way as usize), word });
            }
        }
        None
    }

    #[cfg(not(any(loom, shuttle)))]
    #[inline(always)]
    pub(crate) fn matching(&self, front: &Front<W>, fingerprint: u8) -> u32 {
        // For 8 and 16 ways SSE2 is the best kind on every x86-64. Here it is a constant, so that
        // the compiler drops the choice.
        let kind = match W {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            ..=16 => crate::word::probe::ProbeKind::Sse2,
            _ => self.probe,
        };
        // SAFETY: the array has W bytes, aligned to W within a line; all threads that write them
        // store single bytes atomically; the kind is supported.
        unsafe { crate::word::probe::find::<W>(kind, front.fingerprints.as_ptr().cast(), fingerprint) }
    }

    /// Returns the front of the page's set, the set's first slot, and the ways that may hold the
    /// page: those with its fingerprint.
    ///
    /// # Safety
    /// `AVX2` only on a processor with AVX2 and BMI2.
    #[inline(always)]
    unsafe fn probe_known<const AVX2: bool>(&self, tag: Tag) -> (&Front<W>, SlotIndex, u32) {
        // SAFETY: the caller's promise.
        let first = self.index_of(unsafe { self.set_known::<AVX2>(tag) }, 0);
        // SAFETY: directory entries name segments below segments_max, all of which have fronts.
        let front = unsafe { self.memory.at_fronts_by_slot(first.0 as usize) };
        #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
        if AVX2 && W == 16 {
            // SAFETY: as in `matching`, and AVX2 is the caller's promise.
            let ways = unsafe { crate::word::probe::find_16_of_tag(front.fingerprints.as_ptr().cast(), tag) };
            return (front, first, ways);
        }
        (front, first, self.matching(front, tag.fingerprint()))
    }

    /// [`Table::set_of`], with fewer instructions.
    ///
    /// # Safety
    /// `BMI2` only on a processor with BMI2.
    #[inline(always)]
    unsafe fn set_known<const BMI2: bool>(&self, tag: Tag) -> SetNumber {
        // The address first: the compiler would load it again behind an acquire.
        let (entries, layout) = (self.memory.directory(), self.layout());
        let mask = &self.header().directory_mask;
        // SAFETY: BMI2 is the caller's promise. Acquire: pairs with `set_level`.
        let entry = unsafe { operand::masked::<BMI2>(tag.0, layout.set_shift, mask) };
        // SAFETY: as in `Table::entry`.
        let entry = unsafe { &*entries.wrapping_add(entry as usize) };
        // Acquire: as in `set_of`.
        SetNumber(entry.load(Ordering::Acquire) | tag.set(layout.set_mask) as u32)
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn matching(&self, front: &Front<W>, fingerprint: u8) -> u32 {
        let equal = |way: &usize| front.fingerprints[*way].load(Ordering::Relaxed) == fingerprint;
        (0..W).filter(equal).fold(0, |mask, way| mask | 1 << way)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Claim, PolicyKind, Shape};

    /// Pages of one set with one fingerprint: the candidate of all of them is the first one's slot.
    #[test]
    fn a_page_whose_candidate_is_another_page_is_found_beyond_it() {
        let shape = Shape { segments_max: 1, sets_per_segment: 2 };
        let table = Table::<16>::new(shape, PolicyKind::Octavo, 1);
        let tags: Vec<Tag> = (0..16).map(|page| Tag(page << Tag::DRAW_SHIFT | 1)).collect();
        let mut slots = Vec::new();
        for tag in &tags {
            let Claim::Claimed { slot, evicted: None } = table.lock(*tag).claim(*tag) else {
                panic!("a free slot for {tag:?}");
            };
            assert!(!table.publish(slot, false), "no thread waits for the page");
            slots.push(slot);
        }
        // SAFETY: it relies on nothing.
        let candidate = |tag| unsafe { table.candidate_known::<false>(tag) }.expect("a fingerprint");
        for (tag, slot) in tags.iter().zip(&slots) {
            let (candidate, beyond) = (candidate(*tag), table.glance_beyond(candidate(*tag), *tag));
            assert_eq!(Some(candidate.slot), slots.iter().copied().min_by_key(|slot| slot.0));
            assert_eq!(table.glance_at(candidate, *tag).is_some(), beyond.is_none());
            if let Some((glance, found)) = beyond {
                assert_eq!((found, glance.is_still_shown()), (*slot, true));
            }
        }
        let absent = Tag(99 << Tag::DRAW_SHIFT | 1);
        assert!(table.glance_beyond(candidate(absent), absent).is_none());
    }
}
