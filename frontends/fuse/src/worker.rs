//! [`Worker`]: a thread of a mount. Takes requests from the kernel, serves hits at once, submits
//! misses and writes to the cache, and answers them as they complete, in any order.
//!
//! A turn takes the requests that wait, then the completions. Only a turn in which nothing happened
//! is followed by a wait, for a request, a completion or the end of the mount.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use octavo::{Buffer, Cache, Completion, Interest, Op, Pin, Queue, Request as CacheRequest};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::device::{Device, Nothing};
use crate::errors::errno_of;
use crate::fs::Fs;
use crate::handles::Open;
use crate::operations::{Outcome, Pending, ReadPlan, Request, WritePlan};
use crate::wire::{InHeader, Opcode, OutHeader, Reader};

/// The most bytes of one read or write.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// A request: its head, its arguments, and the bytes of a write.
pub const REQUEST_BYTES_MAX: usize = TRANSFER_BYTES_MAX + 4096;

/// The most requests that a turn takes before it looks at completions.
const TAKEN_MAX: usize = 32;

/// A thread of a mount.
pub struct Worker {
    fs: Arc<Fs>,
    device: Device,
    cache: Cache,
    queue: Queue,
    /// Readable when a request waits or the mount ends.
    events: OwnedFd,
    /// The request, and then the bytes of a read for which the cache has no buffer.
    received: Buffer,
    out: Vec<u8>,
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    ended: Vec<Completion>,
}

impl Worker {
    /// Prepares a worker. `stop` becomes readable when the mount ends.
    ///
    /// # Errors
    /// A sentence: no memory, no descriptors.
    pub fn new(fs: Arc<Fs>, device: Device, cache: &Cache, stop: &OwnedFd) -> Result<Worker, String> {
        let queue = cache.queue().map_err(|error| error.to_string())?;
        let received = cache.buffer(REQUEST_BYTES_MAX);
        let received = received.ok_or(
            "memory_max leaves no room for a thread's buffer of 1 MiB: raise it, or use fewer threads",
        )?;
        let events = events(&device, stop).map_err(|errno| format!("cannot wait for requests: {errno}"))?;
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
            ended: Vec::new(),
        })
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
            let any = self.collect();
            match taken {
                Ok(false) if !any => self.wait(),
                Err(Nothing::Ever) if self.queue.pending() == 0 => return,
                Err(Nothing::Ever) => self.wait_for_one(),
                _ => {}
            }
            if self.fs.is_stopping.load(SeqCst) && self.queue.pending() == 0 && taken != Ok(true) {
                return;
            }
        }
    }

    /// Takes the requests that wait. Returns whether there were any.
    fn take(&mut self) -> Result<bool, Nothing> {
        for number in 0..TAKEN_MAX {
            match self.device.read(&mut self.received) {
                Ok(len) => self.handle(len),
                Err(Nothing::Yet) => return Ok(number > 0),
                Err(Nothing::Ever) => return Err(Nothing::Ever),
            }
        }
        Ok(true)
    }

    /// Handles the request of this many bytes.
    fn handle(&mut self, len: usize) {
        let mut body = Reader::new(&self.received[..len]);
        let Ok(head) = body.take::<InHeader>() else {
            log::error!("the kernel has sent a request of {len} bytes, which is no request");
            return;
        };
        self.out.clear();
        let outcome = match Opcode::of(head.opcode) {
            Some(operation) => self.fs.handle(operation, Request { head, body }, &mut self.out),
            None => Err(Errno::NOSYS),
        };
        match outcome {
            Ok(Outcome::Reply) => self.device.reply(head.unique, Ok(()), &self.out),
            Ok(Outcome::Silence) => {}
            Ok(Outcome::Read(plan)) => self.read(head.unique, plan),
            Ok(Outcome::Write(plan)) => self.write(head.unique, plan, len),
            Err(errno) => self.device.reply(head.unique, Err(errno), &[]),
        }
    }

    fn read(&mut self, unique: u64, plan: ReadPlan) {
        if plan.len == 0 {
            return self.device.reply(unique, Ok(()), &[]);
        }
        if self.read_resident(unique, &plan) {
            return;
        }
        let ReadPlan { open, offset, len } = plan;
        if let Some(buffer) = self.cache.buffer(len) {
            let op = Op::Read { offset, len, buffer };
            return self.submit(op, Pending::Read { unique, len, open });
        }
        // The request itself is not needed any more.
        let read = open.file.object().read_at(offset, &mut self.received[..len]);
        let result = read.map_err(|error| errno_of(&error));
        let bytes = if result.is_ok() { &self.received[..len] } else { &[] };
        self.device.reply(unique, result, bytes);
    }

    /// Answers a read from pinned pages, if all of them are resident.
    fn read_resident(&self, unique: u64, plan: &ReadPlan) -> bool {
        let object = plan.open.file.object();
        let page_bytes = object.page_bytes();
        let end = plan.offset + plan.len as u64;
        let mut head = OutHeader::default();
        let part_of = |pin: &Pin<'_>, at: u64| {
            let skip = (at % page_bytes) as usize;
            skip..pin.len().min(skip + (end - at) as usize)
        };
        if plan.offset / page_bytes == (end - 1) / page_bytes {
            let Ok(Some(pin)) = object.try_pin(plan.offset) else { return false };
            let part = &pin[part_of(&pin, plan.offset)];
            self.device.reply_with(
                unique,
                part.len(),
                &mut [IoSlice::new(&[]), IoSlice::new(part)],
                &mut head,
            );
            return true;
        }
        let first = plan.offset - plan.offset % page_bytes;
        let pages = || (first..end).step_by(page_bytes as usize).map(|page| page.max(plan.offset));
        // Looked at first, because a pin counts as a hit.
        if !pages().all(|at| object.is_resident(at)) {
            return false;
        }
        let mut pins = Vec::with_capacity(pages().size_hint().0 + 1);
        for at in pages() {
            let Ok(Some(pin)) = object.try_pin(at) else { return false };
            pins.push((at, pin));
        }
        let mut parts = Vec::with_capacity(pins.len() + 1);
        parts.push(IoSlice::new(&[]));
        parts.extend(pins.iter().map(|(at, pin)| IoSlice::new(&pin[part_of(pin, *at)])));
        let len = parts.iter().map(|part| part.len()).sum();
        self.device.reply_with(unique, len, &mut parts, &mut head);
        true
    }

    fn write(&mut self, unique: u64, plan: WritePlan, request_len: usize) {
        let bytes = &self.received[..request_len][request_len - plan.len..];
        let is_at_once = plan.extends || plan.open.file.object().cache_mode() == octavo::CacheMode::Writeback;
        if !is_at_once && let Some(mut buffer) = self.cache.buffer(plan.len) {
            buffer[..plan.len].copy_from_slice(bytes);
            let WritePlan { open, offset, len, change, .. } = plan;
            let op = Op::Write { offset, len, buffer, durable: open.is_durable };
            return self.submit(op, Pending::Write { unique, len, open, change });
        }
        let result = plan.write_now(bytes);
        self.reply_to_write(unique, plan.len, result);
    }

    fn reply_to_write(&self, unique: u64, len: usize, result: Result<(), Errno>) {
        let written = crate::wire::WriteOut { size: len as u32, padding: 0 };
        let body = if result.is_ok() { zerocopy::IntoBytes::as_bytes(&written) } else { &[] };
        self.device.reply(unique, result, body);
    }

    fn submit(&mut self, op: Op, pending: Pending) {
        let (Pending::Read { open, .. } | Pending::Write { open, .. }) = &pending;
        let open = open.clone();
        let place = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[place] = Some(pending);
        self.queue.submit(&open.file.object(), [CacheRequest { op, user_data: place as u64 }]);
    }

    /// Answers what has completed. Returns whether there was any.
    fn collect(&mut self) -> bool {
        let mut any = false;
        while let Some(completion) = self.queue.take_next() {
            self.complete(completion);
            any = true;
        }
        any
    }

    fn complete(&mut self, completion: Completion) {
        let place = completion.user_data as usize;
        let Some(pending) = self.pending[place].take() else { return };
        self.free.push(place);
        match (pending, completion.op) {
            (Pending::Read { unique, len, open }, Op::Read { offset, mut buffer, .. }) => {
                let result = match completion.result {
                    Err(octavo::Error::PastEnd { .. }) => read_shorter(&open, offset, &mut buffer[..len]),
                    result => result.map(|()| len).map_err(|error| errno_of(&error)),
                };
                match result {
                    Ok(len) => self.device.reply(unique, Ok(()), &buffer[..len]),
                    Err(errno) => self.device.reply(unique, Err(errno), &[]),
                }
            }
            (Pending::Write { unique, len, open, change: _change }, Op::Write { offset, buffer, .. }) => {
                let result = match completion.result {
                    Err(octavo::Error::PastEnd { .. }) => open.file.write_at(offset, &buffer[..len]),
                    result => result.map_err(|error| errno_of(&error)),
                };
                self.reply_to_write(unique, len, result);
            }
            _ => unreachable!("a completion returns the operation of its request"),
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
        let mut ended = std::mem::take(&mut self.ended);
        let interest = Interest { readable: true, writable: false };
        self.queue.wait_or(self.events.as_fd(), interest, None, |completion| ended.push(completion));
        ended.drain(..).for_each(|completion| self.complete(completion));
        self.ended = ended;
    }
}

/// Reads what is left of the range of a read: the file was cut meanwhile.
fn read_shorter(open: &Open, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
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
    epoll::add(&events, device, EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&events, stop, EventData::new_u64(1), EventFlags::IN)?;
    Ok(events)
}
