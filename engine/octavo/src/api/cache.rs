//! A cache as its users see it: partitions, limits, buffers, queues. Not here: limits of partitions
//! and groups (`limits.rs`), what the threads do (`control`).

use std::sync::PoisonError;

use super::queue::Queue;
use crate::config::{CacheConfig, Limits, PartitionConfig};
use crate::control::{self, Cleaner, Core, Partition, ReaperStat};
use crate::error::Error;
use crate::flight::{Lane, Workers};
use crate::memory::Buffer;
use crate::stat::CacheStat;
use crate::state::partition::PartitionInner;
use crate::state::shared::Shared;
use crate::state::sizes::too_little;
use crate::sync::{Arc, Mutex, Ordering, lock};

/// A page cache. Cheap to clone; the last clone stops the cleaner, waits for what that has in
/// flight, and drops everything. Dirty pages that are to survive are synced before.
///
/// # Threads
///
/// Any number of threads may call a cache and its objects at a time. A thread holds nothing of the
/// cache between its calls but some counters (about 512 bytes a partition, which the next thread
/// takes over). A call that is not a hit borrows a *lane* while it lasts. The cache makes up to 64
/// lanes with an I/O ring each, when that many calls run at a time; a ring takes 24 KiB of
/// [`buffers_max_bytes`](CacheConfig::buffers_max_bytes), of which all rings of blocking calls take
/// an eighth at most, and one file descriptor. Calls beyond that neither fail nor wait for a lane:
/// their I/O is done by plain system calls, of the calling thread or of up to 64 threads that the
/// whole process shares. Each of them takes up to 40 KiB of the heap while it lasts, which is not
/// charged: 600 writers at a time take some 24 MiB beside `memory_max`. A [`Queue`] has a ring of
/// its own for its life.
///
/// # Forks
///
/// A cache belongs to the process that made it. In a child of `fork(2)` reads of resident pages may
/// succeed, and every other call that returns a `Result` fails with [`Error::Forked`] at once;
/// figures are zeros, and lists are empty. Dropping the cache there, its objects and its queues
/// disturbs neither the parent nor its locks on stores. The child holds copies of the pages that it
/// inherited until it exits or calls `exec`. It may make a cache of its own, for other stores,
/// unless the parent was starting a thread at the moment of the fork: then the standard library can
/// start none in the child.
#[derive(Clone)]
pub struct Cache(Arc<CacheInner>);

pub(crate) struct CacheInner {
    core: Arc<Core>,
    cleaner: Mutex<Option<std::thread::JoinHandle<()>>>,
    reaper: Mutex<Option<std::thread::JoinHandle<()>>>,
    workers: Mutex<Workers>,
}

impl Cache {
    /// Makes a cache. Fails if the values do not fit together or `memory_max` is too small for
    /// anything.
    pub fn new(config: CacheConfig) -> Result<Cache, Error> {
        let background = config.background && !cfg!(shuttle);
        let core = Core::new(Shared::new(config)?)?;
        let workers = Workers::start(core.crew())?;
        let inner = CacheInner {
            core: core.clone(),
            cleaner: Mutex::new(None),
            reaper: Mutex::new(None),
            workers: Mutex::new(workers),
        };
        let cache = Cache(Arc::new(inner));
        if background {
            let core = core.clone();
            let cleaner = Cleaner::new(Lane::new(core.crew(), "an I/O ring for the cleaner")?);
            let started = std::thread::Builder::new()
                .name("octavo-cleaner".into())
                .spawn(move || cleaner.run(&core))
                .map_err(|e| Error::Config(format!("cannot start the cleaner: {e}")))?;
            *lock(&cache.0.cleaner) = Some(started);
        }
        if core.shared.reaps() {
            let started = std::thread::Builder::new()
                .name("octavo-reaper".into())
                .spawn(move || control::reaper_thread(&core))
                .map_err(|e| Error::Config(format!("cannot start the reaper: {e}")))?;
            *lock(&cache.0.reaper) = Some(started);
        }
        Ok(cache)
    }

    /// Makes a partition. Its memory is charged now, and taken as pages come. Where others have
    /// what it is to begin with, they give it a fair share, if the cache has a reaper. A name
    /// such as `host/vm1/disk0` says that it is in the groups `host` and `host/vm1`.
    pub fn partition(&self, config: PartitionConfig) -> Result<Partition, Error> {
        self.core().shared.check_process()?;
        let planning = lock(&self.core().ledger.planning);
        let turn = planning.turn(self.core().crew());
        let wrong = |why: String| Error::Config(format!("partition {:?}: {why}", config.name));
        crate::check_name(&config.name).map_err(wrong)?;
        config.limits().validate().map_err(wrong)?;
        let least = PartitionInner::least_bytes(&self.core().shared, &config);
        if let Some(max) = config.max_bytes.filter(|max| *max < least) {
            return Err(wrong(too_little(max, least)));
        }
        let name = config.name.as_str();
        if control::has_empty_level(name) {
            return Err(wrong("a name between two slashes is empty".into()));
        }
        for other in self.partitions() {
            let inside = |one: &str, other: &str| control::groups_of(one).any(|group| group == other);
            if other.name() == name {
                return Err(Error::Config(format!("there is a partition {name:?} already")));
            }
            if inside(name, other.name()) || inside(other.name(), name) {
                return Err(wrong(format!(
                    "one of it and {:?} would be a group and a partition",
                    other.name()
                )));
            }
        }
        let promised = self.promised_bytes(None).saturating_add(config.min_bytes);
        self.check_promise(promised).map_err(wrong)?;
        let wanted = config.start_bytes.or(config.max_bytes).unwrap_or(u64::MAX);
        let wanted = wanted.min(config.max_bytes.unwrap_or(u64::MAX)).max(least);
        // What is promised is there from the beginning, in whole segments.
        let own = PartitionInner::new_bytes_with_min(&self.core().shared, &config);
        let promised = self.min_to_have(None, config.min_bytes, own);
        let start = match self.core().shared.reaps() {
            true => {
                let limits = Limits { min_bytes: promised, ..config.limits() };
                control::make_room(self.core(), turn, &limits, wanted.max(promised), least)
            }
            false if wanted == u64::MAX => self.core().shared.budget.left_bytes(),
            false => wanted.max(promised.min(self.core().shared.budget.left_bytes())),
        };
        let partition = self.core().add(PartitionInner::new(&self.core().shared, config, start)?);
        // No page of it is here yet: nobody sees that a group was beyond its bound for a moment. (Where a
        // neighbour's store does not answer, the next steps go on with it.)
        control::keep_bounds(self.core(), turn);
        Ok(partition)
    }

    /// Closes all objects of a partition and lets its memory go; what else holds the partition
    /// holds an empty shell. Where dirty pages cannot be written it fails, and the partition
    /// stays.
    pub fn remove_partition(&self, name: &str) -> Result<(), Error> {
        self.core().shared.check_process()?;
        let found = self.partitions().into_iter().find(|partition| partition.name() == name);
        let partition = found.ok_or_else(|| Error::Config(format!("there is no partition {name:?}")))?;
        // Others may open objects until `remove` succeeds.
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
        // No plan knows it any more.
        partition.resize_segments(1)
    }

    /// The next steps of the reaper now, whether or not the cache runs one.
    pub fn balance(&self) {
        if self.core().shared.is_forked() {
            return;
        }
        control::drain(self.core());
        control::period(self.core(), true);
    }

    /// Tells that processes wait for memory, for whoever hears of that before
    /// [`crate::CacheConfig::pressure`] does (systemd's `MEMORY_PRESSURE_WATCH`, say). The reaper
    /// looks at the system's memory at once, and takes what lies between enough and too little for
    /// too little. Without `pressure` nothing happens.
    pub fn memory_is_short(&self) {
        if !self.core().shared.is_forked() {
            self.core().ledger.alarm.tell_short();
        }
    }

    /// What the reaper did so far.
    pub fn reaper_stat(&self) -> ReaperStat {
        if self.core().shared.is_forked() {
            return ReaperStat::default();
        }
        let held_up = self.partitions().iter().filter(|partition| partition.is_held_up()).count() as u64;
        ReaperStat { held_up, ..self.core().ledger.stat() }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// The partitions, in the order of their making. None in a child of `fork`.
    pub fn partitions(&self) -> Vec<Partition> {
        self.core().partitions()
    }

    /// Figures of the whole cache.
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
            io_engine: shared.engine_name,
        }
    }

    /// Lends memory for requests: at least `bytes` long, a whole number of 4096-byte pages, zeroed,
    /// aligned to 4096. Returns `None` while the buffers' share
    /// ([`CacheConfig::buffers_max_bytes`]) is used up; dropped buffers come back to it. In a child
    /// of `fork` there are none.
    ///
    /// The memory is the cache's own, not the heap's. A dropped buffer's memory stays resident,
    /// within the share, for the next buffer; what no buffer needs for a few seconds goes back
    /// to the kernel, if the cache runs its reaper ([`CacheConfig::reaper`]).
    pub fn buffer(&self, bytes: usize) -> Option<Buffer> {
        self.core().shared.buffers.borrow(bytes)
    }

    /// A batch queue, with a ring of its own. Dropping it waits for what it has in flight: where a
    /// store hangs, until it answers. It may move between threads but is used by one at a time.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if less than 24 KiB of
    /// [`buffers_max_bytes`](CacheConfig::buffers_max_bytes) are free, [`Error::Config`] if the
    /// system gives no ring, [`Error::Forked`].
    pub fn queue(&self) -> Result<Queue, Error> {
        self.core().shared.check_process()?;
        Queue::new(self.core().crew())
    }

    /// Writes dirty pages of all partitions, in the order of their offsets. What the cleaner does
    /// by itself. Returns the first error; pages that could not be written stay.
    pub fn clean(&self) -> Result<(), Error> {
        self.core().shared.check_process()?;
        self.partitions()
            .iter()
            .flat_map(Partition::objects)
            .map(|object| object.clean(u64::MAX))
            .fold(Ok(()), Result::and)
    }
}

impl CacheInner {
    /// In a child of `fork`: forgets everything, so that no thread is waited for, no lock taken and
    /// no ring touched. The memory goes with the process.
    #[cold]
    fn leave_to_the_parent(&mut self) {
        fn own<T>(mutex: &mut Mutex<T>) -> &mut T {
            mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
        own(&mut self.workers).leave_to_the_parent();
        std::mem::forget(own(&mut self.cleaner).take());
        std::mem::forget(own(&mut self.reaper).take());
        std::mem::forget(self.core.clone());
    }
}

impl Drop for CacheInner {
    fn drop(&mut self) {
        let core = self.core.clone();
        if core.shared.is_forked() {
            return self.leave_to_the_parent();
        }
        // Release: pairs with the cleaner's look.
        core.shared.closed.store(true, Ordering::Release);
        core.shared.bell.ring();
        core.ledger.alarm.end();
        lock(&self.workers).stop(core.crew());
        for thread in [lock(&self.cleaner).take(), lock(&self.reaper).take()].into_iter().flatten() {
            // A panic has been reported by its thread.
            let _ = thread.join();
        }
        // Handles of partitions may outlive the cache; its descriptors do not.
        drop(lock(&core.ledger.planning).end());
        for partition in core.take_partitions() {
            let dirty = partition.table.dirty_pages() << partition.page_shift;
            if dirty > 0 {
                log::warn!("partition {}: dropped with {dirty} dirty bytes", partition.config.name);
            }
            partition.forget_all();
        }
        core.lanes.end();
    }
}
