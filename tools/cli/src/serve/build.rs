//! What the engine makes of the sections of a configuration: the cache, the settings of a
//! partition and of a group, and the store of an export.

use octavo::numa::TopologySource;
use octavo::{Cache, CacheConfig, Limits, Object, Partition, PartitionConfig, UNLIMITED, disk};

use super::format;
use crate::config::{Config, ExportSection, GroupSection, PartitionSection, bytes, check};
use crate::error::Error;
use crate::limits::READ_AHEAD_DEFAULT_BYTES;
use crate::own;
use crate::remotes::Remotes;

/// Opens the stores of exports.
#[derive(Clone, Copy)]
pub struct Opener<'a> {
    /// Reaches objects of S3.
    pub remotes: &'a Remotes,
    /// Whether files and devices are claimed. False: only a check.
    pub claims: bool,
    /// Whether a server has served the same files as raw disks before.
    pub was_served: bool,
}

/// Creates the cache of a configuration, without partitions.
pub fn cache(config: &Config, topology: Option<TopologySource>) -> Result<Cache, Error> {
    let section = &config.cache;
    let defaults = CacheConfig::default();
    let cache = Cache::new(CacheConfig {
        memory_max_bytes: section.memory_max.get_ref().0,
        // Checked to be at most 1 MiB.
        page_bytes: bytes(&section.page_bytes).map_or(defaults.page_bytes, |bytes| bytes as u32),
        engine: section.io.as_ref().map_or(defaults.engine, |io| io.0),
        buffers_max_bytes: bytes(&section.buffers_max),
        reaper: section.reaper.unwrap_or(true),
        topology: topology.or(section.topology.as_ref().map(|given| given.0)).unwrap_or_default(),
        numa: section.numa.as_ref().map_or(defaults.numa, |mode| mode.0),
        replication: section.replication(),
        pressure: section.yields.unwrap_or(true).then(octavo::pressure::PressureSource::linux),
        ..defaults
    });
    cache.map_err(|error| match (&error, &section.buffers_max) {
        (octavo::Error::NoMemory { .. }, Some(buffers)) => config.refused(buffers, error.to_string()),
        _ => config.refused(&section.memory_max, error.to_string()),
    })
}

/// The limits of a group.
pub fn group_limits(section: &GroupSection) -> Limits {
    Limits {
        min_bytes: bytes(&section.min).unwrap_or(0),
        low_bytes: bytes(&section.low).unwrap_or(0),
        high_bytes: bytes(&section.high).unwrap_or(UNLIMITED),
        max_bytes: bytes(&section.max).unwrap_or(UNLIMITED),
        weight: section.weight.as_ref().map_or(Limits::default().weight, |weight| weight.get_ref().0 as u32),
    }
}

/// How the memory is divided at the start. Only the partitions of a cache that has none are divided
/// so; one that is added later starts with what the others give it.
pub struct Shares {
    share_bytes: u64,
    left_bytes: u64,
    given_bytes: u64,
}

impl Shares {
    /// Divides the memory of a cache without partitions.
    pub fn new(cache: &Cache, sections: &[PartitionSection]) -> Shares {
        // Partitions without a `max` get equal shares of the memory that those with a `max` leave.
        let stat = cache.stat();
        let left_bytes = stat.memory_max_bytes.saturating_sub(stat.memory_charged_bytes);
        let given_bytes: u64 = sections.iter().filter_map(|section| bytes(&section.max)).sum();
        let sharing = sections.iter().filter(|section| section.max.is_none()).count() as u64;
        let share_bytes = left_bytes.saturating_sub(given_bytes) / sharing.max(1);
        Shares { share_bytes, left_bytes, given_bytes }
    }

    /// The bytes that a partition starts with.
    fn of(&self, section: &PartitionSection) -> u64 {
        let (left, given) = (self.left_bytes, self.given_bytes);
        // The sum of all `max` may exceed the memory. Each partition then starts with a share of
        // the memory in proportion to its `max`.
        let scaled = |bytes: u64| match given > left {
            true => (u128::from(bytes) * u128::from(left) / u128::from(given.max(1))) as u64,
            false => bytes,
        };
        bytes(&section.max).map_or(self.share_bytes, scaled)
    }
}

/// The settings of a partition.
pub fn partition(section: &PartitionSection, shares: Option<&Shares>) -> PartitionConfig {
    let defaults = PartitionConfig::new(section.name.get_ref());
    let min_bytes = bytes(&section.min).unwrap_or(0);
    PartitionConfig {
        policy: section.policy.as_ref().map_or(defaults.policy, |policy| policy.0),
        cache_mode: section.cache_mode.as_ref().map_or(defaults.cache_mode, |mode| mode.get_ref().0),
        // Checked to be at most 1 MiB.
        page_bytes: bytes(&section.page_bytes).map(|bytes| bytes as u32),
        max_bytes: bytes(&section.max),
        start_bytes: shares.map(|shares| shares.of(section).max(min_bytes)),
        min_bytes,
        low_bytes: bytes(&section.low).unwrap_or(0),
        high_bytes: bytes(&section.high),
        weight: section.weight.as_ref().map_or(defaults.weight, |weight| weight.get_ref().0 as u32),
        read_ahead_max_bytes: bytes(&section.read_ahead).unwrap_or(READ_AHEAD_DEFAULT_BYTES),
        node: section.node.as_ref().map(|node| node.get_ref().0 as u32),
        dirty_max_bytes: bytes(&section.dirty_max),
        ..defaults
    }
}

/// Opens the object of an export under a name. The error is a sentence.
pub fn object(
    section: &ExportSection,
    name: &str,
    partition: &Partition,
    opener: Opener<'_>,
) -> Result<Object, String> {
    let store = store(section, opener)?;
    partition.open(store, name).map_err(|error| error.to_string())
}

/// Opens the store of an export. The error is a sentence.
pub fn store(section: &ExportSection, opener: Opener<'_>) -> Result<disk::Store, String> {
    let is_checked = section.format.is_none() && !opener.was_served;
    if let Some(address) = section.address() {
        return match section.read_only {
            true => opener.remotes.open(&address?),
            false => Err(check::READ_ONLY.into()),
        };
    }
    let path = section.path.get_ref();
    own::check(path).map_err(|why| format!("{} {why}", path.display()))?;
    let open = if opener.claims { disk::Store::open } else { disk::Store::rehearse };
    let options = disk::OpenOptions { read_only: section.read_only, ..disk::OpenOptions::default() };
    let store = open(path, &options).map_err(|error| match error {
        disk::OpenError::Permission { .. } | disk::OpenError::ReadOnlyDevice { .. } if !section.read_only => {
            format!("{error}; to serve it for reading only: read_only = true")
        }
        _ => error.to_string(),
    })?;
    if is_checked {
        format::check_file(path, store.len_bytes())?;
    }
    Ok(store)
}
