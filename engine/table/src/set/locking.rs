//! Taking the lock of a page's set, or of all places where the page may be, and walks that take one
//! set after the other.

use super::guard::{Away, SetGuard};
use crate::broken::{self, Step};
use crate::index::{Found, NodeId, SegmentIndex, SetNumber};
use crate::policy::PolicyKind;
use crate::table::Table;
use crate::word::tag::Tag;

/// A page's place on a node, and where its entry moves to. What else is compared is the move's
/// record.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    set: SetNumber,
    next: Option<SetNumber>,
    record: u64,
}

impl<const W: usize> Table<W> {
    /// Locks the set of a page, so that it can be neither brought in nor removed by anybody else.
    pub fn lock(&self, tag: Tag) -> SetGuard<'_, W> {
        // A turn is repeated only when a move of this very entry began or ended between the look and the
        // lock. Moves take thousands of set locks each, so this ends; the number of turns is
        // bounded by the number of moves.
        loop {
            let home = self.set_of(tag);
            let (seen, target) = self.move_of(tag);
            // Between the two stores of R4 the entry names the new segment already: then one set is all there
            // is to lock.
            let target = target.map(|segment| self.set_in(segment, tag)).filter(|next| *next != home);
            // Two locks are taken in the order of their segments.
            let (first, second) = match target {
                Some(next) if next < home => (next, Some(home)),
                next => (home, next),
            };
            let lock = self.head(first).lock.lock();
            let second = second.map(|set| self.head(set).lock.lock());
            // Whoever passed this set as the mover did so under its lock, so that its record is visible now;
            // and the record is taken down only after the entry was changed (see `resize`, R4).
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

    /// T9: gives up the lock of the home set, and takes those of all places.
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
        // As in `lock`: a turn is repeated only when a move of one of the entries began or ended in
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
                let at = sets.iter().position(|other| *other == set).expect("it is among its own places");
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

    /// Shows every page that was there all the time of the walk, and some that came or went, a set
    /// at a time under its lock. A page that moves meanwhile may be shown twice. The guard is
    /// for finding and removing the page that is shown.
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

    /// Follows another policy from now on, which takes over the pages in the order in which the old
    /// one would have let them go. Pages, pins and I/O are not concerned. One call at a time,
    /// and none while the table is resized.
    pub fn set_policy(&self, new: PolicyKind) {
        let old = self.policy();
        if old == new {
            return;
        }
        self.prepare(new);
        self.follow(new);
        // 2. Each set under its lock. One that a page came into meanwhile was led by a guess.
        for set in self.segments().flat_map(|segment| self.sets_of(segment)) {
            self.lock_set(set).change_policy(set, old, new);
        }
        if let Some(monitor) = self.monitor() {
            monitor.set_policy(new, self.lead());
        }
    }
}
