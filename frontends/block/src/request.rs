//! What a block protocol asks of the cache, and how it ends, in words that belong to no protocol.
//!
//! NBD, vhost-user and ublk differ in how bytes and errors travel, not in what they ask for. A
//! protocol turns its messages into [`Request`]s, gives them to an
//! [`Executor`](crate::executor::Executor) and turns the [`Event`]s that come back into replies. No
//! error number of any protocol appears here.

use octavo::Buffer;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Bytes of the object. A contiguous read delivers them in ascending order and keeps them back
    /// until all are there, or no more memory is to be had; any other read delivers each piece
    /// as soon as it is there.
    Read {
        /// Whether the pieces are delivered in order.
        contiguous: bool,
    },
    /// Bytes for the object.
    Write,
    /// Durability of every write that ended before.
    Flush,
    /// The range is not needed any more and reads as zeros.
    Discard,
    /// The range reads as zeros.
    Zero {
        /// Its space may go.
        hole: bool,
    },
    /// The range will be read soon.
    Prefetch,
}

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's name for it; returned as it came, not looked at, and not necessarily unique.
    pub tag: u64,
    /// First byte of the range.
    pub offset_bytes: u64,
    /// Length of the range; with the offset, inside the object (see [`Request::check`]).
    pub len_bytes: u32,
    /// What to do with the range.
    pub verb: Verb,
    /// Whether a change has to be durable before the request ends.
    pub durable: bool,
}

impl Request {
    /// Refuses what the object's length and mode forbid, before any payload is read or any memory
    /// taken.
    pub fn check(&self, end_bytes: u64, read_only: bool) -> Result<(), Failure> {
        let changes = matches!(self.verb, Verb::Write | Verb::Discard | Verb::Zero { .. });
        let fits =
            self.offset_bytes.checked_add(u64::from(self.len_bytes)).is_some_and(|end| end <= end_bytes);
        let cause = match (changes && read_only, fits) {
            (true, _) => Cause::ReadOnly,
            (false, false) => Cause::PastEnd,
            (false, true) => return Ok(()),
        };
        Err(Failure { cause, offset_bytes: self.offset_bytes })
    }
}

/// Why a request failed, as far as a client can do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The range reaches past the object's end.
    PastEnd,
    /// The object may not be changed.
    ReadOnly,
    /// The store is full.
    NoSpace,
    /// The store failed.
    Io,
    /// The cache's memory leaves no room for the request.
    NoMemory,
    /// The object is closed, or the server is about to be.
    Closed,
}

impl From<&octavo::Error> for Cause {
    fn from(error: &octavo::Error) -> Cause {
        match error {
            octavo::Error::PastEnd { .. } => Cause::PastEnd,
            octavo::Error::ReadOnly { .. } => Cause::ReadOnly,
            octavo::Error::Io { source, .. } => match source.errno() {
                libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Cause::NoSpace,
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
    /// What happened.
    pub cause: Cause,
    /// The offset in the object of the piece that it happened to.
    pub offset_bytes: u64,
}

/// Names a request from its start to its last event. Unlike a tag it is unique, unlike a cookie it
/// is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(pub(crate) u16);

/// What became of a request: any number of `Data`, the last of them marked, or else `Done`.
pub enum Event {
    /// `buffer[..len_bytes]` holds the object's bytes from `offset_bytes`.
    Data {
        /// The request that asked for them.
        id: RequestId,
        /// The same, as it was given.
        request: Request,
        /// Where the bytes lie in the object.
        offset_bytes: u64,
        /// The bytes; to be returned by `Executor::give_back` when they are sent.
        buffer: Buffer,
        /// How many.
        len_bytes: u32,
        /// The request has succeeded and is over: no other event follows.
        last: bool,
        /// Every byte of the read is in memory: no error can follow. False for all pieces but the
        /// last of a contiguous read that is longer than the memory that it got, and of a
        /// read that is not contiguous.
        whole: bool,
    },
    /// The request is over.
    Done {
        /// Which.
        id: RequestId,
        /// The same, as it was given.
        request: Request,
        /// How it ended. After an error, pieces of a read that were not delivered never will be.
        result: Result<(), Failure>,
    },
}
