//! Write-back and sync: a task writes dirty pages to the store in the order of their offsets,
//! adjacent pages in one I/O.
//!
//! There is no list of dirty pages. To find them, a task walks over the slots, skips segments
//! without dirty pages, and computes the pages' keys from the tags. It works in *rounds*: a round
//! collects the lowest dirty pages of the range (an eighth of all dirty pages, at least 4,096) and
//! writes them; the next round continues after them. In a short range, each page is looked up
//! instead.
//!
//! If the store refuses a write (because it is full, say), the task continues with one page per I/O
//! until the store takes a page. A *pass* (which writes all dirty pages of an object and makes none
//! durable) gives up after 64 refusals in a row; the next pass starts after the refused pages.
//!
//! A page is written from a copy in a bounce page, so it may be read and written during the I/O.
//! The page becomes clean only if no write changed it after the copy.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use octavo_disk::IoError;
use octavo_table::{SegmentIndex, SlotIndex, State, Tag, Word};

use super::lane::{Lane, Work};
use super::owner::Owner;
use super::task::{EVERY, Job, Kind, NONE, Pages, Role, Task, Transfer, TransferPage};
use super::transfers::{RUN_PAGES_MAX, run_pages_max};
use crate::error::Error;
use crate::memory::{Bounce, Charge, copy};
use crate::pages::ahead::Lookup;
use crate::position::{PageIndex, page_count, pages_in};
use crate::state::counters::Count;
use crate::state::events::Happened;
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::sync::{Arc, Ordering, lock};
use crate::wait::{Flush, RESUME};

/// Dirty pages that every round may collect: enough for long runs, 64 KiB of memory. Fewer in unit
/// tests, so that a sync takes several rounds.
const ROUND_PAGES_LEAST: usize = if cfg!(test) { 64 } else { 4096 };

/// A round collects one part in this many of the dirty pages. A sync therefore walks over the table
/// at most nine times, however large the cache is.
const ROUNDS: u64 = 8;

/// One look-up costs about as much as walking over this many slots.
const LOOKUP_SLOTS: u64 = 16;

/// Most transfers of one task in flight; more would only queue.
const IN_FLIGHT_MAX: usize = 32;

/// Most copies of a page that is being written before its task tries again later.
const COPY_TRIES: usize = 4;

/// Refused pages in a row after which a pass gives up. Without this limit, the cleaner would offer
/// a million pages to a full store every second.
const REFUSED_MAX: u32 = 64;

/// The state of a task that writes dirty pages.
#[derive(Default)]
pub(crate) struct SyncState {
    /// Sync the store after the pages are written.
    pub flush: bool,
    /// The pages are written; only the sync of the store is left.
    pub flushing: bool,
    /// Number of the first flush that covers the task; 0 until the task asks for a flush.
    flush_needed: u64,
    /// Pages that the task may still write. Limits passes.
    clean_left: u64,
    /// The size of the task's rounds, if larger than the minimum.
    round: Option<Round>,
    /// Progress of the write-backs; None until the first.
    cleaning: Option<Cleaning>,
    /// The first error of a page, reported at the end. The other pages are still tried.
    pub late_error: Option<Error>,
}

impl SyncState {
    pub fn new(flush: bool, clean_left: u64) -> Box<SyncState> {
        Box::new(SyncState { flush, clean_left, ..SyncState::default() })
    }

    fn cleaning(&mut self) -> &mut Cleaning {
        self.cleaning.as_mut().expect("a sync that has begun")
    }
}

/// Progress of the write-backs of a sync or a pass.
pub(crate) struct Cleaning {
    /// The task covers all dirty pages of the object, and has skipped none so far.
    whole: bool,
    is_pass: bool,
    /// When the task began.
    began_at: Instant,
    /// Where a pass began and will end: it writes the pages before this one last.
    begun: PageIndex,
    runs: Runs,
    /// Pages refused since the last one that was written.
    refused: u32,
}

/// Whether adjacent pages are written in one I/O.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    Yes,
    /// Not until the store takes a page: it has refused one before.
    NotYet,
    /// Never again in this task: the store refused a run, perhaps because of one bad block.
    No,
}

/// The outcome of copying a page.
enum Copy {
    /// The page needs no write.
    Clean,
    /// The bytes are in the bounce page; the slot has the write-back flag.
    Copied { slot: SlotIndex, version: u64 },
    /// The task is registered with the page, or will retry it.
    Later,
}

/// Continues a sync: starts write-backs until `IN_FLIGHT_MAX` are in flight.
pub(crate) fn advance(owner: &mut Owner<'_>) {
    let Owner { lane, object, .. } = *owner;
    if owner.task().sync().flushing {
        return flush(owner);
    }
    begin(owner.task(), object);
    loop {
        let task = owner.task();
        if task.outstanding >= IN_FLIGHT_MAX || task.error.is_some() {
            return;
        }
        if task.again.is_empty() {
            if task.next >= task.end {
                return;
            }
            if task.sync().clean_left == 0 {
                task.next = task.end;
                task.sync().cleaning().whole = false;
                return;
            }
            collect(lane, task, object);
            continue;
        }
        if !run(owner) {
            return;
        }
    }
}

/// Collects the pages of the next round.
fn collect(lane: &Lane, task: &mut Task, object: &ObjectInner) {
    let (next, end) = (task.next, task.end);
    let sync = task.sync();
    if sync.round.is_none() {
        let dirty = object.partition.table.dirty_pages().min(sync.clean_left);
        sync.round = Round::among(lane, dirty);
    }
    let most = sync.round.as_ref().map_or(ROUND_PAGES_LEAST, |round| round.pages_max);
    let round = object.dirty_pages(&(next..end), most);
    // There may be more dirty pages after the last of a full round.
    task.next = if round.len() < most { end } else { round[round.len() - 1] + 1 };
    task.again = round;
    task.again.reverse();
    if task.next == task.end {
        (task.next, task.end) = (PageIndex(0), std::mem::take(&mut task.sync().cleaning().begun));
    }
}

/// Sets up the progress of a task. Later calls do nothing.
fn begin(task: &mut Task, object: &ObjectInner) {
    let whole = (task.next..task.end) == EVERY;
    let sync = task.sync();
    if sync.cleaning.is_some() {
        return;
    }
    let is_pass = whole && !sync.flush;
    let runs = if lock(&object.faults).refusal().is_some() { Runs::NotYet } else { Runs::Yes };
    // Relaxed, here and elsewhere: a pass covers all pages wherever it begins.
    let begun = if is_pass { PageIndex(object.clean_next.swap(0, Ordering::Relaxed)) } else { PageIndex(0) };
    sync.cleaning = Some(Cleaning { whole, is_pass, began_at: Instant::now(), begun, runs, refused: 0 });
    task.next = task.next.max(begun);
}

/// Notes in the object that a task has ended.
pub(crate) fn ended(task: &Task) {
    let Job::Sync(sync) = &task.job else { return };
    let whole = sync.cleaning.as_ref().filter(|cleaning| cleaning.whole && task.error.is_none());
    if let Some(cleaning) = whole {
        task.object.clean_until.advance(cleaning.began_at);
        task.object.clean_next.store(0, Ordering::Relaxed);
        lock(&task.object.faults).written();
    }
}

/// Syncs the store, after the pages of a sync were written.
fn flush(owner: &mut Owner<'_>) {
    let Owner { lane, id, object, .. } = *owner;
    let task = owner.task();
    // A task that asked for its flush before a close has written its pages, so it continues.
    let is_open = if task.sync().flush_needed == 0 { object.check_open() } else { Ok(()) };
    if let Err(error) = is_open.and_then(|()| object.check_not_failed()) {
        return task.fail(error);
    }
    match object.flushes.ask(&mut task.sync().flush_needed, || lane.waiter(id, RESUME)) {
        Flush::Covered => {}
        Flush::Wait => owner.work.registered(id),
        Flush::Begin => owner.push(Kind::Flush, PageIndex(0), Pages::none(id), None),
    }
}

/// Writes the next adjacent pages of the round. Returns false to wait for a bounce page.
fn run(owner: &mut Owner<'_>) -> bool {
    let most = if owner.task().sync().cleaning().runs == Runs::Yes { run_pages_max(owner.object) } else { 1 };
    let again = &owner.task().again;
    let first = again[again.len() - 1];
    let adjacent = (0..)
        .zip(again.iter().rev())
        .take(most)
        .take_while(|(behind, page)| **page == first + *behind)
        .count();
    let Some(mut bounce) = owner.take_bounce(RESUME, adjacent) else { return false };
    let mut pages: Option<Pages> = None;
    let mut taken = 0;
    while taken < bounce.pages {
        owner.task().again.pop();
        let copied = copy_page(owner, first + taken as u64, bounce.at(taken));
        let Copy::Copied { slot, version } = copied else { break };
        let held = TransferPage { slot: Some(slot), task: owner.id, role: Role::Bring, version };
        Pages::extend(&mut pages, held);
        taken += 1;
    }
    if let Some(pages) = pages {
        bounce.shorten(taken);
        owner.push(Kind::Clean, first, pages, Some(bounce));
    }
    true
}

/// Whether a page is dirty, or may have been dirty before its current owner took it.
fn may_be_dirty(word: Word) -> bool {
    matches!(word.state(), State::Dirty | State::Writing) || word.held()
}

/// P10: if the page is dirty, begins its write-back and copies its bytes to a bounce page.
fn copy_page(owner: &mut Owner<'_>, page: PageIndex, to: *mut u8) -> Copy {
    let object = owner.object;
    let partition = &*object.partition;
    let tag = object.tag(page);
    for _ in 0..COPY_TRIES {
        // Under the lock, because a page that is moving could be overlooked otherwise.
        let guard = partition.table.lock(tag);
        let Some(found) = guard.find(tag) else { return Copy::Clean };
        drop(guard);
        if !may_be_dirty(found.word) {
            return Copy::Clean;
        }
        // Wait for the owner, or for the write-back of an earlier version: bytes acknowledged
        // before this sync are written after that. If a clearing owns the page and is refused, the
        // page is dirty again.
        if found.word.owned() || found.word.writeback() {
            if owner.waits(page, |waiter| partition.wait_for_slot(found.index, found.word, waiter)) {
                return Copy::Later;
            }
            continue;
        }
        // With the flag set, the page can be neither evicted nor moved. A writer may still change
        // it, but then its version changes, too.
        let Some(copied_from) = partition.begin_writeback(tag, &found) else { continue };
        if copied_from.readable() {
            let frame = partition.frames.at(found.index);
            // SAFETY: the frame is mapped, and the bounce page is ours. The copy may race with a
            // writer, and is then discarded.
            unsafe { copy::copy_out(frame, to, partition.page_bytes()) };
            if found.slot().unchanged(copied_from) {
                return Copy::Copied { slot: found.index, version: copied_from.version() };
            }
        }
        partition.end_writeback(found.index, 0, false);
    }
    // Writers keep changing the page: retry later.
    owner.retry(page);
    Copy::Later
}

/// Starts the write-back of one page from a bounce page. When it has ended, the task tries the page
/// again.
pub(crate) fn begin_one(owner: &mut Owner<'_>, page: PageIndex, bounce: Bounce) {
    match copy_page(owner, page, bounce.at(0)) {
        Copy::Clean => owner.retry(page),
        Copy::Later => {}
        Copy::Copied { slot, version } => {
            let held = TransferPage { slot: Some(slot), task: owner.id, role: Role::Retry, version };
            owner.push(Kind::Clean, page, Pages::one(held), Some(bounce));
        }
    }
}

/// Ends a write-back.
pub(crate) fn cleaned(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let Transfer { object, page: first, pages, bounce, .. } = transfer;
    let partition = &*object.partition;
    drop(bounce);
    for page in pages.iter() {
        let slot = page.slot.expect("a write-back has slots");
        partition.end_writeback(slot, page.version, result.is_ok());
    }
    let (held, count) = (pages.first(), pages.count() as u64);
    let id = held.task;
    let task = &mut work.tasks[id];
    match result {
        Ok(()) => {
            partition.counters.add(Count::Writebacks, count);
            partition.counters.add(Count::WritebackIos, 1);
            // Relaxed: a count.
            object.written.fetch_add(count, Ordering::Relaxed);
            if let Job::Sync(sync) = &mut task.job {
                sync.took(&object, first, count);
            }
        }
        Err(_) if count > 1 => {
            task.sync().cleaning().runs = Runs::No;
            task.outstanding += count as usize;
            pages_in(&(first..first + count)).for_each(|page| lane.retry(id, page));
        }
        Err(source) => {
            partition.counters.add(Count::WriteErrors, 1);
            let error = object.io_error(&source);
            lock(&object.faults).refused(&error);
            match &mut task.job {
                // A sync continues with the other pages and reports the error at its end.
                Job::Sync(sync) => {
                    if sync.refused(&object, first, &error) {
                        task.fail(error);
                    }
                }
                _ => {
                    task.fail(error);
                    return lane.step(work, id);
                }
            }
        }
    }
    match held.role {
        Role::Retry => lane.retry(id, first),
        // The owner continues the task: `IN_FLIGHT_MAX` may have held back write-backs.
        _ => lane.retry(id, RESUME),
    }
}

impl SyncState {
    /// Notes that the store has taken `count` pages from `first` on.
    fn took(&mut self, object: &ObjectInner, first: PageIndex, count: u64) {
        self.clean_left = self.clean_left.saturating_sub(count);
        let cleaning = self.cleaning();
        cleaning.refused = 0;
        if cleaning.runs == Runs::NotYet {
            cleaning.runs = Runs::Yes;
            // After refusals the order of tries is lost: the next pass begins here if this fails.
            object.clean_next.store(first.0, Ordering::Relaxed);
        }
    }

    /// Notes that the store has refused a page. Returns whether the task must give up.
    fn refused(&mut self, object: &ObjectInner, page: PageIndex, error: &Error) -> bool {
        self.late_error.get_or_insert_with(|| error.clone());
        let cleaning = self.cleaning();
        cleaning.refused += 1;
        let gives_up = cleaning.is_pass && cleaning.refused == REFUSED_MAX;
        if gives_up && cleaning.runs == Runs::NotYet {
            object.clean_next.store(page.0 + 1, Ordering::Relaxed);
        }
        gives_up
    }
}

/// Ends a sync of the store.
pub(crate) fn flushed(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let object = &transfer.object;
    let id = transfer.pages.first().task;
    if let Err(source) = &result {
        work.tasks[id].fail(object.sync_failed(source));
    }
    // Last, so that the tasks that this wakes see that the object has failed.
    object.flushes.ended(result.is_ok());
    lane.step(work, id);
}

/// The size of a task's rounds, if larger than the minimum.
pub(crate) struct Round {
    pages_max: usize,
    _charge: Charge,
}

impl Round {
    /// Chooses the size for `dirty` pages. `None`: the minimum is enough, or memory is short.
    fn among(lane: &Lane, dirty: u64) -> Option<Round> {
        let pages_max = (dirty / ROUNDS) as usize;
        if pages_max <= ROUND_PAGES_LEAST {
            return None;
        }
        let bytes = (2 * pages_max * size_of::<PageIndex>()) as u64;
        let charge = lane.shared.reserve.charge(bytes, "a round of write-back");
        let Ok(charge) = charge else {
            // The task asks again for its next round.
            lane.shared.reserve.want(bytes);
            return None;
        };
        Some(Round { pages_max, _charge: charge })
    }
}

/// Collects the lowest of the pages that are added. A page may be added twice, because a walk may
/// visit a segment twice.
struct Lowest {
    most: usize,
    /// The lowest pages are below this one.
    below: PageIndex,
    /// Never more than twice `most`.
    pages: Vec<PageIndex>,
}

impl Lowest {
    fn new(most: usize) -> Lowest {
        Lowest { most, below: PageIndex(u64::MAX), pages: Vec::new() }
    }

    fn add(&mut self, page: PageIndex) {
        if page >= self.below {
            return;
        }
        if self.pages.len() == 2 * self.most {
            self.sift();
        }
        self.pages.push(page);
    }

    /// Removes duplicates, then all but the lowest `most` pages.
    fn sift(&mut self) {
        self.pages.sort_unstable();
        self.pages.dedup();
        if self.pages.len() >= self.most {
            self.pages.truncate(self.most);
            self.below = self.pages[self.most - 1];
        }
    }

    fn into_pages(mut self) -> Vec<PageIndex> {
        self.sift();
        self.pages
    }
}

impl Task {
    /// The state of a sync.
    fn sync(&mut self) -> &mut SyncState {
        match &mut self.job {
            Job::Sync(sync) => sync,
            _ => unreachable!("only a sync writes back"),
        }
    }

    /// Creates a task that writes back the pages of a segment that are dirty now, adjacent ones
    /// together, for a resize that empties the segment.
    pub fn cleaning_of(object: &Arc<ObjectInner>, segment: SegmentIndex) -> Task {
        let mut task = Task::of_pages(Job::Sync(SyncState::new(false, u64::MAX)), object, NONE);
        task.again = object.dirty_pages_of(segment);
        task.again.reverse();
        task
    }

    /// Creates a task that writes back the dirty pages of a range and makes nothing durable.
    pub fn cleaning_pages(object: &Arc<ObjectInner>, pages: Range<PageIndex>) -> Task {
        Task::of_pages(Job::Sync(SyncState::new(false, u64::MAX)), object, pages)
    }
}

impl ObjectInner {
    /// Returns the lowest `most` dirty pages of a range, in order, or all if there are fewer.
    /// Includes pages that a writer owns, because they may have been dirty before.
    pub(super) fn dirty_pages(&self, pages: &Range<PageIndex>, most: usize) -> Vec<PageIndex> {
        let partition = &*self.partition;
        if partition.table.dirty_pages() == 0 {
            return Vec::new();
        }
        let pages = &self.reachable(pages);
        let few = (partition.table.dirty_pages() / LOOKUP_SLOTS).max(RUN_PAGES_MAX as u64);
        if page_count(pages) <= few {
            // Under the set's lock, a page that is moving is found wherever it is.
            let is_dirty =
                |tag: Tag| partition.table.lock(tag).find(tag).is_some_and(|found| may_be_dirty(found.word));
            let tags = self.tags_ahead(pages, Lookup::Lock);
            return tags.filter(|(_, tag)| is_dirty(*tag)).map(|(page, _)| page).take(most).collect();
        }
        let mut lowest = Lowest::new(most);
        // Hold off moves: a page that moves during the walk could be overlooked in both places.
        let _still = lock(&partition.moves);
        #[cfg(test)]
        WALKS.with(|walks| walks.set(walks.get() + 1));
        partition.table.for_each_dirty(|_, tag, _| {
            let (object, page) = partition.page_of(tag);
            if object == self.id && pages.contains(&page) {
                lowest.add(page);
            }
        });
        lowest.into_pages()
    }

    /// Returns the object's dirty pages in one segment, in order. They may change during the call.
    pub fn dirty_pages_of(&self, segment: SegmentIndex) -> Vec<PageIndex> {
        let partition = &*self.partition;
        let mut pages = Vec::new();
        partition.table.for_each_page_of(segment, |_, found| {
            let (object, page) = partition.page_of(found.tag());
            if object == self.id && found.word.state() == State::Dirty {
                pages.push(page);
            }
        });
        pages.sort_unstable();
        pages
    }

    /// Marks the object as failed after a failed sync of its store: data that the store had taken
    /// may be lost, and no later sync would report that.
    pub fn sync_failed(&self, source: &IoError) -> Error {
        self.failed.store(true, Ordering::Release);
        self.partition.counters.add(Count::SyncErrors, 1);
        let error = self.io_error(source);
        lock(&self.faults).sync_failed(&error);
        let (partition, object) = (self.partition.config.name.clone(), self.name.clone());
        let what = Happened::SyncFailed { partition, object, error: error.clone() };
        self.partition.shared.events.add(what);
        error
    }
}

impl PartitionInner {
    /// Returns the ids of the objects that have dirty pages, or pages that are being written.
    pub fn dirty_objects(&self) -> BTreeSet<u64> {
        let mut objects = BTreeSet::new();
        let _still = lock(&self.moves);
        self.table.for_each_dirty(|_, tag, _| _ = objects.insert(self.page_of(tag).0));
        objects
    }
}

#[cfg(test)]
thread_local! {
    /// Walks over the table that this thread has taken.
    pub(super) static WALKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the result of `act`, and how many walks it took.
#[cfg(all(test, not(shuttle)))]
pub(super) fn walks_of<T>(act: impl FnOnce() -> T) -> (T, u64) {
    let before = WALKS.get();
    (act(), WALKS.get() - before)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_disk::{SimDisk, SimOptions, Store};

    use super::*;
    use crate::{Cache, CacheConfig, CacheMode, Object, Op, Partition, PartitionConfig, Request};

    const PAGE: u64 = 4096;

    /// An object with `pages` pages, all of them dirty.
    fn all_dirty(segment_bytes: u64, store: Store, pages: u64) -> (Cache, Partition, Object) {
        let config = CacheConfig {
            memory_max_bytes: 64 << 20,
            segment_bytes,
            background: false,
            seed: Some(5),
            ..CacheConfig::default()
        };
        let cache = Cache::new(config).unwrap();
        let config = PartitionConfig {
            cache_mode: CacheMode::Writeback,
            max_bytes: Some(pages * PAGE * 3),
            dirty_max_bytes: Some(1 << 30),
            ..PartitionConfig::new("p")
        };
        let partition = cache.partition(config).unwrap();
        let object = partition.open(store, "object").unwrap();
        (0..pages).for_each(|page| object.write_at(page * PAGE, &[page as u8 | 1; PAGE as usize]).unwrap());
        assert_eq!(partition.stat().dirty_bytes, pages * PAGE);
        (cache, partition, object)
    }

    /// A durable write of one page used to look at every slot of every segment with a dirty page,
    /// and held up all moves meanwhile.
    #[test]
    fn a_sync_of_few_pages_looks_at_these_only() {
        const PAGES: u64 = 2000;
        let store = Store::memory("m", PAGES * PAGE);
        let (cache, partition, object) = all_dirty(2 << 20, store.clone(), PAGES);
        let dirty = || partition.stat().dirty_bytes / PAGE;
        let (result, walks) = walks_of(|| object.sync_range(100 * PAGE, 30 * PAGE));
        result.unwrap();
        assert_eq!((walks, dirty()), (0, PAGES - 30));
        let durable =
            Op::Write { offset: 0, len: 10 * 4096, buffer: vec![7; 10 * 4096].into(), durable: true };
        let mut queue = cache.queue().unwrap();
        let (_, walks) = walks_of(|| {
            queue.submit(&object, [Request { op: durable, user_data: 0 }]);
            queue.wait(1, |completion| completion.result.unwrap());
        });
        assert_eq!((walks, dirty()), (0, PAGES - 40));
        // A long range is walked over, and no page is left out.
        let (result, walks) = walks_of(|| object.sync_range(1000 * PAGE, 500 * PAGE));
        result.unwrap();
        assert!(walks > 0 && dirty() == PAGES - 540, "{walks} walks, {} dirty", dirty());
        object.sync().unwrap();
        assert_eq!(dirty(), 0);
        let again = Cache::new(CacheConfig::default()).unwrap().partition(PartitionConfig::new("p")).unwrap();
        drop((object, partition, queue, cache));
        let again = again.open(store, "again").unwrap();
        for page in 0..PAGES {
            let mut byte = [0];
            again.read_at(page * PAGE, &mut byte).unwrap();
            assert_eq!(byte[0], if page < 10 { 7 } else { page as u8 | 1 }, "page {page}");
        }
    }

    /// Rounds used to be as long in a large cache as in a small one: a sync walked over all dirty
    /// segments once for each few thousand pages.
    #[test]
    fn a_sync_takes_as_many_walks_however_much_is_dirty() {
        for pages in [1000, 3000] {
            let (_cache, partition, object) = all_dirty(2 << 20, Store::memory("m", pages * PAGE), pages);
            let (result, walks) = walks_of(|| object.sync());
            result.unwrap();
            assert_eq!(partition.stat().dirty_bytes, 0);
            assert!(walks <= ROUNDS + 1, "{walks} walks for {pages} pages");
        }
    }

    /// A resize used to write each dirty page in its way alone, after a walk over all others: time
    /// that grew with the square of the size.
    #[test]
    fn a_resize_writes_what_is_in_its_way_together() {
        const PAGES: u64 = 512;
        let disk = SimDisk::new(SimOptions::default());
        let (_cache, partition, object) = all_dirty(256 << 10, disk.store("disk", PAGES * PAGE), PAGES);
        let (_, walks) = walks_of(|| partition.resize(800 << 10).unwrap());
        let stat = partition.stat();
        assert!(stat.max_bytes <= 800 << 10);
        assert!(stat.writebacks >= PAGES / 2, "{} pages were in the way", stat.writebacks);
        assert_eq!(walks, 0);
        assert!(stat.writeback_ios < stat.writebacks * 9 / 10, "{} I/Os", stat.writeback_ios);
        object.sync().unwrap();
        let expected = (0..PAGES).flat_map(|page| [page as u8 | 1; PAGE as usize]);
        assert!(disk.image("disk").into_iter().eq(expected));
    }

    /// Duplicates used to be removed only at the end, from the lowest 4096: a full round looked as
    /// if it were not full, and a sync reported success while pages behind the round were not
    /// written.
    #[test]
    fn pages_that_are_shown_twice_hide_none() {
        for most in [1, 2, 7, 100] {
            let mut lowest = Lowest::new(most);
            let pages: Vec<PageIndex> = (0..200).map(|number| PageIndex(number * 77 % 200)).collect();
            pages[..150].iter().chain(&pages[100..]).chain(&pages[..60]).for_each(|page| lowest.add(*page));
            assert_eq!(
                lowest.into_pages(),
                pages_in(&(PageIndex(0)..PageIndex(most as u64))).collect::<Vec<_>>()
            );
        }
        let mut few = Lowest::new(10);
        [5, 3, 5, 3, 9].iter().for_each(|page| few.add(PageIndex(*page)));
        assert_eq!(few.into_pages(), [3, 5, 9].map(PageIndex));
    }
}
