//! Locks the set of a page, or all places where the page may be, and walks over sets under their
//! locks.

use super::guard::{Away, SetGuard};
use crate::broken::{self, Step};
use crate::index::{Found, NodeId, SegmentIndex, SetNumber};
use crate::policy::PolicyKind;
use crate::table::Table;
use crate::word::tag::Tag;

/// A page's place on a node and the target of its entry's move. The record of the move is compared
/// too.
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
        // The loop repeats only when a move of this very entry began or ended between the look and
        // the lock. Moves take thousands of set locks each, so the loop ends; the number of moves
        // bounds its turns.
        loop {
            let home = self.set_of(tag);
            let (seen, target) = self.move_of(tag);
            // Between the two stores of R4 the entry already names the new segment: then only one
            // set is locked.
            let target = target.map(|segment| self.set_in(segment, tag)).filter(|next| *next != home);
            // Two locks are taken in the order of their segments.
            let (first, second) = match target {
                Some(next) if next < home => (next, Some(home)),
                next => (home, next),
            };
            let lock = self.head(first).lock.lock();
            let second = second.map(|set| self.head(set).lock.lock());
            // A mover that has passed this set did so under its lock, so its record is visible now;
            // and the record is cleared only after the entry was changed (see `resize`, R4).
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

    /// T9: releases the lock of the home set, and takes the locks of all places.
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
        // As in `lock`: the loop repeats only when a move of one of the entries began or ended in
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

    /// Visits every page that is resident during the whole walk, and some that come or go, one set
    /// at a time under its lock. A page that moves in the meantime may be visited twice. The guard
    /// may be used to find and to remove the visited page.
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

    /// Changes the policy. The new policy takes over the pages in the order in which the old one
    /// would have evicted them. Pages, pins and I/O are not affected. Only one thread may call this
    /// at a time, and no thread may resize the table in the meantime.
    pub fn set_policy(&self, new: PolicyKind) {
        let old = self.policy();
        if old == new {
            return;
        }
        self.prepare(new);
        self.follow(new);
        // Each set under its lock. Where a page came in before that, the new policy read bits of
        // the old one, which costs a guess.
        for set in self.segments().flat_map(|segment| self.sets_of(segment)) {
            self.lock_set(set).change_policy(set, old, new);
        }
        if let Some(monitor) = self.monitor() {
            monitor.set_policy(new, self.lead());
        }
    }
}
