//! The lookup without a lock: where a page may be, and whether it is there.
//!
//! From the tag's upper bits follows the directory entry, from that the segment; other bits say
//! which of its sets, others the fingerprint that the set's are compared with. What is found is a
//! hint until the slot's own word (P3, P4) or the set's (P13) has said so, and a None is
//! believed only under the set's lock. Nothing here stores. What is not here: what a hit tells the
//! policy (`touch`), and who changes the directory (`resize`).

use super::Table;
use crate::index::{Found, SetNumber, SlotIndex};
use crate::memory::layout::{Front, set_bytes};
use crate::sync::atomic::Ordering;
use crate::word::prefetch::prefetch;
#[cfg(not(any(loom, shuttle)))]
use crate::word::probe::ProbeKind;
use crate::word::slot::{Shown, Word};
use crate::word::tag::Tag;

/// A page that was seen at a glance (P13): what is read of it now is the page's if
/// [`Glance::is_still_shown`] says so afterwards.
#[derive(Clone, Copy)]
pub struct Glance<'t, const W: usize> {
    front: &'t Front,
    slot: SlotIndex,
    shown: Shown<W>,
}

impl<const W: usize> Glance<'_, W> {
    /// P13, the re-check: whether what was read since the glance is the page's, untorn. False where
    /// any page of the set was hidden.
    #[inline(always)]
    pub fn is_still_shown(&self) -> bool {
        self.shown.holds(&self.front.shown)
    }
}

impl<const W: usize> Table<W> {
    /// The page, if it is where the directory says now, or away from there (T9). No lock, no store.
    /// A None is to be believed only under the set's lock.
    #[inline(always)]
    pub fn find(&self, tag: Tag) -> Option<Found<'_>> {
        match self.find_in(self.set_of(tag), tag) {
            None => self.find_away(tag),
            found => found,
        }
    }

    /// Asks the processor for the fingerprints of a page's set.
    #[inline(always)]
    pub fn prefetch_set(&self, tag: Tag) {
        prefetch(self.fingerprints(self.set_of(tag)));
    }

    /// Asks the processor for what a miss of a page touches besides: all lines of its set.
    pub fn prefetch_miss(&self, tag: Tag) {
        const LINE: usize = 64;
        let set = self.set_of(tag);
        prefetch(self.front(set));
        let head = std::ptr::from_ref(self.head(set)).cast::<u8>();
        (0..set_bytes::<W>()).step_by(LINE).for_each(|offset| prefetch(head.wrapping_add(offset)));
        for way in (0..W as u32).step_by(LINE / size_of::<u64>()) {
            prefetch(self.tag_at(SlotIndex(self.index_of(set, 0).0 + way)));
        }
    }

    /// The first slot whose fingerprint is the page's, in the set that the directory names: that it
    /// holds another page happens a few times in a hundred.
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

    /// Asks the processor for a slot's word.
    #[inline(always)]
    pub fn prefetch_slot(&self, slot: SlotIndex) {
        prefetch(self.slot(slot).word);
    }

    /// P13: the page, if it is in this slot and may be read now. None says nothing but that `find`
    /// has to look.
    #[inline(always)]
    pub fn glance(&self, slot: SlotIndex, tag: Tag) -> Option<Glance<'_, W>> {
        let (set, way) = Self::split(slot);
        let front = self.front(set);
        // What is shown first, with acquire, then the tag.
        let shown = Shown::load(&front.shown);
        // Relaxed: as `Slot::tag`.
        let is_it = self.tag_at(slot).load(Ordering::Relaxed) == tag.0;
        (is_it && shown.has(way)).then_some(Glance { front, slot, shown })
    }

    /// `touch` of what was seen at a glance.
    #[inline(always)]
    pub fn touch_at(&self, glance: &Glance<'_, W>, tag: Tag) -> bool {
        self.touch_slot(glance.front, glance.slot, || tag)
    }

    /// The page, if it is in this slot and may be pinned now. None says nothing but that `find` has
    /// to look.
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

    /// The slot of a set that has the tag, and a word that will do.
    #[inline(always)]
    pub(crate) fn find_where(
        &self,
        set: SetNumber,
        tag: Tag,
        will_do: impl Fn(Word) -> bool,
    ) -> Option<Found<'_>> {
        let mut ways = self.matching(set, tag.fingerprint());
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
    pub(crate) fn matching(&self, set: SetNumber, fingerprint: u8) -> u32 {
        // For 8 and 16 ways every x86-64 has the one best comparison; the compiler may know.
        let kind = match W {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            ..=16 => ProbeKind::Sse2,
            _ => self.probe,
        };
        // SAFETY: the array has W bytes, whose places are multiples of W from the start of a line; all who
        // write them store single bytes atomically; the kind is supported.
        unsafe { crate::word::probe::find::<W>(kind, self.fingerprints(set).as_ptr().cast(), fingerprint) }
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn matching(&self, set: SetNumber, fingerprint: u8) -> u32 {
        let equal = |way: &usize| self.fingerprints(set)[*way].load(Ordering::Relaxed) == fingerprint;
        (0..W).filter(equal).fold(0, |mask, way| mask | 1 << way)
    }
}
