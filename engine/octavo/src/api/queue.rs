//! The batch queue: callers submit batches of requests and take completions in any order
//! (HotStorage '12: `access(requests, n)` and `wait_replies`).
//!
//! Hits complete while the batch is submitted. All misses go to the ring in one submission, and
//! adjacent ones share an I/O. A buffer belongs to the queue from `submit` until its completion
//! returns it; a queue that is dropped first waits for its I/O.
//!
//! No lock is held while a caller's callback runs, and each completion leaves the queue before it
//! is passed on. A callback that panics loses its own completion only.
//!
//! Not here: how a task is carried out (`flight`), how a queue makes its descriptor readable
//! (`flight/descriptor.rs`).

mod service;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use self::service::{Service, advise, service};
use crate::error::Error;
use crate::flight::{Batch, Crew, Descriptor, Ended, Job, LANE_BYTES, Lane, Object, poll_only};
use crate::position::ByteOffset;
use crate::request::{Completion, Interest, Request};
use crate::sync::{Arc, Ordering};
use crate::wait::Mailbox;

/// A batch queue with an I/O ring of its own. It may move between threads, but only one thread can
/// use it at a time.
///
/// Three ways to take completions:
/// - [`wait_next`](Queue::wait_next) and [`take_next`](Queue::take_next) return one at a time. The
///   caller may submit further requests in between.
/// - [`wait`](Queue::wait) and [`wait_or`](Queue::wait_or) pass all available ones to a callback.
/// - In an event loop of the caller's own, the queue's [descriptor](Queue#impl-AsFd-for-Queue) says
///   when there is something to take.
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
    done: VecDeque<Completion>,
    /// Ended tasks that were taken from the lane and not delivered yet.
    finished: VecDeque<Ended>,
    /// Requests submitted and not yet delivered.
    pending: usize,
    /// Made by the first call that asks for it.
    descriptor: OnceLock<Descriptor>,
}

/// Ends waits of a [`Queue`] from other threads. See [`Queue::waker`].
#[derive(Clone)]
pub struct QueueWaker(Arc<Mailbox>);

impl std::fmt::Debug for QueueWaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueueWaker")
    }
}

impl QueueWaker {
    /// Ends the queue's wait. If its owner does not wait, the next wait ends at once.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// A call of a queue's owner. When it ends, also by a panic of a callback, the queue's descriptor
/// is armed again.
struct Call<'q>(&'q mut Queue);

impl<'q> Call<'q> {
    #[inline(always)]
    fn begin(queue: &'q mut Queue) -> Call<'q> {
        if queue.descriptor.get().is_some() {
            // The owner is awake. `arm` looks for the news of senders that do not wake it.
            queue.lane.mailbox.unpark();
        }
        Call(queue)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.arm();
    }
}

impl Queue {
    /// Bytes of the buffer share that a queue takes.
    pub const CHARGED_BYTES: u64 = LANE_BYTES;

    pub(crate) fn new(crew: &Arc<Crew>) -> Result<Queue, Error> {
        let lane = Lane::new(crew, "an I/O ring for this queue")?;
        // Relaxed: a figure alone.
        crew.queues.fetch_add(1, Ordering::Relaxed);
        Ok(Queue {
            lane,
            incoming: Vec::new(),
            done: VecDeque::new(),
            finished: VecDeque::new(),
            pending: 0,
            descriptor: OnceLock::new(),
        })
    }

    /// Submits a batch of requests against `object`. Each request ends with one completion, whether
    /// it succeeded or failed, in any order.
    ///
    /// Requests run in the background, except advice other than
    /// [`WillNeed`](crate::Advice::WillNeed), which runs during the call.
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
        Call::begin(self).0.start(object);
    }

    /// Starts the requests of `incoming`.
    #[inline(always)]
    fn start(&mut self, object: &Object) {
        self.pending += self.incoming.len();
        let lane = self.lane.clone();
        if lane.shared.is_forked() {
            let refused = |Request { user_data, op }| Completion {
                user_data,
                op,
                result: Err(Error::Forked),
                at_once: true,
            };
            return self.done.extend(self.incoming.drain(..).map(refused));
        }
        if !Arc::ptr_eq(&lane.shared, &object.inner.partition.shared) {
            let name = object.name();
            let refused = self.incoming.drain(..).map(|Request { user_data, op }| {
                let error =
                    Error::Config(format!("{name}: the object belongs to another cache, not to the queue's"));
                Completion { user_data, op, result: Err(error), at_once: true }
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
                    let Request { user_data, op } = request;
                    self.done.push_back(Completion { user_data, op, result, at_once: true });
                    work = lane.work();
                }
                Err(error) => {
                    let (user_data, op) = (request.user_data, request.op);
                    self.done.push_back(Completion { user_data, op, result: Err(error), at_once: true });
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

    /// Tells the cache that the caller has read a range of resident bytes without this queue, by
    /// pins for example. Reads ahead, in the background, if the range belongs to a sequential
    /// stream that has come to what was read ahead last. Requests to the queue do this themselves.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// # let mut queue = cache.queue()?;
    /// # object.read_at(8192, &mut [0])?;
    /// if let Some(pin) = object.try_pin(8192)? {
    ///     queue.note_hit(&object, 8192, pin.len() as u64);
    /// }
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn note_hit(&mut self, object: &Object, offset: u64, len: u64) {
        let inner = &object.inner;
        let pages = inner.partition.page_size.page_range(ByteOffset(offset), len);
        let shared = &inner.partition.shared;
        if !inner.streams.has_marker(&pages) || shared.is_forked() || !Arc::ptr_eq(&self.lane.shared, shared)
        {
            return;
        }
        Call::begin(self).0.lane.note_hit(inner, &pages);
    }

    /// Returns the number of requests submitted and not yet delivered.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Returns whether nothing is in flight on this queue: no request, and no I/O that the engine
    /// started on its own (such as read-ahead). If so, the caller may sleep anywhere, for any time.
    /// If not, the caller should wait on the queue or on its descriptor: nothing else wakes it when
    /// a request completes.
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
        let call = Call::begin(self);
        call.0.gather(min);
        call.0.deliver(on_completion)
    }

    /// Waits for a completion and returns it. Returns `None` if no request is
    /// [`pending`](Queue::pending). The caller may submit further requests before it calls again.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Op, PartitionConfig, Request, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// # let mut queue = cache.queue()?;
    /// // Reads page 0, then pages 1 to 9 one after the other, in the same buffer.
    /// let read = |page: u64, buffer| Request {
    ///     op: Op::Read { offset: page * 4096, len: 4096, buffer },
    ///     user_data: page,
    /// };
    /// queue.submit(&object, [read(0, vec![0; 4096].into())]);
    /// while let Some(completion) = queue.wait_next() {
    ///     completion.result?;
    ///     if let (Op::Read { buffer, .. }, 0..9) = (completion.op, completion.user_data) {
    ///         queue.submit(&object, [read(completion.user_data + 1, buffer)]);
    ///     }
    /// }
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn wait_next(&mut self) -> Option<Completion> {
        self.next(1)
    }

    /// Returns a completion if one is available. Does not wait.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Op, PartitionConfig, Request, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// # let mut queue = cache.queue()?;
    /// assert!(queue.take_next().is_none(), "nothing is pending");
    /// queue.submit(&object, [Request { op: Op::Sync, user_data: 1 }]);
    /// while queue.pending() > 0 {
    ///     if let Some(completion) = queue.take_next() {
    ///         assert_eq!(completion.user_data, 1);
    ///     }
    /// }
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn take_next(&mut self) -> Option<Completion> {
        self.next(0)
    }

    fn next(&mut self, min: usize) -> Option<Completion> {
        if let Some(completion) = self.pop() {
            return Some(completion);
        }
        let call = Call::begin(self);
        call.0.gather(min);
        call.0.pop()
    }

    /// Returns a handle by which other threads end a [`wait_or`](Self::wait_or) of this queue, so
    /// that its owner looks at something else. A queue without a descriptor of its own, which the
    /// system has refused, is not woken.
    pub fn waker(&self) -> QueueWaker {
        QueueWaker(self.lane.mailbox.clone())
    }

    /// Waits until a completion is available, `fd` is ready for `interest`, or `timeout` has passed
    /// (`None`: no time limit). Passes every available completion to `on_completion`, and returns
    /// what `fd` is ready for. May return early with none of these: call it in a loop.
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
        let timeout = if self.undelivered() == 0 { timeout } else { Some(Duration::ZERO) };
        let call = Call::begin(self);
        if call.0.lane.shared.is_forked() {
            call.0.deliver(on_completion);
            return poll_only(fd, interest, timeout);
        }
        let came = call.0.lane.work_or(fd, interest, timeout);
        call.0.take_finished();
        call.0.deliver(on_completion);
        came
    }

    /// Returns the queue's [descriptor](Queue#impl-AsFd-for-Queue), and makes it if this is the
    /// first call. Until then the queue has none, which is cheaper.
    ///
    /// # Errors
    /// [`Error::Config`] if the system has no descriptor left for it; [`wait`](Queue::wait) and
    /// [`wait_or`](Queue::wait_or) still work. [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let queue = cache.queue()?;
    /// queue.poll_fd()?;
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.lane.shared.check_process()?;
        if let Some(descriptor) = self.descriptor.get() {
            return Ok(descriptor.as_fd());
        }
        let made = Descriptor::new(&self.lane)?;
        let descriptor = self.descriptor.get_or_init(|| made);
        self.arm();
        Ok(descriptor.as_fd())
    }

    /// Whether the descriptor would be readable. The model checker has none.
    #[cfg(shuttle)]
    pub fn is_readable(&self) -> bool {
        self.descriptor.get().is_some_and(|descriptor| descriptor.is_readable(&self.lane))
    }

    /// Number of completions that the queue has taken from its lane and not delivered.
    fn undelivered(&self) -> usize {
        self.done.len() + self.finished.len()
    }

    /// Waits until `min` completions are at hand, or all that are pending, and takes all others
    /// that are available.
    fn gather(&mut self, min: usize) {
        if self.lane.shared.is_forked() {
            // Requests that the parent submitted complete there.
            self.pending = self.undelivered();
            return;
        }
        match min.min(self.pending).saturating_sub(self.undelivered()) {
            0 => {
                match self.descriptor.get() {
                    Some(_) => self.lane.look_awake(),
                    None => self.lane.look(),
                }
                // The look may have started I/O, which threads that wait for its pages must learn
                // of.
                self.lane.leave();
            }
            missing => self.lane.work_until(|work| work.finished.len() >= missing),
        }
        self.take_finished();
    }

    /// Takes the tasks that have ended.
    fn take_finished(&mut self) {
        let mut work = self.lane.work();
        match self.finished.is_empty() {
            true => std::mem::swap(&mut work.finished, &mut self.finished),
            false => self.finished.append(&mut work.finished),
        }
    }

    /// Takes a completion that is at hand.
    fn pop(&mut self) -> Option<Completion> {
        let completion = self.done.pop_front().or_else(|| {
            let mut ended = self.finished.pop_front()?;
            let (user_data, op) = ended.request.take().expect("a queue's tasks answer requests");
            let at_once = ended.at_once;
            Some(Completion { user_data, op, result: ended.result(), at_once })
        })?;
        self.pending -= 1;
        Some(completion)
    }

    /// Passes on the completions that are at hand.
    fn deliver(&mut self, mut on_completion: impl FnMut(Completion)) -> usize {
        let mut count = 0;
        while let Some(completion) = self.pop() {
            count += 1;
            on_completion(completion);
        }
        count
    }

    /// Lets the descriptor, if there is one, say whether the queue needs another call.
    fn arm(&self) {
        if let Some(descriptor) = self.descriptor.get()
            && !self.lane.shared.is_forked()
        {
            descriptor.arm(&self.lane, self.undelivered() > 0);
        }
    }
}

/// A descriptor for an event loop of the caller's own: `poll`, `epoll`, an async runtime. It is
/// readable while the queue has completions to take, or work to do for its requests. The caller
/// then takes completions until there are none ([`take_next`](Queue::take_next), or
/// [`wait`](Queue::wait) with `min` 0), and sleeps again. It may also be readable for no reason.
///
/// While the caller sleeps, other threads take the queue's completions if they need its pages, and
/// no other thread needs the caller to come back. A caller that stops polling delays only its own
/// requests.
///
/// # Panics
/// If the descriptor cannot be made. [`poll_fd`](Queue::poll_fd) returns the error instead; after
/// it has succeeded once, this never panics.
///
/// # Examples
/// A loop that needs no `unsafe`. With tokio, the queue goes into an `AsyncFd`, and
/// `readable().await` with `clear_ready` takes the place of `poll`.
/// ```
/// # use octavo::{Cache, CacheConfig, Op, PartitionConfig, Request, disk::Store};
/// use rustix::event::{PollFd, PollFlags, poll};
/// # let cache = Cache::new(CacheConfig::default())?;
/// # let partition = cache.partition(PartitionConfig::new("app"))?;
/// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
/// let mut queue = cache.queue()?;
/// queue.poll_fd()?;
/// let read = |page: u64| Request {
///     op: Op::Read { offset: page * 4096, len: 4096, buffer: vec![0; 4096].into() },
///     user_data: page,
/// };
/// queue.submit(&object, (0..8).map(read));
/// let mut bytes = 0;
/// loop {
///     while let Some(completion) = queue.take_next() {
///         completion.result?;
///         bytes += 4096;
///     }
///     if queue.pending() == 0 {
///         break;
///     }
///     // Other descriptors, such as sockets, go here, too. The call may end with EINTR, also
///     // without a signal: the kernel posts completions in this thread.
///     let _ = poll(&mut [PollFd::new(&queue, PollFlags::IN)], None);
/// }
/// assert_eq!(bytes, 8 * 4096);
/// # Ok::<(), octavo::Error>(())
/// ```
impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.descriptor.get() {
            // Also in a child of `fork`, where nothing makes it.
            Some(descriptor) => descriptor.as_fd(),
            None => self.poll_fd().expect("poll_fd returns this error"),
        }
    }
}

/// See [`AsFd`](Queue#impl-AsFd-for-Queue).
impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.lane.shared.is_forked() {
            // The lane's I/O in flight belongs to the parent. The requests leak with it, and with
            // them their memory.
            std::mem::forget(self.lane.clone());
            if let Some(descriptor) = self.descriptor.take() {
                descriptor.leave_to_the_parent();
            }
            return;
        }
        if let Some(descriptor) = self.descriptor.take() {
            descriptor.disarm(&self.lane);
        }
        // The I/O in flight still uses slots and buffers.
        if !self.lane.work().tasks.is_empty() {
            self.lane.work_until(|work| work.tasks.is_empty());
        }
        self.lane.crew.queues.fetch_sub(1, Ordering::Relaxed);
    }
}
