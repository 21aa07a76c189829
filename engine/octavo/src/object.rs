//! An object: a store as a tenant sees it, and the calls on it.
//!
//! Blocking calls answer hits on the spot and run the rest as a task on a lane that they borrow.

use std::mem::MaybeUninit;

use octavo_disk::Store;
use octavo_table::{Begun, SlotIndex, State, Tag};

use crate::ahead::Streams;
use crate::bounce::BounceShare;
use crate::copy;
use crate::counters::Count;
use crate::error::Error;
use crate::lane::Batch;
use crate::partition::PartitionInner;
use crate::stat::ObjectStat;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::task::{END, Ended, Job, Task};
use crate::waiters::{Flushes, Ranges};

/// An open store. Cheap to clone; it stays open until [`Object::close`], or until its cache is
/// dropped.
#[derive(Clone)]
pub struct Object(pub(crate) Arc<ObjectInner>);

pub(crate) struct ObjectInner {
    pub partition: Arc<PartitionInner>,
    pub id: u64,
    /// What the tags of its pages begin with.
    begun: Begun,
    len_bytes: AtomicU64,
    /// Where its last page begins, or its end where that is a page's.
    last_page: AtomicU64,
    pub store: Store,
    pub name: String,
    pub ranges: Ranges,
    pub streams: Streams,
    pub flushes: Flushes,
    /// The bounce pages that its bytes travel in.
    pub bounced: Arc<BounceShare>,
    /// A sync of the store failed.
    pub failed: AtomicBool,
    closed: AtomicBool,
    /// Where the next pass begins: behind the pages that were refused when the last gave up. A
    /// hint.
    pub clean_next: AtomicU64,
    /// Pages written back.
    pub written: AtomicU64,
    /// Why a page could not be written back. None again once all could.
    pub writeback_error: Mutex<Option<Error>>,
}

/// `posix_fadvise`'s words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No advice.
    Normal,
    /// The range will be read in order.
    Sequential,
    /// The range will be read in no order.
    Random,
    /// The range will be wanted soon: it is brought in, as far as there is room.
    WillNeed,
    /// The range will not be wanted soon: its clean pages are let go, dirty ones are written first.
    DontNeed,
    /// The range will be wanted once.
    NoReuse,
}

/// One read of a batch.
pub struct Read<'b> {
    /// Where in the object.
    pub offset: u64,
    /// Where to.
    pub buffer: &'b mut [u8],
}

/// How many reads ahead of its copy a read of a batch is looked up: enough to keep memory busy.
pub(crate) const AHEAD: usize = 12;
const AHEAD_RING: usize = (AHEAD + 1).next_power_of_two();

/// Copies up to this long are asked for when they are looked up, by their first and last line.
const SHORT_BYTES: usize = copy::INLINE_BYTES;

/// How many reads ahead of its copy a longer one is asked for.
const AHEAD_LONG: usize = 3;

impl ObjectInner {
    pub fn new(partition: &Arc<PartitionInner>, store: Store, name: &str, id: u64) -> Self {
        if store.is_simulated() {
            partition.shared.set_simulated();
        }
        ObjectInner {
            partition: partition.clone(),
            id,
            begun: partition.begin_tags(id),
            len_bytes: AtomicU64::new(store.len_bytes()),
            last_page: AtomicU64::new(partition.page_start(store.len_bytes())),
            store,
            name: name.into(),
            ranges: Ranges::new(),
            streams: Streams::new(),
            flushes: Flushes::new(),
            bounced: Arc::default(),
            failed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            clean_next: AtomicU64::new(0),
            written: AtomicU64::new(0),
            writeback_error: Mutex::new(None),
        }
    }

    #[inline(always)]
    pub fn tag(&self, page: u64) -> Tag {
        self.partition.tag_among(self.begun, page)
    }

    /// Whether every call fails from now on.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// For an object of whose pages none is there, and none can come.
    pub fn set_closed(&self) {
        // A second time the store may be somebody else's.
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.set_len(0);
            self.store.release();
            self.partition.forget(self.id);
        }
    }

    #[inline(always)]
    pub fn len_bytes(&self) -> u64 {
        // Relaxed: whoever must see a new length has synchronised with who set it.
        self.len_bytes.load(Ordering::Relaxed)
    }

    pub fn set_len(&self, len_bytes: u64) {
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        self.last_page.store(self.partition.page_start(len_bytes), Ordering::Relaxed);
    }

    /// What lies before it and in one page lies inside the object.
    #[inline(always)]
    fn last_page(&self) -> u64 {
        // Relaxed: as `len_bytes`.
        self.last_page.load(Ordering::Relaxed)
    }

    /// Whether `len` bytes at `offset` lie inside the object.
    #[inline(always)]
    pub fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len_bytes() => Ok(()),
            _ => Err(self.past_end(offset, len)),
        }
    }

    #[cold]
    pub fn past_end(&self, offset_bytes: u64, len_bytes: u64) -> Error {
        if let Err(closed) = self.check_open() {
            return closed;
        }
        Error::PastEnd { object: self.name.clone(), offset_bytes, len_bytes, end_bytes: self.len_bytes() }
    }

    /// Whether it may be written.
    pub fn check_writable(&self) -> Result<(), Error> {
        match self.store.read_only() {
            true => Err(Error::ReadOnly { object: self.name.clone() }),
            false => Ok(()),
        }
    }

    /// A short read of one page that is there and not the object's last, counted.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes.
    #[inline(always)]
    unsafe fn read_short_hit(&self, offset: u64, to: *mut u8, len: usize) -> bool {
        let partition = &*self.partition;
        let skip = offset as usize & partition.page_mask;
        let is_inside = offset < self.last_page() && skip + len <= partition.page_bytes();
        if len > copy::INLINE_BYTES || !is_inside {
            return false;
        }
        // SAFETY: the caller's promise, and the range lies in one page.
        unsafe { partition.read_short_hit(self.tag(offset >> partition.page_shift), skip, to, len) }
    }

    /// Reads what lies in one page and is there; no more.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes, and the range lies in one page.
    #[inline(always)]
    unsafe fn read_hit(&self, offset: u64, to: *mut u8, len: usize) -> bool {
        let partition = &*self.partition;
        let skip = offset as usize & partition.page_mask;
        // SAFETY: the caller's promise.
        unsafe { partition.read_hit(self.tag(offset >> partition.page_shift), skip, to, len) }
    }

    #[inline(always)]
    pub fn in_one_page(&self, offset: u64, len: usize) -> bool {
        let page_bytes = self.partition.page_bytes();
        (offset as usize & self.partition.page_mask) + len <= page_bytes
    }

    /// Counts the reads of a batch that were hits: those that are not `missing`, whose numbers
    /// ascend.
    fn count_hits(&self, reads: &[Read<'_>], missing: &[usize]) {
        let (partition, hits) = (&*self.partition, (reads.len() - missing.len()) as u64);
        if let Some(counts) = partition.counters.at_hand() {
            return counts.add(Count::Hits, hits);
        }
        partition.counters.add(Count::Hits, hits);
        let mut missing = missing.iter().peekable();
        for (number, read) in reads.iter().enumerate() {
            if missing.next_if(|missing| **missing == number).is_none() {
                let tag = self.tag(read.offset >> partition.page_shift);
                if partition.places.charged {
                    partition.charge_access(tag, read.buffer.len(), reads.len() as u64);
                }
                partition.record_access(tag, false, true);
            }
        }
    }

    fn count_read(&self, requests: u64, bytes: u64) {
        self.partition.counters.add(Count::Reads, requests);
        self.partition.counters.add(Count::ReadBytes, bytes);
    }
}

impl Drop for ObjectInner {
    fn drop(&mut self) {
        // A closed one has released it before, and it may be somebody else's by now. In a child of
        // `fork` it stays the parent's.
        if !self.is_closed() && !self.partition.shared.is_forked() {
            self.store.release();
        }
    }
}

impl Object {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its store.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Its length.
    pub fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    /// Bytes of a page of its cache.
    pub fn page_bytes(&self) -> u64 {
        self.0.partition.page_bytes() as u64
    }

    /// Whether it was opened read-only.
    pub fn read_only(&self) -> bool {
        self.0.store.read_only()
    }

    /// Fills `buffer` with the bytes at `offset`: from pages that are there without a lock or a
    /// system call, the rest from the store.
    ///
    /// ```
    /// use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// let cache = Cache::new(CacheConfig::default())?;
    /// let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(5000, b"octavo")?;
    /// let mut six = [0; 6];
    /// object.read_at(5000, &mut six)?;
    /// assert_eq!(&six, b"octavo");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    #[inline]
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the slice is valid for its length.
        match unsafe { self.0.read_short_hit(offset, buffer.as_mut_ptr(), buffer.len()) } {
            true => Ok(()),
            false => self.read_any(offset, buffer),
        }
    }

    #[inline(never)]
    fn read_any(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.0.check(offset, buffer.len() as u64)?;
        if self.0.in_one_page(offset, buffer.len()) {
            let is_hit = match self.0.partition.counters.at_hand() {
                Some(counts) => {
                    // SAFETY: the slice is valid for its length, and the range lies in one page.
                    let is_hit = unsafe { self.0.read_hit(offset, buffer.as_mut_ptr(), buffer.len()) };
                    if is_hit {
                        counts.add_hit(buffer.len() as u64);
                    }
                    is_hit
                }
                None => self.0.read_heard_hit(offset, buffer),
            };
            if is_hit {
                return Ok(());
            }
        }
        self.read_slowly(offset, buffer)
    }

    #[cold]
    fn read_slowly(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        // The set's lines come together while the task is made.
        self.0.partition.table.prefetch_miss(self.0.tag(offset >> self.0.partition.page_shift));
        self.0.count_read(1, buffer.len() as u64);
        self.run(Job::Read, offset, buffer.as_mut_ptr(), buffer.len())
    }

    /// Does many reads at once: lookups overlap, and what is missing is fetched together, adjacent
    /// pages in one I/O. Returns the first error after all have ended.
    pub fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        if self.0.partition.places.batches_differ {
            self.0.partition.shared.check_process()?;
            return match self.0.partition.places.messages {
                true => self.read_batch_by_message(reads),
                false => self.read_batch_near(reads),
            };
        }
        if self.0.partition.is_recorded_whole() {
            return self.read_batch_recorded(reads);
        }
        let mut missing: Vec<usize> = Vec::new();
        let bytes = self.0.read_hits(reads, &mut missing);
        self.0.count_read(reads.len() as u64, bytes);
        self.0.count_hits(reads, &missing);
        match missing.is_empty() {
            true => Ok(()),
            false => self.read_missing(reads, &missing),
        }
    }

    /// `read_batch` where what other nodes have is asked for there, while this thread reads what
    /// its own has.
    #[cold]
    fn read_batch_by_message(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        self.0.count_read(reads.len() as u64, reads.iter().map(|read| read.buffer.len() as u64).sum());
        reads.iter().try_for_each(|read| self.0.check(read.offset, read.buffer.len() as u64))?;
        let partition = &*self.0.partition;
        let lane = partition.shared.lane()?;
        let mut work = lane.work();
        let waits = work.tasks.insert(Task::new(Job::Nap, self.0.clone(), 0, std::ptr::null_mut(), 0));
        // While letters go out the task has one thing more to wait for.
        work.tasks[waits].outstanding = 1;
        let mut own = Vec::with_capacity(reads.len());
        for read in reads.iter_mut() {
            let (offset, len) = (read.offset, read.buffer.len());
            let to = partition.other_node(self.0.tag(offset >> partition.page_shift));
            match to.filter(|_| len > 0 && self.0.in_one_page(offset, len)) {
                Some(to) => {
                    let letter = (waits, offset, read.buffer.as_mut_ptr(), len, false);
                    lane.post_letter(&mut work, to, &self.0, letter);
                }
                None => own.push(Read { offset, buffer: &mut *read.buffer }),
            }
        }
        lane.flush(&mut work);
        drop(work);
        let missing = self.0.read_counted_hits(&mut own);
        let mut work = lane.work();
        for number in &missing {
            let Read { offset, buffer } = &mut own[*number];
            let task = Task::new(Job::Read, self.0.clone(), *offset, buffer.as_mut_ptr(), buffer.len());
            lane.start(&mut work, task);
        }
        lane.flush(&mut work);
        lane.step(&mut work, waits);
        drop(work);
        lane.work_until(|work| work.finished.len() == missing.len() + 1);
        lane.work().finished.drain(..).try_for_each(Ended::result)
    }

    /// `read_batch` where every step of the table is recorded: one read after the other.
    #[cold]
    fn read_batch_recorded(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        let mut missing = Vec::new();
        for (number, Read { offset, buffer }) in reads.iter_mut().enumerate() {
            let is_inside = !buffer.is_empty()
                && self.0.check(*offset, buffer.len() as u64).is_ok()
                && self.0.in_one_page(*offset, buffer.len());
            if !(is_inside && self.0.read_heard_hit(*offset, buffer)) {
                self.0.count_read(1, buffer.len() as u64);
                missing.push(number);
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => self.read_missing(reads, &missing),
        }
    }

    /// `read_batch` where pages have copies: each read looks on the thread's own node first.
    #[cold]
    fn read_batch_near(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        self.0.count_read(reads.len() as u64, reads.iter().map(|read| read.buffer.len() as u64).sum());
        let missing = self.0.read_hits_near(reads);
        match missing.is_empty() {
            true => Ok(()),
            false => self.read_missing(reads, &missing),
        }
    }

    #[cold]
    fn read_missing(&self, reads: &mut [Read<'_>], missing: &[usize]) -> Result<(), Error> {
        let lane = self.0.partition.shared.lane()?;
        for number in missing {
            self.0.check(reads[*number].offset, reads[*number].buffer.len() as u64)?;
        }
        let mut work = lane.work();
        let mut batch = Batch::default();
        for number in missing {
            let read = &mut reads[*number];
            let (memory, len) = (read.buffer.as_mut_ptr(), read.buffer.len());
            lane.add(&mut work, &mut batch, Task::new(Job::Read, self.0.clone(), read.offset, memory, len));
        }
        lane.start_all(&mut work, &mut batch);
        lane.flush(&mut work);
        drop(work);
        lane.work_until(|work| work.finished.len() == missing.len());
        lane.work().finished.drain(..).try_for_each(Ended::result)
    }

    /// Writes `bytes` at `offset`, inside the object. Write-through: returns when the store has
    /// them. Write-back: when the pages have them. Neither is durable before a
    /// [`sync`](Object::sync).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0.check_writable()?;
        self.0.check(offset, bytes.len() as u64)?;
        self.0.partition.counters.add(Count::Writes, 1);
        self.0.partition.counters.add(Count::WrittenBytes, bytes.len() as u64);
        self.run(Job::Write { durable: false }, offset, bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Returns when every write replied to before the call is durable. Fails if one cannot be made
    /// so; what could not be written stays dirty, and a later sync tries again.
    pub fn sync(&self) -> Result<(), Error> {
        self.sync_pages(0, END)
    }

    /// `sync` for the pages that `offset..offset + len` touches.
    pub fn sync_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        let shift = self.0.partition.page_shift;
        self.sync_pages(offset >> shift, (offset.saturating_add(len) >> shift) + 1)
    }

    fn sync_pages(&self, next: u64, end: u64) -> Result<(), Error> {
        self.0.partition.counters.add(Count::Syncs, 1);
        self.0.check_open()?;
        if self.read_only() {
            return Ok(());
        }
        self.0.check_not_failed()?;
        self.run_pages(Job::Sync { flush: true }, next, end)
    }

    pub(crate) fn run_pages(&self, job: Job, next: u64, end: u64) -> Result<(), Error> {
        let lane = self.0.partition.shared.lane()?;
        let mut task = Task::new(job, self.0.clone(), 0, std::ptr::null_mut(), 0);
        (task.next, task.end) = (next, end);
        lane.run(task)
    }

    pub(crate) fn run(&self, job: Job, offset: u64, memory: *mut u8, len: usize) -> Result<(), Error> {
        let lane = self.0.partition.shared.lane()?;
        lane.run(Task::new(job, self.0.clone(), offset, memory, len))
    }

    /// Whether the page at `offset` is in the cache now. A hint: it may come or go at any time.
    pub fn is_resident(&self, offset: u64) -> bool {
        self.0.partition.table.find(self.0.tag(offset >> self.0.partition.page_shift)).is_some()
    }

    /// The node where the page at `offset` belongs now, by its place in the topology; 0 where there
    /// is one.
    pub fn node_of(&self, offset: u64) -> u32 {
        self.0.partition.node_of(self.0.tag(offset >> self.0.partition.page_shift)).0
    }

    /// Says what will happen to a range. Advice never loses anything, and what cannot be followed
    /// is passed over.
    ///
    /// # Errors
    /// [`Error::PastEnd`] where the range ends beyond the object, [`Error::Closed`],
    /// [`Error::Forked`].
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<(), Error> {
        self.0.partition.shared.check_process()?;
        self.0.check(offset, len)?;
        match advice {
            Advice::WillNeed => self.run(Job::Populate, offset, std::ptr::null_mut(), self.populate_len(len)),
            Advice::DontNeed => self.let_go(offset, len),
            // As with the kernel's, these are about the whole object, whatever the range.
            Advice::Normal | Advice::Sequential | Advice::Random | Advice::NoReuse => {
                self.0.streams.advise(advice);
                Ok(())
            }
        }
    }

    /// How much of so many bytes is brought in at most: no more than there is room for.
    pub(crate) fn populate_len(&self, len: u64) -> usize {
        len.min(self.0.partition.table.slots_count() << self.0.partition.page_shift) as usize
    }

    /// How many pages were written back so far: whether a sync gets anywhere. Costs less than
    /// [`stat`](Object::stat).
    pub fn pages_written(&self) -> u64 {
        // Relaxed: a count.
        self.0.written.load(Ordering::Relaxed)
    }

    /// Figures of this object.
    pub fn stat(&self) -> ObjectStat {
        let inner = &self.0;
        if inner.partition.shared.is_forked() {
            return ObjectStat { name: inner.name.clone(), ..ObjectStat::default() };
        }
        let mut dirty = 0;
        let still = lock(&inner.partition.moves);
        inner.partition.table.for_each_dirty(|_, tag, word| {
            let is_dirty = word.state() == State::Dirty || word.held();
            let concerned = is_dirty && inner.partition.page_of(tag).0 == inner.id;
            dirty += concerned as u64;
        });
        drop(still);
        ObjectStat {
            name: inner.name.clone(),
            len_bytes: inner.len_bytes(),
            dirty_bytes: dirty << inner.partition.page_shift,
            failed: inner.failed.load(Ordering::Acquire),
            writeback_error: lock(&inner.writeback_error).as_ref().map(Error::to_string),
        }
    }
}

impl ObjectInner {
    /// Does the reads of a batch that are hits, counts them, and tells the numbers of the others.
    pub(crate) fn read_counted_hits(&self, reads: &mut [Read<'_>]) -> Vec<usize> {
        if self.partition.places.replicates {
            return self.read_hits_near(reads);
        }
        let mut missing = Vec::new();
        self.read_hits(reads, &mut missing);
        self.count_hits(reads, &missing);
        missing
    }

    /// Does the reads of a batch that are hits, tells the numbers of the others, and returns the
    /// bytes of all. Every read is looked up some reads before it is copied, so that tags and
    /// bytes are on their way while others are copied.
    #[inline(always)]
    fn read_hits(&self, reads: &mut [Read<'_>], missing: &mut Vec<usize>) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if copy::is_wide() {
            // SAFETY: the processor has what wide copies stand for.
            return unsafe { self.read_hits_wide(reads, missing) };
        }
        self.read_hits_known::<false>(reads, missing)
    }

    /// `read_hits`, compiled for what comes with AVX-512: a tenth fewer instructions. A batch is
    /// long enough to ask, a single read is not.
    ///
    /// # Safety
    /// Only if `copy::is_wide`.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn read_hits_wide(&self, reads: &mut [Read<'_>], missing: &mut Vec<usize>) -> u64 {
        self.read_hits_known::<true>(reads, missing)
    }

    #[inline(always)]
    fn read_hits_known<const WIDE: bool>(&self, reads: &mut [Read<'_>], missing: &mut Vec<usize>) -> u64 {
        let is_short = |read: Option<&Read<'_>>| read.is_none_or(|read| read.buffer.len() <= SHORT_BYTES);
        // Where they are mixed, long ones between short ones are read one by one.
        match is_short(reads.first()) && is_short(reads.last()) {
            true => self.read_hits_ahead::<WIDE, false>(reads, missing),
            false => self.read_hits_ahead::<WIDE, true>(reads, missing),
        }
    }

    #[inline(always)]
    fn read_hits_ahead<const WIDE: bool, const LONG: bool>(
        &self,
        reads: &mut [Read<'_>],
        missing: &mut Vec<usize>,
    ) -> u64 {
        let partition = &*self.partition;
        let mut ahead = [const { MaybeUninit::<Located>::uninit() }; AHEAD_RING];
        let mut bytes = 0;
        for (number, read) in reads.iter().take(AHEAD).enumerate() {
            ahead[number].write(self.locate::<LONG>(partition, read));
        }
        let before_last = reads.len().saturating_sub(AHEAD);
        for number in 0..reads.len() {
            if number < before_last {
                // SAFETY: there are `AHEAD` more than `before_last`.
                let read = unsafe { reads.get_unchecked(number + AHEAD) };
                ahead[(number + AHEAD) % AHEAD_RING].write(self.locate::<LONG>(partition, read));
            }
            bytes += reads[number].buffer.len() as u64;
            // SAFETY: located `AHEAD` turns before.
            if !unsafe { self.read_located::<WIDE, LONG>(partition, reads, number, &ahead) } {
                missing.push(number);
            }
        }
        bytes
    }

    /// One read of a batch, whether it was a hit.
    ///
    /// # Safety
    /// It was located, and so were those after it, up to `AHEAD_LONG` or to the end. `WIDE` only if
    /// `copy::is_wide`.
    #[inline(always)]
    unsafe fn read_located<const WIDE: bool, const LONG: bool>(
        &self,
        partition: &PartitionInner,
        reads: &mut [Read<'_>],
        number: usize,
        ahead: &[MaybeUninit<Located>; AHEAD_RING],
    ) -> bool {
        // A long copy is asked for later than it was located, so that what comes is not pushed out of the
        // first cache before it is read.
        if LONG
            && let Some(read) = reads.get(number + AHEAD_LONG)
            && read.buffer.len() > SHORT_BYTES
        {
            // SAFETY: the caller's promise.
            let located = unsafe { ahead[(number + AHEAD_LONG) % AHEAD_RING].assume_init_ref() };
            if !located.from.is_null() {
                copy::prefetch_frame(located.from, read.buffer.len());
            }
        }
        let read = &mut reads[number];
        // SAFETY: the caller's promise.
        let Located { tag, from, slot } = *unsafe { ahead[number % AHEAD_RING].assume_init_ref() };
        let (to, len) = (read.buffer.as_mut_ptr(), read.buffer.len());
        if from.is_null() {
            return self.read_hit_again(read);
        }
        if !LONG {
            // SAFETY: `locate` has seen to it; it spares the copy a comparison.
            unsafe { std::hint::assert_unchecked(len <= SHORT_BYTES) };
        }
        // SAFETY: `locate` has seen that the range lies in one page; the buffer is valid for its length.
        // The caller's promise.
        let is_hit = unsafe { partition.copy_candidate::<WIDE>(slot, tag, from, to, len) };
        is_hit || self.read_hit_again(read)
    }

    /// Looks a read of a batch up by its fingerprint, and asks the processor for what it will need.
    /// Without `LONG`, short ones only.
    #[inline(always)]
    fn locate<const LONG: bool>(&self, partition: &PartitionInner, read: &Read<'_>) -> Located {
        let tag = partition.tag_among(self.begun, read.offset >> partition.page_shift);
        let len = read.buffer.len();
        let skip = read.offset as usize & partition.page_mask;
        // A page that is not the last: the others are looked at again.
        let is_inside = read.offset < self.last_page() && skip + len <= partition.page_bytes();
        let is_short = len <= SHORT_BYTES;
        match partition.table.candidate(tag) {
            Some(slot) if is_inside && (LONG || is_short) => {
                partition.table.prefetch_tag(slot);
                let from = partition.frames.at(slot).wrapping_add(skip).cast_const();
                if is_short {
                    copy::prefetch_ends(from, len);
                }
                Located { tag, from, slot }
            }
            _ => Located { tag, from: std::ptr::null(), slot: SlotIndex(0) },
        }
    }

    /// Another look at a read of a batch, for where the first found nothing.
    #[cold]
    #[inline(never)]
    fn read_hit_again(&self, read: &mut Read<'_>) -> bool {
        let (partition, len) = (&*self.partition, read.buffer.len());
        let (skip, to) = (read.offset as usize & partition.page_mask, read.buffer.as_mut_ptr());
        self.check(read.offset, len as u64).is_ok()
            && self.in_one_page(read.offset, len)
            // SAFETY: the buffer is valid for its length, and the range lies in one page.
            && unsafe { partition.read_hit_again(self.tag(read.offset >> partition.page_shift), skip, to, len) }
    }
}

/// A read of a batch between its lookup and its copy.
#[repr(align(32))]
struct Located {
    tag: Tag,
    /// Its bytes, if its page is in this slot. Null: the page is not there, or the read lies in
    /// more than one, or is too long.
    from: *const u8,
    slot: SlotIndex,
}

#[cfg(all(test, target_arch = "x86_64", not(any(miri, loom, shuttle))))]
mod tests {
    use octavo_disk::Store;

    use super::*;
    use crate::{Cache, CacheConfig, PartitionConfig};

    const PAGES: u64 = 64;
    const PAGE: u64 = 4096;

    /// On a machine with AVX-512 no batch ever runs the other one.
    #[test]
    fn a_batch_reads_the_same_however_it_was_compiled() {
        let cache = Cache::new(CacheConfig { memory_max_bytes: 32 << 20, ..CacheConfig::default() }).unwrap();
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        let object = partition.open(Store::memory("m", PAGES * PAGE), "m").unwrap();
        let byte = |offset: u64| (offset * 7 % 251) as u8;
        let bytes: Vec<u8> = (0..PAGES * PAGE).map(byte).collect();
        object.write_at(0, &bytes).unwrap();
        // All but every third page.
        (0..PAGES).step_by(3).for_each(|page| object.advise(page * PAGE, PAGE, Advice::DontNeed).unwrap());
        let there: Vec<u64> = (0..PAGES).filter(|page| object.is_resident(page * PAGE)).collect();
        assert_eq!(there.len() as u64, PAGES - PAGES.div_ceil(3));
        for len in [0, 1, 7, 16, 40, 64, 100, 127, 128, 129, 600, 4096] {
            let offset = |page: u64| page * PAGE + (page * 50).min(PAGE - len as u64);
            let pages = || (0..PAGES - 1).map(|number| number * 37 % (PAGES - 1));
            let read = |wide: bool| {
                let mut buffers = vec![vec![0xEE; len]; PAGES as usize - 1];
                let places = pages().zip(&mut buffers);
                let mut reads: Vec<Read<'_>> =
                    places.map(|(page, buffer)| Read { offset: offset(page), buffer }).collect();
                let mut missing = Vec::new();
                let bytes = match wide {
                    // SAFETY: only asked for where copies are wide.
                    true => unsafe { object.0.read_hits_wide(&mut reads, &mut missing) },
                    false => object.0.read_hits_known::<false>(&mut reads, &mut missing),
                };
                assert_eq!(bytes, (len as u64) * (PAGES - 1));
                (missing, buffers)
            };
            let (missing, buffers) = read(false);
            for (number, page) in pages().enumerate() {
                assert_eq!(missing.contains(&number), !there.contains(&page), "{len} bytes of page {page}");
                let is_read = |(offset, found): (u64, &u8)| *found == byte(offset);
                let is_right = (offset(page)..).zip(&buffers[number]).all(is_read);
                assert!(!there.contains(&page) || is_right, "{len} bytes of page {page}");
            }
            if copy::is_wide() {
                assert_eq!((missing, buffers), read(true), "{len} bytes");
            }
        }
    }
}
