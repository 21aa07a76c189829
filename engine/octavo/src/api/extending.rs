//! Writes past an object's end.
//!
//! In write-through mode, one write changes a buffered file's length and content together:
//! 1. Close the range from the first page that the write touches, or from the last page if that
//!    comes first: no page of it is brought in.
//! 2. Drop its pages, waiting for busy ones. Own the last page instead, if it is resident (P8): it
//!    keeps the bytes that the object has already.
//! 3. Write to the store.
//! 4. Put the bytes into the last page, and give it back.
//! 5. Publish the new length, and put the other bytes into new pages.
//! 6. Open the range.
//!
//! Every other store is lengthened first (`lifecycle.rs`), and then written like any range.

use octavo_table::{SlotIndex, State};

use crate::config::CacheMode;
use crate::error::Error;
use crate::flight::{EVERY, Object};
use crate::memory::copy;
use crate::pages::steps::{Claimed, Claiming};
use crate::position::{ByteOffset, PageIndex, pages_in};
use crate::state::counters::Count;

impl Object {
    /// Writes bytes that may end past the object's end; the object becomes as long as they reach.
    /// Between the former end and `offset` it gains zeros. Returns how many bytes were written:
    /// fewer than asked for if the store had no room for more.
    ///
    /// In write-through mode, a file that is not direct is lengthened by the write itself.
    /// Otherwise the store is lengthened first, and then written as [`write_at`](Object::write_at)
    /// does; a reader may see zeros in between.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::ReadOnly`]; [`Error::Config`] if the object would become longer
    /// than one can be; [`Error::Io`]; [`Error::Forked`]. The object then has its former length.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 4096), "disk")?;
    /// assert_eq!(object.extend_at(4094, b"octavo")?, 6);
    /// assert_eq!(object.len_bytes(), 4100);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn extend_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, Error> {
        let inner = &self.inner;
        inner.check_open()?;
        inner.check_writable()?;
        let end = offset.saturating_add(bytes.len() as u64);
        inner.partition.check_len(&inner.name, end)?;
        loop {
            let old = inner.len_bytes();
            if end <= old {
                match self.write_at(offset, bytes) {
                    // It was cut meanwhile.
                    Err(Error::PastEnd { .. }) => continue,
                    written => return written.map(|()| bytes.len()),
                }
            }
            let is_by_write = inner.store.can_extend() && inner.partition.mode == CacheMode::Writethrough;
            let written = match is_by_write {
                true => self.extend_from(old, offset, bytes)?,
                false => self.lengthen_and_write(old, offset, bytes)?,
            };
            if let Some(written) = written {
                return Ok(written);
            }
        }
    }

    /// Lengthens a buffered file by a write. Returns `None` if the length is no longer `old`.
    fn extend_from(&self, old: u64, offset: u64, bytes: &[u8]) -> Result<Option<usize>, Error> {
        let inner = &self.inner;
        let page_size = inner.partition.page_size;
        // The page that the end lies in, or the first page past it.
        let last = page_size.page_of(ByteOffset(old));
        let first = page_size.page_of(ByteOffset(offset)).min(last);
        // 1.
        self.closed_range(first..EVERY.end, |object| {
            // As in `set_len_from`.
            inner.check_open()?;
            if inner.len_bytes() != old {
                return Ok(None);
            }
            // 2. What lies past the end was left by a request in flight.
            object.take_all(&(first..last))?;
            object.take_all(&(last + 1..EVERY.end))?;
            let owned = object.own(last)?;
            // 3.
            let written = inner.store.extend(offset, bytes).map_err(|source| inner.io_error(&source));
            let now = &bytes[..*written.as_ref().unwrap_or(&0)];
            // 4. Before the length: nobody may read zeros in the last page.
            if let Some(slot) = owned {
                let write = |frame| self.copy_page(last, offset, now, frame);
                inner.partition.end_store(inner.tag(last), slot, write);
            }
            // 5.
            inner.set_len(inner.store.len_bytes());
            let written = written?;
            let end = offset + written as u64;
            inner.partition.counters.add(Count::Writes, 1);
            inner.partition.counters.add(Count::WrittenBytes, written as u64);
            for page in pages_in(&page_size.page_range(ByteOffset(offset), written as u64)) {
                let start = page_size.start_of(page).0;
                // All bytes of the page are known: around those of the write are none, or zeros.
                let is_known = (offset <= start || old <= start)
                    && (end >= old || end >= page_size.start_of(page + 1).0);
                if is_known && (page != last || owned.is_none()) {
                    object.bring(page, offset, now);
                }
            }
            Ok(Some(written))
        })
    }

    /// Takes ownership of a page of a closed range, if it is resident and clean. Otherwise drops
    /// it.
    fn own(&self, page: PageIndex) -> Result<Option<SlotIndex>, Error> {
        let (partition, tag) = (&self.inner.partition, self.inner.tag(page));
        let guard = partition.table.lock(tag);
        if let Some(found) = guard.find(tag)
            && found.word.state() == State::Clean
            && partition.begin_store(tag, &found)
        {
            return Ok(Some(found.index));
        }
        drop(guard);
        self.take_all(&(page..page + 1))?;
        Ok(None)
    }

    /// Brings in a page of a closed range that is not resident, with the bytes that were written at
    /// `offset`, and zeros around them.
    fn bring(&self, page: PageIndex, offset: u64, bytes: &[u8]) {
        let (partition, tag) = (&self.inner.partition, self.inner.tag(page));
        partition.count_first_write(tag, partition.page_bytes().min(bytes.len()));
        let guard = partition.table.lock(tag);
        // If the set is full, the page stays in the store alone.
        if let Claimed::Slot(slot) = partition.claim(guard, tag, Claiming::Overwrite) {
            partition.publish_written(tag, slot, false, |frame| {
                // SAFETY: the frame is ours (Filling).
                unsafe { copy::zero_in(frame, partition.page_bytes()) };
                self.copy_page(page, offset, bytes, frame);
            });
        }
    }

    /// Copies to a page's frame, which the caller owns, its part of the bytes at `offset`.
    fn copy_page(&self, page: PageIndex, offset: u64, bytes: &[u8], frame: *mut u8) {
        let page_size = self.inner.partition.page_size;
        let start = page_size.start_of(page).0;
        let end = (start + page_size.bytes() as u64).min(offset + bytes.len() as u64);
        let from = start.max(offset);
        if from < end {
            let part = &bytes[(from - offset) as usize..(end - offset) as usize];
            // SAFETY: the part ends inside the frame, which is the caller's to write.
            unsafe { copy::copy_in(part.as_ptr(), frame.wrapping_add((from - start) as usize), part.len()) };
        }
    }

    /// Lengthens the store, and then writes. Returns `None` if another call has changed the length
    /// meanwhile.
    fn lengthen_and_write(&self, old: u64, offset: u64, bytes: &[u8]) -> Result<Option<usize>, Error> {
        let end = offset + bytes.len() as u64;
        if !self.set_len_from(old, end)? {
            return Ok(None);
        }
        match self.write_at(offset, bytes) {
            Ok(()) => Ok(Some(bytes.len())),
            Err(Error::PastEnd { .. }) => Ok(None),
            Err(error) => {
                // As if the write had not begun. The write's error is the one to report.
                let _ = self.set_len_from(end, old);
                Err(error)
            }
        }
    }
}
