//! The state that all partitions and lanes of one cache share: its memory limits, buffers,
//! nodes, and the cleaner's bell.
//!
//! Not here: lanes (`flight`), threads and sizes (`control`).

use std::collections::HashMap;

use octavo_disk::{Process, Ring, RingOptions};

use super::bell::Bell;
use super::events::Events;
use super::expected::Expected;
use crate::config::CacheConfig;
use crate::error::Error;
use crate::memory::{BouncePools, Budget, BufferPool, Reserve};
use crate::numa::Numa;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

/// The state that all parts of one cache share.
pub(crate) struct Shared {
    /// The process that created the cache. A child of `fork` must not use the cache.
    process: Process,
    pub config: CacheConfig,
    /// `memory_max`.
    pub budget: Arc<Budget>,
    /// `buffers_max`, the part of the budget for buffers, rings and bounce pages.
    pub reserve: Arc<Reserve>,
    pub bounces: BouncePools,
    pub buffers: Arc<BufferPool>,
    /// The cache was dropped. Calls on objects that still exist use spare lanes.
    pub closed: AtomicBool,
    /// Some store is simulated: its I/O advances only while threads look at their rings.
    simulated: AtomicBool,
    /// The system is short of memory, so no twins are made. A hint.
    pub is_short: AtomicBool,
    pub bell: Bell,
    pub events: Events,
    pub numa: Numa,
    /// The partitions whose evacuated pages are expected, by their names.
    pub expected: Mutex<HashMap<String, Expected>>,
    /// Name of the interface through which I/O reaches files.
    pub engine_name: &'static str,
}

impl Shared {
    pub fn new(config: CacheConfig) -> Result<Shared, Error> {
        config.validate()?;
        let budget = Budget::new("memory_max", config.memory_max_bytes);
        let reserve = Reserve::new(&budget, config.reserve_bytes(), config.set_aside_bytes())?;
        let bounces = BouncePools::new(reserve.clone());
        bounces.of(config.page_bytes as usize)?;
        // Create a temporary ring, so that the call fails now if the kernel allows none.
        let engine_name = new_ring(&config)?.engine_name();
        Ok(Shared {
            process: Process::this(),
            numa: Numa::new(&config.topology, config.numa, config.replication, config.remote_cost),
            config,
            budget,
            buffers: BufferPool::new(reserve.clone()),
            reserve,
            bounces,
            closed: AtomicBool::new(false),
            simulated: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            bell: Bell::new(),
            events: Events::new(),
            expected: Mutex::default(),
            engine_name,
        })
    }

    /// Whether this process was forked from the one that created the cache. In such a child,
    /// threads that do not exist may hold any of the cache's locks, and its rings belong to the
    /// parent. The child must not take its locks, wait for its threads or pass its rings to the
    /// kernel.
    pub fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Fails in a child of `fork`.
    pub fn check_process(&self) -> Result<(), Error> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Does what `act` does. In a child of `fork` does nothing, and returns nothing.
    pub fn unless_forked<T: Default>(&self, act: impl FnOnce() -> T) -> T {
        if self.is_forked() { T::default() } else { act() }
    }

    pub fn ring(&self) -> Result<Ring, Error> {
        new_ring(&self.config)
    }

    /// Whether the cache resizes partitions on its own.
    pub fn reaps(&self) -> bool {
        self.config.reaps()
    }

    pub fn simulated(&self) -> bool {
        self.simulated.load(Ordering::Relaxed)
    }

    pub fn set_simulated(&self) {
        self.simulated.store(true, Ordering::Relaxed);
    }
}

fn new_ring(config: &CacheConfig) -> Result<Ring, Error> {
    let options = RingOptions { engine: config.engine, ..RingOptions::default() };
    Ring::new(&options).map_err(|error| Error::Config(format!("cannot create an I/O ring: {error}")))
}
