//! Pins: zero-copy views of pages. The slot protocol defines what a pin guarantees (P4, P5).
//!
//! Not here: pins without a lifetime (`owned_pin.rs`), what pins keep of a partition's memory
//! (`state/pinned.rs`), reads that copy (`pages/hit.rs`).

use std::ops::Deref;

use octavo_table::{Found, SlotIndex, Tag};

use crate::error::Error;
use crate::flight::{Job, Object};
use crate::memory::copy;
use crate::position::ByteOffset;
use crate::request::Read;
use crate::state::partition::PartitionInner;

/// Number of pages that `pin_batch` looks up and prefetches together.
const TOGETHER: usize = 16;

/// Most attempts to pin a page. Between its fill and the pin the page may be evicted; the next
/// attempt reads it again.
const ATTEMPTS: u32 = 4;

/// A zero-copy view of a page: the page's bytes as they were when it was pinned. Dropping the view
/// unpins the page.
///
/// A forgotten view (`mem::forget`) keeps its page and no other memory, until the partition is
/// dropped. A view that must outlive its [`Object`] handle is an [`OwnedPin`](crate::OwnedPin).
pub struct Pin<'o> {
    pub(super) partition: &'o PartitionInner,
    pub(super) slot: SlotIndex,
    pub(super) at: *const u8,
    pub(super) len: usize,
}

// SAFETY: the bytes do not change while the pin lives, and unpinning is an atomic operation on
// the slot.
unsafe impl Send for Pin<'_> {}
// SAFETY: as above.
unsafe impl Sync for Pin<'_> {}

impl Deref for Pin<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: pinned bytes are not changed (P6), not evicted (P1), and their segment is not
        // given back.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.partition.unpin(self.slot);
    }
}

/// The bytes of a page, from [`Object::pin_or_copy`].
#[derive(Debug)]
pub enum PinOrCopy<'o> {
    /// The page itself.
    Pin(Pin<'o>),
    /// A copy, because every way of the page's set was pinned or busy.
    Copy(Vec<u8>),
}

impl Deref for PinOrCopy<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            PinOrCopy::Pin(pin) => pin,
            PinOrCopy::Copy(bytes) => bytes,
        }
    }
}

impl Object {
    /// Returns a zero-copy view of the page that contains `offset`, reading it from the store if it
    /// is not resident. The view is the whole page, from its first byte to its last one in the
    /// object: with pages of 4,096 bytes, `pin(100)` returns the view of `pin(0)`, whose byte 100
    /// is the one at `offset`. It is a snapshot: later writes and evictions do not change it.
    ///
    /// Returns `Ok(None)` if every way of the page's set is pinned or busy, or if the page already
    /// has 1,023 pins, the most possible; [`pin_or_copy`](Object::pin_or_copy) then returns a copy.
    ///
    /// A pin costs two atomic operations on memory that other threads use; the cost of a copy grows
    /// with its length. Including the time to look at the bytes, a pin has 0.6 times the speed of
    /// [`read_at`](Object::read_at) for 128 bytes, the same speed for 512 bytes, and 1.1 times the
    /// speed for 1 KiB to 4 KiB (`octavo bench pins`). So pin a page to look at 512 bytes or more
    /// of it, or to keep a snapshot; otherwise use `read_at`.
    ///
    /// # Errors
    /// [`Error::PastEnd`], [`Error::Closed`], [`Error::Io`], [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(8192, b"octavo")?;
    /// if let Some(page) = object.pin(8192)? {
    ///     object.write_at(8192, b"folios")?;
    ///     assert!(page.starts_with(b"octavo"), "a snapshot");
    /// }
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn pin(&self, offset: u64) -> Result<Option<Pin<'_>>, Error> {
        let offset = ByteOffset(offset);
        self.inner.check(offset, 1)?;
        let (tag, candidate) = self.candidate(offset);
        self.pin_at(offset, tag, candidate, 0)
    }

    /// Returns the view of [`pin`](Object::pin) if the page is resident, else `Ok(None)`. Never
    /// waits for a store, nor for a page that another thread brings in or writes.
    ///
    /// # Errors
    /// [`Error::PastEnd`], [`Error::Closed`], [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// assert!(object.try_pin(8192)?.is_none(), "nothing is resident yet");
    /// object.write_at(8192, b"octavo")?;
    /// assert!(object.try_pin(8192)?.is_some_and(|page| page.starts_with(b"octavo")));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn try_pin(&self, offset: u64) -> Result<Option<Pin<'_>>, Error> {
        let offset = ByteOffset(offset);
        self.inner.check(offset, 1)?;
        self.inner.partition.shared.check_process()?;
        let (tag, candidate) = self.candidate(offset);
        let table = &self.inner.partition.table;
        let found = candidate.and_then(|candidate| table.confirm(candidate, tag));
        let found = found.or_else(|| table.find(tag)).filter(|found| found.word.readable());
        Ok(found.and_then(|found| self.pin_found(offset, tag, &found, 0)))
    }

    /// Returns the bytes of the page that contains `offset`: the view of [`pin`](Object::pin), or
    /// a copy where the page cannot be pinned. The bytes do not change in either case.
    ///
    /// # Errors
    /// Those of [`pin`](Object::pin).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(8192, b"octavo")?;
    /// assert!(object.pin_or_copy(8192)?.starts_with(b"octavo"));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn pin_or_copy(&self, offset: u64) -> Result<PinOrCopy<'_>, Error> {
        if let Some(pin) = self.pin(offset)? {
            return Ok(PinOrCopy::Pin(pin));
        }
        let page_size = self.inner.partition.page_size;
        let start = page_size.round_down(ByteOffset(offset)).0;
        let len = self.len_bytes().saturating_sub(start).min(page_size.bytes() as u64);
        let mut bytes = vec![0; len as usize];
        self.read_at(start, &mut bytes)?;
        Ok(PinOrCopy::Copy(bytes))
    }

    /// The tag of the page that contains `offset`, and the slot that may hold it.
    #[inline(always)]
    fn candidate(&self, offset: ByteOffset) -> (Tag, Option<SlotIndex>) {
        let partition = &*self.inner.partition;
        let (tag, candidate) = self.inner.candidate_at(partition, offset);
        if let Some(candidate) = candidate {
            // Prefetch now: no load runs ahead of a pin's atomic operation, so the caller's first
            // look at the bytes would wait for memory a second time.
            copy::prefetch(partition.byte_at(candidate, offset), 1);
        }
        (tag, candidate)
    }

    /// Pins the page of each offset and appends the views to `pins`, in the order of `offsets`.
    /// Lookups overlap, and missing pages are read together, 16 offsets at a time. An entry is
    /// `None` where [`pin`](Object::pin) would return `None`. After an error, `pins` may hold some
    /// of the pins before the failed one.
    ///
    /// In batches of 32 a pin has 1.4 to 1.7 times the speed of [`pin`](Object::pin), and 0.5 to
    /// 0.9 times that of `read_batch`, whose copies overlap (`octavo bench pins`). Use it for
    /// snapshots, or if there is no memory to copy to.
    ///
    /// # Errors
    /// The errors of [`pin`](Object::pin).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(8192, b"octavo")?;
    /// let mut pins = Vec::new();
    /// object.pin_batch(&[0, 8192], &mut pins)?;
    /// assert!(pins[1].as_ref().is_some_and(|page| page.starts_with(b"octavo")));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn pin_batch<'o>(&'o self, offsets: &[u64], pins: &mut Vec<Option<Pin<'o>>>) -> Result<(), Error> {
        offsets.iter().try_for_each(|offset| self.inner.check(ByteOffset(*offset), 1))?;
        pins.reserve(offsets.len());
        let table = &self.inner.partition.table;
        let mut tags = [Tag::default(); TOGETHER];
        let mut candidates = [None; TOGETHER];
        for chunk in offsets.chunks(TOGETHER) {
            for (tag, offset) in tags.iter_mut().zip(chunk) {
                *tag = self.inner.tag_at(ByteOffset(*offset));
                table.prefetch_set(*tag);
            }
            let mut missing = 0u32;
            for (number, offset) in chunk.iter().enumerate() {
                candidates[number] = table.candidate(tags[number]);
                match candidates[number] {
                    Some(candidate) => {
                        copy::prefetch(self.inner.partition.byte_at(candidate, ByteOffset(*offset)), 1);
                        table.prefetch_tag(candidate);
                        table.prefetch_slot(candidate);
                    }
                    None => missing |= 1 << number,
                }
            }
            if missing != 0 {
                self.bring_in(chunk, missing)?;
            }
            for (number, offset) in chunk.iter().enumerate() {
                let (tag, candidate) = (tags[number], candidates[number]);
                pins.push(self.pin_at(ByteOffset(*offset), tag, candidate, missing >> number & 1)?);
            }
        }
        Ok(())
    }

    /// Brings in the pages whose bits in `missing` are set, by reading one byte of each in one
    /// batch.
    #[cold]
    fn bring_in(&self, offsets: &[u64], missing: u32) -> Result<(), Error> {
        let mut bytes = [[0u8; 1]; TOGETHER];
        let missing =
            offsets.iter().zip(&mut bytes).enumerate().filter(|(number, _)| missing >> number & 1 != 0);
        let mut reads: Vec<Read<'_>> =
            missing.map(|(_, (offset, byte))| Read { offset: *offset, buffer: byte }).collect();
        self.read_batch(&mut reads)
    }

    /// Pins a page that may be in the slot `candidate`. Attempt 0 counts an access. Later attempts
    /// count none: each follows a read that brought the page in and was counted.
    #[inline(always)]
    fn pin_at(
        &self,
        offset: ByteOffset,
        tag: Tag,
        candidate: Option<SlotIndex>,
        attempt: u32,
    ) -> Result<Option<Pin<'_>>, Error> {
        let found = candidate.and_then(|candidate| self.inner.partition.table.confirm(candidate, tag));
        match found.and_then(|found| self.pin_found(offset, tag, &found, attempt)) {
            None => self.pin_slowly(offset, tag, attempt),
            pin => Ok(pin),
        }
    }

    /// `pin_at` of a page that is not in the slot where it was expected, or not resident.
    #[cold]
    #[inline(never)]
    fn pin_slowly(&self, offset: ByteOffset, tag: Tag, attempt: u32) -> Result<Option<Pin<'_>>, Error> {
        let partition = &*self.inner.partition;
        for attempt in attempt..attempt + ATTEMPTS {
            let mut found = partition.table.find(tag);
            if attempt > 0 && found.is_none() {
                found = partition.table.lock(tag).find(tag);
            }
            if let Some(found) = found
                && found.word.readable()
            {
                match self.pin_found(offset, tag, &found, attempt) {
                    None => continue,
                    pin => return Ok(pin),
                }
            }
            // Reading one byte brings the page in, or waits for the thread that is already bringing
            // it in.
            let mut byte = [0u8];
            self.run_bytes(Job::Read, offset, byte.as_mut_ptr(), 1)?;
        }
        Ok(None)
    }

    /// Pins a page that was found. Attempt 0 counts an access. Returns `None` if the page's state
    /// has changed.
    #[inline(always)]
    fn pin_found(&self, offset: ByteOffset, tag: Tag, found: &Found<'_>, attempt: u32) -> Option<Pin<'_>> {
        let partition = &*self.inner.partition;
        if !partition.pin(found) {
            return None;
        }
        match attempt {
            0 => partition.pinned_first(tag, found),
            // The read that brought the page in was counted.
            _ => partition.touch(tag, found),
        }
        let start = partition.page_size.round_down(offset).0;
        let len = self.len_bytes().saturating_sub(start).min(partition.page_bytes() as u64) as usize;
        Some(Pin { partition, slot: found.index, at: partition.frames.at(found.index), len })
    }
}
