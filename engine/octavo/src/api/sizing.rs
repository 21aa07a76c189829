//! Sizes of caches: how `memory_max` is divided, and what `memory_max` holds a working set whole.
//!
//! The division itself is the engine's own: `CacheConfig::set_aside_bytes` and `Split::of`, by
//! which caches and partitions are created.

use crate::config::{CacheConfig, Geometry, MEMORY_MAX_BYTES, PartitionConfig};
use crate::error::Error;
use crate::numa::Numa;
use crate::state::sizes::Split;

/// Frames for this many percent of a working set hold all of it: the segments' shares of the
/// directory, and so of the pages, differ by up to 1 %.
const FRAMES_PERCENT: u128 = 101;

/// Sizes that are searched for are multiples of this.
const STEP_BYTES: u64 = 1 << 20;

/// How `memory_max` is divided, in bytes, while no buffers beyond the usual are in use.
/// [`CacheConfig::sizing`] and [`CacheConfig::fitting`] return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// The whole: the sum of the frames, metadata, learning, buffers and rounding.
    pub memory_max_bytes: u64,
    /// The largest working set that the frames hold whole: a little less than the frames, because
    /// the segments' shares of the pages are not exactly equal.
    pub working_set_bytes: u64,
    /// Frames: the memory of pages.
    pub frames_bytes: u64,
    /// Metadata of pages, and directories.
    pub metadata_bytes: u64,
    /// The memory in which policies and miss curves are learned; at most 1 % of the frames.
    pub learning_bytes: u64,
    /// Memory that is set aside for buffers, rings and bounce pages. While more is in use, up to
    /// [`CacheConfig::buffers_max_bytes`], pages have less.
    pub buffers_bytes: u64,
    /// The remainder, because partitions have whole segments.
    pub rounding_bytes: u64,
    /// Number of partitions.
    pub partitions: u32,
    /// Bytes charged to each partition: its frames, metadata and learning.
    pub partition_bytes: u64,
    /// The [`PartitionConfig::max_bytes`] that gives each its share. One partition needs none.
    pub partition_max_bytes: Option<u64>,
}

/// # Sizes
impl CacheConfig {
    /// Returns how `memory_max_bytes` is divided if `partitions` partitions with the default policy
    /// share it equally.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid, `partitions` is 0, or a partition would
    /// have no segment.
    ///
    /// # Examples
    /// ```
    /// use octavo::CacheConfig;
    /// let config = CacheConfig { memory_max_bytes: 256 << 20, ..CacheConfig::default() };
    /// let sizing = config.sizing(1)?;
    /// assert!(sizing.frames_bytes >= 240 << 20);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn sizing(&self, partitions: u32) -> Result<Sizing, Error> {
        self.validate()?;
        check_partitions(partitions)?;
        let sizing = self.divide(&self.nodes(), partitions);
        if sizing.frames_bytes == 0 {
            return Err(Error::Config(format!(
                "memory_max_bytes is {}: too little for {partitions} partitions of at least one segment of \
                 {} bytes, their metadata, and buffers of {} bytes",
                self.memory_max_bytes,
                self.segment().segment_bytes,
                sizing.buffers_bytes
            )));
        }
        Ok(sizing)
    }

    /// Returns the division of the least `memory_max_bytes`, in whole MiB, that holds a working set
    /// of `working_set_bytes` whole. `partitions` partitions with the default policy share the
    /// working set and the memory equally. The `memory_max_bytes` of `self` is ignored.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid, `partitions` is 0, the working set is
    /// less than a segment for each partition, or it is more than a cache can hold.
    ///
    /// # Examples
    /// ```
    /// use octavo::{Cache, CacheConfig, PartitionConfig};
    /// let memory_max_bytes = CacheConfig::default().fitting(100 << 20, 1)?.memory_max_bytes;
    /// assert!(memory_max_bytes <= 110 << 20);
    /// let cache = Cache::new(CacheConfig { memory_max_bytes, ..CacheConfig::default() })?;
    /// let partition = cache.partition(PartitionConfig::new("app"))?;
    /// assert!(partition.stat().max_bytes >= 100 << 20, "frames for all of it");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn fitting(&self, working_set_bytes: u64, partitions: u32) -> Result<Sizing, Error> {
        let config = CacheConfig { memory_max_bytes: MEMORY_MAX_BYTES, ..self.clone() };
        config.validate()?;
        let wrong = |why: String| Error::Config(format!("a working set of {working_set_bytes} bytes: {why}"));
        check_partitions(partitions)?;
        let least = self.segment().segment_bytes.saturating_mul(partitions.into());
        if working_set_bytes < least {
            return Err(wrong(format!("less than {least} bytes, one segment for each partition")));
        }
        let numa = self.nodes();
        let with = |steps: u64| {
            let memory_max_bytes = steps * STEP_BYTES;
            CacheConfig { memory_max_bytes, ..self.clone() }.divide(&numa, partitions)
        };
        let holds = |steps: u64| with(steps).working_set_bytes >= working_set_bytes;
        let most = MEMORY_MAX_BYTES / STEP_BYTES;
        if working_set_bytes > MEMORY_MAX_BYTES || !holds(most) {
            let largest = with(most).working_set_bytes;
            return Err(wrong(format!(
                "more than {largest} bytes, which the largest cache holds with this page_bytes and segment_bytes"
            )));
        }
        // Invariant: `enough` holds the working set, and `less` does not.
        let (mut less, mut enough) = (0, most);
        while enough - less > 1 {
            let middle = less + (enough - less) / 2;
            *if holds(middle) { &mut enough } else { &mut less } = middle;
        }
        Ok(with(enough))
    }

    /// Divides the memory; a partition may have no segment.
    fn divide(&self, numa: &Numa, partitions: u32) -> Sizing {
        // Where the memory is less than the share, there is no cache.
        let buffers_bytes = self.set_aside_bytes().min(self.memory_max_bytes);
        let is_possible = self.reserve_bytes() <= self.memory_max_bytes;
        let left = if is_possible { self.memory_max_bytes - buffers_bytes } else { 0 };
        // Whole KiB, which octavo.toml can name.
        let share = if partitions > 1 { left / u64::from(partitions) / 1024 * 1024 } else { left };
        let partition_max_bytes = (partitions > 1).then_some(share);
        let config = PartitionConfig { max_bytes: partition_max_bytes, ..PartitionConfig::new("p") };
        let split = Split::of(self, numa, &config, share);
        let all = |bytes: u64| bytes * u64::from(partitions);
        let (partition_bytes, frames_bytes) = match split.live {
            0 => (0, 0),
            _ => (split.charged_bytes(), split.frames_bytes()),
        };
        let learning_bytes = if split.live == 0 { 0 } else { split.learning_bytes + split.watch.bytes() };
        Sizing {
            memory_max_bytes: self.memory_max_bytes,
            working_set_bytes: (u128::from(all(frames_bytes)) * 100 / FRAMES_PERCENT) as u64,
            frames_bytes: all(frames_bytes),
            metadata_bytes: all(partition_bytes - frames_bytes - learning_bytes),
            learning_bytes: all(learning_bytes),
            buffers_bytes,
            rounding_bytes: self.memory_max_bytes - buffers_bytes - all(partition_bytes),
            partitions,
            partition_bytes,
            partition_max_bytes,
        }
    }

    fn nodes(&self) -> Numa {
        Numa::new(&self.topology, self.numa, self.replication, self.remote_cost)
    }

    /// The sizes of pages and segments of a partition that sets none.
    fn segment(&self) -> Geometry {
        Geometry::of(self, &PartitionConfig::new("p"))
    }
}

fn check_partitions(partitions: u32) -> Result<(), Error> {
    match partitions {
        0 => Err(Error::Config("partitions is 0: at least one is needed".into())),
        _ => Ok(()),
    }
}
