//! Whole ranges: discard, zeroes, a new length, letting go.
//!
//! The range is closed first, so that nothing is brought in there; then its pages are dropped, waiting for those that are
//! in somebody's hands; then the store is told; then the range is opened. Hits go on until their page is dropped.

use std::ops::Range;

use octavo_table::recording::Step;
use octavo_table::{Found, SetGuard, SlotIndex, State, Word};

use crate::WAYS;
use crate::counters::Count;
use crate::error::Error;
use crate::object::{Object, ObjectInner};
use crate::partition::PartitionInner;
use crate::sync::Arc;
use crate::task::{Job, Task};

/// What happens to dirty pages of a range that is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dirty {
    /// Their bytes are given up.
    Dropped,
    /// They are written first.
    Written,
    /// They stay.
    Kept,
}

impl Object {
    /// The range reads as zeros afterwards, and the store may give its space back. Parts of pages at its ends are zeroed.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.clear(offset, len, |object, offset, len| object.store.discard(offset, len))
    }

    /// The range reads as zeros afterwards; its space stays allocated where the store can do that.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.clear(offset, len, |object, offset, len| object.store.zero(offset, len))
    }

    fn clear(
        &self,
        offset: u64,
        len: u64,
        tell: impl Fn(&ObjectInner, u64, u64) -> std::io::Result<()>,
    ) -> Result<(), Error> {
        self.0.check_writable()?;
        self.0.check(offset, len)?;
        let shift = self.0.partition.page_shift;
        let page_bytes = self.0.partition.page_bytes() as u64;
        let end = offset + len;
        let first = offset.next_multiple_of(page_bytes);
        let last = if end == self.len_bytes() { end } else { end & !(page_bytes - 1) };
        if first >= last {
            return self.write_zeros(offset, len);
        }
        self.write_zeros(offset, first - offset)?;
        self.write_zeros(last, end - last)?;
        let pages = first >> shift..last.div_ceil(page_bytes);
        self.closed_range(pages.clone(), |object| {
            object.drop_pages(pages.clone(), Dirty::Dropped)?;
            tell(&object.0, first, last - first)
                .map_err(|e| object.0.range_error(octavo_disk::Op::Write, first, &e))
        })
    }

    fn write_zeros(&self, offset: u64, len: u64) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        let zeros = vec![0; len as usize];
        let lane = self.0.partition.shared.lane()?;
        let memory = zeros.as_ptr().cast_mut();
        let task = Task::new(Job::Write { durable: false }, self.0.clone(), offset, memory, zeros.len());
        lane.run(task)
    }

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
            object.drop_pages(cut..cut + 1, Dirty::Written)?;
            inner.set_len(len.min(old));
            // Also where the object grows: a request that was on its way when it was cut may have left pages past the end.
            object.drop_pages(cut..u64::MAX >> 16, Dirty::Dropped)?;
            let result = inner.store.set_len_bytes(len).map_err(failed);
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
        self.drop_pages(pages, Dirty::Kept)
    }

    /// Drops everything, for an object that is closed.
    pub(crate) fn drop_all(&self) {
        let all = 0..u64::MAX >> 16;
        let dropped = self.closed_range(all.clone(), |object| object.drop_pages(all.clone(), Dirty::Dropped));
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
        self.0.ranges.open(pages);
        result
    }

    /// Drops the pages of a range. Waits for those in somebody's hands, except where dirty ones are kept.
    fn drop_pages(&self, pages: Range<u64>, dirty: Dirty) -> Result<(), Error> {
        let inner = &self.0;
        let partition = &inner.partition;
        loop {
            let mut busy: Option<(SlotIndex, Word)> = None;
            let mut unwritten: Option<u64> = None;
            let mut drop_one = |guard: &mut SetGuard<'_, WAYS>, found: Found<'_>, page: u64| match partition
                .drop_quiet(guard, &found, dirty == Dirty::Dropped)
            {
                Ok(_) => partition.counters.add(Count::EvictionsDiscard, 1),
                Err(word) if word.state() == State::Dirty && !word.writeback() => unwritten = Some(page),
                Err(word) if word.owned() || word.writeback() => busy = Some((found.index, word)),
                // It changed under our eyes: look again.
                Err(_) => unwritten = Some(page),
            };
            // A short range is looked up page by page, a long one by a walk over the table.
            if pages.end - pages.start <= partition.table.slots_count() / 4 {
                for page in pages.clone() {
                    let tag = inner.tag(page);
                    let mut guard = partition.table.lock(tag);
                    if let Some(found) = guard.find(tag) {
                        drop_one(&mut guard, found, page);
                    }
                }
            } else {
                let still = crate::sync::lock(&partition.moves);
                partition.table.for_each_page(|guard, found| {
                    let (object, page) = partition.page_of(found.tag());
                    if object == inner.id && pages.contains(&page) {
                        drop_one(guard, found, page);
                    }
                });
                drop(still);
            }
            if dirty == Dirty::Kept {
                return Ok(());
            }
            let lane = partition.shared.lane()?;
            if let Some(page) = unwritten {
                match dirty {
                    Dirty::Written => self.clean_pages(page, page + 1, u64::MAX)?,
                    _ => crate::sync::yield_now(),
                }
                continue;
            }
            if let Some((slot, word)) = busy {
                lane.nap(inner, |waiter| {
                    partition.waiters.register(&partition.table, slot, word, waiter).is_ok()
                });
                continue;
            }
            let mut strays = false;
            lane.nap(inner, |waiter| {
                let concerned = |tag| {
                    let (object, page) = partition.page_of(tag);
                    object == inner.id && pages.contains(&page)
                };
                strays = partition.strays.wait_any(concerned, waiter);
                strays
            });
            if !strays {
                return Ok(());
            }
        }
    }
}

impl PartitionInner {
    /// P9 for a page that nobody has in hands.
    fn drop_quiet(
        &self,
        guard: &mut SetGuard<'_, WAYS>,
        found: &Found<'_>,
        even_dirty: bool,
    ) -> Result<Word, Word> {
        let (note, tag) = (self.note(), found.tag());
        let dropped = guard.remove_quiet(found, even_dirty)?;
        note.step(tag, || Step::Drop { even_dirty });
        Ok(dropped)
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
