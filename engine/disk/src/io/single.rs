//! [`Single`]: takes the completion of one I/O for the thread that waits for it, without a ring.
//! Not here: rings (`ring.rs`).

use std::sync::PoisonError;

use crate::error::IoError;
use crate::io::sink::{Handle, Sink};
use crate::sync::{Arc, Condvar, Mutex, lock};

/// Receives the completion of one I/O.
#[derive(Default)]
pub(crate) struct Single {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<(), IoError>>,
    /// Counts the moments when a simulated disk may have got a new event.
    sim_news: u64,
}

impl Single {
    /// Starts an I/O by `submit`, and sleeps until it is completed. Calls `step` as long as that
    /// returns true; it makes a simulated disk progress.
    pub(crate) fn run(submit: impl FnOnce(Arc<dyn Sink>), step: impl Fn() -> bool) -> Result<(), IoError> {
        let single = Arc::new(Single::default());
        submit(single.clone());
        loop {
            let mut state = lock(&single.state);
            let sim_news = state.sim_news;
            drop(state);
            let stepped = step();
            state = lock(&single.state);
            while state.outcome.is_none() && !stepped && state.sim_news == sim_news {
                state = single.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
        }
    }
}

impl Sink for Single {
    fn complete(&self, _: u64, result: Result<(), IoError>, _: Option<Handle>) {
        lock(&self.state).outcome = Some(result);
        self.moved.notify_one();
    }

    fn sim_moves(&self) {
        lock(&self.state).sim_news += 1;
        self.moved.notify_one();
    }

    fn drive(self: Arc<Self>) {}

    fn forget(&self, _: u64) {}
}
