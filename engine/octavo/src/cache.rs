//! A cache: the bound on memory, the partitions under it, the lanes that do its I/O. Not here: what
//! its threads do (`cleaner.rs`, `reaper.rs`).

use std::sync::{OnceLock, PoisonError, Weak};

use octavo_disk::{Process, Ring, RingOptions};

use crate::bounce::BouncePool;
use crate::budget::{Budget, Charge};
use crate::buffer::{Buffer, BufferPool};
use crate::cleaner::{Bell, Cleaner};
use crate::config::{CacheConfig, Limits, PartitionConfig};
use crate::error::Error;
use crate::lane::{Borrowed, Lane, Lanes};
use crate::numa::{Numa, Post, Workers};
use crate::partition::{Partition, PartitionInner, Stop};
use crate::queue::Queue;
use crate::reaper::{self, Reaper, ReaperStat};
use crate::stat::CacheStat;
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, lock};

/// What lanes, partitions and front ends of one cache share.
pub(crate) struct Shared {
    /// Whose cache it is: a child of `fork` leaves it alone.
    process: Process,
    pub config: CacheConfig,
    pub budget: Arc<Budget>,
    /// The part of the budget that buffers, rings and bounce pages are charged to.
    pub reserve: Arc<Budget>,
    pub bounce: Arc<BouncePool>,
    pub buffers: Arc<BufferPool>,
    pub lanes: Lanes,
    /// Lanes that sleep while a page they want may be in another lane's hands.
    pub foreign: AtomicU32,
    /// The cache is gone: lanes are dropped when their calls return.
    pub closed: AtomicBool,
    /// Some store is simulated: its I/O moves only when somebody looks.
    simulated: AtomicBool,
    /// The system is short of memory: a hint.
    pub is_short: AtomicBool,
    pub bell: Bell,
    pub reaper: Reaper,
    pub numa: Numa,
    /// Where batches for other nodes are sent; none unless the mode wants it.
    pub post: OnceLock<Post>,
    /// What carries I/O to files here.
    engine_name: &'static str,
    _reserved: Charge,
}

fn ring_options(config: &CacheConfig) -> RingOptions {
    RingOptions { engine: config.engine, ..RingOptions::default() }
}

fn no_ring(error: std::io::Error) -> Error {
    Error::Config(format!("cannot make a ring for I/O: {error}"))
}

impl Shared {
    /// A lane for a blocking call.
    pub fn lane(self: &Arc<Self>) -> Result<Borrowed, Error> {
        self.check_process()?;
        Ok(Borrowed::from(self))
    }

    /// Whether this process was forked from the one that made the cache. Then threads that are not
    /// here may hold any lock of it, and its rings are the parent's: nothing of it may be locked,
    /// waited for or given to the kernel.
    pub fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Fails in a child of `fork`.
    pub fn check_process(&self) -> Result<(), Error> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    pub fn ring(&self) -> Result<Ring, Error> {
        Ring::new(&ring_options(&self.config)).map_err(no_ring)
    }

    /// Whether partitions are resized by themselves.
    pub fn reaps(&self) -> bool {
        self.config.reaper && self.config.background && !cfg!(shuttle)
    }

    pub fn simulated(&self) -> bool {
        self.simulated.load(Ordering::Relaxed)
    }

    pub fn set_simulated(&self) {
        self.simulated.store(true, Ordering::Relaxed);
    }
}

/// What a change of limits still takes, because a store does not answer: dirty pages must be in it
/// before their memory can go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Bytes that are beyond a `max`, or were asked for, and are held still.
    pub bytes: u64,
    /// The partitions whose stores do not answer.
    pub partitions: Vec<String>,
}

impl Owed {
    /// All was done.
    pub fn is_nothing(&self) -> bool {
        self.partitions.is_empty()
    }
}

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
    shared: Arc<Shared>,
    partitions: Mutex<Vec<Partition>>,
    cleaner: Mutex<Option<std::thread::JoinHandle<()>>>,
    reaper: Mutex<Option<std::thread::JoinHandle<()>>>,
    workers: Mutex<Workers>,
}

impl Cache {
    /// Makes a cache. Fails if the values do not fit together or `memory_max` is too small for
    /// anything.
    pub fn new(config: CacheConfig) -> Result<Cache, Error> {
        config.validate()?;
        let memory_max_bytes = config.memory_max_bytes;
        let budget = Budget::new(memory_max_bytes);
        let reserve_bytes = config.reserve_bytes();
        let reserved = budget.charge(reserve_bytes, "the reserve for buffers")?;
        let reserve = Budget::for_buffers(reserve_bytes);
        let page_bytes = config.page_bytes as usize;
        let bounce_pages = (reserve_bytes as usize / 8 / page_bytes).clamp(2, 4096);
        let charge = reserve.charge((bounce_pages * page_bytes) as u64, "bounce pages")?;
        let no_memory = |e| Error::Config(format!("cannot map memory: {e}"));
        let bounce = BouncePool::new(page_bytes, bounce_pages, charge).map_err(no_memory)?;
        let background = config.background && !cfg!(shuttle);
        // A ring for a moment, to learn early what the kernel allows.
        let engine_name = Ring::new(&ring_options(&config)).map_err(no_ring)?.engine_name();
        let numa = Numa::new(&config);
        let shared = Arc::new(Shared {
            process: Process::this(),
            config,
            budget,
            buffers: BufferPool::new(reserve.clone()),
            reserve,
            bounce,
            lanes: Lanes::new(reserve_bytes),
            foreign: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            simulated: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            bell: Bell::new(),
            reaper: Reaper::new(memory_max_bytes)
                .map_err(|e| Error::Config(format!("cannot make the reaper's bell: {e}")))?,
            numa,
            post: OnceLock::new(),
            engine_name,
            _reserved: reserved,
        });
        let workers = Workers::start(&shared)?;
        let inner = CacheInner {
            shared,
            partitions: Mutex::new(Vec::new()),
            cleaner: Mutex::new(None),
            reaper: Mutex::new(None),
            workers: Mutex::new(workers),
        };
        let cache = Cache(Arc::new(inner));
        if background {
            let weak = Arc::downgrade(&cache.0);
            let cleaner = Cleaner::new(Lane::new(&cache.0.shared, "an I/O ring for the cleaner")?);
            let started = std::thread::Builder::new()
                .name("octavo-cleaner".into())
                .spawn(move || cleaner.run(&weak))
                .map_err(|e| Error::Config(format!("cannot start the cleaner: {e}")))?;
            *lock(&cache.0.cleaner) = Some(started);
        }
        if cache.0.shared.reaps() {
            let weak = Arc::downgrade(&cache.0);
            let shared = cache.0.shared.clone();
            let started = std::thread::Builder::new()
                .name("octavo-reaper".into())
                .spawn(move || reaper::reaper_thread(&shared, &weak))
                .map_err(|e| Error::Config(format!("cannot start the reaper: {e}")))?;
            *lock(&cache.0.reaper) = Some(started);
        }
        Ok(cache)
    }

    /// Makes a partition. Its memory is charged now, and taken as pages come. Where others have
    /// what it is to begin with, they give it a fair share, if the cache has a reaper. A name
    /// such as `host/vm1/disk0` says that it is in the groups `host` and `host/vm1`.
    pub fn partition(&self, config: PartitionConfig) -> Result<Partition, Error> {
        self.0.shared.check_process()?;
        let planning = lock(&self.0.shared.reaper.planning);
        let turn = planning.turn(&self.0.shared);
        let wrong = |why: String| Error::Config(format!("partition {:?}: {why}", config.name));
        crate::check_name(&config.name).map_err(wrong)?;
        config.limits().validate().map_err(wrong)?;
        let least = PartitionInner::least_bytes(&self.0.shared, &config);
        if let Some(max) = config.max_bytes.filter(|max| *max < least) {
            return Err(wrong(too_little(max, least)));
        }
        let name = config.name.as_str();
        if reaper::has_empty_level(name) {
            return Err(wrong("a name between two slashes is empty".into()));
        }
        for other in self.partitions() {
            let inside = |one: &str, other: &str| reaper::groups_of(one).any(|group| group == other);
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
        let own = PartitionInner::bytes_with_min(&self.0.shared, &config);
        let promised = self.min_to_have(None, config.min_bytes, own);
        let start = match self.0.shared.reaps() {
            true => {
                let limits = Limits { min_bytes: promised, ..config.limits() };
                reaper::make_room(self, turn, &limits, wanted.max(promised), least)
            }
            false if wanted == u64::MAX => self.0.shared.budget.left_bytes(),
            false => wanted.max(promised.min(self.0.shared.budget.left_bytes())),
        };
        let partition = Partition::new(PartitionInner::new(&self.0.shared, config, start)?);
        lock(&self.0.partitions).push(partition.clone());
        // No page of it is here yet: nobody sees that a group was beyond its bound for a moment. (Where a
        // neighbour's store does not answer, the next steps go on with it.)
        reaper::keep_bounds(self, turn);
        Ok(partition)
    }

    /// Closes all objects of a partition and lets its memory go; what else holds the partition
    /// holds an empty shell. Where dirty pages cannot be written it fails, and the partition
    /// stays.
    pub fn remove_partition(&self, name: &str) -> Result<(), Error> {
        self.0.shared.check_process()?;
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
            let _alone = lock(&self.0.shared.reaper.planning);
            lock(&self.0.partitions).retain(|other| other.name() != name);
        }
        // No plan knows it any more.
        partition.resize_segments(1)
    }

    /// The limits of groups that were given some. A group without has none of its own.
    pub fn groups(&self) -> Vec<(String, Limits)> {
        if self.0.shared.is_forked() {
            return Vec::new();
        }
        self.0.shared.reaper.groups().into_iter().collect()
    }

    /// Bounds a group of partitions, those whose names begin with its name and a slash, now or
    /// later.
    ///
    /// Waits for the stores of those in it as long as they take: [`Self::begin_group`] does not.
    pub fn set_group(&self, name: &str, limits: Limits) -> Result<(), Error> {
        self.name_group(name, limits)?;
        // Others get their turns while a store of the group's is waited for. One that refuses keeps
        // what it has, as ever.
        while let Some(held_up) = self.keep_group(name).into_iter().next() {
            if held_up.catch_up().is_err() {
                break;
            }
        }
        self.follow_group();
        Ok(())
    }

    /// [`Self::set_group`] that waits for stores that do not answer about a second at most, as
    /// [`Self::begin_limits`].
    pub fn begin_group(&self, name: &str, limits: Limits) -> Result<Owed, Error> {
        self.name_group(name, limits)?;
        let held_up = self.keep_group(name);
        self.follow_group();
        let is_inside =
            |partition: &Partition| reaper::groups_of(partition.name()).any(|group| group == name);
        let inside = self.partitions().into_iter().filter(is_inside);
        let charged: u64 = inside.map(|partition| partition.stat().charged_bytes).sum();
        let partitions: Vec<String> = held_up.iter().map(|partition| partition.name().to_owned()).collect();
        let bytes = if partitions.is_empty() { 0 } else { charged.saturating_sub(limits.max_bytes) };
        Ok(Owed { bytes, partitions })
    }

    fn name_group(&self, name: &str, limits: Limits) -> Result<(), Error> {
        self.0.shared.check_process()?;
        let wrong = |why: String| Error::Config(format!("group {name:?}: {why}"));
        crate::check_name(name).map_err(wrong)?;
        limits.validate().map_err(wrong)?;
        if name.is_empty()
            || reaper::has_empty_level(name)
            || self.partitions().iter().any(|other| other.name() == name)
        {
            return Err(wrong("this is no name of a group".into()));
        }
        let _alone = lock(&self.0.shared.reaper.planning);
        self.0.shared.reaper.set_group(name, limits);
        Ok(())
    }

    /// Takes what lies beyond a group's bound; returns those in it whose stores hold that up.
    fn keep_group(&self, name: &str) -> Vec<Partition> {
        let planning = lock(&self.0.shared.reaper.planning);
        let mut held_up = reaper::keep_bounds(self, planning.turn(&self.0.shared));
        held_up.retain(|other| reaper::groups_of(other.name()).any(|group| group == name));
        held_up
    }

    /// What else changes with a group's limits comes with the next steps.
    fn follow_group(&self) {
        if self.0.shared.reaps() {
            reaper::period(self, true);
        }
    }

    /// The next steps of the reaper now, whether or not the cache runs one.
    pub fn balance(&self) {
        if self.0.shared.is_forked() {
            return;
        }
        reaper::drain(self);
        reaper::period(self, true);
    }

    /// Tells that processes wait for memory, for whoever hears of that before
    /// [`crate::CacheConfig::pressure`] does (systemd's `MEMORY_PRESSURE_WATCH`, say). The reaper
    /// looks at the system's memory at once, and takes what lies between enough and too little for
    /// too little. Without `pressure` nothing happens.
    pub fn memory_is_short(&self) {
        if !self.0.shared.is_forked() {
            self.0.shared.reaper.alarm.tell_short();
        }
    }

    /// What the reaper did so far.
    pub fn reaper_stat(&self) -> ReaperStat {
        if self.0.shared.is_forked() {
            return ReaperStat::default();
        }
        let held_up = self.partitions().iter().filter(|partition| partition.is_held_up()).count() as u64;
        ReaperStat { held_up, ..self.0.shared.reaper.stat() }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    pub(crate) fn upgrade(weak: &Weak<CacheInner>) -> Option<Cache> {
        weak.upgrade().map(Cache)
    }

    /// What all partitions but one were promised by their `min`.
    pub(crate) fn promised_bytes(&self, but: Option<&str>) -> u64 {
        let others = self.partitions().into_iter().filter(|partition| Some(partition.name()) != but);
        others.map(|partition| partition.limits().min_bytes).sum()
    }

    /// Whether so much can be promised to all together; the error is a sentence.
    pub(crate) fn check_promise(&self, bytes: u64) -> Result<(), String> {
        let most = self.0.shared.budget.max_bytes() - self.0.shared.reserve.max_bytes();
        if bytes <= most {
            return Ok(());
        }
        Err(format!("all partitions' min together are {bytes} bytes, and memory_max leaves {most} for them"))
    }

    /// The bytes that a partition has for a `min`: `rounded` up to whole segments, where all
    /// others' `min` could be rounded up, too, else down.
    fn min_to_have(&self, but: Option<&str>, min_bytes: u64, rounded: u64) -> u64 {
        let others = self.partitions().into_iter().filter(|partition| Some(partition.name()) != but);
        let all = others.map(|partition| partition.bytes_with_min(&partition.limits()));
        let all = all.fold(rounded, u64::saturating_add);
        if self.check_promise(all).is_ok() { rounded } else { min_bytes }
    }

    /// Changes what a partition was promised. It is resized at once where it has more than `max` or
    /// less than `min`.
    ///
    /// Waits for the partition's stores as long as they take: [`Self::begin_limits`] does not.
    pub fn set_limits(&self, partition: &Partition, limits: Limits) -> Result<(), Error> {
        self.keep_limits(partition, limits)?;
        // Others get their turns while its own store is waited for.
        while !self.follow_limits(partition, limits)?.is_nothing() {
            partition.catch_up()?;
        }
        Ok(())
    }

    /// [`Self::set_limits`] that waits for a store that does not answer about a second at most. The
    /// limits hold from then on; what is beyond `max` still
    /// is owed. The reaper goes on with it once a period; a cache without one does so in
    /// [`Self::settle`].
    pub fn begin_limits(&self, partition: &Partition, limits: Limits) -> Result<Owed, Error> {
        self.keep_limits(partition, limits)?;
        self.follow_limits(partition, limits)
    }

    fn keep_limits(&self, partition: &Partition, limits: Limits) -> Result<(), Error> {
        self.0.shared.check_process()?;
        let wrong = |why: String| Error::Config(format!("partition {:?}: {why}", partition.name()));
        limits.validate().map_err(wrong)?;
        partition.check_max(limits.max_bytes).map_err(wrong)?;
        let _alone = lock(&self.0.shared.reaper.planning);
        let promised = self.promised_bytes(Some(partition.name())).saturating_add(limits.min_bytes);
        self.check_promise(promised).map_err(wrong)?;
        partition.keep_limits(limits);
        Ok(())
    }

    /// Resizes a partition that is beyond its new limits, in a turn.
    fn follow_limits(&self, partition: &Partition, limits: Limits) -> Result<Owed, Error> {
        let planning = lock(&self.0.shared.reaper.planning);
        let turn = planning.turn(&self.0.shared);
        let charged = partition.stat().charged_bytes;
        let resized = if charged > limits.max_bytes {
            partition.resize_in_turn(partition.segments_within(limits.max_bytes), turn)
        } else if charged < limits.min_bytes {
            let rounded = partition.bytes_with_min(&limits);
            let wanted = self.min_to_have(Some(partition.name()), limits.min_bytes, rounded);
            let left = reaper::make_room(self, turn, &limits, wanted - charged, 0);
            let grown = partition.resize_in_turn(partition.segments_within(charged + left), turn);
            reaper::keep_bounds(self, turn);
            grown
        } else {
            Ok(())
        };
        match resized {
            Ok(()) => Ok(Owed::default()),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::HeldUp) => {
                Ok(Owed { bytes: partition.beyond(&limits), partitions: vec![partition.name().to_owned()] })
            }
        }
    }

    /// Goes on with what is owed because stores did not answer, and returns what still is. The
    /// reaper does so by itself.
    pub fn settle(&self) -> Owed {
        if self.0.shared.is_forked() {
            return Owed::default();
        }
        let planning = lock(&self.0.shared.reaper.planning);
        let held_up = reaper::go_on(self, planning.turn(&self.0.shared));
        Owed {
            bytes: held_up.iter().map(|partition| partition.beyond(&partition.limits())).sum(),
            partitions: held_up.iter().map(|partition| partition.name().to_owned()).collect(),
        }
    }

    /// The partitions, in the order of their making. None in a child of `fork`.
    pub fn partitions(&self) -> Vec<Partition> {
        if self.0.shared.is_forked() {
            return Vec::new();
        }
        lock(&self.0.partitions).clone()
    }

    /// Figures of the whole cache.
    pub fn stat(&self) -> CacheStat {
        let shared = &self.0.shared;
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
        self.0.shared.buffers.borrow(bytes)
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
        self.0.shared.check_process()?;
        Queue::new(&self.0.shared)
    }

    /// Writes dirty pages of all partitions, in the order of their offsets. What the cleaner does
    /// by itself. Returns the first error; pages that could not be written stay.
    pub fn clean(&self) -> Result<(), Error> {
        self.0.shared.check_process()?;
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
        std::mem::forget(std::mem::take(own(&mut self.partitions)));
        std::mem::forget(self.shared.clone());
    }
}

impl Drop for CacheInner {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return self.leave_to_the_parent();
        }
        self.shared.closed.store(true, Ordering::Relaxed);
        self.shared.bell.ring();
        self.shared.reaper.alarm.end();
        lock(&self.workers).stop(&self.shared);
        for thread in [lock(&self.cleaner).take(), lock(&self.reaper).take()].into_iter().flatten() {
            if thread.thread().id() != std::thread::current().id() {
                // A panic has been reported by its thread.
                let _ = thread.join();
            }
        }
        // It knows what it is in.
        let lane = lock(&self.shared.reaper.planning).end();
        drop(lane);
        for partition in lock(&self.partitions).iter() {
            let dirty = partition.stat().dirty_bytes;
            if dirty > 0 {
                log::warn!("partition {}: dropped with {dirty} dirty bytes", partition.name());
            }
            partition.0.forget_all();
        }
        self.shared.lanes.end();
    }
}

/// The one complaint about a `max` that is no partition.
pub(crate) fn too_little(max: u64, least: u64) -> String {
    format!("max is {max} bytes, and {least} are the least: a segment with its metadata")
}
