//! [`Input`]: received bytes that are not yet parsed.

use super::channel::{Channel, Taken};
use crate::socket::Patience;
use octavo::Buffer;
use std::io::{self, IoSliceMut};

/// A buffer charged to the cache. `buffer[start..end]` holds the unparsed bytes.
pub struct Input {
    buffer: Buffer,
    start: usize,
    end: usize,
}

/// The result of a `read`.
pub struct Received {
    /// The number of bytes that went to `ahead`.
    pub ahead_bytes: usize,
    /// The socket had no more bytes.
    pub drained: bool,
}

impl Input {
    pub fn new(buffer: Buffer) -> Input {
        Input { buffer, start: 0, end: 0 }
    }

    /// An input that has received these bytes already. None if they are more than it can hold.
    pub fn with(mut buffer: Buffer, bytes: &[u8]) -> Option<Input> {
        buffer.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Input { buffer, start: 0, end: bytes.len() })
    }

    /// Returns the most bytes that `bytes` can hold.
    pub fn capacity_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether a `read` has space for more bytes.
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

    /// Consumes the first `N` bytes. Returns None if there are fewer.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.bytes().first_chunk()?;
        self.consume(N);
        Some(taken)
    }

    /// Reads from the channel, first into `ahead` and then behind `bytes`. `ahead` takes the bytes
    /// of the stream that follow `bytes`, so it is empty unless `bytes` is.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the stream, `WouldBlock` by `patience`, or any of the channel.
    pub fn read(
        &mut self,
        channel: &mut Channel<'_>,
        ahead: &mut [u8],
        patience: Patience,
    ) -> io::Result<Received> {
        assert!(ahead.is_empty() || self.start == self.end, "unparsed bytes precede those of `ahead`");
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let offered_bytes = ahead.len() + self.buffer.len() - self.end;
        assert!(offered_bytes > 0, "a read of no bytes would look like the end of the stream");
        let ahead_max = ahead.len();
        let mut slices = [IoSliceMut::new(ahead), IoSliceMut::new(&mut self.buffer[self.end..])];
        let Taken { bytes: count, drained } =
            channel.read(&mut slices[usize::from(ahead_max == 0)..], patience)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let ahead_bytes = count.min(ahead_max);
        self.end += count - ahead_bytes;
        Ok(Received { ahead_bytes, drained })
    }
}
