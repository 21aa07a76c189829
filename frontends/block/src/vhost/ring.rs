//! [`Ring`]: the work of a ring's thread. It takes requests from the guest, submits them to the
//! cache and reports their completion.
//!
//! A turn takes the chains that the guest has made available, submits their operations in one
//! batch, collects completions, and signals the guest once. Only a turn in which nothing happened
//! is followed by a wait. Before the wait the worker asks the guest for a kick, and then looks once
//! more, so no request is overlooked.
//!
//! Reads of single resident pages are served while chains are taken, and need no operation
//! (`reads.rs`).
//!
//! The wait is for a completion or for the worker's events (`events.rs`). With nothing in flight it
//! is one system call.
//!
//! A guest that breaks the rules of the ring loses the ring: the worker ends what is in flight,
//! and takes no more until the guest resets the device. Not here: the thread
//! (`worker.rs`), messages of the VMM (`device.rs`).

pub(super) mod alone;

use super::chain::{Broken, Chain, Command, Rules, SECTOR_BYTES, SERIAL_BYTES, Table};
use super::events::{Events, NOW};
use super::inflight::Tracker;
use super::layout::Layout;
use super::memory::Memory;
use super::orders::{Orders, lock, signal};
use super::reads::{Read, Reads};
use super::unflushed::Unflushed;
use crate::export::{Kind, Visit};
use crate::journal::Journal;
use crate::latency::{Clock, Timing};
use crate::request::{Request, Verb};
use crate::spin::{self, Spin};
use octavo::{Completion, Interest, Op, Piece, Queue};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use virtio_bindings::virtio_blk as blk;
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue as VirtQueue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

/// The most operations of one batch.
const BATCH_MAX: usize = 64;

/// A turn signals a sleeping guest after this many completions: the guest then wakes up while the
/// worker serves the rest of the turn. A guest that is awake asks for no signal.
const TELL_EVERY: usize = 8;

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

/// A request between its chain and its end.
struct Running {
    kind: Kind,
    timing: Timing,
    /// Operations of the engine that have not completed.
    operations: u32,
    status_code: u8,
    /// The bytes of data that the device has written if the request succeeds.
    written_bytes: u32,
    /// The bytes of a write.
    len_bytes: u32,
    /// The write was not asked to be durable.
    is_volatile: bool,
    /// A flush: the writes that had completed before it.
    flush: Option<u64>,
    status: GuestAddress,
    memory: Arc<Memory>,
}

pub(super) struct Ring {
    queue: Queue,
    ring: VirtQueue,
    events: Events,
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
    /// The reads of this turn that took no operation, and when they were taken.
    hits: Option<(u32, Timing)>,
    /// By the head of its chain. Boxed: most entries are never used, and hits use none.
    running: Vec<Option<Box<Running>>>,
    in_flight: usize,
    chain: Chain,
    pieces: Vec<Piece>,
    reads: Reads,
    batch: Vec<octavo::Request>,
    ended: Vec<Completion>,
    /// Requests that were given back to the guest since the last signal.
    news: usize,
    spin: Spin,
}

impl Ring {
    pub fn new(start: Start) -> io::Result<Ring> {
        let Start {
            queue, layout, kick, orders, tracker, unflushed, visit, serial, poll, err, journal, ..
        } = start;
        let memory = lock(&orders.memory).clone();
        let ring = layout.ring(&memory)?;
        let events = Events::new(kick, &orders)?;
        Ok(Ring {
            queue,
            running: (0..layout.size).map(|_| None).collect(),
            ring,
            events,
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
            hits: None,
            in_flight: 0,
            chain: Chain::default(),
            pieces: Vec::new(),
            reads: Reads::default(),
            batch: Vec::with_capacity(BATCH_MAX),
            ended: Vec::new(),
            news: 0,
            spin: Spin::default(),
        })
    }

    /// Serves the ring until it is stopped. Returns the index of the next request.
    pub fn run(mut self) -> u16 {
        if self.ring.next_used() != 0 {
            // A predecessor may have been killed between the used ring and the signal. Where the
            // guest asks for signals by index, no later one would come.
            self.orders.signal();
        }
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
        let memory = self.memory.clone();
        for head in left.heads {
            self.begin(&memory, head, false)?;
            self.serve_reads(&memory)?;
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
            self.renew_memory();
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

    /// Takes the memory that the VMM has set, if it is new. Returns whether it is.
    fn renew_memory(&mut self) -> bool {
        let is_new = self.orders.is_memory_new.load(SeqCst) && self.orders.is_memory_new.swap(false, SeqCst);
        if is_new {
            self.memory = lock(&self.orders.memory).clone();
        }
        is_new
    }

    /// Takes the chains that are available. Returns whether there were any.
    fn take(&mut self) -> Result<bool, Broken> {
        let mut any = false;
        self.clock.begin_phase();
        // Not until the ring is empty: a guest could fill it for ever.
        let mut memory = self.memory.clone();
        for _ in 0..BATCH_MAX {
            let next = self.ring.iter(memory.guest()).map(|mut heads| heads.next());
            let next = next.map_err(|_| Broken("the available ring is not a ring"))?;
            let Some(head) = next.map(|chain| chain.head_index()) else { break };
            // After the chain was seen: the guest may use memory that the VMM has just added.
            if self.renew_memory() {
                self.serve_reads(&memory)?;
                memory = self.memory.clone();
            }
            self.begin(&memory, head, true)?;
            if self.reads.is_full() {
                self.serve_reads(&memory)?;
            }
            any = true;
        }
        self.serve_reads(&memory)?;
        if let Some((count, taken)) = self.hits.take() {
            // Their time ends with the batch, because one signal announces all of them.
            self.clock.begin_phase();
            (0..count).for_each(|_| self.visit.counts.ended(Kind::Read, taken, &mut self.clock, false));
        }
        self.submit();
        Ok(any)
    }

    /// Begins the request of a chain.
    fn begin(&mut self, memory: &Arc<Memory>, head: u16, is_new: bool) -> Result<(), Broken> {
        if self.running.get(usize::from(head)).is_none_or(|running| running.is_some()) || self.reads.has(head)
        {
            return Err(Broken("a request that is in flight was made available again"));
        }
        let table = Table { start: GuestAddress(self.ring.desc_table()), count: self.ring.size() };
        self.chain.read(memory, table, head)?;
        let object = &self.visit.served.export.object;
        let rules = Rules {
            len_bytes: object.len_bytes() / SECTOR_BYTES * SECTOR_BYTES,
            read_only: self.visit.served.read_only(),
            is_durable: self.orders.is_durable.load(SeqCst),
        };
        let command = self.chain.command(memory, &rules)?;
        if let Some(tracker) = self.tracker.as_mut().filter(|_| is_new) {
            tracker.begin(head);
        }
        self.visit.counts.received();
        if let Command::Transfer(request) = &command
            && let Some(read) = self.read_of_page(head, request, memory)?
        {
            self.reads.push(read);
            return Ok(());
        }
        self.enter(head, self.chain.status, memory);
        match command {
            Command::Transfer(request) => self.begin_transfer(head, request, memory),
            Command::Clear(requests) => {
                requests.into_iter().for_each(|request| self.issue_clear(head, request));
                Ok(())
            }
            Command::GetId => {
                let written = self.chain.put(memory, &self.serial)?;
                self.get(head).written_bytes = written as u32;
                self.end(head)
            }
            Command::Unsupported => self.end_with(head, blk::VIRTIO_BLK_S_UNSUPP),
            Command::Refused => self.end_with(head, blk::VIRTIO_BLK_S_IOERR),
        }
    }

    /// Makes an entry for a request that takes an operation.
    fn enter(&mut self, head: u16, status: GuestAddress, memory: &Arc<Memory>) {
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
            status,
            memory: memory.clone(),
        };
        self.running[usize::from(head)] = Some(Box::new(running));
    }

    /// Returns a read whose bytes lie in one page and go to one place.
    fn read_of_page(
        &mut self,
        head: u16,
        request: &Request,
        memory: &Memory,
    ) -> Result<Option<Read>, Broken> {
        let Request { offset_bytes, len_bytes, verb: Verb::Read { .. }, .. } = *request else {
            return Ok(None);
        };
        let page_bytes = self.visit.served.export.object.page_bytes();
        if offset_bytes % page_bytes + len_bytes > page_bytes {
            return Ok(None);
        }
        self.chain.pieces(request.verb, memory, &mut self.pieces)?;
        Ok(match *self.pieces {
            [piece] => Some(Read { head, status: self.chain.status, offset_bytes, piece }),
            _ => None,
        })
    }

    /// Completes the gathered reads whose pages are resident, and begins operations for the others.
    fn serve_reads(&mut self, memory: &Arc<Memory>) -> Result<(), Broken> {
        self.reads.serve(&self.visit.served.export.object, memory);
        while let Some((read, is_served)) = self.reads.next() {
            let Read { head, status, offset_bytes: offset, piece } = read;
            let len_bytes = piece.len as u32;
            if is_served {
                self.report(head, memory, status, blk::VIRTIO_BLK_S_OK as u8, len_bytes)?;
                self.visit.counts.read(len_bytes);
                let taken = self.clock.take();
                self.hits.get_or_insert((0, taken)).0 += 1;
                continue;
            }
            self.enter(head, status, memory);
            let running = self.get(head);
            (running.kind, running.written_bytes, running.len_bytes) = (Kind::Read, len_bytes, len_bytes);
            self.issue(head, Op::ReadInto { offset, memory: memory.lend(&[piece]) });
        }
        Ok(())
    }

    fn begin_transfer(&mut self, head: u16, request: Request, memory: &Arc<Memory>) -> Result<(), Broken> {
        let Request { offset_bytes: offset, len_bytes, verb, durable, .. } = request;
        let len_bytes = len_bytes as u32;
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
        let Request { offset_bytes: offset, len_bytes: len, verb, durable, .. } = request;
        let running = self.get(head);
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
        // Before the guest sees the completion: it may then reuse its memory.
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

    /// Reports the completion of a request to the guest.
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
        let Running { status, status_code, written_bytes, .. } = *running;
        self.report(head, &running.memory, status, status_code, if is_good { written_bytes } else { 0 })?;
        let counts = &self.visit.counts;
        counts.ended(running.kind, running.timing, &mut self.clock, !is_good);
        match running.kind {
            Kind::Read if is_good => counts.read(running.len_bytes),
            Kind::Write if is_good => counts.written(running.len_bytes),
            _ => {}
        }
        Ok(())
    }

    /// Writes the status of a request, and gives its chain back to the guest (I2).
    fn report(
        &mut self,
        head: u16,
        memory: &Memory,
        status: GuestAddress,
        status_code: u8,
        written_bytes: u32,
    ) -> Result<(), Broken> {
        memory.guest().write_obj(status_code, status).map_err(|_| Broken::DESCRIPTOR)?;
        if let Some(tracker) = &self.tracker {
            tracker.before_use(head);
        }
        // The status counts as written.
        self.ring
            .add_used(self.memory.guest(), head, written_bytes.saturating_add(1))
            .map_err(|_| Broken("the used ring leads out of the guest's memory"))?;
        if let Some(tracker) = &self.tracker {
            tracker.after_use(head, self.ring.next_used());
        }
        self.news += 1;
        match self.news < TELL_EVERY {
            true => Ok(()),
            false => self.tell(),
        }
    }

    /// Signals the guest if requests have completed and the guest has asked for a signal.
    fn tell(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.news) == 0 {
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
        if self.look()? {
            return Ok(());
        }
        if self.ring.enable_notification(self.memory.guest()).map_err(|_| Broken::RING)? {
            return Ok(());
        }
        if self.queue.at_rest() {
            // Nothing of this ring is in the engine: one call waits for kicks and orders.
            self.events.take(&self.orders, None);
            return self.ring.disable_notification(self.memory.guest()).map_err(|_| Broken::RING);
        }
        let mut ended = std::mem::take(&mut self.ended);
        let interest = Interest { readable: true, writable: false };
        let came =
            self.queue.wait_or(self.events.as_fd(), interest, None, |completion| ended.push(completion));
        if came.readable {
            self.events.take(&self.orders, Some(&NOW));
        }
        self.take_ended(ended)?;
        self.ring.disable_notification(self.memory.guest()).map_err(|_| Broken::RING)
    }

    /// Looks for work without a sleep: for `poll`, or for a shorter time while that succeeds
    /// (`spin.rs`). Returns whether there is any.
    fn look(&mut self) -> Result<bool, Broken> {
        let mut spin = std::mem::take(&mut self.spin);
        let poll = self.poll;
        let look = || match self.has_work() {
            Ok(false) => None,
            found => Some(found),
        };
        let found = match poll {
            Duration::ZERO => spin.wait(Instant::now, look),
            poll => spin::look_for(poll, Instant::now, look),
        };
        self.spin = spin;
        found.unwrap_or(Ok(false))
    }

    fn has_work(&mut self) -> Result<bool, Broken> {
        let available = self.ring.avail_idx(self.memory.guest(), SeqCst).map_err(|_| Broken::RING)?;
        Ok(available.0 != self.ring.next_avail() || self.collect(0)?)
    }
}
