//! [`Worker`]: the thread of one ring. It takes requests from the guest, gives them to the cache
//! and reports their ends.
//!
//! A turn takes the chains that the guest has made available, submits their operations in one
//! batch, collects completions, and signals the guest once. Only a turn in which nothing happened
//! is followed by a wait. Before the wait the worker asks the guest for a kick, and then looks once
//! more, so no request is overlooked.
//!
//! The wait is for a completion or for an epoll descriptor, which has the guest's kicks (edge
//! triggered, so that the worker never reads a descriptor that the guest's side could make block)
//! and the worker's own eventfd, by which a stop or a change of memory wakes it.
//!
//! A guest that breaks the rules of the ring loses the ring: the worker ends what is in flight,
//! and takes no more until the guest resets the device. Not here: messages of the VMM
//! (`device.rs`).

use super::chain::{Broken, Chain, Command, Rules, SECTOR_BYTES, SERIAL_BYTES, Table};
use super::inflight::Tracker;
use super::memory::Memory;
use super::unflushed::Unflushed;
use crate::export::{Kind, Visit};
use crate::journal::Journal;
use crate::latency::{Clock, Timing};
use crate::request::{Request, Verb};
use octavo::{Completion, Interest, Op, Piece, Queue};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use virtio_bindings::virtio_blk as blk;
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue as VirtQueue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

/// The stack of a worker's thread, in bytes. Untouched pages of it cost no memory.
const STACK_BYTES: usize = 256 << 10;

/// The most operations of one batch.
const BATCH_MAX: usize = 64;

/// What a device tells its workers.
pub(super) struct Orders {
    stopping: AtomicBool,
    /// The guest's memory. Replaced when the VMM changes it.
    memory: Mutex<Arc<Memory>>,
    is_memory_new: AtomicBool,
    /// The descriptor that signals the guest. Replaced at any time.
    call: Mutex<Option<File>>,
    /// The guest has asked for writes that are durable when they end.
    is_durable: Arc<AtomicBool>,
    wake: OwnedFd,
}

/// Signals an eventfd. Fails only if nobody has looked at it for 2^64 signals, or, for one that the
/// VMM has sent, if it is no eventfd; then nobody waits for it.
fn signal(event: impl AsFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Orders {
    pub fn new(memory: Arc<Memory>, call: Option<File>, is_durable: Arc<AtomicBool>) -> io::Result<Orders> {
        Ok(Orders {
            stopping: AtomicBool::new(false),
            memory: Mutex::new(memory),
            is_memory_new: AtomicBool::new(false),
            call: Mutex::new(call),
            is_durable,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub fn set_memory(&self, memory: Arc<Memory>) {
        *lock(&self.memory) = memory;
        self.is_memory_new.store(true, SeqCst);
        self.wake();
    }

    /// Replaces the descriptor that signals the guest, and signals it once: the guest may have
    /// missed a signal to the old one.
    pub fn set_call(&self, call: Option<File>) {
        *lock(&self.call) = call;
        self.signal();
    }

    fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        signal(&self.wake);
    }

    /// Signals the guest that requests have ended.
    fn signal(&self) {
        if let Some(call) = &*lock(&self.call) {
            signal(call);
        }
    }
}

/// A ring as the VMM describes it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    pub size: u16,
    pub descriptors: GuestAddress,
    pub available: GuestAddress,
    pub used: GuestAddress,
    /// The index of the next request to take.
    pub next: u16,
    pub has_event_index: bool,
}

/// What a worker needs to begin.
pub(super) struct Start {
    pub name: String,
    pub queue: Queue,
    pub layout: Layout,
    pub kick: File,
    pub orders: Arc<Orders>,
    pub tracker: Option<Tracker>,
    pub unflushed: Arc<Unflushed>,
    pub visit: Visit,
    pub serial: [u8; SERIAL_BYTES],
    pub poll: Duration,
    /// Signals the VMM that the ring is broken.
    pub err: Option<File>,
    pub journal: Journal,
}

/// A running worker.
pub(super) struct Worker {
    orders: Arc<Orders>,
    thread: JoinHandle<u16>,
}

impl Worker {
    /// Starts the thread of a ring.
    pub fn start(start: Start) -> io::Result<Worker> {
        let (orders, name) = (start.orders.clone(), start.name.clone());
        let ring = Ring::new(start)?;
        let thread = thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || ring.run())?;
        Ok(Worker { orders, thread })
    }

    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Stops the thread when everything in flight has ended. Returns the index of the next request
    /// that it would have taken.
    pub fn stop(self) -> Option<u16> {
        self.orders.stop();
        self.thread.join().ok()
    }
}

/// A request between its chain and its end.
struct Running {
    kind: Kind,
    timing: Timing,
    /// Operations of the engine that have not ended.
    operations: u32,
    status_code: u8,
    /// The bytes of data that the device has written if the request succeeds.
    written_bytes: u32,
    /// The bytes of a write.
    len_bytes: u32,
    /// The write was not asked to be durable.
    is_volatile: bool,
    /// A flush: the writes that had ended before it.
    flush: Option<u64>,
    status: GuestAddress,
    memory: Arc<Memory>,
}

struct Ring {
    queue: Queue,
    ring: VirtQueue,
    epoll: OwnedFd,
    /// Kept open while its kicks are waited for.
    _kick: File,
    orders: Arc<Orders>,
    memory: Arc<Memory>,
    tracker: Option<Tracker>,
    unflushed: Arc<Unflushed>,
    visit: Visit,
    serial: [u8; SERIAL_BYTES],
    poll: Duration,
    err: Option<File>,
    journal: Journal,
    clock: Clock,
    /// By the head of its chain.
    running: Vec<Option<Running>>,
    in_flight: usize,
    chain: Chain,
    pieces: Vec<Piece>,
    batch: Vec<octavo::Request>,
    ended: Vec<Completion>,
    /// The guest was given requests back that it does not know of yet.
    has_news: bool,
}

impl Ring {
    fn new(start: Start) -> io::Result<Ring> {
        let Start {
            queue, layout, kick, orders, tracker, unflushed, visit, serial, poll, err, journal, ..
        } = start;
        let wrong = |error: virtio_queue::Error| io::Error::other(format!("the ring: {error}"));
        let mut ring = VirtQueue::new(layout.size).map_err(wrong)?;
        ring.try_set_size(layout.size).map_err(wrong)?;
        ring.try_set_desc_table_address(layout.descriptors).map_err(wrong)?;
        ring.try_set_avail_ring_address(layout.available).map_err(wrong)?;
        ring.try_set_used_ring_address(layout.used).map_err(wrong)?;
        ring.set_event_idx(layout.has_event_index);
        ring.set_next_avail(layout.next);
        ring.set_ready(true);
        let memory = lock(&orders.memory).clone();
        if !ring.is_valid(memory.guest()) {
            return Err(io::Error::other("the ring does not lie in the guest's memory"));
        }
        let used = ring.used_idx(memory.guest(), SeqCst).map_err(wrong)?.0;
        ring.set_next_used(used);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &orders.wake, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&epoll, &kick, EventData::new_u64(1), EventFlags::IN | EventFlags::ET)?;
        Ok(Ring {
            queue,
            running: (0..layout.size).map(|_| None).collect(),
            ring,
            epoll,
            _kick: kick,
            orders,
            memory,
            tracker,
            unflushed,
            visit,
            serial,
            poll,
            err,
            journal,
            clock: Clock::default(),
            in_flight: 0,
            chain: Chain::default(),
            pieces: Vec::new(),
            batch: Vec::with_capacity(BATCH_MAX),
            ended: Vec::new(),
            has_news: false,
        })
    }

    /// Serves the ring until it is stopped. Returns the index of the next request.
    fn run(mut self) -> u16 {
        if let Err(Broken(why)) = self.resume().and_then(|()| self.serve()) {
            self.visit.counts.broken();
            self.journal.warn(format_args!("the device is broken until the guest resets it: {why}"));
            if let Some(err) = &self.err {
                signal(err);
            }
            // The guest's memory stays mapped until the operations have ended.
            while self.queue.pending() > 0 {
                self.queue.wait(1, drop);
            }
        }
        self.ring.next_avail()
    }

    /// Repeats what a predecessor has left unfinished (I3, I4).
    fn resume(&mut self) -> Result<(), Broken> {
        let used = self.ring.next_used();
        let Some(tracker) = &mut self.tracker else { return Ok(()) };
        let left = tracker.resume(used).map_err(|error| {
            self.journal.warn(format_args!("{error}"));
            Broken("the record of requests in flight cannot be used")
        })?;
        if left.is_unflushed {
            return Err(Broken(
                "the server before this one ended with writes that only its memory had; the guest has lost them",
            ));
        }
        if left.heads.is_empty() {
            return Ok(());
        }
        self.journal.note(format_args!("repeating {} requests that were in flight", left.heads.len()));
        self.ring.set_next_avail(used.wrapping_add(left.heads.len() as u16));
        // One after the other: their order is that of their numbers, and the engine has none.
        for head in left.heads {
            self.begin(head, false)?;
            self.submit();
            while self.in_flight > 0 {
                self.collect(1)?;
            }
        }
        self.tell()
    }

    fn serve(&mut self) -> Result<(), Broken> {
        loop {
            let is_stopping = self.orders.stopping.load(SeqCst);
            if self.orders.is_memory_new.swap(false, SeqCst) {
                self.memory = lock(&self.orders.memory).clone();
            }
            let mut any = !is_stopping && self.take()?;
            any |= self.collect(0)?;
            self.tell()?;
            self.check_memory()?;
            if any {
                continue;
            }
            match (is_stopping, self.in_flight) {
                (true, 0) => return Ok(()),
                (true, _) => drop(self.collect(1)?),
                (false, _) => self.wait()?,
            }
        }
    }

    /// Takes the chains that are available. Returns whether there were any.
    fn take(&mut self) -> Result<bool, Broken> {
        let mut any = false;
        self.clock.begin_phase();
        // Not until the ring is empty: a guest could fill it for ever.
        for _ in 0..BATCH_MAX {
            let next = self.ring.iter(self.memory.guest()).map(|mut heads| heads.next());
            let Some(chain) = next.map_err(|_| Broken("the available ring is not a ring"))? else { break };
            self.begin(chain.head_index(), true)?;
            any = true;
        }
        self.submit();
        Ok(any)
    }

    /// Begins the request of a chain.
    fn begin(&mut self, head: u16, is_new: bool) -> Result<(), Broken> {
        let memory = self.memory.clone();
        if self.running.get(usize::from(head)).is_none_or(|running| running.is_some()) {
            return Err(Broken("a request that is in flight was made available again"));
        }
        let table = Table { start: GuestAddress(self.ring.desc_table()), count: self.ring.size() };
        self.chain.read(&memory, table, head)?;
        let object = &self.visit.served.export.object;
        let rules = Rules {
            len_bytes: object.len_bytes() / SECTOR_BYTES * SECTOR_BYTES,
            read_only: self.visit.served.read_only(),
            is_durable: self.orders.is_durable.load(SeqCst),
        };
        let command = self.chain.command(&memory, &rules)?;
        if let Some(tracker) = self.tracker.as_mut().filter(|_| is_new) {
            tracker.begin(head);
        }
        self.visit.counts.received();
        self.in_flight += 1;
        let running = Running {
            kind: Kind::Unknown,
            timing: self.clock.take(),
            operations: 0,
            status_code: blk::VIRTIO_BLK_S_OK as u8,
            written_bytes: 0,
            len_bytes: 0,
            is_volatile: false,
            flush: None,
            status: self.chain.status,
            memory: memory.clone(),
        };
        self.running[usize::from(head)] = Some(running);
        match command {
            Command::Transfer(request) => self.begin_transfer(head, request, &memory),
            Command::Clear(requests) => {
                requests.into_iter().for_each(|request| self.issue_clear(head, request));
                Ok(())
            }
            Command::GetId => {
                let written = self.chain.put(&memory, &self.serial)?;
                self.get(head).written_bytes = written as u32;
                self.end(head)
            }
            Command::Unsupported => self.end_with(head, blk::VIRTIO_BLK_S_UNSUPP),
            Command::Refused => self.end_with(head, blk::VIRTIO_BLK_S_IOERR),
        }
    }

    fn begin_transfer(&mut self, head: u16, request: Request, memory: &Arc<Memory>) -> Result<(), Broken> {
        let Request { offset_bytes: offset, len_bytes, verb, durable, .. } = request;
        let op = match verb {
            Verb::Flush => {
                let begun = self.unflushed.begin_flush();
                let running = self.get(head);
                (running.kind, running.flush) = (Kind::Flush, Some(begun));
                Op::Sync
            }
            Verb::Write => {
                let (memory, running) = (self.lend(verb, memory)?, self.get(head));
                (running.kind, running.is_volatile, running.len_bytes) = (Kind::Write, !durable, len_bytes);
                Op::WriteFrom { offset, memory, durable }
            }
            _ => {
                let (memory, running) = (self.lend(verb, memory)?, self.get(head));
                (running.kind, running.written_bytes, running.len_bytes) = (Kind::Read, len_bytes, len_bytes);
                Op::ReadInto { offset, memory }
            }
        };
        self.issue(head, op);
        Ok(())
    }

    /// Lends the cache the data of the chain's request.
    fn lend(&mut self, verb: Verb, memory: &Arc<Memory>) -> Result<octavo::Memory, Broken> {
        self.chain.pieces(verb, memory, &mut self.pieces)?;
        Ok(memory.lend(&self.pieces))
    }

    fn issue_clear(&mut self, head: u16, request: Request) {
        let Request { offset_bytes: offset, len_bytes, verb, durable, .. } = request;
        let (len, running) = (u64::from(len_bytes), self.get(head));
        running.is_volatile |= !durable;
        let op = match verb {
            Verb::Zero { hole: false } => {
                running.kind = Kind::Zeroes;
                Op::Zero { offset, len, durable }
            }
            _ => {
                running.kind = if verb == Verb::Discard { Kind::Trim } else { Kind::Zeroes };
                Op::Discard { offset, len, durable }
            }
        };
        self.issue(head, op);
    }

    fn issue(&mut self, head: u16, op: Op) {
        self.get(head).operations += 1;
        self.batch.push(octavo::Request { op, user_data: u64::from(head) });
    }

    fn submit(&mut self) {
        if !self.batch.is_empty() {
            self.queue.submit(&self.visit.served.export.object, self.batch.drain(..));
        }
    }

    fn get(&mut self, head: u16) -> &mut Running {
        let running = self.running[usize::from(head)].as_mut();
        running.expect("a request runs from its chain to its last operation")
    }

    /// Takes completions, after waiting for `min` of them. Returns whether there were any.
    fn collect(&mut self, min: usize) -> Result<bool, Broken> {
        if self.queue.pending() == 0 {
            return Ok(false);
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.queue.wait(min, |completion| ended.push(completion));
        self.take_ended(ended)
    }

    fn take_ended(&mut self, mut ended: Vec<Completion>) -> Result<bool, Broken> {
        let any = !ended.is_empty();
        self.clock.begin_phase();
        let result = ended.drain(..).try_for_each(|completion| self.complete(completion));
        self.ended = ended;
        result.map(|()| any)
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Broken> {
        let head = completion.user_data as u16;
        if let Err(error) = &completion.result {
            self.journal.warn(format_args!("{error}"));
            self.get(head).status_code = blk::VIRTIO_BLK_S_IOERR as u8;
        }
        self.get(head).timing.note(&completion);
        // Before the end of the request: the guest may then take its memory back.
        drop(completion);
        let running = self.get(head);
        running.operations -= 1;
        match running.operations {
            0 => self.end(head),
            _ => Ok(()),
        }
    }

    fn end_with(&mut self, head: u16, status_code: u32) -> Result<(), Broken> {
        self.get(head).status_code = status_code as u8;
        self.end(head)
    }

    /// Reports the end of a request to the guest.
    fn end(&mut self, head: u16) -> Result<(), Broken> {
        let running = self.running[usize::from(head)].take().expect("the request runs");
        let is_good = running.status_code == blk::VIRTIO_BLK_S_OK as u8;
        self.in_flight -= 1;
        if running.is_volatile && is_good {
            self.unflushed.note_write();
        }
        if let Some(begun) = running.flush.filter(|_| is_good) {
            self.unflushed.end_flush(begun);
        }
        running
            .memory
            .guest()
            .write_obj(running.status_code, running.status)
            .map_err(|_| Broken::DESCRIPTOR)?;
        if let Some(tracker) = &self.tracker {
            tracker.before_use(head);
        }
        // The status counts as written.
        let written_bytes = if is_good { running.written_bytes.saturating_add(1) } else { 1 };
        self.ring
            .add_used(self.memory.guest(), head, written_bytes)
            .map_err(|_| Broken("the used ring leads out of the guest's memory"))?;
        if let Some(tracker) = &self.tracker {
            tracker.after_use(head, self.ring.next_used());
        }
        self.has_news = true;
        let counts = &self.visit.counts;
        counts.ended(running.kind, running.timing, &mut self.clock, !is_good);
        match running.kind {
            Kind::Read if is_good => counts.read(running.len_bytes),
            Kind::Write if is_good => counts.written(running.len_bytes),
            _ => {}
        }
        Ok(())
    }

    /// Signals the guest if requests have ended and it wants to know.
    fn tell(&mut self) -> Result<(), Broken> {
        if !std::mem::take(&mut self.has_news) {
            return Ok(());
        }
        let guest = self.memory.guest();
        let mut wanted = self.ring.needs_notification(guest).map_err(|_| Broken::RING)?;
        if !self.ring.event_idx_enabled() {
            // `virtio-queue` does not look at this flag.
            let flags = guest.load::<u16>(GuestAddress(self.ring.avail_ring()), SeqCst);
            let flags = flags.map_err(|_| Broken::RING)?;
            wanted &= u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0;
        }
        if wanted {
            self.orders.signal();
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<(), Broken> {
        let is_lost = self.memory.is_lost() || self.tracker.as_ref().is_some_and(Tracker::is_lost);
        (!is_lost).then_some(()).ok_or(Broken("a file of the guest's memory has shrunk"))
    }

    /// Waits for a kick, an order or a completion.
    fn wait(&mut self) -> Result<(), Broken> {
        if self.poll > Duration::ZERO && self.spin()? {
            return Ok(());
        }
        if self.ring.enable_notification(self.memory.guest()).map_err(|_| Broken::RING)? {
            return Ok(());
        }
        let mut ended = std::mem::take(&mut self.ended);
        let interest = Interest { readable: true, writable: false };
        let came =
            self.queue.wait_or(self.epoll.as_fd(), interest, None, |completion| ended.push(completion));
        if came.readable {
            self.take_events();
        }
        self.take_ended(ended)?;
        self.ring.disable_notification(self.memory.guest()).map_err(|_| Broken::RING)
    }

    /// Looks for work for `poll`. Returns whether there is any.
    fn spin(&mut self) -> Result<bool, Broken> {
        let until = Instant::now() + self.poll;
        loop {
            let available = self.ring.avail_idx(self.memory.guest(), SeqCst);
            let available = available.map_err(|_| Broken::RING)?;
            if available.0 != self.ring.next_avail() || self.collect(0)? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Takes the edges of kicks, and the worker's own wake-ups.
    fn take_events(&self) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 2];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Whatever came, the next turn looks at everything.
        let _ = epoll::wait(&self.epoll, &mut events[..], Some(&now));
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.orders.wake, &mut count);
    }
}
