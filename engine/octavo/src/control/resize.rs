//! Grows and shrinks partitions: segments join and leave the table, pages move between them, and
//! busy pages are waited for.
//!
//! Not here: which sizes are wanted (`plan.rs`, `reaper.rs`), how long a busy store is waited
//! for (`turn.rs`), how entries move (`octavo_table`).

use octavo_recording::Event;
use octavo_table::{SlotIndex, State, Table};

use super::core::Partition;
use super::turn::{Stop, Turn};
use crate::config::PolicyName;
use crate::error::Error;
use crate::flight::Object;
use crate::numa::NumaMode;
use crate::pages::mover::PageMover;
use crate::state::counters::Count;
use crate::state::history::Resizing;
use crate::sync::{Ordering, lock, try_lock, yield_now};
use crate::ways::WAYS;

/// Consecutive turns without a page moved after which the log reports it.
const TURNS_TOLD: u32 = 5;

/// The part of a change of limits that is still outstanding, because a store does not answer:
/// dirty pages must be written to it before their memory can be freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Bytes beyond a `max`, or requested by a reclaim, that are still held.
    pub bytes: u64,
    /// Names of the partitions whose stores do not answer.
    pub partitions: Vec<String>,
}

impl Owed {
    /// Returns whether nothing is outstanding.
    pub fn is_nothing(&self) -> bool {
        self.partitions.is_empty()
    }
}

impl Partition {
    /// Resizes the partition to `segments` segments.
    pub(crate) fn resize_segments(&self, segments: u32) -> Result<(), Error> {
        let mut resizing = lock(&self.inner.resizing);
        self.make_segments(&mut resizing, segments, None).map_err(Stop::into_error)
    }

    /// Resizes the partition as `resize_segments` does, in a turn.
    pub(crate) fn resize_in_turn(&self, segments: u32, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| self.make_segments(resizing, segments, turn))
    }

    /// Shrinks the partition in a turn, and never grows it: another thread may have shrunk it
    /// since `segments` was computed.
    pub(crate) fn shrink_in_turn(&self, segments: u32, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| {
            let live = self.inner.table.live_segments() - resizing.emptied.len() as u32;
            self.make_segments(resizing, segments.min(live), turn)
        })
    }

    pub(crate) fn in_turn(
        &self,
        turn: Option<Turn<'_>>,
        act: impl FnOnce(&mut Resizing, Option<&Turn<'_>>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let inner = &self.inner;
        let Some(turn) = turn else { return act(&mut lock(&inner.resizing), None) };
        let done = match try_lock(&inner.resizing) {
            Some(mut resizing) => act(&mut resizing, Some(&turn.of(inner))),
            // The holder of the lock may be waiting for a store, for any time.
            None => Err(Stop::HeldUp),
        };
        if matches!(done, Err(Stop::HeldUp)) {
            // Relaxed, here and below: a statistic, and a hint to the next plan.
            let turns = inner.held_up.fetch_add(1, Ordering::Relaxed) + 1;
            if turns == TURNS_TOLD {
                log::warn!("partition {}: its resize waits for a store that does not answer", self.name());
            }
        } else {
            self.goes_on();
        }
        done
    }

    /// Shrinks this partition and waits as long as its store takes. `planning` is free during
    /// the wait, so that other partitions get their turns.
    pub(crate) fn shrink_alone(&self, mut segments: impl FnMut() -> u32) -> Result<(), Error> {
        loop {
            {
                let planning = lock(&self.core.ledger.planning);
                match self.shrink_in_turn(segments(), planning.turn(self.core.crew())) {
                    Err(Stop::HeldUp) => {}
                    Err(Stop::Failed(error)) => return Err(error),
                    Ok(()) => return Ok(()),
                }
            }
            self.catch_up()?;
        }
    }

    /// Finishes a resize that was given up, however long that takes. The caller must not hold
    /// `planning`.
    pub(crate) fn catch_up(&self) -> Result<(), Error> {
        let mut resizing = lock(&self.inner.resizing);
        self.finish_moves(&mut resizing, None).map_err(Stop::into_error)
    }

    /// Finishes a resize that was given up, in a turn.
    pub(crate) fn catch_up_in_turn(&self, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| {
            self.finish_moves(resizing, turn)?;
            Ok(self.retire_emptied(resizing)?)
        })
    }

    /// Whether the partition's resize waits for a store: the last turn gave it up.
    pub(crate) fn is_held_up(&self) -> bool {
        self.inner.held_up.load(Ordering::Relaxed) > 0
    }

    fn make_segments(
        &self,
        resizing: &mut Resizing,
        segments: u32,
        turn: Option<&Turn<'_>>,
    ) -> Result<(), Stop> {
        let inner = &self.inner;
        // Relaxed: `remove_partition` sets it before it calls this itself, under this lock.
        let segments = if inner.is_removed.load(Ordering::Relaxed) { 1 } else { segments };
        let wanted = segments.clamp(1, inner.table.shape().segments_max);
        let before = inner.table.live_segments();
        self.finish_moves(resizing, turn)?;
        self.retire_emptied(resizing)?;
        // Segments that a pin keeps still take their memory.
        while inner.table.live_segments() < wanted {
            let hot = inner.balance.verdict().and_then(|verdict| inner.table.spare_segment_of(verdict.hot));
            let Some(segment) = hot.or_else(|| inner.table.spare_segment()) else { break };
            let learning = inner.learning_bytes(inner.table.live_segments() + 1);
            lock(&inner.costs).take(segment, learning, &format!("partition {:?}", self.name()))?;
            inner.commit(segment);
            let note = inner.note_of_all();
            resizing.pending = inner.table.join(segment);
            note.event(|| Event::Join { segment: segment.0 });
            resizing.history.push(inner.is_untouched(), [Event::Join { segment: segment.0 }, Event::Settled]);
            self.finish_moves(resizing, turn)?;
        }
        while inner.table.live_segments() - (resizing.emptied.len() as u32) > wanted {
            let emptied = &resizing.emptied;
            let cold = inner.balance.verdict();
            let cold = cold.and_then(|verdict| inner.table.segment_to_leave_of(verdict.cold, emptied));
            let segment = cold.or_else(|| inner.table.segment_to_leave(emptied));
            let segment = segment.expect("more are live than wanted");
            resizing.pending = inner.table.leave(segment);
            resizing
                .history
                .push(inner.is_untouched(), [Event::Leave { segment: segment.0 }, Event::Settled]);
            inner.record(|| Event::Leave { segment: segment.0 });
            resizing.leaving = Some(segment);
            self.finish_moves(resizing, turn)?;
            self.retire_emptied(resizing)?;
        }
        if wanted != before {
            inner.balance.forget();
        }
        inner.set_dirty_max();
        Ok(())
    }

    /// Moves pages away from a node whose sets are under more pressure than another node's, if
    /// there is such a node (`state/nodes/balance.rs`).
    pub(crate) fn balance_nodes(&self, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        let inner = &self.inner;
        let Some((verdict, entries)) = inner.look_at_nodes() else { return Ok(()) };
        self.in_turn(turn, |resizing, turn| {
            self.finish_moves(resizing, turn)?;
            if inner.is_recorded() {
                return Ok(());
            }
            resizing.history.events = None;
            resizing.pending = inner.table.shift(verdict.hot, verdict.cold, entries);
            let moved = self.finish_moves(resizing, turn);
            inner.balance.forget();
            moved
        })
    }

    /// Carries out the named moves. If one stops, it and the moves after it wait for the next
    /// resize, which must finish them before it names others. Until then lookups search both
    /// places.
    pub(crate) fn finish_moves(&self, resizing: &mut Resizing, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
        while let Some(mv) = resizing.pending.last() {
            self.move_entry(*mv, turn)?;
            resizing.pending.pop();
            self.goes_on();
        }
        resizing.emptied.extend(resizing.leaving.take());
        Ok(())
    }

    /// Gives the memory of emptied segments back to the system, except segments held by a pin.
    fn retire_emptied(&self, resizing: &mut Resizing) -> Result<(), Error> {
        let inner = &self.inner;
        for segment in std::mem::take(&mut resizing.emptied) {
            let empty = inner.table.check_empty(segment);
            let note = inner.note_of_all();
            if empty.is_ok() {
                inner.table.take_out(segment);
            }
            note.event(|| Event::Retire { segment: segment.0, retired: empty.is_ok() });
            resizing
                .history
                .push(inner.is_untouched(), [Event::Retire { segment: segment.0, retired: empty.is_ok() }]);
            match empty {
                Ok(()) => {
                    inner.frames.give_back(segment);
                    let learning = inner.learning_bytes(inner.table.live_segments());
                    lock(&inner.costs).give_back(segment, learning)?;
                }
                Err(_) => resizing.emptied.push(segment),
            }
        }
        Ok(())
    }

    /// Moves all mains back to their home sets, when none may be away any more. Waits for busy
    /// pages.
    pub(crate) fn bring_mains_home(&self) -> Result<(), Error> {
        let inner = &self.inner;
        loop {
            let still = lock(&inner.moves);
            let pass = inner.table.bring_home(&mut PageMover::new(inner));
            drop(still);
            inner.counters.add(Count::EvictionsResize, pass.let_go + pass.evicted);
            let Some(slot) = pass.busy else { return Ok(()) };
            self.settle(slot, None).map_err(Stop::into_error)?;
        }
    }

    /// Resets the count of turns without progress: a page has moved, or the resize is complete.
    fn goes_on(&self) {
        let held_up = &self.inner.held_up;
        if held_up.load(Ordering::Relaxed) > 0 && held_up.swap(0, Ordering::Relaxed) >= TURNS_TOLD {
            log::warn!("partition {}: its resize continues", self.name());
        }
    }

    /// Moves one entry of the directory. Waits for busy pages.
    fn move_entry(&self, mv: octavo_table::Move, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
        let inner = &self.inner;
        loop {
            let still = lock(&inner.moves);
            let pass = inner.table.advance(mv, &mut PageMover::new(inner));
            drop(still);
            inner.counters.add(Count::EvictionsResize, pass.let_go + pass.evicted);
            let Some(slot) = pass.busy else { return Ok(()) };
            self.settle(slot, turn)?;
        }
    }

    /// Waits until a slot may have become quiet: for the thread that owns it, or for its dirty
    /// page to be written. Returns at once if the state has changed since the slot was found
    /// busy. (The pages of an object leave before the object is forgotten.)
    fn settle(&self, slot: SlotIndex, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
        let inner = &self.inner;
        let word = inner.table.slot(slot).load();
        if word.is_copy() {
            // The thread that makes the copy waits for no other.
            yield_now();
            return Ok(());
        }
        let (id, page) = inner.page_of(inner.table.slot(slot).tag());
        let object = lock(&inner.objects).open.get(&id).cloned();
        let Some(object) = object else { return Ok(()) };
        if let Some(turn) = turn {
            return turn.settle(&object, slot, word);
        }
        let object = Object { inner: object, lanes: self.core.lanes.clone() };
        if word.owned() || word.writeback() {
            object.nap(|waiter| inner.wait_for_slot(slot, word, waiter))?;
            return Ok(());
        }
        if word.state() == State::Dirty {
            // The dirty pages of the same segment would come next, one I/O after the other:
            // write them together. Their errors do not matter here.
            let _ = object.clean_segment(inner.table.segment_of(slot));
            object.clean_pages(page..page + 1)?;
        }
        Ok(())
    }

    /// Switches to another policy, after charging the memory in which the policy learns.
    pub(crate) fn follow(&self, resizing: &mut Resizing, policy: PolicyName) -> Result<(), Error> {
        let inner = &self.inner;
        // Memory in which another policy learned is kept for that policy's return; memory for
        // this one is charged before it is used.
        if !inner.table.has_learner() {
            let learning = Table::<WAYS>::learning_bytes(policy, inner.table.slots_count()) as u64;
            lock(&inner.costs).learn(learning, 0, &format!("partition {:?}", self.name()))?;
        }
        resizing.history.push(inner.is_untouched(), [Event::Policy { policy }]);
        inner.table.set_policy(policy);
        inner.record(|| Event::Policy { policy });
        Ok(())
    }

    /// Removes what mode `replicate` left behind when it is no longer the strategy in use:
    /// copies that no lookup searches for, and mains on nodes that once wrote them.
    pub(crate) fn clear_rest(&self) -> Result<(), Error> {
        let inner = &self.inner;
        if !inner.places.chooses
            || inner.auto.way() == NumaMode::Replicate
            || !inner.auto.has_rest.swap(false, Ordering::Relaxed)
        {
            return Ok(());
        }
        // Once is enough: copies made from now on belong to probes.
        inner.table.drop_copies();
        self.bring_mains_home()
    }
}
