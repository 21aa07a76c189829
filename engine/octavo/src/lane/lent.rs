//! The lanes that blocking calls borrow. They belong to the cache, not to threads: a call takes one
//! and gives it back when it returns, so a thread that is in no call holds nothing, and nothing of
//! it is left when it ends.
//!
//! - **B1** A *ring lane* has an I/O ring of its own, which costs [`LANE_BYTES`] of the buffer
//!   share and one descriptor. Calls make ring lanes when they need them, up to [`RING_LANES_MAX`]
//!   and an eighth of the share. Ring lanes stay until the cache is dropped.
//! - **B2** A call takes the ring lane that its thread used last, or else another idle one, or
//!   makes one.
//! - **B3** No call waits for a lane. If all ring lanes are lent, or none can be made, the call
//!   gets a *spare lane* of its own: no descriptor, no charge, and its I/O is done by the threads
//!   of the blocking engine, of which no store has more than it leaves to the others
//!   (`octavo-disk`). It is dropped when the call returns. So calls that a hung store holds up keep
//!   ring lanes from nobody who could not do without, and calls may nest.
//! - **B4** A lane comes back without tasks, except for reads ahead. Those need no owner: whoever
//!   wants their pages takes their completions, as those of any lane that is not attended. A spare
//!   lane reads nothing ahead, so that its call has nothing to wait for.
//!
//! Once the cache is dropped its ring lanes are too, and calls on objects that are still held get
//! spare lanes. (A lane keeps `Shared` alive, which keeps the ring lanes.)

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Weak;
use std::sync::atomic::AtomicU64;

use super::{LANE_BYTES, Lane};
use crate::cache::Shared;
use crate::sync::{Arc, Mutex, Ordering, lock, thread_local, try_lock};

/// Calls beyond this many at a time gain little from rings of their own, and a process may have
/// 1,024 descriptors.
const RING_LANES_MAX: u64 = 64;

/// The part of the buffer share that ring lanes may take.
const SHARE: u64 = 8;

/// Lanes that are gone are forgotten when there are twice as many entries as there were lanes at
/// the last look, and this many more.
const FORGET_FROM: usize = 16;

/// All lanes of a cache, and those that it lends.
pub(crate) struct Lanes {
    /// Tells caches apart, for threads that remember which lane they used last.
    cache: u64,
    ring_lanes: Box<[Mutex<Place>]>,
    known: Mutex<Known>,
}

/// Where a ring lane is.
enum Place {
    NotMade,
    Idle(Arc<Lane>),
    /// A call has it, or is about to make it.
    Lent,
}

/// Every lane, also those of queues, workers and the cleaner.
#[derive(Default)]
struct Known {
    lanes: Vec<Weak<Lane>>,
    forget_at: usize,
}

thread_local! {
    /// The cache that this thread last called, and the ring lane that it used.
    static LAST: Cell<(u64, usize)> = const { Cell::new((u64::MAX, 0)) };
}

/// A lane that a call has borrowed.
pub(crate) struct Borrowed {
    /// Some until it is given back.
    lane: Option<Arc<Lane>>,
    /// None: a spare lane.
    place: Option<usize>,
}

impl Lanes {
    pub fn new(buffers_max_bytes: u64) -> Lanes {
        // Not the model checker's: only uniqueness matters, so Relaxed is enough.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let count = (buffers_max_bytes / SHARE / LANE_BYTES).clamp(1, RING_LANES_MAX);
        Lanes {
            cache: NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            ring_lanes: (0..count).map(|_| Mutex::new(Place::NotMade)).collect(),
            known: Mutex::default(),
        }
    }

    /// A new lane of the cache.
    pub fn add(&self, lane: &Arc<Lane>) {
        let mut known = lock(&self.known);
        if known.lanes.len() >= known.forget_at {
            known.lanes.retain(|lane| lane.strong_count() > 0);
            known.forget_at = 2 * known.lanes.len() + FORGET_FROM;
        }
        known.lanes.push(Arc::downgrade(lane));
    }

    fn others(&self, own: &Lane) -> Vec<Arc<Lane>> {
        let known = lock(&self.known);
        let others = known.lanes.iter().filter_map(Weak::upgrade);
        others.filter(|lane| !std::ptr::eq(&**lane, own)).collect()
    }

    /// The other lanes that have I/O in flight and nobody who waits for it.
    pub fn unattended(&self, own: &Lane) -> Vec<Arc<Lane>> {
        let mut others = self.others(own);
        others.retain(|lane| !lane.is_attended() && lane.ring.in_flight() > 0);
        others
    }

    /// Wakes the lanes that sleep, so that they look again at who is attended.
    pub fn wake_parked(&self, own: &Lane) {
        self.others(own).iter().for_each(|lane| lane.wake_if_parked());
    }

    /// Takes the ring lane of a place, if it is idle.
    fn take(&self, place: usize) -> Option<Arc<Lane>> {
        let mut place = try_lock(&self.ring_lanes[place])?;
        match std::mem::replace(&mut *place, Place::Lent) {
            Place::Idle(lane) => Some(lane),
            other => {
                *place = other;
                None
            }
        }
    }

    /// B2, and B3 by a `None`. Returns a lane and its place.
    #[cold]
    fn take_any(&self, shared: &Arc<Shared>, first: usize) -> Option<(Arc<Lane>, usize)> {
        // Relaxed: who does not see it yet gives the lane back to places that are emptied, or drops
        // it (`Borrowed::drop`).
        if shared.closed.load(Ordering::Relaxed) {
            return None;
        }
        let count = self.ring_lanes.len();
        let mut places = (first..first + count).map(|place| place % count);
        if let Some(found) = places.find_map(|place| Some((self.take(place)?, place))) {
            return Some(found);
        }
        let is_new = |place: &usize| {
            let place = try_lock(&self.ring_lanes[*place]);
            place.is_some_and(|mut place| {
                let is_new = matches!(*place, Place::NotMade);
                if is_new {
                    *place = Place::Lent;
                }
                is_new
            })
        };
        let place = (0..count).find(is_new)?;
        match Lane::new(shared, "an I/O ring for a blocking call") {
            Ok(lane) => Some((lane, place)),
            Err(error) => {
                log::debug!("{error}: the call does without");
                *lock(&self.ring_lanes[place]) = Place::NotMade;
                None
            }
        }
    }

    /// Drops the idle ring lanes, of a cache that is closed: those that are lent are dropped by
    /// their calls.
    pub fn end(&self) {
        for place in &self.ring_lanes {
            let idle = {
                let mut place = lock(place);
                match std::mem::replace(&mut *place, Place::NotMade) {
                    Place::Idle(lane) => Some(lane),
                    other => {
                        *place = other;
                        None
                    }
                }
            };
            // It may wait for what was read ahead: not under the lock.
            drop(idle);
        }
    }
}

impl Borrowed {
    /// B2, B3.
    pub fn from(shared: &Arc<Shared>) -> Borrowed {
        let lanes = &shared.lanes;
        let (cache, last) = LAST.with(Cell::get);
        let first = if cache == lanes.cache { last } else { 0 };
        if cache == lanes.cache
            && let Some(lane) = lanes.take(last)
        {
            return Borrowed { lane: Some(lane), place: Some(last) };
        }
        let Some((lane, place)) = lanes.take_any(shared, first) else {
            let lane = Lane::spare(shared);
            lane.attend();
            return Borrowed { lane: Some(lane), place: None };
        };
        LAST.with(|last| last.set((lanes.cache, place)));
        Borrowed { lane: Some(lane), place: Some(place) }
    }
}

impl Deref for Borrowed {
    type Target = Arc<Lane>;

    fn deref(&self) -> &Arc<Lane> {
        self.lane.as_ref().expect("given back by drop alone")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let lane = self.lane.take().expect("given back once");
        let is_whole = !std::thread::panicking();
        let Some(place) = self.place else {
            if is_whole {
                lane.finish_served();
            }
            return;
        };
        let shared = lane.shared.clone();
        let mut place = lock(&shared.lanes.ring_lanes[place]);
        // Under the place's lock: either `end` comes later and finds it idle, or this sees that the
        // cache is closed.
        let stays = is_whole && !shared.closed.load(Ordering::Relaxed);
        if stays {
            debug_assert!(lane.is_idle(), "B4");
            *place = Place::Idle(lane);
            return;
        }
        *place = Place::NotMade;
        drop(place);
        if is_whole {
            lane.finish_served();
        }
    }
}
