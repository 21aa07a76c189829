//! Statistics. Counts only grow; sizes are those of the moment. Set `size` before each call.

use std::ffi::c_int;

use crate::cache::octavo_cache;
use crate::call::{call, given};
use crate::object::octavo_object;
use crate::partition::octavo_partition;
use crate::versioned::{self, Versioned};

/// Statistics of a cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct octavo_cache_stat {
    /// `sizeof(octavo_cache_stat)`.
    pub size: usize,
    /// The memory limit, in bytes.
    pub memory_max_bytes: u64,
    /// Bytes charged to the limit.
    pub memory_charged_bytes: u64,
    /// The most for buffers, rings and writes under way, in bytes.
    pub buffers_max_bytes: u64,
    /// Bytes of it in use.
    pub buffers_used_bytes: u64,
    /// I/O rings, each with a descriptor.
    pub rings: u64,
    /// Queues.
    pub queues: u64,
}

// SAFETY: `repr(C)`; only 64-bit integers.
unsafe impl Versioned for octavo_cache_stat {
    const NAME: &'static str = "octavo_cache_stat";
    const SIZE_MIN: usize = 56;
}

const _: () = assert!(size_of::<octavo_cache_stat>() == 56);

/// Statistics of a partition. Hits and misses count pages of requests; `requests_*` count calls.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct octavo_partition_stat {
    /// `sizeof(octavo_partition_stat)`.
    pub size: usize,
    /// Pages of requests that were in the cache.
    pub hits: u64,
    /// Pages of requests that were not.
    pub misses: u64,
    /// Pages read from a store into the cache.
    pub fills: u64,
    /// Pages served without a place in the cache.
    pub bypasses: u64,
    /// Pages evicted to make room for another.
    pub evictions_capacity: u64,
    /// Pages evicted because the partition changed its size.
    pub evictions_resize: u64,
    /// Pages that left because their range was discarded or cut off, or their object closed.
    pub evictions_discard: u64,
    /// Pages that left because a write took another place.
    pub evictions_write: u64,
    /// Dirty pages written back.
    pub writebacks: u64,
    /// I/Os that wrote them.
    pub writeback_ios: u64,
    /// Pages that could not be read.
    pub read_errors: u64,
    /// Writes to stores that failed.
    pub write_errors: u64,
    /// Syncs that failed.
    pub sync_errors: u64,
    /// Misses of pages that were evicted a short time ago.
    pub ghost_hits: u64,
    /// Pages that were read ahead and then requested.
    pub ahead_used: u64,
    /// Pages that were read ahead and left unused.
    pub ahead_wasted: u64,
    /// Bytes of pages in the cache.
    pub resident_bytes: u64,
    /// Bytes of dirty pages.
    pub dirty_bytes: u64,
    /// Most bytes of dirty pages.
    pub dirty_max_bytes: u64,
    /// Bytes that there is room for.
    pub max_bytes: u64,
    /// Bytes of pages and metadata charged to the cache.
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

// SAFETY: as above.
unsafe impl Versioned for octavo_partition_stat {
    const NAME: &'static str = "octavo_partition_stat";
    const SIZE_MIN: usize = 216;
}

const _: () = assert!(size_of::<octavo_partition_stat>() == 216);

/// Statistics of an object.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct octavo_object_stat {
    /// `sizeof(octavo_object_stat)`.
    pub size: usize,
    /// The object's length in bytes.
    pub len_bytes: u64,
    /// Bytes of its dirty pages.
    pub dirty_bytes: u64,
    /// Not zero: a sync of its store has failed (`OCTAVO_EFAILED`).
    pub failed: u64,
}

// SAFETY: as above.
unsafe impl Versioned for octavo_object_stat {
    const NAME: &'static str = "octavo_object_stat";
    const SIZE_MIN: usize = 32;
}

const _: () = assert!(size_of::<octavo_object_stat>() == 32);

/// Fills in the statistics of a cache.
///
/// # Safety
/// `stat` has as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_cache_get_stat(
    cache: Option<&octavo_cache>,
    stat: *mut octavo_cache_stat,
) -> c_int {
    call(|| {
        let now = given(cache, "cache")?.0.stat();
        let shown = octavo_cache_stat {
            size: 0,
            memory_max_bytes: now.memory_max_bytes,
            memory_charged_bytes: now.memory_charged_bytes,
            buffers_max_bytes: now.buffers_max_bytes,
            buffers_used_bytes: now.buffers_used_bytes,
            rings: now.rings,
            queues: now.queues,
        };
        // SAFETY: the caller's promise.
        unsafe { versioned::write(stat, &shown) }
    })
}

/// Fills in the statistics of a partition.
///
/// # Safety
/// `stat` has as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_partition_get_stat(
    partition: Option<&octavo_partition>,
    stat: *mut octavo_partition_stat,
) -> c_int {
    call(|| {
        let now = given(partition, "partition")?.0.stat();
        let shown = octavo_partition_stat {
            size: 0,
            hits: now.hits,
            misses: now.misses,
            fills: now.fills,
            bypasses: now.bypasses,
            evictions_capacity: now.evictions.capacity,
            evictions_resize: now.evictions.resize,
            evictions_discard: now.evictions.discard,
            evictions_write: now.evictions.write,
            writebacks: now.writebacks,
            writeback_ios: now.writeback_ios,
            read_errors: now.read_errors,
            write_errors: now.write_errors,
            sync_errors: now.sync_errors,
            ghost_hits: now.ghost_hits,
            ahead_used: now.ahead_used,
            ahead_wasted: now.ahead_wasted,
            resident_bytes: now.resident_bytes,
            dirty_bytes: now.dirty_bytes,
            dirty_max_bytes: now.dirty_max_bytes,
            max_bytes: now.max_bytes,
            charged_bytes: now.charged_bytes,
            requests_read: now.requests_read,
            requests_write: now.requests_write,
            requests_sync: now.requests_sync,
            read_bytes: now.read_bytes,
            written_bytes: now.written_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { versioned::write(stat, &shown) }
    })
}

/// Fills in the statistics of an object.
///
/// # Safety
/// `stat` has as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_object_get_stat(
    object: Option<&octavo_object>,
    stat: *mut octavo_object_stat,
) -> c_int {
    call(|| {
        let now = given(object, "object")?.0.stat();
        let shown = octavo_object_stat {
            size: 0,
            len_bytes: now.len_bytes,
            dirty_bytes: now.dirty_bytes,
            failed: u64::from(now.failed),
        };
        // SAFETY: the caller's promise.
        unsafe { versioned::write(stat, &shown) }
    })
}
