//! The blocking engine: a pool of threads that execute I/O with plain system calls, shared by all
//! rings of the process. A thread starts when there is work and no thread is idle, and ends after
//! five seconds without work. A store may begin another I/O only while it uses fewer threads than
//! are free for the others, so a store that hangs delays only its own I/O. Not here: how an I/O is
//! executed (`file.rs`), how it is delivered (`inbox.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::job::FileIo;
use crate::io::sink::Sink;
use crate::process::PerProcess;

/// The most threads of the pool. One store uses at most half of them, which is enough to keep a
/// device busy; more threads would wait for each other in the kernel.
const THREADS_MAX: usize = 64;

/// The time after which a thread without work ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

/// An I/O and its ring.
type Job = (Arc<dyn Sink>, FileIo);

struct State {
    /// I/Os that may begin: each takes the next idle thread.
    begun: VecDeque<Job>,
    /// I/Os that wait until their store may use one more thread.
    waiting: VecDeque<Job>,
    /// The number of I/Os that have begun and not ended, for each store that has any.
    at_work: BTreeMap<u64, usize>,
    /// The number of I/Os that may still begin.
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

    /// Returns whether the store uses fewer threads than are free for the others.
    fn may_begin(&self, store: u64) -> bool {
        self.at_work.get(&store).copied().unwrap_or(0) < self.free
    }

    fn add(&mut self, job: Job) {
        let store = job.1.store.id();
        if !self.may_begin(store) {
            return self.waiting.push_back(job);
        }
        *self.at_work.entry(store).or_default() += 1;
        self.free -= 1;
        self.begun.push_back(job);
    }

    /// Records that an I/O of this store has ended, and lets a waiting I/O begin in its place.
    fn ended(&mut self, store: u64) {
        self.free += 1;
        let left = self.at_work.remove(&store).expect("the I/O had begun") - 1;
        if left > 0 {
            self.at_work.insert(store, left);
        }
        if let Some(next) = self.waiting.iter().position(|(_, job)| self.may_begin(job.store.id())) {
            let next = self.waiting.remove(next).expect("just found");
            self.add(next);
        }
    }
}

fn lock() -> MutexGuard<'static, State> {
    POOL.get().state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands I/O of `ring` to the pool. If the system refuses to start even one thread, the calling
/// thread executes the I/O.
pub(crate) fn submit<S: Sink + 'static>(ring: &Arc<S>, pending: Vec<FileIo>) {
    if pending.is_empty() {
        return;
    }
    let mut state = lock();
    pending.into_iter().for_each(|job| state.add((ring.clone(), job)));
    while state.idle < state.begun.len() && state.threads < THREADS_MAX {
        let spawned = std::thread::Builder::new().name("octavo-disk".to_owned()).spawn(work);
        match spawned {
            // The thread counts as idle until it takes its first I/O, so that a burst does not
            // start more threads than it needs.
            Ok(_) => {
                state.threads += 1;
                state.idle += 1;
            }
            Err(error) if state.threads == 0 => {
                log::warn!(
                    "cannot start a thread for blocking I/O ({error}): the submitting thread executes it"
                );
                let State { begun, waiting, .. } = std::mem::replace(&mut *state, State::new());
                drop(state);
                begun.into_iter().chain(waiting).for_each(|(ring, job)| job.execute(&*ring));
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
        if let Some((ring, job)) = state.begun.pop_front() {
            state.idle -= 1;
            drop(state);
            let store = job.store.id();
            job.execute(&*ring);
            drop(ring);
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::error::IoError;
    use crate::io::Io;
    use crate::io::sink::Handle;
    use crate::op::Op;
    use crate::store::Store;

    struct NoRing;

    impl Sink for NoRing {
        fn complete(&self, _: u64, _: Result<(), IoError>, _: Option<Handle>) {}
        fn sim_moves(&self) {}
        fn drive(self: Arc<Self>) {}
        fn forget(&self, _: u64) {}
    }

    /// Once, a store that hung took all threads, and left none for any other store.
    #[test]
    fn a_store_uses_at_most_as_many_threads_as_it_leaves_to_the_others() {
        let ring: Arc<dyn Sink> = Arc::new(NoRing);
        let stores = ["hangs", "hangs too", "healthy"].map(|name| Store::memory(name, 4096));
        let mut state = State::new();
        let add = |state: &mut State, store: &Store, count: usize| {
            let job = || FileIo::without_gate(Io::new(Op::Sync, 0, &[], 0), store);
            (0..count).for_each(|_| state.add((ring.clone(), job())));
        };
        let at_work = |state: &State, store: &Store| state.at_work.get(&store.id()).copied().unwrap_or(0);
        let [first, second, healthy] = &stores;
        add(&mut state, first, 100);
        add(&mut state, second, 100);
        assert_eq!((at_work(&state, first), at_work(&state, second)), (THREADS_MAX / 2, THREADS_MAX / 4));
        add(&mut state, healthy, 20);
        assert_eq!(at_work(&state, healthy), THREADS_MAX / 8);
        // The healthy store finishes, although many I/Os of the other stores wait before its own.
        (0..20).for_each(|_| state.ended(healthy.id()));
        assert_eq!(at_work(&state, healthy), 0);
        // The other stores answer.
        for store in [first, second] {
            while at_work(&state, store) > 0 {
                state.ended(store.id());
            }
        }
        assert!(state.waiting.is_empty() && state.free == THREADS_MAX);
        assert_eq!(state.begun.len(), 220);
    }
}
