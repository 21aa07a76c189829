//! Statistics of caches, partitions and objects: plain structs. Counts only grow; sizes are
//! those of the moment. Not here: how requests are counted (`state/counters.rs`), statistics of
//! nodes (`numa/figures.rs`).

/// Pages that left the cache, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// To make room for another page.
    pub capacity: u64,
    /// Because the partition changed its size.
    pub resize: u64,
    /// Because their range was discarded, zeroed or cut off, or their object was closed.
    pub discard: u64,
    /// Because a write put the page into another slot, or bypassed a pinned page.
    pub write: u64,
}

/// Statistics of a partition. Hits and misses count pages of requests; `requests_*` count calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionStat {
    /// The partition's name.
    pub name: String,
    /// Name of the current eviction policy.
    pub policy: &'static str,
    /// Name of the write mode: `writethrough` or `writeback`.
    pub cache_mode: &'static str,
    /// Pages of requests that were resident.
    pub hits: u64,
    /// Pages of requests that were not resident.
    pub misses: u64,
    /// Pages read from a store into a slot.
    pub fills: u64,
    /// Pages served without a slot, because their set had no free way.
    pub bypasses: u64,
    /// Pages that left the cache, by reason.
    pub evictions: Evictions,
    /// Dirty pages written back.
    pub writebacks: u64,
    /// I/Os that wrote them back.
    pub writeback_ios: u64,
    /// Pages that could not be read.
    pub read_errors: u64,
    /// Write I/Os that failed.
    pub write_errors: u64,
    /// Syncs that failed at the store.
    pub sync_errors: u64,
    /// Misses of pages that their set still remembered as ghosts.
    pub ghost_hits: u64,
    /// Pages that were read ahead and then requested.
    pub ahead_used: u64,
    /// Pages that were read ahead and left before any request for them.
    pub ahead_wasted: u64,
    /// Bytes of resident pages.
    pub resident_bytes: u64,
    /// Bytes of dirty pages.
    pub dirty_bytes: u64,
    /// Age in milliseconds of the oldest dirty byte that is not yet written; 0 if there is none. An
    /// upper bound: too high by ten seconds at most while the stores take dirty pages, and exact to
    /// ten seconds while they do not. Without a cleaner ([`crate::CacheConfig::background`]), the
    /// time since the last sync.
    pub dirty_oldest_ms: u64,
    /// Most bytes of dirty pages; beyond, writes go to the store first.
    pub dirty_max_bytes: u64,
    /// Bytes of frames.
    pub max_bytes: u64,
    /// Bytes of frames and metadata charged to the cache.
    pub charged_bytes: u64,
    /// Read requests.
    pub requests_read: u64,
    /// Write requests.
    pub requests_write: u64,
    /// Sync requests.
    pub requests_sync: u64,
    /// Bytes read by requests.
    pub read_bytes: u64,
    /// Bytes written by requests.
    pub written_bytes: u64,
}

/// Statistics of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectStat {
    /// The object's name.
    pub name: String,
    /// The object's length in bytes.
    pub len_bytes: u64,
    /// Bytes of the object's dirty pages.
    pub dirty_bytes: u64,
    /// Whether a sync of the store has failed; see [`crate::Error::Failed`].
    pub failed: bool,
    /// The most recent write-back error, until all dirty pages could be written.
    pub writeback_error: Option<String>,
}

/// Statistics of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// The memory limit, in bytes.
    pub memory_max_bytes: u64,
    /// Bytes charged to the limit, including the part of the buffer share that is set aside.
    pub memory_charged_bytes: u64,
    /// The buffer share in bytes: the most for buffers, rings and bounce pages.
    pub buffers_max_bytes: u64,
    /// Bytes of the buffer share in use.
    pub buffers_used_bytes: u64,
    /// I/O rings, each with a descriptor and [`Queue::CHARGED_BYTES`](crate::Queue::CHARGED_BYTES)
    /// of the buffer share: those of queues, and the cache's own. The cache makes its own when
    /// blocking calls and changes of size need them, and keeps them.
    pub rings: u64,
    /// Queues.
    pub queues: u64,
    /// Name of the interface through which I/O reaches files.
    pub io_engine: &'static str,
}
