//! The cleaner: a thread that writes dirty pages ahead of the evictor, at once what is over half of
//! a partition's limit, the rest when it has aged.
//!
//! It begins *passes* (`clean.rs`), one an object, side by side on a lane of its own, and waits for
//! none of them: a store that is slow, or hangs, holds up its own object. What such a store could
//! take from all others is bounded where it is given: bounce pages (`bounce.rs`), and threads
//! (`octavo-disk`).
//!
//! It sleeps on its lane, until a pass has ended, somebody rings, or it is time for something. What
//! is not here: how pages are written (`clean.rs`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::core::Core;
use crate::error::Error;
use crate::flight::{Lane, Object, Task};
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::sync::{Arc, Ordering, lock};

/// How long a page may stay dirty before the cleaner writes it without need.
const DIRTY_AGE: Duration = Duration::from_secs(5);

/// How long stores that have refused are left alone.
const REST_AFTER_ERROR: Duration = Duration::from_secs(1);

/// How often it is looked whether a partition stays over half of its limit: each of its writes
/// would ring.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// What the cleaner's thread knows.
pub(crate) struct Cleaner {
    /// Every task of it is a pass.
    lane: Arc<Lane>,
    /// When all that is dirty will have aged. None: nothing is dirty.
    aged_at: Option<Instant>,
    /// When stores that have refused are asked again. None: at the next look.
    again_at: Option<Instant>,
    /// When to look again at partitions that were over half of their limits at the last look. None:
    /// there was none.
    around_at: Option<Instant>,
    /// Objects that were said to refuse.
    refusing: BTreeSet<String>,
}

impl Cleaner {
    /// The cleaner of a cache, which hears its bell from now on.
    pub fn new(lane: Arc<Lane>) -> Cleaner {
        lane.shared.bell.connect(&lane.mailbox);
        Cleaner { lane, aged_at: None, again_at: None, around_at: None, refusing: BTreeSet::new() }
    }

    /// What its thread does while there is a cache.
    pub fn run(mut self, core: &Arc<Core>) {
        let shared = self.lane.shared.clone();
        // Nobody else needs to look after its lane.
        self.lane.mailbox.set_attended(true);
        loop {
            let look_at = [self.aged_at, self.again_at, self.around_at].into_iter().flatten().min();
            let time = look_at.map(|at| at.saturating_duration_since(Instant::now()));
            let ended = self.lane.work_a_while(time, || shared.bell.has_rung());
            let now = Instant::now();
            if ended.into_iter().any(|pass| pass.result().is_err()) {
                self.again_at = Some(now + REST_AFTER_ERROR);
            }
            // Where nobody is in need, the last of many passes is the one to look after.
            let is_busy = self.around_at.is_none() && !self.lane.work().tasks.is_empty();
            if is_busy && !shared.bell.has_rung() && look_at.is_none_or(|at| at > now) {
                continue;
            }
            // Relaxed: the wake-up of the bell orders it.
            if shared.closed.load(Ordering::Relaxed) {
                return self.end();
            }
            self.look(core, now);
            self.tell_refusals(core);
        }
    }

    /// Begins the passes that are wanted now, and decides when to look again if nobody rings.
    fn look(&mut self, core: &Arc<Core>, now: Instant) {
        let bell = &self.lane.shared.bell;
        bell.look_now();
        let has_aged = self.aged_at.take_if(|at| *at <= now).is_some();
        self.again_at.take_if(|at| *at <= now);
        let asks_again = self.again_at.is_none();
        let is_time = self.around_at.is_some_and(|at| at <= now);
        let (objects, partitions): (BTreeSet<*const ObjectInner>, BTreeSet<*const PartitionInner>) = {
            let work = self.lane.work();
            let objects = work.tasks.iter().map(|(_, pass)| &pass.object);
            objects.map(|object| (Arc::as_ptr(object), Arc::as_ptr(&object.partition))).unzip()
        };
        let (mut is_dirty, mut is_urgent) = (false, false);
        for partition in core.partitions() {
            let inner = &partition.inner;
            let (dirty, most) = (inner.table.dirty_pages(), inner.dirty_max_pages());
            if dirty == 0 {
                continue;
            }
            is_dirty = true;
            is_urgent |= dirty > most / 2;
            let pages_max = match dirty > most / 2 {
                _ if has_aged => u64::MAX,
                // Where a store hangs, what is dirty of others in its partition is not looked for all the
                // time.
                true if partitions.contains(&Arc::as_ptr(inner)) && !is_time => 0,
                // Down to a quarter.
                true => dirty - most / 4,
                false => 0,
            };
            let mut wanted = Vec::new();
            for object in partition.objects() {
                let refused = lock(&object.inner.writeback_error).is_some();
                let pages_max = match refused {
                    true if asks_again => u64::MAX,
                    true => 0,
                    false => pages_max,
                };
                if pages_max > 0 && !objects.contains(&Arc::as_ptr(&object.inner)) {
                    wanted.push((object, pages_max, refused));
                }
            }
            if wanted.is_empty() {
                continue;
            }
            let dirty = inner.dirty_objects();
            for (object, pages_max, refused) in wanted {
                // What was refused may be gone: then the pass says that nothing is refused any more.
                if refused || dirty.contains(&object.inner.id) {
                    self.begin(&object, pages_max);
                }
            }
        }
        if !is_dirty {
            (self.aged_at, self.again_at, self.around_at) = (None, None, None);
            return;
        }
        bell.rest(is_urgent);
        self.aged_at.get_or_insert(now + DIRTY_AGE);
        let around_at = self.around_at.filter(|at| *at > now).unwrap_or(now + LOOK_AROUND);
        self.around_at = is_urgent.then_some(around_at);
    }

    fn begin(&self, object: &Object, pages_max: u64) {
        let mut work = self.lane.work();
        self.lane.start(&mut work, Task::pass(&object.inner, pages_max));
        self.lane.flush(&mut work);
    }

    /// Ends the passes, as soon as what they have in flight is back.
    fn end(self) {
        for (_, task) in &mut self.lane.work().tasks {
            let object = task.object.name.clone();
            task.fail(Error::Closed { object });
        }
        self.lane.work_until(|work| work.tasks.is_empty());
    }

    /// Says in the log which objects begin to refuse what is written back, and which take it again:
    /// a line each time, however often they are asked.
    fn tell_refusals(&mut self, core: &Arc<Core>) {
        let refusing = &mut self.refusing;
        for partition in core.partitions() {
            let is_clean = partition.inner.table.dirty_pages() == 0;
            for object in partition.objects() {
                let error = {
                    let mut error = lock(&object.inner.writeback_error);
                    // What was refused has been discarded, or written by the way.
                    error.take_if(|_| is_clean);
                    error.clone()
                };
                if error.is_none() && refusing.is_empty() {
                    continue;
                }
                let name = format!("partition {}: {}", partition.name(), object.name());
                match error {
                    Some(error) if !refusing.contains(&name) => {
                        let dirty = object.stat().dirty_bytes;
                        log::warn!(
                            "{name}: write-back fails, {dirty} dirty bytes stay and are tried again: {error}"
                        );
                        refusing.insert(name);
                    }
                    None if refusing.remove(&name) => log::warn!("{name}: write-back works again"),
                    _ => {}
                }
            }
        }
    }
}
