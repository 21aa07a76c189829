//! [`Reads`]: reads of a turn that a resident page may serve at once, without an operation.
//!
//! A turn gathers them, because the cache looks up several pages at a time. A read qualifies if it
//! lies in one page and its data goes to one contiguous buffer.

use super::memory::Memory;
use octavo::{Object, Piece, RawRead};
use vm_memory::GuestAddress;

/// The most reads that are gathered. More would make a sleeping guest wait longer for the first of
/// them; fewer would overlap less.
const READS_MAX: usize = 16;

/// A read that was taken from the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// The head of its chain.
    pub head: u16,
    /// Where its status goes.
    pub status: GuestAddress,
    pub offset_bytes: u64,
    pub piece: Piece,
}

/// The reads that are gathered. The vectors are reused.
#[derive(Debug, Default)]
pub(super) struct Reads {
    reads: Vec<Read>,
    raw: Vec<RawRead>,
    /// The numbers of the reads that were not served, the last one first.
    missing: Vec<usize>,
    /// The number of the read that is taken next.
    next: usize,
}

impl Reads {
    pub fn push(&mut self, read: Read) {
        let Read { offset_bytes: offset, piece: Piece { start, len }, .. } = read;
        self.reads.push(read);
        self.raw.push(RawRead { offset, start, len });
    }

    pub fn is_full(&self) -> bool {
        self.reads.len() == READS_MAX
    }

    pub fn has(&self, head: u16) -> bool {
        self.reads.iter().any(|read| read.head == head)
    }

    /// Serves what is resident. Then [`next`](Reads::next) gives all reads.
    pub fn serve(&mut self, object: &Object, memory: &Memory) {
        memory.read_resident(object, &mut self.raw, &mut self.missing);
        self.missing.reverse();
        self.raw.clear();
        self.next = 0;
    }

    /// Takes the next read, and whether it was served.
    pub fn next(&mut self) -> Option<(Read, bool)> {
        let Some(read) = self.reads.get(self.next).copied() else {
            self.reads.clear();
            return None;
        };
        let missing = self.missing.pop_if(|number| *number == self.next);
        self.next += 1;
        Some((read, missing.is_none()))
    }
}
