//! [`BackendStore`]: a back end that a user wrote, as a target. Opens it, and changes its length.
//! Not here: the trait, and the life of an I/O (`request.rs`, B1 to B6).

use std::io;

use crate::error::{IoError, OpenError, Reason, errno_and_reason};
use crate::identity::Identity;
use crate::io::Io;
use crate::io::single::Single;
use crate::io::sink::Sink;
use crate::op::Op;
use crate::store::request::{Backend, Carrier, Flight};
use crate::store::target::Target;
use crate::sync::Arc;

pub(crate) struct BackendStore {
    carrier: Arc<Carrier>,
    read_only: bool,
    identity: Option<Identity>,
}

/// The error of all I/O in a child of `fork` (B6).
const FORKED: Reason = Reason::Borrowed("a child of fork cannot use its parent's back end");

impl BackendStore {
    pub(crate) fn open(name: &str, backend: Box<dyn Backend>) -> Result<BackendStore, OpenError> {
        let invalid = |reason| OpenError::Invalid { path: name.into(), reason };
        let step = "the back end does not tell its length";
        let failed = |source| OpenError::Io { path: name.into(), step, source };
        let len_bytes = backend.len_bytes().map_err(failed)?;
        check_len(len_bytes).map_err(|reason| invalid(reason.into()))?;
        let (read_only, identity) = (backend.read_only(), backend.identity());
        let carrier = Arc::new(Carrier::new(name, backend, len_bytes));
        let block_bytes = carrier.block_bytes;
        if !block_bytes.is_power_of_two() || !(512..=4096).contains(&block_bytes) {
            return Err(invalid(format!(
                "the back end has blocks of {block_bytes} bytes, not of a power of two from 512 to 4096"
            )));
        }
        let fill_bytes = carrier.fill_bytes;
        if fill_bytes != 0 && !fill_bytes.is_power_of_two() {
            return Err(invalid(format!(
                "the back end has fills of {fill_bytes} bytes, which is no power of two"
            )));
        }
        Ok(BackendStore { carrier, read_only, identity })
    }

    /// Calls `change` with no I/O in flight, and publishes the length that it returns.
    fn alone(&self, op: Op, change: impl FnOnce() -> io::Result<u64>) -> Result<u64, IoError> {
        // In a child of `fork` the gate must not be touched (B6).
        let _closed = match self.carrier.is_of_this_process() {
            // L3.
            true => Some(self.carrier.gate.close()),
            false => None,
        };
        let len_bytes = self.length(op, change)?;
        self.carrier.publish_len_bytes(len_bytes);
        Ok(len_bytes)
    }

    /// Returns a length that `tell` gets from the back end. Its error becomes one of this store and
    /// `op`.
    fn length(&self, op: Op, tell: impl FnOnce() -> io::Result<u64>) -> Result<u64, IoError> {
        let carrier = &self.carrier;
        let failed = |errno, reason| IoError::new(&carrier.name, op, 0, 0, errno, reason);
        if !carrier.is_of_this_process() {
            return Err(failed(libc::EIO, Some(FORKED)));
        }
        let len_bytes = tell().map_err(|error| {
            let (errno, reason) = errno_and_reason(&error);
            failed(errno, reason)
        })?;
        check_len(len_bytes).map_err(|reason| failed(libc::EFBIG, Some(reason.into())))?;
        Ok(len_bytes)
    }
}

fn check_len(len_bytes: u64) -> Result<(), &'static str> {
    let fits = i64::try_from(len_bytes).is_ok();
    if fits { Ok(()) } else { Err("the back end is longer than the longest store (2^63 - 1 bytes)") }
}

impl Target for BackendStore {
    fn len_bytes(&self) -> u64 {
        self.carrier.len_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.carrier.block_bytes
    }

    fn fill_bytes(&self) -> u32 {
        self.carrier.fill_bytes
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn identity(&self) -> Option<Identity> {
        self.identity.clone()
    }

    fn set_len_bytes(&self, len_bytes: u64) -> Result<(), IoError> {
        let change = || match len_bytes == self.len_bytes() {
            true => Ok(len_bytes),
            false => self.carrier.backend().set_len_bytes(len_bytes).map(|()| len_bytes),
        };
        self.alone(Op::Write, change).map(drop)
    }

    fn present_len_bytes(&self) -> Result<u64, IoError> {
        self.length(Op::Read, || self.carrier.backend().len_bytes())
    }

    fn adopt_len_bytes(&self) -> Result<u64, IoError> {
        self.alone(Op::Read, || self.carrier.backend().len_bytes())
    }

    fn submit(&self, mut io: Io, ring: Arc<dyn Sink>, shard: u8) {
        if !self.carrier.is_of_this_process() {
            io.fail(libc::EIO, Some(FORKED));
            return ring.complete(io.token, io.result(&self.carrier.name), None);
        }
        Flight::start(io, self.carrier.clone(), ring, shard);
    }

    fn run(&self, io: Io, shard: u8) -> Result<(), IoError> {
        Single::run(|ring| self.submit(io, ring, shard), || false)
    }
}
