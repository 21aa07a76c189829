//! [`Io`]: one I/O between `push` and its completion. This file cuts the I/O into parts and
//! continues a part after each answer of the kernel (or of the simulated disk), so that a
//! completion means all bytes or an error. Every engine runs the same code: the short transfers of
//! the simulated disk test what real kernels seldom do. Not here: queues, locks, system calls, the
//! methods of clearing (`io/method.rs`).

pub(crate) mod buffer;
pub(crate) mod method;
pub(crate) mod single;
pub(crate) mod sink;
pub(crate) mod survey;

use crate::error::{IoError, Reason};
use crate::io::buffer::{ALIGNMENT_BYTES, BufferList, IoBuffer};
use crate::io::method::{Method, Methods};
use crate::io::survey::Survey;
use crate::op::Op;
use crate::sync::Arc;

/// Attempts in a row without progress after which a part fails. The kernel answers EINTR, EAGAIN or
/// a short count a few times at most; a device that does so more often will not recover.
const STALLS_MAX: u8 = 64;

/// The reason of a fast clearing that the store refuses.
pub(crate) const NOT_FAST: Reason = Reason::Borrowed("the store cannot clear a range without writing zeros");

/// The most parts that one I/O has: one for the direct descriptor, one for the tail's buffered
/// descriptor.
pub(crate) const PARTS: usize = 2;

/// The descriptor of a file that a part uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// The direct descriptor, if the store is direct.
    Main,
    /// The buffered descriptor of the tail unit (`gate.rs`, L2).
    Tail,
}

/// The range of one I/O that one descriptor serves. Bytes `next .. end` of the store are still to
/// be moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) channel: Channel,
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// The unit of every transfer, in bytes: the block of a direct descriptor, else 1.
    granule_bytes: u32,
    stalls: u8,
    /// How the part is cleared, if the operation clears.
    pub(crate) method: Method,
}

impl Part {
    const NONE: Part = Part::new(Channel::Main, 0, 0, 1, Method::Write);

    const fn new(channel: Channel, next: u64, end: u64, granule_bytes: u32, method: Method) -> Part {
        Part { channel, next, end, granule_bytes, stalls: 0, method }
    }

    pub(crate) fn remaining_bytes(&self) -> u64 {
        self.end - self.next
    }
}

/// One I/O between `push` and its completion. Owns its list of buffers, and knows no store.
pub(crate) struct Io {
    pub(crate) token: u64,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) buffers: BufferList,
    pub(crate) parts: [Part; PARTS],
    /// Unfinished parts. A sync has one, with an empty range.
    pub(crate) parts_left: u8,
    /// The methods of clearing that may be used.
    pub(crate) methods: Methods,
    /// The survey that this I/O makes instead of moving bytes.
    pub(crate) survey: Option<Arc<Survey>>,
    /// The first failure: an error number, and a reason that explains it.
    failure: Option<(i32, Option<Reason>)>,
}

impl Io {
    /// Creates an I/O that moves bytes or syncs.
    pub(crate) fn new(op: Op, offset: u64, buffers: &[IoBuffer], token: u64) -> Io {
        let (offset, buffers) = if op == Op::Sync { (0, &[][..]) } else { (offset, buffers) };
        debug_assert!(!op.clears(), "{op:?} takes a range, not buffers: use push_clear");
        Io::with(op, offset, BufferList::new(buffers), token)
    }

    /// Creates an I/O that clears a range.
    pub(crate) fn clear(op: Op, offset: u64, len_bytes: u64, token: u64) -> Io {
        assert!(op.clears(), "{op:?} does not clear a range: use push");
        Io::with(op, offset, BufferList::Zeros(len_bytes), token)
    }

    /// Creates a survey. It moves no bytes.
    pub(crate) fn survey(survey: Arc<Survey>, token: u64) -> Io {
        Io { survey: Some(survey), ..Io::with(Op::Read, 0, BufferList::new(&[]), token) }
    }

    fn with(op: Op, offset: u64, buffers: BufferList, token: u64) -> Io {
        let parts = [Part::NONE; PARTS];
        let (methods, survey) = (Methods::All, None);
        Io { token, op, offset, buffers, parts, parts_left: 0, methods, survey, failure: None }
    }

    /// Returns the method to try after the present one of a part has failed.
    pub(crate) fn next_method(&self, index: usize) -> Option<Method> {
        let next = self.parts[index].method.next(self.op);
        next.filter(|method| self.methods.allow(*method))
    }

    /// Cuts the I/O at the end of a store of `len_bytes`, and fills the part of a read past that
    /// end with zeros. Bytes from `tail_start` on go through the tail's descriptor. The other bytes
    /// move in multiples of `granule_bytes`.
    pub(crate) fn cut(&mut self, len_bytes: u64, tail_start: u64, granule_bytes: u32) {
        if self.op == Op::Sync {
            self.parts_left = 1;
            return;
        }
        let end = self.offset + self.buffers.len_bytes();
        let end_inside = end.min(len_bytes).max(self.offset);
        if self.op == Op::Read {
            self.buffers.fill_zero(end_inside - self.offset, end - end_inside);
        }
        let middle = tail_start.clamp(self.offset, end_inside);
        let method = Method::first(self.op);
        for part in [
            Part::new(Channel::Main, self.offset, middle, granule_bytes, method),
            Part::new(Channel::Tail, middle, end_inside, 1, method),
        ] {
            if part.remaining_bytes() > 0 {
                self.parts[self.parts_left as usize] = part;
                self.parts_left += 1;
            }
        }
    }

    /// Returns the span of the part's next attempt: the bytes to skip in the buffers, and the bytes
    /// to move.
    pub(crate) fn span(&self, index: usize) -> (u64, u64) {
        let part = &self.parts[index];
        (part.next - self.offset, part.remaining_bytes())
    }

    /// Records the outcome of a part's latest attempt: the bytes moved, or an error number. Returns
    /// true if the part needs another attempt. Otherwise the part is finished, successfully or not,
    /// and `parts_left` has gone down.
    pub(crate) fn advance(&mut self, index: usize, outcome: Result<usize, i32>) -> bool {
        let again = match outcome {
            Ok(_) if self.op == Op::Sync => false,
            Ok(_) if self.parts[index].method != Method::Write => {
                self.parts[index].next = self.parts[index].end;
                false
            }
            Ok(moved_bytes) => self.advance_moved(index, moved_bytes as u64),
            // A thread that exits cancels the I/O that it had handed to the kernel's workers. The
            // I/O belongs to the ring and not to that thread, so it is tried again.
            Err(libc::EINTR | libc::EAGAIN | libc::ECANCELED) => self.stall(index, libc::EAGAIN),
            Err(errno) => match self.next_method(index) {
                Some(method) => {
                    self.parts[index].method = method;
                    true
                }
                None if self.methods == Methods::All => {
                    self.fail(errno, None);
                    false
                }
                None => {
                    self.fail(libc::EOPNOTSUPP, Some(NOT_FAST));
                    false
                }
            },
        };
        if !again {
            self.parts_left -= 1;
        }
        again
    }

    fn advance_moved(&mut self, index: usize, moved_bytes: u64) -> bool {
        let part = &mut self.parts[index];
        let moved_bytes = moved_bytes.min(part.remaining_bytes());
        let granule = u64::from(part.granule_bytes);
        let whole_bytes = moved_bytes - moved_bytes % granule;
        if moved_bytes == part.remaining_bytes() {
            part.next = part.end;
            return false;
        }
        // An empty transfer, or a direct one that ends inside a block: the file is shorter than the
        // store's length.
        if self.op == Op::Read && (moved_bytes == 0 || whole_bytes != moved_bytes) {
            let from = part.next + moved_bytes;
            let end = part.end;
            part.next = end;
            self.buffers.fill_zero(from - self.offset, end - from);
            return false;
        }
        part.next += whole_bytes;
        if whole_bytes == 0 {
            return self.stall(index, libc::EIO);
        }
        part.stalls = 0;
        true
    }

    fn stall(&mut self, index: usize, errno: i32) -> bool {
        let part = &mut self.parts[index];
        part.stalls += 1;
        let again = part.stalls < STALLS_MAX;
        if !again {
            self.fail(errno, Some("gave up after 64 attempts without progress".into()));
        }
        again
    }

    /// Fails the I/O. The first failure is the one reported.
    pub(crate) fn fail(&mut self, errno: i32, reason: Option<Reason>) {
        self.failure.get_or_insert((errno, reason));
    }

    /// Gives the failure of the I/O, if it has failed without a reason, this one.
    pub(crate) fn explain(&mut self, reason: Option<Reason>) {
        if let Some((_, none @ None)) = &mut self.failure {
            *none = reason;
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns the result of the I/O on the store of this name.
    pub(crate) fn result(&self, store: &str) -> Result<(), IoError> {
        let Some((errno, reason)) = &self.failure else { return Ok(()) };
        let len_bytes = self.buffers.len_bytes();
        Err(IoError::new(store, self.op, self.offset, len_bytes, *errno, reason.clone()))
    }

    /// Fails an I/O that changes a read-only store, or whose range ends past the largest offset.
    /// Returns whether the I/O has failed.
    pub(crate) fn refuse_invalid(&mut self, is_read_only: bool) -> bool {
        if self.op.changes() && is_read_only {
            self.fail(libc::EROFS, Some("the store was opened read-only".into()));
        } else if self.offset.checked_add(self.buffers.len_bytes()).is_none_or(|end| end > i64::MAX as u64) {
            self.fail(libc::EINVAL, Some("the range ends past the largest offset (2^63 - 1)".into()));
        }
        self.has_failed()
    }

    /// Panics on memory and ranges that direct I/O in blocks of `block_bytes` cannot take. The end
    /// of a store of `len_bytes` needs no alignment: the I/O is cut there.
    pub(crate) fn assert_aligned(&self, block_bytes: u32, len_bytes: u64) {
        if self.op == Op::Sync {
            return;
        }
        let (offset, block) = (self.offset, u64::from(block_bytes));
        assert!(
            offset.is_multiple_of(block),
            "offset {offset} is not a multiple of the block ({block} bytes)"
        );
        let end = offset.saturating_add(self.buffers.len_bytes());
        assert!(
            !self.op.clears() || end.is_multiple_of(block) || end >= len_bytes,
            "the cleared range ends at {end}, which is not a multiple of the block ({block} bytes)"
        );
        for buffer in self.buffers.as_slice() {
            assert!(buffer.ptr.addr().is_multiple_of(ALIGNMENT_BYTES), "{buffer:?} is not aligned to 4096");
            assert!(
                (buffer.len as u64).is_multiple_of(block),
                "the length of {buffer:?} is not a multiple of the block ({block} bytes)"
            );
        }
    }
}
