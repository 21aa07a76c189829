//! A partition: one tenant's cache. Its table, its frames, its secret, its counters, its objects,
//! its size. Not here: how it grows and shrinks (`partition/resize.rs`), what is learned of its
//! load, and told to whoever plans sizes (`partition/watch.rs`).

mod costs;
mod resize;
mod watch;

use std::collections::HashMap;

use octavo_disk::Store;
use octavo_table::recording::{Event, Secret};
use octavo_table::{Begun, Mixer, MoveStep, Mover, SegmentIndex, Shape, SlotIndex, Table, Tag};

use crate::WAYS;
use crate::ahead::Windows;
use crate::cache::{Owed, Shared, too_little};
use crate::config::{CacheMode, Limits, PartitionConfig, PolicyName};
use crate::copy;
use crate::counters::{Count, Counters};
use crate::error::Error;
use crate::frames::{Frames, Mapping};
use crate::numa::{Auto, Balance, Places, Worth, Writers};
use crate::object::{Object, ObjectInner};
use crate::record::{Note, Recorder};
use crate::stat::{Evictions, PartitionStat};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock, try_lock};
use crate::waiters::{SlotWaiters, Strays};
use costs::Costs;
use resize::Resizing;
pub(crate) use resize::{History, Planning, Stop, Turn};
use watch::{Remembered, Watch};

/// A page's key is the object's id above this many bits of page index: 16 million objects of 4 PiB
/// at pages of 4 KiB.
pub(crate) const PAGE_INDEX_BITS: u32 = 40;

/// The key of an object's first page.
pub(crate) const fn key_of(object: u64) -> u64 {
    object << PAGE_INDEX_BITS
}

/// One tenant's cache. Cheap to clone.
#[derive(Clone)]
pub struct Partition(pub(crate) Arc<PartitionInner>);

pub(crate) struct PartitionInner {
    // What every hit reads.
    pub table: Table<WAYS>,
    pub frames: Frames,
    mixer: Mixer,
    pub page_shift: u32,
    page_bytes: usize,
    /// Bytes of a page less one.
    pub page_mask: usize,
    pub mode: CacheMode,
    pub counters: Counters,
    pub recorder: Recorder,
    pub places: Places,
    pub worth: Worth,
    pub auto: Auto,
    pub writers: Writers,
    // What only misses and control read.
    pub shared: Arc<Shared>,
    pub waiters: SlotWaiters,
    pub strays: Strays,
    pub windows: Windows,
    /// Held while pages move between segments, and while somebody walks over the dirty ones.
    pub moves: Mutex<()>,
    /// What the mixer was made of.
    pub secret: Secret,
    /// The cache does not know it any more: what still holds it holds an empty shell.
    is_removed: AtomicBool,
    resizing: Mutex<Resizing>,
    /// Turns that have given a resize up since a page was moved.
    held_up: AtomicU32,
    costs: Mutex<Costs>,
    objects: Mutex<Objects>,
    config: PartitionConfig,
    limits: Mutex<Limits>,
    dirty_max_bytes: Mutex<Option<u64>>,
    remembered: Mutex<Remembered>,
    pub balance: Balance,
    dirty_max_pages: AtomicU64,
    /// The table's memory; after the table, which uses it.
    pub metadata: Mapping,
}

/// A partition while nothing is resized or opened.
pub(crate) struct Still<'s> {
    /// What has happened to the table.
    pub history: &'s History,
    /// The segments in use, but for those that are on their way out.
    pub segments: Vec<SegmentIndex>,
    /// The open objects, in the order of their numbers.
    pub objects: Vec<&'s Object>,
}

struct Objects {
    next_id: u64,
    open: HashMap<u64, Object>,
}

impl PartitionInner {
    /// The shape of its table, and what a segment costs with its metadata.
    fn shape(shared: &Shared, config: &PartitionConfig) -> (Shape, u64) {
        let cache = &shared.config;
        let slots_per_segment = cache.segment_bytes / cache.page_bytes as u64;
        let sets_per_segment = (slots_per_segment / WAYS as u64) as u32;
        let one = Shape { segments_max: 1, sets_per_segment };
        let per_segment = cache.segment_bytes + Table::<WAYS>::segment_metadata_bytes(one) as u64;
        // The directory has room for four times `max`, so that `max` can be raised and a small partition's
        // directory stays small.
        let most = config.max_bytes.map_or(u64::MAX, |max| max.saturating_mul(4)).min(cache.memory_max_bytes);
        let most = (most / per_segment).min(octavo_table::SEGMENTS_MAX as u64 - 1) as u32;
        // As many for each node.
        let nodes = if config.node.is_some() { 1 } else { shared.numa.nodes() };
        let segments_max =
            (most.max(1).div_ceil(nodes) * nodes).min((octavo_table::SEGMENTS_MAX - 1) / nodes * nodes);
        (Shape { segments_max, sets_per_segment }, per_segment)
    }

    /// Less is no partition.
    pub fn least_bytes(shared: &Shared, config: &PartitionConfig) -> u64 {
        let (shape, per_segment) = Self::shape(shared, config);
        Table::<WAYS>::fixed_bytes(shape) as u64 + per_segment
    }

    /// So many bytes are enough for whole segments with `min_bytes`: for one that begins with them,
    /// or grows to them.
    pub fn bytes_with_min(shared: &Shared, config: &PartitionConfig) -> u64 {
        let (_, per_segment) = Self::shape(shared, config);
        Self::rounded_up(&config.limits(), per_segment)
    }

    fn rounded_up(limits: &Limits, per_segment: u64) -> u64 {
        match limits.min_bytes {
            0 => 0,
            min => min.saturating_add(per_segment - 1).min(limits.max_bytes),
        }
    }

    /// A partition of `wanted` bytes, or a segment less.
    pub fn new(shared: &Arc<Shared>, config: PartitionConfig, wanted: u64) -> Result<PartitionInner, Error> {
        copy::choose();
        let cache = &shared.config;
        let slots_per_segment = cache.segment_bytes / cache.page_bytes as u64;
        let (shape, per_segment) = Self::shape(shared, &config);
        // The directory is small, but counts: 64 to 128 bytes a segment.
        // Lines of a large table are walked at random: huge pages, to the last line, keep the walk in the
        // TLB. What is not used of the last one is charged. A small table would waste most of one.
        let huge = wanted / per_segment * Table::<WAYS>::segment_metadata_bytes(shape) as u64 >= HUGE_PAGE;
        let mut fixed = Table::<WAYS>::fixed_bytes(shape) as u64 + if huge { HUGE_PAGE } else { 0 };
        let segments =
            |fixed: u64| (wanted.saturating_sub(fixed) / per_segment).min(shape.segments_max as u64);
        // What the policy learns grows and shrinks with the partition (`Costs::learn`).
        let learning =
            Table::<WAYS>::learning_bytes(config.policy, segments(fixed) * slots_per_segment) as u64;
        let watch = Watch::new(shared, shape, segments(fixed) * slots_per_segment, learning);
        let writers = shared.numa.followed_nodes(config.node);
        let slots = segments(fixed) * slots_per_segment;
        fixed += learning + watch.bytes() + Writers::bytes(writers, slots);
        let live = segments(fixed) as u32;
        let what = format!("partition {:?}", config.name);
        if live == 0 {
            let (bound, bound_bytes) = ("memory_max", shared.budget.max_bytes());
            let wanted_bytes = fixed + per_segment;
            return Err(Error::NoMemory { what, wanted_bytes, left_bytes: wanted, bound, bound_bytes });
        }
        let places = Places::new(&shared.numa, config.node)
            .map_err(|why| Error::Config(format!("partition {:?}: {why}", config.name)))?;
        let charge = shared.budget.charge(fixed + live as u64 * per_segment, &what)?;
        let no_memory = |e| Error::Config(format!("{what}: cannot map memory: {e}"));
        let frames = Frames::reserve(cache.page_bytes, cache.segment_bytes as usize, shape.segments_max)
            .map_err(no_memory)?;
        let metadata_bytes = Table::<WAYS>::memory_bytes(shape).next_multiple_of(HUGE_PAGE as usize);
        let metadata = Mapping::reserve(metadata_bytes).map_err(no_memory)?;
        let table = if cfg!(shuttle) {
            Table::spread(shape, places.nodes, config.policy, live)
        } else {
            places.bind_metadata(&shared.numa, shape, metadata.base().as_ptr());
            if huge {
                metadata.want_huge_pages(0, metadata_bytes);
            }
            // SAFETY: the mapping is zeroed, aligned to a page or more, large enough, and lives as long as
            // the table (field order).
            unsafe { Table::in_memory(metadata.base(), shape, places.nodes, config.policy, live) }
        };
        watch.begin(&table);
        let seed = match cache.seed {
            Some(seed) => seed,
            None => random_seed().map_err(no_memory)?,
        };
        let resizing = Resizing::of(&table);
        let partition = PartitionInner {
            table,
            frames,
            mixer: if cache.pages_meet { Mixer::weak() } else { Mixer::new(seed) },
            secret: if cache.pages_meet { Secret::Weak } else { Secret::Seed(seed) },
            page_shift: cache.page_bytes.trailing_zeros(),
            page_bytes: cache.page_bytes as usize,
            page_mask: cache.page_bytes as usize - 1,
            mode: config.cache_mode,
            counters: Counters::new(),
            recorder: Recorder::new(),
            places,
            worth: Worth::default(),
            auto: Auto::new(shared.numa.prices(), places.nodes),
            writers: Writers::new(writers, slots),
            shared: shared.clone(),
            waiters: SlotWaiters::new(),
            strays: Strays::new(),
            windows: Windows::new(
                (config.read_ahead_max_bytes / u64::from(cache.page_bytes)).min(1 << 14) as u32
            ),
            moves: Mutex::new(()),
            is_removed: AtomicBool::new(false),
            resizing: Mutex::new(resizing),
            held_up: AtomicU32::new(0),
            costs: Mutex::new(Costs::new(
                charge,
                fixed,
                learning,
                (cache.segment_bytes, per_segment - cache.segment_bytes),
            )),
            objects: Mutex::new(Objects { next_id: 1, open: HashMap::new() }),
            limits: Mutex::new(config.limits()),
            dirty_max_bytes: Mutex::new(config.dirty_max_bytes),
            remembered: Mutex::new(Remembered::default()),
            balance: Balance::default(),
            config,
            dirty_max_pages: AtomicU64::new(0),
            metadata,
        };
        partition.table.segments().for_each(|segment| partition.commit(segment));
        partition.table.set_copies_yield(shared.numa.replication.yields);
        partition.counters.set_at_hand(!places.counted);
        partition.set_dirty_max();
        Ok(partition)
    }

    #[inline(always)]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// An object is no longer: the numbers of its pages have so many bits, and its offsets are the
    /// kernel's.
    pub fn check_len(&self, name: &str, len_bytes: u64) -> Result<(), Error> {
        let most = (1 << (PAGE_INDEX_BITS + self.page_shift)).min(i64::MAX as u64);
        if len_bytes <= most {
            return Ok(());
        }
        let page_bytes = self.page_bytes;
        Err(Error::Config(format!(
            "{name}: {len_bytes} bytes are too long: with pages of {page_bytes} bytes an object has at most {most}"
        )))
    }

    /// Where the page of an offset begins.
    pub fn page_start(&self, offset: u64) -> u64 {
        offset & !(self.page_mask as u64)
    }

    /// What the tags of an object's pages begin with.
    pub fn begin_tags(&self, id: u64) -> Begun {
        self.mixer.begin(key_of(id))
    }

    /// The tag of an object's page.
    #[inline(always)]
    pub fn tag_among(&self, begun: Begun, page: u64) -> Tag {
        self.mixer.tag_among(begun, page)
    }

    /// The object and page of a tag.
    pub fn page_of(&self, tag: Tag) -> (u64, u64) {
        let key = self.key_of_tag(tag);
        (key >> PAGE_INDEX_BITS, key & ((1 << PAGE_INDEX_BITS) - 1))
    }

    /// The key of a tag.
    pub fn key_of_tag(&self, tag: Tag) -> u64 {
        self.mixer.key(tag)
    }

    /// Acts while no segment comes or goes, the policy stays and no object is opened.
    pub fn hold_still<T>(&self, act: impl FnOnce(Still<'_>) -> T) -> T {
        let resizing = lock(&self.resizing);
        let objects = lock(&self.objects);
        act(self.still(&resizing, &objects))
    }

    /// The same, if it need not wait: a resize takes long.
    pub fn try_hold_still<T>(&self, act: impl FnOnce(Still<'_>) -> T) -> Option<T> {
        let resizing = try_lock(&self.resizing)?;
        let objects = try_lock(&self.objects)?;
        Some(act(self.still(&resizing, &objects)))
    }

    fn still<'s>(&self, resizing: &'s Resizing, objects: &'s Objects) -> Still<'s> {
        let stays = |segment: &SegmentIndex| {
            !resizing.emptied.contains(segment) && resizing.leaving.as_ref() != Some(segment)
        };
        let mut objects: Vec<&Object> = objects.open.values().collect();
        objects.sort_by_key(|object| object.0.id);
        Still { history: &resizing.history, segments: self.table.segments().filter(stays).collect(), objects }
    }

    /// Whether nobody has accessed a page yet.
    pub fn is_untouched(&self) -> bool {
        [Count::Arrivals, Count::Hits, Count::Misses].map(|count| self.counters.sum(count)) == [0; 3]
    }

    /// Most dirty pages; beyond, writes go to the store first.
    pub fn dirty_max_pages(&self) -> u64 {
        self.dirty_max_pages.load(Ordering::Relaxed)
    }

    fn set_dirty_max(&self) {
        let slots = self.table.slots_count();
        let most = match *lock(&self.dirty_max_bytes) {
            Some(bytes) => (bytes >> self.page_shift).min(slots),
            None => slots * 2 / 5,
        };
        self.dirty_max_pages.store(most, Ordering::Relaxed);
    }

    /// A page became dirty.
    pub fn note_dirty(&self) {
        self.tell_cleaner(self.table.dirty_pages() > self.dirty_max_pages() / 2);
    }

    pub fn tell_cleaner(&self, urgent: bool) {
        self.shared.bell.tell(urgent);
    }

    /// An object is closed.
    pub fn forget(&self, id: u64) {
        lock(&self.objects).open.remove(&id);
    }

    /// The cache is gone: the objects need not stay for the sake of their dirty pages.
    pub fn forget_all(&self) {
        let open = std::mem::take(&mut lock(&self.objects).open);
        drop(open);
    }

    fn sum(&self, count: Count) -> u64 {
        self.counters.sum(count)
    }

    fn resident_pages(&self) -> u64 {
        use Count::*;
        let left = [EvictionsCapacity, EvictionsResize, EvictionsDiscard, EvictionsWrite, Departures];
        let left = left.into_iter().fold(0u64, |sum, count| sum.wrapping_add(self.sum(count)));
        // Counts of other threads may be read in any order: never less than none.
        (self.sum(Arrivals).wrapping_sub(left) as i64).max(0) as u64
    }
}

const HUGE_PAGE: u64 = 2 << 20;

/// A secret from the kernel.
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

/// What the table cannot do during a move: the bytes, the waiters, and the notes of its steps.
pub(crate) struct PageMover<'p> {
    partition: &'p PartitionInner,
    note: Option<Note<'p>>,
}

impl<'p> PageMover<'p> {
    pub fn new(partition: &'p PartitionInner) -> Self {
        PageMover { partition, note: None }
    }
}

impl Mover for PageMover<'_> {
    fn copy(&mut self, from: SlotIndex, to: SlotIndex) {
        let frames = &self.partition.frames;
        // SAFETY: the old slot is held still by the mover, the new one is claimed by it.
        unsafe { copy::copy_in(frames.at(from), frames.at(to), self.partition.page_bytes()) };
    }

    fn wake(&mut self, slot: SlotIndex) {
        self.partition.waiters.wake(slot);
    }

    fn is_recorded(&self) -> bool {
        self.partition.is_recorded_whole()
    }

    fn begin_step(&mut self) {
        self.note = Some(self.partition.note());
    }

    fn end_step(&mut self, step: Option<MoveStep>) {
        if let (Some(note), Some(step)) = (self.note.take(), step) {
            note.event(|| match step {
                MoveStep::Begin => Event::MoveBegun,
                MoveStep::Set(set) => Event::SetMoved { set },
                MoveStep::End { done } => Event::Advance { done },
            });
        }
    }
}

impl Partition {
    pub(crate) fn new(inner: PartitionInner) -> Partition {
        Partition(Arc::new(inner))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.config.name
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.0.page_bytes() as u64
    }

    /// Opens a store as an object of this partition. `name` is for people (errors, statistics).
    pub fn open(&self, store: Store, name: &str) -> Result<Object, Error> {
        crate::check_name(name).map_err(|why| Error::Config(format!("object {name:?}: {why}")))?;
        let block_bytes = store.block_bytes();
        if block_bytes as usize > self.0.page_bytes() {
            return Err(Error::Config(format!(
                "{name}: blocks of {block_bytes} bytes are larger than pages of {}",
                self.0.page_bytes()
            )));
        }
        self.0.shared.check_process()?;
        self.0.check_len(name, store.len_bytes())?;
        let taken = |other| Error::Config(format!("{name}: its store is open already, as {other}"));
        let mut objects = lock(&self.0.objects);
        // Relaxed: it is set under the same lock.
        if self.0.is_removed.load(Ordering::Relaxed) {
            return Err(Error::Config(format!("{name}: the partition {:?} was removed", self.name())));
        }
        let id = objects.next_id;
        if id >= 1 << (64 - PAGE_INDEX_BITS) {
            return Err(Error::Config(format!(
                "{name}: a partition opens at most 16 million objects in its life"
            )));
        }
        store.take(name).map_err(taken)?;
        objects.next_id += 1;
        let object = Object(Arc::new(ObjectInner::new(&self.0, store, name, id)));
        objects.open.insert(id, object.clone());
        self.0.record(|| Event::Opened { object: id, name: name.into() });
        Ok(object)
    }

    /// Lets the partition go for good, unless an object is open in it.
    pub(crate) fn remove(&self) -> bool {
        let objects = lock(&self.0.objects);
        let is_removed = objects.open.is_empty();
        self.0.is_removed.store(is_removed, Ordering::Relaxed);
        is_removed
    }

    /// The objects that are open. None in a child of `fork`.
    pub fn objects(&self) -> Vec<Object> {
        if self.0.shared.is_forked() {
            return Vec::new();
        }
        let mut objects: Vec<Object> = lock(&self.0.objects).open.values().cloned().collect();
        objects.sort_by_key(|object| object.0.id);
        objects
    }

    /// Syncs every object; tries all and returns the first error.
    pub fn sync(&self) -> Result<(), Error> {
        self.0.shared.check_process()?;
        self.objects().iter().map(Object::sync).fold(Ok(()), Result::and)
    }

    /// Its figures: exact for everything that has been replied to.
    pub fn stat(&self) -> PartitionStat {
        use Count::*;
        let inner = &self.0;
        if inner.shared.is_forked() {
            return PartitionStat { name: self.name().into(), ..PartitionStat::default() };
        }
        let bytes = |pages: u64| pages << inner.page_shift;
        let tally = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        PartitionStat {
            name: self.name().into(),
            policy: inner.table.policy().name(),
            cache_mode: inner.mode.name(),
            hits: inner.sum(Hits),
            misses: inner.sum(Misses),
            fills: inner.sum(Fills),
            bypasses: inner.sum(Bypasses),
            evictions: Evictions {
                capacity: inner.sum(EvictionsCapacity),
                resize: inner.sum(EvictionsResize),
                discard: inner.sum(EvictionsDiscard),
                write: inner.sum(EvictionsWrite),
            },
            writebacks: inner.sum(Writebacks),
            writeback_ios: inner.sum(WritebackIos),
            read_errors: inner.sum(ReadErrors),
            write_errors: inner.sum(WriteErrors),
            sync_errors: inner.sum(SyncErrors),
            ghost_hits: tally(&inner.table.tally().ghost_hits),
            ahead_used: tally(&inner.table.tally().ahead_used),
            ahead_wasted: tally(&inner.table.tally().ahead_wasted),
            resident_bytes: bytes(inner.resident_pages()),
            dirty_bytes: bytes(inner.table.dirty_pages()),
            dirty_max_bytes: bytes(inner.dirty_max_pages()),
            max_bytes: bytes(inner.table.slots_count()),
            charged_bytes: lock(&inner.costs).charged_bytes(),
            requests_read: inner.sum(Reads),
            requests_write: inner.sum(Writes),
            requests_sync: inner.sum(Syncs),
            read_bytes: inner.sum(ReadBytes),
            written_bytes: inner.sum(WrittenBytes),
        }
    }

    /// Grows or shrinks to at most `max_bytes` of frames and metadata, a segment at a time, while
    /// everything goes on. Returns the bytes charged afterwards: more than asked for only where
    /// a pinned page keeps a segment, or for the last segment and the metadata of those
    /// that there were once (a hundredth of them at most), which stays.
    pub fn resize(&self, max_bytes: u64) -> Result<u64, Error> {
        self.0.shared.check_process()?;
        self.resize_segments(self.segments_within(max_bytes))?;
        Ok(lock(&self.0.costs).charged_bytes())
    }

    /// How many segments so many bytes are enough for, with what is learned about them.
    pub(crate) fn segments_within(&self, max_bytes: u64) -> u32 {
        let metadata = self.segment_bytes() - self.0.shared.config.segment_bytes;
        let (apart, once_used) = {
            let costs = lock(&self.0.costs);
            let behind = costs.left_behind();
            let apart = costs.apart_bytes() - behind * metadata;
            (apart, self.0.table.live_segments() + behind as u32)
        };
        let left = max_bytes.saturating_sub(apart);
        let most = (left / self.segment_bytes()).min(u64::from(self.0.table.shape().segments_max)) as u32;
        // What is learned, or left behind, is a hundredth of the rest at most, so that this takes few
        // turns.
        let fits = |segments: &u32| {
            let behind = u64::from(once_used.saturating_sub(*segments)) * metadata;
            self.learning_bytes(*segments) + u64::from(*segments) * self.segment_bytes() + behind <= left
        };
        (1..=most).rev().find(fits).unwrap_or(0)
    }

    /// What a segment costs with its metadata.
    fn segment_bytes(&self) -> u64 {
        let shape = self.0.table.shape();
        self.0.shared.config.segment_bytes + Table::<WAYS>::segment_metadata_bytes(shape) as u64
    }

    /// So many bytes are enough for whole segments with the `min_bytes` of these limits.
    pub(crate) fn bytes_with_min(&self, limits: &Limits) -> u64 {
        PartitionInner::rounded_up(limits, self.segment_bytes())
    }

    /// What it has beyond these limits.
    pub(crate) fn beyond(&self, limits: &Limits) -> u64 {
        lock(&self.0.costs).charged_bytes().saturating_sub(limits.max_bytes)
    }

    /// Bytes of what the policy, or one that was followed before, learns about so many segments.
    fn learning_bytes(&self, segments: u32) -> u64 {
        let table = &self.0.table;
        let slots = segments as u64 * table.slots_per_segment() as u64;
        if table.has_learner() { Table::<WAYS>::learning_bytes(PolicyName::Octavo, slots) as u64 } else { 0 }
    }

    /// What it was promised.
    pub fn limits(&self) -> Limits {
        if self.0.shared.is_forked() {
            return self.0.config.limits();
        }
        *lock(&self.0.limits)
    }

    pub(crate) fn keep_limits(&self, limits: Limits) {
        *lock(&self.0.limits) = limits;
    }

    /// Whether it can ever be so large; the error is a sentence.
    pub(crate) fn check_max(&self, max_bytes: u64) -> Result<(), String> {
        let most = u64::from(self.0.table.shape().segments_max) * self.segment_bytes();
        let (fixed, apart) = {
            let costs = lock(&self.0.costs);
            (costs.fixed_bytes(), costs.apart_bytes())
        };
        let least = apart + self.learning_bytes(1) + self.segment_bytes();
        if max_bytes < least {
            return Err(too_little(max_bytes, least));
        }
        // The directory has room for four times the first `max`, in whole segments.
        let most = (most + fixed).max(self.0.config.max_bytes.map_or(0, |max| max.saturating_mul(4)));
        if max_bytes <= most || max_bytes == u64::MAX || most >= self.0.shared.budget.max_bytes() / 2 {
            return Ok(());
        }
        Err(format!(
            "max is {max_bytes} bytes, and it was made to grow to {most} at most, four times its first max"
        ))
    }

    /// Most bytes of dirty pages from now on. None: 40 % of the frames.
    pub fn set_dirty_max(&self, bytes: Option<u64>) {
        if self.0.shared.is_forked() {
            return;
        }
        *lock(&self.0.dirty_max_bytes) = bytes;
        self.0.set_dirty_max();
        self.0.tell_cleaner(true);
    }

    /// Follows another policy from now on. Pages stay, and the new policy takes them over in the
    /// order of the old one. Where its size is changing and
    /// waits for a store, so does this; [`Self::begin_policy`] does not.
    pub fn set_policy(&self, policy: PolicyName) -> Result<(), Error> {
        self.0.shared.check_process()?;
        let mut resizing = lock(&self.0.resizing);
        self.finish_moves(&mut resizing, None).map_err(Stop::into_error)?;
        self.follow(&mut resizing, policy)
    }

    /// [`Self::set_policy`] that waits for a store that does not answer about a second at most.
    /// False: the policy is the one that it was.
    pub fn begin_policy(&self, policy: PolicyName) -> Result<bool, Error> {
        self.0.shared.check_process()?;
        let planning = lock(&self.0.shared.reaper.planning);
        let turn = planning.turn(&self.0.shared);
        let done = self.in_turn(turn, |resizing, turn| {
            self.finish_moves(resizing, turn)?;
            Ok(self.follow(resizing, policy)?)
        });
        match done {
            Ok(()) => Ok(true),
            Err(Stop::HeldUp) => Ok(false),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn follow(&self, resizing: &mut Resizing, policy: PolicyName) -> Result<(), Error> {
        let inner = &self.0;
        // What another policy learned is kept for its return; what this one needs is charged before it is
        // taken.
        if !inner.table.has_learner() {
            let learning = Table::<WAYS>::learning_bytes(policy, inner.table.slots_count()) as u64;
            lock(&inner.costs).learn(learning, 0, &format!("partition {:?}", self.name()))?;
        }
        resizing.history.push(inner, [Event::Policy { policy }]);
        inner.table.set_policy(policy);
        inner.record(|| Event::Policy { policy });
        Ok(())
    }

    /// Gives about so many bytes back to the system, by shrinking. Returns how many it did. Nobody
    /// keeps it from growing again. Waits for the partition's
    /// stores as long as they take; [`Self::begin_reclaim`] does not.
    pub fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        self.0.shared.check_process()?;
        let before = lock(&self.0.costs).charged_bytes();
        let mut wanted = None;
        // Looked at when no plan is being carried out, which knows nothing of this.
        self.shrink_alone(|| *wanted.get_or_insert_with(|| self.segments_without(bytes)))?;
        Ok(before.saturating_sub(lock(&self.0.costs).charged_bytes()))
    }

    /// [`Self::reclaim`] that waits for a store that does not answer about a second at most.
    /// Returns the bytes that were given back, and what is owed: nothing
    /// goes on with that but another call.
    pub fn begin_reclaim(&self, bytes: u64) -> Result<(u64, Owed), Error> {
        self.0.shared.check_process()?;
        let shared = &self.0.shared;
        let planning = lock(&shared.reaper.planning);
        let before = lock(&self.0.costs).charged_bytes();
        let segments = self.segments_without(bytes);
        let left = u64::from(self.0.table.live_segments() - segments) * self.segment_bytes();
        let stopped = self.shrink_in_turn(segments, planning.turn(shared));
        let reclaimed_bytes = before.saturating_sub(lock(&self.0.costs).charged_bytes());
        match stopped {
            Ok(()) => Ok((reclaimed_bytes, Owed::default())),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::HeldUp) => {
                let partitions = vec![self.name().to_owned()];
                Ok((reclaimed_bytes, Owed { bytes: left.saturating_sub(reclaimed_bytes), partitions }))
            }
        }
    }

    /// The segments that it has when it has given so many bytes, rounded up, but not into what is
    /// promised.
    fn segments_without(&self, bytes: u64) -> u32 {
        let charged = lock(&self.0.costs).charged_bytes();
        let spare = charged.saturating_sub(self.limits().min_bytes) / self.segment_bytes();
        let segments = bytes.div_ceil(self.segment_bytes()).min(spare);
        self.0.table.live_segments().saturating_sub(segments as u32).max(1)
    }

    /// Lets all clean pages go, after the dirty ones were written. The memory stays the
    /// partition's.
    pub fn evict(&self) -> Result<(), Error> {
        self.0.shared.check_process()?;
        self.objects()
            .iter()
            .try_for_each(|object| object.advise(0, object.len_bytes(), crate::Advice::DontNeed))
    }
}
