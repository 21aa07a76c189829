//! The lanes that blocking calls borrow.
//!
//! Lanes belong to the cache, not to threads: a call takes a lane and gives it back when it
//! returns. Between calls a thread holds no lane, so a thread that ends leaves none behind.
//!
//! - **B1** A *ring lane* has an I/O ring of its own, which costs [`LANE_BYTES`] of the buffer
//!   share and one descriptor. Calls create ring lanes as they need them: at most
//!   [`RING_LANES_MAX`], and at most as many as an eighth of the share pays for (but at least one).
//!   Ring lanes stay until the cache is dropped.
//! - **B2** A call takes the ring lane that its thread used last if that lane is idle. Otherwise it
//!   takes another idle ring lane, or creates one.
//! - **B3** No call waits for a lane. If all ring lanes are lent and no further one can be created,
//!   the call gets a *spare lane* of its own, which takes no descriptor and is not charged. Threads
//!   of the blocking engine do its I/O; one store can hold at most half of these threads
//!   (`octavo-disk`). The call drops its spare lane when it returns. Because of spare lanes, calls
//!   can nest, and calls on other stores continue when calls blocked by a hung store hold all ring
//!   lanes.
//! - **B4** A call gives its lane back without tasks, except for reads ahead. These need no owner:
//!   a task that wants their pages takes their completions, as on any unattended lane. A spare lane
//!   reads nothing ahead, so dropping it does not make the call wait; but of a store that is read
//!   best in units it reads whole units, usually with the one I/O that the call waits for anyway.
//!
//! When the cache is dropped, its ring lanes are dropped, too. Later calls on objects that still
//! exist get spare lanes.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use super::crew::Crew;
use super::lane::{LANE_BYTES, Lane};
use crate::error::Error;
use crate::state::shared::Shared;
use crate::sync::{Arc, Mutex, Ordering, lock, thread_local, try_lock};

/// Most ring lanes of a cache. More concurrent calls gain little from rings of their own, and a
/// process may be limited to 1,024 descriptors.
const RING_LANES_MAX: u64 = 64;

/// Ring lanes may take the buffer share divided by this number.
const SHARE: u64 = 8;

/// The lanes that a cache lends to blocking calls.
pub(crate) struct Lanes {
    pub crew: Arc<Crew>,
    /// A number unique to the cache. A thread remembers it together with the lane that it used
    /// last.
    cache: u64,
    ring_lanes: Box<[Mutex<Place>]>,
}

/// The state of one ring lane.
enum Place {
    NotMade,
    Idle(Arc<Lane>),
    /// A call has the lane, or is creating it.
    Lent,
}

thread_local! {
    /// The number of the cache that this thread last called, and the place of the ring lane that it
    /// used.
    static LAST: Cell<(u64, usize)> = const { Cell::new((u64::MAX, 0)) };
}

impl Place {
    /// Takes the lane, if it is idle, and leaves `next` in its place.
    fn take_idle(&mut self, next: Place) -> Option<Arc<Lane>> {
        match std::mem::replace(self, next) {
            Place::Idle(lane) => Some(lane),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// A lane lent to one call.
pub(crate) struct Borrowed<'l> {
    lanes: &'l Lanes,
    /// `None` only once the lane has been given back.
    lane: Option<Arc<Lane>>,
    /// `None` for a spare lane.
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
        let last = (cache == self.cache).then_some(last);
        let lent = |lane, place| Ok(Borrowed { lanes: self, lane: Some(lane), place });
        if let Some(lane) = last.and_then(|last| self.take(last)) {
            return lent(lane, last);
        }
        let Some((lane, place)) = self.take_any(last.unwrap_or(0)) else {
            let lane = Lane::spare(&self.crew);
            lane.mailbox.set_attended(true);
            return lent(lane, None);
        };
        LAST.with(|last| last.set((self.cache, place)));
        lent(lane, Some(place))
    }

    /// Takes the ring lane of a place, if it is idle.
    fn take(&self, place: usize) -> Option<Arc<Lane>> {
        try_lock(&self.ring_lanes[place])?.take_idle(Place::Lent)
    }

    /// B2: takes an idle ring lane or creates one. Returns the lane and its place, or `None` if the
    /// call gets a spare lane (B3).
    #[cold]
    fn take_any(&self, first: usize) -> Option<(Arc<Lane>, usize)> {
        // Relaxed: a call that does not see the flag yet may still create a lane. `Borrowed::drop`
        // checks the flag again and then drops the lane.
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
                log::debug!("{error}: this call uses plain system calls instead");
                self.crew.shared.reserve.want(LANE_BYTES);
                *lock(&self.ring_lanes[place]) = Place::NotMade;
                None
            }
        }
    }

    /// Drops the idle ring lanes of a closed cache. Calls that have borrowed a lane drop it when
    /// they return.
    pub fn end(&self) {
        for place in &self.ring_lanes {
            let idle = lock(place).take_idle(Place::NotMade);
            // Drop the lane without the lock: the drop may wait for reads ahead.
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
        // Loaded under the place's lock: either `end` takes the lock later and finds the lane idle,
        // or this call sees that the cache is closed.
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
