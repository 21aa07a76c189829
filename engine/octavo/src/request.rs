//! Requests: what callers ask of an object, and what they get back.

use crate::error::Error;
use crate::memory::Buffer;

/// `posix_fadvise`'s words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No advice.
    Normal,
    /// The range will be read in order.
    Sequential,
    /// The range will be read in no order.
    Random,
    /// The range will be wanted soon: it is brought in, as far as there is room.
    WillNeed,
    /// The range will not be wanted soon: its clean pages are let go, dirty ones are written first.
    DontNeed,
    /// The range will be wanted once.
    NoReuse,
}

/// One read of a batch.
pub struct Read<'b> {
    /// Where in the object.
    pub offset: u64,
    /// Where to.
    pub buffer: &'b mut [u8],
}

/// What a request does.
pub enum Op {
    /// Fills `buffer[..len]`.
    Read {
        /// Where in the object.
        offset: u64,
        /// How many bytes.
        len: usize,
        /// Where to.
        buffer: Buffer,
    },
    /// Writes `buffer[..len]`.
    Write {
        /// Where in the object.
        offset: u64,
        /// How many bytes.
        len: usize,
        /// Where from.
        buffer: Buffer,
        /// The completion comes when the bytes are durable (FUA).
        durable: bool,
    },
    /// See [`Object::sync`].
    Sync,
    /// See [`Object::sync_range`].
    SyncRange {
        /// Where in the object.
        offset: u64,
        /// How many bytes.
        len: usize,
    },
    /// See [`Object::discard`].
    Discard {
        /// Where in the object.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The completion comes when it is durable.
        durable: bool,
    },
    /// See [`Object::zero`].
    Zero {
        /// Where in the object.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The completion comes when it is durable.
        durable: bool,
    },
    /// See [`Object::advise`].
    Advise {
        /// Where in the object.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What will happen to them.
        advice: Advice,
    },
}

/// A request, with a number of the caller's own.
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Comes back with the completion.
    pub user_data: u64,
}

/// A request that has ended.
pub struct Completion {
    /// The request's number.
    pub user_data: u64,
    /// The request, with its buffer.
    pub op: Op,
    /// How it ended.
    pub result: Result<(), Error>,
}

/// What [`Queue::wait_or`] looks for on the caller's own descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// There is something to read, or the other side has gone.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
}
