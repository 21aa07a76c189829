//! The size of a partition: creates a partition of a size, and computes the cost of segments with
//! their metadata and the sizes that are possible.
//!
//! Not here: changing the size (`control/resize.rs`).

use octavo_recording::Secret;
use octavo_share::Bytes;
use octavo_table::{Mixer, NodeId, SegmentIndex, Shape, Table};

use super::ages::CleanUntil;
use super::costs::Costs;
use super::counters::Counters;
use super::expected::Expected;
use super::history::Resizing;
use super::monitor::{Remembered, Watch};
use super::nodes::{Auto, Balance, Places, Worth, Writers};
use super::numbers::Returned;
use super::partition::{Objects, PartitionInner};
use super::shared::Shared;
use super::streams::Windows;
use super::tape::Recorder;
use crate::config::{CacheConfig, Geometry, Limits, PartitionConfig, PolicyName};
use crate::error::Error;
use crate::memory::{Frames, Mapping, copy};
use crate::numa::Numa;
use crate::position::PageSize;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, lock};
use crate::wait::{SlotWaiters, Strays};
use crate::ways::WAYS;

const HUGE_PAGE: u64 = 2 << 20;

/// Returns a random secret from the kernel; a constant under miri and shuttle.
fn random_seed() -> std::io::Result<u64> {
    if cfg!(any(miri, shuttle)) {
        return Ok(0x5EED);
    }
    let mut seed = [0u8; 8];
    // SAFETY: eight bytes of ours are filled.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    match got {
        8 => Ok(u64::from_ne_bytes(seed)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// How a new partition divides its memory. [`PartitionInner::new`] and
/// [`CacheConfig::fitting`](crate::CacheConfig::fitting) use the same division.
pub(crate) struct Split {
    pub geometry: Geometry,
    pub shape: Shape,
    /// Bytes of a segment with its metadata.
    pub per_segment: u64,
    /// Number of segments.
    pub live: u32,
    /// Whether the metadata lies on huge pages.
    pub huge: bool,
    /// Bytes of the table that belong to no segment in use (its header and the segments' records),
    /// and of the unused rest of a huge page. The directory is charged with the segments.
    pub table_bytes: u64,
    /// Bytes in which the policy learns.
    pub learning_bytes: u64,
    pub watch: Watch,
    /// Bytes in which the writers of pages are noted, and for how many nodes and slots.
    pub writers_bytes: u64,
    writers: u32,
    slots: u64,
}

impl Split {
    /// Divides `wanted` bytes. Up to one segment of them stays free.
    pub fn of(cache: &CacheConfig, numa: &Numa, config: &PartitionConfig, wanted: u64) -> Split {
        let geometry = Geometry::of(cache, config);
        let (shape, per_segment) = Split::shape(cache, numa, config);
        // Lookups touch random lines of a table: huge pages for all of a large table avoid TLB
        // misses. The unused rest of the last huge page is charged. A small table gets no huge
        // pages: it would waste most of one.
        let huge = wanted / per_segment * Table::<WAYS>::segment_metadata_bytes(shape) as u64 >= HUGE_PAGE;
        let table_bytes = Table::<WAYS>::fixed_bytes(shape) as u64 + if huge { HUGE_PAGE } else { 0 };
        let segments =
            |fixed: u64| (wanted.saturating_sub(fixed) / per_segment).min(shape.segments_max as u64);
        // Memory for what the policy learns grows and shrinks with the partition
        // (`Costs::learn`).
        let slots = segments(table_bytes) * geometry.slots_per_segment();
        let learning_bytes = Table::<WAYS>::learning_bytes(config.policy, slots) as u64;
        let watch = Watch::new(cache, geometry.page_bytes, shape, slots, learning_bytes);
        let writers = numa.followed_nodes(config.node);
        let writers_bytes = Writers::bytes(writers, slots);
        let fixed = table_bytes + learning_bytes + watch.bytes() + writers_bytes;
        let live = segments(fixed) as u32;
        Split {
            geometry,
            shape,
            per_segment,
            live,
            huge,
            table_bytes,
            learning_bytes,
            watch,
            writers_bytes,
            writers,
            slots,
        }
    }

    /// Returns the shape of a partition's table, and the bytes of a segment with its metadata.
    fn shape(cache: &CacheConfig, numa: &Numa, config: &PartitionConfig) -> (Shape, u64) {
        let geometry = Geometry::of(cache, config);
        let sets_per_segment = (geometry.slots_per_segment() / WAYS as u64) as u32;
        let one = Shape { segments_max: 1, sets_per_segment };
        let per_segment = geometry.segment_bytes + Table::<WAYS>::segment_metadata_bytes(one) as u64;
        // The directory has room for four times `max`, so `max` can be raised later, and a small
        // partition's directory is still small.
        let most = config.max_bytes.map_or(u64::MAX, |max| max.saturating_mul(4)).min(cache.memory_max_bytes);
        let most = (most / per_segment).min(octavo_table::SEGMENTS_MAX as u64 - 1) as u32;
        // Each node has the same number of segments.
        let nodes = if config.node.is_some() { 1 } else { numa.nodes() };
        let segments_max =
            (most.max(1).div_ceil(nodes) * nodes).min((octavo_table::SEGMENTS_MAX - 1) / nodes * nodes);
        (Shape { segments_max, sets_per_segment }, per_segment)
    }

    /// Bytes charged in addition to the segments.
    pub fn fixed_bytes(&self) -> u64 {
        self.table_bytes + self.learning_bytes + self.watch.bytes() + self.writers_bytes
    }

    /// All bytes charged to the partition.
    pub fn charged_bytes(&self) -> u64 {
        self.fixed_bytes() + u64::from(self.live) * self.per_segment
    }

    /// Bytes of the frames.
    pub fn frames_bytes(&self) -> u64 {
        u64::from(self.live) * self.geometry.segment_bytes
    }
}

impl PartitionInner {
    /// Returns the shape of a partition's table, and the bytes of a segment with its metadata.
    fn shape(shared: &Shared, config: &PartitionConfig) -> (Shape, u64) {
        Split::shape(&shared.config, &shared.numa, config)
    }

    /// Returns the smallest size that a partition can have, in bytes.
    pub fn least_bytes(shared: &Shared, config: &PartitionConfig) -> u64 {
        let (shape, per_segment) = Self::shape(shared, config);
        Table::<WAYS>::fixed_bytes(shape) as u64 + per_segment
    }

    /// Returns the size to ask for, in bytes, so that a new partition has its `min` even if it gets
    /// up to one segment less than that size. At most its `max`; 0 without a `min`.
    pub fn new_bytes_with_min(shared: &Shared, config: &PartitionConfig) -> u64 {
        let (_, per_segment) = Self::shape(shared, config);
        Self::rounded_up(&config.limits(), per_segment)
    }

    fn rounded_up(limits: &Limits, per_segment: u64) -> u64 {
        match limits.min_bytes {
            0 => 0,
            min => min.saturating_add(per_segment - 1).min(limits.max_bytes),
        }
    }

    /// Creates a partition of `wanted` bytes, or up to one segment less.
    pub fn new(shared: &Arc<Shared>, config: PartitionConfig, wanted: u64) -> Result<Arc<Self>, Error> {
        copy::choose();
        let cache = &shared.config;
        let split = Split::of(cache, &shared.numa, &config, wanted);
        let Split { geometry, shape, per_segment, huge, live, .. } = split;
        let what = format!("partition {:?}", config.name);
        if live == 0 {
            return Err(shared.budget.refusal(what, split.fixed_bytes() + per_segment, wanted));
        }
        let misplaced = |why| Error::Config(format!("{what}: {why}"));
        let places = Places::new(&shared.numa, config.node).map_err(misplaced)?;
        let charge = shared.budget.charge(split.charged_bytes(), &what)?;
        let no_memory = |e| Error::Config(format!("{what}: cannot map memory: {e}"));
        let Geometry { page_bytes, segment_bytes } = geometry;
        let (frames, metadata) = Self::mappings(geometry, shape, huge).map_err(no_memory)?;
        let bounce = shared.bounces.of(page_bytes as usize)?;
        let table = Self::table_in(&metadata, shared, shape, places, config.policy, live);
        split.watch.begin(&table);
        let resizing = Resizing::of(&table);
        let expected = lock(&shared.expected).remove(&config.name);
        let secret = Self::secret(cache, expected.as_ref()).map_err(no_memory)?;
        let window_pages = (config.read_ahead_max_bytes / u64::from(page_bytes)).min(1 << 14) as u32;
        let partition = Arc::new_cyclic(|me| PartitionInner {
            me: me.clone(),
            table,
            frames,
            mixer: match secret {
                Secret::Seed(seed) => Mixer::new(seed),
                Secret::Weak | Secret::Untold => Mixer::weak(),
            },
            secret,
            page_size: PageSize::new(page_bytes as usize),
            width: copy::width(),
            mode: config.cache_mode,
            counters: Counters::new(),
            recorder: Recorder::new(),
            places,
            worth: Worth::default(),
            auto: Auto::new(shared.numa.prices(), places.nodes),
            writers: Writers::new(split.writers, split.slots),
            shared: shared.clone(),
            bounce,
            waiters: SlotWaiters::default(),
            strays: Strays::default(),
            windows: Windows::new(window_pages),
            moves: Mutex::new(()),
            is_removed: AtomicBool::new(false),
            resizing: Mutex::new(resizing),
            held_up: AtomicU32::new(0),
            costs: Mutex::new(Costs::new(
                charge,
                split.fixed_bytes(),
                split.learning_bytes,
                (segment_bytes, per_segment - segment_bytes),
            )),
            objects: Mutex::new(Objects::new(expected)),
            returned: Returned::new(),
            has_leaving: AtomicBool::new(false),
            limits: Mutex::new(config.limits()),
            dirty_max_bytes: Mutex::new(config.dirty_max_bytes),
            remembered: Mutex::new(Remembered::default()),
            balance: Balance::default(),
            config,
            dirty_max_pages: AtomicU64::new(0),
            clean_until: CleanUntil::now(),
            metadata,
        });
        partition.begin();
        Ok(partition)
    }

    /// Returns the secret of a new partition: the old one, if pages are expected.
    fn secret(cache: &CacheConfig, expected: Option<&Expected>) -> std::io::Result<Secret> {
        match expected {
            _ if cache.pages_meet => Ok(Secret::Weak),
            Some(Expected { secret: secret @ Secret::Seed(_), .. }) => Ok(*secret),
            _ => cache.seed.map_or_else(random_seed, Ok).map(Secret::Seed),
        }
    }

    /// Reserves addresses for the frames and for the table, which asks for huge pages if `huge`.
    fn mappings(geometry: Geometry, shape: Shape, huge: bool) -> std::io::Result<(Frames, Mapping)> {
        let Geometry { page_bytes, segment_bytes } = geometry;
        let frames = Frames::reserve(page_bytes, segment_bytes as usize, shape.segments_max)?;
        let metadata_bytes = Table::<WAYS>::memory_bytes(shape).next_multiple_of(HUGE_PAGE as usize);
        let metadata = Mapping::reserve(metadata_bytes)?;
        if huge {
            metadata.want_huge_pages(0, metadata_bytes);
        }
        Ok((frames, metadata))
    }

    /// Makes a new partition's segments ready for use, and sets what depends on its size.
    fn begin(&self) {
        self.table.segments().for_each(|segment| self.commit(segment));
        self.table.set_copies_yield(self.shared.numa.replication.yields);
        self.counters.set_at_hand(!self.places.counted);
        self.set_dirty_max();
    }

    /// Creates the table in its mapping, with each node's part of the memory bound to the node.
    fn table_in(
        metadata: &Mapping,
        shared: &Shared,
        shape: Shape,
        places: Places,
        policy: PolicyName,
        live: u32,
    ) -> Table<WAYS> {
        if cfg!(shuttle) {
            return Table::spread(shape, places.nodes, policy, live);
        }
        places.bind_metadata(&shared.numa, shape, metadata.base().as_ptr());
        // SAFETY: the mapping is zeroed, aligned to a page or more, large enough, and lives as long
        // as the table (field order).
        unsafe { Table::in_memory(metadata.base(), shape, places.nodes, policy, live) }
    }

    /// Returns the most segments that fit into `max_bytes`, including the memory for learning
    /// about them.
    pub fn segments_within(&self, max_bytes: u64) -> u32 {
        let metadata = self.segment_bytes() - self.frames.segment_bytes() as u64;
        let (apart, once_used, mut kept) = {
            let costs = lock(&self.costs);
            let behind = costs.left_behind();
            let apart = costs.apart_bytes() - behind.len() as u64 * metadata;
            let kept: Vec<u64> = behind.iter().map(|left| left.kept.bytes).collect();
            (apart, self.table.live_segments() + behind.len() as u32, kept)
        };
        // Frames that pins keep are charged as part of a segment again once it is in use. It is not
        // known which segments that will be, so assume those with the fewest such frames.
        kept.sort_unstable_by(|one, other| other.cmp(one));
        let left = max_bytes.saturating_sub(apart);
        let most = (left / self.segment_bytes()).min(u64::from(self.table.shape().segments_max)) as u32;
        // Memory for learning and metadata left behind take at most 1 % of the rest, so this loop
        // takes few iterations unless pins keep much.
        let fits = |segments: &u32| {
            let behind = once_used.saturating_sub(*segments);
            let behind = u64::from(behind) * metadata + kept.iter().take(behind as usize).sum::<u64>();
            self.learning_bytes(*segments) + u64::from(*segments) * self.segment_bytes() + behind <= left
        };
        (1..=most).rev().find(fits).unwrap_or(0)
    }

    /// Bytes of a segment with its metadata.
    pub fn segment_bytes(&self) -> u64 {
        let shape = self.table.shape();
        self.frames.segment_bytes() as u64 + Table::<WAYS>::segment_metadata_bytes(shape) as u64
    }

    /// Returns the size to ask for, in bytes, so that the partition has the `min` of `limits` in
    /// whole segments. At most the `max`; 0 without a `min`.
    pub fn bytes_with_min(&self, limits: &Limits) -> u64 {
        PartitionInner::rounded_up(limits, self.segment_bytes())
    }

    /// Returns the bytes charged to the partition above the `max` of `limits`.
    pub fn beyond(&self, limits: &Limits) -> u64 {
        lock(&self.costs).charged_bytes().saturating_sub(limits.max_bytes)
    }

    /// Returns the bytes in which the policy learns about `segments` segments. Also counts the
    /// memory of an earlier policy, which is kept.
    pub fn learning_bytes(&self, segments: u32) -> u64 {
        let table = &self.table;
        let slots = segments as u64 * table.slots_per_segment() as u64;
        if table.has_learner() { Table::<WAYS>::learning_bytes(PolicyName::Octavo, slots) as u64 } else { 0 }
    }

    /// The partition's limits.
    pub fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    pub fn store_limits(&self, limits: Limits) {
        *lock(&self.limits) = limits;
    }

    /// Checks that `max_bytes` can be the partition's `max`. The error is the text of a message.
    pub fn check_max(&self, max_bytes: u64) -> Result<(), String> {
        let most = u64::from(self.table.shape().segments_max) * self.segment_bytes();
        let (fixed, apart) = {
            let costs = lock(&self.costs);
            (costs.fixed_bytes(), costs.apart_bytes())
        };
        let least = apart + self.learning_bytes(1) + self.segment_bytes();
        if max_bytes < least {
            return Err(too_little(max_bytes, least));
        }
        // The directory has room for four times the first `max`, in whole segments.
        let most = (most + fixed).max(self.config.max_bytes.map_or(0, |max| max.saturating_mul(4)));
        if max_bytes <= most || max_bytes == u64::MAX || most >= self.shared.budget.max_bytes() / 2 {
            return Ok(());
        }
        Err(format!(
            "max is {}, but this partition can grow to {} at most, four times its first max",
            Bytes(max_bytes),
            Bytes(most & !((1 << 10) - 1))
        ))
    }

    /// The node that a segment's memory is bound to.
    pub fn node_of_segment(&self, segment: SegmentIndex) -> NodeId {
        match self.places.nodes {
            1 => self.places.home,
            _ => self.table.node_of_segment(segment),
        }
    }

    /// Makes a segment's frames ready for use, on its node.
    pub fn commit(&self, segment: SegmentIndex) {
        self.frames.commit(segment);
        let (at, len) = self.frames.segment(segment);
        self.shared.numa.bind(at, len, self.node_of_segment(segment));
    }

    /// Returns the number of segments that are left after the partition has given back `bytes`,
    /// rounded up to whole segments. The partition keeps its `min` and at least one segment.
    pub fn segments_without(&self, bytes: u64) -> u32 {
        let charged = lock(&self.costs).charged_bytes();
        let spare = charged.saturating_sub(self.limits().min_bytes) / self.segment_bytes();
        let segments = bytes.div_ceil(self.segment_bytes()).min(spare);
        self.table.live_segments().saturating_sub(segments as u32).max(1)
    }
}

/// The error text for a `max` below the smallest partition.
pub(crate) fn too_little(max: u64, least: u64) -> String {
    format!(
        "max is {}, but the smallest partition takes {}: one segment with its metadata",
        Bytes(max),
        Bytes(least.next_multiple_of(1 << 10))
    )
}
