//! Figures: what was counted, and what is now.

/// Pages that left, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// For another page.
    pub capacity: u64,
    /// Because the partition changed its size.
    pub resize: u64,
    /// Because their range was discarded, zeroed or cut off, or their object closed.
    pub discard: u64,
    /// Because a write went to another slot or past a pinned page.
    pub write: u64,
}

/// Figures of a partition. Hits and misses count pages of requests; requests count calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionStat {
    /// Its name.
    pub name: String,
    /// Its policy.
    pub policy: &'static str,
    /// Its mode of writing.
    pub cache_mode: &'static str,
    /// Pages that were there.
    pub hits: u64,
    /// Pages that were not.
    pub misses: u64,
    /// Pages read from a store into a slot.
    pub fills: u64,
    /// Pages served past the cache, because their set had no place.
    pub bypasses: u64,
    /// Pages that left.
    pub evictions: Evictions,
    /// Dirty pages written back.
    pub writebacks: u64,
    /// The I/Os that took.
    pub writeback_ios: u64,
    /// Pages that could not be read.
    pub read_errors: u64,
    /// I/Os that could not be written.
    pub write_errors: u64,
    /// Syncs that a store refused.
    pub sync_errors: u64,
    /// Misses of pages that their set remembered.
    pub ghost_hits: u64,
    /// Pages that were read ahead and asked for then.
    pub ahead_used: u64,
    /// Pages that were read ahead and left before anybody asked for them.
    pub ahead_wasted: u64,
    /// Bytes of pages in slots.
    pub resident_bytes: u64,
    /// Bytes of dirty pages.
    pub dirty_bytes: u64,
    /// Most bytes of dirty pages.
    pub dirty_max_bytes: u64,
    /// Bytes of frames.
    pub max_bytes: u64,
    /// Bytes of frames and metadata, as charged to the cache.
    pub charged_bytes: u64,
    /// Read requests.
    pub requests_read: u64,
    /// Write requests.
    pub requests_write: u64,
    /// Syncs.
    pub requests_sync: u64,
    /// Bytes read by requests.
    pub read_bytes: u64,
    /// Bytes written by requests.
    pub written_bytes: u64,
}

/// Figures of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectStat {
    /// Its name.
    pub name: String,
    /// Its length.
    pub len_bytes: u64,
    /// Bytes of its dirty pages.
    pub dirty_bytes: u64,
    /// A sync of its store failed; see [`crate::Error::Failed`].
    pub failed: bool,
    /// The last error of a write-back, while pages may still be waiting for one.
    pub writeback_error: Option<String>,
}

/// Figures of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// The bound.
    pub memory_max_bytes: u64,
    /// What is charged to it, the reserve for buffers included.
    pub memory_charged_bytes: u64,
    /// The reserve for buffers, rings and bounce pages.
    pub buffers_max_bytes: u64,
    /// What of it is in use.
    pub buffers_used_bytes: u64,
    /// How I/O reaches files.
    pub io_engine: &'static str,
}
