//! Turns: how a thread that resizes many partitions waits for a store that may never answer.
//!
//! A resize on behalf of one partition waits for its store as long as that takes, and holds only
//! what belongs to this partition. A thread that holds `planning`, which all partitions need, takes
//! a [`Turn`]: it waits a moment on a lane of its own, gives up a partition whose store does not
//! answer, and goes on with the others. What was begun stays begun: named moves wait for the next
//! resize, and what is written meanwhile is there then.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use octavo_table::{SlotIndex, State, Word};

use crate::error::Error;
use crate::flight::{Crew, Ended, Lane, Task};
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::sync::{Arc, Ordering};

/// How long a turn waits for a partition's store; for one that it was given up for before and that
/// still has what it was given; and for all of them together.
const PATIENCE: Duration = Duration::from_millis(250);
const PATIENCE_AGAIN: Duration = Duration::from_millis(20);
const PATIENCE_ALL: Duration = Duration::from_secs(1);

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
    pub fn into_error(self) -> Error {
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
    pub fn turn<'p>(&'p self, crew: &'p Arc<Crew>) -> Option<Turn<'p>> {
        let is_over = cfg!(shuttle) || crew.shared.closed.load(Ordering::Relaxed);
        (!is_over).then(|| Turn { crew, lane: &self.lane, until: Instant::now() + PATIENCE_ALL })
    }

    /// The cache goes, which the lane knows.
    pub fn end(&mut self) -> Option<Arc<Lane>> {
        self.lane.take()
    }
}

/// See the module.
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

    /// The part of it that is one partition's.
    pub fn of(self, inner: &PartitionInner) -> Self {
        let was_given_up = self.lane.get().is_some_and(|lane| is_at_work(lane, inner));
        let patience = if was_given_up { PATIENCE_AGAIN } else { PATIENCE };
        Turn { until: self.until.min(Instant::now() + patience), ..self }
    }

    /// `settle`, but no longer than there is time.
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
        // What has ended late nobody asks for any more.
        lane.work().finished.clear();
        if is_at_work(lane, inner) {
            // What an earlier turn began.
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
            let id = lane.begin_alone(Task::cleaning_pages(object, page, page + 1));
            let ended = self.wait_for(lane, inner)?;
            ended.into_iter().filter(|ended| ended.task == id).try_for_each(|ended| ended.result())?;
        }
        Ok(())
    }

    /// Until what the lane has begun for a partition is over. Returns what has ended.
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

/// Whether something that a lane has begun for a partition is not over.
fn is_at_work(lane: &Lane, inner: &PartitionInner) -> bool {
    lane.work().tasks.iter().any(|(_, task)| std::ptr::eq(&*task.object.partition, inner))
}
