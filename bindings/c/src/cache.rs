//! Caches.

use std::ffi::{c_char, c_int};

use octavo::disk::Engine;
use octavo::numa::NumaMode;
use octavo::{Cache, CacheConfig};

use crate::call::{call, given, optional_text, quietly, text};
use crate::error::Failure;
use crate::versioned::{self, Versioned};

/// A cache with a hard limit on its memory. Any thread may use it.
#[derive(Debug)]
pub struct octavo_cache(pub(crate) Cache);

/// The configuration of a cache. Set `size`; zero in any other member means the default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct octavo_cache_config {
    /// `sizeof(octavo_cache_config)`.
    pub size: usize,
    /// Hard limit on all memory, in bytes: pages, metadata, buffers in flight. Default: 64 MiB.
    pub memory_max_bytes: u64,
    /// Most bytes of the limit for buffers, rings and writes under way. Default: an eighth.
    pub buffers_max_bytes: u64,
    /// Segment size in bytes, the unit in which partitions grow and shrink: a power of two from
    /// 32,768 to 1 GiB. Default: 2 MiB; smaller only for a tiny cache.
    pub segment_bytes: u64,
    /// Page size in bytes of partitions that set none of their own: a power of two from 4,096 to
    /// 1,048,576. Default: 4,096.
    pub page_bytes: u32,
    /// Not zero: no thread writes dirty pages back or moves memory between partitions. Only syncs
    /// write then.
    pub no_background: u32,
    /// How the cache uses NUMA nodes: "off" (the default), "partition", "message", "replicate" or
    /// "auto".
    pub numa: *const c_char,
    /// How I/O reaches files: "auto" (the default), "io_uring" or "blocking".
    pub io_engine: *const c_char,
}

// SAFETY: `repr(C)`; integers and addresses; two members of 32 bits follow each other.
unsafe impl Versioned for octavo_cache_config {
    const NAME: &'static str = "octavo_cache_config";
    const SIZE_MIN: usize = 56;
}

const _: () = assert!(size_of::<octavo_cache_config>() == 56);

fn numa_of(name: &str) -> Result<NumaMode, Failure> {
    let known = NumaMode::ALL.into_iter().find(|mode| mode.name() == name);
    known.ok_or_else(|| {
        Failure::invalid(format!("numa is \"{name}\": off, partition, message, replicate or auto is needed"))
    })
}

fn engine_of(name: &str) -> Result<Engine, Failure> {
    match name {
        "auto" => Ok(Engine::Auto),
        "io_uring" => Ok(Engine::Uring),
        "blocking" => Ok(Engine::Blocking),
        _ => Err(Failure::invalid(format!("io_engine is \"{name}\": auto, io_uring or blocking is needed"))),
    }
}

/// # Safety
/// As [`octavo_cache_new`].
unsafe fn config_of(config: *const octavo_cache_config) -> Result<CacheConfig, Failure> {
    // SAFETY: the caller's promise.
    let asked = unsafe { versioned::read(config) }?;
    let mut config = CacheConfig::default();
    let set = |value: u64| (value != 0).then_some(value);
    config.memory_max_bytes = set(asked.memory_max_bytes).unwrap_or(config.memory_max_bytes);
    config.buffers_max_bytes = set(asked.buffers_max_bytes);
    config.segment_bytes = set(asked.segment_bytes).unwrap_or(config.segment_bytes);
    config.page_bytes = if asked.page_bytes == 0 { config.page_bytes } else { asked.page_bytes };
    config.background = asked.no_background == 0;
    // SAFETY: the caller's promise.
    if let Some(name) = unsafe { optional_text(asked.numa, "numa") }? {
        config.numa = numa_of(name)?;
    }
    // SAFETY: as above.
    if let Some(name) = unsafe { optional_text(asked.io_engine, "io_engine") }? {
        config.engine = engine_of(name)?;
    }
    Ok(config)
}

/// Creates a cache. A null `config` stands for the default. On success, `*cache` is the caller's to
/// free.
///
/// Errors: `OCTAVO_EINVALID`, `OCTAVO_ENOMEMORY`.
///
/// # Safety
/// Strings end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_cache_new(
    config: *const octavo_cache_config,
    cache: Option<&mut *mut octavo_cache>,
) -> c_int {
    call(|| {
        let cache = given(cache, "cache")?;
        *cache = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        let config = unsafe { config_of(config) }?;
        *cache = Box::into_raw(Box::new(octavo_cache(Cache::new(config)?)));
        Ok(())
    })
}

/// Gives up a handle of a cache. The cache itself ends with the last handle of it or of anything in
/// it: partitions, objects, queues. Dirty pages that were not synced are lost with it.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_cache_free(cache: Option<Box<octavo_cache>>) {
    quietly(|| drop(cache));
}

/// Writes all dirty pages of all partitions to their stores. Makes nothing durable.
///
/// Errors: `OCTAVO_EIO`, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_cache_clean(cache: Option<&octavo_cache>) -> c_int {
    call(|| Ok(given(cache, "cache")?.0.clean()?))
}

/// Removes a partition that has no open objects. Its memory serves the others.
///
/// Errors: `OCTAVO_EINVALID` if there is no such partition, or it has open objects.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_partition_remove(cache: Option<&octavo_cache>, name: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "name") }?;
        Ok(given(cache, "cache")?.0.remove_partition(name)?)
    })
}
