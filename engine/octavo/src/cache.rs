//! A cache: the bound on memory, the partitions under it, the lanes that do its I/O. Not here: what its threads do (`cleaner.rs`, `reaper.rs`).

use std::cell::RefCell;
use std::sync::{OnceLock, Weak};

use octavo_disk::{Ring, RingOptions};

use crate::budget::{Budget, Charge};
use crate::buffers::{BouncePool, Buffer};
use crate::cleaner::{Bell, Cleaner};
use crate::config::{CacheConfig, Limits, PartitionConfig};
use crate::error::Error;
use crate::lane::Lane;
use crate::numa::{Numa, Post, Workers};
use crate::partition::{Partition, PartitionInner, Stop};
use crate::queue::Queue;
use crate::reaper::{self, Reaper, ReaperStat};
use crate::stat::CacheStat;
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, lock, thread_local};

/// What lanes, partitions and front ends of one cache share.
pub(crate) struct Shared {
    pub config: CacheConfig,
    pub budget: Arc<Budget>,
    /// The part of the budget that buffers, rings and bounce pages are charged to.
    pub reserve: Arc<Budget>,
    pub bounce: Arc<BouncePool>,
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// Lanes that sleep while a page they want may be in another lane's hands.
    pub foreign: AtomicU32,
    /// The cache is gone: threads drop their lanes.
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

thread_local! {
    /// This thread's lanes, one per cache that it made blocking calls on.
    static LANES: RefCell<Vec<Arc<Lane>>> = const { RefCell::new(Vec::new()) };
}

fn ring_options(config: &CacheConfig) -> RingOptions {
    RingOptions { engine: config.engine, ..RingOptions::default() }
}

fn no_ring(error: std::io::Error) -> Error {
    Error::Config(format!("cannot make a ring for I/O: {error}"))
}

impl Shared {
    /// The calling thread's lane.
    pub fn lane(self: &Arc<Self>) -> Result<Arc<Lane>, Error> {
        crate::counters::keep_to_the_end();
        let known = LANES.with(|lanes| lanes.borrow().iter().find(|l| Arc::ptr_eq(&l.shared, self)).cloned());
        if let Some(lane) = known {
            return Ok(lane);
        }
        let lane = Lane::new(self)?;
        let gone = LANES.with(|lanes| {
            let mut lanes = lanes.borrow_mut();
            let (gone, kept) = lanes.drain(..).partition(|l| l.shared.closed.load(Ordering::Relaxed));
            *lanes = kept;
            lanes.push(lane.clone());
            gone
        });
        drop::<Vec<Arc<Lane>>>(gone);
        Ok(lane)
    }

    pub fn ring(&self) -> Result<Ring, Error> {
        Ring::new(&ring_options(&self.config)).map_err(no_ring)
    }

    pub fn add_lane(&self, lane: &Arc<Lane>) {
        let mut lanes = lock(&self.lanes);
        lanes.retain(|l| l.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    /// The other lanes that have I/O in flight and nobody who waits for it.
    pub fn unattended(&self, own: &Lane) -> Vec<Arc<Lane>> {
        let lanes = lock(&self.lanes);
        let others = lanes.iter().filter_map(Weak::upgrade).filter(|lane| !std::ptr::eq(&**lane, own));
        others.filter(|lane| !lane.is_attended() && lane.ring.in_flight() > 0).collect()
    }

    /// Wakes the lanes that sleep, so that they look again at who is attended.
    pub fn wake_parked(&self, own: &Lane) {
        let lanes: Vec<_> = lock(&self.lanes).iter().filter_map(Weak::upgrade).collect();
        lanes.iter().filter(|lane| !std::ptr::eq(&***lane, own)).for_each(|lane| lane.wake_if_parked());
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

/// A page cache. Cheap to clone; the last clone stops the cleaner, waits for what that has in flight, and drops everything. Dirty pages that are to survive are synced before.
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
    /// Makes a cache. Fails if the values do not fit together or `memory_max` is too small for anything.
    pub fn new(config: CacheConfig) -> Result<Cache, Error> {
        config.validate()?;
        let memory_max_bytes = config.memory_max_bytes;
        let budget = Budget::new(memory_max_bytes);
        let reserve_bytes = config.reserve_bytes();
        let reserved = budget.charge(reserve_bytes, "the reserve for buffers")?;
        let reserve = Budget::new(reserve_bytes);
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
            config,
            budget,
            reserve,
            bounce,
            lanes: Mutex::new(Vec::new()),
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
            let cleaner = Cleaner::new(Lane::new(&cache.0.shared)?);
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

    /// Makes a partition. Its memory is charged now, and taken as pages come. Where others have what it is to begin with, they give it a fair share,
    /// if the cache has a reaper. A name such as `host/vm1/disk0` says that it is in the groups `host` and `host/vm1`.
    pub fn partition(&self, config: PartitionConfig) -> Result<Partition, Error> {
        let planning = lock(&self.0.shared.reaper.planning);
        let turn = planning.turn(&self.0.shared);
        let wrong = |why: String| Error::Config(format!("partition {:?}: {why}", config.name));
        config.limits().validate().map_err(wrong)?;
        let least = PartitionInner::least_bytes(&self.0.shared, &config);
        if let Some(max) = config.max_bytes.filter(|max| *max < least) {
            return Err(wrong(too_little(max, least)));
        }
        let name = config.name.as_str();
        if reaper::groups_of(name).any(|group| group.ends_with('/')) || name.ends_with('/') {
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
        let wanted = wanted.min(config.max_bytes.unwrap_or(u64::MAX));
        let start = match self.0.shared.reaps() {
            true => reaper::make_room(self, turn, &config.limits(), wanted, least),
            false if wanted == u64::MAX => self.0.shared.budget.left_bytes(),
            false => wanted,
        };
        let partition = Partition::new(PartitionInner::new(&self.0.shared, config, start)?);
        lock(&self.0.partitions).push(partition.clone());
        // No page of it is here yet: nobody sees that a group was beyond its bound for a moment. (Where a neighbour's store does not answer, the next steps
        // go on with it.)
        reaper::keep_bounds(self, turn);
        Ok(partition)
    }

    /// Closes all objects of a partition and lets its memory go; what else holds the partition holds an empty shell. Where dirty pages cannot be
    /// written it fails, and the partition stays.
    pub fn remove_partition(&self, name: &str) -> Result<(), Error> {
        let found = self.partitions().into_iter().find(|partition| partition.name() == name);
        let partition = found.ok_or_else(|| Error::Config(format!("there is no partition {name:?}")))?;
        partition.objects().iter().try_for_each(|object| object.close())?;
        {
            let _alone = lock(&self.0.shared.reaper.planning);
            lock(&self.0.partitions).retain(|other| other.name() != name);
        }
        // No plan knows it any more.
        partition.resize_segments(1)
    }

    /// The limits of groups that were given some. A group without has none of its own.
    pub fn groups(&self) -> Vec<(String, Limits)> {
        self.0.shared.reaper.groups().into_iter().collect()
    }

    /// Bounds a group of partitions, those whose names begin with its name and a slash, now or later.
    pub fn set_group(&self, name: &str, limits: Limits) -> Result<(), Error> {
        let wrong = |why: String| Error::Config(format!("group {name:?}: {why}"));
        limits.validate().map_err(wrong)?;
        if name.is_empty()
            || name.ends_with('/')
            || self.partitions().iter().any(|other| other.name() == name)
        {
            return Err(wrong("this is no name of a group".into()));
        }
        {
            let _alone = lock(&self.0.shared.reaper.planning);
            self.0.shared.reaper.set_group(name, limits);
        }
        let keep = || {
            let planning = lock(&self.0.shared.reaper.planning);
            let held_up = reaper::keep_bounds(self, planning.turn(&self.0.shared));
            held_up.into_iter().find(|other| reaper::groups_of(other.name()).any(|group| group == name))
        };
        // Others get their turns while a store of the group's is waited for. One that refuses keeps what it has, as ever.
        while let Some(held_up) = keep() {
            if held_up.catch_up().is_err() {
                break;
            }
        }
        // What else changes with it comes with the next steps.
        if self.0.shared.reaps() {
            reaper::period(self, true);
        }
        Ok(())
    }

    /// The next steps of the reaper now, whether or not the cache runs one.
    pub fn balance(&self) {
        reaper::drain(self);
        reaper::period(self, true);
    }

    /// Tells that processes wait for memory, for whoever hears of that before [`crate::CacheConfig::pressure`] does (systemd's `MEMORY_PRESSURE_WATCH`, say). The reaper
    /// looks at the system's memory at once, and takes what lies between enough and too little for too little. Without `pressure` nothing happens.
    pub fn memory_is_short(&self) {
        self.0.shared.reaper.alarm.tell_short();
    }

    /// What the reaper did so far.
    pub fn reaper_stat(&self) -> ReaperStat {
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

    /// Changes what a partition was promised. It is resized at once where it has more than `max` or less than `min`.
    pub fn set_limits(&self, partition: &Partition, limits: Limits) -> Result<(), Error> {
        let wrong = |why: String| Error::Config(format!("partition {:?}: {why}", partition.name()));
        limits.validate().map_err(wrong)?;
        partition.check_max(limits.max_bytes).map_err(wrong)?;
        {
            let _alone = lock(&self.0.shared.reaper.planning);
            let promised = self.promised_bytes(Some(partition.name())).saturating_add(limits.min_bytes);
            self.check_promise(promised).map_err(wrong)?;
            partition.keep_limits(limits);
        }
        loop {
            let planning = lock(&self.0.shared.reaper.planning);
            let turn = planning.turn(&self.0.shared);
            let charged = partition.stat().charged_bytes;
            let resized = if charged > limits.max_bytes {
                partition.resize_in_turn(partition.segments_within(limits.max_bytes), turn)
            } else if charged < limits.min_bytes {
                let left = reaper::make_room(self, turn, &limits, limits.min_bytes - charged, 0);
                let grown = partition.resize_in_turn(partition.segments_within(charged + left), turn);
                reaper::keep_bounds(self, turn);
                grown
            } else {
                return Ok(());
            };
            drop(planning);
            match resized {
                Ok(()) => return Ok(()),
                Err(Stop::Failed(error)) => return Err(error),
                // Its own store: others get their turns while it is waited for.
                Err(Stop::HeldUp) => partition.catch_up()?,
            }
        }
    }

    /// The partitions, in the order of their making.
    pub fn partitions(&self) -> Vec<Partition> {
        lock(&self.0.partitions).clone()
    }

    /// Figures of the whole cache.
    pub fn stat(&self) -> CacheStat {
        let shared = &self.0.shared;
        CacheStat {
            memory_max_bytes: shared.budget.max_bytes(),
            memory_charged_bytes: shared.budget.used_bytes(),
            buffers_max_bytes: shared.reserve.max_bytes(),
            buffers_used_bytes: shared.reserve.used_bytes(),
            io_engine: shared.engine_name,
        }
    }

    /// Memory for requests: zeroed, aligned to 4096, charged. None where the buffers' share is used up; what others drop comes back.
    pub fn buffer(&self, bytes: usize) -> Option<Buffer> {
        Buffer::charged(&self.0.shared.reserve, bytes)
    }

    /// A batch queue, with a ring of its own. It may move between threads but is used by one at a time.
    pub fn queue(&self) -> Result<Queue, Error> {
        Queue::new(&self.0.shared)
    }

    /// Writes dirty pages of all partitions, in the order of their offsets. What the cleaner does by itself.
    /// Returns the first error; pages that could not be written stay.
    pub fn clean(&self) -> Result<(), Error> {
        self.partitions()
            .iter()
            .flat_map(Partition::objects)
            .map(|object| object.clean(u64::MAX))
            .fold(Ok(()), Result::and)
    }
}

impl Drop for CacheInner {
    fn drop(&mut self) {
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
    }
}

/// The one complaint about a `max` that is no partition.
pub(crate) fn too_little(max: u64, least: u64) -> String {
    format!("max is {max} bytes, and {least} are the least: a segment with its metadata")
}
