//! The inbox of a ring: where completions wait, and how threads wait for them. Protects the promise
//! that every completion is delivered exactly once, by whichever thread asks first, and that nobody
//! who waits misses it. Not here: how I/O reaches files (`engine.rs`).
//!
//! Protocol of the inbox and of sleeping, all under the lock `state`:
//!
//! * R1. An I/O counts in `in_flight` from `push` until it is taken from the inbox. Between,
//!   exactly one party has it: the engine, a simulated disk, or the inbox.
//! * R2. No lock of the ring is held while a callback runs or a `Store` is dropped. The last handle
//!   of a store leaves the rings' file tables, which takes their locks.
//! * R3. A waiter looks at the inbox and at `wakes_sent` with `state` locked, and sleeps either on
//!   `arrived`, which gives the lock up in the same step, or (io_uring) in the kernel as the
//!   *leader*. There is one leader at most; the others sleep on `arrived`, and a leader that leaves
//!   wakes one of them.
//! * R4. The leader sleeps until the kernel posts an entry after the one that it saw last. Whoever
//!   has news that is not such an entry (a wake, a completion made elsewhere) posts one: a NOP, at
//!   most one at a time. It is news as long as the inbox is not empty or a wake is untaken; who
//!   consumes the NOP meanwhile posts it again, unless nobody sleeps in the kernel or polls.
//! * R5. A wake is taken by every `wait` that had begun when it was sent, or else by the next one.
//!   `reap` never takes it.
//!
//! Lock order: `state`, then the engine's submission lock. Gates are entered with none of them
//! held.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::engine::{FileEngine, Harvest};
use crate::error::IoError;
use crate::gate::Gate;
use crate::io::Io;
use crate::sim::SimDisk;
use crate::store::{Kind, Store};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, sleep_on};

/// Completions are moved out of the inbox in batches of this many, so that the lock is free while
/// callbacks run.
const BATCH: usize = 32;

/// A kernel that is short of memory is asked again after this long.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A ring without its handle: what engines and simulated disks complete to.
pub(crate) struct RingCore {
    shard: u8,
    state: Mutex<State>,
    arrived: Condvar,
    /// R1.
    in_flight: AtomicUsize,
    files: FileEngine,
    /// Simulated disks that this ring has sent I/O to; their time passes while someone reaps or
    /// waits.
    disks: Mutex<Vec<SimDisk>>,
    has_disks: AtomicBool,
}

#[derive(Default)]
struct State {
    inbox: VecDeque<Completed>,
    wakes_sent: u64,
    /// As of this many wakes a `wait` has returned (R5).
    wakes_taken: u64,
    /// Threads asleep on `arrived`.
    sleepers: usize,
    /// A thread sleeps in the kernel, or is about to (R3).
    leader: bool,
    /// R4.
    #[cfg_attr(shuttle, allow(dead_code, reason = "only io_uring has NOPs"))]
    nop_in_flight: bool,
    /// Someone has the descriptor to poll.
    polled: bool,
    /// The blocking engine's event counter is set.
    event_set: bool,
    /// Counts what simulated disks were given to do, so that a waiter does not sleep over what it
    /// has not stepped.
    sim_news: u64,
}

/// An I/O whose buffers are its caller's again as soon as this is delivered.
struct Completed {
    token: u64,
    result: Result<(), IoError>,
    store: Store,
}

impl RingCore {
    pub(crate) fn new(files: FileEngine) -> Arc<RingCore> {
        static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        // Relaxed: only an even spread matters.
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
        #[cfg(not(shuttle))]
        crate::registry::register(&core);
        core
    }

    /// `store` is the I/O's own.
    pub(crate) fn push(core: &Arc<RingCore>, store: &Store, mut io: Io) {
        io.debug_assert_aligned();
        // Relaxed: a count (R1).
        core.in_flight.fetch_add(1, Ordering::Relaxed);
        if io.refuse_invalid() {
            return core.complete(io);
        }
        match store.kind() {
            Kind::Memory(memory) => {
                memory.execute(&io);
                core.complete(io);
            }
            Kind::Sim(sim) => {
                core.know_disk(sim.disk());
                sim.push(core, io);
                core.sim_moves();
            }
            Kind::File(file) => {
                // L1.
                file.enter(core.shard, io.op);
                io.gate_shard = Some(core.shard);
                file.cut(&mut io);
                if io.parts_left == 0 {
                    return core.complete(io);
                }
                core.files.push(io);
            }
        }
    }

    /// A simulated disk has something to do for this ring: whoever sleeps looks at it.
    pub(crate) fn sim_moves(&self) {
        let mut state = lock(&self.state);
        state.sim_news += 1;
        if state.sleepers > 0 {
            self.arrived.notify_one();
        }
        self.announce(state);
    }

    /// False if the kernel is short of memory and did not take everything.
    pub(crate) fn submit(core: &Arc<RingCore>) -> bool {
        core.files.submit(core)
    }

    /// Executes a file's I/O on this thread and completes it.
    pub(crate) fn execute(&self, mut io: Io) {
        let store = io.store.clone();
        if let Kind::File(file) = store.kind() {
            file.execute(&mut io);
        }
        // Before anyone is told: whoever is told may close the store and open it again.
        drop(store);
        self.complete(io);
    }

    /// Puts a finished I/O in the inbox and tells whoever waits (R4).
    pub(crate) fn complete(&self, io: Io) {
        let completed = Completed::new(io);
        let mut state = lock(&self.state);
        state.inbox.push_back(completed);
        if state.sleepers > 0 {
            self.arrived.notify_one();
        }
        self.announce(state);
    }

    /// Moves what the kernel has completed to the inbox.
    fn harvest(&self, state: &mut State) -> Harvest {
        let inbox = &mut state.inbox;
        let harvest = self.files.harvest(&mut |io| inbox.push_back(Completed::new(io)));
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

    /// Delivers what is in the inbox now; what comes meanwhile waits for the next call.
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
                RingCore::submit(self);
            }
            for Completed { token, result, store } in batch.into_iter().flatten() {
                // R2. And first: whoever is told may close the store and open it again.
                drop(store);
                on_completion(token, result);
            }
            if is_last {
                return count - left;
            }
            state = lock(&self.state);
        }
    }

    /// See `Ring::wait`. Numbers are those of the protocol above.
    pub(crate) fn wait(
        core: &Arc<RingCore>,
        on_completion: &mut dyn FnMut(u64, Result<(), IoError>),
        timeout: Option<Duration>,
    ) -> usize {
        // A timeout beyond what the clock can name is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let remaining = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut state = lock(&core.state);
        let taken_at_entry = state.wakes_taken;
        let mut nop = false;
        let harvest = loop {
            let mut harvest = core.harvest(&mut state);
            nop |= harvest.nop;
            harvest.nop = nop;
            if !state.inbox.is_empty() || state.wakes_sent != taken_at_entry {
                harvest.queued |= core.files.has_unsubmitted();
                break harvest;
            }
            if harvest.queued || core.files.must_submit(state.leader) {
                drop(state);
                if !RingCore::submit(core) {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                state = lock(&core.state);
                continue;
            }
            let sim_news = state.sim_news;
            // Acquire: pairs with `know_disk`; and a push to a disk is counted under the lock.
            if core.has_disks.load(Ordering::Acquire) {
                drop(state);
                let stepped = core.step_disks();
                state = lock(&core.state);
                let news = stepped || state.sim_news != sim_news || !state.inbox.is_empty();
                if news || state.wakes_sent != taken_at_entry {
                    continue;
                }
            }
            let timeout = remaining();
            if timeout == Some(Duration::ZERO) {
                harvest.queued |= core.files.has_unsubmitted();
                break harvest;
            }
            state = core.sleep(state, timeout);
            if cfg!(shuttle) && timeout.is_some() {
                break core.harvest(&mut state);
            }
        };
        // R5.
        state.wakes_taken = state.wakes_sent;
        // R3: the next one leads.
        if state.sleepers > 0 && !state.leader {
            core.arrived.notify_one();
        }
        core.deliver(state, harvest, on_completion)
    }

    /// R3: sleeps once, on `arrived` or as the leader.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        #[cfg(not(shuttle))]
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

    /// See `Ring::nudge`.
    pub(crate) fn nudge(&self) {
        self.files.nudge();
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

    /// R4: makes the news known outside of `arrived`, and unlocks.
    fn announce(&self, mut state: MutexGuard<'_, State>) {
        // Relaxed: whether simulated time must pass is known to whoever pushed.
        let simulates = self.has_disks.load(Ordering::Relaxed) && self.in_flight.load(Ordering::Relaxed) > 0;
        let is_news = !state.inbox.is_empty() || state.wakes_sent != state.wakes_taken || simulates;
        match &self.files {
            #[cfg(not(shuttle))]
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

    /// See `Ring::poll_fd`.
    pub(crate) fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.files.poll_fd()?;
        let mut state = lock(&self.state);
        state.polled = true;
        self.announce(state);
        Some(fd)
    }

    pub(crate) fn in_flight(&self) -> usize {
        // Relaxed: a count that is out of date when it returns.
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn engine_name(&self) -> &'static str {
        self.files.name()
    }

    /// The shard of every gate that this ring's I/O enters.
    pub(crate) fn shard(&self) -> u8 {
        self.shard
    }

    /// U5: the store has no handle left.
    #[cfg(not(shuttle))]
    pub(crate) fn forget_store(&self, id: u64) {
        if let FileEngine::Uring(uring) = &self.files {
            uring.forget_store(id);
        }
    }

    fn know_disk(&self, disk: &SimDisk) {
        let mut disks = lock(&self.disks);
        if !disks.iter().any(|known| known.is(disk)) {
            disks.push(disk.clone());
            // Release: pairs with `wait`.
            self.has_disks.store(true, Ordering::Release);
        }
    }

    /// Lets every simulated disk that this ring knows do its next event. True if one had any.
    fn step_disks(&self) -> bool {
        if !self.has_disks.load(Ordering::Acquire) {
            return false;
        }
        let disks = lock(&self.disks).clone();
        disks.iter().filter(|disk| disk.step()).count() > 0
    }

    /// L3: makes this ring's I/O progress without delivering anything.
    #[cfg(not(shuttle))]
    pub(crate) fn drive(core: &Arc<RingCore>) {
        RingCore::submit(core);
        core.files.nudge();
        let mut state = lock(&core.state);
        let harvest = core.harvest(&mut state);
        if state.sleepers > 0 && !state.inbox.is_empty() {
            core.arrived.notify_one();
        }
        core.announce(state);
        if harvest.queued {
            RingCore::submit(core);
        }
    }
}
impl Completed {
    fn new(mut io: Io) -> Completed {
        // L1: finished, though not delivered.
        if let (Some(shard), Kind::File(file)) = (io.gate_shard.take(), io.store.kind()) {
            file.leave(shard, io.op);
        }
        Completed { token: io.token, result: io.error.map_or(Ok(()), Err), store: io.store }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::uring::Uring;

    /// The moment between a leader's last look and its sleep is too short for threads to meet in by
    /// chance, so it is held open here.
    #[test]
    fn a_wake_whose_nop_a_reaper_consumes_still_ends_the_leaders_sleep() {
        let Ok(uring) = Uring::new(4) else { return eprintln!("skipped: no io_uring") };
        let core = RingCore::new(FileEngine::Uring(Box::new(uring)));
        let FileEngine::Uring(uring) = &core.files else { unreachable!() };
        // R3: it has looked, and is about to sleep.
        lock(&core.state).leader = true;
        core.wake();
        for _ in 0..3 {
            core.reap(&mut |_, _| panic!("nothing was pushed"));
        }
        // R4: there is a NOP again. Without one this would sleep until somebody tires of it.
        uring.sleep(None).unwrap();
        let mut state = lock(&core.state);
        state.leader = false;
        assert!(core.harvest(&mut state).nop);
    }
}
