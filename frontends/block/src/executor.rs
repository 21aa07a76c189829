//! [`Executor`]: turns requests into batches for the cache's queue, and completions into events.
//!
//! A request longer than a buffer is served in pieces. The executor splits a read; a write arrives
//! piece by piece. The scarce resource is memory, so buffers are given out in the order of arrival:
//!
//! - **E1** Only the oldest read that lacks buffers gets any, and a write gets one only while no
//!   read lacks any. The request that holds the reserve therefore never waits for a younger
//!   request. A status request counts as a read of one buffer, which will hold its answer.
//! - **E2** A contiguous read keeps its pieces until it has all of them. Suppose it is the oldest
//!   read that lacks a buffer, none of its pieces is in the engine, and it holds the reserve. Then
//!   no buffer is certain to return to it, so it *streams*: it delivers the pieces that it has, and
//!   continues with the memory that this frees. At most one read streams.
//! - **E3** While a read streams, the protocol sends nothing else. That blocks no request: the
//!   streaming read is the oldest that lacks buffers (E1), and the reserve returns to it with every
//!   piece that is sent (E2).
//!
//! One thread owns an executor. Dropping it waits for the operations in the engine. Not here:
//! sockets, protocols.

use crate::buffers::Buffers;
use crate::journal::Journal;
use crate::latency::Timing;
use crate::request::{Cause, Event, Failure, Request, RequestId, Verb};
use octavo::disk::Holes;
use octavo::{Buffer, Completion, Interest, Object, Op, Queue};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The most operations of one batch: enough for the engine to overlap their cache misses.
const BATCH_MAX: usize = 32;

/// The most bytes of reads that are submitted before replies are sent. This keeps the bytes that
/// were copied out of the cache in the processor's cache until the socket copies them again, and
/// lets the client read the first replies while the server prepares the next ones.
pub(crate) const BATCH_READ_BYTES: usize = 256 << 10;

/// The memory for the answer to a status request, or for its first part if memory is short. An
/// answer is shorter than the extents that were found, but never empty.
pub(crate) const STATUS_BYTES: usize = 16 << 10;

/// A request between its start and its last event.
struct Running {
    request: Request,
    timing: Timing,
    /// The bytes of a read that have a buffer, or of a write that have arrived.
    issued_bytes: u32,
    /// The bytes that the engine has read.
    read_bytes: u32,
    /// The bytes of a contiguous read that were delivered.
    delivered_bytes: u32,
    /// The number of operations in the batch or the engine.
    operations: u32,
    /// A durable write arrives in several pieces, and one sync of its range must make them durable.
    owes_sync: bool,
    /// The first error, and its distance from the start of the request in bytes.
    failure: Option<(Cause, u32)>,
    /// No further operation will be issued for bytes of the request: it ends with its last
    /// operation.
    issued: bool,
}

impl Running {
    /// Returns whether the engine has read all bytes.
    fn is_read(&self) -> bool {
        u64::from(self.read_bytes) == self.request.len_bytes
    }
}

/// The most bytes that an executor holds per request in flight: its `Running`, and its entries in
/// the lists of identifiers.
pub(crate) const REQUEST_STATE_BYTES: usize = size_of::<Option<Running>>() + 3 * size_of::<RequestId>();

/// A piece of a contiguous read that waits for its turn.
struct Piece {
    id: RequestId,
    offset_bytes: u64,
    buffer: Buffer,
    len_bytes: u32,
}

/// Serves the requests of one connection; see the module.
pub struct Executor {
    queue: Queue,
    object: Object,
    requests: Requests,
}

/// The state of an executor without its queue, so that completions can be handled while the queue
/// delivers them.
struct Requests {
    journal: Journal,
    buffers: Buffers,
    /// Indexed by identifier.
    running: Vec<Option<Running>>,
    free: Vec<RequestId>,
    /// The reads that lack buffers, oldest first (E1).
    lacking: VecDeque<RequestId>,
    held: Vec<Piece>,
    streaming: Option<RequestId>,
    /// The durable writes that owe a sync, and whose pieces are all written.
    unsynced: Vec<RequestId>,
    batch: Vec<octavo::Request>,
    /// The bytes of the reads in the batch.
    batch_read_bytes: usize,
}

/// The receiver of events.
pub type Sink<'a> = &'a mut dyn FnMut(Event);

impl Executor {
    /// Creates an executor that serves requests to `object`. Errors of the store go to `journal`.
    pub fn new(queue: Queue, object: Object, buffers: Buffers, journal: Journal) -> Executor {
        let requests = Requests {
            journal,
            buffers,
            running: Vec::new(),
            free: Vec::new(),
            lacking: VecDeque::new(),
            held: Vec::new(),
            streaming: None,
            unsynced: Vec::new(),
            batch: Vec::with_capacity(BATCH_MAX),
            batch_read_bytes: 0,
        };
        Executor { queue, object, requests }
    }

    /// Returns the number of requests whose last event was not delivered.
    pub fn running(&self) -> usize {
        self.requests.running.len() - self.requests.free.len()
    }

    /// Returns whether the engine has no operation of this connection, so that no wait can bring an
    /// event.
    pub fn at_rest(&self) -> bool {
        self.queue.at_rest()
    }

    /// Frees the buffers that are kept for the next requests.
    pub fn release_buffers(&mut self) {
        self.requests.buffers.release();
    }

    /// Starts a request other than a write, which the protocol has just taken. The caller has
    /// checked it, and bounds the number of requests in flight.
    pub fn start(&mut self, request: Request, timing: Timing) {
        let Request { offset_bytes: offset, durable, .. } = request;
        let len = request.len_bytes;
        let op = match request.verb {
            Verb::Write => unreachable!("a write starts with its first bytes: start_write"),
            Verb::Read { .. } | Verb::Status { .. } => {
                let id = self.requests.open(request, timing);
                return self.requests.lacking.push_back(id);
            }
            Verb::Flush => Op::Sync,
            // A discarded range is guaranteed to read as zeros.
            Verb::Discard | Verb::Zero { hole: true } => Op::Discard { offset, len, durable },
            Verb::Zero { hole: false } => Op::Zero { offset, len, durable },
            Verb::ZeroFast { hole } => Op::ZeroFast { offset, len, free: hole, durable },
            Verb::Prefetch => Op::Advise { offset, len, advice: octavo::Advice::WillNeed },
        };
        let id = self.requests.open(request, timing);
        self.requests.issue(id, 0, op);
        self.requests.get(id).issued = true;
        self.submit_full_batch();
    }

    /// Starts a write. Its bytes follow in pieces (`write_piece`), and `write_end` follows the last
    /// piece.
    pub fn start_write(&mut self, request: Request, timing: Timing) -> RequestId {
        debug_assert_eq!(request.verb, Verb::Write);
        self.requests.open(request, timing)
    }

    /// Returns a buffer for the next `want_bytes` of a write, or for the first part of them. None
    /// if memory is short: ask again after an event.
    pub fn write_buffer(&mut self, id: RequestId, want_bytes: u32) -> Option<Buffer> {
        if !self.requests.lacking.is_empty() {
            return None;
        }
        self.requests.buffers.take(want_bytes as usize, id)
    }

    /// Writes `buffer[..len_bytes]`, the next piece of the write.
    pub fn write_piece(&mut self, id: RequestId, buffer: Buffer, len_bytes: u32) {
        let running = self.requests.get(id);
        let (request, at) = (running.request, running.issued_bytes);
        running.issued_bytes += len_bytes;
        assert!(
            u64::from(running.issued_bytes) <= request.len_bytes,
            "a write has no more bytes than its request announced"
        );
        let offset = request.offset_bytes + u64::from(at);
        let durable = request.durable && u64::from(len_bytes) == request.len_bytes;
        running.owes_sync = request.durable && !durable;
        self.requests.issue(id, at, Op::Write { offset, len: len_bytes as usize, buffer, durable });
        self.submit_full_batch();
    }

    /// Returns whether a piece has failed. The remaining bytes of the write are then useless.
    pub fn write_failed(&self, id: RequestId) -> bool {
        self.requests.running[usize::from(id.0)].as_ref().is_some_and(|running| running.failure.is_some())
    }

    /// Ends the input of a write: all bytes were handed over, the client has left, or a piece has
    /// failed.
    pub fn write_end(&mut self, id: RequestId, sink: Sink<'_>) {
        let running = self.requests.get(id);
        running.issued = true;
        if u64::from(running.issued_bytes) < running.request.len_bytes {
            running.failure.get_or_insert((Cause::Closed, running.issued_bytes));
        }
        self.requests.finish(id, sink);
    }

    /// Takes back a buffer of an event or of `write_buffer`.
    pub fn give_back(&mut self, buffer: Buffer) {
        self.requests.buffers.give(buffer);
    }

    /// Submits started requests, as far as memory allows, and at most one batch of reads. Returns
    /// whether it submitted anything. If so, another call may submit more.
    pub fn submit(&mut self, sink: Sink<'_>) -> bool {
        while let Some(id) = self.requests.unsynced.pop() {
            let Request { offset_bytes: offset, len_bytes, .. } = self.requests.get(id).request;
            self.requests.issue(id, 0, Op::SyncRange { offset, len: len_bytes as usize });
            self.submit_full_batch();
        }
        let mut any = false;
        while let Some(&id) = self.requests.lacking.front() {
            let is_issued = match self.requests.get(id).request.verb {
                Verb::Status { extents_max, .. } => self.requests.issue_status(id, extents_max),
                _ => self.requests.issue_reads(id, sink),
            };
            if !is_issued {
                break;
            }
            self.requests.lacking.pop_front();
            any = true;
        }
        any |= !self.requests.batch.is_empty();
        self.submit_batch();
        any
    }

    /// Delivers the available completions as events. Returns whether there were any.
    pub fn collect(&mut self, sink: Sink<'_>) -> bool {
        let Executor { queue, requests, .. } = self;
        queue.pending() > 0 && queue.wait(0, |completion| requests.complete(completion, sink)) > 0
    }

    /// Waits until an operation completes, `fd` is ready for `interest`, or `timeout` expires.
    /// Returns what `fd` is ready for.
    pub fn wait(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        timeout: Option<Duration>,
        sink: Sink<'_>,
    ) -> Interest {
        let Executor { queue, requests, .. } = self;
        if interest == Interest::default() && timeout.is_none() {
            // Does not poll `fd`: the descriptor of a peer that has hung up is ready for ever.
            assert!(queue.pending() > 0, "a wait with nothing in flight would never end");
            queue.wait(1, |completion| requests.complete(completion, sink));
            return interest;
        }
        queue.wait_or(fd, interest, timeout, |completion| requests.complete(completion, sink))
    }

    fn submit_full_batch(&mut self) {
        if self.requests.batch.len() >= BATCH_MAX {
            self.submit_batch();
        }
    }

    fn submit_batch(&mut self) {
        if !self.requests.batch.is_empty() {
            self.queue.submit(&self.object, self.requests.batch.drain(..));
            self.requests.batch_read_bytes = 0;
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        while self.queue.pending() > 0 {
            self.queue.wait(1, drop);
        }
    }
}

impl Requests {
    fn open(&mut self, request: Request, timing: Timing) -> RequestId {
        let running = Running {
            request,
            timing,
            issued_bytes: 0,
            read_bytes: 0,
            delivered_bytes: 0,
            operations: 0,
            owes_sync: false,
            failure: None,
            issued: false,
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.running.push(None);
            let last = u16::try_from(self.running.len() - 1);
            RequestId(last.expect("the protocol bounds the requests in flight"))
        });
        self.running[usize::from(id.0)] = Some(running);
        id
    }

    fn get(&mut self, id: RequestId) -> &mut Running {
        let running = self.running[usize::from(id.0)].as_mut();
        running.expect("an identifier lives from the start to the last event")
    }

    fn close(&mut self, id: RequestId) {
        self.running[usize::from(id.0)] = None;
        self.free.push(id);
        self.streaming.take_if(|streaming| *streaming == id);
    }

    /// Adds an operation to the batch. It begins `at` bytes into its request.
    fn issue(&mut self, id: RequestId, at: u32, op: Op) {
        self.get(id).operations += 1;
        self.batch.push(octavo::Request { op, user_data: u64::from(at) << 16 | u64::from(id.0) });
    }

    /// Issues the pieces of the oldest read that lacks buffers, and lets it stream if necessary
    /// (E2). Returns whether all pieces are issued. Otherwise the batch is full, or memory is
    /// short.
    fn issue_reads(&mut self, id: RequestId, sink: Sink<'_>) -> bool {
        loop {
            let running = self.get(id);
            let (request, at) = (running.request, running.issued_bytes);
            let left_bytes = request.len_bytes - u64::from(at);
            if left_bytes == 0 || running.failure.is_some() {
                running.issued = true;
                self.finish(id, sink);
                return true;
            }
            if self.batch.len() >= BATCH_MAX || self.batch_read_bytes >= BATCH_READ_BYTES {
                return false;
            }
            let Some(buffer) = self.buffers.take(left_bytes as usize, id) else {
                let stuck = self.get(id).operations == 0 && self.buffers.reserve_holder() == Some(id);
                if stuck && self.streaming.is_none() && request.verb == (Verb::Read { contiguous: true }) {
                    self.streaming = Some(id);
                    self.deliver_in_order(id, sink);
                }
                return false;
            };
            let len = buffer.len().min(left_bytes as usize);
            self.get(id).issued_bytes += len as u32;
            self.batch_read_bytes += len;
            self.issue(id, at, Op::Read { offset: request.offset_bytes + u64::from(at), len, buffer });
        }
    }

    /// Issues a status request, if there is memory for its answer. Returns whether it has.
    fn issue_status(&mut self, id: RequestId, extents_max: u16) -> bool {
        if self.batch.len() >= BATCH_MAX {
            return false;
        }
        let Some(buffer) = self.buffers.take(STATUS_BYTES, id) else { return false };
        let running = self.get(id);
        running.issued = true;
        let Request { offset_bytes, len_bytes: len, .. } = running.request;
        self.held.push(Piece { id, offset_bytes, buffer, len_bytes: 0 });
        let (extents_max, found) = (usize::from(extents_max), Holes::default());
        self.issue(id, 0, Op::Holes { offset: offset_bytes, len, extents_max, found });
        true
    }

    /// Delivers the answer to a status request.
    fn deliver_status(&mut self, id: RequestId, holes: Holes, sink: Sink<'_>) {
        let Running { request, timing, .. } = *self.get(id);
        let at =
            self.held.iter().position(|piece| piece.id == id).expect("held since the request was issued");
        let Piece { buffer, .. } = self.held.swap_remove(at);
        self.close(id);
        sink(Event::Status { id, request, timing, holes, buffer });
    }

    /// Handles one completion of the engine.
    fn complete(&mut self, completion: Completion, sink: Sink<'_>) {
        let (id, at) = (RequestId(completion.user_data as u16), (completion.user_data >> 16) as u32);
        let running = self.get(id);
        running.timing.note(&completion);
        let Completion { op, result, .. } = completion;
        running.operations -= 1;
        let offset_bytes = running.request.offset_bytes + u64::from(at);
        if let Err(error) = &result
            && running.failure.is_none()
        {
            let cause = error.into();
            running.failure = Some((cause, at));
            // An answer, and no failure of the store.
            if cause != Cause::NotFast || !matches!(running.request.verb, Verb::ZeroFast { .. }) {
                self.journal.warn(format_args!("{error}"));
            }
        }
        match op {
            Op::Read { len, buffer, .. } if self.get(id).failure.is_none() => {
                self.take_piece(Piece { id, offset_bytes, buffer, len_bytes: len as u32 }, sink);
            }
            Op::Read { buffer, .. } | Op::Write { buffer, .. } => {
                self.buffers.give(buffer);
                self.finish(id, sink);
            }
            Op::Holes { found, .. } if self.get(id).failure.is_none() => self.deliver_status(id, found, sink),
            // Operations without a buffer of the cache.
            _ => self.finish(id, sink),
        }
    }

    /// Delivers a piece that was read, or holds it until its turn.
    fn take_piece(&mut self, piece: Piece, sink: Sink<'_>) {
        let Piece { id, offset_bytes, buffer, len_bytes } = piece;
        let running = self.get(id);
        running.read_bytes += len_bytes;
        let (request, timing, last) = (running.request, running.timing, running.is_read());
        if request.verb == (Verb::Read { contiguous: true }) {
            self.held.push(Piece { id, offset_bytes, buffer, len_bytes });
            self.deliver_in_order(id, sink);
        } else {
            if last {
                self.close(id);
            }
            sink(Event::Data { id, request, timing, offset_bytes, buffer, len_bytes, last, whole: last });
        }
    }

    /// Delivers the held pieces of a contiguous read whose turn has come (E2).
    fn deliver_in_order(&mut self, id: RequestId, sink: Sink<'_>) {
        loop {
            let streaming = self.streaming == Some(id);
            let running = self.get(id);
            let (request, timing, whole) = (running.request, running.timing, running.is_read());
            if !(whole || streaming) {
                return;
            }
            let next_bytes = request.offset_bytes + u64::from(running.delivered_bytes);
            let turn = |piece: &Piece| piece.id == id && piece.offset_bytes == next_bytes;
            let Some(index) = self.held.iter().position(turn) else { return };
            let Piece { offset_bytes, buffer, len_bytes, .. } = self.held.swap_remove(index);
            let running = self.get(id);
            running.delivered_bytes += len_bytes;
            let last = u64::from(running.delivered_bytes) == request.len_bytes;
            if last {
                self.close(id);
            }
            sink(Event::Data { id, request, timing, offset_bytes, buffer, len_bytes, last, whole });
            if last {
                return;
            }
        }
    }

    /// Ends a request if it has no operation left.
    fn finish(&mut self, id: RequestId, sink: Sink<'_>) {
        let running = self.get(id);
        let (request, timing, failure) = (running.request, running.timing, running.failure);
        let is_read = matches!(request.verb, Verb::Read { .. });
        if running.operations > 0 || !running.issued {
            return;
        }
        // A successful read ends with its last piece. A read of no bytes has none, and ends here.
        if is_read && failure.is_none() && request.len_bytes > 0 {
            return;
        }
        if std::mem::take(&mut running.owes_sync) && failure.is_none() {
            return self.unsynced.push(id);
        }
        for piece in self.held.extract_if(.., |piece| piece.id == id) {
            self.buffers.give(piece.buffer);
        }
        self.close(id);
        let failed = |(cause, at)| Err(Failure { cause, offset_bytes: request.offset_bytes + u64::from(at) });
        sink(Event::Done { id, request, timing, result: failure.map_or(Ok(()), failed) });
    }
}
