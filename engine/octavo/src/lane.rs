//! A lane: a ring, and the tasks and transfers that it has in flight. Its owner is a queue, a
//! thread of the cache, or the call that has borrowed it.
//!
//! The owner submits and tries pages. Any thread may take completions of any lane: a thread that
//! waits for a page which another lane brings in looks after that lane too if its owner is
//! elsewhere, so nobody waits for a thread that does not come. (A blocking read of one run is no
//! lane's: its thread is in the system call that reads, and nowhere else until it has told whoever
//! waits.)
//!
//! Here: what a lane has, and how its tasks go on. How their I/O travels is in `lane/transfers.rs`,
//! how threads wait in `lane/waiting.rs`, how calls borrow lanes in `lane/lent.rs`.
//!
//! Locks, in order: `work`, then the partition's moves, then a set's lock, then waiters, strays,
//! ranges, bounce pool, then `ready`. Nobody holds the `work` of two lanes.

mod lent;
mod transfers;
mod waiting;

use std::collections::VecDeque;

use octavo_disk::{Engine, Ring, RingOptions};
use octavo_table::{SlotIndex, Tag};
use slab::Slab;

use crate::budget::Charge;
use crate::cache::Shared;
use crate::error::Error;
use crate::numa::{Mail, Parcel};
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, lock};
use crate::task::{Ended, Job, Role, Task, TaskId, Transfer};
use crate::{ahead, clean, clear, copy, read, write};

pub(crate) use lent::{Borrowed, Lanes};
pub(crate) use transfers::RUN_PAGES_MAX;
pub(crate) use waiting::{Waiter, poll_only};

/// A registration's page that means: just go on.
pub(crate) const RESUME: u64 = u64::MAX;

/// Tasks that are started together: as many as the first cache has room for what they touch.
const BATCH: usize = 16;

/// Pages that a Populate has in flight at most: enough for 32 long runs. What is gathered and in
/// flight takes memory that is not charged.
const POPULATE_PAGES_MAX: usize = 2048;

/// How much of a page that is there is asked for with its slot.
const FRAME_BYTES_AHEAD: usize = 512;

/// Tasks that are to be started together, with the tags of their first pages.
#[derive(Default)]
pub(crate) struct Batch {
    tasks: [(TaskId, Tag); BATCH],
    count: usize,
}

/// One owner's I/O.
pub(crate) struct Lane {
    pub shared: Arc<Shared>,
    pub ring: Ring,
    work: Mutex<Work>,
    /// Pages to try again.
    ready: Mutex<Vec<Ready>>,
    /// Bundles that have been at another node (M6).
    returned: Mutex<Vec<Parcel>>,
    /// The owner sleeps, or is about to, and wants to be woken for `ready`.
    parked: AtomicBool,
    /// The owner waits for completions, so nobody else needs to.
    attended: AtomicBool,
    /// None: it is a spare lane.
    charge: Option<Charge>,
}

/// What a lane has in flight.
pub(crate) struct Work {
    pub tasks: Slab<Task>,
    pub transfers: Slab<Transfer>,
    /// Claimed slots whose fills are not submitted yet.
    pub gathered: Vec<Gathered>,
    /// Registrations with pages, ranges and the bounce pool that have not come true.
    pub waiting: usize,
    pub finished: VecDeque<Ended>,
    pub mail: Mail,
}

/// A page of a task that is to be tried (again) by the lane's owner.
struct Ready {
    task: TaskId,
    page: u64,
    /// It was registered with somebody, and counted in `waiting`.
    registered: bool,
}

/// A claimed slot that wants a fill.
pub(crate) struct Gathered {
    pub object: Arc<crate::object::ObjectInner>,
    pub page: u64,
    pub slot: SlotIndex,
    pub task: TaskId,
    pub role: Role,
}

impl Work {
    /// A task has been registered with somebody who will tell it.
    pub fn registered(&mut self, id: TaskId) {
        self.waiting += 1;
        self.tasks[id].outstanding += 1;
    }
}

impl Lane {
    /// A lane with a ring of its own; `what` that is, an error says. Fails where the buffers' share
    /// is used up, or where the system gives no ring.
    pub fn new(shared: &Arc<Shared>, what: &str) -> Result<Arc<Lane>, Error> {
        let charge = shared.reserve.charge(LANE_BYTES, what)?;
        Ok(Lane::with(shared, shared.ring()?, Some(charge)))
    }

    /// A lane that takes no descriptor and is not charged (B3): its I/O is done by the blocking
    /// engine.
    pub fn spare(shared: &Arc<Shared>) -> Arc<Lane> {
        let options = RingOptions { engine: Engine::Blocking, ..RingOptions::default() };
        let ring = Ring::new(&options).expect("the blocking engine asks the system for nothing");
        Lane::with(shared, ring, None)
    }

    fn with(shared: &Arc<Shared>, ring: Ring, charge: Option<Charge>) -> Arc<Lane> {
        let lane = Arc::new(Lane {
            shared: shared.clone(),
            ring,
            work: Mutex::new(Work {
                tasks: Slab::new(),
                transfers: Slab::new(),
                gathered: Vec::new(),
                waiting: 0,
                finished: VecDeque::new(),
                mail: Mail::default(),
            }),
            ready: Mutex::new(Vec::new()),
            returned: Mutex::new(Vec::new()),
            parked: AtomicBool::new(false),
            attended: AtomicBool::new(false),
            charge,
        });
        shared.lanes.add(&lane);
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
            && work.tasks.iter().all(|(_, task)| task.job == Job::Ahead)
            && lock(&self.ready).is_empty()
    }

    pub fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    /// Whoever is to be told when `task` may try `page` again. The registration that takes it is
    /// counted by `registered`.
    pub fn waiter(self: &Arc<Self>, task: TaskId, page: u64) -> Waiter {
        Waiter { lane: self.clone(), task, page }
    }

    // ---- Tasks
    // --------------------------------------------------------------------------------------------------

    /// Starts a task: tries its pages, gathers what is missing. `flush` submits. Returns its
    /// number.
    pub fn start(self: &Arc<Self>, work: &mut Work, task: Task) -> TaskId {
        let id = work.tasks.insert(task);
        self.begin(work, id);
        id
    }

    /// Adds a task to a batch that is to be started.
    #[inline(always)]
    pub fn add(self: &Arc<Self>, work: &mut Work, batch: &mut Batch, task: Task) {
        let tag = task.object.tag(task.next);
        task.object.partition.table.prefetch_set(tag);
        batch.tasks[batch.count] = (work.tasks.insert(task), tag);
        batch.count += 1;
        if batch.count == BATCH {
            self.start_all(work, batch);
        }
    }

    /// Starts the tasks of a batch. What their first pages touch is asked for before the first is
    /// started: one task waits for memory, and not each.
    pub fn start_all(self: &Arc<Self>, work: &mut Work, batch: &mut Batch) {
        let count = std::mem::take(&mut batch.count);
        for (id, tag) in &batch.tasks[..count] {
            let partition = &work.tasks[*id].object.partition;
            match partition.table.candidate(*tag) {
                Some(slot) => {
                    partition.table.prefetch_tag(slot);
                    copy::prefetch_frame(partition.frames.at(slot), FRAME_BYTES_AHEAD);
                }
                None => partition.table.prefetch_miss(*tag),
            }
        }
        for (id, _) in &batch.tasks[..count] {
            self.begin(work, *id);
        }
    }

    fn begin(self: &Arc<Self>, work: &mut Work, id: TaskId) {
        let is_read = work.tasks[id].job == Job::Read;
        let gathered = work.gathered.len();
        self.advance(work, id);
        // With pages to be filled the task is still there.
        if is_read && work.gathered.len() > gathered {
            ahead::after_miss(self, work, id);
        }
    }

    /// Tries a task's pages, as far as they can be.
    fn advance(self: &Arc<Self>, work: &mut Work, id: TaskId) {
        let task = &mut work.tasks[id];
        if task.error.is_some() {
            task.next = task.end;
            task.again.clear();
        }
        match task.job {
            Job::Nap => {}
            Job::Clear { .. } => {
                let object = task.object.clone();
                clear::advance(self, work, id, &object);
            }
            Job::Sync { .. } => {
                let object = task.object.clone();
                clean::advance(self, work, id, &object);
            }
            job => {
                let most = if job == Job::Populate { POPULATE_PAGES_MAX } else { usize::MAX };
                while work.tasks[id].outstanding < most
                    && let Some((page, first)) = work.tasks[id].next_page()
                {
                    if first && work.tasks[id].batch > 0 && self.post_page(work, id, page) {
                        continue;
                    }
                    // A page that is gathered takes it along.
                    let object = work.tasks[id].object.clone();
                    match job {
                        Job::Write { .. } => write::page(self, work, id, &object, page, first),
                        Job::Ahead => ahead::page(work, id, object, page),
                        _ => read::page(self, work, id, object, page, first),
                    }
                }
            }
        }
        self.settle(work, id);
    }

    /// One thing that a task waited for is over.
    pub fn step(&self, work: &mut Work, id: TaskId) {
        work.tasks[id].outstanding -= 1;
        self.settle(work, id);
    }

    /// Lets the owner try a page again (the task stays outstanding until it does).
    pub fn retry(&self, id: TaskId, page: u64) {
        lock(&self.ready).push(Ready { task: id, page, registered: false });
    }

    /// Ends a task that has nothing left to do, or takes it to its next phase.
    fn settle(&self, work: &mut Work, id: TaskId) {
        let task = &mut work.tasks[id];
        let begun = task.clear.as_ref().is_none_or(|clear| clear.is_begun());
        let done = begun && task.next >= task.end && task.again.is_empty();
        if task.outstanding == 0
            && done
            && let Some(error) = task.late_error.take()
        {
            task.fail(*error);
        }
        let failed = task.error.is_some();
        if task.outstanding > 0 || !failed && !done {
            // The next of its steps.
            if task.outstanding == 0 && task.job == Job::Populate {
                task.outstanding = 1;
                self.retry(id, RESUME);
            }
            return;
        }
        match task.job {
            Job::Write { durable: true } | Job::Clear { durable: true } if !failed => {
                (task.next, task.end) = task.page_range();
                task.job = Job::Sync { flush: true };
                task.outstanding = 1;
                self.retry(id, RESUME);
            }
            Job::Sync { flush: true } if !failed && !task.flushing => {
                task.flushing = true;
                task.outstanding = 1;
                self.retry(id, RESUME);
            }
            _ => {
                clean::ended(task);
                let served = task.served.map(|letter| (letter, task.error.take()));
                if served.is_none() && task.job != Job::Ahead {
                    work.finished.push_back(Ended::new(id, task));
                }
                work.tasks.remove(id);
                if let Some((letter, error)) = served {
                    self.letter_done(work, letter, error.map(|error| *error));
                }
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // What was read ahead holds slots that others may wait for. In a child of `fork` it is the
        // parent's.
        while !self.shared.is_forked() && self.ring.in_flight() > 0 && !std::thread::panicking() {
            self.wait(None);
        }
    }
}

/// What a lane with a ring is charged: the ring's queues, the slabs.
pub(crate) const LANE_BYTES: u64 = 24 << 10;

impl Task {
    /// The next page to try, and whether it is tried for the first time.
    fn next_page(&mut self) -> Option<(u64, bool)> {
        if let Some(page) = self.again.pop() {
            return Some((page, false));
        }
        (self.next < self.end).then(|| {
            self.next += 1;
            (self.next - 1, true)
        })
    }

    pub(crate) fn page_range(&self) -> (u64, u64) {
        let shift = self.object.partition.page_shift;
        match self.len {
            0 => (0, 0),
            _ => (self.offset >> shift, ((self.offset + self.len as u64 - 1) >> shift) + 1),
        }
    }
}
