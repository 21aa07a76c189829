//! The public calls on a cache: buffers, queues, statistics; and the start and end of its threads.
//!
//! Not here: new partitions (`creation.rs`), limits of partitions and groups (`limits.rs`), the
//! work of the threads (`control`).

use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;

use super::queue::Queue;
use crate::config::CacheConfig;
use crate::control::{self, Cleaner, Core, Partition, ReaperStat};
use crate::error::Error;
use crate::flight::{EVERY, Lane, Workers};
use crate::memory::Buffer;
use crate::stat::CacheStat;
use crate::state::events::{CacheEvent, Happened};
use crate::state::shared::Shared;
use crate::sync::{Arc, Mutex, Ordering, lock};

/// A page cache with a hard memory limit. Cheap to clone. Keep a clone as long as its objects are
/// used: dropping the last one stops the cleaner and the reaper, and then only syncs write dirty
/// pages back. Pages go with the last handle of their partition ([`Partition`],
/// [`Object`](crate::Object)), dirty ones too: call [`Partition::sync`] first to keep their data.
///
/// # Examples
/// ```
/// use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig, disk::Store};
/// let cache = Cache::new(CacheConfig { memory_max_bytes: 64 << 20, ..CacheConfig::default() })?;
/// let mut config = PartitionConfig::new("vm1");
/// config.cache_mode = CacheMode::Writeback;
/// let object = cache.partition(config)?.open(Store::memory("disk", 1 << 30), "disk")?;
/// object.write_at(0, b"octavo")?;
/// cache.partition(PartitionConfig::new("vm2"))?;
/// assert!(cache.stat().memory_charged_bytes <= 64 << 20, "all partitions together");
/// object.close()?;
/// # Ok::<(), octavo::Error>(())
/// ```
///
/// # Threads
///
/// Any number of threads may call a cache and its objects concurrently. Between calls a thread
/// keeps only its counters: about 1 KiB per partition, which a later thread takes over when
/// this one ends. A call that is not a hit borrows a *lane* (an I/O ring and the requests in flight
/// on it) while it runs:
///
/// - The cache creates up to 64 lanes with an I/O ring each, as concurrent calls need them. A
///   ring takes one file descriptor and 24 KiB of
///   [`buffers_max_bytes`](CacheConfig::buffers_max_bytes); the rings of all blocking calls
///   together take at most an eighth of it.
/// - Calls that get no lane neither fail nor wait for one. Their I/O uses plain system calls, on
///   the calling thread or on up to 64 threads that the whole process shares. Each such call takes
///   up to 40 KiB of heap, which is not charged: 600 concurrent writers take about 24 MiB in
///   addition to `memory_max`.
/// - A [`Queue`] owns a ring for its whole life.
///
/// # Forks
///
/// A cache belongs to the process that created it. In a child of `fork(2)`:
///
/// - Reads of resident pages may succeed. Every other call that returns a `Result` fails with
///   [`Error::Forked`] immediately; statistics are zeros, and lists are empty.
/// - Dropping the cache, its objects and its queues disturbs neither the parent nor the parent's
///   locks on stores.
/// - The child keeps copies of the inherited pages until it exits or calls `exec`.
/// - The child may create a cache of its own, for other stores, unless the parent was starting a
///   thread at the moment of the fork: then the standard library can start no thread in the
///   child.
#[derive(Clone)]
pub struct Cache(Arc<CacheInner>);

pub(crate) struct CacheInner {
    core: Arc<Core>,
    /// The cleaner and the reaper.
    threads: Mutex<Vec<JoinHandle<()>>>,
    workers: Mutex<Workers>,
}

impl Cache {
    /// Creates a cache and, if [`CacheConfig::background`] is set, starts its threads.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid or the system refuses a thread, a ring
    /// or a mapping; [`Error::NoMemory`] if `memory_max` is too small for the buffers.
    ///
    /// # Examples
    /// ```
    /// use octavo::{Cache, CacheConfig};
    /// let config = CacheConfig { memory_max_bytes: 32 << 20, ..CacheConfig::default() };
    /// let cache = Cache::new(config)?;
    /// assert_eq!(cache.stat().memory_max_bytes, 32 << 20);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn new(config: CacheConfig) -> Result<Cache, Error> {
        let background = config.background && !cfg!(shuttle);
        let core = Core::new(Shared::new(config)?)?;
        let workers = Workers::start(core.crew())?;
        let (threads, workers) = (Mutex::default(), Mutex::new(workers));
        let cache = Cache(Arc::new(CacheInner { core: core.clone(), threads, workers }));
        if background {
            let core = core.clone();
            let cleaner = Cleaner::new(Lane::new(core.crew(), "an I/O ring for the cleaner")?);
            cache.0.start("cleaner", move || cleaner.run(&core))?;
        }
        if core.shared.reaps() {
            cache.0.start("reaper", move || control::reaper_thread(&core))?;
        }
        Ok(cache)
    }

    /// Closes all objects of the partition `name` and frees its memory. Handles that still exist
    /// then refer to an empty partition, which opens no more objects. If a dirty page cannot be
    /// written, the call fails and the partition stays.
    ///
    /// # Errors
    /// [`Error::Config`] if no partition has this name; the errors of
    /// [`Object::close`](crate::Object::close).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// cache.partition(PartitionConfig::new("app"))?;
    /// cache.remove_partition("app")?;
    /// assert!(cache.partitions().is_empty());
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn remove_partition(&self, name: &str) -> Result<(), Error> {
        self.core().shared.check_process()?;
        let found = self.core().find(name);
        let partition = found.ok_or_else(|| Error::Config(format!("there is no partition {name:?}")))?;
        // Other threads may open objects until `remove` succeeds.
        loop {
            partition.objects().iter().try_for_each(|object| object.close())?;
            if partition.remove() {
                break;
            }
        }
        {
            let _alone = lock(&self.core().ledger.planning);
            self.core().remove(name);
        }
        // No plan contains the partition any more.
        partition.resize_segments(1)
    }

    /// Runs one period of the reaper on the calling thread, whether or not the cache has a reaper
    /// thread.
    pub fn balance(&self) {
        self.core().shared.unless_forked(|| {
            control::drain_monitors(self.core());
            control::period(self.core(), true);
        });
    }

    /// Reports that processes are waiting for memory. Call it on events that arrive before
    /// [`CacheConfig::pressure`] notices, such as systemd's `MEMORY_PRESSURE_WATCH`. The reaper
    /// samples the system's memory immediately. A sample that shows neither enough memory nor a
    /// shortage then counts as a shortage. Without `pressure` the report is ignored.
    pub fn memory_is_short(&self) {
        self.core().shared.unless_forked(|| self.core().ledger.alarm.tell_short());
    }

    /// Returns the reaper's statistics.
    pub fn reaper_stat(&self) -> ReaperStat {
        self.core().shared.unless_forked(|| {
            let held_up = self.partitions().iter().filter(|partition| partition.is_held_up()).count() as u64;
            ReaperStat { held_up, ..self.core().ledger.stat() }
        })
    }

    /// Returns the events whose numbers are above `after`, oldest first: all that are kept, if
    /// `after` is 0. A cache keeps its last 256 events; a reader that finds a gap in their numbers
    /// has missed those between.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Happened, MoveReason, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig { reaper: false, ..CacheConfig::default() })?;
    /// cache.partition(PartitionConfig::new("app"))?.resize(16 << 20)?;
    /// let events = cache.events(0);
    /// assert_eq!(events[0].number, 1);
    /// assert!(matches!(&events[0].what, Happened::Resized { reason: MoveReason::Asked, .. }));
    /// assert!(cache.events(1).is_empty());
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn events(&self, after: u64) -> Vec<CacheEvent> {
        self.core().shared.unless_forked(|| self.core().shared.events.after(after))
    }

    /// Returns what [`events`](Self::events) returns. If there is no such event, waits for the
    /// next one, for `time` at most, and uses no CPU meanwhile.
    pub fn wait_events(&self, after: u64, time: Duration) -> Vec<CacheEvent> {
        self.core().shared.unless_forked(|| self.core().shared.events.wait(after, time))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Returns the partitions, in the order of creation. Empty in a child of `fork`.
    pub fn partitions(&self) -> Vec<Partition> {
        self.core().partitions()
    }

    /// Returns the partition `name`. `None` in a child of `fork`.
    pub fn find(&self, name: &str) -> Option<Partition> {
        self.core().find(name)
    }

    /// Returns the cache's statistics: memory limits and use, in bytes, and the I/O engine.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let stat = cache.stat();
    /// assert!(stat.memory_charged_bytes <= stat.memory_max_bytes);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn stat(&self) -> CacheStat {
        let shared = &self.core().shared;
        if shared.is_forked() {
            return CacheStat { io_engine: shared.engine_name, ..CacheStat::default() };
        }
        CacheStat {
            memory_max_bytes: shared.budget.max_bytes(),
            memory_charged_bytes: shared.budget.used_bytes(),
            buffers_max_bytes: shared.reserve.max_bytes(),
            buffers_used_bytes: shared.reserve.used_bytes(),
            // Relaxed: figures alone.
            rings: self.core().crew().rings.load(Ordering::Relaxed),
            queues: self.core().crew().queues.load(Ordering::Relaxed),
            io_engine: shared.engine_name,
        }
    }

    /// Lends a zeroed buffer for requests: at least `bytes` long, a whole number of 4,096-byte
    /// pages, and aligned to 4,096 bytes. Returns `None` while the buffer share
    /// ([`CacheConfig::buffers_max_bytes`]) is used up, and in a child of `fork`. Dropping the
    /// buffer returns it to the share. If pages have the memory, the call evicts them first; it
    /// returns `None` if stores do not take dirty pages within about a second.
    ///
    /// The memory comes from the cache's own mappings, not from the heap. A dropped buffer's memory
    /// stays resident, within the share, for the next buffer. If the cache runs its reaper
    /// ([`CacheConfig::reaper`]), memory that no buffer has needed for one to two seconds (five to
    /// ten while the cache is idle) goes back to the kernel.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let buffer = cache.buffer(5000).expect("the share is unused");
    /// assert!(buffer.len() >= 5000);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn buffer(&self, bytes: usize) -> Option<Buffer> {
        let buffers = &self.core().shared.buffers;
        let rounded = bytes.max(1).checked_next_multiple_of(4096)? as u64;
        control::with_room(self.core(), rounded, || buffers.borrow(bytes).ok_or(())).ok()
    }

    /// Creates a batch queue with an I/O ring of its own. A queue may move between threads but
    /// is used by one thread at a time. Dropping the queue waits for its I/O in flight; if a
    /// store hangs, until the store answers.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if less than 24 KiB of
    /// [`buffers_max_bytes`](CacheConfig::buffers_max_bytes) are free, [`Error::Config`] if the
    /// system refuses a ring, [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let queue = cache.queue()?;
    /// assert_eq!(queue.pending(), 0);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn queue(&self) -> Result<Queue, Error> {
        self.core().shared.check_process()?;
        let charged = |queue| match queue {
            Err(error @ Error::NoMemory { .. }) => Err(error),
            other => Ok(other),
        };
        let attempt = || charged(Queue::new(self.core().crew()));
        control::with_room(self.core(), Queue::CHARGED_BYTES, attempt).flatten()
    }

    /// Writes back the dirty pages of all partitions, in offset order, as the cleaner does in the
    /// background. Tries every object and returns the first error; pages that could not be written
    /// stay dirty. Written pages are durable only after a sync.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() })?;
    /// let mut writeback = PartitionConfig::new("app");
    /// writeback.cache_mode = CacheMode::Writeback;
    /// let partition = cache.partition(writeback)?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(0, b"octavo")?;
    /// cache.clean()?;
    /// assert_eq!(partition.stat().dirty_bytes, 0);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn clean(&self) -> Result<(), Error> {
        self.core().shared.check_process()?;
        self.partitions()
            .iter()
            .flat_map(Partition::objects)
            .map(|object| object.clean_pages(EVERY))
            .fold(Ok(()), Result::and)
    }
}

impl CacheInner {
    /// Starts a thread of the cache, which ends when the cache is dropped.
    fn start(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let started = std::thread::Builder::new().name(format!("octavo-{name}")).spawn(run);
        let started = started.map_err(|e| Error::Config(format!("cannot start the {name}: {e}")))?;
        lock(&self.threads).push(started);
        Ok(())
    }

    /// Leaks everything in a child of `fork`: waits for no thread, takes no lock and touches no
    /// ring. The kernel frees the memory when the process exits.
    #[cold]
    fn leave_to_the_parent(&mut self) {
        fn own<T>(mutex: &mut Mutex<T>) -> &mut T {
            mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
        own(&mut self.workers).leave_to_the_parent();
        std::mem::forget(std::mem::take(own(&mut self.threads)));
        std::mem::forget(self.core.clone());
    }
}

impl Drop for CacheInner {
    fn drop(&mut self) {
        let core = self.core.clone();
        if core.shared.is_forked() {
            return self.leave_to_the_parent();
        }
        // Release: comes before the bell's wake-up, after which the cleaner loads `closed`.
        core.shared.bell.close(&core.shared.closed);
        core.ledger.alarm.end();
        lock(&self.workers).stop(core.crew());
        for thread in lock(&self.threads).drain(..) {
            // A panicking thread has reported its panic itself.
            let _ = thread.join();
        }
        // Partition handles may outlive the cache; its file descriptors must not.
        drop(lock(&core.ledger.planning).end());
        for lease in core.take_partitions() {
            let partition = &lease.0;
            let dirty_bytes = partition.page_size.len_of(partition.table.dirty_pages());
            if dirty_bytes > 0 {
                let partition = partition.config.name.clone();
                core.shared.events.add(Happened::Dropped { partition, dirty_bytes });
            }
            partition.forget_all();
        }
        core.lanes.end();
    }
}
