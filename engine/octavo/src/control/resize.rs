//! How a partition grows and shrinks: its segments come and go, their pages move, and busy pages are
//! waited for.
//!
//! Not here: which sizes are wanted (`plan.rs`, `reaper.rs`), how long a busy store is waited for
//! (`turn.rs`), how entries move (`octavo_table`).

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

/// So many turns in a row that moved no page are worth a line in the log.
const TURNS_TOLD: u32 = 5;

/// What a change of limits still takes, because a store does not answer: dirty pages must be in it
/// before their memory can go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Bytes that are beyond a `max`, or were asked for, and are held still.
    pub bytes: u64,
    /// The partitions whose stores do not answer.
    pub partitions: Vec<String>,
}

impl Owed {
    /// All was done.
    pub fn is_nothing(&self) -> bool {
        self.partitions.is_empty()
    }
}

impl Partition {
    /// `resize`, to so many segments.
    pub(crate) fn resize_segments(&self, segments: u32) -> Result<(), Error> {
        let mut resizing = lock(&self.inner.resizing);
        self.make_segments(&mut resizing, segments, None).map_err(Stop::into_error)
    }

    /// The same, in a turn.
    pub(crate) fn resize_in_turn(&self, segments: u32, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| self.make_segments(resizing, segments, turn))
    }

    /// `resize_in_turn` that only shrinks: another may have shrunk it since `segments` were
    /// counted.
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
            // Whoever has it may wait for a store, as long as that takes.
            None => Err(Stop::HeldUp),
        };
        if matches!(done, Err(Stop::HeldUp)) {
            // Relaxed, here and below: a figure, and a hint to the next plan.
            let turns = inner.held_up.fetch_add(1, Ordering::Relaxed) + 1;
            if turns == TURNS_TOLD {
                log::warn!("partition {}: its size waits for a store that does not answer", self.name());
            }
        } else {
            self.goes_on();
        }
        done
    }

    /// Shrinks it for whoever asks for this partition: others get their turns while its store is
    /// waited for.
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

    /// Ends what a resize has begun, however long that takes. Not for who holds `planning`.
    pub(crate) fn catch_up(&self) -> Result<(), Error> {
        let mut resizing = lock(&self.inner.resizing);
        self.finish_moves(&mut resizing, None).map_err(Stop::into_error)
    }

    /// The same, in a turn.
    pub(crate) fn catch_up_in_turn(&self, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| {
            self.finish_moves(resizing, turn)?;
            Ok(self.retire_emptied(resizing)?)
        })
    }

    /// Whether its size waits for a store: the last turn has given it up.
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
        // Relaxed: `remove_partition` sets it before it comes here itself, under this lock.
        let segments = if inner.is_removed.load(Ordering::Relaxed) { 1 } else { segments };
        let wanted = segments.clamp(1, inner.table.shape().segments_max);
        let before = inner.table.live_segments();
        self.finish_moves(resizing, turn)?;
        self.retire_emptied(resizing)?;
        // Those that a pin keeps take their memory still.
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

    /// Moves pages away from a node whose sets are under more pressure than another's, if there is
    /// one (`numa/balance.rs`).
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

    /// Makes the moves that were named. Where one stops, it and those behind it wait for the next
    /// resize, as they must be done before others are named; until then its pages are looked
    /// for in both places.
    pub(crate) fn finish_moves(&self, resizing: &mut Resizing, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
        while let Some(mv) = resizing.pending.last() {
            self.move_entry(*mv, turn)?;
            resizing.pending.pop();
            self.goes_on();
        }
        resizing.emptied.extend(resizing.leaving.take());
        Ok(())
    }

    /// Gives the memory of emptied segments back, as far as no pin holds it.
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

    /// Brings all mains home, where none are to be away any more, waiting for pages that are busy.
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

    /// A page has moved, or all that was asked for.
    fn goes_on(&self) {
        let held_up = &self.inner.held_up;
        if held_up.load(Ordering::Relaxed) > 0 && held_up.swap(0, Ordering::Relaxed) >= TURNS_TOLD {
            log::warn!("partition {}: its size follows again", self.name());
        }
    }

    /// Moves one entry of the directory, waiting for pages that are busy.
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

    /// Waits until a slot may have become quiet: for whoever has it, or for its dirty page to be
    /// written. At once only if its state has changed since it was found busy: pages of an
    /// object are gone before the object is forgotten.
    fn settle(&self, slot: SlotIndex, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
        let inner = &self.inner;
        let word = inner.table.slot(slot).load();
        if word.is_copy() {
            // Whoever makes it waits for nobody.
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
            // Its neighbours in the segment are the next that would be met, one I/O after the other. What the
            // store says of them is no matter here.
            let _ = object.clean_segment(inner.table.segment_of(slot));
            object.clean_pages(page, page + 1)?;
        }
        Ok(())
    }

    /// Follows another policy from now on: what it learns is charged first.
    pub(crate) fn follow(&self, resizing: &mut Resizing, policy: PolicyName) -> Result<(), Error> {
        let inner = &self.inner;
        // What another policy learned is kept for its return; what this one needs is charged before it is
        // taken.
        if !inner.table.has_learner() {
            let learning = Table::<WAYS>::learning_bytes(policy, inner.table.slots_count()) as u64;
            lock(&inner.costs).learn(learning, 0, &format!("partition {:?}", self.name()))?;
        }
        resizing.history.push(inner.is_untouched(), [Event::Policy { policy }]);
        inner.table.set_policy(policy);
        inner.record(|| Event::Policy { policy });
        Ok(())
    }

    /// Takes away what `replicate` left where it is not the way any more: copies that nobody looks
    /// for, and mains on nodes that wrote them once.
    pub(crate) fn clear_rest(&self) -> Result<(), Error> {
        let inner = &self.inner;
        if !inner.places.chooses
            || inner.auto.way() == NumaMode::Replicate
            || !inner.auto.has_rest.swap(false, Ordering::Relaxed)
        {
            return Ok(());
        }
        // Once: those that are being made are probes'.
        inner.table.drop_copies();
        self.bring_mains_home()
    }
}
