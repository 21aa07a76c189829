//! The public calls on an object: reads, writes, syncs, discards, zeroing and advice. Each call
//! checks its arguments, counts the request and runs it as a task (`flight`).
//!
//! Not here: pins (`pin.rs`), length changes and closing (`lifecycle.rs`), batches that run in
//! the background (`queue.rs`).

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use octavo_disk::Store;
use octavo_table::{State, Tag};

use crate::config::CacheMode;
use crate::error::Error;
use crate::flight::{EVERY, Job, Object, SyncState, Task};
use crate::pages::ahead::Lookup;
use crate::position::{ByteOffset, PageIndex};
use crate::request::{Advice, Read};
use crate::stat::ObjectStat;
use crate::state::counters::Count;
use crate::state::faults::ObjectFaults;
use crate::sync::{Arc, Ordering, lock};

impl Object {
    /// Returns the object's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the store that the object reads and writes. A clone keeps its file open, also after
    /// the object was closed; made later, it is closed too.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Returns whether both handles refer to the same object. Two objects whose stores have the
    /// same file open are different.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let one = partition.open(Store::memory("disk", 1 << 20), "one")?;
    /// let two = partition.open(Store::memory("disk", 1 << 20), "two")?;
    /// assert!(one.is_same(&one.clone()));
    /// assert!(!one.is_same(&two));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn is_same(&self, other: &Object) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the object's length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    /// Returns the size of the object's pages in bytes: that of its partition's.
    pub fn page_bytes(&self) -> u64 {
        self.inner.partition.page_bytes() as u64
    }

    /// Returns whether the store was opened read-only; if so, every write fails with
    /// [`Error::ReadOnly`].
    pub fn read_only(&self) -> bool {
        self.inner.store.read_only()
    }

    /// When a write is acknowledged: the mode of the object's partition.
    pub fn cache_mode(&self) -> CacheMode {
        self.inner.partition.mode
    }

    /// Fills `buffer` with the bytes at `offset` (in bytes). Resident pages are copied without a
    /// lock or a system call; missing pages are read from the store.
    ///
    /// # Errors
    /// [`Error::PastEnd`], [`Error::Closed`], [`Error::Io`], [`Error::Forked`].
    ///
    /// # Examples
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
        // SAFETY: the slice is valid for its length, and borrowed until the call returns.
        unsafe { self.read_raw_at(offset, buffer.as_mut_ptr(), buffer.len()) }
    }

    /// Fills `buffer` with the bytes at `offset` (in bytes) if all pages of the range are resident,
    /// and returns `Ok(true)`. Otherwise returns `Ok(false)`; the buffer may then have changed.
    /// Never waits for a store, nor for a page that another thread brings in or writes. A `false`
    /// is a hint, because a page may arrive at any time.
    ///
    /// Each page that was read counts as a read and a hit; a `false` counts no miss.
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
    /// let mut bytes = [0; 512];
    /// assert!(!object.try_read_at(8192, &mut bytes)?, "nothing is resident yet");
    /// object.read_at(8192, &mut bytes)?;
    /// assert!(object.try_read_at(8192, &mut bytes)?);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    #[inline]
    pub fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool, Error> {
        // SAFETY: the slice is valid for its length, and borrowed until the call returns.
        unsafe { self.try_read_raw_at(offset, buffer.as_mut_ptr(), buffer.len()) }
    }

    /// Runs many reads at once: table lookups overlap, and all missing pages are fetched
    /// together, adjacent pages in one I/O. Returns the first error, after all reads have ended.
    ///
    /// # Errors
    /// Those of [`read_at`](Object::read_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, Read, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(8192, b"octavo")?;
    /// let (mut head, mut tail) = ([0; 3], [0; 3]);
    /// object.read_batch(&mut [
    ///     Read { offset: 8192, buffer: &mut head },
    ///     Read { offset: 8195, buffer: &mut tail },
    /// ])?;
    /// assert_eq!((&head, &tail), (b"oct", b"avo"));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        let partition = &*self.inner.partition;
        let mut missing: Vec<usize> = Vec::new();
        match partition.counters.at_hand() {
            Some(counts) => {
                let bytes = self.inner.read_many(reads, &mut missing);
                counts.add_batch(reads.len() as u64, bytes, (reads.len() - missing.len()) as u64);
            }
            None => {
                partition.shared.check_process()?;
                if partition.places.messages {
                    return self.read_batch_by_message(reads);
                }
                missing = self.inner.read_many_accounted(reads);
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => self.read_missing(reads, &missing),
        }
    }

    /// Writes `bytes` at `offset` (in bytes); the range must lie inside the object. In
    /// write-through mode the call returns when the store has the bytes, in write-back mode when
    /// the pages have them. The bytes are durable only after a [`sync`](Object::sync).
    ///
    /// The cache reads and writes whole pages. In write-through mode, a write of a few bytes writes
    /// their page to the store, and reads it first if it is not resident. If the store refuses, the
    /// bytes of that page in the store are unknown; the page is dropped, and the next read asks the
    /// store.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::PastEnd`], [`Error::Closed`], [`Error::Io`],
    /// [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(4094, b"octavo")?;
    /// assert!(object.write_at((1 << 20) - 1, b"octavo").is_err(), "past the end");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the slice is valid for its length, and borrowed until the call returns.
        unsafe { self.write_lent(ByteOffset(offset), bytes.as_ptr(), bytes.len()) }
    }

    /// Writes `bytes` at `offset` (in bytes) if that needs no wait, and returns `true`: the page is
    /// resident, nothing uses it, and the write is acknowledged when the page has it. Otherwise
    /// returns `false` and changes nothing; always in write-through mode, for bytes of several
    /// pages, for an object's partial last page, and where a write would fail.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let mut writeback = PartitionConfig::new("app");
    /// writeback.cache_mode = CacheMode::Writeback;
    /// let object = cache.partition(writeback)?.open(Store::memory("disk", 1 << 20), "disk")?;
    /// assert!(!object.try_write_at(8192, b"octavo"), "nothing is resident yet");
    /// object.write_at(8192, b"octavo")?;
    /// assert!(object.try_write_at(8192, b"folios"));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn try_write_at(&self, offset: u64, bytes: &[u8]) -> bool {
        // SAFETY: the slice is valid for its length, and borrowed until the call returns.
        unsafe { self.inner.write_resident(ByteOffset(offset), bytes.as_ptr(), bytes.len()) }
    }

    /// Makes durable every write that was acknowledged before the call. Fails if any of them
    /// cannot be made durable; pages that could not be written stay dirty, and a later sync
    /// retries them. On a read-only object the call does nothing.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Failed`] if an earlier sync of the store failed;
    /// [`Error::Closed`], [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let mut writeback = PartitionConfig::new("app");
    /// writeback.cache_mode = CacheMode::Writeback;
    /// let object = cache.partition(writeback)?.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// object.sync()?;
    /// assert_eq!(object.stat().dirty_bytes, 0);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn sync(&self) -> Result<(), Error> {
        self.sync_pages(EVERY)
    }

    /// Syncs, as [`sync`](Object::sync) does, the pages that overlap the range of `len` bytes at
    /// `offset`. The range may reach past the object's end.
    ///
    /// # Errors
    /// Those of [`sync`](Object::sync).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(8192, b"octavo")?;
    /// object.sync_range(8192, 6)?;
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn sync_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.sync_pages(self.inner.partition.page_size.page_range(ByteOffset(offset), len))
    }

    /// Writes all dirty pages to the store, and makes nothing durable: the store has all that was
    /// written before the call.
    ///
    /// # Errors
    /// [`Error::Io`], and the pages stay dirty; [`Error::Closed`], [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() })?;
    /// let mut writeback = PartitionConfig::new("app");
    /// writeback.cache_mode = CacheMode::Writeback;
    /// let object = cache.partition(writeback)?.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// object.clean()?;
    /// assert_eq!(object.stat().dirty_bytes, 0);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn clean(&self) -> Result<(), Error> {
        self.inner.check_open()?;
        if self.read_only() {
            return Ok(());
        }
        self.clean_pages(EVERY)
    }

    fn sync_pages(&self, pages: Range<PageIndex>) -> Result<(), Error> {
        self.inner.partition.counters.add(Count::Syncs, 1);
        self.inner.check_open()?;
        if self.read_only() {
            return Ok(());
        }
        self.inner.check_not_failed()?;
        self.run(Task::of_pages(Job::Sync(SyncState::new(true, u64::MAX)), &self.inner, pages))
    }

    /// Discards the range of `len` bytes at `offset`: it reads as zeros afterwards, and the
    /// store may free its space. If the store refuses, the call fails, and each byte of the
    /// range keeps its old value or is zero.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::PastEnd`], [`Error::Closed`], [`Error::Io`],
    /// [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(4096, b"octavo")?;
    /// object.discard(4096, 8192)?;
    /// let mut six = [1; 6];
    /// object.read_at(4096, &mut six)?;
    /// assert_eq!(six, [0; 6]);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.run(Task::clearing(&self.inner, octavo_disk::Op::Discard, ByteOffset(offset), len, false)?)
    }

    /// Zeroes the range of `len` bytes at `offset`. The space stays allocated if the store
    /// can zero without freeing it. If the store returns an error, the call fails, and each byte of
    /// the range keeps its old value or is zero, as for [`discard`](Object::discard).
    ///
    /// # Errors
    /// Those of [`discard`](Object::discard).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// object.zero(0, 3)?;
    /// let mut six = [1; 6];
    /// object.read_at(0, &mut six)?;
    /// assert_eq!(&six, b"\0\0\0avo");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.run(Task::clearing(&self.inner, octavo_disk::Op::Zero, ByteOffset(offset), len, false)?)
    }

    /// Returns whether the page that contains `offset` is resident now. A hint: the page may
    /// arrive or leave at any time.
    pub fn is_resident(&self, offset: u64) -> bool {
        self.inner.partition.table.find(self.inner.tag_at(ByteOffset(offset))).is_some()
    }

    /// Returns whether a hit of the `len` bytes at `offset` should be passed to
    /// [`Queue::note_hit`](crate::Queue::note_hit): it has come to what was read ahead last of a
    /// sequential stream. A hint that costs a few loads, for hits far from any queue.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// # let mut queue = cache.queue()?;
    /// # let mut page = [0; 4096];
    /// if object.try_read_at(8192, &mut page)? && object.reads_ahead_at(8192, 4096) {
    ///     queue.note_hit(&object, 8192, 4096);
    /// }
    /// # Ok::<(), octavo::Error>(())
    /// ```
    #[inline]
    pub fn reads_ahead_at(&self, offset: u64, len: u64) -> bool {
        let partition = &self.inner.partition;
        partition.reads_ahead()
            && self.inner.streams.has_marker(&partition.page_size.page_range(ByteOffset(offset), len))
    }

    /// Returns how many bytes of the range of `len` bytes at `offset` lie in resident pages now. A
    /// hint, as [`is_resident`](Object::is_resident). Reads no page, and changes nothing that
    /// decides which pages stay.
    ///
    /// # Errors
    /// [`Error::PastEnd`] if the range ends beyond the object, [`Error::Closed`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.read_at(4096, &mut [0; 4096])?;
    /// assert_eq!(object.resident_bytes(0, 1 << 20)?, 4096);
    /// assert_eq!(object.resident_bytes(8000, 1000)?, 192);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn resident_bytes(&self, offset: u64, len: u64) -> Result<u64, Error> {
        let (inner, offset) = (&*self.inner, ByteOffset(offset));
        inner.check(offset, len)?;
        let (page_size, table) = (inner.partition.page_size, &inner.partition.table);
        let tags = inner.tags_ahead(&page_size.page_range(offset, len), Lookup::Find);
        let resident = tags.filter(|(_, tag)| table.find(*tag).is_some());
        let bytes_of = |(page, _): (PageIndex, Tag)| {
            page_size.start_of(page + 1).min(offset + len) - page_size.start_of(page).max(offset)
        };
        Ok(resident.map(bytes_of).sum())
    }

    /// Returns the node that holds the page containing `offset` now, as an index into the
    /// topology; 0 if there is only one node.
    pub fn node_of(&self, offset: u64) -> u32 {
        self.inner.partition.node_of(self.inner.tag_at(ByteOffset(offset))).0
    }

    /// Advises the cache how the range of `len` bytes at `offset` will be used; see [`Advice`].
    /// `WillNeed` and `DontNeed` apply to the range. `Normal`, `Sequential`, `Random` and `NoReuse`
    /// apply to the whole object, as in the kernel.
    /// Advice never loses data, and advice that cannot be followed is ignored.
    ///
    /// # Errors
    /// [`Error::PastEnd`] if the range ends beyond the object, [`Error::Closed`],
    /// [`Error::Forked`]; [`Error::Io`] if [`Advice::DontNeed`] cannot write a dirty page.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Advice, Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.advise(0, 65536, Advice::WillNeed)?;
    /// assert!(object.is_resident(0));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<(), Error> {
        let offset = ByteOffset(offset);
        self.inner.partition.shared.check_process()?;
        self.inner.check(offset, len)?;
        match advice {
            Advice::WillNeed => {
                self.run_bytes(Job::Populate, offset, std::ptr::null_mut(), self.populate_len(len))
            }
            Advice::DontNeed => self.write_and_evict(offset, len),
            // As in the kernel, these apply to the whole object; the range is only checked.
            Advice::Normal | Advice::Sequential | Advice::Random | Advice::NoReuse => {
                self.inner.streams.advise(advice);
                Ok(())
            }
        }
    }

    /// Limits the length of a `WillNeed` range, `len` bytes, to what fits into the partition.
    pub(crate) fn populate_len(&self, len: u64) -> usize {
        let partition = &*self.inner.partition;
        len.min(partition.page_size.len_of(partition.table.slots_count())) as usize
    }

    /// Returns the number of pages written back so far: a caller can see from it whether a sync
    /// makes progress. Cheaper than [`stat`](Object::stat).
    pub fn pages_written(&self) -> u64 {
        // Relaxed: a statistic.
        self.inner.written.load(Ordering::Relaxed)
    }

    /// Checks that no write has failed that was acknowledged: neither a sync of the store nor the
    /// latest write-back of a page that is still dirty. Cheaper than [`stat`](Object::stat).
    ///
    /// # Errors
    /// [`Error::Failed`]; [`Error::Io`], with the error of the write-back.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// object.check()?;
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        let inner = &self.inner;
        inner.partition.shared.check_process()?;
        inner.check_not_failed()?;
        lock(&inner.faults).refusal().cloned().map_or(Ok(()), Err)
    }

    /// Returns the failures of write-backs and syncs so far, which a front end reports to each of
    /// its users once. Cheaper than [`stat`](Object::stat).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// object.sync()?;
    /// assert_eq!(object.faults().count, 0);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn faults(&self) -> ObjectFaults {
        // Acquire, as in `check_not_failed`.
        lock(&self.inner.faults).report(self.inner.failed.load(Ordering::Acquire))
    }

    /// Returns the object's statistics. Walks over the partition's dirty pages; of several objects,
    /// [`stats_of`](Object::stats_of) walks once for all.
    pub fn stat(&self) -> ObjectStat {
        Object::stats_of(std::slice::from_ref(self)).remove(0)
    }

    /// Returns the statistics of several objects, in their order. Walks once over the dirty pages
    /// of each partition, however many of its objects are asked about.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, CacheMode, Object, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() })?;
    /// # let mut config = PartitionConfig::new("app");
    /// # config.cache_mode = CacheMode::Writeback;
    /// # let partition = cache.partition(config)?;
    /// let one = partition.open(Store::memory("one", 1 << 20), "one")?;
    /// let two = partition.open(Store::memory("two", 1 << 20), "two")?;
    /// two.write_at(0, b"octavo")?;
    /// let stats = Object::stats_of(&[one, two]);
    /// assert_eq!([stats[0].dirty_bytes, stats[1].dirty_bytes], [0, 4096]);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn stats_of(objects: &[Object]) -> Vec<ObjectStat> {
        let place = |object: &Object| (Arc::as_ptr(&object.inner.partition), object.inner.id);
        let is_usable = |object: &&Object| !object.inner.partition.shared.is_forked();
        let usable = || objects.iter().filter(is_usable);
        let mut dirty: HashMap<_, u64> = usable().map(|object| (place(object), 0)).collect();
        let mut walked = HashSet::new();
        for partition in usable().map(|object| &object.inner.partition) {
            let partition_place = Arc::as_ptr(partition);
            if !walked.insert(partition_place) || partition.table.dirty_pages() == 0 {
                continue;
            }
            let still = lock(&partition.moves);
            partition.table.for_each_dirty(|_, tag, word| {
                if word.state() != State::Dirty && !word.held() {
                    return;
                }
                let (id, _) = partition.page_of(tag);
                if let Some(pages) = dirty.get_mut(&(partition_place, id)) {
                    *pages += 1;
                }
            });
            drop(still);
        }
        let stat = |object: &Object| {
            let inner = &object.inner;
            let Some(pages) = dirty.get(&place(object)) else {
                return ObjectStat { name: inner.name.clone(), ..ObjectStat::default() };
            };
            ObjectStat {
                name: inner.name.clone(),
                len_bytes: inner.len_bytes(),
                dirty_bytes: inner.partition.page_size.len_of(*pages),
                failed: inner.failed.load(Ordering::Acquire),
                writeback_error: lock(&inner.faults).refusal().map(Error::to_string),
            }
        };
        objects.iter().map(stat).collect()
    }
}
