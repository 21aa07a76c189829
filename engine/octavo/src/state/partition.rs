//! A partition (one tenant's cache) and its objects: the data that the floors above work on.
//!
//! Not here: what happens to pages (`pages`), how a partition is created and how large it is
//! (`sizes.rs`), how it grows and shrinks (`control/resize.rs`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use octavo_disk::{Identity, IoError, Process, Store};
use octavo_recording::Secret;
use octavo_table::{Begun, Mixer, SegmentIndex, Table, Tag};

use super::ages::CleanUntil;
use super::costs::Costs;
use super::counters::{Count, Counters};
use super::expected::Expected;
use super::faults::Faults;
use super::history::{History, Resizing};
use super::monitor::Remembered;
use super::nodes::{Auto, Balance, Places, Worth, Writers};
use super::numbers::{NUMBER_BITS, Numbers, Returned};
use super::shared::Shared;
use super::streams::{Streams, Windows};
use super::tape::Recorder;
use crate::broken;
use crate::config::{CacheMode, Limits, PartitionConfig};
use crate::error::Error;
use crate::memory::copy::{self, Width};
use crate::memory::{BouncePool, BounceShare, Frames, Mapping};
use crate::position::{ByteOffset, PageIndex, PageSize};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock, try_lock};
use crate::wait::{Flushes, Ranges, SlotWaiters, Strays};
use crate::ways::WAYS;

/// Bits of the page index in a page's key; the bits above are the object's number (`numbers.rs`).
/// 16 million objects at a time, of 4 PiB each with pages of 4 KiB.
pub(crate) const PAGE_INDEX_BITS: u32 = u64::BITS - NUMBER_BITS;

/// The key of an object's first page.
pub(crate) const fn key_of(object: u64) -> u64 {
    object << PAGE_INDEX_BITS
}

/// One tenant's cache.
pub(crate) struct PartitionInner {
    // Read by every hit.
    pub table: Table<WAYS>,
    pub frames: Frames,
    pub mixer: Mixer,
    pub page_size: PageSize,
    /// The width of the processor's vectors, where hits find it without a symbol of the library.
    pub width: Width,
    pub mode: CacheMode,
    pub counters: Counters,
    pub recorder: Recorder,
    pub places: Places,
    pub worth: Worth,
    pub auto: Auto,
    pub writers: Writers,
    // Read only by misses and by control.
    /// The partition itself, for pins that own it.
    pub me: Weak<PartitionInner>,
    pub shared: Arc<Shared>,
    /// The bounce pages of this page size.
    pub bounce: Arc<BouncePool>,
    pub waiters: SlotWaiters,
    pub strays: Strays,
    pub windows: Windows,
    /// Held while pages move between segments, and during walks over the dirty pages.
    pub moves: Mutex<()>,
    /// The secret that the mixer was made from.
    pub secret: Secret,
    /// The partition was removed from the cache. Handles that still exist refer to an empty
    /// partition.
    pub is_removed: AtomicBool,
    pub resizing: Mutex<Resizing>,
    /// Consecutive turns that gave up a resize without moving a page.
    pub held_up: AtomicU32,
    pub costs: Mutex<Costs>,
    pub objects: Mutex<Objects>,
    /// Numbers of closed objects, on their way to `objects`.
    pub returned: Returned,
    /// Objects without handles may be open, which the cleaner is to close (`flight/handle.rs`).
    pub has_leaving: AtomicBool,
    pub config: PartitionConfig,
    pub limits: Mutex<Limits>,
    pub dirty_max_bytes: Mutex<Option<u64>>,
    pub remembered: Mutex<Remembered>,
    pub balance: Balance,
    pub(super) dirty_max_pages: AtomicU64,
    /// When the cleaner last saw no dirty page.
    pub clean_until: CleanUntil,
    /// The table's memory. Declared after the table, so that it is dropped later.
    pub metadata: Mapping,
}

/// Shared by all handles of a partition except owned pins: the cache, partition handles and
/// objects. When the last of them is dropped, no thread can look up a page any more, and only the
/// frames of pinned slots are still needed.
pub(crate) struct Lease(pub Arc<PartitionInner>);

impl Drop for Lease {
    fn drop(&mut self) {
        // The only other owners of the partition are pins. A count that is out of date does no
        // harm: the partition is then dropped a moment later.
        if Arc::strong_count(&self.0) > 1 && !self.0.shared.is_forked() {
            self.0.leave_to_pins();
        }
    }
}

/// A view of a partition during which nothing is resized or opened.
pub(crate) struct Still<'s> {
    /// What happened to the table before its first access.
    pub history: &'s History,
    /// The segments in use, except those that are about to leave.
    pub segments: Vec<SegmentIndex>,
    /// The open objects, in the order of opening.
    pub objects: Vec<&'s Arc<ObjectInner>>,
}

pub(crate) struct Objects {
    pub numbers: Numbers,
    /// How many objects were opened.
    opened: u64,
    /// The numbers of objects whose evacuated pages are expected.
    pub expected: HashMap<Identity, Vec<u64>>,
    pub open: HashMap<u64, Arc<ObjectInner>>,
}

/// An open store.
pub(crate) struct ObjectInner {
    pub partition: Arc<PartitionInner>,
    /// The object's number, which another object may have had before (N1 to N5 of `numbers.rs`).
    pub id: u64,
    /// The object's place in the order of opening.
    pub opened: u64,
    /// The first part of the tag computation, which all pages of the object share.
    pub begun: Begun,
    len_bytes: AtomicU64,
    /// The pages of the longest length that the object has had. No page from here on was ever
    /// brought in.
    reach: AtomicU64,
    /// The offset at which a partial last page begins; the object's length if there is none. At
    /// most 2^32 pages.
    near_end: AtomicU64,
    /// The offset at which inline hits end: `near_end`, or 0 if this processor has no inline hits.
    inline_end: AtomicU64,
    pub store: Store,
    /// The process whose writes go to the pages only: in write-back mode, with a store that can be
    /// written.
    pub writes_back: Option<Process>,
    pub name: String,
    pub ranges: Ranges,
    pub streams: Streams,
    /// The pages of a unit in which the store is read best. 0 or 1 if there is no such unit.
    pub unit_pages: u64,
    pub flushes: Flushes,
    /// The bounce pages that currently hold bytes of the object.
    pub bounced: Arc<BounceShare>,
    /// No later sync can succeed: a sync of the store failed, or the object is being abandoned.
    pub failed: AtomicBool,
    /// It is being abandoned: syncs find it closed.
    abandoned: AtomicBool,
    closed: AtomicBool,
    /// Number of the families of handles (`flight/handle.rs`, D1).
    pub handles: AtomicU32,
    /// The page at which the next pass begins: after the pages that the store refused when the last
    /// pass gave up. A hint.
    pub clean_next: AtomicU64,
    /// Pages written back.
    pub written: AtomicU64,
    /// When the last task began that has written all dirty pages.
    pub clean_until: CleanUntil,
    /// Failures of write-backs and syncs.
    pub faults: Mutex<Faults>,
    // The last field, dropped after `partition`, as `Lease` expects.
    _lease: Arc<Lease>,
}

impl Objects {
    pub fn new(expected: Option<Expected>) -> Objects {
        let mut numbers = Numbers::new();
        let expected = expected.map(|expected| expected.numbers(|number| numbers.reserve(number)));
        Objects { numbers, opened: 0, expected: expected.unwrap_or_default(), open: HashMap::new() }
    }

    /// Returns the next place in the order of opening.
    pub fn next_place(&mut self) -> u64 {
        self.opened += 1;
        self.opened
    }

    /// Ends the time of the expected pages: stores that are opened from now on get any number.
    pub fn expect_no_more(&mut self, returned: &Returned) {
        let left = std::mem::take(&mut self.expected);
        left.into_values().flatten().for_each(|number| self.numbers.give_up(returned, number));
    }

    /// Returns the number of an object that is being opened (N1): that of its expected pages, or
    /// any that no object has. `None`: all numbers are in use.
    pub fn take_id(&mut self, returned: &Returned, store: &Store) -> Option<u64> {
        let identity = if self.expected.is_empty() { None } else { store.identity() };
        let expected = identity.and_then(|identity| self.expected.get_mut(&identity)?.pop());
        expected.or_else(|| self.numbers.take(returned))
    }
}

impl PartitionInner {
    #[inline(always)]
    pub fn page_bytes(&self) -> usize {
        self.page_size.bytes()
    }

    /// Checks that an object may have this length: page indices have [`PAGE_INDEX_BITS`] bits, and
    /// the kernel's offsets are signed 64-bit numbers.
    pub fn check_len(&self, name: &str, len_bytes: u64) -> Result<(), Error> {
        let most = (1 << (PAGE_INDEX_BITS + self.page_size.shift())).min(i64::MAX as u64);
        if len_bytes <= most {
            return Ok(());
        }
        let page_bytes = self.page_bytes();
        Err(Error::Config(format!(
            "{name}: {len_bytes} bytes are too long: with pages of {page_bytes} bytes, an object can have at most {most} bytes"
        )))
    }

    /// Computes the first part of the tags of an object's pages, which all of them share.
    pub fn begin_tags(&self, id: u64) -> Begun {
        self.mixer.begin(key_of(id))
    }

    /// Completes the tag of a page of the object whose tags begin with `begun`.
    #[inline(always)]
    pub fn tag_among(&self, begun: Begun, page: PageIndex) -> Tag {
        self.mixer.tag_among(begun, page.0)
    }

    /// The object's id and the page index of a tag.
    pub fn page_of(&self, tag: Tag) -> (u64, PageIndex) {
        let key = self.key_of_tag(tag);
        (key >> PAGE_INDEX_BITS, PageIndex(key & ((1 << PAGE_INDEX_BITS) - 1)))
    }

    /// The key of a tag.
    pub fn key_of_tag(&self, tag: Tag) -> u64 {
        self.mixer.key(tag)
    }

    /// Runs `act` while no segment is added or removed, the policy does not change and no object is
    /// opened.
    pub fn hold_still<T>(&self, act: impl FnOnce(Still<'_>) -> T) -> T {
        let resizing = lock(&self.resizing);
        let objects = lock(&self.objects);
        act(self.still(&resizing, &objects))
    }

    /// Does what [`hold_still`](Self::hold_still) does, but returns `None` if it would have to
    /// wait: a resize can take long.
    pub fn try_hold_still<T>(&self, act: impl FnOnce(Still<'_>) -> T) -> Option<T> {
        let resizing = try_lock(&self.resizing)?;
        let objects = try_lock(&self.objects)?;
        Some(act(self.still(&resizing, &objects)))
    }

    fn still<'s>(&self, resizing: &'s Resizing, objects: &'s Objects) -> Still<'s> {
        let stays = |segment: &SegmentIndex| {
            !resizing.emptied.contains(segment) && !resizing.leaving.contains(segment)
        };
        let mut objects: Vec<&Arc<ObjectInner>> = objects.open.values().collect();
        objects.sort_by_key(|object| object.opened);
        Still { history: &resizing.history, segments: self.table.segments().filter(stays).collect(), objects }
    }

    /// Whether no page has been accessed yet.
    pub fn is_untouched(&self) -> bool {
        [Count::Arrivals, Count::Hits, Count::Misses].map(|count| self.counters.sum(count)) == [0; 3]
    }

    /// Returns the most dirty pages that the partition may have. At this number, a write that would
    /// make another page dirty goes to the store first.
    pub fn dirty_max_pages(&self) -> u64 {
        self.dirty_max_pages.load(Ordering::Relaxed)
    }

    pub fn set_dirty_max(&self) {
        let slots = self.table.slots_count();
        let most = match *lock(&self.dirty_max_bytes) {
            Some(bytes) => self.page_size.whole_pages_in(bytes).min(slots),
            None => slots * 2 / 5,
        };
        self.dirty_max_pages.store(most, Ordering::Relaxed);
    }

    /// Returns the age of the oldest dirty byte, at most; zero if no page is dirty.
    pub fn dirty_oldest(&self) -> Duration {
        if self.table.dirty_pages() == 0 {
            return Duration::ZERO;
        }
        let objects = lock(&self.objects);
        let written = objects.open.values().filter(|object| object.writes_back.is_some());
        let written = written.map(|object| object.clean_until.get()).min();
        drop(objects);
        let clean = self.clean_until.get();
        let since = written.map_or(clean, |written| written.max(clean));
        since.elapsed().max(Duration::from_millis(1))
    }

    /// Tells the cleaner that a page became dirty.
    pub fn note_dirty(&self) {
        self.tell_cleaner(self.table.dirty_pages() > self.dirty_max_pages() / 2);
    }

    /// Rings the cleaner's bell; `urgent` if it must not let pages age.
    pub fn tell_cleaner(&self, urgent: bool) {
        self.shared.bell.tell(urgent);
    }

    /// The open objects, in the order of opening.
    pub fn open_objects(&self) -> Vec<Arc<ObjectInner>> {
        let mut objects: Vec<_> = lock(&self.objects).open.values().cloned().collect();
        objects.sort_by_key(|object| object.opened);
        objects
    }

    /// Removes a closed object.
    pub fn forget(&self, id: u64) {
        lock(&self.objects).open.remove(&id);
    }

    /// Removes all objects when the cache is dropped, even those with dirty pages.
    pub fn forget_all(&self) {
        let open = std::mem::take(&mut lock(&self.objects).open);
        drop(open);
    }

    pub fn sum(&self, count: Count) -> u64 {
        self.counters.sum(count)
    }

    pub fn resident_pages(&self) -> u64 {
        use Count::*;
        let left = [EvictionsCapacity, EvictionsResize, EvictionsDiscard, EvictionsWrite, Departures];
        let left = left.into_iter().fold(0u64, |sum, count| sum.wrapping_add(self.sum(count)));
        // Other threads' counts may be read in any order, so the difference can be negative: clamp
        // it at zero.
        (self.sum(Arrivals).wrapping_sub(left) as i64).max(0) as u64
    }
}

impl ObjectInner {
    pub fn new(
        partition: &Arc<PartitionInner>,
        lease: &Arc<Lease>,
        store: Store,
        name: &str,
        id: u64,
    ) -> Self {
        if store.is_simulated() {
            partition.shared.set_simulated();
        }
        let object = ObjectInner {
            partition: partition.clone(),
            id,
            opened: 0,
            begun: partition.begin_tags(id),
            len_bytes: AtomicU64::new(0),
            reach: AtomicU64::new(0),
            near_end: AtomicU64::new(0),
            inline_end: AtomicU64::new(0),
            unit_pages: u64::from(store.fill_bytes()) / partition.page_bytes() as u64,
            writes_back: (partition.mode == CacheMode::Writeback && !store.read_only()).then(Process::this),
            store,
            name: name.into(),
            ranges: Ranges::default(),
            streams: Streams::new(),
            flushes: Flushes::default(),
            bounced: Arc::default(),
            failed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            handles: AtomicU32::new(0),
            clean_next: AtomicU64::new(0),
            written: AtomicU64::new(0),
            clean_until: CleanUntil::now(),
            faults: Mutex::new(Faults::default()),
            _lease: lease.clone(),
        };
        object.set_len(object.store.len_bytes());
        object
    }

    #[inline(always)]
    pub fn tag(&self, page: PageIndex) -> Tag {
        self.partition.tag_among(self.begun, page)
    }

    /// The tag of the page that contains `offset`.
    #[inline(always)]
    pub fn tag_at(&self, offset: ByteOffset) -> Tag {
        self.tag(self.partition.page_size.page_of(offset))
    }

    /// Whether the object was closed. Every call on a closed object fails.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Marks the object as closed. The caller has closed the whole range and taken all pages; none
    /// comes later (N2).
    pub fn set_closed(&self) {
        // Closing twice must not release the store: another cache may have claimed it since.
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.set_len(0);
            self.store.release();
            self.store.let_go();
            self.partition.forget(self.id);
            if broken::is(broken::Step::ReturnAtClose) {
                self.partition.end_life(self.id);
            }
            self.partition.try_give_back_unpinned();
        }
    }

    #[inline(always)]
    pub fn len_bytes(&self) -> u64 {
        // Relaxed: a thread that must see a new length has synchronised with the thread that set
        // it.
        self.len_bytes.load(Ordering::Relaxed)
    }

    pub fn set_len(&self, len_bytes: u64) {
        let page_size = self.partition.page_size;
        let near_end = page_size.round_down(ByteOffset(len_bytes)).0.min(page_size.len_of(1 << u32::BITS));
        // Relaxed: see `reachable`.
        self.reach.fetch_max(page_size.page_range(ByteOffset(0), len_bytes).end.0, Ordering::Relaxed);
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        self.near_end.store(near_end, Ordering::Relaxed);
        self.inline_end.store(if copy::is_inline() { near_end } else { 0 }, Ordering::Relaxed);
    }

    /// Returns the part of a range of which pages may be resident or arriving. A shorter length
    /// does not end it: a request that was in flight may leave pages past the new end.
    pub fn reachable(&self, pages: &Range<PageIndex>) -> Range<PageIndex> {
        // Relaxed: a length grows while the range of its new pages is closed, so a thread that
        // closes one of these later sees the new reach. So does a thread that has synchronised with
        // one that brought such a page in: `Ranges::wait` pairs with the range's opening.
        let reach = PageIndex(self.reach.load(Ordering::Relaxed));
        pages.start.min(reach)..pages.end.min(reach)
    }

    /// Returns the offset at which hits end. A range that lies in one page and begins before this
    /// offset lies inside the object, and its page is one of the first 2^32.
    #[inline(always)]
    pub fn near_end(&self) -> ByteOffset {
        // Relaxed: as `len_bytes`.
        ByteOffset(self.near_end.load(Ordering::Relaxed))
    }

    /// The tag of the page that contains `offset`, which is below `near_end`.
    #[inline(always)]
    pub fn near_tag_at(&self, partition: &PartitionInner, offset: ByteOffset) -> Tag {
        partition.mixer.tag_near(self.begun, partition.page_size.page_of(offset).0)
    }

    /// Does what [`near_end`](Self::near_end) does, for hits that rely on `copy::is_inline`.
    #[inline(always)]
    pub fn inline_end(&self) -> ByteOffset {
        // Relaxed: as `len_bytes`.
        ByteOffset(self.inline_end.load(Ordering::Relaxed))
    }

    /// Checks that `len` bytes at `offset` lie inside the object.
    #[inline(always)]
    pub fn check(&self, offset: ByteOffset, len: u64) -> Result<(), Error> {
        match offset.0.checked_add(len) {
            Some(end) if end <= self.len_bytes() => Ok(()),
            _ => Err(self.past_end(offset, len)),
        }
    }

    #[cold]
    pub fn past_end(&self, offset: ByteOffset, len_bytes: u64) -> Error {
        if let Err(closed) = self.check_open() {
            return closed;
        }
        let (object, end_bytes) = (self.name.clone(), self.len_bytes());
        Error::PastEnd { object, offset_bytes: offset.0, len_bytes, end_bytes }
    }

    /// Checks that the object may be written.
    pub fn check_writable(&self) -> Result<(), Error> {
        match self.store.read_only() {
            true => Err(Error::ReadOnly { object: self.name.clone() }),
            false => Ok(()),
        }
    }

    #[inline(always)]
    pub fn in_one_page(&self, offset: ByteOffset, len: usize) -> bool {
        self.partition.page_size.in_one_page(offset, len)
    }

    /// Counts read requests.
    pub fn count_read(&self, requests: u64, bytes: u64) {
        self.partition.counters.add(Count::Reads, requests);
        self.partition.counters.add(Count::ReadBytes, bytes);
    }

    /// Whether the object was closed, so that no page of it may come in (N2). The caller holds the
    /// lock of the page's set, and has looked at the closed ranges.
    pub fn takes_no_page(&self) -> bool {
        self.is_closed() && !broken::is(broken::Step::ClaimAfterClose)
    }

    /// Checks that the object is open: a closed object's store may belong to another object.
    pub fn check_open(&self) -> Result<(), Error> {
        match self.is_closed() {
            true => Err(Error::Closed { object: self.name.clone() }),
            false => Ok(()),
        }
    }

    /// Checks that no sync of the store has failed, and that the object is not being abandoned.
    pub fn check_not_failed(&self) -> Result<(), Error> {
        let object = || self.name.clone();
        match self.failed.load(Ordering::Acquire) {
            // Relaxed: set before `failed`, whose load is Acquire.
            true if self.abandoned.load(Ordering::Relaxed) => Err(Error::Closed { object: object() }),
            true => self.check_open().and(Err(Error::Failed { object: object() })),
            false => Ok(()),
        }
    }

    /// Begins to abandon the object: no sync that ends from now on succeeds.
    pub fn set_abandoned(&self) {
        // Relaxed: `failed` publishes it. If the object had failed before, a sync may still say so.
        self.abandoned.store(true, Ordering::Relaxed);
        // Release: pairs with the load in `check_not_failed`.
        self.failed.store(true, Ordering::Release);
    }

    /// Returns an error of the store with the object's name.
    pub fn io_error(&self, source: &IoError) -> Error {
        Error::Io { object: self.name.clone(), source: source.clone() }
    }
}

impl Drop for ObjectInner {
    fn drop(&mut self) {
        // In a child of `fork` the store still belongs to the parent.
        if self.partition.shared.is_forked() {
            return;
        }
        if !self.is_closed() {
            self.store.release();
        } else if !broken::is(broken::Step::ReturnAtClose) {
            // The store was released already, and another object may use it by now.
            self.partition.end_life(self.id);
        }
    }
}
