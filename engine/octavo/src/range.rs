//! Whole ranges, where a thread waits for them: a new length, letting go, an object that goes.
//!
//! The range is closed first, so that nothing is brought in there; then its pages are dropped, waiting for those that are
//! in somebody's hands; then the store is told; then the range is opened. Hits go on until their page is dropped. Pages that a shorter length cuts
//! off are taken and held, as for a clearing (C3, C5, C6 of `clear.rs`): if the store refuses, they are what they were.

use std::ops::Range;

use crate::counters::Count;
use crate::error::Error;
use crate::object::{Object, ObjectInner};
use crate::sync::Arc;

impl Object {
    /// Gives the object, and its store, a new length. What is cut off is gone; what is added reads as zeros.
    pub fn set_len_bytes(&self, len: u64) -> Result<(), Error> {
        self.0.check_writable()?;
        let inner = &self.0;
        let old = inner.len_bytes();
        let page_bytes = inner.partition.page_bytes() as u64;
        let failed = |e: std::io::Error| inner.range_error(octavo_disk::Op::Write, len.min(old), &e);
        // The page that either end cuts is dropped, written first: its bytes past the end are not to come back.
        let cut = len.min(old) / page_bytes;
        self.closed_range(cut..u64::MAX >> 16, |object| {
            object.write_and_drop(cut)?;
            inner.set_len(len.min(old));
            // Also where the object grows: a request that was on its way when it was cut may have left pages past the end.
            let pages = cut..u64::MAX >> 16;
            object.take_all(&pages)?;
            let result = inner.store.set_len_bytes(len).map_err(failed);
            match result.is_ok() {
                true => inner.drop_held(&pages),
                false => drop(inner.give_back(&pages)),
            }
            inner.set_len(if result.is_ok() { len } else { old });
            result
        })
    }

    /// Writes the range's dirty pages and lets go of its clean ones, as far as nobody has them in hand.
    pub(crate) fn let_go(&self, offset: u64, len: u64) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        let page_bytes = self.0.partition.page_bytes() as u64;
        let pages = offset.div_ceil(page_bytes)..(offset + len) / page_bytes;
        let pages = if offset + len == self.len_bytes() { pages.start..pages.end + 1 } else { pages };
        // A range inside one page holds no whole page.
        if pages.is_empty() {
            return Ok(());
        }
        if !self.read_only() {
            self.clean_pages(pages.start, pages.end, u64::MAX)?;
        }
        let partition = &self.0.partition;
        self.0.for_each_page(&pages, |guard, found, _| {
            let dropped = partition.drop_quiet(guard, &found, false);
            partition.counters.add(Count::EvictionsDiscard, dropped.is_ok() as u64);
        });
        Ok(())
    }

    /// Drops everything, for an object that is closed.
    pub(crate) fn drop_all(&self) {
        let all = 0..u64::MAX >> 16;
        let dropped = self.closed_range(all.clone(), |object| {
            object.take_all(&all)?;
            object.0.drop_held(&all);
            Ok(())
        });
        if let Err(error) = dropped {
            log::warn!("{}: {error}: its pages stay until they are evicted", self.name());
        }
    }

    /// Runs `body` while nothing is brought into the range.
    fn closed_range(
        &self,
        pages: Range<u64>,
        body: impl FnOnce(&Object) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let lane = self.0.partition.shared.lane()?;
        let mut closed = false;
        while !closed {
            lane.nap(&self.0, |waiter| {
                closed = self.0.ranges.close(pages.clone(), waiter);
                !closed
            });
        }
        let result = body(self);
        self.0.ranges.open(&pages);
        result
    }

    /// Drops a page of a closed range once its bytes are written.
    fn write_and_drop(&self, page: u64) -> Result<(), Error> {
        let pages = page..page + 1;
        loop {
            self.clean_pages(pages.start, pages.end, u64::MAX)?;
            self.take_all(&pages)?;
            // Until it was taken it could be written again.
            if self.0.give_back(&pages) == 0 {
                return Ok(());
            }
        }
    }

    /// C3, and waits for those that are in somebody's hands.
    fn take_all(&self, pages: &Range<u64>) -> Result<(), Error> {
        let lane = self.0.partition.shared.lane()?;
        while let Some(busy) = self.0.take_pages(pages) {
            lane.nap(&self.0, |waiter| busy.register(&self.0, waiter));
        }
        Ok(())
    }
}

impl ObjectInner {
    fn range_error(self: &Arc<Self>, op: octavo_disk::Op, offset: u64, source: &std::io::Error) -> Error {
        Error::Io {
            object: self.name.clone(),
            source: octavo_disk::IoError::of_call(self.store.name(), op, offset, 0, source),
        }
    }
}
