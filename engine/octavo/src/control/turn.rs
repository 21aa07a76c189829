//! Turns: how a thread that resizes several partitions waits for stores that may never answer.
//!
//! A resize of only one partition waits for its store as long as necessary, and holds only locks of
//! this partition. A thread that holds `planning`, which all partitions need, takes a [`Turn`]
//! instead: it waits briefly on a lane of its own, gives up the resize of a partition whose store
//! does not answer, and continues with the others. A resize that was given up is not undone: its
//! pending moves wait for the next resize, which finds the pages that have been written in the
//! meantime.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use octavo_table::{SlotIndex, State, Word};

use crate::error::Error;
use crate::flight::{Crew, Ended, Lane, Task};
use crate::state::events::MoveReason;
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::sync::{Arc, Ordering};

/// How long a turn waits:
/// - `PATIENCE`: for the store of one partition;
/// - `PATIENCE_AGAIN`: for a store that was given up before and still has that I/O in flight;
/// - `PATIENCE_ALL`: for all stores together.
const PATIENCE: Duration = Duration::from_millis(250);
const PATIENCE_AGAIN: Duration = Duration::from_millis(20);
const PATIENCE_ALL: Duration = Duration::from_secs(1);

/// Why a resize has stopped. Pages that it moved stay moved.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A store has refused a write, or there is no memory.
    Failed(Error),
    /// A store did not answer in time, or another thread is resizing the partition (and may be
    /// waiting for its store). Only turns return this.
    HeldUp,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl Stop {
    /// Whether a resize in a turn is complete. If not, a store holds it up.
    pub fn is_complete(resized: Result<(), Stop>) -> Result<bool, Error> {
        match resized {
            Ok(()) => Ok(true),
            Err(Stop::HeldUp) => Ok(false),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Returns the error of a resize that did not run in a turn.
    pub fn into_error(self) -> Error {
        match self {
            Stop::Failed(error) => error,
            Stop::HeldUp => unreachable!("only a turn ends before the store answers"),
        }
    }
}

/// The state that `planning` protects: a lane on which the lock's holder waits. If a store is given
/// up, its I/O in flight stays on the lane.
#[derive(Default)]
pub(crate) struct Planning {
    lane: OnceLock<Arc<Lane>>,
}

impl Planning {
    /// Begins a turn of the holder of `planning`, which resizes partitions for a reason. Returns `None` if the holder must wait as long as
    /// necessary: while the cache is being dropped, because no other thread waits for the holder
    /// then, and under shuttle, which has no clock.
    pub fn turn<'p>(&'p self, crew: &'p Arc<Crew>, why: MoveReason) -> Option<Turn<'p>> {
        let is_over = cfg!(shuttle) || crew.shared.closed.load(Ordering::Relaxed);
        (!is_over).then(|| Turn { crew, lane: &self.lane, until: Instant::now() + PATIENCE_ALL, why })
    }

    /// Ends turns: returns the lane for dropping, because it refers to the cache.
    pub fn end(&mut self) -> Option<Arc<Lane>> {
        self.lane.take()
    }
}

/// The time for which the holder of `planning` may wait; see the module.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'p> {
    crew: &'p Arc<Crew>,
    lane: &'p OnceLock<Arc<Lane>>,
    until: Instant,
    /// Why the holder resizes partitions.
    pub why: MoveReason,
}

impl Turn<'_> {
    fn lane(&self) -> &Arc<Lane> {
        let new = || {
            Lane::new(self.crew, "an I/O ring for changes of size").unwrap_or_else(|_| Lane::spare(self.crew))
        };
        self.lane.get_or_init(new)
    }

    /// Returns the turn with the time left for one partition.
    pub fn of(self, inner: &PartitionInner) -> Self {
        let was_given_up = self.lane.get().is_some_and(|lane| is_at_work(lane, inner));
        let patience = if was_given_up { PATIENCE_AGAIN } else { PATIENCE };
        Turn { until: self.until.min(Instant::now() + patience), ..self }
    }

    /// Does what `Partition::settle` does, but waits no longer than the turn allows.
    pub fn settle(&self, object: &Arc<ObjectInner>, slot: SlotIndex, word: Word) -> Result<(), Stop> {
        let lane = self.lane();
        lane.mailbox.set_attended(true);
        let settled = self.settle_on(lane, object, slot, word);
        lane.leave();
        settled
    }

    fn settle_on(
        &self,
        lane: &Arc<Lane>,
        object: &Arc<ObjectInner>,
        slot: SlotIndex,
        word: Word,
    ) -> Result<(), Stop> {
        let inner = &*object.partition;
        lane.look();
        // Drop results that arrived too late: no caller waits for them.
        lane.work().finished.clear();
        if is_at_work(lane, inner) {
            // An earlier turn started this work.
            return self.wait_for(lane, inner).map(drop);
        }
        if word.owned() || word.writeback() {
            lane.begin_nap(object, |waiter| inner.wait_for_slot(slot, word, waiter));
            return self.wait_for(lane, inner).map(drop);
        }
        if word.state() == State::Dirty {
            let page = inner.page_of(inner.table.slot(slot).tag()).1;
            lane.begin_alone(Task::cleaning_of(object, inner.table.segment_of(slot)));
            self.wait_for(lane, inner)?;
            let id = lane.begin_alone(Task::cleaning_pages(object, page..page + 1));
            let ended = self.wait_for(lane, inner)?;
            ended.into_iter().filter(|ended| ended.task == id).try_for_each(|ended| ended.result())?;
        }
        Ok(())
    }

    /// Waits until the lane's tasks for a partition have ended. Returns all tasks that have ended.
    fn wait_for(&self, lane: &Arc<Lane>, inner: &PartitionInner) -> Result<Vec<Ended>, Stop> {
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

/// Whether the lane has tasks in flight for a partition.
fn is_at_work(lane: &Lane, inner: &PartitionInner) -> bool {
    lane.work().tasks.iter().any(|(_, task)| std::ptr::eq(&*task.object.partition, inner))
}
