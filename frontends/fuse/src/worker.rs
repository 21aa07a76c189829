//! [`Worker`]: a thread of a mount. Takes requests from the kernel, serves hits at once, submits
//! misses and writes to the cache, and answers them as they complete, in any order.
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
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use octavo::{Buffer, Cache, Completion, Interest, Op, Queue, Request as CacheRequest};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::device::{Device, Nothing};
use crate::errors::errno_of;
use crate::fs::Fs;
use crate::handles::Open;
use crate::in_flight::Waiting;
use crate::looks::Looks;
use crate::lower;
use crate::operations::{Outcome, Pending, ReadPlan, Request, WritePlan};
use crate::reference::ReferenceReader;
use crate::resident::Resident;
use crate::wire::{InHeader, Opcode, Reader};

/// What a request takes beside the bytes of a write: its head and its arguments.
pub const REQUEST_HEAD_BYTES_MAX: usize = 4096;

/// The size of the kernel's pages, or a part of it.
const KERNEL_PAGE_BYTES: u64 = 4096;

/// How long a program waits until it is asked whether it was killed, at most twice.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most requests that a turn takes before it looks at completions.
const TAKEN_MAX: usize = 32;

/// A thread of a mount.
pub struct Worker {
    fs: Arc<Fs>,
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

/// What a thread has done. Only the thread writes it.
#[derive(Debug, Default)]
pub struct Counts {
    pub requests: AtomicU64,
    /// Reads of the device that returned no request.
    pub empty_reads: AtomicU64,
    /// Sleeps, for a request or a completion.
    pub waits: AtomicU64,
}

/// Adds 1 to a count of this thread.
fn add_one(count: &AtomicU64) {
    // Relaxed: a figure alone.
    count.store(count.load(Relaxed) + 1, Relaxed);
}

impl Worker {
    /// Prepares a worker. `stop` becomes readable when the mount ends.
    ///
    /// # Errors
    /// A sentence: no memory, no descriptors.
    pub fn new(fs: Arc<Fs>, device: Device, cache: &Cache, stop: &OwnedFd) -> Result<Worker, String> {
        let queue = cache.queue().map_err(|error| error.to_string())?;
        let transfer_bytes_max = fs.options.transfer_bytes_max;
        let received = cache.buffer(transfer_bytes_max + REQUEST_HEAD_BYTES_MAX);
        let received = received.ok_or_else(|| {
            let kib = transfer_bytes_max >> 10;
            format!(
                "memory_max leaves no room for a thread's buffer of {kib} KiB: raise it, or use fewer threads"
            )
        })?;
        let events = events(&device, stop).map_err(|errno| format!("cannot wait for requests: {errno}"))?;
        let device = Arc::new(device);
        Ok(Worker {
            fs,
            device,
            cache: cache.clone(),
            queue,
            events,
            received,
            out: Vec::new(),
            pending: Vec::new(),
            free: Vec::new(),
            asked: Instant::now(),
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
        // New files get a mask of their own (`operations/names.rs`).
        // SAFETY: the thread uses no path that depends on the working directory of the process.
        if let Err(errno) = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) } {
            log::error!("a thread cannot have a mask of its own for new files: {errno}");
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
        self.out.clear();
        let outcome = match Opcode::of(head.opcode) {
            Some(operation) => {
                self.fs.handle(operation, Request { device: &self.device, head, body }, &mut self.out)
            }
            None => Err(Errno::NOSYS),
        };
        match outcome {
            Ok(Outcome::Reply) => self.device.reply(head.unique, Ok(()), &self.out),
            Ok(Outcome::Silence) => {}
            Ok(Outcome::Read(plan)) => self.read(&head, plan),
            Ok(Outcome::Write(plan)) => self.write(&head, plan, len),
            Err(errno) => self.device.reply(head.unique, Err(errno), &[]),
        }
    }

    fn read(&mut self, head: &InHeader, plan: ReadPlan) {
        let (unique, caller) = (head.unique, head.pid);
        let ReadPlan { open, offset, size, is_uncached } = plan;
        if is_uncached {
            let read = open.read_uncached(offset, &mut self.received[..size]);
            let bytes = read.map_or(&[][..], |len| &self.received[..len]);
            return self.device.reply(unique, read.map(drop), bytes);
        }
        let read = Waiting { device: self.device.clone(), unique, caller, offset, size };
        // The kernel's own pages begin at a page.
        if offset % KERNEL_PAGE_BYTES > 0 || !open.file.writes.any() {
            return self.serve(&open, read);
        }
        let range = offset..offset.saturating_add(size as u64);
        if let Some(read) = open.file.writes.hold(range, read) {
            self.serve(&open, read);
        }
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
        let object = open.file.object();
        if self.resident.reply(&device, unique, &object, offset, len) {
            // After the reply, so that the program does not wait for this.
            return self.queue.note_hit(&object, offset, len as u64);
        }
        drop(object);
        if let Some(buffer) = self.cache.buffer(len) {
            let op = Op::Read { offset, len, buffer };
            return self.add(device, caller, op, Pending::Read { unique, len, open: open.clone() });
        }
        // The request itself is not needed any more.
        let read = read_now(open, offset, &mut self.received[..len]);
        let bytes = read.map_or(&[][..], |len| &self.received[..len]);
        device.reply(unique, read.map(drop), bytes);
    }

    fn write(&mut self, head: &InHeader, plan: WritePlan, request_len: usize) {
        let unique = head.unique;
        let bytes = &self.received[..request_len][request_len - plan.len..];
        if let Some(written) = plan.write_uncached(bytes) {
            return self.reply_to_write(unique, written);
        }
        let flight = plan.begin();
        let is_at_once = plan.extends || plan.open.file.object().cache_mode() == octavo::CacheMode::Writeback;
        if !is_at_once && let Some(mut buffer) = self.cache.buffer(plan.len) {
            buffer[..plan.len].copy_from_slice(bytes);
            let WritePlan { open, offset, len, change, .. } = plan;
            let op = Op::Write { offset, len, buffer, durable: open.is_durable };
            return self.add(
                self.device.clone(),
                head.pid,
                op,
                Pending::Write { unique, len, open, change, flight },
            );
        }
        let result = plan.write_now(bytes);
        self.end_write(&plan.open, flight);
        self.reply_to_write(unique, result);
    }

    /// Ends a write, and serves the reads that have waited for it alone.
    fn end_write(&mut self, open: &Arc<Open>, flight: u64) {
        for read in open.file.writes.end(flight) {
            self.serve(open, read);
        }
    }

    fn reply_to_write(&self, unique: u64, result: Result<usize, Errno>) {
        let written = crate::wire::WriteOut { size: *result.as_ref().unwrap_or(&0) as u32, padding: 0 };
        let body = if result.is_ok() { zerocopy::IntoBytes::as_bytes(&written) } else { &[] };
        self.device.reply(unique, result.map(drop), body);
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
        let mut rest = added.drain(..).peekable();
        let file_of = |request: &CacheRequest| {
            self.pending[request.user_data as usize].as_ref().map(|one| &one.pending.open().file)
        };
        while let Some(file) = rest.peek().and_then(file_of) {
            let same =
                |request: &CacheRequest| file_of(request).is_some_and(|other| Arc::ptr_eq(other, file));
            let requests = std::iter::from_fn(|| rest.next_if(same));
            self.queue.submit(&file.object(), requests);
        }
        drop(rest);
        self.added = added;
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
        let Some(InFlight { device, pending, is_answered, .. }) = self.pending[place].take() else { return };
        self.free.push(place);
        if is_answered {
            return;
        }
        match (pending, completion.op) {
            (Pending::Read { unique, len, open }, Op::Read { offset, mut buffer, .. }) => {
                let result = match completion.result {
                    Err(octavo::Error::PastEnd { .. } | octavo::Error::Closed { .. }) => {
                        read_now(&open, offset, &mut buffer[..len])
                    }
                    result => result.map(|()| len).map_err(|error| errno_of(&error)),
                };
                match result {
                    Ok(len) => device.reply(unique, Ok(()), &buffer[..len]),
                    Err(errno) => device.reply(unique, Err(errno), &[]),
                }
            }
            (
                Pending::Write { unique, len, open, change: _change, flight },
                Op::Write { offset, buffer, .. },
            ) => {
                let result = match completion.result {
                    // The file was cut meanwhile, or has another object (F4).
                    Err(octavo::Error::PastEnd { .. } | octavo::Error::Closed { .. }) => {
                        open.file.write_at(offset, &buffer[..len])
                    }
                    result => result.map(|()| len).map_err(|error| errno_of(&error)),
                };
                self.end_write(&open, flight);
                self.reply_to_write(unique, result);
            }
            _ => unreachable!("a completion returns the operation of its request"),
        }
    }

    /// Answers the requests of programs that were killed. The kernel cannot end such a program
    /// before that, and a store that hangs may never answer. A program that was only interrupted
    /// waits on, as for a file of a disk.
    fn let_go_of_the_killed(&mut self) {
        if self.pending.len() == self.free.len() {
            return;
        }
        let now = Instant::now();
        if now - self.asked < PATIENCE {
            return;
        }
        self.asked = now;
        let mut writes = Vec::new();
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
            // It fails if a signal has come. The loop looks at everything again.
            let _ = epoll::wait(&self.events, &mut woken, None);
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

/// Reads what there is of a range: the file may have been cut meanwhile, or have another object
/// (F4).
fn read_now(open: &Open, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let left = open.file.len_bytes().saturating_sub(offset).min(bytes.len() as u64) as usize;
    match open.file.object().read_at(offset, &mut bytes[..left]) {
        // Cut again.
        Err(octavo::Error::PastEnd { .. }) => Ok(0),
        read => read.map(|()| left).map_err(|error| errno_of(&error)),
    }
}

/// Makes a descriptor that is readable when a request waits or the mount ends.
fn events(device: &Device, stop: &OwnedFd) -> Result<OwnedFd, Errno> {
    let events = epoll::create(CreateFlags::CLOEXEC)?;
    // Exclusive: a request wakes one thread.
    epoll::add(&events, device, EventData::new_u64(0), EventFlags::IN | EventFlags::EXCLUSIVE)?;
    epoll::add(&events, stop, EventData::new_u64(1), EventFlags::IN)?;
    Ok(events)
}
