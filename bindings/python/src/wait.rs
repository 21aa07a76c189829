//! Waits that Ctrl-C ends.
//!
//! Python runs the handlers of signals on its main thread, between instructions. A call of this
//! module that waits there would hold them up for as long as a store or a server hangs. Therefore:
//!
//! - **I1** On the main thread, work that may wait is done by a thread of its own, and the main
//!   thread looks at signals [`LOOKS_PER_S`] times a second.
//! - **I2** If a handler raises, the work continues by itself, and its outcome is dropped.
//!   So it owns all that it touches. It never has an address of memory of the caller's.
//! - **I3** Threads that Python did not start first have no handlers to run, and do the work
//!   themselves.
//! - **I4** A child of `fork` has none of the threads: it starts new ones.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use octavo::disk::Process;
use pyo3::prelude::*;

use crate::error::{Result, of_io};

/// How often a wait looks at signals.
const LOOKS_PER_S: u32 = 10;

/// The time between two looks.
pub const BETWEEN_LOOKS: Duration = Duration::from_millis(1000 / LOOKS_PER_S as u64);

/// Works that were left behind and have not ended.
#[derive(Clone, Debug, Default)]
pub struct LeftBehind(Arc<AtomicUsize>);

impl LeftBehind {
    /// Whether there is any. Relaxed: a hint for the end of a cache.
    pub fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Counts a work from its beginning to its end, wherever that is.
struct Counted(LeftBehind);

impl Counted {
    fn new(count: &LeftBehind) -> Counted {
        count.0.fetch_add(1, Ordering::Relaxed);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Does work that may wait, without the GIL. `count` counts it until it has ended.
///
/// # Errors
/// What a handler of a signal raised; that no thread can be started.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    count: &LeftBehind,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if !is_interruptible() {
        return Ok(py.detach(work));
    }
    let (sender, outcome) = channel();
    let counted = Counted::new(count);
    let job: Job = Box::new(move || {
        let outcome = work();
        drop(counted);
        // Nobody takes the outcome of a work that was left behind.
        let _ = sender.send(outcome);
    });
    let worker = Worker::take(py)?;
    let sent = worker.jobs.send(job);
    assert!(sent.is_ok(), "an idle thread waits for work");
    let look = move || loop {
        match outcome.recv_timeout(BETWEEN_LOOKS) {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
            Err(RecvTimeoutError::Disconnected) => panic!("a thread that waits has panicked"),
        }
    };
    let outcome: PyResult<T> = py.detach(look);
    let outcome = outcome?;
    worker.give_back();
    Ok(outcome)
}

/// Whether Python runs handlers of signals on this thread: whether it is the first of the process.
pub fn is_interruptible() -> bool {
    // SAFETY: the call has no arguments, and only returns a number.
    let process = unsafe { libc::getpid() };
    // SAFETY: as above.
    let thread = unsafe { libc::gettid() };
    process == thread
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does works, one after the other. It ends when this is dropped and its last work
/// has ended.
struct Worker {
    jobs: Sender<Job>,
    process: Process,
}

/// The threads that have nothing to do. Locked with the GIL held.
static IDLE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

impl Worker {
    /// Takes an idle thread, or starts one.
    fn take(_py: Python<'_>) -> Result<Worker> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(worker) = idle.pop() {
            if worker.process.is_this() {
                return Ok(worker);
            }
            // Of the parent of `fork` (I4). Its thread does not exist here.
            std::mem::forget(worker);
        }
        let (jobs, tasks): (Sender<Job>, Receiver<Job>) = channel();
        let thread = std::thread::Builder::new().name("octavo-wait".into());
        let started = thread.spawn(move || tasks.iter().for_each(|job| job()));
        started.map_err(|error| of_io(&"a thread that waits", error))?;
        Ok(Worker { jobs, process: Process::this() })
    }

    /// Keeps the thread for the next work.
    fn give_back(self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }
}
