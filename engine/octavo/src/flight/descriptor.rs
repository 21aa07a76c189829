//! The descriptor of a queue, for an owner that sleeps in an event loop of its own (`epoll`, an
//! async runtime) and not in the lane.
//!
//! The descriptor is an epoll instance with the lane's ring in it. It is readable while the owner
//! has something to take or to do:
//!
//! - **D1** Between two calls of its owner the lane is *armed*: unattended, so that other threads
//!   may take its completions, and parked, so that each sender of news wakes the ring
//!   (`wait/mailbox.rs`). A wake-up makes the ring readable until the owner takes it.
//! - **D2** Each call ends with `arm`: it sets `parked`, fences, and looks for news once more. If
//!   there is any (pages to retry, returned bundles, tasks that have ended, completions that were
//!   not delivered), it wakes the ring itself. As in the mailbox's protocol, a sender either sees
//!   `parked`, or `arm` sees its news.
//! - **D3** A call takes the wake-ups first and looks for news afterwards (`look_awake`). The news
//!   of a wake-up that was taken is therefore found by this call, and a wake-up that comes later
//!   makes the descriptor readable again.
//! - **D4** A thread that takes the lane's completions wakes the ring after it has finished their
//!   transfers (`reap_for_owner`), so ended tasks make the descriptor readable even if the ring's
//!   own entries are gone.
//! - **D5** While a task waits for pages that may be in flight on other lanes, `arm` puts the rings
//!   of unattended lanes into the epoll instance, and counts the owner among the foreign waiters. A
//!   thread that leaves its lane later wakes the owner, which arms again. The next call takes the
//!   completions of all unattended lanes (`look_awake`). So two owners whose pages depend on each
//!   other both wake up, and an owner that never comes back holds up no other.
//!
//! A task of another lane may be held up while the thread that submitted its I/O computes on a
//! processor without timer ticks (`Ring::nudge`): a sleeping owner nudges that thread only when it
//! arms or looks.
//!
//! Not here: owners that sleep in the lane (`parking.rs`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;

use super::lane::Lane;
use crate::error::Error;
use crate::sync::{Arc, Mutex, Ordering, fence, lock};

/// The descriptor of one lane.
pub(crate) struct Descriptor {
    epoll: OwnedFd,
    watch: Mutex<Watch>,
}

/// What the owner waits for besides its own lane (D5).
#[derive(Default)]
struct Watch {
    /// The lanes whose rings are in the epoll instance. They stay alive meanwhile, so that no
    /// other descriptor gets the number of a ring's.
    lanes: Vec<Arc<Lane>>,
    /// The owner counts among the crew's foreign waiters.
    is_counted: bool,
}

impl Descriptor {
    /// Creates the descriptor of a lane.
    ///
    /// # Errors
    /// [`Error::Config`] if the system refuses a descriptor, [`Error::Forked`].
    pub fn new(lane: &Arc<Lane>) -> Result<Descriptor, Error> {
        lane.shared.check_process()?;
        let refused = |why: &str| Error::Config(format!("cannot create a descriptor for this queue: {why}"));
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| refused(&error.to_string()))?;
        match lane.ring.poll_fd() {
            Some(ring) => add(&epoll, ring).map_err(|error| refused(&error.to_string()))?,
            // Models call `is_readable`.
            None if cfg!(shuttle) => {}
            None => return Err(refused("its ring has none")),
        }
        Ok(Descriptor { epoll, watch: Mutex::default() })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether the descriptor would be readable, for models.
    #[cfg(shuttle)]
    pub fn is_readable(&self, lane: &Lane) -> bool {
        lane.ring.has_news() || lock(&self.watch).lanes.iter().any(|lane| lane.ring.has_news())
    }

    /// D2, D5: ends a call of the lane's owner. `has_more` says that completions were not
    /// delivered.
    pub fn arm(&self, lane: &Arc<Lane>, has_more: bool) {
        lane.mailbox.park();
        self.watch(lane);
        let has_ended = || !lane.work().finished.is_empty();
        if has_more || lane.has_news() || has_ended() {
            lane.mailbox.wake();
        }
    }

    /// D5: watches the lanes on which pages that the owner waits for may be in flight.
    fn watch(&self, lane: &Arc<Lane>) {
        let is_waiting = lane.work().waiting > 0;
        let mut watch = lock(&self.watch);
        if !is_waiting && !watch.is_counted {
            return;
        }
        // As in `Lane::sleep`: counted before the look at the lanes. The fence pairs with that in
        // `Lane::leave`.
        watch.count(lane, is_waiting);
        fence(Ordering::SeqCst);
        let others = if is_waiting { lane.crew.unattended(lane) } else { Vec::new() };
        others.iter().for_each(|other| other.ring.nudge());
        self.replace(&mut watch, others);
    }

    fn replace(&self, watch: &mut Watch, lanes: Vec<Arc<Lane>>) {
        let is_in = |list: &[Arc<Lane>], lane: &Arc<Lane>| list.iter().any(|other| Arc::ptr_eq(other, lane));
        for old in watch.lanes.iter().filter(|old| !is_in(&lanes, old)) {
            if let Some(ring) = old.ring.poll_fd() {
                // It was added, or the system has refused that.
                let _ = epoll::delete(&self.epoll, ring);
            }
        }
        for new in lanes.iter().filter(|new| !is_in(&watch.lanes, new)) {
            // Without the ring in it, the owner waits for that lane's owner.
            if let Some(ring) = new.ring.poll_fd()
                && let Err(error) = add(&self.epoll, ring)
            {
                log::warn!("cannot watch another I/O ring ({error}): a queue may wait for its owner");
            }
        }
        watch.lanes = lanes;
    }

    /// Ends the lane's time as an armed one. For a queue that is dropped.
    pub fn disarm(&self, lane: &Arc<Lane>) {
        let mut watch = lock(&self.watch);
        watch.count(lane, false);
        self.replace(&mut watch, Vec::new());
        lane.mailbox.unpark();
    }

    /// Leaves the other lanes alone. For a queue that is dropped in a child of `fork`.
    pub fn leave_to_the_parent(self) {
        std::mem::forget(self.watch);
    }
}

impl Watch {
    fn count(&mut self, lane: &Lane, is_counted: bool) {
        let waiters = &lane.crew.foreign_waiters;
        match (std::mem::replace(&mut self.is_counted, is_counted), is_counted) {
            (false, true) => _ = waiters.fetch_add(1, Ordering::SeqCst),
            (true, false) => _ = waiters.fetch_sub(1, Ordering::SeqCst),
            _ => {}
        }
    }
}

fn add(epoll: &OwnedFd, ring: BorrowedFd<'_>) -> rustix::io::Result<()> {
    epoll::add(epoll, ring, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

impl Lane {
    /// D3: does what `look` does, and takes the wake-ups that made the descriptor readable and, if
    /// a task waits for pages of other lanes, the completions of unattended lanes. Owner only.
    pub fn look_awake(self: &Arc<Self>) {
        self.wait(Some(Duration::ZERO));
        let is_waiting = self.work().waiting > 0;
        if is_waiting {
            for other in self.crew.unattended(self) {
                other.ring.nudge();
                other.reap_for_owner();
            }
        }
        self.look();
    }
}
