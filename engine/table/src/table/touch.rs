//! What a hit or a miss tells: the policy by a mark, the learner and the monitor where they follow
//! the page.
//!
//! Marks are hints: all accesses are Relaxed, and one that is lost costs a guess. What is not here:
//! what becomes of a mark (`set`), of what is shown (`monitor`, `policy`).

use super::Table;
use crate::index::{Found, SetNumber, SlotIndex};
use crate::memory::layout::Front;
use crate::policy::{Policy, with_policy};
use crate::sync::atomic::Ordering;
use crate::word::tag::Tag;

impl<const W: usize> Table<W> {
    /// Tells the policy of a hit, by the page's mark. Stores only at a page's first hit since a
    /// page came into its set, and for pages that the monitor follows; a policy that counts
    /// every hit has no marks. True: the page was read ahead, and this is the first who wants it.
    #[inline(always)]
    pub fn touch(&self, found: &Found<'_>) -> bool {
        self.touch_slot(self.front(Self::split(found.index).0), found.index, || found.tag())
    }

    #[inline(always)]
    pub(crate) fn touch_slot(&self, front: &Front, slot: SlotIndex, tag: impl FnOnce() -> Tag) -> bool {
        let (set, way) = Self::split(slot);
        // Relaxed: a hint to the policy. Two hits at the same time on neighbours may lose one's mark, which
        // costs a guess.
        let is_marked = front.marks.load(Ordering::Relaxed) >> way & 1 != 0;
        !is_marked && self.first_hit(set, way, tag())
    }

    /// A hit of a page whose mark is down: its first since a page came into the set, any of a page
    /// that the monitor follows, any where the policy counts them.
    #[cold]
    #[inline(never)]
    fn first_hit(&self, set: SetNumber, way: u32, tag: Tag) -> bool {
        if self.counts_hits() {
            return self.count_hit(set, way, tag);
        }
        let (front, bit) = (self.front(set), 1 << way);
        let Some(monitor) = self.monitor().filter(|monitor| monitor.follows(tag)) else {
            // Relaxed: as in `touch_slot`.
            front.marks.store(front.marks.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
            let ahead = self.take_ahead(set, way);
            self.teach(tag);
            return ahead;
        };
        // A page that is hot is told of once, and only read from then on: what is not a first hit changes
        // nothing, as if it were not followed.
        let told = &front.told;
        let is_first =
            told.load(Ordering::Relaxed) & bit == 0 && told.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        let ahead = is_first && self.take_ahead(set, way);
        monitor.show(tag, ahead);
        if is_first {
            self.teach(tag);
        }
        ahead
    }

    /// Whether a page was hit since a page came into its set, or this was asked: takes the mark
    /// down. A hint, as the mark is.
    pub fn take_mark(&self, found: &Found<'_>) -> bool {
        let (set, way) = Self::split(found.index);
        let (front, bit) = (self.front(set), 1u32 << way);
        // Relaxed: as in `touch_slot`.
        let marked = (front.marks.load(Ordering::Relaxed) | front.told.load(Ordering::Relaxed)) & bit != 0;
        if marked {
            front.marks.fetch_and(!bit, Ordering::Relaxed);
            front.told.fetch_and(!bit, Ordering::Relaxed);
        }
        marked
    }

    /// A page that was read ahead is wanted: from now on it leaves before others, until it is
    /// wanted again. Relaxed: hints, and whoever else changes these words does so by
    /// read-modify-write too.
    fn take_ahead(&self, set: SetNumber, way: u32) -> bool {
        let (head, bit) = (self.head(set), 1u32 << way);
        let ahead = head.ahead.load(Ordering::Relaxed) & bit != 0
            && head.ahead.fetch_and(!bit, Ordering::Relaxed) & bit != 0;
        if ahead {
            head.spent.fetch_or(bit, Ordering::Relaxed);
            self.tally().ahead_used.fetch_add(1, Ordering::Relaxed);
        } else if head.spent.load(Ordering::Relaxed) & bit != 0 {
            head.spent.fetch_and(!bit, Ordering::Relaxed);
        }
        ahead
    }

    /// Shows the monitor and the learner, if they are there and follow the page, that a page was
    /// asked for that is not there.
    pub(crate) fn show_miss(&self, tag: Tag) {
        if let Some(monitor) = self.monitor().filter(|monitor| monitor.follows(tag)) {
            monitor.show(tag, false);
        }
        self.teach(tag);
    }

    /// What `touch` would store of a hit now, for tools that count; no hit asks. First: a mark, or
    /// changed bits of the policy. Second: the learner would be shown it. Third: the monitor
    /// would be.
    #[doc(hidden)]
    pub fn stores_of_hit(&self, found: &Found<'_>) -> (bool, bool, bool) {
        let (set, way) = self.place_of(found.index);
        // Relaxed, all of it: a count, and nobody else is there.
        let (head, front) = (self.head(set), self.front(set));
        let shown = self.monitor().is_some_and(|monitor| monitor.follows(found.tag()));
        if self.counts_hits() {
            let (old, clock) = (head.meta[way].load(Ordering::Relaxed), head.clock.load(Ordering::Relaxed));
            return (with_policy!(self.policy(), P => P::touched(old, clock, W)) != old, false, shown);
        }
        let marks =
            if shown { front.told.load(Ordering::Relaxed) } else { front.marks.load(Ordering::Relaxed) };
        let marked = marks >> way & 1 == 0;
        (marked, marked && self.learner().is_some_and(|learner| learner.follows(found.tag())), shown)
    }

    /// Shows the learner, if there is one and it follows the page, a miss or the first hit since a
    /// page came into the set.
    fn teach(&self, tag: Tag) {
        if let Some(learner) = self.learner()
            && learner.follows(tag)
            // What another policy's sets do would teach it wrong.
            && with_policy!(self.policy(), P => P::LEARNS)
        {
            learner.show(tag);
        }
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
}
