//! [`Worker`]: a thread of a mount. Takes requests from the kernel, serves hits at once, submits
//! misses and writes to the cache, and answers them as they complete, in any order.
//!
//! Requests that may wait for the lower file system are performed here only on a seat, and else by
//! its threads (`stores.rs`, B1 to B5).
//!
//! A turn takes the requests that wait, submits those that need the cache together, answers what
//! has completed, and sleeps until there is more: a request, a completion or the end of the mount.
//!
//! # System calls
//! A thread with nothing in flight sleeps in `epoll_wait`. A request that hits then costs three
//! calls: that one, a read, and the `writev` of the reply. A further read would find a request only
//! under load, so it is made only while it is successful ([`Looks`]). The thread registers for
//! exclusive wake-ups: a request wakes one sleeping thread, not all.
//!
//! *Considered instead*: a blocking `read` on a second clone of the descriptor. It saves one call,
//! about 1 µs of 11. But only a request ends it: a mount that was detached while programs use it
//! could not be stopped. A signal would end it, which a library should not install.
//! FUSE_NOTIFY_RETRIEVE would end it too, but it needs an inode that the kernel accepts for it,
//! and newer kernels may refuse directories.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use octavo::{Buffer, Cache, CacheMode, Completion, Interest, Op, Queue, Request as CacheRequest};
use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::device::{Device, Nothing};
use crate::errands::{self, Errand, Task};
use crate::errors::errno_of;
use crate::fs::Fs;
use crate::handles::Open;
use crate::in_flight::Waiting;
use crate::looks::Looks;
use crate::lower;
use crate::nodes::Node;
use crate::operations::{Outcome, Pending, ReadPlan, Request, WritePlan};
use crate::reference::ReferenceReader;
use crate::resident::Resident;
use crate::stores::{self, Seat, Stores};
use crate::thread::{Counts, Memory, add_one, events, take_mask};
use crate::wire::{InHeader, Opcode, Reader};

/// The size of the kernel's pages, or a part of it.
const KERNEL_PAGE_BYTES: u64 = 4096;

/// How long a program waits until it is asked whether it was killed, at most twice.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most requests that a turn takes before it looks at completions.
const TAKEN_MAX: usize = 32;

/// A thread of a mount.
pub struct Worker {
    fs: Arc<Fs>,
    stores: Arc<Stores<Errand>>,
    device: Arc<Device>,
    cache: Cache,
    queue: Queue,
    /// Readable when a request waits or the mount ends.
    events: OwnedFd,
    /// The request, and then the bytes of a read for which the cache has no buffer.
    received: Buffer,
    out: Vec<u8>,
    pending: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// When it was last asked whether programs that wait were killed.
    asked: Instant,
    /// Until then, the thread asks for it whatever it knows of: a signal may have come before the
    /// request of its program was noted.
    alert_until: Instant,
    ended: Vec<Completion>,
    /// Operations that were not submitted yet.
    added: Vec<CacheRequest>,
    resident: Resident,
    reference: ReferenceReader,
    looks: Looks,
    counts: Arc<Counts>,
}

/// A request that the cache works on.
struct InFlight {
    /// Where it came from.
    device: Arc<Device>,
    pending: Pending,
    /// The thread that waits for it, and since when.
    caller: u32,
    since: Instant,
    /// The program was killed, and its request answered.
    is_answered: bool,
}

/// Whether more requests wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    Likely,
    Unknown,
    /// None comes any more.
    Never,
}

impl Worker {
    /// Prepares a worker. `stop` becomes readable when the mount ends.
    ///
    /// # Errors
    /// A sentence: no memory, no descriptors.
    pub fn new(
        (fs, stores): (Arc<Fs>, Arc<Stores<Errand>>),
        device: Arc<Device>,
        cache: &Cache,
        stop: &OwnedFd,
    ) -> Result<Worker, String> {
        let Memory { queue, received } = Memory::take(cache, &fs.options)?;
        let events = events(&device, stop).map_err(|errno| format!("cannot wait for requests: {errno}"))?;
        Ok(Worker {
            fs,
            stores,
            device,
            cache: cache.clone(),
            queue,
            events,
            received,
            out: Vec::new(),
            pending: Vec::new(),
            free: Vec::new(),
            asked: Instant::now(),
            alert_until: Instant::now(),
            ended: Vec::new(),
            added: Vec::new(),
            resident: Resident::default(),
            reference: ReferenceReader::default(),
            looks: Looks::default(),
            counts: Arc::default(),
        })
    }

    /// Returns the counts of what this thread does.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Serves the mount until it ends.
    pub fn run(mut self) {
        if !take_mask() {
            return;
        }
        loop {
            let taken = self.take();
            self.fs.prune(&self.device);
            self.submit();
            self.collect();
            self.let_go_of_the_killed();
            // Reads that have waited for a write.
            self.submit();
            let is_last = self.fs.is_stopping.load(SeqCst) && taken != More::Likely;
            match taken {
                _ if is_last && self.queue.pending() == 0 => return,
                More::Never if self.queue.pending() == 0 => return,
                More::Never => self.wait_for_one(),
                More::Likely => {}
                More::Unknown => self.wait(),
            }
        }
    }

    /// Takes requests that wait.
    fn take(&mut self) -> More {
        for number in 0..TAKEN_MAX {
            // Nothing is lost by a look while the cache works.
            let is_look = number > 0 && self.pending.len() == self.free.len();
            if is_look && !self.looks.take() {
                return More::Unknown;
            }
            let read = self.device.read(&mut self.received);
            if is_look {
                self.looks.note(read.is_ok());
            }
            match read {
                Ok(len) => self.handle(len),
                Err(Nothing::Yet) => {
                    add_one(&self.counts.empty_reads);
                    return More::Unknown;
                }
                Err(Nothing::Ever) => return More::Never,
            }
        }
        More::Likely
    }

    /// Handles the request of this many bytes.
    fn handle(&mut self, len: usize) {
        add_one(&self.counts.requests);
        let mut body = Reader::new(&self.received[..len]);
        let Ok(head) = body.take::<InHeader>() else {
            log::error!("the kernel has sent a request of {len} bytes, which is no request");
            return;
        };
        let begun = match Opcode::of(head.opcode) {
            Some(operation) => self.fs.begin(operation, Request { device: &self.device, head, body }),
            None => Err(Errno::NOSYS),
        };
        match begun {
            Ok(Outcome::Call) => self.call(&head, len),
            Ok(Outcome::Silence) => {}
            Ok(Outcome::Forgotten(nodes)) => self.forget(nodes),
            Ok(Outcome::Interrupted) => self.alert_until = Instant::now() + 2 * PATIENCE,
            Ok(Outcome::Read(plan)) => self.read(&head, plan),
            Ok(Outcome::Write(plan)) => self.write(&head, plan, len),
            Err(errno) => self.device.reply(head.unique, Err(errno), &[]),
        }
    }

    /// Whether nothing that was begun here waits for this thread (B2).
    fn has_nothing_in_flight(&self) -> bool {
        self.added.is_empty() && self.queue.pending() == 0
    }

    /// A seat for a call to this file system, if the worker may take one (B2, B6).
    fn seat<'f>(&self, fs: &'f Fs, store: stores::Device) -> Option<Seat<'f>> {
        let may_wait = self.has_nothing_in_flight() && store == fs.device;
        if may_wait { fs.seats.take() } else { None }
    }

    /// Performs a request that may wait for the lower file system, or hands it over.
    fn call(&mut self, head: &InHeader, len: usize) {
        let fs = self.fs.clone();
        // The kernel waits for the reply to neither, and keeps a limited number of such requests.
        let is_release = matches!(Opcode::of(head.opcode), Some(Opcode::Release | Opcode::Releasedir));
        let device = fs.store_of(head, &self.received[..len]);
        let seat = self.seat(&fs, device);
        if is_release && seat.is_none() {
            self.device.reply(head.unique, Ok(()), &[]);
        } else {
            fs.calls.begin(head.unique, head.pid, &self.device);
        }
        let bytes = &self.received[..len];
        if seat.is_some() {
            return errands::request(&fs, &self.device, bytes, &mut self.out);
        }
        let task = Task::Request(bytes.to_vec());
        self.hand_over(self.device.clone(), device, head.unique, task);
    }

    /// Closes the files of nodes.
    fn forget(&mut self, nodes: Vec<Arc<Node>>) {
        let Some(first) = nodes.first() else { return };
        let device = first.key.device();
        self.put_away(device, Box::new(nodes));
    }

    /// Drops what closes files of a file system, which may wait for it.
    fn put_away(&self, device: stores::Device, dropped: Box<dyn Send>) {
        let seat = self.seat(&self.fs, device);
        if seat.is_some() {
            return drop(dropped);
        }
        self.hand_over(self.device.clone(), device, 0, Task::Drop(dropped));
    }

    /// Hands a request over to the threads of a file system (B3). It is among the calls, if the
    /// kernel waits for a reply.
    fn hand_over(&self, replies_to: Arc<Device>, device: stores::Device, unique: u64, task: Task) {
        let serves = self.fs.running.begin();
        let errand = Errand { fs: self.fs.clone(), device: replies_to, unique, task, serves };
        let can_fail = self.fs.calls.is_known(unique);
        let Err(Errand { device, task, .. }) = self.stores.hand_over(device, errand, can_fail) else {
            return;
        };
        if self.fs.calls.end(unique) {
            device.reply(unique, Err(Errno::NOMEM), &[]);
        }
        match task {
            Task::Write { plan, .. } => {
                for read in plan.end() {
                    read.device.reply(read.unique, Err(Errno::NOMEM), &[]);
                }
            }
            Task::Read { .. } | Task::Request(_) | Task::Drop(_) => {}
        }
    }

    fn read(&mut self, head: &InHeader, plan: ReadPlan) {
        let (unique, caller) = (head.unique, head.pid);
        let ReadPlan { open, offset, size } = plan;
        let read = Waiting { device: self.device.clone(), unique, caller, offset, size };
        if open.file.lease().is_some_and(|lease| !lease.serves()) {
            return self.read_aside(open, read);
        }
        // The kernel's own pages begin at a page.
        if offset % KERNEL_PAGE_BYTES > 0 || !open.file.writes.any() {
            return self.serve(&open, read);
        }
        let range = offset..offset.saturating_add(size as u64);
        if let Some(read) = open.file.writes.hold(range, read) {
            self.serve(&open, read);
        }
    }

    /// Reads what the queue cannot serve, here or on an errand.
    fn read_aside(&mut self, open: Arc<Open>, read: Waiting) {
        let fs = self.fs.clone();
        fs.calls.begin(read.unique, read.caller, &read.device);
        let store = open.node.key.device();
        let seat = self.seat(&fs, store);
        if seat.is_some() {
            errands::read(&fs.calls, &open, &read, &mut self.received);
            return;
        }
        let (device, unique) = (read.device.clone(), read.unique);
        self.hand_over(device, store, unique, Task::Read { open, read });
    }

    /// Answers a read from the cache.
    fn serve(&mut self, open: &Arc<Open>, read: Waiting) {
        let Waiting { device, unique, caller, offset, size } = read;
        let len = open.file.len_bytes().saturating_sub(offset).min(size as u64) as usize;
        if len == 0 {
            return device.reply(unique, Ok(()), &[]);
        }
        if let Some(reference) = self.fs.options.reference {
            let read = self.reference.read(reference, open, offset, &mut self.received[..len]);
            let bytes = read.map_or(&[][..], |len| &self.received[..len]);
            return device.reply(unique, read.map(drop), bytes);
        }
        let Some(object) = open.file.object_at_once() else {
            return self.read_aside(open.clone(), read_of(device, unique, caller, offset, len));
        };
        if self.resident.reply(&device, unique, &object, offset, len) {
            // After the reply, so that the program does not wait for this.
            return self.queue.note_hit(&object, offset, len as u64);
        }
        drop(object);
        match self.cache.buffer(len) {
            Some(buffer) => {
                let op = Op::Read { offset, len, buffer };
                self.add(device, caller, op, Pending::Read { unique, len, open: open.clone() });
            }
            None => self.read_aside(open.clone(), read_of(device, unique, caller, offset, len)),
        }
    }

    fn write(&mut self, head: &InHeader, plan: WritePlan, request_len: usize) {
        let unique = head.unique;
        let caller = head.pid;
        let at = request_len - plan.len;
        let mode = plan.open.file.object_at_once().map(|object| object.cache_mode());
        let fits_queue = plan.is_plain();
        if fits_queue
            && mode == Some(CacheMode::Writethrough)
            && let Some(buffer) = self.cache.buffer(plan.len)
        {
            return self.queue_write(head, plan, buffer, at);
        }
        let fs = self.fs.clone();
        let store = plan.open.node.key.device();
        let seat = self.seat(&fs, store);
        if seat.is_some() {
            fs.calls.begin(unique, caller, &self.device);
            let open = plan.open.clone();
            let bytes = &self.received[at..request_len];
            let freed = errands::write(&fs, &self.device, unique, plan, bytes);
            drop(seat);
            freed.into_iter().for_each(|read| self.serve(&open, read));
            return;
        }
        // Such a write is done by the call where its pages are resident; the queue takes a copy.
        if fits_queue
            && mode.is_some()
            && let Some(buffer) = self.cache.buffer(plan.len)
        {
            return self.queue_write(head, plan, buffer, at);
        }
        fs.calls.begin(unique, caller, &self.device);
        if let Some(flight) = plan.flight {
            fs.calls.is_write(unique, &plan.open, flight);
        }
        let (bytes, uncounted) = self.copy(at..request_len);
        self.hand_over(self.device.clone(), store, unique, Task::Write { plan, bytes, uncounted });
    }

    /// Copies bytes of the request: into memory that `memory_max` counts, if there is some. Returns
    /// how many bytes it does not count, too.
    fn copy(&self, range: Range<usize>) -> (Buffer, usize) {
        let bytes = &self.received[range];
        match self.cache.buffer(bytes.len()) {
            Some(mut buffer) => {
                buffer[..bytes.len()].copy_from_slice(bytes);
                (buffer, 0)
            }
            None => (bytes.to_vec().into(), bytes.len()),
        }
    }

    /// Leaves a write to the queue. Its bytes begin at `at` in the request.
    fn queue_write(&mut self, head: &InHeader, plan: WritePlan, mut buffer: Buffer, at: usize) {
        let len = plan.len;
        buffer[..len].copy_from_slice(&self.received[at..at + len]);
        let op = Op::Write { offset: plan.offset, len, buffer, durable: plan.open.is_durable };
        let pending = Pending::Write { unique: head.unique, plan };
        self.add(self.device.clone(), head.pid, op, pending);
    }

    /// Ends a write, and serves the reads that have waited for it alone.
    fn end_write(&mut self, open: &Arc<Open>, flight: u64) {
        for read in open.file.writes.end(flight) {
            self.serve(open, read);
        }
    }

    /// Leaves an operation to the cache, which gets it with the others of this turn.
    fn add(&mut self, device: Arc<Device>, caller: u32, op: Op, pending: Pending) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[place] =
            Some(InFlight { device, pending, caller, since: Instant::now(), is_answered: false });
        self.added.push(CacheRequest { op, user_data: place as u64 });
    }

    /// Submits the operations that were added, those on the same file together.
    fn submit(&mut self) {
        let mut added = std::mem::take(&mut self.added);
        let mut refused = Vec::new();
        let mut rest = added.drain(..).peekable();
        let file_of = |request: &CacheRequest| {
            self.pending[request.user_data as usize].as_ref().map(|one| &one.pending.open().file)
        };
        while let Some(file) = rest.peek().and_then(file_of) {
            let same =
                |request: &CacheRequest| file_of(request).is_some_and(|other| Arc::ptr_eq(other, file));
            let requests = std::iter::from_fn(|| rest.next_if(same));
            match file.object_at_once() {
                Some(object) => self.queue.submit(&object, requests),
                None => refused.extend(requests),
            }
        }
        drop(rest);
        self.added = added;
        for request in refused {
            let place = request.user_data as usize;
            let Some(one) = self.pending[place].take() else { continue };
            self.free.push(place);
            self.repeat(one, request.op);
        }
    }

    /// Performs an operation that the queue cannot do: its object is being replaced, or was, or the
    /// file was cut (F4).
    fn repeat(&mut self, one: InFlight, op: Op) {
        let InFlight { device, pending, caller, .. } = one;
        match (pending, op) {
            (Pending::Read { unique, len, open }, Op::Read { offset, .. }) => {
                self.read_aside(open, read_of(device, unique, caller, offset, len));
            }
            (Pending::Write { unique, plan }, Op::Write { buffer, .. }) => {
                self.fs.calls.begin(unique, caller, &device);
                if let Some(flight) = plan.flight {
                    self.fs.calls.is_write(unique, &plan.open, flight);
                }
                let store = plan.open.node.key.device();
                let task = Task::Write { plan, bytes: buffer, uncounted: 0 };
                self.hand_over(device, store, unique, task);
            }
            _ => unreachable!("an operation is that of its request"),
        }
    }

    /// Answers what has completed.
    fn collect(&mut self) {
        if self.queue.pending() == 0 {
            return;
        }
        while let Some(completion) = self.queue.take_next() {
            self.complete(completion);
        }
    }

    fn complete(&mut self, completion: Completion) {
        let place = completion.user_data as usize;
        let Some(one) = self.pending[place].take() else { return };
        self.free.push(place);
        let is_outdated =
            matches!(completion.result, Err(octavo::Error::PastEnd { .. } | octavo::Error::Closed { .. }));
        if is_outdated && !one.is_answered {
            return self.repeat(one, completion.op);
        }
        let InFlight { device, pending, is_answered, .. } = one;
        let result = completion.result.map_err(|error| errno_of(&error));
        match (pending, completion.op) {
            (Pending::Read { unique, len, open }, Op::Read { buffer, .. }) => {
                let bytes = if result.is_ok() { &buffer[..len] } else { &[] };
                if !is_answered {
                    device.reply(unique, result, bytes);
                }
                self.let_go_of(open);
            }
            (Pending::Write { unique, plan }, Op::Write { len, .. }) => {
                let open = plan.open.clone();
                for read in plan.end() {
                    self.serve(&open, read);
                }
                if !is_answered {
                    errands::reply_to_write(&device, unique, result.map(|()| len));
                }
                drop(plan);
                self.let_go_of(open);
            }
            _ => unreachable!("a completion returns the operation of its request"),
        }
    }

    /// Drops a file. If it was closed meanwhile, this may be what closes its descriptors.
    fn let_go_of(&self, open: Arc<Open>) {
        let store = open.node.key.device();
        if let Some(last) = Arc::into_inner(open) {
            self.put_away(store, Box::new(last));
        }
    }

    /// Answers the requests of programs that were killed. The kernel cannot end such a program
    /// before that, and a store that hangs may never answer. A program that was only interrupted
    /// waits on, as for a file of a disk.
    fn let_go_of_the_killed(&mut self) {
        if self.pending.len() == self.free.len() && !self.fs.calls.any() {
            return;
        }
        let now = Instant::now();
        if now - self.asked < PATIENCE {
            return;
        }
        self.asked = now;
        let mut writes = self.fs.calls.let_go(PATIENCE);
        for one in self.pending.iter_mut().flatten() {
            let is_late = !one.is_answered && now - one.since >= PATIENCE;
            if !is_late {
                continue;
            }
            // A store that hangs does not keep those who read.
            writes.extend(one.pending.write());
            if lower::is_killed(one.caller) {
                one.is_answered = true;
                one.device.reply(one.pending.unique(), Err(Errno::INTR), &[]);
            }
        }
        for (open, flight) in writes {
            self.end_write(&open, flight);
        }
    }

    /// Waits for a completion: no request comes any more.
    fn wait_for_one(&mut self) {
        if let Some(completion) = self.queue.wait_next() {
            self.complete(completion);
        }
    }

    /// Waits for a request, a completion or the end.
    fn wait(&mut self) {
        add_one(&self.counts.waits);
        if self.queue.at_rest() {
            let mut woken = [MaybeUninit::<epoll::Event>::uninit(); 2];
            // Another thread may wait for a store; this one looks after its program.
            let is_alert = self.fs.calls.any() || Instant::now() < self.alert_until;
            let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            // It fails if a signal has come. The loop looks at everything again.
            let _ = epoll::wait(&self.events, &mut woken, is_alert.then_some(&patience));
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        let interest = Interest { readable: true, writable: false };
        let most = Some(PATIENCE);
        // While the mount ends, the events are ready all the time.
        let is_stopping = self.fs.is_stopping.load(SeqCst);
        let fd = if is_stopping { self.device.as_fd() } else { self.events.as_fd() };
        self.queue.wait_or(fd, interest, most, |completion| ended.push(completion));
        ended.drain(..).for_each(|completion| self.complete(completion));
        self.ended = ended;
    }
}

/// A read of this many bytes.
fn read_of(device: Arc<Device>, unique: u64, caller: u32, offset: u64, size: usize) -> Waiting {
    Waiting { device, unique, caller, offset, size }
}
