//! Reports hits and misses: hits to the policy, by a mark; both to the learner and the monitor, if
//! they follow the page.
//!
//! Marks are hints: all accesses are Relaxed, and a lost mark costs a guess. Not here: what uses a
//! mark (`set`) and a reported access (`learning`).

use super::Table;
use super::lookup::Glance;
use crate::index::{Found, SetNumber};
use crate::memory::layout::Front;
use crate::policy::{Policy, with_policy};
use crate::sync::atomic::Ordering;
use crate::word::slot::Shown;
use crate::word::tag::Tag;

impl<const W: usize> Table<W> {
    /// Reports a hit. It sets the page's mark, and so stores only at a page's first hit since the
    /// last arrival in its set, and for pages that the monitor follows. Under a policy that counts
    /// every hit it sets no mark and stores the policy's bits if they change. Returns true if the
    /// page was read ahead and this is its first request.
    #[inline(always)]
    pub fn touch(&self, found: &Found<'_>) -> bool {
        let (set, way) = Self::split(found.index);
        // Relaxed: a hint to the policy. If two pages of a set are hit at the same time, one may
        // lose its mark, which costs a guess.
        let is_marked = self.front(set).marks.load(Ordering::Relaxed) >> way & 1 != 0;
        !is_marked && self.first_hit(set, way, found.tag())
    }

    /// P13, the checks after the copy, and [`Table::touch`] if they succeed: returns whether the
    /// bytes read since the glance are certainly the page's ([`Glance::is_still_shown`]).
    #[inline(always)]
    pub fn hit(&self, glance: &Glance<'_, W>) -> bool {
        glance.holds()
            && (glance.is_shown_and_marked() || self.hit_unmarked(glance.front, glance.way, glance.shown))
    }

    /// `hit` of a page that is not shown or not marked. The set's word has not changed.
    #[cold]
    #[inline(never)]
    fn hit_unmarked(&self, front: &Front<W>, way: u32, shown: Shown<W>) -> bool {
        if !shown.has(way) {
            return false;
        }
        // The set and the tag are looked up here again, so that no hit keeps them in registers. If
        // the slot belongs to another page by now, the policy gets a wrong hint.
        let set = self.set_of_front(front);
        self.first_hit(set, way, self.slot_in(set, way as usize).tag());
        true
    }

    /// Handles a hit of a page whose mark is clear: its first hit since the last arrival in the
    /// set, any hit of a page that the monitor follows, and any hit if the policy counts hits.
    #[cold]
    #[inline(never)]
    fn first_hit(&self, set: SetNumber, way: u32, tag: Tag) -> bool {
        if self.counts_hits() {
            return self.count_hit(set, way, tag);
        }
        let (front, bit) = (self.front(set), 1 << way);
        let Some(monitor) = self.monitor().filter(|monitor| monitor.follows(tag)) else {
            // Relaxed: as in `touch`.
            front.marks.store(front.marks.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
            let ahead = self.take_ahead(set, way);
            self.teach(tag);
            return ahead;
        };
        // The first hit sets the page's `told` bit; the later hits of a hot page only read the bit.
        // Apart from the report to the monitor, a later hit changes nothing, as if the page were
        // not followed.
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

    /// Clears the mark of a page. Returns whether the page was hit since the last arrival in the
    /// set or since the last such call. A hint, as the mark is.
    pub fn take_mark(&self, found: &Found<'_>) -> bool {
        let (set, way) = Self::split(found.index);
        let (front, bit) = (self.front(set), 1u32 << way);
        // Relaxed: as in `touch`.
        let marked = (front.marks.load(Ordering::Relaxed) | front.told.load(Ordering::Relaxed)) & bit != 0;
        if marked {
            front.marks.fetch_and(!bit, Ordering::Relaxed);
            front.told.fetch_and(!bit, Ordering::Relaxed);
        }
        marked
    }

    /// Clears the `ahead` bit at the first request of a page that was read ahead, and returns true.
    /// From then on the page is spent (evicted before others), until it is requested again.
    /// Relaxed: hints, and all threads change these words by read-modify-write.
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

    /// Reports the miss of a page to the monitor and the learner, if they exist and follow the
    /// page.
    pub(crate) fn show_miss(&self, tag: Tag) {
        if let Some(monitor) = self.monitor().filter(|monitor| monitor.follows(tag)) {
            monitor.show(tag, false);
        }
        self.teach(tag);
    }

    /// Returns what `touch` would store for a hit now. Only tools that count stores call this.
    /// First: whether it would set a mark or change the policy's bits. Second: whether the learner
    /// would see the hit. Third: whether the monitor would.
    #[doc(hidden)]
    pub fn stores_of_hit(&self, found: &Found<'_>) -> (bool, bool, bool) {
        let (set, way) = self.place_of(found.index);
        // Relaxed, all of it: the count is made while no other thread uses the table.
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

    /// Reports a miss, or a page's first hit since the last arrival in its set, to the learner, if
    /// it exists and follows the page.
    fn teach(&self, tag: Tag) {
        if let Some(learner) = self.learner()
            && learner.follows(tag)
            // Under another policy the sets behave differently, and the learner would learn that
            // behaviour.
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
