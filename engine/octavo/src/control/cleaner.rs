//! The cleaner thread writes dirty pages back before the evictor needs their frames.
//!
//! - Above half of a partition's dirty limit it writes immediately; below, once pages are five
//!   seconds old.
//! - It runs one *pass* (`flight/writeback.rs`) per object, concurrently, on its own lane, and
//!   waits for none of them. A slow or hung store delays only its own object: the bounce pages
//!   and I/O threads that one store can hold are limited (`memory/bounce.rs`, `octavo-disk`).
//! - It sleeps until a pass ends, the bell rings, or a deadline arrives.
//!
//! Not here: how pages are written (`flight/writeback.rs`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::core::Core;
use crate::error::Error;
use crate::flight::{Lane, Object, Task};
use crate::state::events::Happened;
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::sync::{Arc, Ordering, lock};

/// Age at which the cleaner writes dirty pages even below half of the dirty limit.
const DIRTY_AGE: Duration = Duration::from_secs(5);

/// How long the cleaner leaves stores alone that have refused a write.
const REST_AFTER_ERROR: Duration = Duration::from_secs(1);

/// Interval between checks of a partition above half of its limit. The bell stays off meanwhile:
/// each of the partition's writes would ring it.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// Between two attempts to close objects without handles that are in use.
const CLOSE_AGAIN: Duration = Duration::from_millis(500);

/// The state of the cleaner thread.
pub(crate) struct Cleaner {
    /// The cleaner's lane: every task on it is a pass.
    lane: Arc<Lane>,
    /// When every page that was dirty when this deadline was set is [`DIRTY_AGE`] old. `None`: no
    /// page is dirty.
    aged_at: Option<Instant>,
    /// When stores that refused are tried again. `None`: at the next look.
    again_at: Option<Instant>,
    /// When to check again the partitions that were above half of their limits. `None`: there
    /// were none.
    recheck_at: Option<Instant>,
    /// When to try again to close objects without handles. `None`: there are none.
    close_at: Option<Instant>,
    /// The last look found no dirty page in any partition: the next dirty page rings the bell.
    was_clean: bool,
    /// Objects whose refusals were told, with their partitions.
    refusing: BTreeSet<(String, String)>,
}

impl Cleaner {
    /// Creates the cleaner of a cache and connects it to the bell.
    pub fn new(lane: Arc<Lane>) -> Cleaner {
        lane.shared.bell.connect(&lane.mailbox);
        let refusing = BTreeSet::new();
        Cleaner {
            lane,
            aged_at: None,
            again_at: None,
            recheck_at: None,
            close_at: None,
            was_clean: true,
            refusing,
        }
    }

    /// The cleaner thread's loop, until the cache is dropped.
    pub fn run(mut self, core: &Arc<Core>) {
        let shared = self.lane.shared.clone();
        // No other thread needs to take this lane's completions.
        self.lane.mailbox.set_attended(true);
        loop {
            let look_at = [self.aged_at, self.again_at, self.recheck_at, self.close_at];
            let look_at = look_at.into_iter().flatten().min();
            let time = look_at.map(|at| at.saturating_duration_since(Instant::now()));
            let ended = self.lane.work_a_while(time, || shared.bell.has_rung());
            let now = Instant::now();
            if ended.into_iter().any(|pass| pass.result().is_err()) {
                self.again_at = Some(now + REST_AFTER_ERROR);
            }
            // While passes run and no partition is above half of its limit, look only after the
            // last pass ends, the bell rings, or a deadline arrives.
            let is_busy = self.recheck_at.is_none() && !self.lane.work().tasks.is_empty();
            if is_busy && !shared.bell.has_rung() && look_at.is_none_or(|at| at > now) {
                continue;
            }
            if !shared.bell.begin_look(&shared.closed) {
                return self.end();
            }
            self.look(core, now);
            self.tell_refusals(core);
        }
    }

    /// Starts the passes needed now, and decides when to look again if the bell does not ring.
    fn look(&mut self, core: &Arc<Core>, now: Instant) {
        let bell = &self.lane.shared.bell;
        let has_aged = self.aged_at.take_if(|at| *at <= now).is_some();
        self.again_at.take_if(|at| *at <= now);
        let asks_again = self.again_at.is_none();
        let is_time = self.recheck_at.is_some_and(|at| at <= now);
        let (objects, partitions): (BTreeSet<*const ObjectInner>, BTreeSet<*const PartitionInner>) = {
            let work = self.lane.work();
            let objects = work.tasks.iter().map(|(_, pass)| &pass.object);
            objects.map(|object| (Arc::as_ptr(object), Arc::as_ptr(&object.partition))).unzip()
        };
        let (mut is_dirty, mut is_urgent) = (false, false);
        self.close_at = None;
        for partition in core.partitions() {
            let inner = &partition.inner;
            if close_left(inner) {
                self.close_at = Some(now + CLOSE_AGAIN);
            }
            let (dirty, most) = (inner.table.dirty_pages(), inner.dirty_max_pages());
            if dirty == 0 || self.was_clean {
                inner.clean_until.advance(now);
            }
            if dirty == 0 {
                continue;
            }
            is_dirty = true;
            is_urgent |= dirty > most / 2;
            let pages_max = match dirty > most / 2 {
                _ if has_aged => u64::MAX,
                // While one of its passes runs (its store may hang), search the partition for other
                // objects' dirty pages at most once per `LOOK_AROUND`.
                true if partitions.contains(&Arc::as_ptr(inner)) && !is_time => 0,
                // Write until a quarter of the limit is dirty.
                true => dirty - most / 4,
                false => 0,
            };
            let mut wanted = Vec::new();
            for object in partition.objects_in_passing() {
                let refused = lock(&object.inner.faults).refusal().is_some();
                // Relaxed: a hint. An object without handles closes once it is clean.
                let is_left = object.inner.handles.load(Ordering::Relaxed) == 0;
                let pages_max = match refused {
                    true if asks_again => u64::MAX,
                    true => 0,
                    false if is_left => u64::MAX,
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
                // A refused page may be gone: then the pass clears the error.
                let is_dirty = dirty.contains(&object.inner.id);
                if refused || is_dirty {
                    self.begin(&object, pages_max);
                }
                if !is_dirty {
                    object.inner.clean_until.advance(now);
                }
            }
        }
        self.was_clean = !is_dirty;
        if !is_dirty {
            (self.aged_at, self.again_at, self.recheck_at) = (None, None, None);
            return;
        }
        bell.rest(is_urgent);
        self.aged_at.get_or_insert(now + DIRTY_AGE);
        let recheck_at = self.recheck_at.filter(|at| *at > now).unwrap_or(now + LOOK_AROUND);
        self.recheck_at = is_urgent.then_some(recheck_at);
    }

    fn begin(&self, object: &Object, pages_max: u64) {
        let mut work = self.lane.work();
        self.lane.start(&mut work, Task::pass(&object.inner, pages_max));
        self.lane.flush(&mut work);
    }

    /// Ends the passes as soon as their I/O in flight has completed.
    fn end(self) {
        for (_, task) in &mut self.lane.work().tasks {
            let object = task.object.name.clone();
            task.fail(Error::Closed { object });
        }
        self.lane.work_until(|work| work.tasks.is_empty());
    }

    /// Tells which objects start to refuse write-back, and which accept it again: one event per
    /// change, however often the cleaner tries.
    fn tell_refusals(&mut self, core: &Arc<Core>) {
        let refusing = &mut self.refusing;
        for partition in core.partitions() {
            let is_clean = partition.inner.table.dirty_pages() == 0;
            for object in partition.objects_in_passing() {
                let error = {
                    let mut faults = lock(&object.inner.faults);
                    if is_clean {
                        // The refused pages were discarded, or written by another task in the
                        // meantime.
                        faults.written();
                    }
                    faults.refusal().cloned()
                };
                if error.is_none() && refusing.is_empty() {
                    continue;
                }
                let names = (partition.name().to_owned(), object.name().to_owned());
                let is_news = match &error {
                    Some(_) => refusing.insert(names.clone()),
                    None => refusing.remove(&names),
                };
                if is_news {
                    let (partition, name) = names;
                    core.shared.events.add(match error {
                        Some(error) => {
                            let dirty_bytes = object.stat().dirty_bytes;
                            Happened::WritebackFailed { partition, object: name, dirty_bytes, error }
                        }
                        None => Happened::WritebackRecovered { partition, object: name },
                    });
                }
            }
        }
    }
}

/// Closes the objects of a partition that have no handles, if they are clean and idle (D3 of
/// `flight/handle.rs`). Returns whether some stay open.
fn close_left(partition: &PartitionInner) -> bool {
    // Acquire: pairs with the drop of a handle.
    if !partition.has_leaving.swap(false, Ordering::Acquire) {
        return false;
    }
    let mut some_stay = false;
    for object in partition.open_objects() {
        // Acquire: pairs with the drop of the last handle.
        some_stay |= object.handles.load(Ordering::Acquire) == 0 && !object.close_idle();
    }
    if some_stay {
        // Relaxed: only this thread clears it.
        partition.has_leaving.store(true, Ordering::Relaxed);
    }
    some_stay
}
