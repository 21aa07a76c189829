//! The memory that an I/O moves: [`IoBuffer`] is a caller's buffer, [`BufferList`] the buffers of a
//! pending I/O, and [`AlignedBytes`] owned memory that is aligned for direct I/O. The copies
//! between buffers and stores in memory are here too, so that `memory.rs` and `sim/` need no
//! `unsafe`. Not here: the rule that says which party may access a buffer, and when (`Ring::push`).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The alignment of every buffer, in bytes. Direct I/O needs it, and the cache's frames, which are
/// pages, have it.
pub(crate) const ALIGNMENT_BYTES: usize = 4096;

/// The most buffers that one system call takes (`IOV_MAX`). Further calls transfer the rest of a
/// longer list, as after a short transfer.
pub(crate) const VECTORS_MAX: usize = 1024;

/// The most bytes that one system call moves (`MAX_RW_COUNT`, a multiple of the alignment).
pub(crate) const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// The length of [`ZEROS`].
const ZEROS_BYTES: usize = 64 << 10;

/// The most buffers of zeros that one system call writes: 1 MiB in all.
const ZEROS_PIECES_MAX: usize = 16;

#[repr(align(4096))]
struct Zeros([u8; ZEROS_BYTES]);

/// The source of every write of zeros. Only ever read.
static ZEROS: Zeros = Zeros([0; ZEROS_BYTES]);

/// One buffer of an I/O. Has the layout of `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IoBuffer {
    /// The first byte. In I/O for a ring, aligned to 4096 bytes.
    pub ptr: *mut u8,
    /// The length in bytes. In I/O for a ring, a multiple of the store's block.
    pub len: usize,
}

const _: () = assert!(size_of::<IoBuffer>() == size_of::<libc::iovec>());
const _: () = assert!(std::mem::offset_of!(IoBuffer, ptr) == std::mem::offset_of!(libc::iovec, iov_base));
const _: () = assert!(std::mem::offset_of!(IoBuffer, len) == std::mem::offset_of!(libc::iovec, iov_len));

// SAFETY: an `IoBuffer` is an address and a length; every use of the memory is `unsafe` by itself.
unsafe impl Send for IoBuffer {}
// SAFETY: as above; sharing the address gives no access.
unsafe impl Sync for IoBuffer {}

/// The buffers of one pending I/O. One buffer, the usual case, needs no allocation.
pub(crate) enum BufferList {
    /// A range of zeros of this many bytes, for an I/O that clears.
    Zeros(u64),
    One(IoBuffer),
    Many(Box<[IoBuffer]>),
}

impl BufferList {
    pub(crate) fn new(buffers: &[IoBuffer]) -> BufferList {
        match buffers {
            [one] => BufferList::One(*one),
            many => BufferList::Many(many.into()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[IoBuffer] {
        match self {
            BufferList::Zeros(_) => &[],
            BufferList::One(one) => std::slice::from_ref(one),
            BufferList::Many(many) => many,
        }
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            BufferList::Zeros(len_bytes) => *len_bytes,
            _ => self.as_slice().iter().map(|buffer| buffer.len as u64).sum(),
        }
    }

    /// Replaces `out` with the pieces that hold bytes `skip .. skip + len`, up to the most that one
    /// system call takes.
    pub(crate) fn pieces(&self, skip: u64, len: u64, out: &mut Vec<IoBuffer>) {
        out.clear();
        if let BufferList::Zeros(_) = self {
            let mut left = len;
            while left > 0 && out.len() < ZEROS_PIECES_MAX {
                let piece = left.min(ZEROS_BYTES as u64);
                out.push(IoBuffer { ptr: ZEROS.0.as_ptr().cast_mut(), len: piece as usize });
                left -= piece;
            }
            return;
        }
        let mut room = TRANSFER_BYTES_MAX as u64;
        self.each_piece(skip, len, |piece| {
            if out.len() < VECTORS_MAX && room > 0 {
                let len = (piece.len as u64).min(room);
                room -= len;
                out.push(IoBuffer { ptr: piece.ptr, len: len as usize });
            }
        });
    }

    fn each_piece(&self, mut skip: u64, mut len: u64, mut f: impl FnMut(IoBuffer)) {
        for buffer in self.as_slice() {
            if len == 0 {
                return;
            }
            if skip >= buffer.len as u64 {
                skip -= buffer.len as u64;
                continue;
            }
            let take = (buffer.len as u64 - skip).min(len);
            f(IoBuffer { ptr: buffer.ptr.wrapping_add(skip as usize), len: take as usize });
            skip = 0;
            len -= take;
        }
    }

    /// Fills bytes `skip .. skip + len` of the buffers with zeros. Called only by the pending I/O
    /// that owns the buffers.
    pub(crate) fn fill_zero(&self, skip: u64, len: u64) {
        self.each_piece(skip, len, |piece| {
            // SAFETY: by the contract of `Ring::push`, the memory is valid and no other party
            // accesses it until the I/O is delivered.
            unsafe { std::ptr::write_bytes(piece.ptr, 0, piece.len) };
        });
    }

    /// Copies `bytes` into the buffers, from byte `skip` on. Called only by the pending I/O that
    /// owns the buffers.
    pub(crate) fn copy_in(&self, skip: u64, bytes: &[u8]) {
        let mut done = 0;
        self.each_piece(skip, bytes.len() as u64, |piece| {
            let source = &bytes[done..done + piece.len];
            // SAFETY: by the contract of `Ring::push`, the memory is valid and no other party
            // accesses it until the I/O is delivered.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), piece.ptr, piece.len) };
            done += piece.len;
        });
    }

    /// Fills `bytes` from the buffers, from byte `skip` on. Called only by the pending I/O that
    /// owns the buffers.
    pub(crate) fn copy_out(&self, skip: u64, bytes: &mut [u8]) {
        if let BufferList::Zeros(_) = self {
            return bytes.fill(0);
        }
        let mut done = 0;
        self.each_piece(skip, bytes.len() as u64, |piece| {
            let target = &mut bytes[done..done + piece.len];
            // SAFETY: by the contract of `Ring::push`, the memory is valid and not written until
            // the I/O is delivered.
            unsafe { std::ptr::copy_nonoverlapping(piece.ptr, target.as_mut_ptr(), piece.len) };
            done += piece.len;
        });
    }
}

/// Owned memory, zeroed at first and aligned to 4096 bytes for direct I/O.
///
/// ```
/// let mut bytes = octavo_disk::AlignedBytes::new(8192);
/// bytes[0] = 1;
/// assert_eq!(bytes.io_buffer().len, 8192);
/// ```
pub struct AlignedBytes {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the memory is owned, like a `Box<[u8]>`'s.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads. The pointer that `io_buffer` returns is used under the contract
// of `Ring::push`.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Allocates `len_bytes` zero bytes at an address that is a multiple of 4096. Aborts when
    /// memory is exhausted, as `Vec` does.
    pub fn new(len_bytes: usize) -> AlignedBytes {
        let layout = Self::layout(len_bytes);
        // SAFETY: `layout` never has a size of zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBytes { start, len_bytes }
    }

    /// Returns the whole memory as one buffer of an I/O.
    pub fn io_buffer(&self) -> IoBuffer {
        IoBuffer { ptr: self.start.as_ptr(), len: self.len_bytes }
    }

    fn layout(len_bytes: usize) -> Layout {
        Layout::from_size_align(len_bytes.max(1), ALIGNMENT_BYTES)
            .expect("the length fits in the address space")
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this value owns `len_bytes` initialised bytes from `start` on. While an I/O that
        // writes them is pending, its caller accesses none of them (`Ring::push`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this same layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len_bytes)) };
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len_bytes)
    }
}
