//! The cache, the partitions and the exports that a configuration describes.

use std::path::Path;
use std::sync::Arc;

use octavo::numa::TopologySource;
use octavo::{Cache, CacheConfig, Limits, Object, Partition, PartitionConfig, UNLIMITED, disk};
use octavo_block::Export;
use toml::Spanned;

use crate::config::{Config, ExportSection, PartitionSection, bytes};
use crate::control::recorders::{self, Recorders};
use crate::error::Error;

/// The most bytes that are read ahead of a stream by default, 512 KiB: enough for most devices to
/// come near their bandwidth.
const READ_AHEAD_DEFAULT: u64 = 512 << 10;

/// Opens a store: [`disk::Store::open`], or [`disk::Store::rehearse`] for a check.
type OpenStore = fn(&Path, &disk::OpenOptions) -> Result<disk::Store, disk::OpenError>;

/// What the engine made of a configuration.
pub struct Built {
    /// The cache.
    pub cache: Cache,
    /// Its partitions, in the order of the configuration.
    partitions: Vec<Partition>,
}

impl Built {
    /// Creates the cache and its partitions, for `--check` as well as for serving. Even for a check
    /// the cache starts its threads: they divide the memory among the partitions, and a cache
    /// without them refuses configurations that it accepts with them.
    pub fn new(config: &Config, topology: Option<TopologySource>) -> Result<Built, Error> {
        let cache = cache(config, topology)?;
        groups(config, &cache)?;
        // Partitions without a `max` get equal shares of the memory that those with a `max` leave.
        let stat = cache.stat();
        let left = stat.memory_max_bytes.saturating_sub(stat.memory_charged_bytes);
        let given: u64 = config.partitions.iter().filter_map(|section| bytes(&section.max)).sum();
        let sharing = config.partitions.iter().filter(|section| section.max.is_none()).count() as u64;
        let share = left.saturating_sub(given) / sharing.max(1);
        // The sum of all `max` may exceed the memory. Each partition then starts with a share of
        // the memory in proportion to its `max`.
        let scaled = |bytes: u64| match given > left {
            true => (u128::from(bytes) * u128::from(left) / u128::from(given.max(1))) as u64,
            false => bytes,
        };
        let mut partitions = Vec::new();
        for section in &config.partitions {
            let start_bytes = bytes(&section.max).map_or(share, scaled);
            let made = cache.partition(partition(section, start_bytes));
            partitions.push(made.map_err(|error| match (&section.node, &section.max) {
                (Some(node), _) => config.refused(node, error.to_string()),
                (None, Some(max)) => config.refused(max, error.to_string()),
                (None, None) => config.refused(&section.name, error.to_string()),
            })?);
        }
        Ok(Built { cache, partitions })
    }

    /// Starts the recordings of the configuration before anything is opened, so that they have
    /// every access.
    pub fn record(&self, config: &Config) -> Result<Arc<Recorders>, Error> {
        let recorders = Arc::new(Recorders::default());
        for (section, partition) in config.partitions.iter().zip(&self.partitions) {
            let (Some(order), Some(file)) = (section.order(), &section.record) else { continue };
            let started =
                recorders::make_way(&order).and_then(|()| recorders.start(partition, &order).map(drop));
            started.map_err(|message| config.refused(file, message))?;
        }
        Ok(recorders)
    }

    /// Opens the exports' stores, for serving or for a check. The error names every store that
    /// cannot be opened.
    pub fn open(&self, config: &Config, open: OpenStore) -> Result<Vec<Export>, Error> {
        let mut exports = Vec::new();
        let mut problems = Vec::new();
        for section in &config.exports {
            match self.open_one(section, open) {
                Ok(object) => exports.push(Export {
                    name: section.name.get_ref().clone(),
                    description: section.description.clone().map_or_else(String::new, Spanned::into_inner),
                    read_only: section.read_only,
                    object,
                }),
                Err(message) => problems.push(config.line(&section.path, message)),
            }
        }
        if problems.is_empty() { Ok(exports) } else { Err(Error::Config(problems)) }
    }

    fn open_one(&self, section: &ExportSection, open: OpenStore) -> Result<Object, String> {
        let options = disk::OpenOptions { read_only: section.read_only, ..disk::OpenOptions::default() };
        let store = open(section.path.get_ref(), &options).map_err(|error| match error {
            disk::OpenError::Permission { .. } | disk::OpenError::ReadOnlyDevice { .. }
                if !section.read_only =>
            {
                format!("{error}; to serve it for reading only: read_only = true")
            }
            _ => error.to_string(),
        })?;
        let name = section.partition.get_ref();
        let partition = self.partitions.iter().find(|partition| partition.name() == name);
        let partition = partition.ok_or_else(|| format!("no partition is called \"{name}\""))?;
        partition.open(store, section.name.get_ref()).map_err(|error| error.to_string())
    }
}

fn cache(config: &Config, topology: Option<TopologySource>) -> Result<Cache, Error> {
    let section = &config.cache;
    let defaults = CacheConfig::default();
    let cache = Cache::new(CacheConfig {
        memory_max_bytes: section.memory_max.get_ref().0,
        // Checked to be at most 64 KiB.
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

fn groups(config: &Config, cache: &Cache) -> Result<(), Error> {
    for group in &config.groups {
        let limits = Limits {
            min_bytes: bytes(&group.min).unwrap_or(0),
            low_bytes: bytes(&group.low).unwrap_or(0),
            high_bytes: bytes(&group.high).unwrap_or(UNLIMITED),
            max_bytes: bytes(&group.max).unwrap_or(UNLIMITED),
            weight: group
                .weight
                .as_ref()
                .map_or(Limits::default().weight, |weight| weight.get_ref().0 as u32),
        };
        let set = cache.set_group(group.name.get_ref(), limits);
        set.map_err(|error| config.refused(&group.name, error.to_string()))?;
    }
    Ok(())
}

fn partition(section: &PartitionSection, start_bytes: u64) -> PartitionConfig {
    let defaults = PartitionConfig::new(section.name.get_ref());
    let min_bytes = bytes(&section.min).unwrap_or(0);
    PartitionConfig {
        policy: section.policy.as_ref().map_or(defaults.policy, |policy| policy.0),
        cache_mode: section.cache_mode.as_ref().map_or(defaults.cache_mode, |mode| mode.0),
        max_bytes: bytes(&section.max),
        start_bytes: Some(start_bytes.max(min_bytes)),
        min_bytes,
        low_bytes: bytes(&section.low).unwrap_or(0),
        high_bytes: bytes(&section.high),
        weight: section.weight.as_ref().map_or(defaults.weight, |weight| weight.get_ref().0 as u32),
        read_ahead_max_bytes: bytes(&section.read_ahead).unwrap_or(READ_AHEAD_DEFAULT),
        node: section.node.as_ref().map(|node| node.get_ref().0 as u32),
        dirty_max_bytes: bytes(&section.dirty_max),
        ..defaults
    }
}
