//! [`Method`]: the methods of clearing a range of a store, and the order in which they are tried.
//! Not here: how an I/O is cut into parts (`io.rs`), the calls to the kernel (`uring.rs`,
//! `file.rs`).
//!
//! The cheapest method is tried first, and writing zeros last. Zeros go through the same queues as
//! every other I/O. If a method fails, the next one is tried; `EINTR`, `EAGAIN` and `ECANCELED`
//! retry the same method. For example, tmpfs punches holes but cannot zero a range, and a full file
//! system cannot allocate space but may still punch a hole. The I/O fails if the last method fails,
//! or after 64 attempts without progress.
//!
//! A hole punched in a device is guaranteed to read as zeros. `BLKDISCARD` does not promise that.

use rustix::fs::FallocateFlags;

use crate::op::Op;

/// How a part of a range is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Frees the space; a hole reads as zeros.
    PunchHole,
    /// Keeps the space allocated and marks it as zeros.
    ZeroRange,
    /// Writes zeros. Also the value for every I/O that does not clear.
    Write,
}

/// The methods that a clearing may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    All,
    /// Only those that write no zeros. A clearing fails with `EOPNOTSUPP` if there is none.
    Fast,
    /// Only the first one. For devices: the kernel punches a hole quickly or not at all, and zeroes
    /// a range that it keeps by writing, if need be.
    First,
}

impl Methods {
    /// Returns whether a method other than the first may be used.
    pub(crate) fn allow(self, method: Method) -> bool {
        match self {
            Methods::All => true,
            Methods::Fast => method != Method::Write,
            Methods::First => false,
        }
    }
}

impl Method {
    /// Returns the method to try first.
    pub(crate) fn first(op: Op) -> Method {
        match op {
            Op::Discard => Method::PunchHole,
            Op::Zero => Method::ZeroRange,
            Op::Read | Op::Write | Op::Sync => Method::Write,
        }
    }

    /// Returns the method to try after this one has failed. None if this was the last one.
    pub(crate) fn next(self, op: Op) -> Option<Method> {
        match (self, op) {
            (Method::PunchHole, Op::Discard) => Some(Method::ZeroRange),
            (Method::ZeroRange, Op::Zero) => Some(Method::PunchHole),
            (Method::PunchHole | Method::ZeroRange, _) => Some(Method::Write),
            (Method::Write, _) => None,
        }
    }

    /// Returns the flags of the `fallocate` call. None for [`Method::Write`], which makes no such
    /// call.
    pub(crate) fn flags(self) -> Option<FallocateFlags> {
        match self {
            Method::PunchHole => Some(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            Method::ZeroRange => Some(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
            Method::Write => None,
        }
    }
}
