//! [`Sink`]: a ring, as everything below rings sees it. Stores, engines and simulated disks know
//! rings by this trait only, so that imports point down. Also here: the list of all rings of the
//! process, for a change of length, which drives them all (`gate.rs`, L3), and for a closed store,
//! which leaves their file tables (`uring.rs`, U5). No I/O passes through that list.
//!
//! Under shuttle the list is empty: no store is registered with a kernel, and statics outlive runs.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::IoError;
use crate::process::PerProcess;

static SINKS: PerProcess<Mutex<Sinks>> = PerProcess::new(Mutex::default);

/// Dropped rings leave the list when it holds twice as many entries as there were rings at the
/// previous purge, plus this many.
const PURGE_FROM: usize = 16;

/// A handle that keeps a store open.
pub(crate) type Handle = Arc<dyn Any + Send + Sync>;

/// A ring that accepts completions from engines and simulated disks.
pub(crate) trait Sink: Send + Sync {
    /// Takes the result of the I/O that was pushed with `token`. Called with no lock held. The
    /// thread that takes the completion from the ring drops the handle, before it delivers.
    fn complete(&self, token: u64, result: Result<(), IoError>, handle: Option<Handle>);

    /// Wakes a thread of the ring to step a simulated disk that has a new event.
    fn sim_moves(&self);

    /// Submits and harvests this ring's I/O without delivering any completion (`gate.rs`, L3).
    fn drive(self: Arc<Self>);

    /// Drops the store with this id from the ring's file table (`uring.rs`, U5). The store has no
    /// handle left.
    fn forget(&self, store_id: u64);
}

#[derive(Default)]
struct Sinks {
    list: Vec<Weak<dyn Sink>>,
    purge_at: usize,
}

fn sinks() -> MutexGuard<'static, Sinks> {
    SINKS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a new ring to the list.
pub(crate) fn register(sink: Weak<dyn Sink>) {
    if cfg!(shuttle) {
        return;
    }
    let mut sinks = sinks();
    if sinks.list.len() >= sinks.purge_at {
        sinks.list.retain(|sink| sink.strong_count() > 0);
        sinks.purge_at = 2 * sinks.list.len() + PURGE_FROM;
    }
    sinks.list.push(sink);
}

fn all() -> Vec<Arc<dyn Sink>> {
    sinks().list.iter().filter_map(Weak::upgrade).collect()
}

/// Makes the I/O of every ring progress (`gate.rs`, L3).
pub(crate) fn drive_all() {
    all().into_iter().for_each(Sink::drive);
}

/// Drops a store from every ring's file table. The store has no I/O in flight: it has no handle
/// left, or is being closed. No lock of a ring is held (`inbox.rs`, R2).
pub(crate) fn forget_store(id: u64) {
    all().iter().for_each(|sink| sink.forget(id));
}
