//! The blocking engine: threads that execute I/O by plain system calls, shared by every ring of the
//! process. Started when there is work and none is idle, ended when idle. No store has more of them
//! than it leaves to the others, so that one that hangs holds up its own I/O only. Not here: what
//! an I/O does (`file.rs`) and who is told (`inbox.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::inbox::RingCore;
use crate::io::Io;
use crate::process::PerProcess;

/// Half of them, which is what one store has at most, are enough to keep a device busy; more would
/// wait for each other in the kernel.
const THREADS_MAX: usize = 64;

/// A thread without work ends after this long.
const IDLE_MAX: Duration = Duration::from_secs(5);

struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

/// An I/O, and the ring that it goes back to.
type Job = (Arc<RingCore>, Io);

struct State {
    /// Each of these gets a thread.
    begun: VecDeque<Job>,
    /// These wait until their stores may have one more.
    waiting: VecDeque<Job>,
    /// How many were begun and have not ended, of each store that has some.
    at_work: BTreeMap<u64, usize>,
    /// How many more may be begun.
    free: usize,
    threads: usize,
    idle: usize,
}

static POOL: PerProcess<Pool> =
    PerProcess::new(|| Pool { state: Mutex::new(State::new()), work: Condvar::new() });

impl State {
    fn new() -> State {
        State {
            begun: VecDeque::new(),
            waiting: VecDeque::new(),
            at_work: BTreeMap::new(),
            free: THREADS_MAX,
            threads: 0,
            idle: 0,
        }
    }

    /// Whether the I/O's store has fewer threads than it leaves.
    fn may_begin(&self, (_, io): &Job) -> bool {
        self.at_work.get(&io.store.id()).copied().unwrap_or(0) < self.free
    }

    fn add(&mut self, job: Job) {
        if !self.may_begin(&job) {
            return self.waiting.push_back(job);
        }
        *self.at_work.entry(job.1.store.id()).or_default() += 1;
        self.free -= 1;
        self.begun.push_back(job);
    }

    /// An I/O of this store has ended; one that waits may take its place.
    fn ended(&mut self, store: u64) {
        self.free += 1;
        let left = self.at_work.remove(&store).expect("it was begun") - 1;
        if left > 0 {
            self.at_work.insert(store, left);
        }
        if let Some(next) = self.waiting.iter().position(|job| self.may_begin(job)) {
            let next = self.waiting.remove(next).expect("just seen");
            self.add(next);
        }
    }
}

fn lock() -> MutexGuard<'static, State> {
    POOL.get().state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands I/O to the pool. Without any thread, when the system gives none, it is executed here.
pub(crate) fn submit(core: &Arc<RingCore>, pending: Vec<Io>) {
    if pending.is_empty() {
        return;
    }
    let mut state = lock();
    pending.into_iter().for_each(|io| state.add((core.clone(), io)));
    while state.idle < state.begun.len() && state.threads < THREADS_MAX {
        let spawned = std::thread::Builder::new().name("octavo-disk".to_owned()).spawn(work);
        match spawned {
            // Counted as idle until it takes its first job, so that one burst does not start more than it
            // needs.
            Ok(_) => {
                state.threads += 1;
                state.idle += 1;
            }
            Err(error) if state.threads == 0 => {
                log::warn!("no thread for blocking I/O ({error}): the submitter does it");
                let State { begun, waiting, .. } = std::mem::replace(&mut *state, State::new());
                drop(state);
                begun.into_iter().chain(waiting).for_each(|(core, io)| core.execute(io));
                return;
            }
            Err(_) => break,
        }
    }
    drop(state);
    POOL.get().work.notify_all();
}

fn work() {
    let mut state = lock();
    loop {
        if let Some((core, io)) = state.begun.pop_front() {
            state.idle -= 1;
            drop(state);
            let store = io.store.id();
            core.execute(io);
            drop(core);
            state = lock();
            state.ended(store);
            state.idle += 1;
            continue;
        }
        let (guard, timeout) =
            POOL.get().work.wait_timeout(state, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
        state = guard;
        if timeout.timed_out() && state.begun.is_empty() {
            state.threads -= 1;
            state.idle -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FileEngine;
    use crate::io::Op;
    use crate::store::Store;

    /// A store that hung had all threads soon, and no other had any.
    #[test]
    fn no_store_has_more_threads_than_it_leaves() {
        let core = RingCore::new(FileEngine::blocking());
        let stores = ["hangs", "hangs too", "is well"].map(|name| Store::memory(name, 4096));
        let mut state = State::new();
        let add = |state: &mut State, store: &Store, count: usize| {
            (0..count).for_each(|_| state.add((core.clone(), Io::new(store, Op::Sync, 0, &[], 0))));
        };
        let at_work = |state: &State, store: &Store| state.at_work.get(&store.id()).copied().unwrap_or(0);
        let [first, second, well] = &stores;
        add(&mut state, first, 100);
        add(&mut state, second, 100);
        assert_eq!((at_work(&state, first), at_work(&state, second)), (THREADS_MAX / 2, THREADS_MAX / 4));
        add(&mut state, well, 20);
        assert_eq!(at_work(&state, well), THREADS_MAX / 8);
        // One after the other, however many of the others wait before it.
        (0..20).for_each(|_| state.ended(well.id()));
        assert_eq!(at_work(&state, well), 0);
        // They answer.
        while at_work(&state, first) > 0 {
            state.ended(first.id());
        }
        while at_work(&state, second) > 0 {
            state.ended(second.id());
        }
        assert!(state.waiting.is_empty() && state.free == THREADS_MAX);
        assert_eq!(state.begun.len(), 220);
    }
}
