//! What the clones of an [`Object`](super::Object) share. With the last of them the object closes.
//!
//! - **D1** `ObjectInner::handles` counts the families of clones: that of the call that opened the
//!   object, and one for each list of the open objects. The engine's own handles do not count.
//! - **D2** When the count falls to zero, the object closes at once if no task works on it and
//!   none of its pages is dirty or in use. That waits for no I/O, and does not sync the store.
//! - **D3** Otherwise the object stays open, and the cleaner writes its dirty pages and tries
//!   again. If the store refuses them, they stay dirty, as those of an object with handles, and an
//!   event says so. A cache without a cleaner tries again only when another handle is dropped.
//! - **D4** The open objects are listed under the lock of their list, and under that lock the
//!   object leaves it. No object that was listed closes but by another call.
//!
//! Not here: closing an object that has handles (`api/lifecycle.rs`).

use std::ops::Deref;

use super::lanes::Lanes;
use super::task::EVERY;
use crate::state::partition::ObjectInner;
use crate::sync::{Arc, Ordering, lock};

/// The references to an object that its list and the thread that closes it have.
const OWN: usize = 2;

/// The part of an object that a family of clones shares.
pub(crate) struct Handle {
    lanes: Arc<Lanes>,
    /// `None`: it does not count.
    counted: Option<Arc<ObjectInner>>,
}

impl Handle {
    /// Creates a handle that counts (D1).
    pub fn counted(object: &Arc<ObjectInner>, lanes: &Arc<Lanes>) -> Arc<Handle> {
        // Relaxed: the caller has the object from its list, or has just made it.
        object.handles.fetch_add(1, Ordering::Relaxed);
        Arc::new(Handle { lanes: lanes.clone(), counted: Some(object.clone()) })
    }

    /// Creates a handle that does not count.
    pub fn passing(lanes: &Arc<Lanes>) -> Arc<Handle> {
        Arc::new(Handle { lanes: lanes.clone(), counted: None })
    }
}

impl Deref for Handle {
    type Target = Lanes;

    fn deref(&self) -> &Lanes {
        &self.lanes
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(object) = &self.counted else { return };
        // AcqRel: the last one sees what was done through the others.
        if object.handles.fetch_sub(1, Ordering::AcqRel) > 1 || object.partition.shared.is_forked() {
            return;
        }
        if !object.close_idle() {
            // Release: pairs with the cleaner's swap.
            object.partition.has_leaving.store(true, Ordering::Release);
            object.partition.shared.bell.ring();
        }
    }
}

impl ObjectInner {
    /// Closes the object if nothing uses it and no page is dirty (D2). Returns whether it is
    /// closed. The caller has one reference.
    pub fn close_idle(self: &Arc<ObjectInner>) -> bool {
        if self.is_closed() {
            return true;
        }
        if Arc::strong_count(self) > OWN || !self.ranges.try_close(EVERY) {
            return false;
        }
        let taken = self.take_pages(&EVERY);
        let is_idle = taken.busy.is_none() && !taken.holds;
        if !is_idle {
            self.give_back(&EVERY);
        }
        // D4.
        let is_alone = is_idle && {
            let mut objects = lock(&self.partition.objects);
            let is_alone = Arc::strong_count(self) <= OWN;
            if is_alone {
                objects.open.remove(&self.id);
            }
            is_alone
        };
        if is_alone {
            self.set_closed();
        }
        self.ranges.open(&EVERY);
        is_alone
    }
}
