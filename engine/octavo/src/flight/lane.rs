//! A lane: an I/O ring, and the tasks and transfers that it has in flight. Its owner is a queue, a
//! thread of the cache, or the call that has borrowed it.
//!
//! Only the owner submits and tries pages. Any thread may take completions of any lane: a thread
//! that waits for a page which another lane brings in attends to that lane too if its owner is
//! elsewhere, so no thread waits for one that does not come. (A blocking read of one run belongs to
//! no ring: its thread is in the system call, and wakes the waiters itself.)
//!
//! Here: what a lane holds. How its tasks go on is in `dispatch.rs`, how their I/O travels in
//! `transfers.rs`, how its owner waits in `parking.rs`, how calls borrow lanes in `lanes.rs`.
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
use crate::state::partition::ObjectInner;
use crate::state::shared::Shared;
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::wait::{Mailbox, Ready, TaskId, Waiter};

/// What a lane with a ring is charged, in bytes: the ring's queues and the slabs.
pub(crate) const LANE_BYTES: u64 = 24 << 10;

/// One owner's I/O.
pub(crate) struct Lane {
    pub shared: Arc<Shared>,
    pub crew: Arc<Crew>,
    pub ring: Arc<Ring>,
    pub mailbox: Arc<Mailbox>,
    work: Mutex<Work>,
    /// Bundles that have come back from other nodes (M6).
    pub(super) returned: Mutex<Vec<Parcel>>,
    /// None: a spare lane.
    charge: Option<Charge>,
}

/// What a lane has in flight.
pub(crate) struct Work {
    pub tasks: Slab<Task>,
    pub transfers: Slab<Transfer>,
    /// Claimed slots whose fills are not submitted yet.
    pub gathered: Vec<Gathered>,
    /// Registered waiters that were not woken yet.
    pub waiting: usize,
    pub finished: VecDeque<Ended>,
    pub mail: Mail,
}

/// A claimed slot that wants a fill.
pub(crate) struct Gathered {
    pub object: Arc<ObjectInner>,
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

    /// Adds a claimed slot to the next submission.
    pub fn gather(
        &mut self,
        object: Arc<ObjectInner>,
        page: PageIndex,
        slot: SlotIndex,
        task: TaskId,
        role: Role,
    ) {
        self.tasks[task].outstanding += 1;
        self.gathered.push(Gathered { object, page, slot, task, role });
    }
}

impl Lane {
    /// A lane with a ring of its own; an error calls it `what`.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the buffers' share is used up, [`Error::Config`] if the system gives
    /// no ring.
    pub fn new(crew: &Arc<Crew>, what: &str) -> Result<Arc<Lane>, Error> {
        let charge = crew.shared.reserve.charge(LANE_BYTES, what)?;
        Ok(Lane::with(crew, crew.shared.ring()?, Some(charge)))
    }

    /// A lane that takes no descriptor and is not charged (B3): the blocking engine does its I/O.
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
            work: Mutex::new(Work {
                tasks: Slab::new(),
                transfers: Slab::new(),
                gathered: Vec::new(),
                waiting: 0,
                finished: VecDeque::new(),
                mail: Mail::default(),
            }),
            returned: Mutex::new(Vec::new()),
            charge,
        });
        crew.add(&lane);
        lane
    }

    /// Whether it is a spare lane (B3).
    pub fn is_spare(&self) -> bool {
        self.charge.is_none()
    }

    /// Whether nothing of it needs its owner (B4).
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

    /// A waiter that lets `task` try `page` again. The registration that takes it is counted by
    /// [`Work::registered`].
    pub fn waiter(&self, task: TaskId, page: PageIndex) -> Waiter {
        self.mailbox.waiter(task, page)
    }

    /// Lets the owner try a page again; the task stays outstanding until it does.
    pub fn retry(&self, task: TaskId, page: PageIndex) {
        self.mailbox.put(Ready { task, page, registered: false });
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // What was read ahead holds slots that other tasks may wait for. In a child of `fork` that
        // I/O is the parent's.
        while !self.shared.is_forked() && self.ring.in_flight() > 0 && !std::thread::panicking() {
            self.wait(None);
        }
    }
}
