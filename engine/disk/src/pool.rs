//! The blocking engine: threads that execute I/O by plain system calls, shared by every ring of the process. Started
//! when there is work and none is idle, ended when idle. Not here: what an I/O does (`file.rs`) and who is told
//! (`inbox.rs`).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::inbox::RingCore;
use crate::io::Io;

/// Enough to keep one device busy; more threads than this wait for each other in the kernel.
const THREADS_MAX: usize = 32;

/// A thread without work ends after this long.
const IDLE_MAX: Duration = Duration::from_secs(5);

struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    queue: VecDeque<(Arc<RingCore>, Io)>,
    threads: usize,
    idle: usize,
}

static POOL: Pool =
    Pool { state: Mutex::new(State { queue: VecDeque::new(), threads: 0, idle: 0 }), work: Condvar::new() };

fn lock() -> MutexGuard<'static, State> {
    POOL.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands I/O to the pool. Without any thread, when the system gives none, it is executed here.
pub(crate) fn submit(core: &Arc<RingCore>, pending: Vec<Io>) {
    if pending.is_empty() {
        return;
    }
    let mut state = lock();
    state.queue.extend(pending.into_iter().map(|io| (core.clone(), io)));
    while state.idle < state.queue.len() && state.threads < THREADS_MAX {
        let spawned = std::thread::Builder::new().name("octavo-disk".to_owned()).spawn(work);
        match spawned {
            // Counted as idle until it takes its first job, so that one burst does not start more than it needs.
            Ok(_) => {
                state.threads += 1;
                state.idle += 1;
            }
            Err(error) if state.threads == 0 => {
                log::warn!("no thread for blocking I/O ({error}): the submitter does it");
                let queue = std::mem::take(&mut state.queue);
                drop(state);
                queue.into_iter().for_each(|(core, io)| core.execute(io));
                return;
            }
            Err(_) => break,
        }
    }
    drop(state);
    POOL.work.notify_all();
}

fn work() {
    let mut state = lock();
    loop {
        if let Some((core, io)) = state.queue.pop_front() {
            state.idle -= 1;
            drop(state);
            core.execute(io);
            drop(core);
            state = lock();
            state.idle += 1;
            continue;
        }
        let (guard, timeout) =
            POOL.work.wait_timeout(state, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
        state = guard;
        if timeout.timed_out() && state.queue.is_empty() {
            state.threads -= 1;
            state.idle -= 1;
            return;
        }
    }
}
