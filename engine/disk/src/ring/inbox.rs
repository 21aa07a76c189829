//! [`RingCore`]: a ring without its handle. Its inbox holds completions until a thread takes them,
//! and threads wait here. Protects two promises: every completion is delivered exactly once, to the
//! first thread that asks; and no waiting thread misses one. Not here: how I/O reaches files
//! (`engine.rs`).
//!
//! The protocol of the inbox and of sleeping, all under the lock `state`:
//!
//! * R1. An I/O counts in `in_flight` from `push` until it is taken from the inbox. In between,
//!   exactly one party owns it: the engine, a simulated disk, or the inbox.
//! * R2. No lock of the ring is held while a callback runs or a `Store` is dropped. Dropping the
//!   last handle of a store removes it from all rings' file tables, which takes their locks.
//! * R3. A waiter checks the inbox and `wakes_sent` with `state` locked. It then sleeps either on
//!   `arrived`, which releases the lock in the same step, or (io_uring) in the kernel, as the
//!   *leader*. There is at most one leader. The others sleep on `arrived`, and a leader that leaves
//!   wakes one of them.
//! * R4. The leader sleeps until the kernel posts an entry after the last one that it saw. A thread
//!   with news that is not such an entry (a wake, a completion from elsewhere) posts a NOP, at most
//!   one at a time. There is news as long as the inbox is not empty, a wake is untaken, or the ring
//!   has used a simulated disk and has I/O in flight. If there is still news when a thread consumes
//!   the NOP, and a leader sleeps or a caller polls, that thread posts another NOP.
//! * R5. A wake is taken by every `wait` that had begun when it was sent or, if there is none, by
//!   the next one. `reap` never takes a wake.
//!
//! Lock order: `state`, then the engine's submission lock. Gates are entered with neither held.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Weak;
use std::time::{Duration, Instant};

use crate::engine::job::{FileIo, Harvest};
use crate::engine::{FileEngine, execute_aside};
use crate::error::IoError;
use crate::io::Io;
use crate::io::sink::{Handle, Sink};
use crate::io::survey::Survey;
use crate::sim::SimDisk;
use crate::store::gate::Gate;
use crate::store::{Kind, Store};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, sleep_on};

/// The number of completions moved out of the inbox at a time, so that the lock is free while
/// callbacks run.
const BATCH: usize = 32;

/// The pause before the next attempt when the kernel is short of memory.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A ring without its handle.
pub(crate) struct RingCore {
    /// The shard through which this ring's I/O enters every gate.
    pub(super) shard: u8,
    state: Mutex<State>,
    arrived: Condvar,
    /// R1.
    in_flight: AtomicUsize,
    pub(super) files: FileEngine,
    /// The simulated disks that this ring has sent I/O to. Their time passes while a thread reaps
    /// or waits.
    disks: Mutex<Vec<SimDisk>>,
    has_disks: AtomicBool,
}

#[derive(Default)]
struct State {
    inbox: VecDeque<Completed>,
    wakes_sent: u64,
    /// The number of wakes that waits have taken (R5).
    wakes_taken: u64,
    /// The number of threads asleep on `arrived`.
    sleepers: usize,
    /// A thread sleeps in the kernel, or is about to (R3).
    leader: bool,
    /// A NOP has been posted and not yet harvested (R4).
    nop_in_flight: bool,
    /// A caller has the descriptor to poll.
    polled: bool,
    /// The blocking engine's event counter is set.
    event_set: bool,
    /// Counts the moments when a simulated disk may have got a new event: a push, or the end of a
    /// hang. If the count grows while a waiter steps the disks, the waiter steps them again before
    /// it sleeps.
    sim_news: u64,
}

/// A completion. Once it is delivered, the buffers belong to the caller again.
struct Completed {
    token: u64,
    result: Result<(), IoError>,
    /// A handle of the store, which could not be dropped where the I/O ended: under `state` (R2),
    /// or on a thread of a back end (`request.rs`, B5).
    handle: Option<Handle>,
}

impl Sink for RingCore {
    /// Puts a completion into the inbox and wakes a waiter (R4).
    fn complete(&self, token: u64, result: Result<(), IoError>, handle: Option<Handle>) {
        let mut state = lock(&self.state);
        state.inbox.push_back(Completed { token, result, handle });
        if state.sleepers > 0 {
            self.arrived.notify_one();
        }
        self.announce(state);
    }

    fn sim_moves(&self) {
        let mut state = lock(&self.state);
        state.sim_news += 1;
        if state.sleepers > 0 {
            self.arrived.notify_one();
        }
        self.announce(state);
    }

    fn drive(self: Arc<Self>) {
        self.files.submit(&self);
        self.files.nudge();
        let mut state = lock(&self.state);
        let harvest = self.harvest(&mut state);
        if state.sleepers > 0 && !state.inbox.is_empty() {
            self.arrived.notify_one();
        }
        self.announce(state);
        if harvest.queued {
            self.files.submit(&self);
        }
    }

    fn forget(&self, store_id: u64) {
        if let FileEngine::Uring(uring) = &self.files {
            uring.forget_store(store_id);
        }
    }
}

impl RingCore {
    pub(crate) fn new(files: FileEngine) -> Arc<RingCore> {
        static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        // Relaxed: only an even spread over the shards matters.
        let id = NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let core = Arc::new(RingCore {
            shard: Gate::shard_of(id),
            state: Mutex::new(State::default()),
            arrived: Condvar::new(),
            in_flight: AtomicUsize::new(0),
            files,
            disks: Mutex::new(Vec::new()),
            has_disks: AtomicBool::new(false),
        });
        let sink: Weak<RingCore> = Arc::downgrade(&core);
        crate::io::sink::register(sink);
        core
    }

    /// See `Ring::push`.
    pub(crate) fn push(self: &Arc<RingCore>, store: &Store, mut io: Io) {
        let is_refused = store.refuses(&mut io);
        // Relaxed: a count (R1).
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        if is_refused {
            return self.complete(io.token, io.result(store.name()), None);
        }
        match store.kind() {
            Kind::Target(target) => {
                if let Some(disk) = target.disk() {
                    self.remember_disk(disk);
                }
                target.submit(io, self.clone(), self.shard);
            }
            Kind::File(_) => {
                let job = FileIo::begin(io, store, self.shard);
                if job.io.parts_left > 0 {
                    return self.files.push(job);
                }
                let (token, result, _store) = job.finish();
                self.complete(token, result, None);
            }
        }
    }

    /// See `Ring::push_survey`.
    pub(crate) fn push_survey(self: &Arc<RingCore>, store: &Store, survey: &Arc<Survey>, token: u64) {
        // Relaxed: a count (R1).
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        if !store.may_have_holes() {
            survey.find_data();
            return self.complete(token, Ok(()), None);
        }
        let io = Io::survey(survey.clone(), token);
        execute_aside(self, FileIo::begin(io, store, self.shard));
    }

    /// Moves the completions that the kernel has posted to the inbox.
    fn harvest(&self, state: &mut State) -> Harvest {
        let inbox = &mut state.inbox;
        let harvest = self.files.harvest(&mut |job| {
            let (token, result, store) = job.finish();
            inbox.push_back(Completed { token, result, handle: Some(store.into_handle()) });
        });
        state.nop_in_flight &= !harvest.nop;
        harvest
    }

    /// See `Ring::reap`.
    pub(crate) fn reap(
        self: &Arc<RingCore>,
        on_completion: &mut dyn FnMut(u64, Result<(), IoError>),
    ) -> usize {
        self.step_disks();
        self.files.collect();
        let mut state = lock(&self.state);
        let harvest = self.harvest(&mut state);
        self.deliver(state, harvest, on_completion)
    }

    /// Delivers the completions that are in the inbox now. Those that arrive meanwhile wait for the
    /// next call.
    fn deliver<'a>(
        self: &'a Arc<RingCore>,
        mut state: MutexGuard<'a, State>,
        harvest: Harvest,
        on_completion: &mut dyn FnMut(u64, Result<(), IoError>),
    ) -> usize {
        let count = state.inbox.len();
        let mut left = count;
        loop {
            let mut batch: [Option<Completed>; BATCH] = [const { None }; BATCH];
            let taken = left.min(BATCH).min(state.inbox.len());
            for (slot, completed) in batch.iter_mut().zip(state.inbox.drain(..taken)) {
                *slot = Some(completed);
            }
            left -= taken;
            // Relaxed: a count (R1).
            self.in_flight.fetch_sub(taken, Ordering::Relaxed);
            let is_last = left == 0 || taken == 0;
            if is_last && (harvest.nop || state.polled) {
                self.announce(state);
            } else {
                drop(state);
            }
            if harvest.queued && is_last {
                self.files.submit(self);
            }
            for Completed { token, result, handle } in batch.into_iter().flatten() {
                // R2. The handle is dropped before the callback, which may close the store and open
                // it again.
                drop(handle);
                on_completion(token, result);
            }
            if is_last {
                return count - left;
            }
            state = lock(&self.state);
        }
    }

    /// See `Ring::wait`. R3 and R5 are rules of the protocol above.
    pub(crate) fn wait(
        self: &Arc<RingCore>,
        on_completion: &mut dyn FnMut(u64, Result<(), IoError>),
        timeout: Option<Duration>,
    ) -> usize {
        // A timeout past the clock's range is no timeout.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let remaining = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut state = lock(&self.state);
        let taken_at_entry = state.wakes_taken;
        let mut nop = false;
        let harvest = loop {
            let mut harvest = self.harvest(&mut state);
            nop |= harvest.nop;
            harvest.nop = nop;
            if !state.inbox.is_empty() || state.wakes_sent != taken_at_entry {
                harvest.queued |= self.files.has_unsubmitted();
                break harvest;
            }
            if harvest.queued || self.files.must_submit(state.leader) {
                drop(state);
                if !self.files.submit(self) {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                state = lock(&self.state);
                continue;
            }
            let sim_news = state.sim_news;
            // Acquire: pairs with `remember_disk`. A push to a simulated disk adds to `sim_news`
            // under the lock.
            if self.has_disks.load(Ordering::Acquire) {
                drop(state);
                let stepped = self.step_disks();
                state = lock(&self.state);
                let news = stepped || state.sim_news != sim_news || !state.inbox.is_empty();
                if news || state.wakes_sent != taken_at_entry {
                    continue;
                }
            }
            let timeout = remaining();
            if timeout == Some(Duration::ZERO) {
                harvest.queued |= self.files.has_unsubmitted();
                break harvest;
            }
            state = self.sleep(state, timeout);
            if cfg!(shuttle) && timeout.is_some() {
                break self.harvest(&mut state);
            }
        };
        // R5.
        state.wakes_taken = state.wakes_sent;
        // R3: another waiter becomes the leader.
        if state.sleepers > 0 && !state.leader {
            self.arrived.notify_one();
        }
        self.deliver(state, harvest, on_completion)
    }

    /// R3: sleeps once, on `arrived` or as the leader.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        if let FileEngine::Uring(uring) = &self.files
            && !state.leader
        {
            state.leader = true;
            drop(state);
            if uring.sleep(timeout).is_err() {
                std::thread::sleep(RETRY_INTERVAL);
            }
            let mut state = lock(&self.state);
            state.leader = false;
            return state;
        }
        state.sleepers += 1;
        state = sleep_on(&self.arrived, state, timeout);
        state.sleepers -= 1;
        state
    }

    /// See `Ring::wake` (R5).
    pub(crate) fn wake(&self) {
        let mut state = lock(&self.state);
        state.wakes_sent += 1;
        if state.sleepers > 0 {
            self.arrived.notify_all();
        }
        self.announce(state);
    }

    /// R4: makes news known to the leader and to pollers, and unlocks. (Sleepers on `arrived` are
    /// woken by the caller.)
    fn announce(&self, mut state: MutexGuard<'_, State>) {
        let is_news = self.is_news(&state);
        match &self.files {
            FileEngine::Uring(uring) => {
                if is_news && (state.leader || state.polled) && !state.nop_in_flight {
                    state.nop_in_flight = true;
                    drop(state);
                    uring.post_nop();
                }
            }
            FileEngine::Blocking(blocking) => {
                if state.polled && is_news != state.event_set {
                    state.event_set = is_news;
                    blocking.set_event(is_news);
                }
            }
        }
    }

    /// R4: whether there is news.
    fn is_news(&self, state: &State) -> bool {
        // Relaxed: the thread that pushed to a simulated disk sees its own stores.
        let simulates = self.has_disks.load(Ordering::Relaxed) && self.in_flight.load(Ordering::Relaxed) > 0;
        !state.inbox.is_empty() || state.wakes_sent != state.wakes_taken || simulates
    }

    /// See `Ring::has_news`.
    #[cfg(shuttle)]
    pub(crate) fn has_news(&self) -> bool {
        self.is_news(&lock(&self.state))
    }

    /// See `Ring::poll_fd`.
    pub(crate) fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.files.poll_fd()?;
        let mut state = lock(&self.state);
        state.polled = true;
        self.announce(state);
        Some(fd)
    }

    pub(crate) fn in_flight(&self) -> usize {
        // Relaxed: the count may be out of date as soon as this returns.
        self.in_flight.load(Ordering::Relaxed)
    }

    fn remember_disk(&self, disk: &SimDisk) {
        let mut disks = lock(&self.disks);
        if !disks.iter().any(|known| known.is(disk)) {
            disks.push(disk.clone());
            // Release: pairs with `wait`.
            self.has_disks.store(true, Ordering::Release);
        }
    }

    /// Applies the next event of every simulated disk that this ring has sent I/O to. Returns
    /// whether there was any.
    fn step_disks(&self) -> bool {
        if !self.has_disks.load(Ordering::Acquire) {
            return false;
        }
        let disks = lock(&self.disks).clone();
        disks.iter().filter(|disk| disk.step()).count() > 0
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::engine::uring::Uring;

    /// The moment between a leader's last look and its sleep is too short for other threads to hit,
    /// so this test holds it open.
    #[test]
    fn a_wake_ends_the_leaders_sleep_even_if_a_reaper_consumes_its_nop() {
        let Ok(uring) = Uring::new(4) else { return eprintln!("skipped: no io_uring") };
        let core = RingCore::new(FileEngine::Uring(Box::new(uring)));
        let FileEngine::Uring(uring) = &core.files else { unreachable!() };
        // R3: the leader has looked, and is about to sleep.
        lock(&core.state).leader = true;
        core.wake();
        for _ in 0..3 {
            core.reap(&mut |_, _| panic!("nothing was pushed"));
        }
        // R4: the reaper has posted another NOP. Without it this sleep would not end.
        uring.sleep(None).unwrap();
        let mut state = lock(&core.state);
        state.leader = false;
        assert!(core.harvest(&mut state).nop);
    }
}
