//! The core of a cache: its partitions, its lanes and its reaper's ledger. The cache's threads work
//! on the core, and partition handles keep it alive.
//!
//! Not here: the threads themselves (`api/cache.rs`).

use super::ledger::Ledger;
use super::roster::{self, Roster};
use crate::error::Error;
use crate::flight::{Crew, Handle, Lanes, Object};
use crate::state::partition::{Lease, PartitionInner};
use crate::state::shared::Shared;
use crate::sync::{Arc, Mutex, lock};

/// A cache without its handle and its threads.
pub(crate) struct Core {
    pub shared: Arc<Shared>,
    pub lanes: Arc<Lanes>,
    pub ledger: Ledger,
    /// Emptied when the cache is dropped.
    partitions: Mutex<Roster>,
}

/// A handle of a partition, which is one tenant's cache: its size, eviction policy, write mode and
/// statistics are its own. Cheap to clone.
///
/// # Examples
/// ```
/// use octavo::{Cache, CacheConfig, Limits, PartitionConfig, PolicyName, disk::Store};
/// let cache = Cache::new(CacheConfig::default())?;
/// let partition = cache.partition(PartitionConfig {
///     policy: PolicyName::Lru,
///     max_bytes: Some(16 << 20),
///     ..PartitionConfig::new("app")
/// })?;
/// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
/// object.read_at(0, &mut [0; 100])?;
/// partition.set_limits(Limits { min_bytes: 4 << 20, ..partition.limits() })?;
/// let stat = partition.stat();
/// println!("{} of {} bytes hold pages", stat.resident_bytes, stat.max_bytes);
/// # Ok::<(), octavo::Error>(())
/// ```
#[derive(Clone)]
pub struct Partition {
    pub(crate) inner: Arc<PartitionInner>,
    pub(crate) core: Arc<Core>,
    // Dropped after `inner`, as `Lease` expects.
    pub(crate) lease: Arc<Lease>,
}

impl Core {
    pub fn new(shared: Shared) -> Result<Arc<Core>, Error> {
        let shared = Arc::new(shared);
        let ledger = Ledger::new(shared.budget.max_bytes())
            .map_err(|e| Error::Config(format!("cannot create the reaper's bell, a pair of sockets: {e}")))?;
        let lanes = Arc::new(Lanes::new(shared.clone()));
        Ok(Arc::new(Core { shared, lanes, ledger, partitions: Mutex::default() }))
    }

    pub fn crew(&self) -> &Arc<Crew> {
        &self.lanes.crew
    }

    /// Returns the partitions, in the order of creation. Empty in a child of `fork`.
    pub fn partitions(self: &Arc<Self>) -> Vec<Partition> {
        self.shared.unless_forked(|| lock(&self.partitions).iter().map(|lease| self.handle(lease)).collect())
    }

    /// Returns the partition `name`. `None` in a child of `fork`.
    pub fn find(self: &Arc<Self>, name: &str) -> Option<Partition> {
        self.shared.unless_forked(|| lock(&self.partitions).find(name).map(|lease| self.handle(lease)))
    }

    /// Returns the name of a partition that excludes a partition `name` ([`roster::excluding`]).
    pub fn excluding(&self, name: &str) -> Option<String> {
        roster::excluding(lock(&self.partitions).names(), name).map(str::to_owned)
    }

    /// Adds a new partition and returns its handle.
    pub fn add(self: &Arc<Self>, inner: &Arc<PartitionInner>) -> Partition {
        let lease = Arc::new(Lease(inner.clone()));
        lock(&self.partitions).add(lease.clone());
        self.handle(&lease)
    }

    fn handle(self: &Arc<Self>, lease: &Arc<Lease>) -> Partition {
        Partition { inner: lease.0.clone(), core: self.clone(), lease: lease.clone() }
    }

    /// Removes the partition `name` from the list.
    pub fn remove(&self, name: &str) {
        lock(&self.partitions).remove(name);
    }

    /// Takes all partitions out of the list, when the cache is dropped.
    pub fn take_partitions(&self) -> Vec<Arc<Lease>> {
        lock(&self.partitions).take()
    }
}

impl Partition {
    /// Returns the partition's name.
    pub fn name(&self) -> &str {
        &self.inner.config.name
    }

    /// Returns the open objects, in the order of opening. Empty in a child of `fork`.
    pub fn objects(&self) -> Vec<Object> {
        let lanes = &self.core.lanes;
        let handle = |inner| Object { lanes: Handle::counted(&inner, lanes), inner };
        self.core.shared.unless_forked(|| self.inner.open_objects().into_iter().map(handle).collect())
    }

    /// Returns the open objects for the engine's own use: these handles do not count (D1 of
    /// `flight/handle.rs`).
    pub(crate) fn objects_in_passing(&self) -> Vec<Object> {
        let lanes = Handle::passing(&self.core.lanes);
        let handle = |inner| Object { inner, lanes: lanes.clone() };
        self.inner.open_objects().into_iter().map(handle).collect()
    }
}
