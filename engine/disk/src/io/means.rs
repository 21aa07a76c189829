//! [`Means`]: the ways to clear a range of a store, and the order in which they are tried. Not
//! here: how an I/O is cut into parts (`io.rs`), who calls the kernel (`uring.rs`, `file.rs`).
//!
//! The cheapest means comes first; writing zeros, through the same queues as every other I/O, comes
//! last. When the file system or device refuses a means, for whatever reason, the next one is
//! tried. For example, tmpfs punches holes but cannot zero a range, and a full file system cannot
//! allocate but may still punch a hole. Only the refusal of the last means fails the I/O.
//!
//! A hole punched in a device is guaranteed to read as zeros. `BLKDISCARD` does not promise that.

use rustix::fs::FallocateFlags;

use crate::op::Op;

/// How a part of a range is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// Frees the space; a hole reads as zeros.
    Hole,
    /// Keeps the space and marks it as zeros.
    Marked,
    /// Writes zeros. Also the value for every I/O that does not clear.
    Written,
}

impl Means {
    /// Returns the means to try first.
    pub(crate) fn first(op: Op) -> Means {
        match op {
            Op::Discard => Means::Hole,
            Op::Zero => Means::Marked,
            Op::Read | Op::Write | Op::Sync => Means::Written,
        }
    }

    /// Returns the means to try after this one was refused.
    pub(crate) fn next(self, op: Op) -> Option<Means> {
        match (self, op) {
            (Means::Hole, Op::Discard) => Some(Means::Marked),
            (Means::Marked, Op::Zero) => Some(Means::Hole),
            (Means::Hole | Means::Marked, _) => Some(Means::Written),
            (Means::Written, _) => None,
        }
    }

    /// Returns the flags of the `fallocate` call. None for zeros, which are written.
    pub(crate) fn flags(self) -> Option<FallocateFlags> {
        match self {
            Means::Hole => Some(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            Means::Marked => Some(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
            Means::Written => None,
        }
    }
}
