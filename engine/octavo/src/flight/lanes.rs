//! The lanes that blocking calls borrow.
//!
//! Lanes belong to the cache, not to threads: a call takes one and gives it back when it returns.
//! A thread between calls holds nothing, and a thread that ends leaves nothing behind.
//!
//! - **B1** A *ring lane* has an I/O ring of its own, which costs [`LANE_BYTES`] of the buffer
//!   share and one descriptor. Calls make ring lanes when they need them, up to [`RING_LANES_MAX`]
//!   and an eighth of the share. Ring lanes stay until the cache is dropped.
//! - **B2** A call takes the ring lane that its thread used last, or else another idle one, or
//!   makes one.
//! - **B3** No call waits for a lane. If all ring lanes are lent, or none can be made, the call
//!   gets a *spare lane* of its own: no descriptor and no charge. Threads of the blocking engine
//!   do its I/O; no store may hold more of them than it leaves to the other stores
//!   (`octavo-disk`). The call drops its spare lane when it returns. So calls that a hung store
//!   blocks do not take ring lanes from calls that could use them, and calls may nest.
//! - **B4** A lane comes back without tasks, except for reads ahead. These need no owner: a task
//!   that wants their pages takes their completions, as on any unattended lane. A spare lane reads
//!   nothing ahead, so its call has nothing to wait for.
//!
//! Once the cache is dropped its ring lanes are too, and calls on objects that are still held get
//! spare lanes.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use super::crew::Crew;
use super::lane::{LANE_BYTES, Lane};
use crate::error::Error;
use crate::state::shared::Shared;
use crate::sync::{Arc, Mutex, Ordering, lock, thread_local, try_lock};

/// More calls at a time gain little from rings of their own, and a process may be limited to 1,024
/// descriptors.
const RING_LANES_MAX: u64 = 64;

/// The part of the buffer share that ring lanes may take.
const SHARE: u64 = 8;

/// The lanes that a cache lends to blocking calls.
pub(crate) struct Lanes {
    pub crew: Arc<Crew>,
    /// Tells caches apart, for threads that remember which lane they used last.
    cache: u64,
    ring_lanes: Box<[Mutex<Place>]>,
}

/// The state of one ring lane.
enum Place {
    NotMade,
    Idle(Arc<Lane>),
    /// A call has it, or is about to make it.
    Lent,
}

thread_local! {
    /// The cache that this thread last called, and the ring lane that it used.
    static LAST: Cell<(u64, usize)> = const { Cell::new((u64::MAX, 0)) };
}

/// A lane lent to one call.
pub(crate) struct Borrowed<'l> {
    lanes: &'l Lanes,
    /// Some until the lane is given back.
    lane: Option<Arc<Lane>>,
    /// None: a spare lane.
    place: Option<usize>,
}

impl Lanes {
    pub fn new(shared: Arc<Shared>) -> Lanes {
        // A plain atomic, not the model checker's: only uniqueness matters, so Relaxed is enough.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let count = (shared.reserve.max_bytes() / SHARE / LANE_BYTES).clamp(1, RING_LANES_MAX);
        Lanes {
            crew: Crew::new(shared),
            cache: NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            ring_lanes: (0..count).map(|_| Mutex::new(Place::NotMade)).collect(),
        }
    }

    /// Lends a lane to a blocking call (B2, B3).
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn borrow(&self) -> Result<Borrowed<'_>, Error> {
        self.crew.shared.check_process()?;
        let (cache, last) = LAST.with(Cell::get);
        let first = if cache == self.cache { last } else { 0 };
        if cache == self.cache
            && let Some(lane) = self.take(last)
        {
            return Ok(Borrowed { lanes: self, lane: Some(lane), place: Some(last) });
        }
        let Some((lane, place)) = self.take_any(first) else {
            let lane = Lane::spare(&self.crew);
            lane.mailbox.set_attended(true);
            return Ok(Borrowed { lanes: self, lane: Some(lane), place: None });
        };
        LAST.with(|last| last.set((self.cache, place)));
        Ok(Borrowed { lanes: self, lane: Some(lane), place: Some(place) })
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

    /// B2; None means B3. Returns a lane and its place.
    #[cold]
    fn take_any(&self, first: usize) -> Option<(Arc<Lane>, usize)> {
        // Relaxed: a call that does not see the flag yet gives its lane back to an emptied place,
        // or drops it (`Borrowed::drop`).
        if self.crew.shared.closed.load(Ordering::Relaxed) {
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
        match Lane::new(&self.crew, "an I/O ring for a blocking call") {
            Ok(lane) => Some((lane, place)),
            Err(error) => {
                log::debug!("{error}: the call does without");
                *lock(&self.ring_lanes[place]) = Place::NotMade;
                None
            }
        }
    }

    /// Drops the idle ring lanes of a closed cache. Calls drop the lanes that they have borrowed.
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
            // Not under the lock: dropping a lane may wait for its reads ahead.
            drop(idle);
        }
    }
}

impl Deref for Borrowed<'_> {
    type Target = Arc<Lane>;

    fn deref(&self) -> &Arc<Lane> {
        self.lane.as_ref().expect("given back by drop alone")
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let lane = self.lane.take().expect("given back once");
        let is_whole = !std::thread::panicking();
        let Some(place) = self.place else {
            if is_whole {
                lane.finish_served();
            }
            return;
        };
        let mut place = lock(&self.lanes.ring_lanes[place]);
        // Under the place's lock: `end` comes later and finds the lane idle, or this call sees
        // that the cache is closed.
        let stays = is_whole && !self.lanes.crew.shared.closed.load(Ordering::Relaxed);
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
