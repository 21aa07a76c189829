//! The rings of this process: for a change of length, which drives them all (`gate.rs`, L3), and for a closed store,
//! which leaves their tables (`uring.rs`, U5). Not here: anything that an I/O passes on its way. Shuttle, which has no
//! descriptors to leave in tables and whose runs end before their statics, has none.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::inbox::RingCore;

static RINGS: Mutex<Vec<Weak<RingCore>>> = Mutex::new(Vec::new());

pub(crate) fn register(core: &Arc<RingCore>) {
    let mut rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
    rings.retain(|ring| ring.strong_count() > 0);
    rings.push(Arc::downgrade(core));
}

fn all() -> Vec<Arc<RingCore>> {
    RINGS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
}

pub(crate) fn drive_all() {
    all().iter().for_each(RingCore::drive);
}

/// Called for a store that has no handle left, and so no I/O; with no lock of a ring held (R2).
pub(crate) fn forget_store(id: u64) {
    for ring in all() {
        ring.forget_store(id);
    }
}
