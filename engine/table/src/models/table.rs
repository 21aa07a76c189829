//! Models of a whole table: two segments of one set of two ways, the smallest table whose sets can
//! be full and that can grow and shrink.

use loom::sync::atomic::Ordering;
use std::sync::Arc;

use super::{Cache, Scene, holds};
use crate::broken::{self, Step};
use crate::index::{SegmentIndex, SlotIndex};
use crate::set::guard::Claim;
use crate::word::slot::State;
use crate::{Move, Tag};

const FIRST: SegmentIndex = SegmentIndex(0);
const SECOND: SegmentIndex = SegmentIndex(1);

/// A page of directory entry 0 while there are two segments.
const PAGE: Tag = Tag(0xA << 24);
/// Contents of the page after a fill, and after writes.
const FILLED: u64 = 0xA00;
const WRITTEN: u64 = 0xA01;

/// Creates a cache with `segments` of its two segments.
fn cache(segments: u32) -> Arc<Cache> {
    Cache::new(2, 1, segments)
}

impl Cache {
    /// Makes sure that the page is resident: waits for its fill, or fills it with `bytes`. Returns
    /// its slot if this call brought it in.
    fn bring(&self, me: usize, bytes: u64, dirty: bool) -> Option<SlotIndex> {
        loop {
            let guard = self.table.lock(PAGE);
            if let Some(found) = guard.find(PAGE) {
                drop(guard);
                if !found.word.owned() {
                    return None;
                }
                self.waiters[found.index.0 as usize].wait(me, found.slot(), found.word);
                continue;
            }
            self.fills.fetch_add(1, Ordering::Relaxed);
            return Some(self.claim_and_fill(guard, PAGE, bytes, dirty));
        }
    }

    /// Reads by P13 and falls back on the lock, as the engine does. `None` is a certain miss.
    fn read(&self, me: usize) -> Option<u64> {
        if let Some(slot) = self.table.candidate(PAGE)
            && let Some(glance) = self.table.glance(slot, PAGE)
        {
            let bytes = self.frame(slot).believed(|| glance.is_still_shown());
            if bytes.is_some() {
                return bytes;
            }
        }
        loop {
            let found = self.table.lock(PAGE).find(PAGE)?;
            if found.slot().pin(found.word).is_ok() {
                let bytes = self.frame(found.index).whole();
                assert_eq!(self.frame(found.index).whole(), bytes, "a pinned page changed");
                found.slot().unpin();
                return Some(bytes);
            }
            if found.word.owned() {
                self.waiters[found.index.0 as usize].wait(me, found.slot(), found.word);
            }
        }
    }

    /// P6, P7 on a resident page; if it is pinned, P9 and the write continues in another slot.
    fn write(&self, me: usize, bytes: u64) {
        loop {
            let mut guard = self.table.lock(PAGE);
            let found = guard.find(PAGE).expect("no thread removes it");
            match found.slot().begin_write(found.word) {
                Ok(before) => {
                    drop(guard);
                    self.frame(found.index).fill(bytes);
                    self.tell_if(found.index, self.table.end_write(&found, before, true));
                    return;
                }
                Err(word) if word.owned() => {
                    drop(guard);
                    self.waiters[found.index.0 as usize].wait(me, found.slot(), word);
                }
                Err(_) => {
                    let Claim::Claimed { slot, .. } = guard.claim_beside(PAGE) else {
                        panic!("there is room")
                    };
                    let Ok(taken) = found.slot().begin_move(found.word) else {
                        self.tell_if(slot, guard.remove(slot));
                        continue;
                    };
                    self.frame(slot).fill(bytes);
                    self.tell_if(slot, self.table.publish(slot, true));
                    self.tell_if(found.index, guard.remove_moved(found.index, taken));
                    return;
                }
            }
        }
    }

    /// R1 to R4; waits for busy pages.
    fn advance(&self, me: usize, mv: Move) {
        loop {
            let mut mover = self;
            let Some(busy) = self.table.advance(mv, &mut mover).busy else { return };
            let word = self.table.slot(busy).load();
            if word.owned() {
                self.waiters[busy.0 as usize].wait(me, self.table.slot(busy), word);
            }
        }
    }

    /// Returns the move of the page's entry out of `from`: that of entry 0 comes first.
    fn leaving(&self, from: SegmentIndex) -> Move {
        self.table.leave(from)[0]
    }

    /// Asserts that the page is in one slot, and returns its state and bytes.
    fn only_copy(&self) -> Option<(SegmentIndex, State, u64)> {
        let mut copies = Vec::new();
        self.table.for_each_page(|_, found| {
            let bytes = self.frame(found.index).whole();
            copies.push((self.table.segment_of(found.index), found.word.state(), bytes));
        });
        assert!(copies.len() <= 1, "a page is in two slots: {copies:?}");
        let dirty = copies.iter().filter(|(_, state, _)| *state == State::Dirty).count();
        assert_eq!(self.table.dirty_pages(), dirty as u64);
        let by_lock = self.table.lock(PAGE).find(PAGE).map(|found| self.table.segment_of(found.index));
        assert_eq!(by_lock, copies.first().map(|copy| copy.0));
        copies.pop()
    }
}

#[test]
fn of_two_threads_that_miss_a_page_one_fills_it_and_the_other_is_woken_p1_p2_p12() {
    holds(Some(3), || {
        let cache = cache(1);
        let other = cache.spawn(|cache| {
            cache.bring(1, FILLED, false);
            assert_eq!(cache.read(1), Some(FILLED));
        });
        cache.bring(0, FILLED, false);
        assert_eq!(cache.read(0), Some(FILLED));
        other.join().unwrap();
        assert_eq!(cache.fills.load(Ordering::Relaxed), 1);
        assert_eq!(cache.only_copy(), Some((FIRST, State::Clean, FILLED)));
    });
}

#[test]
fn a_write_that_meets_the_fill_of_its_page_comes_after_it_p1_p6_p12() {
    holds(Some(3), || {
        let cache = cache(1);
        let other = cache.spawn(|cache| {
            cache.bring(1, FILLED, false);
        });
        if cache.bring(0, WRITTEN, true).is_none() {
            cache.write(0, WRITTEN);
        }
        other.join().unwrap();
        assert_eq!(cache.only_copy(), Some((FIRST, State::Dirty, WRITTEN)));
    });
}

#[test]
fn a_page_filled_while_its_entry_moves_is_in_one_slot_and_is_found_r1_r2_r3_r4() {
    holds(Some(3), || {
        let cache = cache(2);
        let mv = cache.leaving(FIRST);
        let mover = cache.spawn(move |cache| cache.advance(1, mv));
        cache.bring(0, FILLED, false);
        assert_eq!(cache.read(0), Some(FILLED));
        mover.join().unwrap();
        assert_eq!(cache.fills.load(Ordering::Relaxed), 1);
        assert_eq!(cache.only_copy(), Some((SECOND, State::Clean, FILLED)));
    });
}

#[test]
fn a_write_to_a_moving_page_is_not_lost_and_no_reader_sees_older_bytes_r2_r3_p6_p7() {
    holds(Some(3), || {
        let cache = cache(2);
        cache.bring(0, FILLED, false);
        let mv = cache.leaving(FIRST);
        let mover = cache.spawn(move |cache| cache.advance(1, mv));
        cache.write(0, WRITTEN);
        assert_eq!(cache.read(0), Some(WRITTEN));
        mover.join().unwrap();
        assert_eq!(cache.only_copy(), Some((SECOND, State::Dirty, WRITTEN)));
    });
}

#[test]
fn a_reader_of_a_page_that_moves_and_is_written_then_sees_old_and_new_bytes_in_order_r2_r4_p3() {
    holds(Some(2), || {
        let cache = cache(2);
        cache.bring(0, FILLED, true);
        let mv = cache.leaving(FIRST);
        let mover = cache.spawn(move |cache| {
            cache.advance(1, mv);
            cache.write(1, WRITTEN);
        });
        let (first, second) = (cache.read(0), cache.read(0));
        assert!([first, second].iter().all(|bytes| matches!(bytes, Some(FILLED | WRITTEN))));
        assert!(first <= second, "a reader went back in time");
        mover.join().unwrap();
        assert_eq!(cache.only_copy(), Some((SECOND, State::Dirty, WRITTEN)));
    });
}

#[test]
fn a_pinned_page_that_moves_leaves_a_snapshot_that_its_last_pin_frees_p4_p5_p9_r2() {
    holds(Some(3), || {
        let cache = cache(2);
        cache.bring(0, FILLED, true);
        let mv = cache.leaving(FIRST);
        let mover = cache.spawn(move |cache| {
            cache.advance(1, mv);
            cache.write(1, WRITTEN);
        });
        if let Some(found) = cache.table.find(PAGE) {
            if found.slot().pin(found.word).is_ok() {
                let bytes = cache.frame(found.index).whole();
                assert!(bytes == FILLED || bytes == WRITTEN);
                assert_eq!(cache.frame(found.index).whole(), bytes, "a pinned page changed");
                found.slot().unpin();
            }
        }
        mover.join().unwrap();
        let (segment, state, _) = cache.only_copy().unwrap();
        assert_eq!((segment, state), (SECOND, State::Dirty));
        assert_eq!(cache.table.slot(SlotIndex(0)).load().state(), State::Free);
    });
}

/// A thread pins and reads the page while its segment empties, is taken out of use and gives back
/// its frames. The thread unpins it in the meantime or, if it `holds_on`, afterwards.
fn pin_while_its_segment_leaves(holds_on: bool) {
    let cache = cache(2);
    cache.bring(0, FILLED, false);
    let mover = cache.spawn(|cache| {
        cache.table.leave(FIRST).into_iter().for_each(|mv| cache.advance(1, mv));
        cache.table.retire(FIRST).expect("the page has moved");
        let kept = cache.table.snapshots_in(FIRST);
        // The kernel zeroes what it takes.
        [SlotIndex(0), SlotIndex(1)]
            .iter()
            .filter(|slot| !kept.contains(slot))
            .for_each(|slot| cache.frame(*slot).fill(0));
    });
    let found = cache.table.find(PAGE).filter(|found| found.slot().pin(found.word).is_ok());
    let mut mover = Some(mover);
    if let Some(found) = found {
        assert_eq!(cache.frame(found.index).whole(), FILLED);
        if holds_on {
            mover.take().expect("joined once").join().unwrap();
        }
        assert_eq!(cache.frame(found.index).whole(), FILLED, "a pinned page changed");
        found.slot().unpin();
    }
    mover.into_iter().for_each(|mover| mover.join().unwrap());
    let (_, state, bytes) = cache.only_copy().unwrap();
    assert_eq!((state, bytes), (State::Clean, FILLED));
    let is_free = |slot: &u32| cache.table.slot(SlotIndex(*slot)).load().state() == State::Free;
    assert_eq!((0..4).filter(is_free).count(), 3, "the last unpin frees a snapshot");
}

pub(super) fn pin_held_while_its_segment_leaves() {
    pin_while_its_segment_leaves(true);
}

#[test]
fn a_pin_keeps_its_frame_while_its_segment_leaves_r5_p4_p5() {
    holds(Some(2), || pin_while_its_segment_leaves(false));
}

/// A page is brought in while its segment gives its entries away, or moves its pages if it has any.
pub(super) fn bring_against_give() {
    let cache = cache(2);
    let mover = cache.spawn(|cache| {
        let moves = cache.table.leave(FIRST);
        if !cache.table.give_entries(&moves) {
            moves.into_iter().for_each(|mv| cache.advance(1, mv));
        }
        if !broken::is(Step::GiveWithPages) {
            cache.table.retire(FIRST).expect("no page comes into a segment without entries");
        }
    });
    cache.bring(0, FILLED, true);
    mover.join().unwrap();
    assert_eq!(cache.read(0), Some(FILLED), "a page that was brought in is found");
    assert_eq!(cache.only_copy(), Some((SECOND, State::Dirty, FILLED)));
}

#[test]
fn a_page_is_found_that_comes_in_while_its_segment_gives_its_entries_away_r6() {
    holds(Some(3), bring_against_give);
}

/// Between the two stores of R4 the entry names the new segment while the record still names the
/// move. An earlier `lock` then locked the same set twice, and waited for itself.
#[test]
fn a_set_is_locked_once_when_the_entry_has_changed_and_the_record_is_still_set_r4() {
    holds(Some(3), || {
        let cache = cache(2);
        let mv = cache.leaving(FIRST);
        let mover = cache.spawn(move |cache| cache.advance(1, mv));
        assert!(cache.table.lock(PAGE).find(PAGE).is_none());
        mover.join().unwrap();
    });
}

/// Segments are walked in the order of their numbers. An earlier walk missed a page that moved in
/// the opposite direction, in both segments, and so did a sync.
#[test]
fn a_walk_visits_a_dirty_page_that_moves_to_a_segment_already_walked_r2() {
    holds(Some(3), walk_against_move);
}

pub(super) fn walk_against_move() {
    let cache = cache(2);
    // The entry belongs to the first segment; moving it to the second lets it move back.
    cache.advance(0, cache.leaving(FIRST));
    cache.bring(0, FILLED, true);
    let mv = cache.leaving(SECOND);
    let mover = cache.spawn(move |cache| cache.advance(1, mv));
    let mut shown = 0;
    cache.table.for_each_dirty(|_, tag, _| shown += u32::from(tag == PAGE));
    assert!(shown > 0, "a dirty page was missed");
    mover.join().unwrap();
    assert_eq!(cache.only_copy(), Some((FIRST, State::Dirty, FILLED)));
}

/// As above, inside one set: a write to a pinned page continues in another way of the set.
#[test]
fn a_walk_visits_a_dirty_page_that_continues_in_a_way_already_walked_p9() {
    holds(Some(3), walk_against_write);
}

pub(super) fn walk_against_write() {
    let cache = cache(1);
    // Way 0 belongs to another page until the dirty one has taken way 1.
    let other = Tag(0xB << 24);
    let mut guard = cache.table.lock(other);
    let Claim::Claimed { slot, .. } = guard.claim(other) else { panic!("there is room") };
    let Claim::Claimed { slot: dirty, .. } = guard.claim(PAGE) else { panic!("there is room") };
    cache.frame(dirty).fill(FILLED);
    assert!(!cache.table.publish(dirty, true) && !guard.remove(slot));
    drop(guard);
    let writer = cache.spawn(|cache| {
        let found = cache.table.find(PAGE).unwrap();
        found.slot().pin(found.word).unwrap();
        cache.write(1, WRITTEN);
        assert_eq!(cache.frame(found.index).whole(), FILLED);
        assert!(found.slot().unpin());
    });
    let mut shown = 0;
    cache.table.for_each_dirty(|_, tag, _| shown += u32::from(tag == PAGE));
    assert!(shown > 0, "a dirty page was missed");
    writer.join().unwrap();
    assert_eq!(cache.only_copy(), Some((FIRST, State::Dirty, WRITTEN)));
}
