//! [`Op`]: the operations that a store can do. This file imports nothing.

/// An operation on a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Moves bytes from the store to memory. Bytes past the end of the store read as zeros.
    Read,
    /// Moves bytes from memory to the store. Bytes past the end of the store are dropped.
    Write,
    /// Makes every write that completed before it durable (`fdatasync`). Offset and buffers are
    /// ignored.
    Sync,
    /// Makes a range read as zeros and keeps its space allocated, if the store supports that. Takes
    /// no buffers ([`Ring::push_clear`]).
    ///
    /// [`Ring::push_clear`]: crate::Ring::push_clear
    Zero,
    /// Makes a range read as zeros and frees its space, if the store supports that. Takes no
    /// buffers ([`Ring::push_clear`]).
    ///
    /// [`Ring::push_clear`]: crate::Ring::push_clear
    Discard,
}

impl Op {
    /// Returns whether the operation clears a range.
    pub(crate) fn clears(self) -> bool {
        matches!(self, Op::Zero | Op::Discard)
    }

    /// Returns whether the operation changes the bytes of the store.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Op::Write | Op::Zero | Op::Discard)
    }
}
