//! Flushes: the syncs that an object sends to its store, one at a time.

use super::Waiter;
use crate::sync::{Mutex, lock};

/// The flushes of an object (the store's own syncs), one at a time: where two are in flight and one
/// fails, the other's success says nothing of the bytes that the first has lost. Whoever comes
/// while one is in flight shares the next.
pub(crate) struct Flushes(Mutex<FlushState>);

#[derive(Default)]
struct FlushState {
    in_flight: bool,
    /// How many were begun; flushes are numbered from 1.
    begun: u64,
    /// The last one that succeeded.
    done: u64,
    waiting: Vec<Waiter>,
}

/// What a task that needs a flush is to do.
pub(crate) enum Flush {
    /// Flush.
    Begin,
    /// Come back when it is told.
    Wait,
    /// Nothing: somebody's flush has begun after it asked, and succeeded.
    Covered,
}

impl Flushes {
    pub fn new() -> Self {
        Flushes(Mutex::new(FlushState::default()))
    }

    /// `needed` names the first flush that will do; 0 if the task asks for the first time.
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

    /// The flush in flight has ended.
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
