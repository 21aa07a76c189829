//! What users may ask of a partition.

use octavo_disk::Store;
use octavo_recording::Event;

use crate::config::{Limits, PolicyName};
use crate::control::{Owed, Partition, Stop};
use crate::error::Error;
use crate::flight::Object;
use crate::name::check_name;
use crate::numa::NumaMode;
use crate::request::Advice;
use crate::stat::{Evictions, PartitionStat};
use crate::state::counters::Count;
use crate::state::nodes::Looks;
use crate::state::partition::{ObjectInner, PAGE_INDEX_BITS};
use crate::sync::{Arc, Ordering, lock};

impl Partition {
    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.inner.page_bytes() as u64
    }

    /// Opens a store as an object of this partition. `name` is for people (errors, statistics).
    pub fn open(&self, store: Store, name: &str) -> Result<Object, Error> {
        check_name(name).map_err(|why| Error::Config(format!("object {name:?}: {why}")))?;
        let block_bytes = store.block_bytes();
        if block_bytes as usize > self.inner.page_bytes() {
            return Err(Error::Config(format!(
                "{name}: blocks of {block_bytes} bytes are larger than pages of {}",
                self.inner.page_bytes()
            )));
        }
        self.inner.shared.check_process()?;
        self.inner.check_len(name, store.len_bytes())?;
        let taken = |other| Error::Config(format!("{name}: its store is open already, as {other}"));
        let mut objects = lock(&self.inner.objects);
        // Relaxed: it is set under the same lock.
        if self.inner.is_removed.load(Ordering::Relaxed) {
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
        let inner = Arc::new(ObjectInner::new(&self.inner, store, name, id));
        objects.open.insert(id, inner.clone());
        self.inner.record(|| Event::Opened { object: id, name: name.into() });
        Ok(Object { inner, lanes: self.core.lanes.clone() })
    }

    /// Lets the partition go for good, unless an object is open in it.
    pub(crate) fn remove(&self) -> bool {
        let objects = lock(&self.inner.objects);
        let is_removed = objects.open.is_empty();
        self.inner.is_removed.store(is_removed, Ordering::Relaxed);
        is_removed
    }

    /// Syncs every object; tries all and returns the first error.
    pub fn sync(&self) -> Result<(), Error> {
        self.inner.shared.check_process()?;
        self.objects().iter().map(Object::sync).fold(Ok(()), Result::and)
    }

    /// Its figures: exact for everything that has been replied to.
    pub fn stat(&self) -> PartitionStat {
        use Count::*;
        let inner = &self.inner;
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
        self.inner.shared.check_process()?;
        self.resize_segments(self.inner.segments_within(max_bytes))?;
        Ok(lock(&self.inner.costs).charged_bytes())
    }

    /// What it was promised.
    pub fn limits(&self) -> Limits {
        if self.inner.shared.is_forked() {
            return self.inner.config.limits();
        }
        self.inner.limits()
    }

    /// Most bytes of dirty pages from now on. None: 40 % of the frames.
    pub fn set_dirty_max(&self, bytes: Option<u64>) {
        if self.inner.shared.is_forked() {
            return;
        }
        *lock(&self.inner.dirty_max_bytes) = bytes;
        self.inner.set_dirty_max();
        self.inner.tell_cleaner(true);
    }

    /// Follows another policy from now on. Pages stay, and the new policy takes them over in the
    /// order of the old one. Where its size is changing and
    /// waits for a store, so does this; [`Self::begin_policy`] does not.
    pub fn set_policy(&self, policy: PolicyName) -> Result<(), Error> {
        self.inner.shared.check_process()?;
        let mut resizing = lock(&self.inner.resizing);
        self.finish_moves(&mut resizing, None).map_err(Stop::into_error)?;
        self.follow(&mut resizing, policy)
    }

    /// [`Self::set_policy`] that waits for a store that does not answer about a second at most.
    /// False: the policy is the one that it was.
    pub fn begin_policy(&self, policy: PolicyName) -> Result<bool, Error> {
        self.inner.shared.check_process()?;
        let planning = lock(&self.core.ledger.planning);
        let turn = planning.turn(self.core.crew());
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

    /// Gives about so many bytes back to the system, by shrinking. Returns how many it did. Nobody
    /// keeps it from growing again. Waits for the partition's
    /// stores as long as they take; [`Self::begin_reclaim`] does not.
    pub fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        self.inner.shared.check_process()?;
        let before = lock(&self.inner.costs).charged_bytes();
        let mut wanted = None;
        // Looked at when no plan is being carried out, which knows nothing of this.
        self.shrink_alone(|| *wanted.get_or_insert_with(|| self.inner.segments_without(bytes)))?;
        Ok(before.saturating_sub(lock(&self.inner.costs).charged_bytes()))
    }

    /// [`Self::reclaim`] that waits for a store that does not answer about a second at most.
    /// Returns the bytes that were given back, and what is owed: nothing
    /// goes on with that but another call.
    pub fn begin_reclaim(&self, bytes: u64) -> Result<(u64, Owed), Error> {
        self.inner.shared.check_process()?;
        let planning = lock(&self.core.ledger.planning);
        let before = lock(&self.inner.costs).charged_bytes();
        let segments = self.inner.segments_without(bytes);
        let left = u64::from(self.inner.table.live_segments() - segments) * self.inner.segment_bytes();
        let stopped = self.shrink_in_turn(segments, planning.turn(self.core.crew()));
        let reclaimed_bytes = before.saturating_sub(lock(&self.inner.costs).charged_bytes());
        match stopped {
            Ok(()) => Ok((reclaimed_bytes, Owed::default())),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::HeldUp) => {
                let partitions = vec![self.name().to_owned()];
                Ok((reclaimed_bytes, Owed { bytes: left.saturating_sub(reclaimed_bytes), partitions }))
            }
        }
    }

    /// Lets all clean pages go, after the dirty ones were written. The memory stays the
    /// partition's.
    pub fn evict(&self) -> Result<(), Error> {
        self.inner.shared.check_process()?;
        self.objects().iter().try_for_each(|object| object.advise(0, object.len_bytes(), Advice::DontNeed))
    }

    /// What it would have missed of late at other sizes. None where it is not watched: the cache
    /// has no reaper, or the partition is very small.
    pub fn miss_curve(&self) -> Option<octavo_table::MissCurve> {
        if self.inner.shared.is_forked() {
            return None;
        }
        self.inner.table.drain_monitor();
        self.inner.table.miss_curve()
    }

    /// Bytes of all that is learned of its load, by the policy and for its curve.
    #[doc(hidden)]
    pub fn learned_bytes(&self) -> u64 {
        lock(&self.inner.costs).learning_bytes()
            + self.inner.table.monitor().map_or(0, |monitor| monitor.bytes())
    }

    /// Tests only: takes a way, where the partition chooses. It may choose another at its next
    /// look.
    #[doc(hidden)]
    pub fn go_numa_way(&self, way: NumaMode) {
        if self.inner.places.chooses {
            self.inner.auto.go(way);
            *lock(&self.inner.auto.looks) = Looks::default();
        }
    }
}
