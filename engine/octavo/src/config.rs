//! What a cache and its partitions are made with: plain structs, checked by `validate`.

use octavo_disk::Engine;
pub use octavo_share::Limits;
pub use octavo_table::PolicyKind as PolicyName;

use crate::error::Error;
use crate::numa::{NumaMode, RemoteCost, Replication, TopologySource};
use crate::pressure::PressureSource;
use crate::ways::WAYS;

/// Pages are no larger.
pub(crate) const PAGE_BYTES_MAX: usize = 65536;

/// What a cache is made with.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Hard bound on everything, in bytes: frames, metadata, buffers in flight.
    pub memory_max_bytes: u64,
    /// Bytes of a page: a power of two from 4096 to 65536.
    pub page_bytes: u32,
    /// Bytes of a segment, the unit in which partitions grow and shrink: a power of two that holds
    /// at least one set. 2 MiB, one huge page, unless a cache is to be tiny.
    pub segment_bytes: u64,
    /// How I/O reaches files.
    pub engine: Engine,
    /// Bytes of `memory_max_bytes` set aside for buffers, rings and bounce pages. None: an eighth,
    /// from 1.75 MiB to 128 MiB.
    ///
    /// - Bounce pages, in which writes travel: an eighth of it, when the cache is made.
    /// - I/O rings of 24 KiB: one for the cleaner and one for each [`crate::Queue`]; one for each
    ///   core in mode `message`; and those that blocking calls share, as many as have ever run at a
    ///   time, but no more than 64 or an eighth of it. Threads cost nothing: see [`crate::Cache`].
    /// - The rest: [`crate::Cache::buffer`], recordings, and long rounds of write-back.
    ///
    /// Where it is used up, [`crate::Cache::queue`] fails and [`crate::Cache::buffer`] gives none.
    /// Blocking calls neither fail nor wait for others' rings.
    pub buffers_max_bytes: Option<u64>,
    /// Whether the cache runs its own cleaner thread. Without it dirty pages are written by syncs
    /// alone (and by [`crate::Cache::clean`]).
    pub background: bool,
    /// Whether partitions are resized by what memory is worth to them. Without `background` they
    /// are not.
    pub reaper: bool,
    /// What the system says about its memory, where `memory_max_bytes` is to yield to it. None: it
    /// does not.
    pub pressure: Option<PressureSource>,
    /// The machine's nodes, or made-up ones.
    pub topology: TopologySource,
    /// How they are used, where there are more than one.
    pub numa: NumaMode,
    /// What mode `replicate` does.
    pub replication: Replication,
    /// What distance between emulated nodes costs. None: nothing.
    pub remote_cost: Option<RemoteCost>,
    /// The secret that places pages. None: from the kernel. Tests that must repeat give one.
    pub seed: Option<u64>,
    /// Tests only: the pages of an object meet in one set, with one fingerprint.
    #[doc(hidden)]
    pub pages_meet: bool,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            memory_max_bytes: 64 << 20,
            page_bytes: 4096,
            segment_bytes: 2 << 20,
            engine: Engine::Auto,
            buffers_max_bytes: None,
            background: true,
            reaper: true,
            pressure: None,
            topology: TopologySource::default(),
            numa: NumaMode::default(),
            replication: Replication::default(),
            remote_cost: None,
            seed: None,
            pages_meet: false,
        }
    }
}

impl CacheConfig {
    /// Checks the values against each other.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |message: String| Err(Error::Config(message));
        if !self.page_bytes.is_power_of_two() || !(4096..=PAGE_BYTES_MAX as u32).contains(&self.page_bytes) {
            return wrong(format!(
                "page_bytes is {}: a power of two from 4096 to 65536 is needed",
                self.page_bytes
            ));
        }
        let set_bytes = self.page_bytes as u64 * WAYS as u64;
        if !self.segment_bytes.is_power_of_two()
            || self.segment_bytes < set_bytes
            || self.segment_bytes > set_bytes << 6
        {
            return wrong(format!(
                "segment_bytes is {}: a power of two from {} (one set) to {} is needed",
                self.segment_bytes,
                set_bytes,
                set_bytes << 6
            ));
        }
        if self.memory_max_bytes > 1 << 46 {
            return wrong(format!(
                "memory_max_bytes is {}: more than any machine has",
                self.memory_max_bytes
            ));
        }
        if let Some(buffers) = self.buffers_max_bytes
            && buffers > self.memory_max_bytes
        {
            return wrong(format!("buffers_max_bytes is {buffers}: more than memory_max_bytes"));
        }
        self.replication.check().map_err(Error::Config)?;
        self.topology.check().map_err(Error::Config)
    }

    /// Bytes set aside for buffers, rings and bounce pages.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        let least = 7 << 18;
        self.buffers_max_bytes.unwrap_or_else(|| (self.memory_max_bytes / 8).clamp(least, 128 << 20))
    }
}

/// When a write is replied to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// When the store has it (not necessarily durable: that is what a sync is for).
    #[default]
    Writethrough,
    /// When the page has it; the store gets it later.
    Writeback,
}

impl CacheMode {
    /// The name that configurations use.
    pub const fn name(self) -> &'static str {
        match self {
            CacheMode::Writethrough => "writethrough",
            CacheMode::Writeback => "writeback",
        }
    }
}

/// What a partition is made with.
#[derive(Clone, Debug)]
pub struct PartitionConfig {
    /// For people; unique in its cache, and as [`crate::check_name`] demands.
    pub name: String,
    /// Which page leaves when one comes.
    pub policy: PolicyName,
    /// When writes are replied to.
    pub cache_mode: CacheMode,
    /// Bytes of frames and metadata at most. None: as much as there is.
    pub max_bytes: Option<u64>,
    /// Bytes of frames and metadata to begin with, if there is as much. None: `max_bytes`.
    pub start_bytes: Option<u64>,
    /// Bytes that are never taken from it.
    pub min_bytes: u64,
    /// Bytes that are taken from it last.
    pub low_bytes: u64,
    /// Bytes beyond which it has only what nobody else can use. None: no such bound.
    pub high_bytes: Option<u64>,
    /// What its misses count for against others', from 1 to 10 000.
    pub weight: u32,
    /// Most bytes of dirty pages. None: 40 % of the frames.
    pub dirty_max_bytes: Option<u64>,
    /// Most bytes that are read ahead of a stream of reads at a time. 0: nothing is read that
    /// nobody asked for.
    pub read_ahead_max_bytes: u64,
    /// The node where all its pages lie, by the machine's number. None: they are divided among the
    /// nodes, in modes that know nodes.
    pub node: Option<u32>,
}

impl PartitionConfig {
    /// Its limits.
    pub fn limits(&self) -> Limits {
        let bound = |bytes: Option<u64>| bytes.unwrap_or(octavo_share::UNLIMITED);
        Limits {
            min_bytes: self.min_bytes,
            low_bytes: self.low_bytes,
            high_bytes: bound(self.high_bytes),
            max_bytes: bound(self.max_bytes),
            weight: self.weight,
        }
    }

    /// The defaults, under a name.
    pub fn new(name: &str) -> Self {
        PartitionConfig {
            name: name.into(),
            policy: PolicyName::default(),
            cache_mode: CacheMode::default(),
            max_bytes: None,
            start_bytes: None,
            min_bytes: 0,
            low_bytes: 0,
            high_bytes: None,
            weight: octavo_share::WEIGHT_DEFAULT,
            dirty_max_bytes: None,
            read_ahead_max_bytes: 0,
            node: None,
        }
    }
}
