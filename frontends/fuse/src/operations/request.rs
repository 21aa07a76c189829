//! [`Request`]: a request whose head was taken, and how replies are put together.

use zerocopy::{Immutable, IntoBytes};

use crate::lower::Caller;
use crate::wire::{InHeader, Reader};

/// A request whose head was taken.
pub struct Request<'r> {
    pub head: InHeader,
    pub body: Reader<'r>,
}

impl Request<'_> {
    /// On whose behalf files are created.
    pub fn caller(&self) -> Caller {
        Caller { uid: self.head.uid, gid: self.head.gid }
    }
}

/// Appends a message to a reply.
pub fn put(out: &mut Vec<u8>, message: &(impl IntoBytes + Immutable)) {
    out.extend_from_slice(message.as_bytes());
}
