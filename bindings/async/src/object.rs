//! The awaitable calls on an object. Each tries what the engine can do at once, and hands the rest
//! to the driver.

use std::sync::Arc;

use bytes::Bytes;
use octavo::{Advice, Error, Memory, Object, Op, Piece};

use crate::call::Call;
use crate::driver::{Driver, Hit, Job, Outcome, Shared};
use crate::fair;

/// Attempts to pin a page. Between its read and the pin it may be evicted.
const PIN_ATTEMPTS: u32 = 2;

/// An [`Object`] whose calls are futures, from [`Driver::object`]. Cheap to
/// clone; any task may use it at any time.
///
/// A call does nothing until its future is polled. A read of resident pages, and in write-back mode
/// a write of one, is ready at the first poll. Everything else waits for the driver, not for a
/// thread.
///
/// # Dropped futures
///
/// Any future may be dropped at any time; no memory is used after it is gone, and nothing leaks. A
/// dropped read or sync has no effect. A dropped change (a write, a discard, a zeroing):
/// - has not happened and never will if it still waited for its turn;
/// - otherwise happens, or fails without notice, some time later. A change of the same bytes that
///   begins after the drop, through any [`AsyncObject`] of the same driver, comes after it.
///
/// # Examples
/// A read that gives up after a while:
/// ```
/// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), octavo::Error> {
/// # let cache = Cache::new(CacheConfig::default())?;
/// # let partition = cache.partition(PartitionConfig::new("app"))?;
/// # let driver = octavo_async::Driver::new(&cache)?;
/// # let object = driver.object(partition.open(Store::memory("disk", 1 << 20), "disk")?);
/// let mut record = [0; 128];
/// match tokio::time::timeout(Duration::from_secs(5), object.read_at(8192, &mut record)).await {
///     Ok(read) => read?,
///     Err(_) => eprintln!("the store is slow"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncObject {
    shared: Arc<Shared>,
    object: Object,
}

impl Driver {
    /// Makes the calls of `object` awaitable. The object must be of the driver's cache; otherwise
    /// calls that miss fail with [`Error::Config`].
    pub fn object(&self, object: Object) -> AsyncObject {
        AsyncObject { shared: self.shared.clone(), object }
    }
}

impl AsyncObject {
    /// Returns the object itself: its length, its statistics, and the calls that may wait for the
    /// store, such as a close. Make those on a thread that may block.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Fills `buffer` with the bytes at `offset` (in bytes). Resident pages are copied at once;
    /// missing pages are read into memory of the driver's, and copied when they have come.
    ///
    /// # Errors
    /// Those of [`Object::read_at`]; [`Error::Closed`] also if the driver was dropped.
    pub async fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let mut offset = offset;
        let mut rest = buffer;
        loop {
            let (piece, later) = rest.split_at_mut(rest.len().min(self.piece_max()));
            fair::turn().await;
            if !self.try_read(offset, piece)? {
                piece.copy_from_slice(&self.fetch(offset, piece.len()).await.into_bytes()?);
            }
            if later.is_empty() {
                return Ok(());
            }
            (offset, rest) = (offset + piece.len() as u64, later);
        }
    }

    /// Returns a copy of the `len` bytes at `offset` (in bytes). For bytes without a copy, see
    /// [`view_at`](AsyncObject::view_at).
    ///
    /// # Errors
    /// Those of [`read_at`](AsyncObject::read_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), octavo::Error> {
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let driver = octavo_async::Driver::new(&cache)?;
    /// # let object = driver.object(partition.open(Store::memory("disk", 1 << 20), "disk")?);
    /// let bytes = object.read_bytes_at(8192, 512).await?;
    /// assert_eq!(bytes, vec![0; 512]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read_bytes_at(&self, offset: u64, len: usize) -> Result<Bytes, Error> {
        if len as u64 > self.object.len_bytes().saturating_sub(offset) {
            // Fails before the memory is allocated.
            self.object.resident_bytes(offset, len as u64)?;
        }
        if len <= self.piece_max() {
            fair::turn().await;
            return match self.try_read_bytes(offset, len)? {
                Some(bytes) => Ok(bytes.into()),
                None => Ok(self.fetch(offset, len).await.into_bytes()?.into()),
            };
        }
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes).await?;
        Ok(bytes.into())
    }

    /// Returns the `len` bytes at `offset` (in bytes), without a copy if they lie in one page that
    /// can be pinned: see [`Object::pin_owned`]. The bytes are a snapshot in either case; later
    /// writes do not change them.
    ///
    /// While a view lives, all of its page stays in memory. Do not collect many of them: a set
    /// whose ways are all pinned caches nothing else. Copies are faster up to a few hundred bytes.
    ///
    /// # Errors
    /// Those of [`read_at`](AsyncObject::read_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), octavo::Error> {
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let driver = octavo_async::Driver::new(&cache)?;
    /// # let object = driver.object(partition.open(Store::memory("disk", 1 << 20), "disk")?);
    /// object.write_at(8192, b"octavo").await?;
    /// let page = object.view_at(8192, 4096).await?;
    /// object.write_at(8192, b"folios").await?;
    /// assert!(page.starts_with(b"octavo"), "a snapshot");
    /// assert_eq!(partition.pinned_bytes(), 4096);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn view_at(&self, offset: u64, len: usize) -> Result<Bytes, Error> {
        let page_bytes = self.object.page_bytes();
        let start = (offset % page_bytes) as usize;
        let range = start..start.saturating_add(len);
        if len > 0 && range.end as u64 <= page_bytes {
            for attempt in 0..PIN_ATTEMPTS {
                fair::turn().await;
                if let Some(page) = self.object.try_pin_owned(offset)?
                    && range.end <= page.len()
                {
                    self.passed(offset, len);
                    return Ok(Bytes::from_owner(page).slice(range));
                }
                if attempt + 1 < PIN_ATTEMPTS {
                    // One byte brings the page in.
                    self.fetch(offset, 1).await.result?;
                }
            }
        }
        self.read_bytes_at(offset, len).await
    }

    /// Writes `bytes` at `offset` (in bytes), as [`Object::write_at`] does. If the write cannot be
    /// done at once, it copies the bytes, so that the future may be dropped;
    /// [`write_bytes_at`](AsyncObject::write_bytes_at) does not.
    ///
    /// # Errors
    /// Those of [`Object::write_at`]; [`Error::Closed`] also if the driver was dropped.
    pub async fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        fair::turn().await;
        if self.try_write(offset, bytes) {
            return Ok(());
        }
        self.change(write(offset, Bytes::copy_from_slice(bytes), false)).await
    }

    /// Writes `bytes` at `offset` (in bytes), as [`Object::write_at`] does.
    ///
    /// # Errors
    /// Those of [`write_at`](AsyncObject::write_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), octavo::Error> {
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let driver = octavo_async::Driver::new(&cache)?;
    /// # let object = driver.object(partition.open(Store::memory("disk", 1 << 20), "disk")?);
    /// object.write_bytes_at(0, vec![7; 1 << 16].into()).await?;
    /// # assert_eq!(object.read_bytes_at(65530, 6).await?, [7; 6][..]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write_bytes_at(&self, offset: u64, bytes: Bytes) -> Result<(), Error> {
        fair::turn().await;
        if self.try_write(offset, &bytes) {
            return Ok(());
        }
        self.change(write(offset, bytes, false)).await
    }

    /// Writes `bytes` at `offset` (in bytes). Ready when these bytes are durable: a write and a
    /// sync of its range in one request.
    ///
    /// # Errors
    /// Those of [`write_at`](AsyncObject::write_at), and [`Error::Failed`] if an earlier sync of
    /// the store failed.
    pub async fn write_durable_at(&self, offset: u64, bytes: Bytes) -> Result<(), Error> {
        fair::turn().await;
        self.change(write(offset, bytes, true)).await
    }

    /// Makes durable every write that was acknowledged before the first poll; see
    /// [`Object::sync`].
    ///
    /// # Errors
    /// Those of [`Object::sync`]; [`Error::Closed`] also if the driver was dropped.
    pub async fn sync(&self) -> Result<(), Error> {
        fair::turn().await;
        self.change(Op::Sync).await
    }

    /// Syncs the pages that overlap the `len` bytes at `offset`; see [`Object::sync_range`]. Unlike
    /// there, the range must lie inside the object.
    ///
    /// # Errors
    /// Those of [`sync`](AsyncObject::sync), and [`Error::PastEnd`].
    pub async fn sync_range(&self, offset: u64, len: usize) -> Result<(), Error> {
        fair::turn().await;
        self.change(Op::SyncRange { offset, len }).await
    }

    /// Discards the `len` bytes at `offset`; see [`Object::discard`].
    ///
    /// # Errors
    /// Those of [`Object::discard`]; [`Error::Closed`] also if the driver was dropped.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        fair::turn().await;
        self.change(Op::Discard { offset, len, durable: false }).await
    }

    /// Zeroes the `len` bytes at `offset`; see [`Object::zero`].
    ///
    /// # Errors
    /// Those of [`discard`](AsyncObject::discard).
    pub async fn zero(&self, offset: u64, len: u64) -> Result<(), Error> {
        fair::turn().await;
        self.change(Op::Zero { offset, len, durable: false }).await
    }

    /// Advises how the `len` bytes at `offset` will be used; see [`Object::advise`]. With
    /// [`Advice::WillNeed`], ready when the pages have been read.
    ///
    /// # Errors
    /// Those of [`Object::advise`]; [`Error::Config`] for [`Advice::DontNeed`], which waits for the
    /// store in the calling thread: call [`Object::advise`] on a thread that may block.
    pub async fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<(), Error> {
        fair::turn().await;
        match advice {
            Advice::WillNeed | Advice::DontNeed => self.run(Op::Advise { offset, len, advice }).await.1,
            _ => self.object.advise(offset, len, advice),
        }
    }

    /// Runs any operation of a [`Queue`](octavo::Queue), and returns it with its result: with the
    /// memory of a read or the holes that were found. For what the other calls do not offer, such
    /// as reads into memory of the caller's own.
    ///
    /// The operation does not come back to a child of `fork` that awaits a call of its parent.
    ///
    /// # Errors
    /// Those of the operation; [`Error::Closed`] if the driver was dropped; [`Error::Config`] for
    /// advice other than [`Advice::WillNeed`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), octavo::Error> {
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let driver = octavo_async::Driver::new(&cache)?;
    /// # let object = driver.object(partition.open(Store::memory("disk", 1 << 20), "disk")?);
    /// use octavo::{Memory, Op};
    /// let read = Op::ReadInto { offset: 8192, memory: Memory::new(vec![1; 4096]) };
    /// let (op, result) = object.run(read).await;
    /// result?;
    /// let Some(Op::ReadInto { memory, .. }) = op else { unreachable!() };
    /// assert_eq!(memory.into_owner::<Vec<u8>>().expect("a vector was put in"), [0; 4096]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run(&self, op: Op) -> (Option<Op>, Result<(), Error>) {
        if let Op::Advise { advice, .. } = &op
            && *advice != Advice::WillNeed
        {
            let why = format!("a driver does not run advice {advice:?}: call Object::advise");
            return (Some(op), Err(Error::Config(why)));
        }
        let Outcome { op, result } = Call::new(&self.shared, &self.object, Job::Op(op)).await;
        (op, result)
    }

    async fn change(&self, op: Op) -> Result<(), Error> {
        Call::new(&self.shared, &self.object, Job::Op(op)).await.result
    }

    /// Reads through the driver. `len` is at most `piece_max`.
    pub(crate) fn fetch(&self, offset: u64, len: usize) -> Call {
        Call::new(&self.shared, &self.object, Job::Read { offset, len })
    }

    /// Bytes of one request.
    pub(crate) fn piece_max(&self) -> usize {
        self.shared.handover.limits().memory_bytes as usize
    }

    /// Reads resident pages.
    pub(crate) fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Result<bool, Error> {
        let hits = self.object.try_read_at(offset, buffer)?;
        if hits {
            self.passed(offset, buffer.len());
        }
        Ok(hits)
    }

    fn try_read_bytes(&self, offset: u64, len: usize) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = vec![0; len];
        Ok(self.try_read(offset, &mut bytes)?.then_some(bytes))
    }

    /// Lets the driver read ahead if a sequential stream has come to what was read ahead last.
    fn passed(&self, offset: u64, len: usize) {
        if self.object.reads_ahead_at(offset, len as u64) && self.shared.check_process().is_ok() {
            self.shared.handover.add_note(Hit { object: self.object.clone(), offset, len });
        }
    }

    /// Writes a resident page, unless a dropped call may still change it.
    fn try_write(&self, offset: u64, bytes: &[u8]) -> bool {
        !self.shared.handover.has_orphan_changes() && self.object.try_write_at(offset, bytes)
    }
}

fn write(offset: u64, bytes: Bytes, durable: bool) -> Op {
    let piece = Piece { start: bytes.as_ptr().cast_mut(), len: bytes.len() };
    // SAFETY: the owner keeps its bytes valid and unchanged, wherever it is moved, and a write only
    // reads them.
    let memory = unsafe { Memory::from_pieces([piece], bytes) };
    Op::WriteFrom { offset, memory, durable }
}
