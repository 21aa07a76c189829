//! Flushes: the syncs that an object sends to its store, one at a time. Not here: the I/O of a
//! flush (`flight/writeback.rs`).

use super::Waiter;
use crate::sync::{Mutex, lock};

/// The flushes of an object (syncs of its store), one at a time. If two were in flight and one
/// failed, the success of the other would not prove that the bytes of both are durable. Tasks that
/// ask while a flush is in flight share the next one.
#[derive(Default)]
pub(crate) struct Flushes(Mutex<FlushState>);

#[derive(Default)]
struct FlushState {
    in_flight: bool,
    /// Number of the last flush that began. Flushes are numbered from 1.
    begun: u64,
    /// Number of the last flush that succeeded.
    done: u64,
    waiting: Vec<Waiter>,
}

/// What a task that needs a flush has to do.
pub(crate) enum Flush {
    /// Start the flush.
    Begin,
    /// Wait for the wake-up, then ask again.
    Wait,
    /// Nothing: a flush that began after this task asked has succeeded.
    Covered,
}

impl Flushes {
    /// Asks for a flush. `needed` holds the number of the first flush that covers the task; the
    /// first call, with 0, sets it.
    pub fn ask(&self, needed: &mut u64, waiter: impl FnOnce() -> Waiter) -> Flush {
        let mut state = lock(&self.0);
        if *needed == 0 {
            *needed = state.begun + 1;
        }
        if state.done >= *needed {
            return Flush::Covered;
        }
        if state.in_flight {
            state.waiting.push(waiter());
            return Flush::Wait;
        }
        state.in_flight = true;
        state.begun += 1;
        Flush::Begin
    }

    /// Ends the flush in flight and wakes the waiting tasks.
    pub fn ended(&self, succeeded: bool) {
        let mut state = lock(&self.0);
        state.in_flight = false;
        if succeeded {
            state.done = state.begun;
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waiter::wake);
    }
}
