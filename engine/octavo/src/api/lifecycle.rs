//! Blocking calls on whole ranges of an object: changing the length, evicting a range, closing and
//! abandoning the object. (Changes that others make to the store are in `outside.rs`, and the close
//! by the last handle in `flight/handle.rs`.)
//!
//! Steps of a length change, a close and an abandon:
//! 1. Close the range: no page of it is brought in. Resident pages may still be read and written
//!    until step 2 drops or takes them.
//! 2. Drop or take the range's pages, waiting for busy pages.
//! 3. Tell the store.
//! 4. Open the range.
//!
//! Pages that a shorter length cuts off are first taken and held, as for a clearing (C3, C5, C6 of
//! `flight/discard.rs`). If the store refuses the new length, they return to their old state.

use std::ops::Range;

use crate::error::Error;
use crate::flight::{EVERY, Object};
use crate::position::{ByteOffset, PageIndex};
use crate::state::counters::Count;

/// A range of an object that no page comes into while this value lives.
pub(crate) struct ClosedRange {
    pub object: Object,
    pages: Range<PageIndex>,
}

impl Drop for ClosedRange {
    fn drop(&mut self) {
        self.object.inner.ranges.open(&self.pages);
    }
}

impl Object {
    /// Changes the length of the object and of its store to `len` bytes. Shrinking loses the bytes
    /// past the new end; added bytes read as zeros.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::ReadOnly`]; [`Error::Config`] if `len` is more than an object
    /// can have; [`Error::Io`]; [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.set_len_bytes(2 << 20)?;
    /// object.write_at(1 << 20, b"octavo")?;
    /// assert_eq!(object.len_bytes(), 2 << 20);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn set_len_bytes(&self, len: u64) -> Result<(), Error> {
        let inner = &self.inner;
        inner.check_open()?;
        inner.check_writable()?;
        inner.partition.check_len(&inner.name, len)?;
        while !self.set_len_from(inner.len_bytes(), len)? {}
        Ok(())
    }

    /// Changes the length from `old` to `len`. Returns `false` if the length is no longer `old`.
    pub(super) fn set_len_from(&self, old: u64, len: u64) -> Result<bool, Error> {
        let inner = &self.inner;
        let page_size = inner.partition.page_size;
        // Write and drop the page that the shorter of the two lengths ends in: its bytes past the
        // end must not come back.
        let cut = page_size.page_of(ByteOffset(len.min(old)));
        let pages = cut..EVERY.end;
        self.closed_range(pages.clone(), |object| {
            // Every length change and every close closes the last page's range, so these calls wait
            // from here on.
            inner.check_open()?;
            if inner.len_bytes() != old {
                return Ok(false);
            }
            object.write_and_drop(&(cut..cut + 1))?;
            inner.set_len(len.min(old));
            // Needed when the object grows, too: a request that was in flight when the object was
            // cut may have left pages past the end.
            object.take_all(&pages)?;
            let result = inner.store.set_len_bytes(len);
            // Even after a failure the store may have the new length. It then accepts no byte
            // beyond that.
            let now = inner.store.len_bytes();
            let kept = page_size.page_range(ByteOffset(0), now.min(old)).end.max(cut);
            inner.drop_held(&(kept..pages.end));
            inner.give_back(&(cut..kept));
            inner.set_len(now);
            result.map(|()| true).map_err(|source| self.length_error(&source))
        })
    }

    /// The error of a change of length that the store refused.
    pub(super) fn length_error(&self, source: &octavo_disk::IoError) -> Error {
        match source.op() {
            octavo_disk::Op::Sync => self.inner.sync_failed(source),
            _ => self.inner.io_error(source),
        }
    }

    /// Writes back the range's dirty pages, then evicts its clean pages that are not in use.
    pub(crate) fn write_and_evict(&self, offset: ByteOffset, len: u64) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        let pages = self.inner.whole_pages(offset, len);
        // A range inside one page contains no whole page.
        if pages.is_empty() {
            return Ok(());
        }
        if !self.read_only() {
            self.clean_pages(pages.clone())?;
        }
        let partition = &self.inner.partition;
        self.inner.for_each_page(&pages, |guard, found, _| {
            let _ = partition.drop_quiet(guard, &found, Count::EvictionsDiscard);
        });
        Ok(())
    }

    /// Syncs the object, drops its pages and releases its store. Every later call fails with
    /// [`Error::Closed`], except that closing again succeeds. If dirty pages cannot be written, the
    /// call fails and the object stays open. The file is closed too, with its lock, whatever
    /// handles of the object exist. A caller that keeps a handle of the
    /// [`Store`](octavo_disk::Store) itself keeps the file open, and may open another object with
    /// it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Failed`] if an earlier sync of the store failed
    /// ([`abandon`](Object::abandon) still closes the object); [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// object.close()?;
    /// assert!(object.read_at(0, &mut [0]).is_err());
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn close(&self) -> Result<(), Error> {
        if self.inner.is_closed() {
            return Ok(());
        }
        // The first sync does most of the work while other calls continue; the second covers
        // what they wrote.
        match self.sync() {
            // Another thread has closed the object.
            Err(Error::Closed { .. }) => return Ok(()),
            synced => synced?,
        }
        let all = EVERY;
        self.closed_range(all.clone(), |object| {
            if object.inner.is_closed() {
                return Ok(());
            }
            object.write_and_drop(&all)?;
            object.sync()?;
            object.inner.set_closed();
            Ok(())
        })
    }

    /// Closes the object without a sync: drops its pages, and loses the data of dirty ones. Returns
    /// the bytes of dirty pages lost. Waits for I/O in flight; if the store hangs, until the store
    /// answers. In a child of `fork` the call does nothing and returns 0.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() })?;
    /// let mut writeback = PartitionConfig::new("app");
    /// writeback.cache_mode = CacheMode::Writeback;
    /// let object = cache.partition(writeback)?.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// assert_eq!(object.abandon(), 4096);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn abandon(&self) -> u64 {
        if self.inner.partition.shared.is_forked() {
            return 0;
        }
        let all = EVERY;
        let dropped = self.closed_range(all.clone(), |object| {
            object.take_all(&all)?;
            // First: no sync may conclude that the pages dropped next were clean.
            object.inner.set_abandoned();
            let lost = object.inner.drop_held(&all);
            object.inner.set_closed();
            Ok(object.inner.partition.page_size.len_of(lost))
        });
        dropped.unwrap_or_else(|error| {
            log::error!("object {}: cannot abandon the object, so it stays open: {error}", self.name());
            0
        })
    }

    /// Runs `body` while the range is closed: no page of it is brought in.
    pub(super) fn closed_range<T>(
        &self,
        pages: Range<PageIndex>,
        body: impl FnOnce(&Object) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let closed = self.close_range(pages)?;
        body(&closed.object)
    }

    /// Closes a range of pages, until the result is dropped.
    pub(crate) fn close_range(&self, pages: Range<PageIndex>) -> Result<ClosedRange, Error> {
        let mut closed = false;
        while !closed {
            // The nap gives its lane back before the caller goes on, which borrows lanes itself.
            self.nap(|waiter| {
                closed = self.inner.ranges.close(pages.clone(), waiter);
                !closed
            })?;
        }
        Ok(ClosedRange { object: self.clone(), pages })
    }

    /// Writes back the pages of a closed range, then drops them.
    pub(crate) fn write_and_drop(&self, pages: &Range<PageIndex>) -> Result<(), Error> {
        loop {
            self.clean_pages(pages.clone())?;
            self.take_all(pages)?;
            // Writers could dirty pages again until they were taken. If none is held, none was
            // dirty.
            if self.inner.give_back(pages) == 0 {
                return Ok(());
            }
        }
    }

    /// Takes the range's pages (C3), waiting for pages in use.
    pub(super) fn take_all(&self, pages: &Range<PageIndex>) -> Result<(), Error> {
        while let Some(busy) = self.inner.take_pages(pages).busy {
            self.nap(|waiter| busy.register(&self.inner, waiter))?;
        }
        Ok(())
    }
}
