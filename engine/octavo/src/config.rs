//! Configurations of a cache and its partitions: plain structs, checked by `validate`.
//!
//! Not here: configuration files (front ends read them), changes at run time (`api`).

use octavo_disk::Engine;
pub use octavo_share::Limits;
pub use octavo_table::PolicyKind as PolicyName;

use crate::error::Error;
use crate::memory::BouncePools;
use crate::numa::{NumaMode, RemoteCost, Replication, TopologySource};
use crate::position::PageSize;
use crate::pressure::PressureSource;
use crate::ways::WAYS;

/// The largest [`CacheConfig::memory_max_bytes`].
pub(crate) const MEMORY_MAX_BYTES: u64 = 1 << 46;

/// The most sets of a segment.
const SEGMENT_SETS_MAX: u64 = 64;

/// The configuration of a cache. Every field has a default.
///
/// # The size of a cache
/// The `memory_max_bytes` that holds a working set whole, with pages of 4 KiB in one partition and
/// all other fields at their defaults ([`CacheConfig::fitting`] computes other cases):
///
/// | working set | `memory_max_bytes` | more than the working set |
/// |---|---|---|
/// | 32 MiB | 35 MiB | 9.4 % |
/// | 64 MiB | 69 MiB | 7.8 % |
/// | 128 MiB | 135 MiB | 5.5 % |
/// | 256 MiB | 271 MiB | 5.9 % |
/// | 512 MiB | 542 MiB | 5.9 % |
/// | 1 GiB | 1079 MiB | 5.4 % |
/// | 4 GiB | 4205 MiB | 2.7 % |
/// | 16 GiB | 16709 MiB | 2.0 % |
/// | 64 GiB | 66729 MiB | 1.8 % |
///
/// # Examples
/// ```
/// use octavo::CacheConfig;
/// let config = CacheConfig { memory_max_bytes: 256 << 20, ..CacheConfig::default() };
/// config.validate()?;
/// # Ok::<(), octavo::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Hard limit on all memory, in bytes: frames, metadata, buffers in flight. Default: 64 MiB.
    pub memory_max_bytes: u64,
    /// Page size in bytes of partitions that set none of their own
    /// ([`PartitionConfig::page_bytes`]): a power of two from 4,096 to 1,048,576. Default: 4,096.
    pub page_bytes: u32,
    /// Segment size in bytes, the unit in which partitions grow and shrink: a power of two from
    /// 32,768 to 1 GiB. A segment has 1 to 64 sets of 16 pages, so a partition whose pages ask for
    /// it takes larger or smaller segments: 16 MiB for pages of 1 MiB. Default: 2 MiB, one huge
    /// page; smaller only for a tiny cache.
    pub segment_bytes: u64,
    /// The interface through which I/O reaches files. Default: [`Engine::Auto`].
    pub engine: Engine,
    /// Most bytes of `memory_max_bytes` for buffers, rings and bounce pages (the *buffer share*).
    /// Default: `None`, an eighth of `memory_max_bytes`, at least 1.75 MiB and at most 128 MiB.
    ///
    /// A cache with a [`reaper`](Self::reaper) sets at most a quarter of the share aside, and lends
    /// the rest to pages. Buffers get the lent part back when they need it: partitions then shrink.
    /// Pages get it again about ten seconds after buffers last needed it. A cache without a reaper
    /// sets the whole share aside.
    ///
    /// - Bounce pages, which carry writes to the store, take an eighth of the share when the
    ///   cache is created, and a sixteenth (or two pages) for each further page size.
    /// - I/O rings take 24 KiB each. There is one for the cleaner, one per [`crate::Queue`], and
    ///   in mode `message` one per core. Blocking calls share as many as have ever run at the
    ///   same time, but at most 64, and at most an eighth of the share. Threads take nothing:
    ///   see [`crate::Cache`].
    /// - The rest is for [`crate::Cache::buffer`], recordings, and long rounds of write-back.
    ///
    /// While the share is used up, [`crate::Cache::queue`] fails and [`crate::Cache::buffer`]
    /// returns `None`. Blocking calls neither fail nor wait for other calls' rings. The `min`
    /// limits of partitions together cannot exceed what the whole share leaves.
    pub buffers_max_bytes: Option<u64>,
    /// Whether the cache runs a cleaner thread. Without it, only syncs and
    /// [`crate::Cache::clean`] write dirty pages back. Default: true.
    pub background: bool,
    /// Whether a reaper thread resizes partitions according to what memory is worth to them. It
    /// runs only together with `background`. Default: true.
    pub reaper: bool,
    /// Source of memory-pressure signals. When set, the cache shrinks below `memory_max_bytes`
    /// while the system is short of memory. Default: `None` (never shrinks).
    pub pressure: Option<PressureSource>,
    /// Source of the NUMA topology: the machine's nodes, or emulated ones. Default: the
    /// machine's.
    pub topology: TopologySource,
    /// How the cache uses the nodes, if there are several. Default: [`NumaMode::Off`].
    pub numa: NumaMode,
    /// Settings of mode `replicate`. Default: those that [`Replication`] names.
    pub replication: Replication,
    /// The cost of distance between emulated nodes. Default: `None` (distance costs nothing).
    pub remote_cost: Option<RemoteCost>,
    /// Seed of the keyed hash that places pages. Default: `None`, a secret from the kernel.
    /// Tests that must repeat set a seed.
    pub seed: Option<u64>,
    /// Tests only: all pages of an object fall into one set, with one fingerprint.
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
    /// Checks each value and the values against each other.
    ///
    /// # Errors
    /// [`Error::Config`], with a sentence that names the value and the range allowed.
    pub fn validate(&self) -> Result<(), Error> {
        let need = |is_met: bool, message: String| is_met.then_some(()).ok_or(Error::Config(message));
        let CacheConfig { page_bytes, segment_bytes, memory_max_bytes, .. } = *self;
        check_page_bytes(page_bytes).map_err(Error::Config)?;
        need(
            segment_bytes.is_power_of_two() && (1 << 15..=1 << 30).contains(&segment_bytes),
            format!("segment_bytes is {segment_bytes}: a power of two from 32768 to 1073741824 is needed"),
        )?;
        need(
            memory_max_bytes <= MEMORY_MAX_BYTES,
            format!(
                "memory_max_bytes is {memory_max_bytes}: at most {MEMORY_MAX_BYTES} (64 TiB) is possible"
            ),
        )?;
        let buffers = self.buffers_max_bytes.unwrap_or(0);
        need(
            buffers <= memory_max_bytes,
            format!(
                "buffers_max_bytes is {buffers}: at most memory_max_bytes, {memory_max_bytes}, is possible"
            ),
        )?;
        self.replication.check().map_err(Error::Config)?;
        self.topology.check().map_err(Error::Config)
    }

    /// Whether the cache resizes partitions on its own.
    pub(crate) fn reaps(&self) -> bool {
        self.reaper && self.background && !cfg!(shuttle)
    }

    /// Returns the part of the buffer share that is set aside for good: all, if no reaper could
    /// take memory back from pages. Otherwise the bounce pages, which writes need while every frame
    /// may be dirty, and what a few dozen rings and requests take: an eighth of the share less
    /// 512 KiB, at least 32 KiB. Caches of 32 MiB thus keep a segment more for pages.
    pub(crate) fn set_aside_bytes(&self) -> u64 {
        let share = self.reserve_bytes();
        if !self.reaps() {
            return share;
        }
        let bounces = BouncePools::first_bytes(share, self.page_bytes as usize);
        share.min(bounces + (share / 8).saturating_sub(512 << 10).max(32 << 10))
    }

    /// Returns the most bytes for buffers, rings and bounce pages.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        let least = 7 << 18;
        self.buffers_max_bytes.unwrap_or_else(|| (self.memory_max_bytes / 8).clamp(least, 128 << 20))
    }
}

/// Checks that pages may have this size. The error is the text of a message.
pub(crate) fn check_page_bytes(page_bytes: u32) -> Result<(), String> {
    let range = PageSize::BYTES_LEAST..=PageSize::BYTES_MOST;
    if page_bytes.is_power_of_two() && range.contains(&(page_bytes as usize)) {
        return Ok(());
    }
    Err(format!("page_bytes is {page_bytes}: a power of two from 4096 to 1048576 is needed"))
}

/// The sizes of a partition's pages and segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub page_bytes: u32,
    /// Bytes of a segment's frames.
    pub segment_bytes: u64,
}

impl Geometry {
    /// The sizes that a partition has in a cache. Both configurations are valid.
    pub fn of(cache: &CacheConfig, partition: &PartitionConfig) -> Geometry {
        let page_bytes = partition.page_bytes.unwrap_or(cache.page_bytes);
        let set_bytes = u64::from(page_bytes) * WAYS as u64;
        let segment_bytes = cache.segment_bytes.clamp(set_bytes, set_bytes * SEGMENT_SETS_MAX);
        Geometry { page_bytes, segment_bytes }
    }

    /// The pages of a segment.
    pub fn slots_per_segment(self) -> u64 {
        self.segment_bytes / u64::from(self.page_bytes)
    }
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// When the store has the bytes. They are durable only after a sync. The default.
    #[default]
    Writethrough,
    /// When the page has the bytes; the store gets them later.
    Writeback,
}

impl CacheMode {
    /// Returns the name that configuration files use.
    pub const fn name(self) -> &'static str {
        match self {
            CacheMode::Writethrough => "writethrough",
            CacheMode::Writeback => "writeback",
        }
    }
}

/// The configuration of a partition. [`PartitionConfig::new`] sets the defaults.
#[derive(Clone, Debug)]
pub struct PartitionConfig {
    /// Name for people, unique in its cache; see [`crate::check_name`] for its rules. Slashes
    /// separate the groups that the partition is in.
    pub name: String,
    /// Eviction policy: chooses the page that leaves when another arrives. Default: `octavo`.
    pub policy: PolicyName,
    /// When writes are acknowledged. Default: write-through.
    pub cache_mode: CacheMode,
    /// Page size in bytes: a power of two from 4,096 to 1,048,576. Small pages suit random reads;
    /// large ones suit stores that answer slowly and in large pieces, such as object storage. The
    /// smallest partition has one segment, which is 16 pages or more, and its metadata. Default:
    /// `None`, the cache's [`CacheConfig::page_bytes`].
    pub page_bytes: Option<u32>,
    /// Most bytes of frames and metadata: more than [`CacheConfig::segment_bytes`], which is frames
    /// alone. Default: `None` (no limit but the cache's).
    pub max_bytes: Option<u64>,
    /// Bytes of frames and metadata at the start, as far as they are available. Default: `None`,
    /// which means `max_bytes`.
    pub start_bytes: Option<u64>,
    /// Guaranteed size in bytes: the reaper never takes memory below it. Default: 0.
    pub min_bytes: u64,
    /// Protected size in bytes. The reaper takes memory below it only when every partition is
    /// already at or below its own `low_bytes`. Default: 0.
    pub low_bytes: u64,
    /// Size in bytes beyond which the partition holds only memory that no other partition can
    /// use. Default: `None` (no such limit).
    pub high_bytes: Option<u64>,
    /// Weight of the partition's misses against other partitions' misses: 1 to 10,000. Default:
    /// 100.
    pub weight: u32,
    /// Most bytes of dirty pages. Default: `None`, 40 % of the frames.
    pub dirty_max_bytes: Option<u64>,
    /// Most bytes to read ahead of a stream of sequential reads at a time. Default: 0 (no
    /// read-ahead).
    pub read_ahead_max_bytes: u64,
    /// Node that holds all pages, by the machine's node number. Default: `None`: modes that use
    /// nodes divide the pages among all of them.
    pub node: Option<u32>,
}

impl PartitionConfig {
    /// Returns the partition's limits; `None` becomes [`UNLIMITED`](crate::UNLIMITED).
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

    /// Returns the default configuration with the given name.
    pub fn new(name: &str) -> Self {
        PartitionConfig {
            name: name.into(),
            policy: PolicyName::default(),
            cache_mode: CacheMode::default(),
            page_bytes: None,
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
