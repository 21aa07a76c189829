//! A lane: an I/O ring, and the tasks and transfers that it has in flight. Its owner is a queue, a
//! thread of the cache, or the call that has borrowed it.
//!
//! Only the owner starts tasks and tries pages. Any thread may take completions of any lane and
//! finish the transfers, including their follow-up I/O. If a thread waits for a page that another
//! lane brings in, and that lane's owner is elsewhere, the waiting thread takes that lane's
//! completions, too. So no thread depends on an owner that does not come back. (A blocking read of
//! one run passes through no ring, and one inside a page through no lane, see `alone.rs`. Its
//! thread is in the system call, and wakes the waiters itself.)
//!
//! This file has the data of a lane. Not here: how tasks continue (`dispatch.rs`), how their I/O is
//! submitted and completed (`transfers.rs`), how the owner waits (`parking.rs`), how calls borrow
//! lanes (`lanes.rs`).
//!
//! Locks, in order: `work`, then the partition's `moves`, then a set's lock, then slot waiters,
//! strays, ranges, bounce pool, then the mailbox. No thread holds the `work` of two lanes.

use std::collections::VecDeque;

use octavo_disk::{Engine, Ring, RingOptions};
use octavo_table::SlotIndex;
use slab::Slab;

use super::crew::Crew;
use super::messages::{Mail, Parcel};
use super::task::{Ended, Job, Role, Task, Transfer};
use crate::error::Error;
use crate::memory::Charge;
use crate::position::PageIndex;
use crate::state::shared::Shared;
use crate::sync::{Arc, Mutex, MutexGuard, Ordering, lock};
use crate::wait::{Mailbox, Ready, TaskId, Waiter};

/// Bytes charged for a lane with a ring: the ring's queues and the slabs.
pub(crate) const LANE_BYTES: u64 = 24 << 10;

/// A ring with the tasks and transfers of one owner.
pub(crate) struct Lane {
    pub shared: Arc<Shared>,
    pub crew: Arc<Crew>,
    pub ring: Arc<Ring>,
    pub mailbox: Arc<Mailbox>,
    work: Mutex<Work>,
    /// Bundles that have come back from other nodes (M6).
    pub(super) returned: Mutex<Vec<Parcel>>,
    /// None for a spare lane.
    charge: Option<Charge>,
}

/// The tasks, transfers and messages that a lane has in flight.
#[derive(Default)]
pub(crate) struct Work {
    pub tasks: Slab<Task>,
    pub transfers: Slab<Transfer>,
    /// Claimed slots whose fills have not been submitted yet.
    pub gathered: Vec<Gathered>,
    /// Number of registered waiters that have not been woken, or whose wake-up has not been taken
    /// yet.
    pub waiting: usize,
    pub finished: VecDeque<Ended>,
    pub mail: Mail,
}

/// A claimed slot that needs a fill. Its task has the object.
pub(crate) struct Gathered {
    pub page: PageIndex,
    pub slot: SlotIndex,
    pub task: TaskId,
    pub role: Role,
}

impl Work {
    /// Counts a waiter that a task has registered.
    pub fn registered(&mut self, id: TaskId) {
        self.waiting += 1;
        self.tasks[id].outstanding += 1;
    }
}

impl Lane {
    /// Creates a lane with a ring of its own. An error calls the lane `what`.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the buffer share is used up, [`Error::Config`] if the system refuses
    /// a ring.
    pub fn new(crew: &Arc<Crew>, what: &str) -> Result<Arc<Lane>, Error> {
        let charge = crew.shared.reserve.charge(LANE_BYTES, what)?;
        Ok(Lane::with(crew, crew.shared.ring()?, Some(charge)))
    }

    /// Creates a spare lane (B3): it takes no descriptor, is not charged, and leaves its I/O to the
    /// blocking engine.
    pub fn spare(crew: &Arc<Crew>) -> Arc<Lane> {
        let options = RingOptions { engine: Engine::Blocking, ..RingOptions::default() };
        let ring = Ring::new(&options).expect("the blocking engine asks the system for nothing");
        Lane::with(crew, ring, None)
    }

    fn with(crew: &Arc<Crew>, ring: Ring, charge: Option<Charge>) -> Arc<Lane> {
        let ring = Arc::new(ring);
        let lane = Arc::new(Lane {
            shared: crew.shared.clone(),
            crew: crew.clone(),
            mailbox: Mailbox::new(ring.clone()),
            ring,
            work: Mutex::default(),
            returned: Mutex::default(),
            charge,
        });
        if !lane.is_spare() {
            // Relaxed: a figure alone.
            crew.rings.fetch_add(1, Ordering::Relaxed);
        }
        crew.add(&lane);
        lane
    }

    /// Whether this is a spare lane (B3).
    pub fn is_spare(&self) -> bool {
        self.charge.is_none()
    }

    /// Whether nothing on the lane needs an owner (B4).
    pub fn is_idle(&self) -> bool {
        let work = self.work();
        work.waiting == 0
            && work.finished.is_empty()
            && work.tasks.iter().all(|(_, task)| matches!(task.job, Job::Ahead))
            && self.mailbox.is_empty()
    }

    pub fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    /// Creates a waiter that lets `task` try `page` again. Once the waiter is registered, the
    /// caller counts it with [`Work::registered`].
    pub fn waiter(&self, task: TaskId, page: PageIndex) -> Waiter {
        self.mailbox.waiter(task, page)
    }

    /// Lets the owner try a page again. Until then the page counts as outstanding in its task.
    pub fn retry(&self, task: TaskId, page: PageIndex) {
        self.mailbox.put(Ready { task, page, registered: false });
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Reads ahead that are still in flight hold slots that other tasks may wait for. In a child
        // of `fork` that I/O belongs to the parent.
        while !self.shared.is_forked() && self.ring.in_flight() > 0 && !std::thread::panicking() {
            self.wait(None);
        }
        if !self.is_spare() {
            self.crew.rings.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
