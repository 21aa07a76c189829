//! Partitions: the caches of tenants.

use std::ffi::{c_char, c_int};

use octavo::{CacheMode, Partition, PartitionConfig, PolicyName, UNLIMITED};

use crate::cache::octavo_cache;
use crate::call::{call, given, optional_text, quietly, text};
use crate::error::Failure;
use crate::versioned::{self, Versioned};

/// The cache of a tenant, with a size, a policy and statistics of its own. Any thread may use it.
#[derive(Debug)]
pub struct octavo_partition(pub(crate) Partition);

/// A write is acknowledged when the store has the bytes.
pub const OCTAVO_WRITETHROUGH: u32 = 0;
/// A write is acknowledged when the page has the bytes; the store gets them later, or with a sync.
pub const OCTAVO_WRITEBACK: u32 = 1;

/// The configuration of a partition. Set `size`; zero in any other member means the default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct octavo_partition_config {
    /// `sizeof(octavo_partition_config)`.
    pub size: usize,
    /// The eviction policy: "octavo" (the default), "lru", "clock", "fifo", "lfu", "nrlfu", "car"
    /// or "mq".
    pub policy: *const c_char,
    /// `OCTAVO_WRITETHROUGH` (the default) or `OCTAVO_WRITEBACK`.
    pub cache_mode: u32,
    /// Page size in bytes: a power of two from 4,096 to 1,048,576. Default: the cache's.
    pub page_bytes: u32,
    /// Most bytes of pages and metadata. Default: no limit but the cache's.
    pub max_bytes: u64,
    /// Bytes of pages and metadata at the start, as far as they are available. Default:
    /// `max_bytes`.
    pub start_bytes: u64,
    /// Guaranteed size in bytes: no memory below it moves to other partitions. Default: 0.
    pub min_bytes: u64,
    /// Protected size in bytes: memory below it moves only when every partition is at its own.
    /// Default: 0.
    pub low_bytes: u64,
    /// Size in bytes beyond which the partition holds only memory that no other can use. Default:
    /// none.
    pub high_bytes: u64,
    /// Most bytes of dirty pages. Default: 40 % of the pages.
    pub dirty_max_bytes: u64,
    /// Most bytes to read ahead of sequential reads at a time. Default: 0, no read-ahead.
    pub read_ahead_max_bytes: u64,
    /// Weight of the partition's misses against those of others: 1 to 10,000. Default: 100.
    pub weight: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`; integers and addresses; members of 32 bits come in pairs.
unsafe impl Versioned for octavo_partition_config {
    const NAME: &'static str = "octavo_partition_config";
    const SIZE_MIN: usize = 88;
}

const _: () = assert!(size_of::<octavo_partition_config>() == 88);

/// # Safety
/// As [`octavo_partition_new`].
unsafe fn config_of(name: &str, config: *const octavo_partition_config) -> Result<PartitionConfig, Failure> {
    // SAFETY: the caller's promise.
    let asked = unsafe { versioned::read(config) }?;
    let set = |value: u64| (value != 0).then_some(value);
    let mut config = PartitionConfig::new(name);
    // SAFETY: the caller's promise.
    if let Some(policy) = unsafe { optional_text(asked.policy, "policy") }? {
        config.policy = policy.parse::<PolicyName>().map_err(|error| Failure::invalid(error.to_string()))?;
    }
    config.cache_mode = match asked.cache_mode {
        OCTAVO_WRITETHROUGH => CacheMode::Writethrough,
        OCTAVO_WRITEBACK => CacheMode::Writeback,
        other => {
            let names = "OCTAVO_WRITETHROUGH or OCTAVO_WRITEBACK";
            return Err(Failure::invalid(format!("cache_mode is {other}: {names} is needed")));
        }
    };
    if asked.reserved != 0 {
        return Err(Failure::invalid("reserved is not zero"));
    }
    config.page_bytes = (asked.page_bytes != 0).then_some(asked.page_bytes);
    config.max_bytes = set(asked.max_bytes);
    config.start_bytes = set(asked.start_bytes);
    config.min_bytes = asked.min_bytes;
    config.low_bytes = asked.low_bytes;
    config.high_bytes = set(asked.high_bytes);
    config.dirty_max_bytes = set(asked.dirty_max_bytes);
    config.read_ahead_max_bytes = asked.read_ahead_max_bytes;
    config.weight = if asked.weight == 0 { config.weight } else { asked.weight };
    Ok(config)
}

/// Creates a partition. `name` is unique in the cache. A null `config` stands for the default. On
/// success, `*partition` is the caller's to free.
///
/// Errors: `OCTAVO_EINVALID`, `OCTAVO_ENOMEMORY`, `OCTAVO_EFORK`.
///
/// # Safety
/// Strings end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_partition_new(
    cache: Option<&octavo_cache>,
    name: *const c_char,
    config: *const octavo_partition_config,
    partition: Option<&mut *mut octavo_partition>,
) -> c_int {
    call(|| {
        let partition = given(partition, "partition")?;
        *partition = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: as above.
        let config = unsafe { config_of(name, config) }?;
        let made = given(cache, "cache")?.0.partition(config)?;
        *partition = Box::into_raw(Box::new(octavo_partition(made)));
        Ok(())
    })
}

/// Gives up a handle of a partition. The partition stays in the cache: `octavo_partition_remove`
/// removes it.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_partition_free(partition: Option<Box<octavo_partition>>) {
    quietly(|| drop(partition));
}

/// Changes the most bytes of pages and metadata; 0 takes the limit away. Evicts as many pages as it
/// must.
///
/// Errors: `OCTAVO_EINVALID`, `OCTAVO_EIO` if dirty pages cannot be written, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_partition_set_max(partition: Option<&octavo_partition>, max_bytes: u64) -> c_int {
    call(|| {
        let partition = &given(partition, "partition")?.0;
        let mut limits = partition.limits();
        limits.max_bytes = if max_bytes == 0 { UNLIMITED } else { max_bytes };
        Ok(partition.set_limits(limits)?)
    })
}

/// Makes all acknowledged writes to the objects of the partition durable.
///
/// Errors: `OCTAVO_EIO`, `OCTAVO_EFAILED`, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_partition_sync(partition: Option<&octavo_partition>) -> c_int {
    call(|| Ok(given(partition, "partition")?.0.sync()?))
}

/// Writes dirty pages back, and evicts all pages that are not pinned.
///
/// Errors: `OCTAVO_EIO`, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_partition_evict(partition: Option<&octavo_partition>) -> c_int {
    call(|| Ok(given(partition, "partition")?.0.evict()?))
}

/// A point of a miss curve.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct octavo_curve_point {
    /// A size of the partition's pages, in bytes.
    pub bytes: u64,
    /// The estimated misses of recent page requests if the partition had this size. Older requests
    /// count less.
    pub misses: f64,
}

/// Estimates a partition's recent misses at other sizes, smallest size first. Fills at most `most`
/// points. `*count` becomes the number of points that there are: call it with `most` 0 to learn it,
/// or with 64 at once. `*references` (may be null) becomes the number of page requests that the
/// misses are a part of. There are no points until enough requests were made, and for policies that
/// learn nothing.
///
/// Errors: `OCTAVO_EINVALID`.
///
/// # Safety
/// `points` has room for `most` points, or is null and `most` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_partition_miss_curve(
    partition: Option<&octavo_partition>,
    points: *mut octavo_curve_point,
    most: usize,
    count: Option<&mut usize>,
    references: Option<&mut f64>,
) -> c_int {
    call(|| {
        let partition = &given(partition, "partition")?.0;
        let count = given(count, "count")?;
        let curve = partition.miss_curve();
        let known = curve.as_ref().map_or(&[][..], |curve| &curve.points);
        *count = known.len();
        if let Some(references) = references {
            *references = curve.as_ref().map_or(0.0, |curve| curve.references);
        }
        if points.is_null() && most > 0 {
            return Err(Failure::invalid("points is a null pointer"));
        }
        let page_bytes = partition.page_bytes();
        for (number, &(pages, misses)) in known.iter().take(most).enumerate() {
            let point = octavo_curve_point { bytes: pages * page_bytes, misses };
            // SAFETY: inside the room for `most` points.
            let at = unsafe { points.add(number) };
            // SAFETY: as above.
            unsafe { at.write(point) };
        }
        Ok(())
    })
}
