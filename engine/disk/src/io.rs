//! One I/O on its way: how it is cut in parts, and how a part goes on after what the kernel (or the
//! simulated disk) said. Protects the promise that a completion is all or an error. The same code
//! serves every engine, so that the short transfers of the simulated disk test what the kernel's
//! seldom do. Not here: queues, locks, system calls, how a range is cleared (`clear.rs`).

use crate::buffer::{BufferList, IoBuffer};
use crate::clear::Means;
use crate::error::IoError;
use crate::store::Store;

/// What an I/O does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Store to memory. Bytes past the end of the store are zeros.
    Read,
    /// Memory to store. Bytes past the end of the store are dropped.
    Write,
    /// Makes every write that completed before it durable (`fdatasync`). Offset and buffers are
    /// ignored.
    Sync,
    /// Makes a range read as zeros and keeps its space, as far as the store can do that. Has no
    /// buffers ([`Ring::push_clear`]).
    ///
    /// [`Ring::push_clear`]: crate::Ring::push_clear
    Zero,
    /// Makes a range read as zeros and gives its space back, as far as the store can do that.
    Discard,
}

impl Op {
    /// Whether it clears a range.
    pub(crate) fn clears(self) -> bool {
        matches!(self, Op::Zero | Op::Discard)
    }

    /// Whether it changes what the store holds.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Op::Write | Op::Zero | Op::Discard)
    }
}

/// A part that moved nothing this often in a row has failed. The kernel answers EINTR, EAGAIN or a
/// short count a few times at most; more is a device that will not answer otherwise.
const STALLS_MAX: u8 = 64;

/// Parts that one I/O can have: what goes directly, and what goes through the tail's buffered
/// descriptor.
pub(crate) const PARTS: usize = 2;

/// Which descriptor of a file a part uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Main,
    /// The buffered descriptor of the tail unit (`gate.rs`, L2).
    Tail,
}

/// A range of one I/O that one descriptor serves. `next .. end` (bytes of the store) is still to
/// do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) channel: Channel,
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// A multiple of this must be moved at a time: the block of a direct descriptor, else 1.
    granule_bytes: u32,
    stalls: u8,
    /// How it is cleared, if it is.
    pub(crate) means: Means,
}

impl Part {
    const NONE: Part = Part::new(Channel::Main, 0, 0, 1, Means::Written);

    const fn new(channel: Channel, next: u64, end: u64, granule_bytes: u32, means: Means) -> Part {
        Part { channel, next, end, granule_bytes, stalls: 0, means }
    }

    pub(crate) fn remaining_bytes(&self) -> u64 {
        self.end - self.next
    }
}

/// An I/O between `push` and the ring's inbox. It owns its buffers, and keeps its store open.
pub(crate) struct Io {
    pub(crate) store: Store,
    pub(crate) token: u64,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) buffers: BufferList,
    pub(crate) parts: [Part; PARTS],
    /// Parts that are not finished. A sync has one, with an empty range.
    pub(crate) parts_left: u8,
    /// The shard of the store's gate that this I/O has entered (`gate.rs`, L1).
    pub(crate) gate_shard: Option<u8>,
    pub(crate) error: Option<IoError>,
}

impl Io {
    pub(crate) fn new(store: &Store, op: Op, offset: u64, buffers: &[IoBuffer], token: u64) -> Io {
        let (offset, buffers) = if op == Op::Sync { (0, &[][..]) } else { (offset, buffers) };
        debug_assert!(!op.clears(), "a range is cleared without buffers");
        Io::with(store, op, offset, BufferList::new(buffers), token)
    }

    /// One that clears a range.
    pub(crate) fn clear(store: &Store, op: Op, offset: u64, len_bytes: u64, token: u64) -> Io {
        assert!(op.clears(), "{op:?} clears nothing");
        Io::with(store, op, offset, BufferList::Zeros(len_bytes), token)
    }

    fn with(store: &Store, op: Op, offset: u64, buffers: BufferList, token: u64) -> Io {
        Io {
            store: store.clone(),
            token,
            op,
            offset,
            buffers,
            parts: [Part::NONE; PARTS],
            parts_left: 0,
            gate_shard: None,
            error: None,
        }
    }

    /// Cuts the I/O to a store of `len_bytes` and gives zeros to what a read asks past the end.
    /// Bytes from `tail_start` on go through the tail's descriptor; the others move in
    /// multiples of `granule_bytes`.
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
        let means = Means::first(self.op);
        for part in [
            Part::new(Channel::Main, self.offset, middle, granule_bytes, means),
            Part::new(Channel::Tail, middle, end_inside, 1, means),
        ] {
            if part.remaining_bytes() > 0 {
                self.parts[self.parts_left as usize] = part;
                self.parts_left += 1;
            }
        }
    }

    /// The part that `index` names starts or goes on: the bytes to skip in the buffers, and how
    /// many to move.
    pub(crate) fn span(&self, index: usize) -> (u64, u64) {
        let part = &self.parts[index];
        (part.next - self.offset, part.remaining_bytes())
    }

    /// Takes what became of a part's latest attempt: bytes moved or an error number. True if the
    /// part must be tried again; else it is finished, well or not, and `parts_left` has gone
    /// down.
    pub(crate) fn advance(&mut self, index: usize, outcome: Result<usize, i32>) -> bool {
        let again = match outcome {
            Ok(_) if self.op == Op::Sync => false,
            Ok(_) if self.parts[index].means != Means::Written => {
                self.parts[index].next = self.parts[index].end;
                false
            }
            Ok(moved_bytes) => self.advance_moved(index, moved_bytes as u64),
            // A thread that exits cancels what it had handed to the kernel's workers; the I/O is ours, not
            // the thread's.
            Err(libc::EINTR | libc::EAGAIN | libc::ECANCELED) => self.stall(index, libc::EAGAIN),
            Err(errno) => match self.parts[index].means.next(self.op) {
                Some(means) => {
                    self.parts[index].means = means;
                    true
                }
                None => {
                    self.fail(errno, None);
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
        // Nothing, or a direct transfer that ends inside a block: the file ends here, shorter than we were
        // told.
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
            self.fail(errno, Some("gave up: no progress after many tries"));
        }
        again
    }

    /// The I/O has failed; the first reason stays.
    pub(crate) fn fail(&mut self, errno: i32, reason: Option<&'static str>) {
        if self.error.is_none() {
            let len_bytes = self.buffers.len_bytes();
            self.error =
                Some(IoError::new(self.store.name(), self.op, self.offset, len_bytes, errno, reason));
        }
    }

    /// Refuses what no store can do. True if the I/O was refused.
    pub(crate) fn refuse_invalid(&mut self) -> bool {
        if self.op.changes() && self.store.read_only() {
            self.fail(libc::EROFS, Some("the store was opened for reading only"));
        } else if self.offset.checked_add(self.buffers.len_bytes()).is_none_or(|end| end > i64::MAX as u64) {
            self.fail(libc::EINVAL, Some("the range goes past the largest offset"));
        }
        self.error.is_some()
    }

    /// In debug builds, panics on memory or ranges that direct I/O cannot take. The end of the
    /// store needs no alignment: it is cut.
    pub(crate) fn debug_assert_aligned(&self) {
        if cfg!(debug_assertions) && self.op != Op::Sync {
            let block = u64::from(self.store.block_bytes());
            assert!(self.offset.is_multiple_of(block), "offset {} is not whole blocks", self.offset);
            let end = self.offset.saturating_add(self.buffers.len_bytes());
            assert!(
                !self.op.clears() || end.is_multiple_of(block) || end >= self.store.len_bytes(),
                "ends at {end}"
            );
            for buffer in self.buffers.as_slice() {
                assert!(
                    buffer.ptr.addr().is_multiple_of(crate::buffer::ALIGNMENT_BYTES),
                    "{buffer:?} is not aligned"
                );
                assert!((buffer.len as u64).is_multiple_of(block), "{buffer:?} is not whole blocks");
            }
        }
    }
}
