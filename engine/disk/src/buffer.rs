//! The memory that an I/O moves: [`IoBuffer`] as callers name it, [`BufferList`] as a pending I/O
//! keeps it, and [`AlignedBytes`], memory fit for direct I/O. Copies between this memory and stores
//! kept in memory are here, so that `memory.rs` and `sim/` need no `unsafe`. Not here: who may
//! touch the memory when; that is `Ring::push`'s contract.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::clear;

/// Direct I/O wants memory aligned like this; so does the engine, whose frames are pages.
pub(crate) const ALIGNMENT_BYTES: usize = 4096;

/// The kernel takes no more buffers than this in one call (`IOV_MAX`); the rest of a longer list
/// follows as after a short transfer.
pub(crate) const VECTORS_MAX: usize = 1024;

/// The kernel moves at most this much in one call (`MAX_RW_COUNT`, kept a multiple of the
/// alignment).
pub(crate) const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// One piece of memory of an I/O. Its layout is that of `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IoBuffer {
    /// The first byte, aligned to 4096.
    pub ptr: *mut u8,
    /// Its length in bytes, a multiple of the store's block.
    pub len: usize,
}

const _: () = assert!(size_of::<IoBuffer>() == size_of::<libc::iovec>());
const _: () = assert!(std::mem::offset_of!(IoBuffer, ptr) == std::mem::offset_of!(libc::iovec, iov_base));
const _: () = assert!(std::mem::offset_of!(IoBuffer, len) == std::mem::offset_of!(libc::iovec, iov_len));

// SAFETY: an `IoBuffer` is an address and a length; using it is `unsafe` in every place that does.
unsafe impl Send for IoBuffer {}
// SAFETY: as above; sharing the address gives no access.
unsafe impl Sync for IoBuffer {}

/// The buffers of one pending I/O. One buffer, the usual case, needs no allocation.
pub(crate) enum BufferList {
    /// So many zeros, for a range that is cleared.
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

    /// Replaces `out` by the pieces that hold bytes `skip .. skip + len`, as far as one call to the
    /// kernel takes them.
    pub(crate) fn pieces(&self, skip: u64, len: u64, out: &mut Vec<IoBuffer>) {
        out.clear();
        if let BufferList::Zeros(_) = self {
            return clear::zeros(len, out);
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

    /// Fills bytes `skip .. skip + len` with zeros. Called only for the I/O that owns the buffers,
    /// while it is pending.
    pub(crate) fn fill_zero(&self, skip: u64, len: u64) {
        self.each_piece(skip, len, |piece| {
            // SAFETY: `Ring::push` promised that the memory is valid and nobody else's until the I/O is
            // delivered.
            unsafe { std::ptr::write_bytes(piece.ptr, 0, piece.len) };
        });
    }

    /// Copies `bytes` over the buffers from byte `skip` on. Called only for the I/O that owns the
    /// buffers, while it is pending.
    pub(crate) fn copy_in(&self, skip: u64, bytes: &[u8]) {
        let mut done = 0;
        self.each_piece(skip, bytes.len() as u64, |piece| {
            let source = &bytes[done..done + piece.len];
            // SAFETY: `Ring::push` promised that the memory is valid and nobody else's until the I/O is
            // delivered.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), piece.ptr, piece.len) };
            done += piece.len;
        });
    }

    /// Copies the buffers from byte `skip` on over `bytes`. Called only for the I/O that owns the
    /// buffers, while it is pending.
    pub(crate) fn copy_out(&self, skip: u64, bytes: &mut [u8]) {
        if let BufferList::Zeros(_) = self {
            return bytes.fill(0);
        }
        let mut done = 0;
        self.each_piece(skip, bytes.len() as u64, |piece| {
            let target = &mut bytes[done..done + piece.len];
            // SAFETY: `Ring::push` promised that the memory is valid and not written until the I/O is
            // delivered.
            unsafe { std::ptr::copy_nonoverlapping(piece.ptr, target.as_mut_ptr(), piece.len) };
            done += piece.len;
        });
    }
}

/// Zeroed memory aligned for direct I/O, freed on drop.
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
// SAFETY: shared access reads only; what `io_buffer` hands out is used under `Ring::push`'s
// contract.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `len_bytes` zero bytes at an address that is a multiple of 4096. Aborts when memory is
    /// exhausted, as `Vec` does.
    pub fn new(len_bytes: usize) -> AlignedBytes {
        let layout = Self::layout(len_bytes);
        // SAFETY: `layout` never has a size of zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBytes { start, len_bytes }
    }

    /// The whole memory as the buffer of an I/O.
    pub fn io_buffer(&self) -> IoBuffer {
        IoBuffer { ptr: self.start.as_ptr(), len: self.len_bytes }
    }

    fn layout(len_bytes: usize) -> Layout {
        Layout::from_size_align(len_bytes.max(1), ALIGNMENT_BYTES)
            .expect("a length that an address space holds")
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len_bytes` initialised bytes are owned from `start` on; an I/O that writes them is
        // pending only while its caller keeps away (`Ring::push`).
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
