//! [`Request`]: a request whose head was taken, and how replies are put together.

use zerocopy::{Immutable, IntoBytes};

use crate::device::Device;
use crate::lower::Caller;
use crate::wire::{InHeader, Reader};

/// A request whose head was taken.
pub struct Request<'r> {
    /// Where it came from.
    pub device: &'r Device,
    pub head: InHeader,
    pub body: Reader<'r>,
}

impl Request<'_> {
    /// On whose behalf files are created and changed.
    pub fn caller(&self) -> Caller {
        Caller { uid: self.head.uid, gid: self.head.gid, thread: self.head.pid }
    }
}

/// Appends a message to a reply.
pub fn put(out: &mut Vec<u8>, message: &(impl IntoBytes + Immutable)) {
    out.extend_from_slice(message.as_bytes());
}
