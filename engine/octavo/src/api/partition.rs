//! The public calls on a partition: opening objects, statistics, size, dirty limit, policy,
//! reclaim.
//!
//! Not here: limits (`limits.rs`), recordings (`recording.rs`), how a size changes
//! (`control/resize.rs`).

use octavo_disk::Store;
use octavo_recording::Event;

use crate::config::{Limits, PolicyName};
use crate::control::{Owed, Partition, Stop};
use crate::error::Error;
use crate::flight::{Handle, Object};
use crate::name::check_name;
use crate::numa::NumaMode;
use crate::request::Advice;
use crate::stat::{Evictions, PartitionStat};
use crate::state::counters::Count;
use crate::state::events::MoveReason;
use crate::state::latency::{PartitionLatency, Timed};
use crate::state::nodes::Looks;
use crate::state::partition::ObjectInner;
use crate::sync::{Arc, Ordering, lock};

impl Partition {
    /// Returns the page size in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.inner.page_bytes() as u64
    }

    /// Opens `store` as an object of this partition. `name` appears in errors and statistics; see
    /// [`check_name`] for its rules. A writable store can be open as only one object at a time.
    ///
    /// # Errors
    /// [`Error::Config`] if the name is invalid, the store's blocks are larger than pages, the
    /// store is too long (more than 2^40 pages, or 2^63 - 1 bytes), the store is already open, the
    /// partition was removed, or the partition has 16 million objects open;
    /// [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// let cache = Cache::new(CacheConfig::default())?;
    /// let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// assert_eq!(object.len_bytes(), 1 << 20);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn open(&self, store: Store, name: &str) -> Result<Object, Error> {
        check_name(name).map_err(|why| Error::Config(format!("object {name:?}: {why}")))?;
        let block_bytes = store.block_bytes();
        if block_bytes as usize > self.inner.page_bytes() {
            return Err(Error::Config(format!(
                "{name}: the store's blocks of {block_bytes} bytes are larger than the cache's pages of {} bytes",
                self.inner.page_bytes()
            )));
        }
        if store.is_closed() {
            return Err(Error::Config(format!("{name}: the store was closed with its object")));
        }
        self.inner.shared.check_process()?;
        self.inner.check_len(name, store.len_bytes())?;
        let taken = |other| Error::Config(format!("{name}: the store is already open, as {other}"));
        let mut objects = lock(&self.inner.objects);
        // Relaxed: `is_removed` is set under the same lock.
        if self.inner.is_removed.load(Ordering::Relaxed) {
            return Err(Error::Config(format!("{name}: the partition {:?} was removed", self.name())));
        }
        store.take(name).map_err(taken)?;
        let Some(id) = objects.take_id(&self.inner.returned, &store) else {
            store.release();
            return Err(Error::Config(format!(
                "{name}: the partition has 16 million objects open, the most possible; close some, or use \
                 another partition"
            )));
        };
        let mut inner = ObjectInner::new(&self.inner, &self.lease, store, name, id);
        inner.opened = objects.next_place();
        let inner = Arc::new(inner);
        objects.open.insert(id, inner.clone());
        self.inner.record(|| Event::Opened { object: id, name: name.into() });
        let lanes = Handle::counted(&inner, &self.core.lanes);
        Ok(Object { inner, lanes })
    }

    /// Marks the partition as removed if no object is open in it, and returns whether it did. A
    /// removed partition opens no more objects.
    pub(crate) fn remove(&self) -> bool {
        let objects = lock(&self.inner.objects);
        let is_removed = objects.open.is_empty();
        self.inner.is_removed.store(is_removed, Ordering::Relaxed);
        is_removed
    }

    /// Syncs every object of the partition, in the order of opening. Tries all of them and returns
    /// the first error.
    ///
    /// # Errors
    /// The errors of [`Object::sync`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// partition.sync()?;
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn sync(&self) -> Result<(), Error> {
        self.inner.shared.check_process()?;
        self.objects().iter().map(Object::sync).fold(Ok(()), Result::and)
    }

    /// Returns the partition's statistics. They include every request that has completed. Counting
    /// the pinned pages takes about 1 ms for each GiB of the partition.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.read_at(0, &mut [0; 512])?;
    /// object.read_at(512, &mut [0; 512])?;
    /// assert_eq!((partition.stat().misses, partition.stat().hits), (1, 1));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn stat(&self) -> PartitionStat {
        use Count::*;
        let inner = &self.inner;
        if inner.shared.is_forked() {
            return PartitionStat { name: self.name().into(), ..PartitionStat::default() };
        }
        let bytes = |pages: u64| inner.page_size.len_of(pages);
        let tally = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        PartitionStat {
            name: self.name().into(),
            policy: inner.table.policy().name(),
            cache_mode: inner.mode.name(),
            hits: inner.sum(Hits),
            misses: inner.sum(Misses),
            fills: inner.sum(Fills),
            bypasses: inner.sum(Bypasses),
            evictions: Evictions {
                capacity: inner.sum(EvictionsCapacity),
                resize: inner.sum(EvictionsResize),
                discard: inner.sum(EvictionsDiscard),
                write: inner.sum(EvictionsWrite),
            },
            writebacks: inner.sum(Writebacks),
            writeback_ios: inner.sum(WritebackIos),
            read_errors: inner.sum(ReadErrors),
            write_errors: inner.sum(WriteErrors),
            sync_errors: inner.sum(SyncErrors),
            ghost_hits: tally(&inner.table.tally().ghost_hits),
            ahead_used: tally(&inner.table.tally().ahead_used),
            ahead_wasted: tally(&inner.table.tally().ahead_wasted),
            resident_bytes: bytes(inner.resident_pages()),
            dirty_bytes: bytes(inner.table.dirty_pages()),
            dirty_oldest_ms: inner.dirty_oldest().as_millis() as u64,
            dirty_max_bytes: bytes(inner.dirty_max_pages()),
            max_bytes: bytes(inner.table.slots_count()),
            charged_bytes: lock(&inner.costs).charged_bytes(),
            requests_read: inner.sum(Reads),
            requests_write: inner.sum(Writes),
            requests_sync: inner.sum(Syncs),
            read_bytes: inner.sum(ReadBytes),
            written_bytes: inner.sum(WrittenBytes),
        }
    }

    /// Returns the bytes of pages with at least one pin, including snapshots: old versions of pages
    /// that were written, evicted or moved while they were pinned. Looks at every slot of the
    /// partition, which takes about a millisecond for each GiB.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// let page = object.pin_owned(0)?;
    /// assert_eq!(partition.pinned_bytes(), 4096);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn pinned_bytes(&self) -> u64 {
        self.inner.shared.unless_forked(|| self.inner.page_size.len_of(self.inner.pinned_pages()))
    }

    /// Grows or shrinks the partition to at most `max_bytes` of frames and metadata, one segment at
    /// a time, while requests continue. Returns the bytes charged afterwards, which exceed
    /// `max_bytes` only if:
    /// - pins keep pages that would have left ([`pinned_bytes`](Partition::pinned_bytes)), or
    /// - `max_bytes` is less than what always remains: one segment, and the metadata of segments
    ///   used in the past (at most 1 % of their size).
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the cache has too little memory to grow the partition; [`Error::Io`]
    /// if a dirty page cannot be written, so that the partition cannot shrink; [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig { reaper: false, ..CacheConfig::default() })?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let charged_bytes = partition.resize(16 << 20)?;
    /// assert!(charged_bytes <= 16 << 20);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn resize(&self, max_bytes: u64) -> Result<u64, Error> {
        self.inner.shared.check_process()?;
        self.resize_segments(self.inner.segments_within(max_bytes))?;
        Ok(lock(&self.inner.costs).charged_bytes())
    }

    /// Returns the partition's limits.
    pub fn limits(&self) -> Limits {
        if self.inner.shared.is_forked() {
            return self.inner.config.limits();
        }
        self.inner.limits()
    }

    /// Sets the most bytes of dirty pages that the partition may hold. `None` restores the default,
    /// 40 % of the frames. At the limit, a write that would make another page dirty goes to the
    /// store first.
    pub fn set_dirty_max(&self, bytes: Option<u64>) {
        self.inner.shared.unless_forked(|| {
            *lock(&self.inner.dirty_max_bytes) = bytes;
            self.inner.set_dirty_max();
            self.inner.tell_cleaner(true);
        });
    }

    /// Switches to another eviction policy. Pages stay resident, and the new policy starts with the
    /// old policy's order. If a resize of the partition waits for a store, this call waits too;
    /// [`begin_policy`](Self::begin_policy) waits about one second at most.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if there is no memory for what the policy learns; [`Error::Io`] if a
    /// resize in progress cannot write a dirty page; [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, PolicyName};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// partition.set_policy(PolicyName::Lru)?;
    /// assert_eq!(partition.stat().policy, "lru");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn set_policy(&self, policy: PolicyName) -> Result<(), Error> {
        self.inner.shared.check_process()?;
        let mut resizing = lock(&self.inner.resizing);
        self.finish_moves(&mut resizing, None).map_err(Stop::into_error)?;
        self.follow(&mut resizing, policy)
    }

    /// Switches the policy as [`set_policy`](Self::set_policy) does, but waits about one second at
    /// most for a store that does not answer. Returns `Ok(false)` if the store did not answer in
    /// time; the old policy then stays active.
    ///
    /// # Errors
    /// The errors of [`set_policy`](Self::set_policy).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Limits, PartitionConfig, PolicyName};
    /// # let cache = Cache::new(CacheConfig { reaper: false, ..CacheConfig::default() })?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// assert!(partition.begin_policy(PolicyName::Lru)?, "no store held it up");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn begin_policy(&self, policy: PolicyName) -> Result<bool, Error> {
        self.inner.shared.check_process()?;
        let planning = lock(&self.core.ledger.planning);
        let turn = planning.turn(self.core.crew(), MoveReason::Asked);
        let done = self.in_turn(turn, |resizing, turn| {
            self.finish_moves(resizing, turn)?;
            Ok(self.follow(resizing, policy)?)
        });
        Stop::is_complete(done)
    }

    /// Shrinks the partition by about `bytes` and gives the memory back to the system. Returns the
    /// bytes given back. No limit changes, so the partition may grow again. The call waits until
    /// the partition's stores have taken the dirty pages that must leave, however long that takes;
    /// [`begin_reclaim`](Self::begin_reclaim) waits about one second at most.
    ///
    /// # Errors
    /// [`Error::Io`] if a dirty page cannot be written, [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig { reaper: false, ..CacheConfig::default() })?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// assert!(partition.reclaim(4 << 20)? > 0);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        self.inner.shared.check_process()?;
        let before = lock(&self.inner.costs).charged_bytes();
        let mut wanted = None;
        // `segments_without` runs under `planning`: no plan, which could not know of this request,
        // is carried out at the same time.
        self.shrink_alone(|| *wanted.get_or_insert_with(|| self.inner.segments_without(bytes)))?;
        Ok(before.saturating_sub(lock(&self.inner.costs).charged_bytes()))
    }

    /// Reclaims memory as [`reclaim`](Self::reclaim) does, but waits about one second at most for a
    /// store that does not answer. Returns the bytes given back and the memory still owed. The rest
    /// is not reclaimed in the background: call again.
    ///
    /// # Errors
    /// The errors of [`reclaim`](Self::reclaim).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Limits, PartitionConfig, PolicyName};
    /// # let cache = Cache::new(CacheConfig { reaper: false, ..CacheConfig::default() })?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let (reclaimed_bytes, owed) = partition.begin_reclaim(4 << 20)?;
    /// assert!(reclaimed_bytes > 0 && owed.is_nothing());
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn begin_reclaim(&self, bytes: u64) -> Result<(u64, Owed), Error> {
        self.inner.shared.check_process()?;
        let planning = lock(&self.core.ledger.planning);
        let before = lock(&self.inner.costs).charged_bytes();
        let segments = self.inner.segments_without(bytes);
        let left = u64::from(self.inner.table.live_segments() - segments) * self.inner.segment_bytes();
        let turn = planning.turn(self.core.crew(), MoveReason::Asked);
        let is_complete = Stop::is_complete(self.shrink_in_turn(segments, turn))?;
        let reclaimed_bytes = before.saturating_sub(lock(&self.inner.costs).charged_bytes());
        let owed = match is_complete {
            true => Owed::default(),
            false => Owed::by(std::slice::from_ref(self), left.saturating_sub(reclaimed_bytes)),
        };
        Ok((reclaimed_bytes, owed))
    }

    /// Writes all dirty pages and then evicts all clean pages. The partition keeps its memory.
    ///
    /// # Errors
    /// [`Error::Io`] if a dirty page cannot be written, [`Error::Closed`] if an object is closed
    /// at the same time, [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.read_at(0, &mut [0; 512])?;
    /// partition.evict()?;
    /// assert!(!object.is_resident(0));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn evict(&self) -> Result<(), Error> {
        self.inner.shared.check_process()?;
        self.objects().iter().try_for_each(|object| object.advise(0, object.len_bytes(), Advice::DontNeed))
    }

    /// Returns the estimated miss-ratio curve: how many of the recent accesses would have missed at
    /// other sizes of the partition. `None` if the partition has no monitor: the cache has no
    /// reaper, or the partition is very small.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// if let Some(curve) = partition.miss_curve() {
    ///     for (pages, misses) in &curve.points {
    ///         println!("{misses} of {} would miss with {pages} pages", curve.references);
    ///     }
    /// }
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn miss_curve(&self) -> Option<octavo_table::MissCurve> {
        self.inner.shared.unless_forked(|| {
            self.inner.table.drain_monitor();
            self.inner.table.miss_curve()
        })
    }

    /// Returns how long the I/Os of the partition's stores took, since it was created.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.read_at(0, &mut [0; 512])?;
    /// object.read_at(0, &mut [0; 512])?;
    /// assert_eq!(partition.latency().store.count(), 1, "a hit makes no I/O");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn latency(&self) -> PartitionLatency {
        let times = |timed| self.inner.counters.times(timed);
        PartitionLatency { store: times(Timed::Store), bypass: times(Timed::Bypass) }
    }

    /// Returns how full the sets are: how many of up to 4,096 sets, spread evenly, have how many
    /// ways in use, and with dirty pages. Takes no lock.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let occupancy = partition.occupancy();
    /// assert_eq!(occupancy.occupied[0], occupancy.sampled, "all sets are empty");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn occupancy(&self) -> octavo_table::Occupancy {
        /// Enough that a share of the sets is known to a few percent.
        const SETS_MAX: u64 = 4096;
        self.inner.shared.unless_forked(|| self.inner.table.occupancy(SETS_MAX))
    }

    /// Returns the bytes of memory in which the policy and the miss-curve monitor learn about the
    /// partition's load.
    #[doc(hidden)]
    pub fn learned_bytes(&self) -> u64 {
        lock(&self.inner.costs).learning_bytes()
            + self.inner.table.monitor().map_or(0, |monitor| monitor.bytes())
    }

    /// Tests only: leaves the partition `most` object numbers, which return at once. Call it before
    /// an object is opened.
    #[doc(hidden)]
    pub fn limit_numbers(&self, most: u32) {
        lock(&self.inner.objects).numbers.limit(most);
    }

    /// Tests only: switches to a NUMA strategy, in a partition of mode `auto`. The partition may
    /// choose another strategy at its next evaluation.
    #[doc(hidden)]
    pub fn go_numa_way(&self, way: NumaMode) {
        if self.inner.places.chooses {
            self.inner.auto.go(way);
            *lock(&self.inner.auto.looks) = Looks::default();
        }
    }
}
