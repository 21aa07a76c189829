//! What a tier counts.

use std::sync::atomic::AtomicU64;

/// What a [`Tier`](super::Tier) has done since it was opened, and what it has now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStat {
    /// Blocks that were found, read and checked.
    pub hits: u64,
    /// Blocks that were not returned, for whatever reason.
    pub misses: u64,
    /// Blocks that failed a check. They were deleted.
    pub corrupt: u64,
    /// Blocks that were evicted for others.
    pub evicted: u64,
    /// Blocks that were written.
    pub written: u64,
    /// Blocks that were not written, because the disk was busy or full, or the places where they
    /// could be were in use; and reads that were not tried because the disk was busy.
    pub dropped: u64,
    /// Reads and writes that the file system refused.
    pub io_errors: u64,
    /// Times that the disk had no room for more.
    pub disk_full: u64,
    /// Blocks that are present now.
    pub blocks: u64,
    /// Blocks for which there is room.
    pub blocks_max: u64,
    /// Bytes of disk that the files take now.
    pub bytes: u64,
    /// The setting: most bytes of disk.
    pub max_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub corrupt: AtomicU64,
    pub evicted: AtomicU64,
    pub written: AtomicU64,
    pub dropped: AtomicU64,
    pub io_errors: AtomicU64,
    pub blocks: AtomicU64,
}
