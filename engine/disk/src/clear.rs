//! How a range of a store comes to read as zeros: by the cheapest means that its file system or
//! device has, and at last by writing zeros, through the same queues as every other I/O. Not here:
//! what is cut where (`io.rs`), who calls the kernel (`uring.rs`, `file.rs`).
//!
//! A means that is refused, for whatever reason, is followed by the next: tmpfs punches holes but
//! zeroes no range, a file system that is full allocates nothing but may still punch. Only the last
//! one's refusal is the I/O's. A hole in a device is one that reads as zeros for certain, unlike
//! what `BLKDISCARD` promises.

use crate::buffer::IoBuffer;
use crate::io::Op;

/// By what a part of a range is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// The space goes back; a hole reads as zeros.
    Hole,
    /// The space stays, and is marked as zeros.
    Marked,
    /// Zeros are written. Also what all I/O has that clears nothing.
    Written,
}

impl Means {
    /// What is tried first.
    pub(crate) fn first(op: Op) -> Means {
        match op {
            Op::Discard => Means::Hole,
            Op::Zero => Means::Marked,
            Op::Read | Op::Write | Op::Sync => Means::Written,
        }
    }

    /// What is tried after this was refused.
    pub(crate) fn next(self, op: Op) -> Option<Means> {
        match (self, op) {
            (Means::Hole, Op::Discard) => Some(Means::Marked),
            (Means::Marked, Op::Zero) => Some(Means::Hole),
            (Means::Hole | Means::Marked, _) => Some(Means::Written),
            (Means::Written, _) => None,
        }
    }

    /// How `fallocate` is asked for it.
    pub(crate) fn mode(self) -> Option<i32> {
        match self {
            Means::Hole => Some(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
            Means::Marked => Some(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE),
            Means::Written => None,
        }
    }
}

const ZEROS_BYTES: usize = 64 << 10;

/// Pieces of zeros that one call writes: 1 MiB.
const PIECES_MAX: usize = 16;

#[repr(align(4096))]
struct Zeros([u8; ZEROS_BYTES]);

static ZEROS: Zeros = Zeros([0; ZEROS_BYTES]);

/// The pieces of a write of up to `len` zeros. They are only ever read.
pub(crate) fn zeros(mut len: u64, out: &mut Vec<IoBuffer>) {
    while len > 0 && out.len() < PIECES_MAX {
        let piece = len.min(ZEROS_BYTES as u64);
        out.push(IoBuffer { ptr: ZEROS.0.as_ptr().cast_mut(), len: piece as usize });
        len -= piece;
    }
}
