//! Requests and completions: what callers ask of an object, and what they get back. Not here:
//! the calls (`api`), tasks in flight (`flight`).

use octavo_disk::Holes;

use crate::error::Error;
use crate::memory::{Buffer, Memory};
use crate::position::ByteOffset;

/// Advice about the future use of a range, in the words of `posix_fadvise`.
///
/// `WillNeed` and `DontNeed` apply to the range; the others apply to the whole object, as in the
/// kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No advice: the default behaviour.
    Normal,
    /// The object will be read in ascending order.
    Sequential,
    /// The object will be read in random order.
    Random,
    /// The range will be needed soon: its pages are read into the cache, as far as there is
    /// room.
    WillNeed,
    /// The range will not be needed soon: its dirty pages are written back, then its clean pages
    /// are evicted.
    DontNeed,
    /// Each page of the object will be used once.
    NoReuse,
}

/// One read of a batch: fills `buffer` from `offset`.
pub struct Read<'b> {
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Memory to fill; its length is the length of the read.
    pub buffer: &'b mut [u8],
}

impl std::fmt::Debug for Read<'_> {
    /// Shows the range, not the bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Read").field("offset", &self.offset).field("len", &self.buffer.len()).finish()
    }
}

/// One read of a batch into memory that must not become a slice, for
/// [`Object::try_read_raw_batch`](crate::Object::try_read_raw_batch). An address and a length: it
/// gives no access by itself.
#[derive(Clone, Copy, Debug)]
pub struct RawRead {
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// The first byte of the memory to fill.
    pub start: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: an address and a length; every use of the memory is `unsafe` by itself.
unsafe impl Send for RawRead {}
// SAFETY: as above; sharing the address gives no access.
unsafe impl Sync for RawRead {}

/// One read of a batch, as the pages see it: a [`Read`], a [`RawRead`], or a letter of another
/// node.
///
/// # Safety
/// `memory` returns an address that is valid for writes of `len` bytes while the read is borrowed,
/// and `len` is always the same.
pub(crate) unsafe trait ReadOfBatch {
    /// Where the read begins.
    fn start(&self) -> ByteOffset;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// The memory to fill.
    fn memory(&mut self) -> *mut u8;
}

// SAFETY: the slice is valid for its length.
unsafe impl ReadOfBatch for Read<'_> {
    #[inline(always)]
    fn start(&self) -> ByteOffset {
        ByteOffset(self.offset)
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.buffer.len()
    }

    #[inline(always)]
    fn memory(&mut self) -> *mut u8 {
        self.buffer.as_mut_ptr()
    }
}

// SAFETY: the caller of `try_read_raw_batch` promises it, the only call that takes such reads.
unsafe impl ReadOfBatch for RawRead {
    #[inline(always)]
    fn start(&self) -> ByteOffset {
        ByteOffset(self.offset)
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn memory(&mut self) -> *mut u8 {
        self.start
    }
}

/// The operation of a request.
#[derive(Debug)]
pub enum Op {
    /// Reads `len` bytes into the beginning of `buffer`.
    Read {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Length in bytes; at most the buffer's.
        len: usize,
        /// Memory to fill.
        buffer: Buffer,
    },
    /// Writes the first `len` bytes of `buffer`.
    Write {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Length in bytes; at most the buffer's.
        len: usize,
        /// Bytes to write.
        buffer: Buffer,
        /// Whether the request completes only when the bytes are durable (FUA).
        durable: bool,
    },
    /// Reads as many bytes as `memory` has into it. For memory of the caller's own; [`Op::Read`]
    /// uses buffers.
    ReadInto {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Memory to fill.
        memory: Memory,
    },
    /// Writes the bytes of `memory`. For memory of the caller's own; [`Op::Write`] uses buffers.
    WriteFrom {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Bytes to write.
        memory: Memory,
        /// Whether the request completes only when the bytes are durable (FUA).
        durable: bool,
    },
    /// Makes all acknowledged writes durable; see [`Object::sync`](crate::Object::sync).
    Sync,
    /// Makes acknowledged writes of a range durable; see
    /// [`Object::sync_range`](crate::Object::sync_range).
    SyncRange {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
    /// Discards a range; see [`Object::discard`](crate::Object::discard).
    Discard {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the request completes only when the discard is durable.
        durable: bool,
    },
    /// Zeroes a range; see [`Object::zero`](crate::Object::zero).
    Zero {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the request completes only when the zeros are durable.
        durable: bool,
    },
    /// Zeroes a range if the store can do so faster than by writing zeros: the file system of a
    /// file, a device that can free the range, a back end with an operation for it. Otherwise the
    /// request fails with [`Error::Io`] and the error number `EOPNOTSUPP`, and changes nothing.
    /// Parts of pages at the ends of the range are zeroed in the cache.
    ZeroFast {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the store may free the space of the range.
        free: bool,
        /// Whether the request completes only when the zeros are durable.
        durable: bool,
    },
    /// Finds the holes of a range; see [`Object::holes`](crate::Object::holes).
    Holes {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The most extents to find, holes and data in turn.
        extents_max: usize,
        /// The result, set in the completion. Ignored in a request.
        found: Holes,
    },
    /// Advises how a range will be used; see [`Object::advise`](crate::Object::advise).
    Advise {
        /// Offset in the object, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The advice.
        advice: Advice,
    },
}

/// A request to a [`Queue`](crate::Queue), with a number of the caller's choice.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// The caller's number, returned with the completion.
    pub user_data: u64,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The request's number.
    pub user_data: u64,
    /// The operation, with its buffer or memory.
    pub op: Op,
    /// The result of the operation.
    pub result: Result<(), Error>,
    /// The request ended while it was submitted: it waited neither for a store nor for another
    /// thread. A read that has succeeded at once is a hit.
    pub at_once: bool,
}

/// Events of the caller's file descriptor that [`Queue::wait_or`](crate::Queue::wait_or) waits
/// for, or returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// The descriptor is readable, or its peer has closed the connection.
    pub readable: bool,
    /// The descriptor is writable.
    pub writable: bool,
}
