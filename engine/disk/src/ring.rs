//! [`Ring`]: the queue that carries I/O to stores and brings completions back. Protects the inbox: every completion is
//! delivered exactly once, by whichever thread asks first, and nobody who waits misses it. Not here: how files are read
//! and written (`uring.rs`, `pool.rs`), or what a simulated disk does in what order (`sim/`).
//!
//! Protocol of the inbox and of sleeping, all under the lock `state`:
//!
//! * R1. An I/O counts in `in_flight` from `push` until it is taken from the inbox. Between, exactly one party has it:
//!   the engine, a simulated disk, or the inbox.
//! * R2. No lock of the ring is held while a callback runs or a `Store` is dropped. The last handle of a store leaves
//!   the rings' file tables, which takes their locks.
//! * R3. A waiter looks at the inbox and at `wakes_sent` with `state` locked, and sleeps either on `arrived`, which
//!   gives the lock up in the same step, or (io_uring) in the kernel as the *leader*. There is one leader at most;
//!   the others sleep on `arrived`, and a leader that leaves wakes one of them.
//! * R4. The leader sleeps until the kernel posts an entry after the one that it saw last. Whoever has news that is not
//!   such an entry (a wake, a completion made elsewhere) posts one: a NOP, at most one at a time. It is news as long as
//!   the inbox is not empty or a wake is untaken; who consumes the NOP meanwhile posts it again, unless nobody sleeps
//!   in the kernel or polls.
//! * R5. A wake is taken by every `wait` that had begun when it was sent, or else by the next one. `reap` never takes it.
//!
//! Lock order: `state`, then the engine's submission lock, then its slab. Gates are entered with none of them held.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::buffer::IoBuffer;
use crate::error::IoError;
use crate::gate::Gate;
use crate::io::{Io, Op};
use crate::sim::SimDisk;
use crate::store::{Kind, Store};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, sleep_on};
#[cfg(not(shuttle))]
use crate::uring::Uring;

/// Completions are moved out of the inbox in batches of this many, so that the lock is free while callbacks run.
const BATCH: usize = 32;

/// A kernel that is short of memory is asked again after this long.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// How I/O on files reaches the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, or the blocking engine where the kernel refuses that, with a warning in the log.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// A pool of threads, shared by all rings of the process.
    Blocking,
}

/// How a ring is made.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// I/Os handed to the kernel with one call; 1 to 32768. More may be queued: they wait in the ring.
    pub entries: u32,
    /// The engine for files and devices.
    pub engine: Engine,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions { entries: 128, engine: Engine::Auto }
    }
}

/// A queue of I/O to any stores. Best made one per thread that submits; every method may be called by any thread.
///
/// Dropping a ring waits for its I/O, and drops the completions.
///
/// ```
/// use octavo_disk::{AlignedBytes, Op, Ring, RingOptions, Store};
/// let store = Store::memory("scratch", 1 << 20);
/// let ring = Ring::new(&RingOptions::default())?;
/// let page = AlignedBytes::new(4096);
/// // SAFETY: `page` outlives the wait below, and nobody touches it before.
/// unsafe { ring.push(&store, Op::Read, 8192, &[page.io_buffer()], 7) };
/// let delivered = ring.wait(&mut |token, result| assert!(token == 7 && result.is_ok()), None);
/// assert_eq!(delivered, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Ring {
    core: Arc<RingCore>,
}

pub(crate) struct RingCore {
    shard: u8,
    state: Mutex<State>,
    arrived: Condvar,
    /// R1.
    in_flight: AtomicUsize,
    files: FileEngine,
    /// Simulated disks that this ring has sent I/O to; their time passes while someone reaps or waits.
    disks: Mutex<Vec<SimDisk>>,
    has_disks: AtomicBool,
}

enum FileEngine {
    #[cfg(not(shuttle))]
    Uring(Box<Uring>),
    Blocking(Blocking),
}

/// The blocking engine's share of a ring: what was pushed and not yet submitted, and the descriptor to poll.
#[derive(Default)]
struct Blocking {
    pending: Mutex<Vec<Io>>,
    #[cfg(not(shuttle))]
    event: std::sync::OnceLock<std::os::fd::OwnedFd>,
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
    /// Counts pushes to simulated disks, so that a waiter does not sleep over one that it has not stepped.
    sim_pushes: u64,
}

/// An I/O whose buffers are its caller's again as soon as this is delivered.
struct Completed {
    token: u64,
    result: Result<(), IoError>,
    store: Store,
}

impl Ring {
    /// Makes a ring. Fails if `entries` is out of range, or io_uring is refused and was asked for by name.
    pub fn new(options: &RingOptions) -> io::Result<Ring> {
        if !(1..=32768).contains(&options.entries) {
            let message = format!("a ring has 1 to 32768 entries, not {}", options.entries);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Ring { core: RingCore::new(FileEngine::new(options)?) })
    }

    /// Queues one I/O; [`submit`](Ring::submit) or [`wait`](Ring::wait) hands it over. What is wrong with it is said by
    /// its completion. Blocks only while the store's length is being changed.
    ///
    /// `offset` and the lengths are multiples of the store's block, and the buffers are aligned to 4096 bytes.
    ///
    /// # Safety
    ///
    /// Until the completion with `token` was delivered (or the ring dropped), the buffers must stay valid, and nobody
    /// else may write them; nor read them, if this is a read.
    pub unsafe fn push(&self, store: &Store, op: Op, offset: u64, buffers: &[IoBuffer], token: u64) {
        // Relaxed: a count; the inbox orders completions.
        self.core.in_flight.fetch_add(1, Ordering::Relaxed);
        RingCore::push(&self.core, store, Io::new(store, op, offset, buffers, token));
    }

    /// Hands all queued I/O over to the kernel, with one system call unless there is more than one ring full.
    pub fn submit(&self) {
        RingCore::submit(&self.core);
    }

    /// Delivers what has completed, without waiting, and returns how much that was. Callbacks may use the ring.
    pub fn reap(&self, on_completion: &mut dyn FnMut(u64, Result<(), IoError>)) -> usize {
        self.core.step_disks();
        let mut state = lock(&self.core.state);
        let harvest = self.core.harvest(&mut state);
        self.core.deliver(state, harvest, on_completion)
    }

    /// Sleeps until something can be delivered, [`wake`](Ring::wake) is called or `timeout` is over; then delivers as
    /// [`reap`](Ring::reap) does. Submits first. Takes a wake that came before.
    ///
    /// With nothing in flight it still sleeps: callers also wait for other threads' work, and are woken by them. With a
    /// timeout of zero it is a `reap` that takes wakes, as an event loop over [`poll_fd`](Ring::poll_fd) needs it.
    pub fn wait(
        &self,
        on_completion: &mut dyn FnMut(u64, Result<(), IoError>),
        timeout: Option<Duration>,
    ) -> usize {
        RingCore::wait(&self.core, on_completion, timeout)
    }

    /// Makes every `wait` that is under way return, or else the next one. Threads that share a ring and wait for the
    /// same news pass the wake on: one that comes late finds it taken.
    pub fn wake(&self) {
        let mut state = lock(&self.core.state);
        state.wakes_sent += 1;
        if state.sleepers > 0 {
            self.core.arrived.notify_all();
        }
        self.core.announce(state);
    }

    /// A descriptor that polls as readable when there is something to deliver or a wake to take. It may be readable
    /// without; `wait` with a timeout of zero settles that. None under shuttle, or if the system has no descriptor left.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.core.poll_fd()
    }

    /// I/Os pushed and not yet delivered.
    pub fn in_flight(&self) -> usize {
        // Relaxed: a count that is out of date when it returns.
        self.core.in_flight.load(Ordering::Relaxed)
    }

    /// "io_uring" or "blocking".
    pub fn engine_name(&self) -> &'static str {
        match &self.core.files {
            #[cfg(not(shuttle))]
            FileEngine::Uring(_) => "io_uring",
            FileEngine::Blocking(_) => "blocking",
        }
    }

    /// One I/O from start to end on the calling thread, by plain system calls: for callers that have nothing else to
    /// do meanwhile. Its completion is the returned value and goes through no ring.
    ///
    /// # Safety
    ///
    /// The buffers are valid, and nobody else writes them (nor reads them, if this is a read) until this returns.
    pub unsafe fn run(
        &self,
        store: &Store,
        op: Op,
        offset: u64,
        buffers: &[IoBuffer],
    ) -> Result<(), IoError> {
        let mut io = Io::new(store, op, offset, buffers, 0);
        io.debug_assert_aligned();
        if io.refuse_invalid() {
            return io.error.map_or(Ok(()), Err);
        }
        match store.kind() {
            Kind::Memory(memory) => memory.execute(&io),
            Kind::File(file) => {
                file.gate.enter(self.core.shard);
                file.cut(&mut io);
                file.execute(&mut io);
                file.gate.leave(self.core.shard);
            }
            Kind::Sim(_) => return run_simulated(store, io),
        }
        io.error.map_or(Ok(()), Err)
    }
}

/// A simulated disk delivers to rings only, so this I/O gets one of its own.
fn run_simulated(store: &Store, io: Io) -> Result<(), IoError> {
    let ring = Ring { core: RingCore::new(FileEngine::Blocking(Blocking::default())) };
    ring.core.in_flight.fetch_add(1, Ordering::Relaxed);
    RingCore::push(&ring.core, store, io);
    let mut outcome = Ok(());
    ring.wait(&mut |_, result| outcome = result, None);
    outcome
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A model checker that unwinds its threads lets nothing complete any more.
        if cfg!(shuttle) && std::thread::panicking() {
            return;
        }
        while self.in_flight() > 0 {
            self.wait(&mut |_, _| {}, None);
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({}, {} in flight)", self.engine_name(), self.in_flight())
    }
}

impl FileEngine {
    #[cfg(not(shuttle))]
    fn new(options: &RingOptions) -> io::Result<FileEngine> {
        use std::sync::atomic::AtomicBool;
        static WARNED: AtomicBool = AtomicBool::new(false);
        if options.engine == Engine::Blocking {
            return Ok(FileEngine::Blocking(Blocking::default()));
        }
        match Uring::new(options.entries) {
            Ok(uring) => Ok(FileEngine::Uring(Box::new(uring))),
            Err(error) if options.engine == Engine::Uring => Err(error),
            Err(error) => {
                // Relaxed: at worst a second warning.
                if !WARNED.swap(true, Ordering::Relaxed) {
                    log::warn!("io_uring is refused ({error}): I/O on files uses a pool of threads");
                }
                Ok(FileEngine::Blocking(Blocking::default()))
            }
        }
    }

    #[cfg(shuttle)]
    fn new(options: &RingOptions) -> io::Result<FileEngine> {
        match options.engine {
            Engine::Uring => Err(io::Error::new(io::ErrorKind::Unsupported, "no io_uring under shuttle")),
            Engine::Auto | Engine::Blocking => Ok(FileEngine::Blocking(Blocking::default())),
        }
    }
}

/// What a look at the kernel's completions found.
#[derive(Clone, Copy, Default)]
pub(crate) struct Harvest {
    /// The NOP of R4 was among them.
    pub(crate) nop: bool,
    /// Continued or delayed I/O was queued and wants a submit.
    pub(crate) queued: bool,
}

impl RingCore {
    fn new(files: FileEngine) -> Arc<RingCore> {
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
        register(&core);
        core
    }

    /// `store` is the I/O's own.
    fn push(core: &Arc<RingCore>, store: &Store, mut io: Io) {
        io.debug_assert_aligned();
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
                let mut state = lock(&core.state);
                state.sim_pushes += 1;
                if state.sleepers > 0 {
                    core.arrived.notify_one();
                }
                core.announce(state);
            }
            Kind::File(file) => {
                // L1.
                file.gate.enter(core.shard);
                io.gate_shard = Some(core.shard);
                file.cut(&mut io);
                if io.parts_left == 0 {
                    return core.complete(io);
                }
                match &core.files {
                    #[cfg(not(shuttle))]
                    FileEngine::Uring(uring) => uring.push(io),
                    FileEngine::Blocking(blocking) => lock(&blocking.pending).push(io),
                }
            }
        }
    }

    /// False if the kernel is short of memory and did not take everything.
    fn submit(core: &Arc<RingCore>) -> bool {
        match &core.files {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.submit(),
            FileEngine::Blocking(blocking) => {
                let pending = std::mem::take(&mut *lock(&blocking.pending));
                #[cfg(not(shuttle))]
                {
                    crate::pool::submit(core, pending);
                    true
                }
                #[cfg(shuttle)]
                {
                    pending.into_iter().for_each(|io| core.execute(io));
                    true
                }
            }
        }
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
        match &self.files {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => {
                let inbox = &mut state.inbox;
                let harvest = uring.harvest(&mut |io| inbox.push_back(Completed::new(io)));
                state.nop_in_flight &= !harvest.nop;
                harvest
            }
            FileEngine::Blocking(_) => {
                let _ = state;
                Harvest::default()
            }
        }
    }

    /// Delivers what is in the inbox now; what comes meanwhile waits for the next call.
    fn deliver<'a>(
        &'a self,
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
                self.submit_continued();
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

    fn submit_continued(&self) {
        match &self.files {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => {
                uring.submit();
            }
            FileEngine::Blocking(_) => {}
        }
    }

    /// See `Ring::wait`. Numbers are those of the protocol above.
    fn wait(
        core: &Arc<RingCore>,
        on_completion: &mut dyn FnMut(u64, Result<(), IoError>),
        timeout: Option<Duration>,
    ) -> usize {
        if matches!(&core.files, FileEngine::Blocking(_)) {
            RingCore::submit(core);
        }
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
                harvest.queued |= core.has_unsubmitted();
                break harvest;
            }
            if harvest.queued || core.must_submit(&state) {
                drop(state);
                if !RingCore::submit(core) {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                state = lock(&core.state);
                continue;
            }
            let pushes = state.sim_pushes;
            // Acquire: pairs with `know_disk`; and a push to a disk is counted under the lock.
            if core.has_disks.load(Ordering::Acquire) {
                drop(state);
                let stepped = core.step_disks();
                state = lock(&core.state);
                let news = stepped || state.sim_pushes != pushes || !state.inbox.is_empty();
                if news || state.wakes_sent != taken_at_entry {
                    continue;
                }
            }
            let timeout = remaining();
            if timeout == Some(Duration::ZERO) {
                harvest.queued |= core.has_unsubmitted();
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

    /// True if I/O was queued and not handed over. The blocking engine's was, when `wait` began.
    fn has_unsubmitted(&self) -> bool {
        match &self.files {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.has_unsubmitted(),
            FileEngine::Blocking(_) => false,
        }
    }

    /// The leader submits in the same system call that it sleeps in; others submit before they sleep.
    fn must_submit(&self, state: &State) -> bool {
        match &self.files {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.has_backlog_room() || (state.leader && uring.has_unsubmitted()),
            FileEngine::Blocking(blocking) => {
                let _ = state;
                !lock(&blocking.pending).is_empty()
            }
        }
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

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        let fd = match &self.files {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => Some(uring.descriptor()),
            FileEngine::Blocking(blocking) => blocking.event(),
        };
        if fd.is_some() {
            let mut state = lock(&self.state);
            state.polled = true;
            self.announce(state);
        }
        fd
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
    fn drive(core: &Arc<RingCore>) {
        RingCore::submit(core);
        let mut state = lock(&core.state);
        let harvest = core.harvest(&mut state);
        if state.sleepers > 0 && !state.inbox.is_empty() {
            core.arrived.notify_one();
        }
        core.announce(state);
        if harvest.queued {
            core.submit_continued();
        }
    }
}

impl Completed {
    fn new(mut io: Io) -> Completed {
        // L1: finished, though not delivered.
        if let (Some(shard), Kind::File(file)) = (io.gate_shard.take(), io.store.kind()) {
            file.gate.leave(shard);
        }
        Completed { token: io.token, result: io.error.map_or(Ok(()), Err), store: io.store }
    }
}

impl Blocking {
    #[cfg(not(shuttle))]
    fn event(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        if let Some(event) = self.event.get() {
            return Some(event.as_fd());
        }
        let event = crate::sys::event_new().inspect_err(|error| log::warn!("eventfd: {error}")).ok()?;
        Some(self.event.get_or_init(|| event).as_fd())
    }

    #[cfg(shuttle)]
    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_event(&self, is_set: bool) {
        match self.event() {
            Some(event) if is_set => crate::sys::event_set(event),
            Some(event) => crate::sys::event_clear(event),
            None => {}
        }
    }
}

#[cfg(not(shuttle))]
use registry::register;
#[cfg(not(shuttle))]
pub(crate) use registry::{drive_all, forget_store};

/// The rings of this process: for a change of length, which drives them, and a closed store, which leaves them.
#[cfg(not(shuttle))]
mod registry {
    use super::{FileEngine, RingCore};
    use crate::sync::Arc;
    use std::sync::{Mutex, PoisonError, Weak};

    static RINGS: Mutex<Vec<Weak<RingCore>>> = Mutex::new(Vec::new());

    pub(super) fn register(core: &Arc<RingCore>) {
        let mut rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
        rings.retain(|ring| ring.strong_count() > 0);
        rings.push(Arc::downgrade(core));
    }

    fn all() -> Vec<Arc<RingCore>> {
        RINGS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn drive_all() {
        all().iter().for_each(RingCore::drive);
    }

    /// Called for a store that has no handle left, and so no I/O; with no lock of a ring held (R2).
    pub(crate) fn forget_store(id: u64) {
        for ring in all() {
            if let FileEngine::Uring(uring) = &ring.files {
                uring.forget_store(id);
            }
        }
    }
}

#[cfg(shuttle)]
fn register(_core: &Arc<RingCore>) {}

/// Under shuttle a file's I/O is finished when `submit` returns.
#[cfg(shuttle)]
pub(crate) fn drive_all() {
    shuttle::thread::yield_now();
}
