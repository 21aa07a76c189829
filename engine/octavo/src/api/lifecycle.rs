//! Whole ranges, where a thread waits for them: a new length, letting go, an object that goes.
//!
//! The range is closed first, so that nothing is brought in there; then its pages are dropped,
//! waiting for those that are in somebody's hands; then the store is told; then the range is
//! opened. Hits go on until their page is dropped. Pages that a shorter length cuts off are taken
//! and held, as for a clearing (C3, C5, C6 of `flight/discard.rs`): if the store refuses, they are what they
//! were.

use std::ops::Range;

use crate::error::Error;
use crate::flight::{END, Object};
use crate::state::counters::Count;
use crate::sync::Ordering;

impl Object {
    /// Gives the object, and its store, a new length. What is cut off is gone; what is added reads
    /// as zeros.
    pub fn set_len_bytes(&self, len: u64) -> Result<(), Error> {
        let inner = &self.inner;
        inner.check_open()?;
        inner.check_writable()?;
        inner.partition.check_len(&inner.name, len)?;
        while !self.set_len_from(inner.len_bytes(), len)? {}
        Ok(())
    }

    /// Changes the length from `old` to `len`. False: it is not `old` any more.
    fn set_len_from(&self, old: u64, len: u64) -> Result<bool, Error> {
        let inner = &self.inner;
        let page_bytes = inner.partition.page_bytes() as u64;
        // The page that either end cuts is dropped, written first: its bytes past the end are not to come
        // back.
        let cut = len.min(old) / page_bytes;
        let pages = cut..END;
        self.closed_range(pages.clone(), |object| {
            // All who change the length, and who close the object, close its last page: from here on they
            // wait.
            inner.check_open()?;
            if inner.len_bytes() != old {
                return Ok(false);
            }
            object.write_and_drop(&(cut..cut + 1))?;
            inner.set_len(len.min(old));
            // Also where the object grows: a request that was on its way when it was cut may have left pages
            // past the end.
            object.take_all(&pages)?;
            let result = inner.store.set_len_bytes(len);
            // Also where it fails the store may have the new length, and takes no byte behind it.
            let now = inner.store.len_bytes();
            let kept = now.min(old).div_ceil(page_bytes).max(cut);
            inner.drop_held(&(kept..pages.end));
            inner.give_back(&(cut..kept));
            inner.set_len(now);
            result.map(|()| true).map_err(|source| match source.op() {
                octavo_disk::Op::Sync => inner.sync_failed(&source),
                _ => inner.io_error(&source),
            })
        })
    }

    /// Writes the range's dirty pages and lets go of its clean ones, as far as nobody has them in
    /// hand.
    pub(crate) fn let_go(&self, offset: u64, len: u64) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        let page_bytes = self.inner.partition.page_bytes() as u64;
        let pages = offset.div_ceil(page_bytes)..(offset + len) / page_bytes;
        let pages = if offset + len == self.len_bytes() { pages.start..pages.end + 1 } else { pages };
        // A range inside one page holds no whole page.
        if pages.is_empty() {
            return Ok(());
        }
        if !self.read_only() {
            self.clean_pages(pages.start, pages.end)?;
        }
        let partition = &self.inner.partition;
        self.inner.for_each_page(&pages, |guard, found, _| {
            let _ = partition.drop_quiet(guard, &found, Count::EvictionsDiscard);
        });
        Ok(())
    }

    /// Syncs and drops the pages, after which every call fails. Where dirty pages cannot be written
    /// it fails, and the object stays open. Another object may have the store from then on; the
    /// lock on its file ends when the last handle of this one is dropped.
    pub fn close(&self) -> Result<(), Error> {
        if self.inner.is_closed() {
            return Ok(());
        }
        // Most of it while others go on; then what was written meanwhile.
        match self.sync() {
            // Somebody else has closed it.
            Err(Error::Closed { .. }) => return Ok(()),
            synced => synced?,
        }
        let all = 0..END;
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

    /// Drops the pages, written or not, and lets go of the store. Returns how many dirty bytes that
    /// loses. Waits for I/O that is in flight: where a store hangs, until it answers.
    pub fn abandon(&self) -> u64 {
        if self.inner.partition.shared.is_forked() {
            return 0;
        }
        let all = 0..END;
        let dropped = self.closed_range(all.clone(), |object| {
            object.take_all(&all)?;
            // First, so that no sync believes that what is dropped now was clean. Release: pairs with
            // `check_not_failed`.
            object.inner.failed.store(true, Ordering::Release);
            let lost = object.inner.drop_held(&all);
            object.inner.set_closed();
            Ok(lost << object.inner.partition.page_shift)
        });
        dropped.unwrap_or_else(|error| {
            log::error!("{}: {error}: it stays open", self.name());
            0
        })
    }

    /// Runs `body` while nothing is brought into the range.
    fn closed_range<T>(
        &self,
        pages: Range<u64>,
        body: impl FnOnce(&Object) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut closed = false;
        while !closed {
            // Given back before `body` runs, which borrows lanes for itself.
            self.nap(|waiter| {
                closed = self.inner.ranges.close(pages.clone(), waiter);
                !closed
            })?;
        }
        let result = body(self);
        self.inner.ranges.open(&pages);
        result
    }

    /// Drops the pages of a closed range once their bytes are written.
    fn write_and_drop(&self, pages: &Range<u64>) -> Result<(), Error> {
        loop {
            self.clean_pages(pages.start, pages.end)?;
            self.take_all(pages)?;
            // Until they were taken they could be written again.
            if self.inner.give_back(pages) == 0 {
                return Ok(());
            }
        }
    }

    /// C3, and waits for those that are in somebody's hands.
    fn take_all(&self, pages: &Range<u64>) -> Result<(), Error> {
        while let Some(busy) = self.inner.take_pages(pages) {
            self.nap(|waiter| busy.register(&self.inner, waiter))?;
        }
        Ok(())
    }
}
