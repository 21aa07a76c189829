//! How a partition grows and shrinks: its segments come and go, their pages move, and pages that
//! are busy are waited for.
//!
//! Who resizes a partition for himself waits for its store as long as that takes, and holds what
//! belongs to this partition alone. Who holds `planning`, which all partitions need, takes a
//! [`Turn`]: he waits a moment on a lane of its own, gives a partition up whose store does not
//! answer, and goes on with the others. What was begun stays begun: named moves wait for the next
//! resize, whoever asks for it, and what is written meanwhile is there then.
//!
//! What is not here: which sizes are wanted (`reaper.rs`), how entries move (`octavo_table`).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use octavo_table::recording::Event;
use octavo_table::{SegmentIndex, SlotIndex, State, Table, Word};

use super::{PageMover, Partition, PartitionInner};
use crate::WAYS;
use crate::cache::Shared;
use crate::config::PolicyName;
use crate::counters::Count;
use crate::error::Error;
use crate::lane::Lane;
use crate::object::Object;
use crate::sync::{Arc, Ordering, lock, try_lock, yield_now};
use crate::task::{Job, Task};

/// How long a turn waits for a partition's store; for one that it was given up for before and that
/// still has what it was given; and for all of them together.
const PATIENCE: Duration = Duration::from_millis(250);
const PATIENCE_AGAIN: Duration = Duration::from_millis(20);
const PATIENCE_ALL: Duration = Duration::from_secs(1);

/// So many turns in a row that moved no page are worth a line in the log.
const TURNS_TOLD: u32 = 5;

/// Why a resize has stopped. What it has moved stays moved.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A store refuses, or there is no memory.
    Failed(Error),
    /// A store has not answered in time, or somebody else resizes the partition and waits for it.
    /// Turns alone say so.
    HeldUp,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl Stop {
    /// Of a resize that was not a turn's.
    pub(super) fn into_error(self) -> Error {
        match self {
            Stop::Failed(error) => error,
            Stop::HeldUp => unreachable!("only a turn ends before the store answers"),
        }
    }
}

/// What `planning` protects besides: a lane for its holder's waits. What a store has in hands when
/// it is given up stays with it.
#[derive(Default)]
pub(crate) struct Planning {
    lane: OnceLock<Arc<Lane>>,
}

impl Planning {
    /// The holder begins to move pages. None: he waits as long as it takes, for the cache is gone,
    /// and nobody else waits for him. (Under shuttle there is no time.)
    pub fn turn(&self, shared: &Shared) -> Option<Turn<'_>> {
        let is_over = cfg!(shuttle) || shared.closed.load(Ordering::Relaxed);
        (!is_over).then(|| Turn { lane: &self.lane, until: Instant::now() + PATIENCE_ALL })
    }

    /// The cache goes, which the lane knows.
    pub fn end(&mut self) -> Option<Arc<Lane>> {
        self.lane.take()
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'p> {
    lane: &'p OnceLock<Arc<Lane>>,
    until: Instant,
}

impl Turn<'_> {
    fn lane(&self, shared: &Arc<Shared>) -> &Arc<Lane> {
        let new =
            || Lane::new(shared, "an I/O ring for changes of size").unwrap_or_else(|_| Lane::spare(shared));
        self.lane.get_or_init(new)
    }

    /// The part of it that is one partition's.
    fn of(self, inner: &PartitionInner) -> Self {
        let was_given_up = self.lane.get().is_some_and(|lane| is_at_work(lane, inner));
        let patience = if was_given_up { PATIENCE_AGAIN } else { PATIENCE };
        Turn { until: self.until.min(Instant::now() + patience), ..self }
    }

    /// `settle`, but no longer than there is time.
    fn settle(&self, object: &Object, slot: SlotIndex, word: Word) -> Result<(), Stop> {
        let lane = self.lane(&object.0.partition.shared);
        lane.attend();
        let settled = self.settle_on(lane, object, slot, word);
        lane.leave();
        settled
    }

    fn settle_on(&self, lane: &Arc<Lane>, object: &Object, slot: SlotIndex, word: Word) -> Result<(), Stop> {
        let inner = &*object.0.partition;
        lane.look();
        // What has ended late nobody asks for any more.
        lane.work().finished.clear();
        if is_at_work(lane, inner) {
            // What an earlier turn began.
            return self.wait_for(lane, inner).map(drop);
        }
        if word.owned() || word.writeback() {
            lane.begin_nap(&object.0, |waiter| {
                inner.waiters.register(&inner.table, slot, word, waiter).is_ok()
            });
            return self.wait_for(lane, inner).map(drop);
        }
        if word.state() == State::Dirty {
            let page = inner.page_of(inner.table.slot(slot).tag()).1;
            lane.begin_alone(object.cleaning_of(inner.table.segment_of(slot)));
            self.wait_for(lane, inner)?;
            let mut alone =
                Task::new(Job::Sync { flush: false }, object.0.clone(), 0, std::ptr::null_mut(), 0);
            (alone.next, alone.end) = (page, page + 1);
            let id = lane.begin_alone(alone);
            let ended = self.wait_for(lane, inner)?;
            ended.into_iter().filter(|ended| ended.task == id).try_for_each(|ended| ended.result())?;
        }
        Ok(())
    }

    /// Until what the lane has begun for a partition is over. Returns what has ended.
    fn wait_for(&self, lane: &Arc<Lane>, inner: &PartitionInner) -> Result<Vec<crate::task::Ended>, Stop> {
        let mut all = Vec::new();
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            all.extend(lane.work_a_while(Some(left), || !is_at_work(lane, inner)));
            if !is_at_work(lane, inner) {
                all.extend(std::mem::take(&mut lane.work().finished));
                return Ok(all);
            }
            if left.is_zero() {
                return Err(Stop::HeldUp);
            }
        }
    }
}

/// Whether something that a lane has begun for a partition is not over.
fn is_at_work(lane: &Lane, inner: &PartitionInner) -> bool {
    lane.work().tasks.iter().any(|(_, task)| std::ptr::eq(&*task.object.partition, inner))
}

/// What a resize is doing; its holder may wait for a store.
pub(super) struct Resizing {
    /// What has happened to the table.
    pub history: History,
    /// Segments without entries that still hold a pinned snapshot.
    pub emptied: Vec<SegmentIndex>,
    /// Moves that were named and are not done, because a page's store refused, or was not waited
    /// for; and the segment that they empty, if they do.
    pending: Vec<octavo_table::Move>,
    pub leaving: Option<SegmentIndex>,
}

/// What has happened to a table before its first access. A recording that begins before that access
/// begins with these events, so its replay has the same directory.
pub(crate) struct History {
    /// Segments that it was made with.
    pub segments: u32,
    /// Its policy then.
    pub policy: PolicyName,
    /// What has happened since. None: accesses, or more events than are kept.
    pub events: Option<Vec<Event>>,
}

impl History {
    /// The events take memory that is not charged: some 24 KiB of each partition at most, and none
    /// once it is resized after its first access.
    const EVENTS_MAX: usize = 1 << 10;

    /// Adds what has happened to the table of `inner`.
    pub fn push(&mut self, inner: &PartitionInner, happened: impl IntoIterator<Item = Event>) {
        let Some(events) = &mut self.events else { return };
        events.extend(happened);
        if events.len() > History::EVENTS_MAX || !inner.is_untouched() {
            self.events = None;
        }
    }
}

impl Resizing {
    pub fn of(table: &Table<WAYS>) -> Resizing {
        let (segments, policy) = (table.live_segments(), table.policy());
        let history = History { segments, policy, events: Some(Vec::new()) };
        Resizing { history, emptied: Vec::new(), pending: Vec::new(), leaving: None }
    }
}

impl Partition {
    /// `resize`, to so many segments.
    pub(crate) fn resize_segments(&self, segments: u32) -> Result<(), Error> {
        let mut resizing = lock(&self.0.resizing);
        self.make_segments(&mut resizing, segments, None).map_err(Stop::into_error)
    }

    /// The same, in a turn.
    pub(crate) fn resize_in_turn(&self, segments: u32, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| self.make_segments(resizing, segments, turn))
    }

    /// `resize_in_turn` that only shrinks: another may have shrunk it since `segments` were
    /// counted.
    pub(super) fn shrink_in_turn(&self, segments: u32, turn: Option<Turn<'_>>) -> Result<(), Stop> {
        self.in_turn(turn, |resizing, turn| {
            let live = self.0.table.live_segments() - resizing.emptied.len() as u32;
            self.make_segments(resizing, segments.min(live), turn)
        })
    }

    pub(super) fn in_turn(
        &self,
        turn: Option<Turn<'_>>,
        act: impl FnOnce(&mut Resizing, Option<&Turn<'_>>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let inner = &self.0;
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
        let shared = &self.0.shared;
        loop {
            {
                let planning = lock(&shared.reaper.planning);
                match self.shrink_in_turn(segments(), planning.turn(shared)) {
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
        let mut resizing = lock(&self.0.resizing);
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
        self.0.held_up.load(Ordering::Relaxed) > 0
    }

    fn make_segments(
        &self,
        resizing: &mut Resizing,
        segments: u32,
        turn: Option<&Turn<'_>>,
    ) -> Result<(), Stop> {
        let inner = &self.0;
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
            let learning = self.learning_bytes(inner.table.live_segments() + 1);
            lock(&inner.costs).take(segment, learning, &format!("partition {:?}", self.name()))?;
            inner.commit(segment);
            let note = inner.note_of_all();
            resizing.pending = inner.table.join(segment);
            note.event(|| Event::Join { segment: segment.0 });
            resizing.history.push(inner, [Event::Join { segment: segment.0 }, Event::Settled]);
            self.finish_moves(resizing, turn)?;
        }
        while inner.table.live_segments() - (resizing.emptied.len() as u32) > wanted {
            let emptied = &resizing.emptied;
            let cold = inner.balance.verdict();
            let cold = cold.and_then(|verdict| inner.table.segment_to_leave_of(verdict.cold, emptied));
            let segment = cold.or_else(|| inner.table.segment_to_leave(emptied));
            let segment = segment.expect("more are live than wanted");
            resizing.pending = inner.table.leave(segment);
            resizing.history.push(inner, [Event::Leave { segment: segment.0 }, Event::Settled]);
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
        let inner = &self.0;
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
    pub(super) fn finish_moves(&self, resizing: &mut Resizing, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
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
        let inner = &self.0;
        for segment in std::mem::take(&mut resizing.emptied) {
            let empty = inner.table.check_empty(segment);
            let note = inner.note_of_all();
            if empty.is_ok() {
                inner.table.take_out(segment);
            }
            note.event(|| Event::Retire { segment: segment.0, retired: empty.is_ok() });
            resizing.history.push(inner, [Event::Retire { segment: segment.0, retired: empty.is_ok() }]);
            match empty {
                Ok(()) => {
                    inner.frames.give_back(segment);
                    let learning = self.learning_bytes(inner.table.live_segments());
                    lock(&inner.costs).give_back(segment, learning)?;
                }
                Err(_) => resizing.emptied.push(segment),
            }
        }
        Ok(())
    }

    /// Brings all mains home, where none are to be away any more, waiting for pages that are busy.
    pub(crate) fn bring_mains_home(&self) -> Result<(), Error> {
        let inner = &self.0;
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
        let held_up = &self.0.held_up;
        if held_up.load(Ordering::Relaxed) > 0 && held_up.swap(0, Ordering::Relaxed) >= TURNS_TOLD {
            log::warn!("partition {}: its size follows again", self.name());
        }
    }

    /// Moves one entry of the directory, waiting for pages that are busy.
    fn move_entry(&self, mv: octavo_table::Move, turn: Option<&Turn<'_>>) -> Result<(), Stop> {
        let inner = &self.0;
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
        let inner = &self.0;
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
        if word.owned() || word.writeback() {
            let lane = inner.shared.lane()?;
            lane.nap(&object.0, |waiter| inner.waiters.register(&inner.table, slot, word, waiter).is_ok());
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
}
