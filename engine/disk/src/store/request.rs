//! [`Backend`] and [`IoRequest`]: stores that users write, and the life of an I/O in one. Protects
//! the promise that each I/O completes exactly once, with all bytes or an error, whatever the back
//! end does. Not here: opening, lengths (`backend.rs`).
//!
//! * B1. An I/O enters the gate of its store, is cut by the length, and leaves the gate when its
//!   last attempt has ended (`gate.rs`, L1).
//! * B2. One attempt is one request. Exactly one party owns the I/O: the request, or the thread
//!   that starts the next attempt. An answer ends the attempt. A request that is dropped ends the
//!   I/O with an error.
//! * B3. A short answer, or an error that may pass, leads to another attempt (`Io::advance`). The
//!   thread that gave the answer starts it, because no thread may be waiting on the ring.
//! * B4. That thread may be inside `submit`, which may answer at once. Each call of `submit` has a
//!   *frame*, a queue of its thread. An attempt that ends inside leaves its I/O in the innermost
//!   frame, and the caller of `submit` starts the next attempt after it has returned. So the stack
//!   does not grow with the number of attempts.
//! * B5. No lock of this crate is held while `submit` runs (`inbox.rs`, R2). The completion takes
//!   the I/O's handle of the store to the ring, so that a thread of the back end seldom drops the
//!   last one: the back end may then wait for its threads.
//! * B6. In a child of `fork`, the threads of the back end are missing, and it shares its sockets
//!   with the parent. There an I/O fails before it reaches the back end or any lock, and requests
//!   and back ends are leaked instead of dropped.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::errno_and_reason;
use crate::identity::Identity;
use crate::io::buffer::IoBuffer;
use crate::io::method::Method;
use crate::io::sink::Sink;
use crate::io::{Io, NOT_FAST};
use crate::op::Op;
use crate::process::Process;
use crate::store::gate::Gate;
use crate::sync::{Arc, AtomicU64, Ordering, thread_local};

/// Carries the I/O of a store: a network volume, an object store, a compressed or encrypted file.
/// [`Store::from_backend`](crate::Store::from_backend) makes it a store.
///
/// All methods may be called from any thread, several at a time. They run with locks of the cache
/// held, so they must not call the cache or the ring that their store is used with. They may use
/// other rings and stores.
///
/// The store drops the back end with its last handle, usually on the thread that dropped the handle
/// or delivered the last completion, but possibly on the thread that completes a request. `drop`
/// must not wait for that thread.
///
/// A child of `fork` cannot use the store: its I/O fails there, and the back end is not dropped.
///
/// # Examples
/// A store whose bytes a thread keeps:
/// ```
/// use std::io;
/// use std::sync::mpsc::{Receiver, Sender, channel};
///
/// use octavo_disk::{AlignedBytes, Backend, IoRequest, Op, Ring, RingOptions, Store};
///
/// /// The requests go to the thread, and each comes back by its completion.
/// struct Threaded {
///     requests: Sender<IoRequest>,
///     len_bytes: u64,
/// }
///
/// impl Backend for Threaded {
///     fn len_bytes(&self) -> io::Result<u64> {
///         Ok(self.len_bytes)
///     }
///
///     fn submit(&self, request: IoRequest) {
///         // If the thread is gone, the request is dropped, and fails.
///         let _ = self.requests.send(request);
///     }
/// }
///
/// /// Executes requests until the store is dropped.
/// fn serve(mut bytes: Vec<u8>, requests: Receiver<IoRequest>) {
///     for mut request in requests {
///         let (start, len) = (request.offset() as usize, request.len_bytes());
///         let range = start..start + len;
///         match request.op() {
///             Op::Read => request.copy_in(0, &bytes[range]),
///             Op::Write => request.copy_out(0, &mut bytes[range]),
///             Op::Sync => {}
///             // Not supported, so they never come: zeros are written instead.
///             Op::Zero | Op::Discard => unreachable!(),
///         }
///         request.complete(Ok(len));
///     }
/// }
///
/// let (requests, receiver) = channel();
/// let thread = std::thread::spawn(|| serve(vec![7; 1 << 20], receiver));
/// let store = Store::from_backend("threaded", Threaded { requests, len_bytes: 1 << 20 })?;
///
/// let ring = Ring::new(&RingOptions::default())?;
/// let page = AlignedBytes::new(4096);
/// // SAFETY: `page` outlives the wait below, and nothing accesses it before.
/// unsafe { ring.push(&store, Op::Read, 8192, &[page.io_buffer()], 1) };
/// ring.wait(&mut |_, result| result.unwrap(), None);
/// assert_eq!(page[..], [7; 4096]);
///
/// drop(store);
/// thread.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Backend: Send + Sync + 'static {
    /// Returns the length in bytes that the back end has now, at most 2^63 - 1. Asked when the
    /// store is created, by [`Store::present_len_bytes`](crate::Store::present_len_bytes), and by
    /// [`Store::adopt_len_bytes`](crate::Store::adopt_len_bytes), which holds off all I/O of the
    /// store meanwhile.
    ///
    /// # Errors
    /// Any error that keeps the back end from telling.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Starts an I/O. Does not wait for it: [`IoRequest::complete`] may be called in here, or later
    /// from any thread. After a short answer this runs on the thread that gave it, perhaps one of
    /// the back end's own: it must not wait for that thread, nor for room in a queue to it.
    ///
    /// A panic in here fails the I/O, and is logged.
    fn submit(&self, request: IoRequest);

    /// Returns the unit of I/O in bytes: a power of two from 512 to 4096. Asked once. Default: 512.
    fn block_bytes(&self) -> u32 {
        512
    }

    /// Returns the unit in bytes in which reads are cheapest, such as half a megabyte of a remote
    /// object, whose answer takes long to begin: a power of two. The cache reads the whole unit
    /// around a page that is missing. Asked once. Default: 0 (there is no such unit).
    fn fill_bytes(&self) -> u32 {
        0
    }

    /// Returns whether the store refuses writes. Asked once. Default: false.
    fn read_only(&self) -> bool {
        false
    }

    /// Returns whether [`submit`](Backend::submit) takes [`Op::Zero`] or [`Op::Discard`]. After
    /// both, the range must read as zeros. If one is not supported, the other is used instead; if
    /// neither is, zeros are written. Asked once for each of the two. Default: false.
    fn supports(&self, op: Op) -> bool {
        let _ = op;
        false
    }

    /// Returns what tells the bytes of this back end from those of every other. Asked once. Of the
    /// stores of a process that have one identity, only one can be open for writing in a cache.
    /// Other processes and machines are the back end's matter. Default: None.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Changes the length. A longer back end gains zeros. No I/O is in flight meanwhile. Default:
    /// an error of kind `Unsupported`.
    ///
    /// # Errors
    /// Any error. The length must then be the old one.
    fn set_len_bytes(&self, len_bytes: u64) -> io::Result<()> {
        let _ = len_bytes;
        Err(io::Error::new(io::ErrorKind::Unsupported, "the length of this back end cannot be changed"))
    }
}

/// One I/O that a [`Backend`] has to execute: an operation, a range of the store,
/// and the caller's buffers. Any thread may complete it, at any time. Requests may be executed in
/// any order, and together: no two in flight overlap if one of them changes bytes.
///
/// A request that is dropped, for example because a thread of the back end panicked, fails with
/// `EIO`.
///
/// # Examples
/// See [`Backend`].
#[must_use = "a request that is dropped fails"]
pub struct IoRequest(Option<Box<Flight>>);

/// A back end, and what its I/O needs to know about it.
pub(super) struct Carrier {
    pub(super) name: String,
    /// None only in `drop`.
    backend: Option<Box<dyn Backend>>,
    pub(super) gate: Gate,
    len_bytes: AtomicU64,
    pub(super) block_bytes: u32,
    pub(super) fill_bytes: u32,
    zeroes: bool,
    discards: bool,
    process: Process,
}

impl Carrier {
    pub(super) fn new(name: &str, backend: Box<dyn Backend>, len_bytes: u64) -> Carrier {
        Carrier {
            name: name.to_owned(),
            gate: Gate::default(),
            len_bytes: AtomicU64::new(len_bytes),
            block_bytes: backend.block_bytes(),
            fill_bytes: backend.fill_bytes(),
            zeroes: backend.supports(Op::Zero),
            discards: backend.supports(Op::Discard),
            process: Process::this(),
            backend: Some(backend),
        }
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        self.backend.as_deref().expect("only `drop` takes it")
    }

    /// Returns whether the back end has its threads (B6).
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process.is_this()
    }

    pub(super) fn len_bytes(&self) -> u64 {
        // Acquire: pairs with `publish_len_bytes`, so that a thread which sees a length finds the
        // back end of that length.
        self.len_bytes.load(Ordering::Acquire)
    }

    /// Called with the gate closed.
    pub(super) fn publish_len_bytes(&self, len_bytes: u64) {
        // Release: pairs with `len_bytes`.
        self.len_bytes.store(len_bytes, Ordering::Release);
    }

    fn supports(&self, method: Method) -> bool {
        match method {
            Method::PunchHole => self.discards,
            Method::ZeroRange => self.zeroes,
            Method::Write => true,
        }
    }

    /// Calls `submit` of the back end (B5).
    fn submit(&self, request: IoRequest) {
        let submit = || self.backend().submit(request);
        // A model checker unwinds its threads by panics.
        if cfg!(shuttle) {
            submit();
        } else if catch_unwind(AssertUnwindSafe(submit)).is_err() {
            log::error!("{}: the back end panicked when it was given a request", self.name);
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            // B6.
            std::mem::forget(self.backend.take());
        }
    }
}

/// An I/O inside the gate of its store (B1), and its present attempt.
pub(super) struct Flight {
    io: Io,
    carrier: Arc<Carrier>,
    ring: Arc<dyn Sink>,
    shard: u8,
    /// The length of the attempt.
    len_bytes: u64,
    /// The memory of the attempt. Empty for syncs, and for clearing by the back end's own means.
    pieces: Vec<IoBuffer>,
}

thread_local! {
    /// The frames of this thread, the innermost last (B4).
    static FRAMES: RefCell<Vec<VecDeque<Box<Flight>>>> = const { RefCell::new(Vec::new()) };
}

impl IoRequest {
    fn flight(&self) -> &Flight {
        self.0.as_ref().expect("only `complete` and `drop` take the I/O")
    }

    /// Returns what to do. [`Op::Zero`] and [`Op::Discard`] come only if the back end
    /// [supports](crate::Backend::supports) them.
    pub fn op(&self) -> Op {
        let Flight { io, .. } = self.flight();
        match (io.op, io.parts[0].method) {
            (Op::Zero | Op::Discard, Method::PunchHole) => Op::Discard,
            (Op::Zero | Op::Discard, Method::ZeroRange) => Op::Zero,
            (Op::Zero | Op::Discard, Method::Write) => Op::Write,
            (op, _) => op,
        }
    }

    /// Returns the first byte of the range in the store: a multiple of the store's block. 0 for a
    /// sync.
    pub fn offset(&self) -> u64 {
        self.flight().io.parts[0].next
    }

    /// Returns the length of the range in bytes. It ends at a multiple of the store's block or at
    /// the end of the store, and never past that. 0 for a sync.
    pub fn len_bytes(&self) -> usize {
        self.flight().len_bytes as usize
    }

    /// Copies `bytes` to the caller of a read, from byte `skip` of the range on.
    ///
    /// # Panics
    /// If the request is not a read, or the bytes end past its range.
    pub fn copy_in(&mut self, skip: usize, bytes: &[u8]) {
        self.check(Op::Read, skip, bytes.len());
        let flight = self.flight();
        flight.io.buffers.copy_in(flight.io.span(0).0 + skip as u64, bytes);
    }

    /// Fills `bytes` from the caller of a write, from byte `skip` of the range on.
    ///
    /// # Panics
    /// If the request is not a write, or the bytes end past its range.
    pub fn copy_out(&self, skip: usize, bytes: &mut [u8]) {
        self.check(Op::Write, skip, bytes.len());
        let flight = self.flight();
        flight.io.buffers.copy_out(flight.io.span(0).0 + skip as u64, bytes);
    }

    fn check(&self, op: Op, skip: usize, len: usize) {
        assert_eq!(self.op(), op, "{self:?} moves its bytes the other way, or none");
        let is_inside = skip.checked_add(len).is_some_and(|end| end <= self.len_bytes());
        assert!(is_inside, "{len} bytes from {skip} on are outside of the range of {self:?}");
    }

    /// Returns the memory of a read or write, for I/O without a copy: buffers that together have
    /// the length of the range, at most 1,024. Empty for other operations.
    ///
    /// The first buffer of a request that follows a short answer is aligned to the store's block,
    /// and not to 4096 bytes. The last one may end at the end of the store, inside a block.
    ///
    /// The memory is valid until the request is completed or dropped. Until then, the back end may
    /// write the memory of a read, and read the memory of a write. Never write the memory of a
    /// write: it may lie in a segment of the program that is read-only.
    pub fn buffers(&self) -> &[IoBuffer] {
        &self.flight().pieces
    }

    /// Completes the request.
    ///
    /// - `Ok(n)`: the first `n` bytes of the range are done. If bytes are left, a further request
    ///   for them follows, from a multiple of the store's block on. After 64 answers in a row
    ///   without a whole block, the I/O fails.
    /// - `Ok(0)` of a write: nothing is done, and the whole range follows again.
    /// - `Ok(0)` of a read: the back end ends here, and the rest of the range reads as zeros, as
    ///   with a file that another program has cut.
    /// - `Ok(_)` of a sync: every write that was completed before the sync was submitted is
    ///   durable.
    /// - `Err`: `Interrupted` and `WouldBlock` are tried again, up to 64 times in a row. If a
    ///   [`Op::Zero`] or [`Op::Discard`] fails, another method is tried, and zeros are written at
    ///   last. Any other error fails the I/O, and its text and the store's name reach the caller.
    ///   A failed write may have changed any of its bytes.
    ///
    /// An answer of more bytes than the range has fails the I/O with `EIO`.
    ///
    /// The further request is submitted on this thread: before this returns or, if this is called
    /// inside of `submit`, when that has returned.
    pub fn complete(mut self, outcome: io::Result<usize>) {
        let Some(mut flight) = self.0.take() else { return };
        if !flight.carrier.is_of_this_process() {
            // B6.
            return std::mem::forget(flight);
        }
        if flight.advance(outcome) {
            flight.continue_here();
        } else {
            flight.finish();
        }
    }
}

impl Drop for IoRequest {
    fn drop(&mut self) {
        let Some(mut flight) = self.0.take() else { return };
        if !flight.carrier.is_of_this_process() {
            // B6.
            return std::mem::forget(flight);
        }
        flight.end(libc::EIO, "the back end dropped the request without completing it");
        flight.finish();
    }
}

impl Flight {
    /// B1: starts an I/O, which is valid.
    pub(super) fn start(mut io: Io, carrier: Arc<Carrier>, ring: Arc<dyn Sink>, shard: u8) {
        carrier.gate.enter(shard);
        let len_bytes = carrier.len_bytes();
        io.cut(len_bytes, len_bytes, carrier.block_bytes);
        let mut flight = Box::new(Flight { io, carrier, ring, shard, len_bytes: 0, pieces: Vec::new() });
        flight.skip_unsupported();
        match flight.io.parts_left {
            0 => flight.finish(),
            // In a frame of its own: an outer `submit` may be waiting for this I/O.
            _ => flight.submit(),
        }
    }

    /// B3, B4: starts the next attempt, or leaves it to the innermost frame of this thread.
    fn continue_here(self: Box<Flight>) {
        let mut own = Some(self);
        // `FRAMES` is gone in the destructors of a thread that ends. Attempts then nest.
        let _ = FRAMES.try_with(|frames| {
            if let Some(frame) = frames.borrow_mut().last_mut() {
                frame.extend(own.take());
            }
        });
        if let Some(flight) = own {
            flight.submit();
        }
    }

    /// B4: calls `submit` in a frame of its own, until no attempt is left in that.
    fn submit(self: Box<Flight>) {
        let _ = FRAMES.try_with(|frames| frames.borrow_mut().push(VecDeque::new()));
        let mut next = Some(self);
        while let Some(mut flight) = next {
            flight.prepare();
            let carrier = flight.carrier.clone();
            carrier.submit(IoRequest(Some(flight)));
            next = FRAMES
                .try_with(|frames| frames.borrow_mut().last_mut().and_then(VecDeque::pop_front))
                .unwrap_or(None);
        }
        let _ = FRAMES.try_with(|frames| frames.borrow_mut().pop());
    }

    /// Decides the length and the memory of the attempt.
    fn prepare(&mut self) {
        let Flight { io, pieces, .. } = self;
        let (skip, remaining_bytes) = io.span(0);
        pieces.clear();
        self.len_bytes = remaining_bytes;
        let moves = matches!(io.op, Op::Read | Op::Write) || io.parts[0].method == Method::Write;
        if moves && io.op != Op::Sync {
            io.buffers.pieces(skip, remaining_bytes, pieces);
            self.len_bytes = pieces.iter().map(|piece| piece.len as u64).sum();
        }
    }

    /// Skips the methods of clearing that the back end does not support.
    fn skip_unsupported(&mut self) {
        while !self.carrier.supports(self.io.parts[0].method) {
            match self.io.next_method(0) {
                Some(next) => self.io.parts[0].method = next,
                None => {
                    self.io.fail(libc::EOPNOTSUPP, Some(NOT_FAST));
                    self.io.parts_left = 0;
                    return;
                }
            }
        }
    }

    /// Records the outcome of an attempt. Returns whether the I/O needs another.
    fn advance(&mut self, outcome: io::Result<usize>) -> bool {
        let len_bytes = self.len_bytes;
        let block_bytes = u64::from(self.carrier.block_bytes);
        let part = &mut self.io.parts[0];
        let is_clearing = self.io.op.clears() && part.method != Method::Write;
        let (outcome, reason) = match outcome {
            Err(error) => {
                let (errno, reason) = errno_and_reason(&error);
                (Err(errno), reason)
            }
            Ok(_) if self.io.op == Op::Sync => (Ok(0), None),
            Ok(moved) if moved as u64 > len_bytes => {
                self.end(libc::EIO, "the back end answered with more bytes than the request has");
                return false;
            }
            Ok(moved) if moved as u64 == part.remaining_bytes() => (Ok(moved), None),
            Ok(0) if self.io.op == Op::Read => (Ok(0), None),
            Ok(moved) => {
                // `Io::advance` takes a read that ends inside a block for the end of a file, and
                // any answer of a clearing for a whole one.
                let whole_bytes = moved as u64 - moved as u64 % block_bytes;
                if is_clearing && whole_bytes > 0 {
                    part.next += whole_bytes;
                    return true;
                }
                (if whole_bytes > 0 { Ok(whole_bytes as usize) } else { Err(libc::EAGAIN) }, None)
            }
        };
        let again = self.io.advance(0, outcome);
        self.io.explain(reason);
        self.skip_unsupported();
        again && self.io.parts_left > 0
    }

    /// Ends the I/O with an error.
    fn end(&mut self, errno: i32, reason: &'static str) {
        self.io.fail(errno, Some(reason.into()));
        self.io.parts_left = 0;
    }

    /// B1, B5: leaves the gate and completes the I/O.
    fn finish(self) {
        let Flight { io, carrier, ring, shard, .. } = self;
        carrier.gate.leave(shard);
        let result = io.result(&carrier.name);
        ring.complete(io.token, result, Some(carrier));
    }
}

impl fmt::Debug for IoRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoRequest({:?}, {} bytes at {})", self.op(), self.len_bytes(), self.offset())
    }
}
