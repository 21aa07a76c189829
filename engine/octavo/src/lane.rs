//! A lane: one thread's ring, and the tasks and transfers that it has in flight.
//!
//! The owner submits and tries pages. Any thread may take completions of any lane: a thread that waits for a page which
//! another lane brings in looks after that lane too if its owner is elsewhere, so nobody waits for a thread that does not come.
//! (A blocking read of one run is no lane's: its thread is in the system call that reads, and nowhere else until it has told whoever waits.)
//!
//! Locks, in order: `work`, then the partition's moves, then a set's lock, then waiters, strays, ranges, bounce pool, then `ready`.
//! Nobody holds the `work` of two lanes.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;
use std::vec::Drain;

use octavo_disk::{IoBuffer, IoError, Ring};
use octavo_table::{SlotIndex, Tag};
use slab::Slab;

use crate::budget::Charge;
use crate::cache::Shared;
use crate::error::Error;
use crate::numa::{Mail, Parcel};
use crate::queue::Interest;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, fence, lock, yield_now};
use crate::task::{Ended, Job, Kind, Pages, Role, Task, TaskId, Transfer, TransferPage};
use crate::{ahead, clean, clear, copy, read, write};

/// A registration's page that means: just go on.
pub(crate) const RESUME: u64 = u64::MAX;

/// Most pages of one I/O: 256 KiB at pages of 4 KiB, where devices have long reached their bandwidth.
pub(crate) const RUN_PAGES_MAX: usize = 64;

/// Tasks that are started together: as many as the first cache has room for what they touch.
const BATCH: usize = 16;

/// How much of a page that is there is asked for with its slot.
const FRAME_BYTES_AHEAD: usize = 512;

/// Tasks that are to be started together, with the tags of their first pages.
#[derive(Default)]
pub(crate) struct Batch {
    tasks: [(TaskId, Tag); BATCH],
    count: usize,
}

/// Completions that are mostly taken at once.
const TAKEN_USUALLY: usize = 32;

/// One thread's I/O.
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
    _charge: Charge,
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

/// Somebody to be told.
pub(crate) struct Waiter {
    lane: Arc<Lane>,
    task: TaskId,
    page: u64,
}

impl Waiter {
    /// Tells the task to try its page again.
    pub fn wake(self) {
        lock(&self.lane.ready).push(Ready { task: self.task, page: self.page, registered: true });
        // Pairs with the fence in `park`: either the owner sees `ready`, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.lane.parked.load(Ordering::Relaxed) {
            self.lane.ring.wake();
        }
    }
}

impl Waiter {
    /// Whether its lane's owner is there to do what it is told.
    pub fn is_attended(&self) -> bool {
        self.lane.is_attended()
    }
}

impl Work {
    /// A task has been registered with somebody who will tell it.
    pub fn registered(&mut self, id: TaskId) {
        self.waiting += 1;
        self.tasks[id].outstanding += 1;
    }

    /// Asks the processor for what a transfer will touch when it is finished.
    fn prefetch(&self, token: u64) {
        let transfer = &self.transfers[token as usize];
        if transfer.kind == Kind::Fill {
            let (partition, held) = (&transfer.object.partition, transfer.pages.first());
            if let (Some(slot), Role::Deliver) = (held.slot, held.role) {
                copy::prefetch_frame(partition.frames.at(slot), partition.page_bytes());
            }
        }
    }
}

impl Lane {
    pub fn new(shared: &Arc<Shared>) -> Result<Arc<Lane>, Error> {
        let charge = shared.reserve.charge(LANE_BYTES, "a thread's ring")?;
        let ring = shared.ring()?;
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
            _charge: charge,
        });
        shared.add_lane(&lane);
        Ok(lane)
    }

    pub fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    /// Whoever is to be told when `task` may try `page` again. The registration that takes it is counted by `registered`.
    pub fn waiter(self: &Arc<Self>, task: TaskId, page: u64) -> Waiter {
        Waiter { lane: self.clone(), task, page }
    }

    // ---- Tasks --------------------------------------------------------------------------------------------------

    /// Starts a task: tries its pages, gathers what is missing. `flush` submits.
    pub fn start(self: &Arc<Self>, work: &mut Work, task: Task) {
        let id = work.tasks.insert(task);
        self.begin(work, id);
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

    /// Starts the tasks of a batch. What their first pages touch is asked for before the first is started: one task waits for memory, and not each.
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
                while let Some((page, first)) = work.tasks[id].next_page() {
                    if first && work.tasks[id].travels && self.post_page(work, id, page) {
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
                let served = task.served.map(|letter| (letter, task.error.take()));
                if served.is_none() && task.job != Job::Ahead {
                    work.finished.push_back(Ended::new(task));
                }
                work.tasks.remove(id);
                if let Some((letter, error)) = served {
                    self.letter_done(work, letter, error.map(|error| *error));
                }
            }
        }
    }

    /// Makes transfers of what was gathered, adjacent pages in one, and hands all to the kernel.
    pub fn flush(&self, work: &mut Work) {
        self.post_all(work);
        let mut gathered = std::mem::take(&mut work.gathered);
        sort(&mut gathered);
        let mut buffers = NO_BUFFERS;
        let mut rest = gathered.drain(..).peekable();
        while let Some(transfer) = next_run(&mut rest, &mut buffers) {
            let count = transfer.pages.count();
            self.push(work, transfer, octavo_disk::Op::Read, &buffers[..count]);
        }
        drop(rest);
        work.gathered = gathered;
        self.ring.submit();
    }

    /// `flush` for a caller that waits for nothing else: where one read is all that is to be done, this thread does it itself, with
    /// one plain system call. Others who want the page are told as ever.
    fn flush_and_wait(&self, mut work: MutexGuard<'_, Work>) {
        sort(&mut work.gathered);
        let is_one_run = (1..=RUN_PAGES_MAX).contains(&work.gathered.len())
            && work.gathered.windows(2).all(|pair| follows(&pair[0], &pair[1]));
        // A simulated disk lets time pass only for those who look at it through their ring.
        if !is_one_run || !work.transfers.is_empty() || self.shared.simulated() {
            return self.flush(&mut work);
        }
        let mut buffers = NO_BUFFERS;
        let transfer = next_run(&mut work.gathered.drain(..).peekable(), &mut buffers).expect("a run");
        drop(work);
        let object = &transfer.object;
        let (buffers, offset) =
            (&buffers[..transfer.pages.count()], transfer.page << object.partition.page_shift);
        // SAFETY: as in `push`.
        let result = unsafe { self.ring.run(&object.store, octavo_disk::Op::Read, offset, buffers) };
        copy::prefetch(buffers[0].ptr, buffers[0].len);
        let mut work = self.work();
        if result.is_ok() {
            read::deliver(&work, &transfer);
        }
        read::filled(self, &mut work, transfer, result);
    }

    /// Queues a transfer's I/O.
    pub fn push(&self, work: &mut Work, transfer: Transfer, op: octavo_disk::Op, buffers: &[IoBuffer]) {
        let entry = work.transfers.vacant_entry();
        let token = entry.key() as u64;
        let Transfer { object, page, .. } = &*entry.insert(transfer);
        let offset = page << object.partition.page_shift;
        // SAFETY: the buffers are frames in state Filling, which nobody else touches and which are never given back, or
        // bounce pages that the transfer owns; both stay until `complete` has taken the transfer.
        unsafe { self.ring.push(&object.store, op, offset, buffers, token) };
    }

    /// Queues the clearing of a range of pages.
    pub fn push_clear(
        &self,
        work: &mut Work,
        transfer: Transfer,
        op: octavo_disk::Op,
        pages: std::ops::Range<u64>,
    ) {
        let shift = transfer.object.partition.page_shift;
        let (offset, len) = (pages.start << shift, (pages.end - pages.start) << shift);
        let entry = work.transfers.vacant_entry();
        let token = entry.key() as u64;
        self.ring.push_clear(&entry.insert(transfer).object.store, op, offset, len, token);
    }

    // ---- Completions --------------------------------------------------------------------------------------------

    /// Takes completions, by `take` from the ring, and finishes their transfers: under one lock, and while one is finished, the first
    /// bytes of the next are on their way. Any thread may. Returns how many.
    fn finish(&self, take: impl FnOnce(&Ring, &mut dyn FnMut(u64, Result<(), IoError>))) -> usize {
        let mut taken: Vec<(u64, Result<(), IoError>)> = Vec::new();
        take(&self.ring, &mut |token, result| {
            if taken.is_empty() {
                taken.reserve(TAKEN_USUALLY);
            }
            taken.push((token, result));
        });
        let count = taken.len();
        if count == 0 {
            return 0;
        }
        let mut work = self.work();
        // 1. All copies to callers, one after the other: they wait for memory, and what is done below would wait for each of them.
        for (number, (token, result)) in taken.iter().enumerate() {
            if let Some((next, _)) = taken.get(number + 1) {
                work.prefetch(*next);
            }
            if result.is_ok() {
                read::deliver(&work, &work.transfers[*token as usize]);
            }
        }
        // 2. Everything else.
        for (token, result) in taken {
            self.complete(&mut work, token, result);
        }
        count
    }

    /// Finishes a transfer.
    fn complete(&self, work: &mut Work, token: u64, result: Result<(), IoError>) {
        let transfer = work.transfers.remove(token as usize);
        match transfer.kind {
            Kind::Fill => read::filled(self, work, transfer, result),
            Kind::StrayRead | Kind::StrayUpdate => read::stray_came(self, work, transfer, result),
            Kind::Store => write::stored(self, work, transfer, result),
            Kind::StrayWrite => write::stray_written(self, work, transfer, result),
            Kind::Clean => clean::cleaned(self, work, transfer, result),
            Kind::Flush => clean::flushed(self, work, transfer, result),
            Kind::Clear => clear::cleared(self, work, transfer, result),
        }
    }

    /// Takes what has completed, without waiting. Returns how many.
    fn reap(&self) -> usize {
        self.finish(|ring, take| _ = ring.reap(take))
    }

    /// Sleeps in the ring until something has completed, somebody wakes it or the time is over.
    fn wait(&self, timeout: Option<Duration>) {
        self.finish(|ring, take| _ = ring.wait(take, timeout));
    }

    /// Takes completions of a lane whose owner is elsewhere.
    fn reap_for_owner(&self) {
        // Whether it is parked does not matter: an owner that has just come may have looked at what is finished before us and is about
        // to park. A wake that finds nobody asleep ends the next sleep.
        self.ring.nudge();
        if self.reap() > 0 {
            self.ring.wake();
        }
    }

    /// Tries the pages whose registrations came true. The owner only.
    pub fn take_ready(self: &Arc<Self>) -> bool {
        let ready = std::mem::take(&mut *lock(&self.ready));
        let returned = std::mem::take(&mut *lock(&self.returned));
        if ready.is_empty() && returned.is_empty() {
            return false;
        }
        let mut work = self.work();
        self.take_returned(&mut work, returned);
        for Ready { task, page, registered } in ready {
            work.waiting -= registered as usize;
            work.tasks[task].outstanding -= 1;
            if page != RESUME {
                work.tasks[task].again.push(page);
            }
            self.advance(&mut work, task);
        }
        self.flush(&mut work);
        drop(work);
        self.shared.bounce.pass_on();
        true
    }

    // ---- Waiting ------------------------------------------------------------------------------------------------

    /// Works until `enough` of the finished tasks, or nothing is left. The owner only.
    pub fn work_until(self: &Arc<Self>, mut enough: impl FnMut(&mut Work) -> bool) {
        self.attended.store(true, Ordering::SeqCst);
        loop {
            let ready = self.take_ready();
            let mut work = self.work();
            if enough(&mut work) {
                break;
            }
            assert!(!work.tasks.is_empty(), "waiting for tasks that do not exist");
            drop(work);
            if ready || self.reap() > 0 || self.help() {
                continue;
            }
            self.park(None, None);
        }
        self.leave();
    }

    /// Takes what has completed and goes on with what it allows, without waiting. The owner only.
    pub fn look(self: &Arc<Self>) {
        while self.take_ready() | (self.reap() > 0) {}
    }

    /// Works until something finished, `fd` is ready, or the time is over.
    pub fn work_or(
        self: &Arc<Self>,
        fd: BorrowedFd<'_>,
        interest: Interest,
        timeout: Option<Duration>,
    ) -> Interest {
        self.attended.store(true, Ordering::SeqCst);
        let mut came = Interest::default();
        // Each turn but the last took a completion or a ready page of a task that was in flight at the start.
        loop {
            let ready = self.take_ready();
            let busy = ready | (self.reap() > 0);
            let finished = !self.work().finished.is_empty();
            if busy && !finished {
                continue;
            }
            let timeout = if finished { Some(Duration::ZERO) } else { timeout };
            came = self.park(Some((fd, interest)), timeout).unwrap_or(came);
            self.take_ready();
            self.reap();
            break;
        }
        self.leave();
        came
    }

    /// Sleeps until there may be something to do.
    fn park(&self, fd: Option<(BorrowedFd<'_>, Interest)>, timeout: Option<Duration>) -> Option<Interest> {
        self.parked.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Waiter::wake`.
        fence(Ordering::SeqCst);
        let nothing_ready = lock(&self.ready).is_empty() && lock(&self.returned).is_empty();
        let came = match nothing_ready {
            true => self.sleep(fd, timeout),
            false => fd.map(|(fd, interest)| {
                poll(&[], Some((fd, interest)), Some(Duration::ZERO)).unwrap_or_default()
            }),
        };
        self.parked.store(false, Ordering::Relaxed);
        came
    }

    fn sleep(&self, fd: Option<(BorrowedFd<'_>, Interest)>, timeout: Option<Duration>) -> Option<Interest> {
        let waiting = self.work().waiting > 0;
        // While we wait for pages that other lanes may hold, lanes that lose their owner must tell us. Pairs with `leave`:
        // either it sees us, or we see that it is not attended.
        if waiting {
            self.shared.foreign.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        let others = if waiting { self.shared.unattended(self) } else { Vec::new() };
        let came = match self.ring.poll_fd() {
            // Alone: the ring itself sleeps best.
            _ if fd.is_none() && others.is_empty() => {
                self.wait(timeout);
                None
            }
            Some(own) if !self.shared.simulated() => {
                let mut fds = vec![own];
                fds.extend(others.iter().filter_map(|lane| lane.ring.poll_fd()));
                let mut left = timeout;
                let came = loop {
                    // Others' completions may be held up by an owner that computes.
                    others.iter().for_each(|lane| lane.ring.nudge());
                    let slice = match others.is_empty() {
                        true => left,
                        false => {
                            Some(left.map_or(Ring::NUDGE_INTERVAL, |left| left.min(Ring::NUDGE_INTERVAL)))
                        }
                    };
                    let came = poll(&fds, fd, slice);
                    left = left.map(|left| left.saturating_sub(slice.unwrap_or_default()));
                    if came.is_some() || left == Some(Duration::ZERO) {
                        break came.unwrap_or_default();
                    }
                };
                // Takes a wake too, which a mere reap leaves and the next poll would see again.
                self.wait(Some(Duration::ZERO));
                others.iter().for_each(|lane| lane.reap_for_owner());
                fd.map(|_| came)
            }
            // A simulated disk moves only when somebody looks at it: look at ours and the others'.
            _ => {
                if self.ring.in_flight() > 0 {
                    self.reap();
                }
                others.iter().for_each(|lane| lane.reap_for_owner());
                yield_now();
                fd.map(|(fd, interest)| {
                    let quiet = self.ring.in_flight() == 0 && others.is_empty();
                    let pause =
                        if quiet { timeout.or(Some(Duration::from_millis(1))) } else { Some(Duration::ZERO) };
                    poll(&[], Some((fd, interest)), pause).unwrap_or_default()
                })
            }
        };
        if waiting {
            self.shared.foreign.fetch_sub(1, Ordering::SeqCst);
        }
        came
    }

    /// The owner goes elsewhere; what it leaves in flight others may look after, and a turn at the bounce pool that it was
    /// told of and has not taken goes to the next.
    pub fn leave(&self) {
        self.attended.store(false, Ordering::SeqCst);
        // Pairs with the fence in `sleep`: what was pushed before is seen by a sleeper that we do not see.
        fence(Ordering::SeqCst);
        self.shared.bounce.pass_on();
        if self.ring.in_flight() > 0 && self.shared.foreign.load(Ordering::SeqCst) > 0 {
            self.shared.wake_parked(self);
        }
    }

    /// Runs a task to its end on this lane. For blocking calls.
    pub fn run(self: &Arc<Self>, task: Task) -> Result<(), Error> {
        let mut work = self.work();
        self.start(&mut work, task);
        self.flush_and_wait(work);
        self.finish_one().result()
    }

    /// Waits for the one task in flight.
    pub fn finish_one(self: &Arc<Self>) -> Ended {
        self.work_until(|work| !work.finished.is_empty());
        self.work().finished.pop_front().expect("work_until saw it")
    }

    /// Sleeps until whoever `register` hands the waiter to says so; not at all if it returns false.
    pub fn nap(
        self: &Arc<Self>,
        object: &Arc<crate::object::ObjectInner>,
        register: impl FnOnce(&mut dyn FnMut() -> Waiter) -> bool,
    ) {
        let mut work = self.work();
        let id = work.tasks.insert(Task::new(Job::Nap, object.clone(), 0, std::ptr::null_mut(), 0));
        if register(&mut || self.waiter(id, RESUME)) {
            work.registered(id);
            drop(work);
            self.finish_one();
        } else {
            work.tasks.remove(id);
        }
    }

    pub fn is_attended(&self) -> bool {
        self.attended.load(Ordering::SeqCst)
    }

    /// The owner comes, and stays until it leaves.
    pub fn attend(&self) {
        self.attended.store(true, Ordering::SeqCst);
    }

    /// Whether completions were there to be taken. The owner only.
    pub fn has_reaped(&self) -> bool {
        self.reap() > 0
    }

    /// Sleeps until something completes, comes true or comes back, or the ring is woken. The owner only.
    pub fn sleep_a_while(&self) {
        self.park(None, None);
    }

    /// M6: a bundle is back.
    pub fn returned(&self, bundle: Parcel) {
        lock(&self.returned).push(bundle);
        // Pairs with the fence in `park`, as in `Waiter::wake`.
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) {
            self.ring.wake();
        }
    }

    pub fn wake_if_parked(&self) {
        if self.parked.load(Ordering::SeqCst) {
            self.ring.wake();
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // What was read ahead holds slots that others may wait for.
        while self.ring.in_flight() > 0 && !std::thread::panicking() {
            self.wait(None);
        }
    }
}

const NO_BUFFERS: [IoBuffer; RUN_PAGES_MAX] = [IoBuffer { ptr: std::ptr::null_mut(), len: 0 }; RUN_PAGES_MAX];

/// By their places, and not by address: a run repeats from its seed.
fn sort(gathered: &mut [Gathered]) {
    if gathered.len() > 1 {
        gathered.sort_by_key(|g| (g.object.id, g.page));
    }
}

/// Whether a page is the next of the same object.
fn follows(page: &Gathered, next: &Gathered) -> bool {
    Arc::ptr_eq(&page.object, &next.object) && page.page + 1 == next.page
}

/// The transfer of the first pages that are adjacent, and where their bytes go.
fn next_run(
    gathered: &mut Peekable<Drain<'_, Gathered>>,
    buffers: &mut [IoBuffer; RUN_PAGES_MAX],
) -> Option<Transfer> {
    let Gathered { object, page, slot, task, role } = gathered.next()?;
    let buffer =
        |slot| IoBuffer { ptr: object.partition.frames.at(slot), len: object.partition.page_bytes() };
    let mut pages = Pages::one(TransferPage { slot: Some(slot), task, role, mark: 0 });
    buffers[0] = buffer(slot);
    while pages.count() < RUN_PAGES_MAX
        && let Some(next) =
            gathered.next_if(|g| Arc::ptr_eq(&g.object, &object) && g.page == page + pages.count() as u64)
    {
        buffers[pages.count()] = buffer(next.slot);
        pages.push(TransferPage { slot: Some(next.slot), task: next.task, role: next.role, mark: 0 });
    }
    Some(Transfer { kind: Kind::Fill, object, page, pages, bounce: None, tag: Default::default() })
}

/// What a lane is charged: the ring's queues, the slabs.
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

/// Waits for descriptors. Returns what came of the caller's own; None where the time was over first.
fn poll(
    rings: &[BorrowedFd<'_>],
    fd: Option<(BorrowedFd<'_>, Interest)>,
    timeout: Option<Duration>,
) -> Option<Interest> {
    let mut fds: Vec<libc::pollfd> = rings
        .iter()
        .map(|ring| libc::pollfd { fd: ring.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    if let Some((fd, interest)) = fd {
        let readable = if interest.readable { libc::POLLIN } else { 0 };
        let writable = if interest.writable { libc::POLLOUT } else { 0 };
        fds.push(libc::pollfd { fd: fd.as_raw_fd(), events: readable | writable, revents: 0 });
    }
    // Rounded up, so that a wait of half a millisecond does not become a spin.
    let timeout_ms = timeout.map_or(-1, |t| t.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32);
    // SAFETY: the array is alive and has that length; the descriptors are borrowed.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    if ready == 0 {
        return None;
    }
    let Some(own) = fds.last().filter(|_| fd.is_some() && ready > 0) else {
        return Some(Interest::default());
    };
    Some(Interest {
        readable: own.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0,
        writable: own.revents & (libc::POLLOUT | libc::POLLERR) != 0,
    })
}
