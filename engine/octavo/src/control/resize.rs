//! Grows and shrinks partitions: adds segments to the table and removes them, moves pages between
//! segments, and waits for busy pages.
//!
//! Not here: which sizes are wanted (`plan.rs`, `reaper.rs`), how long a turn waits for a store
//! (`turn.rs`), how directory entries move (`octavo_table`).

use octavo_recording::Event;
use octavo_table::{SegmentIndex, SlotIndex, State, Table};

use super::core::Partition;
use super::turn::{Stop, Turn};
use crate::config::PolicyName;
use crate::error::Error;
use crate::flight::{Handle, Object};
use crate::numa::NumaMode;
use crate::pages::mover::PageMover;
use crate::state::counters::Count;
use crate::state::events::{Happened, MoveReason};
use crate::state::history::Resizing;
use crate::sync::{Ordering, lock, try_lock, yield_now};
use crate::ways::WAYS;

/// Consecutive turns without progress after which the log reports the partition.
const TURNS_LOGGED: u32 = 5;

/// Memory that a change of limits or a reclaim still has to free. Dirty pages must be written
/// before their memory can be freed, and a store does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Bytes that are still held above a `max`, or that a reclaim requested and has not freed.
    pub bytes: u64,
    /// Names of the partitions whose stores do not answer.
    pub partitions: Vec<String>,
}

impl Owed {
    /// What partitions still have to free that stores hold up: `bytes` together.
    pub(crate) fn by(held_up: &[Partition], bytes: u64) -> Owed {
        let partitions = held_up.iter().map(|partition| partition.name().to_owned()).collect();
        Owed { bytes, partitions }
    }

    /// Returns whether nothing is outstanding.
    pub fn is_nothing(&self) -> bool {
        self.partitions.is_empty()
    }
}

impl Partition {
    /// Resizes the partition to `segments` segments.
    pub(crate) fn resize_segments(&self, segments: u32) -> Result<(), Error> {
        let mut resizing = lock(&self.inner.resizing);
        self.telling(&mut resizing, |resizing| self.make_segments(resizing, segments, None))
            .map_err(Stop::into_error)
    }

    /// Runs `act`, and adds an event if it has changed the number of segments.
    fn telling<T>(&self, resizing: &mut Resizing, act: impl FnOnce(&mut Resizing) -> T) -> T {
        let inner = &self.inner;
        let size = || (inner.table.live_segments(), lock(&inner.costs).charged_bytes());
        let (segments, from_bytes) = size();
        let done = act(resizing);
        let (segments_now, to_bytes) = size();
        // Relaxed: as in `make_one_by_one`. The last resize of a removed partition is no news.
        if segments_now != segments && !inner.is_removed.load(Ordering::Relaxed) {
            let (partition, reason) = (self.name().to_owned(), resizing.why);
            inner.shared.events.add(Happened::Resized { partition, from_bytes, to_bytes, reason });
        }
        done
    }

    /// Resizes the partition as `resize_segments` does, in a turn.
    pub(crate) fn resize_in_turn(&self, segments: u32, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| self.make_segments(resizing, segments, turn))
    }

    /// Shrinks the partition to `segments` segments in a turn. Never grows it, even if another
    /// thread has shrunk it since `segments` was computed.
    pub(crate) fn shrink_in_turn(&self, segments: u32, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| {
            let live = self.inner.table.live_segments() - resizing.emptied.len() as u32;
            self.make_segments(resizing, segments.min(live), turn)
        })
    }

    /// Runs `act` with the resize lock, in a turn. Gives up if another thread has the lock, and
    /// counts turns without progress. Without a turn, waits for the lock instead.
    pub(crate) fn in_turn(
        &self,
        turn: Option<Turn<'_>>,
        act: impl FnOnce(&mut Resizing, Option<&Turn<'_>>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let inner = &self.inner;
        let Some(turn) = turn else { return act(&mut lock(&inner.resizing), None) };
        let done = match try_lock(&inner.resizing) {
            Some(mut resizing) => {
                self.telling(&mut resizing, |resizing| act(resizing, Some(&turn.of(inner))))
            }
            // The holder of the lock may be waiting for a store, possibly forever.
            None => Err(Stop::HeldUp),
        };
        if matches!(done, Err(Stop::HeldUp)) {
            // Relaxed, here and below: a statistic, and a hint to the next plan.
            let turns = inner.held_up.fetch_add(1, Ordering::Relaxed) + 1;
            if turns == TURNS_LOGGED {
                inner.shared.events.add(Happened::HeldUp { partition: self.name().to_owned() });
            }
        } else {
            self.note_progress();
        }
        done
    }

    /// Shrinks this partition to the number of segments that `segments` returns, and waits until
    /// its store has taken the dirty pages that must leave. `planning` is free during the wait, so
    /// other partitions can be resized.
    pub(crate) fn shrink_alone(&self, mut segments: impl FnMut() -> u32) -> Result<(), Error> {
        loop {
            {
                let planning = lock(&self.core.ledger.planning);
                let turn = planning.turn(self.core.crew(), MoveReason::Asked);
                let shrunk = self.shrink_in_turn(segments(), turn);
                if Stop::is_complete(shrunk)? {
                    return Ok(());
                }
            }
            self.catch_up()?;
        }
    }

    /// Finishes the moves of a resize that was given up, however long that takes. The caller must
    /// not hold `planning`.
    pub(crate) fn catch_up(&self) -> Result<(), Error> {
        let mut resizing = lock(&self.inner.resizing);
        self.telling(&mut resizing, |resizing| self.finish_moves(resizing, None)).map_err(Stop::into_error)
    }

    /// Finishes a resize that was given up, in a turn.
    pub(crate) fn catch_up_in_turn(&self, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| {
            self.finish_moves(resizing, turn)?;
            self.retire_emptied(resizing)?;
            Ok(self.inner.give_back_unpinned()?)
        })
    }

    /// Whether the last turn gave up the partition's resize because a store did not answer.
    pub(crate) fn is_held_up(&self) -> bool {
        self.inner.held_up.load(Ordering::Relaxed) > 0
    }

    fn make_segments(
        &self,
        resizing: &mut Resizing,
        segments: u32,
        turn: Option<&Turn<'_>>,
    ) -> Result<(), Stop> {
        let made = self.make_one_by_one(resizing, segments, turn);
        self.inner.table.end_resizes();
        made
    }

    fn make_one_by_one(
        &self,
        resizing: &mut Resizing,
        segments: u32,
        turn: Option<&Turn<'_>>,
    ) -> Result<(), Stop> {
        let inner = &self.inner;
        // Relaxed: `remove_partition` sets the flag, then takes this lock to shrink the partition
        // itself. A later holder of the lock sees the flag, and an earlier one's resize is then
        // undone.
        let segments = if inner.is_removed.load(Ordering::Relaxed) { 1 } else { segments };
        let wanted = segments.clamp(1, inner.table.shape().segments_max);
        let before = inner.table.live_segments();
        if wanted != before {
            resizing.why = turn.map_or(MoveReason::Asked, |turn| turn.why);
        }
        self.finish_moves(resizing, turn)?;
        self.retire_emptied(resizing)?;
        inner.give_back_unpinned()?;
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
        let live = inner.table.live_segments() - resizing.emptied.len() as u32;
        if live > wanted {
            let cold = inner.balance.verdict().map(|verdict| verdict.cold);
            let count = (live - wanted) as usize;
            let leaving = inner.table.segments_to_leave(count, &resizing.emptied, cold);
            resizing.pending = inner.table.leave_all(&leaving);
            let left = leaving.iter().map(|segment| Event::Leave { segment: segment.0 });
            resizing.history.push(inner.is_untouched(), left.chain([Event::Settled]));
            leaving.iter().for_each(|segment| inner.record(|| Event::Leave { segment: segment.0 }));
            resizing.leaving = leaving;
            self.finish_moves(resizing, turn)?;
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
            inner.table.end_resizes();
            let moved = self.finish_moves(resizing, turn);
            inner.balance.forget();
            moved
        })
    }

    /// Carries out the pending moves of directory entries, and takes each segment out of use that
    /// they have emptied. If a move stops, it stays pending together with those after it, and the
    /// next resize must finish them before it plans others. Until then lookups search both places.
    pub(crate) fn finish_moves(&self, resizing: &mut Resizing, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
        let mut tried = None;
        while let Some(mv) = resizing.pending.last().copied() {
            let from = mv.from();
            let is_leaving = resizing.leaving.last() == Some(&from);
            // Of an empty segment, all entries move at once. A recording needs each move.
            let may_be_empty = is_leaving && tried != Some(from) && !self.inner.is_recorded();
            tried = Some(from);
            if may_be_empty && self.give_entries(resizing, from) {
                self.note_progress();
            } else {
                self.move_entry(mv, turn)?;
                resizing.pending.pop();
                self.note_progress();
            }
            let is_last = resizing.pending.last().is_none_or(|next| next.from() != from);
            if is_leaving && is_last {
                resizing.leaving.pop();
                self.retire(resizing, from)?;
            }
        }
        // Segments that had no entries.
        while let Some(segment) = resizing.leaving.pop() {
            self.retire(resizing, segment)?;
        }
        Ok(())
    }

    /// Makes the pending moves of a leaving segment if it has no page (R6 of `octavo_table`).
    /// Returns whether it has made them.
    fn give_entries(&self, resizing: &mut Resizing, from: SegmentIndex) -> bool {
        let own = resizing.pending.iter().rev().take_while(|mv| mv.from() == from).count();
        let first = resizing.pending.len() - own;
        let _still = lock(&self.inner.moves);
        let done = self.inner.table.give_entries(&resizing.pending[first..]);
        if done {
            resizing.pending.truncate(first);
        }
        done
    }

    /// Tries again to take segments out of use that were emptied before.
    fn retire_emptied(&self, resizing: &mut Resizing) -> Result<(), Error> {
        let mut retired = Ok(());
        for segment in std::mem::take(&mut resizing.emptied) {
            retired = retired.and(self.retire(resizing, segment));
        }
        retired
    }

    /// Takes an emptied segment out of use, and gives its memory back to the system except for what
    /// pins keep (`state/pinned.rs`).
    fn retire(&self, resizing: &mut Resizing, segment: SegmentIndex) -> Result<(), Error> {
        let inner = &self.inner;
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
            Ok(()) => inner.give_back_emptied(segment),
            // A page is still there. Its segment counts as live until it has left.
            Err(_) => {
                resizing.emptied.push(segment);
                Ok(())
            }
        }
    }

    /// Moves all mains back to their home sets. Called when no main may be away any more. Waits for
    /// busy pages.
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
    fn note_progress(&self) {
        let held_up = &self.inner.held_up;
        if held_up.load(Ordering::Relaxed) > 0 && held_up.swap(0, Ordering::Relaxed) >= TURNS_LOGGED {
            let partition = self.name().to_owned();
            self.inner.shared.events.add(Happened::Released { partition });
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

    /// Waits until a busy slot may have become quiet: until its owner gives it up, or its dirty
    /// page is written. Returns immediately if the slot's state has changed since it was found
    /// busy. An object that is not found needs no wait: its pages left before it was closed.
    fn settle(&self, slot: SlotIndex, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
        let inner = &self.inner;
        let word = inner.table.slot(slot).load();
        if word.is_copy() {
            // The thread that makes the copy waits for no other thread.
            yield_now();
            return Ok(());
        }
        let (id, page) = inner.page_of(inner.table.slot(slot).tag());
        let object = lock(&inner.objects).open.get(&id).cloned();
        let Some(object) = object else { return Ok(()) };
        if let Some(turn) = turn {
            return turn.settle(&object, slot, word);
        }
        let object = Object { inner: object, lanes: Handle::passing(&self.core.lanes) };
        if word.owned() || word.writeback() {
            object.nap(|waiter| inner.wait_for_slot(slot, word, waiter))?;
            return Ok(());
        }
        if word.state() == State::Dirty {
            // The move would next meet the other dirty pages of this segment, one I/O after the
            // other, so write them together. Their errors do not matter here.
            let _ = object.clean_segment(inner.table.segment_of(slot));
            object.clean_pages(page..page + 1)?;
        }
        Ok(())
    }

    /// Switches to another policy, after charging the memory in which the policy learns.
    pub(crate) fn follow(&self, resizing: &mut Resizing, policy: PolicyName) -> Result<(), Error> {
        let inner = &self.inner;
        // The memory in which a policy has learned is kept for its return. If there is none yet,
        // charge the new policy's memory before it is used.
        if !inner.table.has_learner() {
            let learning = Table::<WAYS>::learning_bytes(policy, inner.table.slots_count()) as u64;
            lock(&inner.costs).learn(learning, 0, &format!("partition {:?}", self.name()))?;
        }
        resizing.history.push(inner.is_untouched(), [Event::Policy { policy }]);
        inner.table.set_policy(policy);
        inner.record(|| Event::Policy { policy });
        Ok(())
    }

    /// Removes what the strategy `replicate` left behind, if it is no longer in use: twins that no
    /// lookup searches for, and mains that are away from home.
    pub(crate) fn clear_leftovers(&self) -> Result<(), Error> {
        let inner = &self.inner;
        if !inner.places.chooses
            || inner.auto.way() == NumaMode::Replicate
            || !inner.auto.has_leftovers.swap(false, Ordering::Relaxed)
        {
            return Ok(());
        }
        // Once is enough: twins that are made from now on belong to probes.
        inner.table.drop_copies();
        self.bring_mains_home()
    }
}
