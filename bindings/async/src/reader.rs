//! [`Reader`]: an object as a stream of bytes.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::call::Call;
use crate::fair;
use crate::object::AsyncObject;

/// Reads an object from a position that moves: the `AsyncRead` and `AsyncSeek` of futures-io, and
/// with the feature `tokio` those of tokio. From [`AsyncObject::reader`].
///
/// A read of resident pages copies them into the caller's buffer at once, so no buffer is needed in
/// between. The engine reads ahead if the partition's
/// [`read_ahead_max_bytes`](octavo::PartitionConfig) allows it. At the end of the object a read
/// returns 0 bytes.
///
/// A read that is given up loses no bytes: the next one returns them, as they were then.
///
/// # Examples
/// ```
/// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cache = Cache::new(CacheConfig::default())?;
/// # let partition = cache.partition(PartitionConfig::new("app"))?;
/// # let driver = octavo_async::Driver::new(&cache)?;
/// # let object = driver.object(partition.open(Store::memory("disk", 1 << 20), "disk")?);
/// use std::io::SeekFrom;
/// use tokio::io::{AsyncReadExt, AsyncSeekExt};
/// object.write_at(5000, b"octavo").await?;
/// let (mut reader, mut six) = (object.reader(), [0; 6]);
/// reader.seek(SeekFrom::Start(5000)).await?;
/// reader.read_exact(&mut six).await?;
/// assert_eq!(&six, b"octavo");
/// # Ok(())
/// # }
/// ```
pub struct Reader {
    object: AsyncObject,
    position: u64,
    /// A read of the bytes at `position`, through the driver.
    call: Option<Call>,
    /// Bytes that came from the driver. Those from `taken` on are the bytes at `position`.
    chunk: Vec<u8>,
    taken: usize,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("object", &self.object).field("position", &self.position).finish()
    }
}

impl AsyncObject {
    /// Returns a reader of the object's bytes, which begins at offset 0: an `AsyncRead` and
    /// `AsyncSeek`.
    pub fn reader(&self) -> Reader {
        Reader { object: self.clone(), position: 0, call: None, chunk: Vec::new(), taken: 0 }
    }
}

impl Reader {
    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Fills a part of `buffer`, and returns its length.
    fn poll_fill(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(fair::poll_turn(context));
        loop {
            let left = &self.chunk[self.taken..];
            if !left.is_empty() {
                let len = left.len().min(buffer.len());
                buffer[..len].copy_from_slice(&left[..len]);
                self.taken += len;
                if self.taken == self.chunk.len() {
                    (self.chunk, self.taken) = (Vec::new(), 0);
                }
                return Poll::Ready(Ok(self.passed(len)));
            }
            if let Some(call) = &mut self.call {
                let outcome = ready!(Pin::new(call).poll(context));
                self.call = None;
                (self.chunk, self.taken) = (outcome.into_bytes()?, 0);
                continue;
            }
            let end = self.object.object().len_bytes();
            let len = buffer.len().min(self.object.piece_max());
            let len = (len as u64).min(end.saturating_sub(self.position)) as usize;
            if len == 0 {
                return Poll::Ready(Ok(0));
            }
            if self.object.try_read(self.position, &mut buffer[..len])? {
                return Poll::Ready(Ok(self.passed(len)));
            }
            self.call = Some(self.object.fetch(self.position, len));
        }
    }

    fn passed(&mut self, len: usize) -> usize {
        self.position += len as u64;
        len
    }

    fn seek_to(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.object.object().len_bytes(), by),
        };
        let Some(position) = base.checked_add_signed(by) else {
            let why = format!("cannot seek by {by} bytes from offset {base}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        if position != self.position {
            (self.call, self.chunk, self.taken, self.position) = (None, Vec::new(), 0, position);
        }
        Ok(position)
    }
}

impl futures_io::AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_fill(context, buffer)
    }
}

impl futures_io::AsyncSeek for Reader {
    fn poll_seek(mut self: Pin<&mut Self>, _: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        Poll::Ready(self.seek_to(to))
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = ready!(self.poll_fill(context, buffer.initialize_unfilled()))?;
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncSeek for Reader {
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        self.seek_to(to).map(drop)
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(self.position))
    }
}
