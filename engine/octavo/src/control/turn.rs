//! Turns: how a thread that resizes many partitions waits for a store that may never answer.
//!
//! A resize on behalf of one partition waits for its store as long as that takes, and holds only
//! locks of this partition. A thread that holds `planning`, which all partitions need, takes a
//! [`Turn`] instead: it waits briefly on a lane of its own, gives up a partition whose store
//! does not answer, and continues with the others. A resize that was given up stays started: its
//! named moves wait for the next resize, which finds the pages that were written in the
//! meantime.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use octavo_table::{SlotIndex, State, Word};

use crate::error::Error;
use crate::flight::{Crew, Ended, Lane, Task};
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::sync::{Arc, Ordering};

/// How long a turn waits: for a partition's store (250 ms); for a store that was given up before
/// and still has that work in flight (20 ms); and for all stores together (1 s).
const PATIENCE: Duration = Duration::from_millis(250);
const PATIENCE_AGAIN: Duration = Duration::from_millis(20);
const PATIENCE_ALL: Duration = Duration::from_secs(1);

/// Why a resize has stopped. Pages that it moved stay moved.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A store refused, or there is no memory.
    Failed(Error),
    /// A store did not answer in time, or another thread is resizing the partition and waits for
    /// it. Only turns return this.
    HeldUp,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl Stop {
    /// Returns the error of a resize that was not a turn's.
    pub fn into_error(self) -> Error {
        match self {
            Stop::Failed(error) => error,
            Stop::HeldUp => unreachable!("only a turn ends before the store answers"),
        }
    }
}

/// The state that `planning` protects: a lane for its holder's waits. Work in flight when a
/// store is given up stays with the lane.
#[derive(Default)]
pub(crate) struct Planning {
    lane: OnceLock<Arc<Lane>>,
}

impl Planning {
    /// Begins a turn of the holder of `planning`. `None`: the holder waits as long as it takes,
    /// because the cache is being dropped and no other thread waits for the holder; or under
    /// shuttle, which has no time.
    pub fn turn<'p>(&'p self, crew: &'p Arc<Crew>) -> Option<Turn<'p>> {
        let is_over = cfg!(shuttle) || crew.shared.closed.load(Ordering::Relaxed);
        (!is_over).then(|| Turn { crew, lane: &self.lane, until: Instant::now() + PATIENCE_ALL })
    }

    /// Ends turns: gives up the lane, which refers to the cache.
    pub fn end(&mut self) -> Option<Arc<Lane>> {
        self.lane.take()
    }
}

/// The holder's right to wait; see the module.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'p> {
    crew: &'p Arc<Crew>,
    lane: &'p OnceLock<Arc<Lane>>,
    until: Instant,
}

impl Turn<'_> {
    fn lane(&self) -> &Arc<Lane> {
        let new = || {
            Lane::new(self.crew, "an I/O ring for changes of size").unwrap_or_else(|_| Lane::spare(self.crew))
        };
        self.lane.get_or_init(new)
    }

    /// Returns the part of the turn for one partition.
    pub fn of(self, inner: &PartitionInner) -> Self {
        let was_given_up = self.lane.get().is_some_and(|lane| is_at_work(lane, inner));
        let patience = if was_given_up { PATIENCE_AGAIN } else { PATIENCE };
        Turn { until: self.until.min(Instant::now() + patience), ..self }
    }

    /// Does what `settle` does, but waits no longer than the turn has time.
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
        // Nothing asks for results that arrived late.
        lane.work().finished.clear();
        if is_at_work(lane, inner) {
            // Work that an earlier turn started.
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

    /// Waits until the lane's work for a partition has ended. Returns the tasks that ended.
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

/// Whether work that the lane started for a partition has not ended.
fn is_at_work(lane: &Lane, inner: &PartitionInner) -> bool {
    lane.work().tasks.iter().any(|(_, task)| std::ptr::eq(&*task.object.partition, inner))
}
