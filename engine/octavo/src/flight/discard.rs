//! Clearing a range (discard and zero). Afterwards the range reads as zeros. If the store refuses,
//! no acknowledged write is lost.
//!
//! - **C1 edges**: zeros are written to the partial pages at the range's ends, as by any other
//!   write. A fast clearing does this last.
//! - **C2 close**: the range of whole pages is closed ([`Ranges`](crate::wait::Ranges)): no page of
//!   it is brought in. Resident pages may still be read and written.
//! - **C3 take**: every resident page of the range is taken, under its set's lock. A clean page is
//!   dropped, because the store has its bytes. A dirty page is held (P14): reads still get its
//!   bytes; writes and syncs wait. If a page is busy (a fill, a write, a write-back, a stray), the
//!   range is shortened to end before the first such page, and pages taken after it are given back.
//!   If the first page of the range is busy, the task registers with it and starts again at C2.
//! - **C4 tell**: the task asks the store to clear the range, with one I/O through the ring.
//! - **C5 cleared**: the held pages are dropped.
//! - **C6 refused**: the held pages are dirty again, with the versions that they had. For the clean
//!   pages that were dropped, the store has either zeros or the old bytes; the next read gets what
//!   the store has.
//! - **C7 open**: the range is opened, its waiters are woken, and the clearing continues with the
//!   rest of its pages.
//!
//! While a clearing holds pages, its I/O is in flight, and any thread that takes the completion
//! does C5 to C7. No thread therefore depends on the one that began the clearing. Between C3 and C7
//! a read either gets the old bytes of a held page or waits; it gets zeros only after C7. A write
//! or write-back of a page of the range ends before C3 takes that page, or begins after C7. No
//! older bytes therefore reach the store after the zeros.
//!
//! Not here: how a store clears (`octavo_disk`), the sync that follows a durable clearing
//! (`task.rs`), changes of length (`api/lifecycle.rs`).

use std::ops::Range;
use std::sync::atomic::AtomicU8;

use octavo_disk::IoError;
use octavo_table::{Found, SetGuard, SlotIndex, State, Word};

use super::lane::{Lane, Work};
use super::owner::Owner;
use super::task::{Job, Kind, NONE, Pages, Task, Transfer};
use super::write;
use crate::error::Error;
use crate::memory::Lent;
use crate::pages::ahead::Lookup;
use crate::position::{ByteOffset, PageIndex, PageSize, page_count};
use crate::state::counters::Count;
use crate::state::partition::ObjectInner;
use crate::sync::{Arc, lock};
use crate::wait::{RESUME, Waiter};
use crate::ways::WAYS;

/// Zeros to write to edges. Only read. Atomics, so that the linker reserves zeroed memory, of which
/// none is backed, instead of a megabyte of the executable.
static ZEROS: [AtomicU8; PageSize::BYTES_MOST] = [const { AtomicU8::new(0) }; PageSize::BYTES_MOST];

/// The part of a clearing that is left to do.
pub(crate) struct ClearState {
    /// When the range is cleared, the task becomes a sync of the range.
    pub durable: bool,
    /// The store must not write zeros. The edges come last, so that a store that refuses leaves
    /// the range as it was.
    is_fast: bool,
    /// Discard or zero.
    op: octavo_disk::Op,
    /// Pages of which only a part is cleared.
    edges: Vec<PageIndex>,
    /// The whole pages.
    whole: Range<PageIndex>,
    /// Where the range ends. If that is the object's end, it may lie inside the last of the whole
    /// pages.
    end: ByteOffset,
    /// The store is clearing a part of the whole pages.
    in_flight: bool,
    /// That part may hold pages (C3). If not, C5 and C6 have nothing to do.
    holds: bool,
}

impl ClearState {
    /// Whether nothing is left to begin.
    pub fn is_begun(&self) -> bool {
        self.edges.is_empty() && self.whole.is_empty()
    }
}

impl Task {
    /// Creates a task that clears a range. `op` is a discard or a zero.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::PastEnd`]; [`Error::Closed`]; [`Error::Failed`] if `durable`
    /// and an earlier sync of the store failed.
    pub fn clearing(
        object: &Arc<ObjectInner>,
        op: octavo_disk::Op,
        offset: ByteOffset,
        len: u64,
        durable: bool,
    ) -> Result<Task, Error> {
        object.check_writable()?;
        object.check(offset, len)?;
        if durable {
            object.check_not_failed()?;
        }
        let touched = object.partition.page_size.page_range(offset, len);
        let whole = object.whole_pages(offset, len);
        let mut edges = Vec::new();
        if !touched.is_empty() {
            edges.extend([touched.start, touched.end - 1]);
            edges.dedup();
            edges.retain(|page| !whole.contains(page));
        }
        let clear = ClearState {
            durable,
            is_fast: false,
            op,
            edges,
            whole,
            end: offset + len,
            in_flight: false,
            holds: false,
        };
        let job = Job::Clear(Box::new(clear));
        let mut task = Task::new(job, object.clone(), offset, Lent::NONE, len as usize);
        // The clearing keeps its own list of pages, so the task's cursor stays empty.
        Range { start: task.next, end: task.end } = NONE;
        Ok(task)
    }

    /// Makes a clearing fail if the store would have to write zeros.
    pub fn only_fast(mut self) -> Task {
        self.clear().is_fast = true;
        self
    }

    /// The state of a clearing.
    fn clear(&mut self) -> &mut ClearState {
        match &mut self.job {
            Job::Clear(clear) => clear,
            _ => unreachable!("only a clearing clears"),
        }
    }
}

/// Returns the zeros that are written to edges.
pub(crate) fn zeros() -> *mut u8 {
    ZEROS.as_ptr().cast_mut().cast()
}

/// Continues a clearing as far as possible.
pub(crate) fn advance(owner: &mut Owner<'_>) {
    let object = owner.object;
    let task = owner.task();
    if task.error.is_some() {
        let clear = task.clear();
        (clear.edges, clear.whole) = (Vec::new(), NONE);
        return task.again.clear();
    }
    // C1.
    let tried = std::mem::take(&mut task.again);
    let clear = task.clear();
    let is_first = !clear.is_fast || clear.whole.is_empty();
    let edges = if is_first { std::mem::take(&mut clear.edges) } else { Vec::new() };
    tried.into_iter().for_each(|page| write::page(owner, page, false));
    edges.into_iter().for_each(|page| write::page(owner, page, true));
    // C2 to C4, one part at a time: when a part has ended, the next one begins.
    let clear = owner.task().clear();
    if clear.whole.is_empty() || clear.in_flight {
        return;
    }
    let (op, is_fast, pages) = (clear.op, clear.is_fast, clear.whole.clone());
    if owner.waits(RESUME, |waiter| !object.ranges.close(pages.clone(), waiter)) {
        return;
    }
    if !is_still_right(owner.task(), object, &pages) {
        object.ranges.open(&pages);
        // Start again at C2.
        return owner.retry(RESUME);
    }
    let Taken { busy, holds } = object.take_pages(&pages);
    let end = busy.as_ref().map_or(pages.end, |busy| busy.page);
    if end < pages.end {
        if holds {
            object.give_back(&(end..pages.end));
        }
        object.ranges.shorten(&pages, end);
    }
    if let Some(busy) = busy.filter(|busy| busy.page == pages.start) {
        if !owner.waits(RESUME, |waiter| busy.register(object, waiter)) {
            owner.retry(RESUME);
        }
        return;
    }
    let clear = owner.task().clear();
    (clear.in_flight, clear.holds) = (true, holds);
    owner.push(Kind::Clear { op, is_fast, end }, pages.start, Pages::none(owner.id), None);
}

/// Checks, with the range closed, whether a clearing may continue with these pages. The length
/// cannot change while the range is closed. If the object was cut or closed in the meantime, the
/// task fails. If the object has grown, its former last page becomes an edge.
fn is_still_right(task: &mut Task, object: &ObjectInner, pages: &Range<PageIndex>) -> bool {
    if let Err(error) = object.check(task.offset, task.len as u64) {
        task.fail(error);
        return false;
    }
    let clear = task.clear();
    let is_longer = object.len_bytes() > clear.end.0;
    let has_edge = is_longer && object.partition.page_size.start_of(pages.end) > clear.end;
    if has_edge {
        clear.whole.end -= 1;
        clear.edges.push(clear.whole.end);
    }
    !has_edge
}

/// Ends the clearing of a part of the range, up to page `end`: C5 to C7.
pub(crate) fn cleared(
    lane: &Lane,
    work: &mut Work,
    transfer: Transfer,
    end: PageIndex,
    result: Result<(), IoError>,
) {
    let (object, id) = (&transfer.object, transfer.pages.first().task);
    let pages = transfer.page..end;
    let task = &mut work.tasks[id];
    let clear = task.clear();
    if clear.holds {
        match result.is_ok() {
            true => object.drop_held(&pages),
            false => object.give_back(&pages),
        };
    }
    object.ranges.open(&pages);
    clear.in_flight = false;
    clear.whole.start = pages.end;
    let is_begun = clear.is_begun();
    match result {
        // An answer, and no failure of the store.
        Err(source) if clear.is_fast && source.errno() == libc::EOPNOTSUPP => {
            task.fail(task.object.io_error(&source));
        }
        Err(source) => task.fail_io(Count::WriteErrors, &source),
        Ok(()) => {}
    }
    match is_begun || task.error.is_some() {
        true => lane.step(work, id),
        // The owner begins the next part, or the edges. Until then, the clearing holds no page.
        false => lane.retry(id, RESUME),
    }
}

/// A page that cannot be taken now.
pub(crate) struct Busy {
    page: PageIndex,
    /// Its slot and the slot's word. None for a stray.
    slot: Option<(SlotIndex, Word)>,
}

/// What `take_pages` has taken.
pub(crate) struct Taken {
    /// The first page that is busy.
    pub busy: Option<Busy>,
    /// Whether it holds any page now.
    pub(super) holds: bool,
}

impl Busy {
    /// Registers for the end of the page's busy state. Returns false if that state has already
    /// ended.
    pub fn register(&self, object: &ObjectInner, waiter: impl FnOnce() -> Waiter) -> bool {
        let partition = &*object.partition;
        match self.slot {
            Some((slot, word)) if word.owned() || word.writeback() => {
                partition.wait_for_slot(slot, word, waiter)
            }
            Some(_) => false,
            None => partition.strays.wait(object.tag(self.page), waiter),
        }
    }
}

impl ObjectInner {
    /// Returns the pages of which a range contains all bytes. Bytes past the object's end do not
    /// count.
    pub fn whole_pages(&self, offset: ByteOffset, len: u64) -> Range<PageIndex> {
        let (size, end) = (self.partition.page_size, offset + len);
        let first = size.page_range(ByteOffset(0), offset.0).end;
        let last =
            if end.0 == self.len_bytes() { size.page_range(offset, len).end } else { size.page_of(end) };
        if first < last { first..last } else { NONE }
    }

    /// Visits the resident pages of a range with their sets locked: looks up each page, or walks
    /// over the table if that is shorter.
    pub fn for_each_page(
        &self,
        pages: &Range<PageIndex>,
        mut visit: impl FnMut(&mut SetGuard<'_, WAYS>, Found<'_>, PageIndex),
    ) {
        let partition = &*self.partition;
        let pages = &self.reachable(pages);
        if page_count(pages) <= partition.table.slots_count() / 4 {
            for (page, tag) in self.tags_ahead(pages, Lookup::Lock) {
                let mut guard = partition.table.lock(tag);
                if let Some(found) = guard.find(tag) {
                    visit(&mut guard, found, page);
                }
            }
            return;
        }
        // Hold off moves: a page that moves during the walk could be overlooked in both places.
        let _still = lock(&partition.moves);
        #[cfg(test)]
        super::writeback::WALKS.with(|walks| walks.set(walks.get() + 1));
        partition.table.for_each_page(|guard, found| {
            let (object, page) = partition.page_of(found.tag());
            if object == self.id && pages.contains(&page) {
                visit(guard, found, page);
            }
        });
    }

    /// C3, for a closed range: takes all pages that are not busy.
    pub fn take_pages(&self, pages: &Range<PageIndex>) -> Taken {
        let partition = &*self.partition;
        let (mut busy, mut holds): (Option<Busy>, bool) = (None, false);
        let mut note_busy = |page: PageIndex, slot: Option<(SlotIndex, Word)>| {
            if busy.as_ref().is_none_or(|busy| page < busy.page) {
                busy = Some(Busy { page, slot });
            }
        };
        self.for_each_page(pages, |guard, found, page| {
            let taken = match found.word.state() {
                // Already taken: a walk may visit a page twice.
                State::Storing if found.word.held() => Ok(()),
                State::Dirty => found.slot().hold(found.word).inspect(|_| holds = true),
                _ => partition.drop_quiet(guard, &found, Count::EvictionsDiscard),
            };
            // This includes a page whose state has changed since it was found.
            if let Err(word) = taken {
                note_busy(page, Some((found.index, word)));
            }
        });
        // Mark the twins of pages that were evicted earlier stale (T7). Removing a resident page
        // does the same for its twins.
        self.overtake_orphans(pages);
        // No stray begins in a closed range.
        let stray = partition.strays.lowest(|tag| {
            let (object, page) = partition.page_of(tag);
            (object == self.id && pages.contains(&page)).then_some(page)
        });
        if let Some(page) = stray {
            note_busy(page, None);
        }
        Taken { busy, holds }
    }

    /// Marks the twins of the range's non-resident pages stale, so that they are not read any more.
    fn overtake_orphans(&self, pages: &Range<PageIndex>) {
        let partition = &*self.partition;
        if !partition.places.replicates {
            return;
        }
        let pages = &self.reachable(pages);
        if page_count(pages) <= partition.table.slots_count() / 4 {
            for (_, tag) in self.tags_ahead(pages, Lookup::Lock) {
                partition.table.lock(tag).overtake_orphans(tag);
            }
            return;
        }
        partition.table.overtake_all(|tag| {
            let (object, page) = partition.page_of(tag);
            object == self.id && pages.contains(&page)
        });
    }

    /// C6: gives the held pages of a range back. Returns their number.
    pub fn give_back(&self, pages: &Range<PageIndex>) -> u64 {
        self.end_held(pages, |_, found| found.slot().let_go())
    }

    /// C5: drops the held pages of a range. Returns their number.
    pub fn drop_held(&self, pages: &Range<PageIndex>) -> u64 {
        self.end_held(pages, |guard, found| self.partition.drop_held(guard, found))
    }

    /// Ends the hold of the held pages of a range with `end`, which returns whether tasks wait for
    /// the slot. Returns the number of pages.
    fn end_held(
        &self,
        pages: &Range<PageIndex>,
        end: impl Fn(&mut SetGuard<'_, WAYS>, &Found<'_>) -> bool,
    ) -> u64 {
        let (mut held, mut waited) = (0, Vec::new());
        self.for_each_page(pages, |guard, found, _| {
            if found.word.held() {
                held += 1;
                waited.extend(end(guard, &found).then_some(found.index));
            }
        });
        waited.into_iter().for_each(|slot| self.partition.waiters.wake(slot));
        held
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_disk::Store;

    use super::super::writeback::walks_of;
    use crate::{Cache, CacheConfig, CacheMode, PartitionConfig};

    const PAGE: u64 = 4096;

    /// A change of length used to close the range up to the largest possible object, and so walked
    /// over the whole table: 2 ms for each small file that an archive was unpacked to.
    #[test]
    fn what_befalls_a_short_object_takes_no_walk_over_the_table() {
        let config = CacheConfig { memory_max_bytes: 64 << 20, background: false, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        for cache_mode in [CacheMode::Writethrough, CacheMode::Writeback] {
            let name = format!("{cache_mode:?}").to_lowercase();
            let max_bytes = Some(16 << 20);
            let config = PartitionConfig { cache_mode, max_bytes, ..PartitionConfig::new(&name) };
            let partition = cache.partition(config).unwrap();
            let long = partition.open(Store::memory("long", 1000 * PAGE), "long").unwrap();
            long.write_at(0, &vec![1; 1000 * PAGE as usize]).unwrap();
            let object = partition.open(Store::memory("short", 0), "short").unwrap();
            let ((), walks) = walks_of(|| {
                object.set_len_bytes(9 * PAGE + 7).unwrap();
                object.write_at(0, &[7; 9 * PAGE as usize + 7]).unwrap();
                object.sync().unwrap();
                object.set_len_bytes(2 * PAGE + 1).unwrap();
                assert_eq!(object.invalidate(0, u64::MAX).unwrap(), 0);
                object.set_len_bytes(20 * PAGE).unwrap();
            });
            assert_eq!(walks, 0);
            let mut bytes = vec![1; 20 * PAGE as usize];
            object.read_at(0, &mut bytes).unwrap();
            let kept = 2 * PAGE as usize + 1;
            assert!(bytes[..kept].iter().all(|byte| *byte == 7));
            assert!(bytes[kept..].iter().all(|byte| *byte == 0));
            let (lost, walks) = walks_of(|| object.abandon());
            assert_eq!((lost, walks), (0, 0));
            long.sync().unwrap();
            assert_eq!(partition.stat().resident_bytes, 1000 * PAGE, "pages of the closed object");
        }
    }

    /// Pages past a shorter end are still found: a request in flight may bring them in after a cut.
    #[test]
    fn a_cut_does_not_shorten_what_a_drop_looks_at() {
        let config = CacheConfig { memory_max_bytes: 64 << 20, background: false, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        let object = partition.open(Store::memory("m", 100 * PAGE), "m").unwrap();
        object.set_len_bytes(PAGE).unwrap();
        let every = super::super::EVERY;
        assert_eq!(object.inner.reachable(&every).end.0, 100);
        object.set_len_bytes(200 * PAGE + 1).unwrap();
        assert_eq!(object.inner.reachable(&every).end.0, 201);
    }
}
