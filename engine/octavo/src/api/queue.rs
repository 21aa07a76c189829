//! The batch queue: callers submit batches of requests and take completions in any order
//! (HotStorage '12: `access(requests, n)` and `wait_replies`).
//!
//! Hits complete while the batch is submitted. All misses go to the ring in one submission, and
//! adjacent ones share an I/O. A buffer belongs to the queue from `submit` until its completion
//! returns it; a queue that is dropped first waits for its I/O.
//!
//! Not here: how a task is carried out (`flight`).

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::error::Error;
use crate::flight::{
    Batch, Crew, EVERY, Ended, Job, LANE_BYTES, Lane, NONE, Object, SyncState, Task, poll_only,
};
use crate::memory::Buffer;
use crate::position::ByteOffset;
use crate::request::{Advice, Completion, Interest, Op, Request};
use crate::state::counters::Count;
use crate::sync::Arc;

/// How a request is served.
enum Service {
    /// By a task, in the background.
    Task(Task),
    /// Immediately, without a task.
    Now,
}

/// A batch queue with an I/O ring of its own. It may move between threads, but only one thread can
/// use it at a time.
///
/// # Examples
/// ```
/// use octavo::{Cache, CacheConfig, Op, PartitionConfig, Request, disk::Store};
/// let cache = Cache::new(CacheConfig::default())?;
/// let partition = cache.partition(PartitionConfig::new("app"))?;
/// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
/// let mut queue = cache.queue()?;
/// let requests = (0..8).map(|page: u64| {
///     let buffer = cache.buffer(4096).expect("the buffer share is large enough");
///     Request { op: Op::Read { offset: page * 4096, len: 4096, buffer }, user_data: page }
/// });
/// queue.submit(&object, requests);
/// while queue.pending() > 0 {
///     queue.wait(1, |completion| completion.result.expect("the store is readable"));
/// }
/// # Ok::<(), octavo::Error>(())
/// ```
pub struct Queue {
    lane: Arc<Lane>,
    /// The batch being submitted. Empty between two submissions; the vector is kept to reuse its
    /// memory.
    incoming: Vec<Request>,
    /// Completions of requests that ended during their submission.
    done: Vec<Completion>,
    /// Tasks being delivered. Empty between two waits; the deque is kept to reuse its memory.
    finished: VecDeque<Ended>,
    /// Requests submitted and not yet delivered.
    pending: usize,
}

impl Queue {
    /// Bytes of the buffer share that a queue takes.
    pub const CHARGED_BYTES: u64 = LANE_BYTES;

    pub(crate) fn new(crew: &Arc<Crew>) -> Result<Queue, Error> {
        Ok(Queue {
            lane: Lane::new(crew, "an I/O ring for this queue")?,
            incoming: Vec::new(),
            done: Vec::new(),
            finished: VecDeque::new(),
            pending: 0,
        })
    }

    /// Submits a batch of requests against `object`. [`wait`](Queue::wait) or
    /// [`wait_or`](Queue::wait_or) delivers one completion for each request, whether it succeeded
    /// or failed.
    ///
    /// Requests run in the background, except advice other than [`Advice::WillNeed`], which runs
    /// during the call.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Op, PartitionConfig, Request, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// # let mut queue = cache.queue()?;
    /// let mut buffer = cache.buffer(4096).expect("the buffer share is large enough");
    /// buffer[..6].copy_from_slice(b"octavo");
    /// let write = Op::Write { offset: 0, len: 6, buffer, durable: true };
    /// queue.submit(&object, [Request { op: write, user_data: 7 }]);
    /// queue.wait(1, |completion| assert!(completion.user_data == 7 && completion.result.is_ok()));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn submit(&mut self, object: &Object, requests: impl IntoIterator<Item = Request>) {
        // Collect all requests before taking the lane's lock: the caller's iterator may read pages
        // of this batch, or panic.
        self.incoming.clear();
        self.incoming.extend(requests);
        self.pending += self.incoming.len();
        let lane = self.lane.clone();
        if lane.shared.is_forked() {
            let refused =
                |Request { user_data, op }| Completion { user_data, op, result: Err(Error::Forked) };
            return self.done.extend(self.incoming.drain(..).map(refused));
        }
        if !Arc::ptr_eq(&lane.shared, &object.inner.partition.shared) {
            let name = object.name();
            let refused = self.incoming.drain(..).map(|Request { user_data, op }| {
                let error =
                    Error::Config(format!("{name}: the object belongs to another cache, not to the queue's"));
                Completion { user_data, op, result: Err(error) }
            });
            return self.done.extend(refused);
        }
        let mut work = lane.work();
        let mut batch = Batch::default();
        let places = &object.inner.partition.places;
        let may_travel = places.messages || places.chooses;
        let batch_requests = if may_travel { self.incoming.len() as u32 } else { 0 };
        let mut requests = std::mem::take(&mut self.incoming);
        for mut request in requests.drain(..) {
            match service(object, &mut request) {
                Ok(Service::Task(mut task)) => {
                    if matches!(task.job, Job::Read | Job::Write { .. }) {
                        task.batch = batch_requests;
                    }
                    task.request = Some((request.user_data, request.op));
                    lane.add(&mut work, &mut batch, task);
                }
                // Release the lane's lock first: such a call borrows a lane itself.
                Ok(Service::Now) => {
                    lane.start_all(&mut work, &mut batch);
                    lane.flush(&mut work);
                    drop(work);
                    lane.leave();
                    let result = advise(object, &request.op);
                    self.done.push(Completion { user_data: request.user_data, op: request.op, result });
                    work = lane.work();
                }
                Err(error) => {
                    let (user_data, op) = (request.user_data, request.op);
                    self.done.push(Completion { user_data, op, result: Err(error) });
                }
            }
        }
        self.incoming = requests;
        lane.start_all(&mut work, &mut batch);
        lane.flush(&mut work);
        drop(work);
        // A sync that found no dirty page is ready for its flush.
        lane.take_ready();
        // Wakes threads that found a page busy because of this queue before the page's I/O was in
        // flight.
        lane.leave();
    }

    /// Returns the number of requests submitted and not yet delivered.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Returns whether nothing is in flight on this queue: no request, and no I/O that the engine
    /// started on its own (such as read-ahead). If so, the caller may sleep anywhere, for any time.
    /// If not, the caller should wait on the queue, because other threads may depend on the I/O
    /// that the queue has started.
    pub fn at_rest(&self) -> bool {
        // In a child of `fork` nothing is in flight. `Lane::at_rest` must not run there: a thread
        // that does not exist in the child may hold the lane's locks.
        self.pending == 0 && (self.lane.shared.is_forked() || self.lane.at_rest())
    }

    /// Waits until at least `min` completions are available (or all, if fewer than `min` requests
    /// are [`pending`](Queue::pending)), and passes every available completion to `on_completion`.
    /// Returns the number delivered. With `min` 0 the call does not wait.
    ///
    /// In a child of `fork`, requests that the parent submitted are no longer pending, because they
    /// complete in the parent.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Op, PartitionConfig, Request, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// # let mut queue = cache.queue()?;
    /// queue.submit(&object, [Request { op: Op::Sync, user_data: 1 }]);
    /// assert_eq!(queue.wait(1, |completion| assert!(completion.result.is_ok())), 1);
    /// assert_eq!(queue.wait(0, |_| ()), 0);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn wait(&mut self, min: usize, on_completion: impl FnMut(Completion)) -> usize {
        if self.lane.shared.is_forked() {
            return self.deliver_refused(on_completion);
        }
        let missing = min.min(self.pending).saturating_sub(self.done.len());
        match missing {
            0 => self.lane.look(),
            _ => self.lane.work_until(|work| work.finished.len() >= missing),
        }
        self.deliver(on_completion)
    }

    /// Waits until a completion is available, `fd` is ready for `interest`, or `timeout` has passed
    /// (`None`: no time limit). Passes every available completion to `on_completion`, and returns
    /// what `fd` is ready for.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Interest, Op, PartitionConfig, Request, disk::Store};
    /// # use std::{os::fd::AsFd, time::Duration};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// # let mut queue = cache.queue()?;
    /// let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("two descriptors");
    /// queue.submit(&object, [Request { op: Op::Sync, user_data: 1 }]);
    /// let interest = Interest { readable: true, writable: false };
    /// while queue.pending() > 0 {
    ///     let second = Some(Duration::from_secs(1));
    ///     let ready = queue.wait_or(socket.as_fd(), interest, second, |_| ());
    ///     assert!(!ready.readable, "the peer sent nothing");
    /// }
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn wait_or(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        timeout: Option<Duration>,
        on_completion: impl FnMut(Completion),
    ) -> Interest {
        let timeout = if self.done.is_empty() { timeout } else { Some(Duration::ZERO) };
        if self.lane.shared.is_forked() {
            self.deliver_refused(on_completion);
            return poll_only(fd, interest, timeout);
        }
        let came = self.lane.work_or(fd, interest, timeout);
        self.deliver(on_completion);
        came
    }

    /// Delivers the completions of requests refused in a child of `fork`.
    fn deliver_refused(&mut self, on_completion: impl FnMut(Completion)) -> usize {
        self.pending = 0;
        let count = self.done.len();
        self.done.drain(..).for_each(on_completion);
        count
    }

    fn deliver(&mut self, mut on_completion: impl FnMut(Completion)) -> usize {
        std::mem::swap(&mut self.lane.work().finished, &mut self.finished);
        let count = self.finished.len() + self.done.len();
        self.pending -= count;
        self.done.drain(..).for_each(&mut on_completion);
        for mut ended in self.finished.drain(..) {
            let (user_data, op) = ended.request.take().expect("a queue's tasks answer requests");
            on_completion(Completion { user_data, op, result: ended.result() });
        }
        count
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.lane.shared.is_forked() {
            // The lane's I/O in flight belongs to the parent.
            std::mem::forget(self.lane.clone());
            return;
        }
        // The I/O in flight still uses slots and buffers.
        if !self.lane.work().tasks.is_empty() {
            self.lane.work_until(|work| work.tasks.is_empty());
        }
    }
}

/// Checks and counts a request, and decides how to serve it.
#[inline(always)]
fn service(object: &Object, request: &mut Request) -> Result<Service, Error> {
    let inner = &object.inner;
    let counters = &inner.partition.counters;
    let sync = || SyncState::new(!object.read_only(), u64::MAX);
    let (job, offset, len, memory) = match &mut request.op {
        Op::Read { offset, len, buffer } => {
            check_buffer(*len, buffer)?;
            counters.add(Count::Reads, 1);
            counters.add(Count::ReadBytes, *len as u64);
            (Job::Read, *offset, *len, buffer.as_mut_ptr())
        }
        Op::Write { offset, len, buffer, durable } => {
            check_buffer(*len, buffer)?;
            inner.check_writable()?;
            if *durable {
                inner.check_not_failed()?;
            }
            counters.add(Count::Writes, 1);
            counters.add(Count::WrittenBytes, *len as u64);
            (Job::Write { durable: *durable }, *offset, *len, buffer.as_mut_ptr())
        }
        Op::Sync => {
            counters.add(Count::Syncs, 1);
            inner.check_open()?;
            inner.check_not_failed()?;
            let pages = if object.read_only() { NONE } else { EVERY };
            return Ok(Service::Task(Task::of_pages(Job::Sync(sync()), inner, pages)));
        }
        Op::SyncRange { offset, len } => {
            counters.add(Count::Syncs, 1);
            inner.check_open()?;
            inner.check_not_failed()?;
            (Job::Sync(sync()), *offset, *len, std::ptr::null_mut())
        }
        Op::Discard { offset, len, durable } => {
            let op = octavo_disk::Op::Discard;
            return Ok(Service::Task(Task::clearing(inner, op, ByteOffset(*offset), *len, *durable)?));
        }
        Op::Zero { offset, len, durable } => {
            let op = octavo_disk::Op::Zero;
            return Ok(Service::Task(Task::clearing(inner, op, ByteOffset(*offset), *len, *durable)?));
        }
        Op::Advise { offset, len, advice: Advice::WillNeed } => {
            (Job::Populate, *offset, object.populate_len(*len), std::ptr::null_mut())
        }
        Op::Advise { .. } => return Ok(Service::Now),
    };
    let offset = ByteOffset(offset);
    inner.check(offset, len as u64)?;
    Ok(Service::Task(Task::new(job, inner.clone(), offset, memory, len)))
}

fn check_buffer(len: usize, buffer: &Buffer) -> Result<(), Error> {
    match len > buffer.len() {
        true => Err(Error::Config(format!(
            "a request for {len} bytes has a buffer of only {} bytes",
            buffer.len()
        ))),
        false => Ok(()),
    }
}

fn advise(object: &Object, op: &Op) -> Result<(), Error> {
    match op {
        Op::Advise { offset, len, advice } => object.advise(*offset, *len, *advice),
        _ => unreachable!("all others are tasks"),
    }
}
