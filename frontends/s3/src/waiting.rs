//! [`Waiting`]: the requests that wait for the server, and the threads that wait with them. A
//! server may be silent for as long as it likes. Hits, names that are believed, and whoever kills
//! a program do not wait for it.
//!
//! - **Q1** The threads of the session answer what needs no server, and hand the rest over.
//! - **Q2** A request that is performed has a thread, of [`THREADS_MAX`] at most. Others wait in
//!   order, [`WAITING_MAX`] at most; beyond that they fail with ENOMEM. Threads end when there is
//!   nothing to do.
//! - **Q3** A request is answered by the one that takes its reply: the thread that has performed
//!   it, or the look at those that wait.
//! - **Q4** A thread looks every second, while there are requests. If the program was killed, the
//!   reply is EINTR, because the kernel cannot end it before. After the deadline, which counts from
//!   the arrival, it is EIO. A request that has its reply and no thread is dropped.
//! - **Q5** What a request gives to the kernel (a lookup, a handle), it gives after it has taken
//!   its reply. So there is nothing to take back.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuser::{Errno, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen};

use crate::files::lock;
use crate::killed::is_killed;

/// The most threads that wait for the server: as many fetches are in flight.
const THREADS_MAX: usize = 64;

/// The most requests that wait for these. Each has a program that waits, too.
const WAITING_MAX: usize = 4096;

/// The time after which a thread without work ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// The time between two looks at requests, and the age of those that are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Looks that find nothing, after which their thread ends.
const IDLE_LOOKS: usize = 5;

/// What is done with a request.
type Work = Box<dyn FnOnce() + Send>;

/// A reply that can be an error.
pub(crate) trait Reply: Send + 'static {
    fn refuse(self, errno: Errno);
}

macro_rules! replies {
    ($($reply:ident),*) => {
        $(impl Reply for $reply {
            fn refuse(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

replies!(ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen);

/// A reply until it is taken (Q3).
struct Slot<R>(Mutex<Option<R>>);

impl<R> Slot<R> {
    fn take(&self) -> Option<R> {
        lock(&self.0).take()
    }
}

/// A slot for any reply.
trait Asked: Send + Sync {
    fn is_answered(&self) -> bool;

    /// Answers with an error. Returns whether there was no answer yet.
    fn refuse(&self, errno: Errno) -> bool;
}

impl<R: Reply> Asked for Slot<R> {
    fn is_answered(&self) -> bool {
        lock(&self.0).is_none()
    }

    fn refuse(&self, errno: Errno) -> bool {
        let reply = self.take();
        let was_open = reply.is_some();
        reply.into_iter().for_each(|reply| reply.refuse(errno));
        was_open
    }
}

/// A request, from its arrival to the end of its work.
#[derive(Clone)]
struct Call {
    /// The thread that waits for the reply.
    caller: u32,
    since: Instant,
    asked: Arc<dyn Asked>,
}

/// Requests that wait for one server.
pub(crate) struct Waiting {
    /// What they wait for, for the log.
    name: String,
    deadline: Duration,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// Work that no thread has begun, and the number of its call.
    queue: VecDeque<(u64, Work)>,
    calls: HashMap<u64, Call>,
    next: u64,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
    /// Whether a thread looks at the calls.
    is_watched: bool,
}

impl State {
    /// Removes the calls that are answered. Returns their work that no thread has begun.
    fn take_answered(&mut self) -> VecDeque<(u64, Work)> {
        let calls = &mut self.calls;
        let is_answered = |number: &u64| calls.get(number).is_some_and(|call| call.asked.is_answered());
        let (answered, queue): (VecDeque<_>, VecDeque<_>) =
            self.queue.drain(..).partition(|(number, _)| is_answered(number));
        self.queue = queue;
        calls.retain(|_, call| !call.asked.is_answered());
        answered
    }
}

impl Waiting {
    /// For requests that are answered within `deadline`.
    pub fn new(name: String, deadline: Duration) -> Arc<Waiting> {
        Arc::new(Waiting { name, deadline, state: Mutex::default(), work: Condvar::new() })
    }

    /// Leaves a request to a thread, which performs it, and then gives the answer if there is none
    /// yet. `caller` is the thread that waits for the reply.
    pub fn add<R: Reply, T>(
        self: &Arc<Self>,
        caller: u32,
        reply: R,
        perform: impl FnOnce() -> T + Send + 'static,
        answer: impl FnOnce(T, R) + Send + 'static,
    ) {
        let slot = Arc::new(Slot(Mutex::new(Some(reply))));
        let asked = slot.clone();
        let work = Box::new(move || {
            if slot.is_answered() {
                return;
            }
            let performed = perform();
            if let Some(reply) = slot.take() {
                answer(performed, reply);
            }
        });
        let refused = asked.clone();
        if !self.queue(work, Some(Call { caller, since: Instant::now(), asked })) {
            refused.refuse(Errno::ENOMEM);
        }
    }

    /// Leaves something to a thread that nobody waits for, and that must not be lost.
    pub fn add_errand(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) {
        self.queue(Box::new(work), None);
    }

    /// Returns false if there is no thread for a call, or no room.
    fn queue(self: &Arc<Self>, work: Work, call: Option<Call>) -> bool {
        let mut state = lock(&self.state);
        if call.is_some() && state.queue.len() >= WAITING_MAX {
            return false;
        }
        if state.queue.len() >= state.idle && state.threads < THREADS_MAX && self.start(Self::serve) {
            state.threads += 1;
        }
        if call.is_some() && state.threads == 0 {
            return false;
        }
        // Errands have the number 0.
        let mut number = 0;
        if let Some(call) = call {
            state.next += 1;
            number = state.next;
            state.calls.insert(number, call);
            state.is_watched = state.is_watched || self.start(Self::watch);
        }
        state.queue.push_back((number, work));
        self.work.notify_one();
        true
    }

    /// Starts a thread, if that is possible. Otherwise the next request tries again.
    fn start(self: &Arc<Self>, run: fn(&Arc<Self>)) -> bool {
        let waiting = self.clone();
        let thread = std::thread::Builder::new().name("octavo-s3-wait".into());
        let started = thread.spawn(move || run(&waiting));
        if let Err(error) = &started {
            log::error!("{}: cannot start a thread that waits for the server: {error}", self.name);
        }
        started.is_ok()
    }

    /// Performs requests until none has come for a while.
    fn serve(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        loop {
            if let Some((number, work)) = state.queue.pop_front() {
                drop(state);
                // A panic is reported by its hook, and drops the reply, which is an error then.
                let _ = catch_unwind(AssertUnwindSafe(work));
                state = lock(&self.state);
                state.calls.remove(&number);
                continue;
            }
            state.idle += 1;
            let (woken, waited) =
                self.work.wait_timeout(state, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// Looks at requests until there have been none for a while (Q4).
    fn watch(self: &Arc<Self>) {
        let mut idle_looks = 0;
        loop {
            std::thread::sleep(LOOK);
            self.look();
            let mut state = lock(&self.state);
            idle_looks = if state.calls.is_empty() { idle_looks + 1 } else { 0 };
            if idle_looks == IDLE_LOOKS {
                state.is_watched = false;
                return;
            }
        }
    }

    fn look(self: &Arc<Self>) {
        let is_old = |call: &&Call| call.since.elapsed() >= LOOK && !call.asked.is_answered();
        let old: Vec<Call> = lock(&self.state).calls.values().filter(is_old).cloned().collect();
        let mut late = 0;
        // Without the lock: each look reads files of /proc.
        for call in &old {
            if call.since.elapsed() >= self.deadline {
                late += u64::from(call.asked.refuse(Errno::EIO));
            } else if is_killed(call.caller) {
                call.asked.refuse(Errno::EINTR);
            }
        }
        if late > 0 {
            log::warn!("{}: gave up {late} requests that have waited {:?}", self.name, self.deadline);
        }
        let dropped = lock(&self.state).take_answered();
        if !dropped.is_empty() {
            // Their files may end with them, which may wait for the server.
            self.add_errand(move || drop(dropped));
        }
    }
}

#[cfg(test)]
mod tests;
