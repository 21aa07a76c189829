//! The rings of this process: for a change of length, which drives them all (`gate.rs`, L3), and
//! for a closed store, which leaves their tables (`uring.rs`, U5). Not here: anything that an I/O
//! passes on its way. Shuttle, which has no descriptors to leave in tables and whose runs end
//! before their statics, has none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::inbox::RingCore;
use crate::process::PerProcess;

static RINGS: PerProcess<Mutex<Rings>> = PerProcess::new(Mutex::default);

/// Rings that are gone are forgotten when there are twice as many entries as there were rings at
/// the last look, and this many more.
const FORGET_FROM: usize = 16;

#[derive(Default)]
struct Rings {
    list: Vec<Weak<RingCore>>,
    forget_at: usize,
}

fn rings() -> MutexGuard<'static, Rings> {
    RINGS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn register(core: &Arc<RingCore>) {
    let mut rings = rings();
    if rings.list.len() >= rings.forget_at {
        rings.list.retain(|ring| ring.strong_count() > 0);
        rings.forget_at = 2 * rings.list.len() + FORGET_FROM;
    }
    rings.list.push(Arc::downgrade(core));
}

fn all() -> Vec<Arc<RingCore>> {
    rings().list.iter().filter_map(Weak::upgrade).collect()
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
