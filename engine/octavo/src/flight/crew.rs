//! The registry of a cache's lanes, in which a waiting owner finds the lanes whose completions no
//! owner takes. Not here: how calls borrow lanes (`lanes.rs`).

use std::sync::{OnceLock, Weak};

use super::lane::Lane;
use super::messages::Post;
use crate::state::shared::Shared;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, lock};

/// Slack before dead entries are pruned: [`Crew::add`] drops the entries of freed lanes once the
/// list has twice as many entries as the last pruning kept, plus this many.
const PRUNE_SLACK: usize = 16;

/// All lanes of a cache: those of queues, calls, workers and the cleaner.
pub(crate) struct Crew {
    pub shared: Arc<Shared>,
    known: Mutex<Known>,
    /// Number of lanes whose owners are asleep while a page that they want may be in flight on
    /// another lane.
    pub foreign_waiters: AtomicU32,
    /// Number of lanes that have a ring.
    pub rings: AtomicU64,
    /// Number of queues.
    pub queues: AtomicU64,
    /// Where requests for other nodes are sent; empty unless the mode sends messages.
    pub post: OnceLock<Post>,
}

#[derive(Default)]
struct Known {
    lanes: Vec<Weak<Lane>>,
    prune_at: usize,
}

impl Crew {
    pub fn new(shared: Arc<Shared>) -> Arc<Crew> {
        Arc::new(Crew {
            shared,
            known: Mutex::default(),
            foreign_waiters: AtomicU32::new(0),
            rings: AtomicU64::new(0),
            queues: AtomicU64::new(0),
            post: OnceLock::new(),
        })
    }

    /// Adds a new lane.
    pub fn add(&self, lane: &Arc<Lane>) {
        let mut known = lock(&self.known);
        if known.lanes.len() >= known.prune_at {
            known.lanes.retain(|lane| lane.strong_count() > 0);
            known.prune_at = 2 * known.lanes.len() + PRUNE_SLACK;
        }
        known.lanes.push(Arc::downgrade(lane));
    }

    fn others(&self, own: &Lane) -> Vec<Arc<Lane>> {
        let known = lock(&self.known);
        let others = known.lanes.iter().filter_map(Weak::upgrade);
        others.filter(|lane| !std::ptr::eq(&**lane, own)).collect()
    }

    /// Returns the other lanes that have I/O in flight and whose owners are not taking completions.
    pub fn unattended(&self, own: &Lane) -> Vec<Arc<Lane>> {
        let mut others = self.others(own);
        others.retain(|lane| !lane.mailbox.is_attended() && lane.ring.in_flight() > 0);
        others
    }

    /// Wakes the sleeping owners of the other lanes, so that they check again which lanes are
    /// attended.
    pub fn wake_parked(&self, own: &Lane) {
        self.others(own).iter().for_each(|lane| lane.mailbox.notify());
    }
}
