//! Locks the set of a page, or all places where the page may be, and walks over sets under their
//! locks.

use super::guard::{Away, SetGuard};
use crate::broken::{self, Step};
use crate::index::{Found, NodeId, SegmentIndex, SetNumber};
use crate::policy::PolicyKind;
use crate::table::Table;
use crate::word::tag::Tag;

/// A page's place on a node, and the set that its entry moves to. The record of the move is part of
/// the comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    set: SetNumber,
    next: Option<SetNumber>,
    record: u64,
}

impl<const W: usize> Table<W> {
    /// Locks the set of a page: until the guard is dropped no other thread can bring the page in or
    /// remove it.
    pub fn lock(&self, tag: Tag) -> SetGuard<'_, W> {
        // The loop repeats only if a move of this very entry began or ended between the look and
        // the lock. The number of such moves therefore bounds the iterations, and moves are rare,
        // because each takes the lock of every set of a segment.
        loop {
            let home = self.set_of(tag);
            let (seen, target) = self.move_of(tag);
            // Between the two stores of R4 the entry already names the new segment, which is also
            // the target: then only one set is locked.
            let target = target.map(|segment| self.set_in(segment, tag)).filter(|next| *next != home);
            // Two locks are taken in the order of their segments.
            let (first, second) = match target {
                Some(next) if next < home => (next, Some(home)),
                next => (home, next),
            };
            let lock = self.head(first).lock.lock();
            let second = second.map(|set| self.head(set).lock.lock());
            // A mover that has passed this set has held its lock, so the mover's record is visible
            // now. The record is cleared only after the entry has changed (see `resize`, R4).
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

    /// T9: releases the lock of the home set, and takes the locks of all places of the page.
    #[cold]
    #[inline(never)]
    pub(crate) fn lock_places_after<'t>(&'t self, guard: SetGuard<'t, W>, tag: Tag) -> SetGuard<'t, W> {
        if broken::is(Step::LockHomeOnly) {
            return guard;
        }
        drop(guard);
        self.lock_places(tag)
    }

    pub(crate) fn lock_places(&self, tag: Tag) -> SetGuard<'_, W> {
        // As in `lock`: the loop repeats only if a move of one of the entries began or ended in
        // between.
        loop {
            let seen = self.places(tag);
            let mut sets: Vec<SetNumber> =
                seen.iter().flat_map(|place| [Some(place.set), place.next]).flatten().collect();
            sets.sort_unstable();
            sets.dedup();
            let mut locks: Vec<_> = sets.iter().map(|set| self.head(*set).lock.lock()).collect();
            if self.places(tag) != seen {
                continue;
            }
            let own = seen[self.owner_of(tag).0 as usize];
            let mut take = |set: SetNumber| {
                let at = sets
                    .iter()
                    .position(|other| *other == set)
                    .expect("a page's own place is among its places");
                sets.remove(at);
                locks.remove(at)
            };
            let held = (take(own.set), own.next.map(take));
            let is_still = seen.iter().all(|place| place.next.is_none());
            let away = Away { sets, is_still, _locks: locks };
            return SetGuard::new(self, own.set, own.next, held).with_away(away);
        }
    }

    fn places(&self, tag: Tag) -> Vec<Place> {
        let place = |node| {
            let at = self.twin_place(tag, NodeId(node));
            let set = self.set_of(at);
            let (record, target) = self.move_of(at);
            // As in `lock`.
            let next = target.map(|segment| self.set_in(segment, at)).filter(|next| *next != set);
            Place { set, next, record }
        };
        (0..self.nodes()).map(place).collect()
    }

    /// Visits every page, one set at a time under its lock. A page that comes in or leaves during
    /// the walk may or may not be visited; one that moves may be visited twice. `visit` may use the
    /// guard to find and to remove the visited page.
    pub fn for_each_page(&self, mut visit: impl FnMut(&mut SetGuard<'_, W>, Found<'_>)) {
        self.walk(|segment| self.for_each_page_of(segment, &mut visit));
    }

    /// Visits the pages of one segment, one set at a time under its lock.
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

    /// Returns the sets of a segment one after the other, each under its lock.
    pub fn guards_of(&self, segment: SegmentIndex) -> impl Iterator<Item = SetGuard<'_, W>> {
        self.sets_of(segment).map(|set| self.lock_set(set))
    }

    /// Changes the policy. The new policy takes over the pages in the order in which the old one
    /// would have evicted them. Pages, pins and I/O are not affected. Only one thread at a time may
    /// call this, and the table must not be resized in the meantime.
    pub fn set_policy(&self, new: PolicyKind) {
        let old = self.policy();
        if old == new {
            return;
        }
        self.prepare(new);
        self.follow(new);
        // Each set under its lock. If a page came into a set before its turn, the new policy has
        // read the old one's bits there, which costs a guess.
        for set in self.segments().flat_map(|segment| self.sets_of(segment)) {
            self.lock_set(set).change_policy(set, old, new);
        }
        if let Some(monitor) = self.monitor() {
            monitor.set_policy(new, self.lead());
        }
    }
}
