//! [`Stores`]: which thread waits for a lower file system. Any call to it may take for ever: a disk
//! or a server may be gone, or the file system frozen. Hits and other file systems do not wait for
//! it.
//!
//! Rules:
//! - **B1** A worker answers a request by itself only if that cannot wait: a hit, a miss or a write
//!   that the cache's queue takes, or what concerns only the mount's own tables.
//! - **B2** A worker may call the lower file system only on a *seat*, and with nothing in flight on
//!   its own queue. There is one seat fewer than workers. So one worker is always free, and no
//!   completion waits for a hung call. Fast file systems cost no change of threads.
//! - **B3** Without a seat, the worker hands the request over to the threads of its file system, in
//!   a copy. [`THREADS_FEW`] of them work while the file system answers, and at most
//!   [`THREADS_MAX`] if none of them has begun a request for [`STALL`]: each costs memory that
//!   `memory_max` does not count. One more thread than work waits to see that. Threads end when
//!   there is nothing to do. Further requests wait in order, at most [`WAITING_MAX`] of at most
//!   [`BYTES_MAX`] bytes that `memory_max` does not count; beyond that they fail with ENOMEM (B7).
//!   A file system that hangs so delays its own requests only.
//! - **B4** No lock that a worker takes without a seat is held across a call to a lower file
//!   system. An object or known space (`space.rs`) whose lock is not free at once counts as a call.
//! - **B5** Requests of killed programs are answered while they wait (`calls.rs`).
//! - **B6** Seats are for the file system of the mount's root. Requests for another one, which is
//!   reached through this mount, are handed over; so is the lookup of a name that leads to it
//!   (`crossings.rs`).
//! - **B7** A worker that finds no room for what it hands over waits for room while the file system
//!   answers at least every [`SILENCE_MAX`]. A slow one so slows down those who write, as without
//!   the mount, and only one that hangs has requests refused.
//!
//! *Considered instead*: handing every such request over. It costs two changes of threads, more
//! than most of the calls that a local file system serves from memory.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::thread::take_mask;

/// The number of a device, which names a lower file system.
pub type Device = (u32, u32);

/// The threads that serve a file system which answers.
const THREADS_FEW: usize = 2;

/// The most threads that wait for one file system.
const THREADS_MAX: usize = 16;

/// The time without the beginning of a request after which another thread begins one: more than
/// threads of a busy machine wait for a processor.
const STALL: Duration = Duration::from_millis(100);

/// The most requests that wait for these. Each has a program that waits, too.
const WAITING_MAX: usize = 4096;

/// The most bytes of the waiting requests.
const BYTES_MAX: usize = 16 << 20;

/// The time without an answer after which a file system counts as one that hangs (B7).
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The time after which a thread without work ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// The room of a thread's stack: the chunks of a directory are its largest part.
const STACK_BYTES: usize = 512 << 10;

/// The largest buffer that a thread keeps: most replies are small.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// The lower file systems of a mount, for requests of type `E`.
pub struct Stores<E> {
    stores: Mutex<HashMap<Device, Arc<Store<E>>>>,
    kind: Kind<E>,
}

/// What is done with requests.
struct Kind<E> {
    /// The memory of one.
    bytes_of: fn(&E) -> usize,
    /// Performs one. Gets a buffer of the thread.
    perform: fn(E, &mut Vec<u8>),
    /// [`STALL`], but in tests.
    stall: Duration,
    /// [`SILENCE_MAX`], but in tests.
    silence_max: Duration,
}

impl<E> Clone for Kind<E> {
    fn clone(&self) -> Kind<E> {
        Kind { ..*self }
    }
}

/// A lower file system.
struct Store<E> {
    kind: Kind<E>,
    state: Mutex<State<E>>,
    work: Condvar,
    /// For those that wait for room (B7).
    room: Condvar,
}

struct State<E> {
    waiting: VecDeque<E>,
    bytes: usize,
    threads: usize,
    /// Those that perform a request.
    busy: usize,
    /// When a thread last began one.
    begun: Instant,
    /// When one was last answered, or the first of those that are performed was begun.
    answered: Instant,
    is_over: bool,
}

impl<E> State<E> {
    /// Whether a request of this many bytes must wait for others to begin. One alone has room.
    fn lacks_room(&self, bytes: usize) -> bool {
        let is_full = self.waiting.len() >= WAITING_MAX || self.bytes + bytes > BYTES_MAX;
        !self.is_over && is_full && !self.waiting.is_empty()
    }

    /// Whether another thread is needed for what waits.
    fn lacks_thread(&self) -> bool {
        self.busy == self.threads && self.threads < THREADS_MAX
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Send + 'static> Stores<E> {
    /// `bytes_of` tells the memory of a request, and `perform` performs it.
    pub fn new(bytes_of: fn(&E) -> usize, perform: fn(E, &mut Vec<u8>)) -> Stores<E> {
        let kind = Kind { bytes_of, perform, stall: STALL, silence_max: SILENCE_MAX };
        Stores { stores: Mutex::default(), kind }
    }

    /// Leaves a request to the threads of a file system (B3). One that must not be lost is not
    /// refused: what closes files is limited by the number of open ones.
    ///
    /// # Errors
    /// The request, if too many wait already.
    pub fn hand_over(&self, device: Device, errand: E, can_fail: bool) -> Result<(), E> {
        let store = {
            let mut stores = lock(&self.stores);
            stores.entry(device).or_insert_with(|| Arc::new(Store::new(self.kind.clone()))).clone()
        };
        store.add(errand, can_fail)
    }

    /// Returns the requests that no thread has begun. Threads end once they have nothing to do.
    pub fn abort(&self) -> Vec<E> {
        let stores: Vec<_> = lock(&self.stores).values().cloned().collect();
        let mut waiting = Vec::new();
        for store in stores {
            let mut state = lock(&store.state);
            state.is_over = true;
            state.bytes = 0;
            waiting.extend(state.waiting.drain(..));
            store.work.notify_all();
            store.room.notify_all();
        }
        waiting
    }
}

impl<E: Send + 'static> Store<E> {
    fn new(kind: Kind<E>) -> Store<E> {
        let state = State {
            waiting: VecDeque::new(),
            bytes: 0,
            threads: 0,
            busy: 0,
            begun: Instant::now(),
            answered: Instant::now(),
            is_over: false,
        };
        Store { kind, state: Mutex::new(state), work: Condvar::new(), room: Condvar::new() }
    }

    fn add(self: &Arc<Self>, errand: E, can_fail: bool) -> Result<(), E> {
        let mut state = lock(&self.state);
        let bytes = (self.kind.bytes_of)(&errand);
        // B7.
        while can_fail && state.lacks_room(bytes) {
            let silent_for = state.answered.elapsed();
            if silent_for >= self.kind.silence_max {
                return Err(errand);
            }
            let waited = self.room.wait_timeout(state, self.kind.silence_max - silent_for);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.lacks_thread() {
            self.start(&mut state);
        }
        if state.threads == 0 && can_fail {
            return Err(errand);
        }
        state.bytes += bytes;
        state.waiting.push_back(errand);
        self.work.notify_one();
        Ok(())
    }

    /// Starts a thread, if that is possible. Others serve without it, or the next request tries
    /// again.
    fn start(self: &Arc<Self>, state: &mut State<E>) {
        let store = self.clone();
        let thread = std::thread::Builder::new().name("octavo-fuse-store".into()).stack_size(STACK_BYTES);
        match thread.spawn(move || store.serve()) {
            Ok(_) => state.threads += 1,
            Err(error) => log::error!("cannot start a thread that waits for a file system: {error}"),
        }
    }

    /// Performs requests until none has come for a while.
    fn serve(self: &Arc<Self>) {
        // Without one, the modes of new files may be wrong for a moment; nobody would serve else.
        take_mask();
        let mut out = Vec::new();
        while let Some(errand) = self.next() {
            // A panic is reported by its hook, and must not cost the file system a thread.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.kind.perform)(errand, &mut out)));
            self.end_one();
            if out.capacity() > KEPT_BYTES_MAX {
                out = Vec::new();
            }
        }
    }

    fn end_one(&self) {
        let mut state = lock(&self.state);
        state.busy -= 1;
        state.answered = Instant::now();
        drop(state);
        self.room.notify_all();
    }

    fn next(self: &Arc<Self>) -> Option<E> {
        let mut state = lock(&self.state);
        loop {
            let stalled_for = state.begun.elapsed();
            let may_begin = state.busy < THREADS_FEW || stalled_for >= self.kind.stall || state.is_over;
            if may_begin && let Some(errand) = state.waiting.pop_front() {
                state.bytes -= (self.kind.bytes_of)(&errand);
                state.begun = Instant::now();
                if state.busy == 0 {
                    state.answered = state.begun;
                }
                state.busy += 1;
                if !state.waiting.is_empty() {
                    // Another thread sees whether this one gets on.
                    self.work.notify_one();
                    if state.lacks_thread() {
                        self.start(&mut state);
                    }
                }
                return Some(errand);
            }
            if state.is_over {
                state.threads -= 1;
                return None;
            }
            let has_work = !state.waiting.is_empty();
            let patience = if has_work { self.kind.stall - stalled_for } else { IDLE_MAX };
            let (woken, waited) =
                self.work.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if !has_work && waited.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

/// The right of workers to call a lower file system (B2).
pub struct Seats(AtomicUsize);

/// One of these rights, until it is dropped.
pub struct Seat<'s>(&'s Seats);

impl Seats {
    /// For this many workers.
    pub fn new(workers: usize) -> Seats {
        Seats(AtomicUsize::new(workers.saturating_sub(1)))
    }

    /// Takes a seat, if one is free.
    pub fn take(&self) -> Option<Seat<'_>> {
        let taken = self.0.fetch_update(SeqCst, SeqCst, |free| free.checked_sub(1));
        taken.is_ok().then(|| Seat(self))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        // A panic ends its worker, whose seat goes with it.
        if !std::thread::panicking() {
            self.0.0.fetch_add(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const PATIENCE: Duration = Duration::from_secs(60);
    const HUNG: Device = (8, 1);
    const OTHER: Device = (8, 2);

    /// A request that says that it has begun, and hangs until there is nobody to let it go.
    struct Hanging {
        bytes: usize,
        begun: Sender<usize>,
        end: Option<Receiver<()>>,
    }

    fn stores() -> Stores<Hanging> {
        let perform = |one: Hanging, _: &mut Vec<u8>| {
            let _ = one.begun.send(one.bytes);
            one.end.map(|end| end.recv());
        };
        let bytes_of = |one: &Hanging| one.bytes;
        // A full queue is refused at once.
        let kind = Kind { bytes_of, perform, stall: STALL, silence_max: Duration::ZERO };
        Stores { stores: Mutex::default(), kind }
    }

    /// The next two that begin, which threads may tell in any order.
    fn two(begins: &Receiver<usize>) -> [usize; 2] {
        let mut begun = [(); 2].map(|()| begins.recv_timeout(PATIENCE).unwrap());
        begun.sort_unstable();
        begun
    }

    #[test]
    fn a_hung_file_system_keeps_its_own_requests_waiting() {
        let stores = stores();
        let (begun, begins) = channel();
        let mut ends = Vec::new();
        for number in 0..THREADS_MAX + 3 {
            let (end, ended) = channel();
            ends.push(end);
            let request = Hanging { bytes: number, begun: begun.clone(), end: Some(ended) };
            assert!(stores.hand_over(HUNG, request, true).is_ok());
        }
        let mut first: Vec<_> = (0..THREADS_MAX).map(|_| begins.recv_timeout(PATIENCE).unwrap()).collect();
        first.sort_unstable();
        assert!(first.into_iter().eq(0..THREADS_MAX));
        let request = Hanging { bytes: 100, begun: begun.clone(), end: None };
        assert!(stores.hand_over(OTHER, request, true).is_ok());
        assert_eq!(begins.recv_timeout(PATIENCE), Ok(100), "the other one does not wait");
        // One answer, and the next request begins.
        drop(ends.remove(0));
        assert_eq!(begins.recv_timeout(PATIENCE), Ok(THREADS_MAX));
        drop(ends);
        assert_eq!(two(&begins), [THREADS_MAX + 1, THREADS_MAX + 2]);
    }

    #[test]
    fn a_file_system_that_answers_has_few_threads() {
        let (begun, begins) = channel();
        let perform = |one: Hanging, _: &mut Vec<u8>| _ = one.begun.send(one.bytes);
        let kind =
            Kind { bytes_of: |one: &Hanging| one.bytes, perform, stall: PATIENCE, silence_max: PATIENCE };
        let store = Arc::new(Store::new(kind));
        for number in 0..1000 {
            let request = Hanging { bytes: number, begun: begun.clone(), end: None };
            assert!(store.add(request, true).is_ok());
            assert!(lock(&store.state).threads <= THREADS_FEW + 1);
        }
        (0..1000).for_each(|_| _ = begins.recv_timeout(PATIENCE).unwrap());
        assert!(lock(&store.state).threads <= THREADS_FEW + 1);
    }

    #[test]
    fn a_panic_costs_a_file_system_no_thread() {
        let (begun, begins) = channel();
        let perform = |one: Hanging, _: &mut Vec<u8>| {
            assert!(one.bytes > 0, "this request panics");
            let _ = one.begun.send(one.bytes);
        };
        let stores = Stores::new(|one: &Hanging| one.bytes, perform);
        for number in 0..2 * THREADS_MAX {
            let bytes = number / THREADS_MAX;
            let request = Hanging { bytes, begun: begun.clone(), end: None };
            assert!(stores.hand_over(HUNG, request, true).is_ok());
        }
        (0..THREADS_MAX).for_each(|_| assert_eq!(begins.recv_timeout(PATIENCE), Ok(1)));
    }

    #[test]
    fn too_many_bytes_are_refused_and_closes_are_not() {
        let stores = stores();
        let (begun, begins) = channel();
        let mut ends = Vec::new();
        for _ in 0..=THREADS_MAX {
            let (end, ended) = channel();
            ends.push(end);
            let request = Hanging { bytes: 1, begun: begun.clone(), end: Some(ended) };
            assert!(stores.hand_over(HUNG, request, true).is_ok());
        }
        (0..THREADS_MAX).for_each(|_| _ = begins.recv_timeout(PATIENCE).unwrap());
        let large = || Hanging { bytes: BYTES_MAX, begun: begun.clone(), end: None };
        assert!(stores.hand_over(HUNG, large(), true).is_err());
        assert!(stores.hand_over(HUNG, large(), false).is_ok());
        drop(ends);
        assert_eq!(two(&begins), [1, BYTES_MAX]);
    }

    /// B7: a slow file system made writes fail.
    #[test]
    fn a_slow_file_system_slows_down_and_refuses_nothing() {
        let (begun, begins) = channel();
        let perform = |one: Hanging, _: &mut Vec<u8>| {
            std::thread::sleep(Duration::from_millis(1));
            let _ = one.begun.send(one.bytes);
        };
        let stores = Stores::new(|one: &Hanging| one.bytes, perform);
        for _ in 0..100 {
            let request = Hanging { bytes: BYTES_MAX / 2, begun: begun.clone(), end: None };
            assert!(stores.hand_over(HUNG, request, true).is_ok());
        }
        (0..100).for_each(|_| _ = begins.recv_timeout(PATIENCE).unwrap());
    }

    #[test]
    fn one_worker_is_always_without_a_seat() {
        let seats = Seats::new(3);
        let first = seats.take();
        let second = seats.take();
        assert!(first.is_some() && second.is_some() && seats.take().is_none());
        drop(first);
        assert!(seats.take().is_some() && Seats::new(1).take().is_none());
    }

    #[test]
    fn a_worker_that_panics_takes_its_seat_with_it() {
        let seats = Seats::new(2);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _seat = seats.take();
            panic!("a worker panics");
        }));
        assert!(panicked.is_err() && seats.take().is_none());
    }
}
