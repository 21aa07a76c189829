//! Bytes that came from the client and were not yet looked at.

use crate::socket::{Patience, Socket};
use octavo::Buffer;
use std::io::{self, IoSliceMut};

/// A charged buffer; `buffer[start..end]` is what came.
pub struct Input {
    buffer: Buffer,
    start: usize,
    end: usize,
}

/// What a `read` brought.
pub struct Received {
    /// Bytes that went straight to where they belong.
    pub ahead_bytes: usize,
    /// There was no more, or not yet: the socket took less than it was offered.
    pub drained: bool,
}

impl Input {
    pub fn new(buffer: Buffer) -> Input {
        Input { buffer, start: 0, end: 0 }
    }

    /// The most that `bytes` can hold.
    pub fn capacity_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Whether a `read` could bring anything.
    pub fn has_space(&self) -> bool {
        self.end - self.start < self.buffer.len()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start);
        self.start += count;
    }

    /// The first bytes as an array, consumed; None: there are not as many yet.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.bytes().first_chunk()?;
        self.consume(N);
        Some(taken)
    }

    /// Reads the socket, first into `ahead` (which wants what comes after `bytes`), the rest behind
    /// `bytes`. An end of the stream is the error `UnexpectedEof`.
    pub fn read(&mut self, socket: &Socket, ahead: &mut [u8], patience: Patience) -> io::Result<Received> {
        assert!(ahead.is_empty() || self.start == self.end, "the bytes that came belong before those ahead");
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let offered_bytes = ahead.len() + self.buffer.len() - self.end;
        assert!(offered_bytes > 0, "a read of nothing looks like an end");
        let ahead_max = ahead.len();
        let mut slices = [IoSliceMut::new(ahead), IoSliceMut::new(&mut self.buffer[self.end..])];
        let count = socket.read(&mut slices[usize::from(ahead_max == 0)..], patience)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let ahead_bytes = count.min(ahead_max);
        self.end += count - ahead_bytes;
        Ok(Received { ahead_bytes, drained: count < offered_bytes })
    }
}
