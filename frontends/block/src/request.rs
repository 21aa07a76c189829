//! Requests and results that belong to no protocol: [`Request`]s go to the executor, and [`Event`]s
//! come back.
//!
//! NBD, vhost-user and ublk request the same operations; they differ in how bytes and errors
//! travel. A protocol turns its messages into requests, gives them to an `Executor`, and turns the
//! events into replies. No error number of any protocol appears here.

use crate::latency::Timing;
use octavo::Buffer;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Reads bytes of the object. A contiguous read delivers its pieces in ascending order, and
    /// begins only when all pieces are read or no more memory is available. Any other read delivers
    /// each piece as soon as that piece is read.
    Read {
        /// Delivers the pieces in ascending order.
        contiguous: bool,
    },
    /// Writes bytes to the object.
    Write,
    /// Makes every write that has already ended durable.
    Flush,
    /// Makes the range read as zeros. The client no longer needs its content.
    Discard,
    /// Makes the range read as zeros.
    Zero {
        /// Allows the store to free the space of the range.
        hole: bool,
    },
    /// Makes the range read as zeros, if the store can do so faster than by writing zeros. Fails
    /// with [`Cause::NotFast`] otherwise.
    ZeroFast {
        /// Allows the store to free the space of the range.
        hole: bool,
    },
    /// Announces that the client will read the range soon.
    Prefetch,
    /// Asks which parts of the range have data.
    Status {
        /// The most extents of the answer.
        extents_max: u16,
        /// The form of the answer, for the protocol alone.
        form: u8,
    },
}

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's name for the request, returned unchanged. Not necessarily unique.
    pub tag: u64,
    /// The offset of the range in the object.
    pub offset_bytes: u64,
    /// The length of the range, which must lie inside the object (see [`Request::check`]).
    /// That of a read or a write is less than 4 GiB.
    pub len_bytes: u64,
    /// The operation.
    pub verb: Verb,
    /// Makes the change durable before the request ends.
    pub durable: bool,
}

impl Request {
    /// Checks the request against the object's length and mode, before any payload is received or
    /// memory is taken.
    ///
    /// # Errors
    /// [`Cause::ReadOnly`], [`Cause::PastEnd`].
    pub fn check(&self, end_bytes: u64, read_only: bool) -> Result<(), Failure> {
        let changes =
            matches!(self.verb, Verb::Write | Verb::Discard | Verb::Zero { .. } | Verb::ZeroFast { .. });
        let fits = self.offset_bytes.checked_add(self.len_bytes).is_some_and(|end| end <= end_bytes);
        let cause = match (changes && read_only, fits) {
            (true, _) => Cause::ReadOnly,
            (false, false) => Cause::PastEnd,
            (false, true) => return Ok(()),
        };
        Err(Failure { cause, offset_bytes: self.offset_bytes })
    }
}

/// The reason why a request failed, by what a client can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The range ends past the end of the object.
    PastEnd,
    /// The object is read-only.
    ReadOnly,
    /// The store is full.
    NoSpace,
    /// The store failed.
    Io,
    /// The store cannot zero the range faster than by writing zeros.
    NotFast,
    /// The cache has no memory for the request.
    NoMemory,
    /// The object is closed, or the server is shutting down.
    Closed,
}

impl From<&octavo::Error> for Cause {
    fn from(error: &octavo::Error) -> Cause {
        match error {
            octavo::Error::PastEnd { .. } => Cause::PastEnd,
            octavo::Error::ReadOnly { .. } => Cause::ReadOnly,
            octavo::Error::Io { source, .. } => match source.errno() {
                libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Cause::NoSpace,
                libc::EOPNOTSUPP => Cause::NotFast,
                _ => Cause::Io,
            },
            octavo::Error::NoMemory { .. } => Cause::NoMemory,
            octavo::Error::Closed { .. } => Cause::Closed,
            _ => Cause::Io,
        }
    }
}

/// The first error of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub cause: Cause,
    /// The offset in the object of the piece that failed.
    pub offset_bytes: u64,
}

/// Identifies a request from its start to its last event. Unlike the client's tag it is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(pub(crate) u16);

/// A result of a request. A request has any number of `Data` events, and ends with one that is
/// marked `last`, with `Status`, or with `Done`.
pub enum Event {
    /// `buffer[..len_bytes]` holds the object's bytes from `offset_bytes`.
    Data {
        /// The read.
        id: RequestId,
        /// The request, as it was given.
        request: Request,
        /// Its times.
        timing: Timing,
        /// The offset of the bytes in the object.
        offset_bytes: u64,
        /// The bytes. The receiver returns the buffer with `Executor::give_back` once they are
        /// sent.
        buffer: Buffer,
        /// The number of bytes.
        len_bytes: u32,
        /// The request has succeeded, and no other event follows.
        last: bool,
        /// Every byte of the read is in memory, so no error can follow. False for every piece
        /// except the last one of a read that is not contiguous, and for the pieces that a
        /// contiguous read delivers before its last piece is read.
        whole: bool,
    },
    /// The answer to a status request, which has succeeded. No other event follows.
    Status {
        /// The request's identifier.
        id: RequestId,
        /// The request, as it was given.
        request: Request,
        /// Its times.
        timing: Timing,
        /// The parts without data, from the start of the range on.
        holes: octavo::disk::Holes,
        /// Memory for the answer, which the receiver returns like that of `Data`.
        buffer: Buffer,
    },
    /// The request has ended.
    Done {
        /// The request's identifier.
        id: RequestId,
        /// The request, as it was given.
        request: Request,
        /// Its times.
        timing: Timing,
        /// The result. After an error, the undelivered pieces of a read will not be delivered.
        result: Result<(), Failure>,
    },
}
