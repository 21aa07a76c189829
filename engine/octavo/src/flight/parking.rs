//! How the owner of a lane waits.
//!
//! A task that was woken returns to its owner through the mailbox. An owner that sleeps until a
//! page arrives also takes the completions of lanes whose owners are elsewhere, because the page
//! may be in flight on one of them.
//!
//! Not here: what a task does when it is woken (`dispatch.rs`), which thread owns a lane
//! (`lanes.rs`), how an owner sleeps in an event loop of its own (`descriptor.rs`).

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use octavo_disk::Ring;
use octavo_table::SlotIndex;

use super::lane::{Gathered, Lane, Work};
use super::messages::Parcel;
use super::read_ahead;
use super::task::{Ended, Job, NONE, Role, Task};
use crate::error::Error;
use crate::request::Interest;
use crate::state::partition::ObjectInner;
use crate::state::streams::Ahead;
use crate::sync::{Arc, Ordering, fence, lock, yield_now};
use crate::wait::{RESUME, Ready, TaskId, Waiter};

/// Interval at which a thread checks for news while no wake-up can reach it.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

impl Lane {
    /// Takes the completions of a lane whose owner is elsewhere, and returns whether there were
    /// any. The caller has nudged the ring.
    pub(super) fn reap_for_owner(&self) -> bool {
        // Wakes the owner even if it is not parked: an owner that has just returned may have
        // checked the finished tasks before this reap, and may be about to park. A wake-up that
        // finds no sleeper ends the next sleep.
        let has_reaped = self.reap() > 0;
        if has_reaped {
            self.ring.wake();
        }
        has_reaped
    }

    /// Retries the pages whose waiters were woken, and continues tasks whose bundles came back.
    /// Returns whether there were any. Owner only.
    pub fn take_ready(self: &Arc<Self>) -> bool {
        let ready = self.mailbox.take();
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
        self.shared.bounces.pass_on();
        true
    }

    /// Works on the lane's tasks until `enough` returns true. Panics if no task is left before
    /// that. Owner only.
    pub fn work_until(self: &Arc<Self>, mut enough: impl FnMut(&mut Work) -> bool) {
        self.mailbox.set_attended(true);
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

    /// Works on the lane's tasks until one has finished, `enough` returns true, or `time` has
    /// passed. Returns the finished tasks. For an owner that attends its lane all the time.
    pub fn work_a_while(
        self: &Arc<Self>,
        time: Option<Duration>,
        mut enough: impl FnMut() -> bool,
    ) -> VecDeque<Ended> {
        let until = time.map(|time| Instant::now() + time);
        loop {
            let is_busy = self.take_ready() | (self.reap() > 0);
            let finished = std::mem::take(&mut self.work().finished);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !finished.is_empty() || enough() || left == Some(Duration::ZERO) {
                return finished;
            }
            if !is_busy {
                self.park(None, left);
            }
        }
    }

    /// Takes completions and wake-ups and continues their tasks, until there are no more. Does not
    /// wait. Owner only.
    pub fn look(self: &Arc<Self>) {
        while self.take_ready() | (self.reap() > 0) {}
    }

    /// Works on the lane's tasks until one has finished, `fd` is ready, or `timeout` has passed.
    /// Returns what `fd` is ready for.
    pub fn work_or(
        self: &Arc<Self>,
        fd: BorrowedFd<'_>,
        interest: Interest,
        timeout: Option<Duration>,
    ) -> Interest {
        self.mailbox.set_attended(true);
        // The loop ends: each iteration but the last takes a completion or a ready page of a task
        // that was in flight at the start.
        let has_finished = loop {
            let is_busy = self.take_ready() | (self.reap() > 0);
            let has_finished = !self.work().finished.is_empty();
            if has_finished || !is_busy {
                break has_finished;
            }
        };
        let timeout = if has_finished { Some(Duration::ZERO) } else { timeout };
        let came = self.park(Some((fd, interest)), timeout);
        self.take_ready();
        self.reap();
        self.leave();
        came.unwrap_or_default()
    }

    /// Whether nothing is in flight and no task is left. Owner only, between two batches.
    pub fn at_rest(&self) -> bool {
        self.ring.in_flight() == 0 && self.work().tasks.is_empty() && lock(&self.returned).is_empty()
    }

    /// Sleeps until there may be news: a completion, a wake-up or a returned bundle. Returns what
    /// `fd` is ready for, if the caller has an `fd`. Owner only.
    pub(super) fn park(
        &self,
        fd: Option<(BorrowedFd<'_>, Interest)>,
        timeout: Option<Duration>,
    ) -> Option<Interest> {
        self.mailbox.park();
        let came = match self.has_news() {
            false => self.sleep(fd, timeout),
            true => fd.map(|(fd, interest)| poll_only(fd, interest, Some(Duration::ZERO))),
        };
        self.mailbox.unpark();
        came
    }

    /// Whether the owner has pages to retry, or bundles to take back.
    pub(super) fn has_news(&self) -> bool {
        !self.mailbox.is_empty() || !lock(&self.returned).is_empty()
    }

    fn sleep(&self, fd: Option<(BorrowedFd<'_>, Interest)>, timeout: Option<Duration>) -> Option<Interest> {
        let waiting = self.work().waiting > 0;
        // While this owner waits for pages that may be in flight on other lanes, an owner that
        // leaves its lane must wake it. The fence pairs with that in `leave`: either the leaving
        // thread sees this counter, or this thread sees that the lane is unattended.
        if waiting {
            self.crew.foreign_waiters.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        let others = if waiting { self.crew.unattended(self) } else { Vec::new() };
        // No descriptor and no other lane: sleep in the ring itself.
        let is_alone = fd.is_none() && others.is_empty();
        let came = match if is_alone || self.is_spare() { None } else { self.ring.poll_fd() } {
            None if is_alone => {
                _ = self.wait(timeout);
                None
            }
            None if fd.is_none() && !self.shared.simulated() && !cfg!(shuttle) => {
                self.sleep_without_descriptor(timeout);
                None
            }
            Some(own) if !self.shared.simulated() => {
                let mut fds = vec![own];
                fds.extend(others.iter().filter_map(|lane| lane.ring.poll_fd()));
                let mut left = timeout;
                let came = loop {
                    // An owner that is busy elsewhere may hold up the completions of its ring.
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
                // `wait` also consumes a wake-up; a reap would leave the wake-up, and the next poll
                // would return at once.
                self.wait(Some(Duration::ZERO));
                others.iter().for_each(|lane| _ = lane.reap_for_owner());
                fd.map(|_| came)
            }
            // A simulated disk advances only while threads look at their rings, so look at all
            // rings. Do the same if the system has no descriptor left for this ring.
            _ => {
                if self.ring.in_flight() > 0 {
                    self.reap();
                }
                others.iter().for_each(|lane| lane.ring.nudge());
                others.iter().for_each(|lane| _ = lane.reap_for_owner());
                yield_now();
                fd.map(|(fd, interest)| {
                    let quiet = self.ring.in_flight() == 0 && others.is_empty();
                    // Without tasks, no news can arrive: sleep for the whole timeout. With tasks,
                    // check for news at intervals. If tasks have just ended, deliver them first.
                    let work = self.work();
                    let pause = match (quiet && work.finished.is_empty(), work.tasks.is_empty()) {
                        (false, _) => Some(Duration::ZERO),
                        (true, true) => timeout,
                        (true, false) => {
                            Some(timeout.map_or(LOOK_INTERVAL, |timeout| timeout.min(LOOK_INTERVAL)))
                        }
                    };
                    drop(work);
                    poll_only(fd, interest, pause)
                })
            }
        };
        if waiting {
            self.crew.foreign_waiters.fetch_sub(1, Ordering::SeqCst);
        }
        came
    }

    /// Sleeps in the ring, because it has no descriptor to poll, while unattended lanes have I/O in
    /// flight. Checks those lanes at growing intervals.
    fn sleep_without_descriptor(&self, timeout: Option<Duration>) {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut pause = LOOK_INTERVAL;
        loop {
            // Collected again in each iteration: the wake-up that announces another unattended lane
            // only ends the wait.
            let others = self.crew.unattended(self);
            others.iter().for_each(|lane| lane.ring.nudge());
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let has_ended = self.wait(Some(left.map_or(pause, |left| left.min(pause)))) > 0;
            let has_reaped = others.iter().fold(false, |any, lane| lane.reap_for_owner() | any);
            if has_ended || has_reaped || self.has_news() || others.is_empty() || left == Some(Duration::ZERO)
            {
                return;
            }
            pause = (pause * 2).min(Ring::NUDGE_INTERVAL);
        }
    }

    /// Works until every request that this lane took over from other nodes is done. Needed in a
    /// cache whose workers have ended.
    pub fn finish_served(self: &Arc<Self>) {
        let serves = |work: &mut Work| work.tasks.iter().any(|(_, task)| task.served.is_some());
        if serves(&mut self.work()) {
            self.work_until(|work| !serves(work));
        }
    }

    /// Ends the owner's attendance: other threads may now take the completions of the I/O that
    /// stays in flight. If the owner has not used its turn at the bounce pool, the turn goes to the
    /// next waiter.
    pub fn leave(&self) {
        self.mailbox.set_attended(false);
        // Pairs with the fence in `sleep`: a sleeper whose counter this thread does not see yet
        // sees that the lane is unattended and has I/O in flight.
        fence(Ordering::SeqCst);
        self.shared.bounces.pass_on();
        if self.ring.in_flight() > 0 && self.crew.foreign_waiters.load(Ordering::SeqCst) > 0 {
            self.crew.wake_parked(self);
        }
    }

    /// Runs a task to its end on this lane, for a blocking call.
    pub fn run(self: &Arc<Self>, task: Task) -> Result<(), Error> {
        let mut work = self.work();
        self.start(&mut work, task);
        match self.flush_and_wait(work) {
            Some(ended) => ended.result(),
            None => self.finish_one().result(),
        }
    }

    /// Runs a read of one page to its end, for which a slot was claimed. Also reads `ahead`, with
    /// the exception of B4.
    pub fn run_claimed(self: &Arc<Self>, mut task: Task, slot: SlotIndex, ahead: Ahead) -> Result<(), Error> {
        let (page, object) = (task.next, task.object.clone());
        (task.next, task.outstanding) = (task.end, 1);
        let mut work = self.work();
        let id = work.tasks.insert(task);
        work.gathered.push(Gathered { page, slot, task: id, role: Role::Deliver });
        if read_ahead::may_bring_more(self, &object) {
            read_ahead::start(self, &mut work, &object, ahead);
        }
        match self.flush_and_wait(work) {
            Some(ended) => ended.result(),
            None => self.finish_one().result(),
        }
    }

    /// Waits for the one task in flight.
    pub fn finish_one(self: &Arc<Self>) -> Ended {
        self.work_until(|work| !work.finished.is_empty());
        self.work().finished.pop_front().expect("work_until saw it")
    }

    /// Sleeps until the waiter that `register` registers is woken. If `register` returns false,
    /// returns immediately.
    pub fn nap(
        self: &Arc<Self>,
        object: &Arc<ObjectInner>,
        register: impl FnOnce(&mut dyn FnMut() -> Waiter) -> bool,
    ) {
        if self.begin_nap(object, register) {
            self.finish_one();
        }
    }

    /// Starts a task that ends when the waiter that `register` registers is woken. If `register`
    /// returns false, starts no task. Returns what `register` returned.
    pub fn begin_nap(
        self: &Arc<Self>,
        object: &Arc<ObjectInner>,
        register: impl FnOnce(&mut dyn FnMut() -> Waiter) -> bool,
    ) -> bool {
        let mut work = self.work();
        let id = work.tasks.insert(Task::of_pages(Job::Nap, object, NONE));
        let is_registered = register(&mut || self.waiter(id, RESUME));
        if is_registered {
            work.registered(id);
        } else {
            work.tasks.remove(id);
        }
        is_registered
    }

    /// Starts a task, submits its I/O, and returns the task's id.
    pub fn begin_alone(self: &Arc<Self>, task: Task) -> TaskId {
        let mut work = self.work();
        let id = self.start(&mut work, task);
        self.flush(&mut work);
        id
    }

    /// M6: takes back a bundle that another node has served.
    pub fn returned(&self, bundle: Parcel) {
        lock(&self.returned).push(bundle);
        self.mailbox.notify();
    }
}

/// Waits until the caller's descriptor is ready or `timeout` has passed. Involves no lane.
pub(crate) fn poll_only(fd: BorrowedFd<'_>, interest: Interest, timeout: Option<Duration>) -> Interest {
    poll(&[], Some((fd, interest)), timeout).unwrap_or_default()
}

/// Waits until a descriptor is ready. Returns what the caller's `fd` is ready for, or `None` if the
/// timeout passed first.
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
