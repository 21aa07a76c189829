//! What the lanes of one cache know of each other. Not here: how calls borrow lanes (`lanes.rs`).

use std::sync::{OnceLock, Weak};

use super::lane::Lane;
use super::messages::Post;
use crate::state::shared::Shared;
use crate::sync::{Arc, AtomicU32, Mutex, lock};

/// Lanes that are gone are forgotten when there are twice as many entries as there were lanes at
/// the last look, and this many more.
const FORGET_FROM: usize = 16;

/// All lanes of a cache: those of queues, calls, workers and the cleaner.
pub(crate) struct Crew {
    pub shared: Arc<Shared>,
    known: Mutex<Known>,
    /// Lanes whose owners sleep while a page that they want may be in flight on another lane.
    pub foreign: AtomicU32,
    /// Where requests for other nodes are sent; empty unless the mode sends messages.
    pub post: OnceLock<Post>,
}

#[derive(Default)]
struct Known {
    lanes: Vec<Weak<Lane>>,
    forget_at: usize,
}

impl Crew {
    pub fn new(shared: Arc<Shared>) -> Arc<Crew> {
        Arc::new(Crew { shared, known: Mutex::default(), foreign: AtomicU32::new(0), post: OnceLock::new() })
    }

    /// Adds a new lane.
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

    /// The other lanes that have I/O in flight and no owner that waits for it.
    pub fn unattended(&self, own: &Lane) -> Vec<Arc<Lane>> {
        let mut others = self.others(own);
        others.retain(|lane| !lane.mailbox.is_attended() && lane.ring.in_flight() > 0);
        others
    }

    /// Wakes the owners that sleep, so that they look again at which lanes are attended.
    pub fn wake_parked(&self, own: &Lane) {
        self.others(own).iter().for_each(|lane| lane.mailbox.wake_if_parked());
    }
}
