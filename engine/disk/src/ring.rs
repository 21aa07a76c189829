//! [`Ring`]: the queue that carries I/O to stores and brings completions back, as callers see it.
//! Not here: how completions wait and threads wait for them (`inbox.rs`), how files are read and
//! written (`engine.rs`), the events of a simulated disk (`sim.rs`).

mod inbox;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::engine::job::NUDGE_INTERVAL;
use crate::engine::{FileEngine, RingOptions};
use crate::error::IoError;
use crate::io::Io;
use crate::io::buffer::IoBuffer;
use crate::io::method::Methods;
use crate::io::survey::Survey;
use crate::op::Op;
use crate::process::Process;
use crate::ring::inbox::RingCore;
use crate::store::Store;
use crate::store::gate::Gate;
use crate::sync::Arc;

/// A queue of I/O to any number of stores. Any thread may call any method; one ring per submitting
/// thread performs best.
///
/// Dropping a ring waits for its I/O in flight, and discards the completions.
///
/// A ring belongs to the process that created it. A child of `fork` may only drop it.
///
/// # Examples
/// ```
/// use octavo_disk::{AlignedBytes, Op, Ring, RingOptions, Store};
/// let store = Store::memory("scratch", 1 << 20);
/// let ring = Ring::new(&RingOptions::default())?;
/// let page = AlignedBytes::new(4096);
/// // SAFETY: `page` outlives the wait below, and nothing accesses it before.
/// unsafe { ring.push(&store, Op::Read, 8192, &[page.io_buffer()], 7) };
/// let delivered = ring.wait(&mut |token, result| assert!(token == 7 && result.is_ok()), None);
/// assert_eq!(delivered, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Ring {
    core: Arc<RingCore>,
    process: Process,
}

impl Ring {
    /// Creates a ring.
    ///
    /// # Errors
    /// - `InvalidInput`: `entries` is not between 1 and 32768.
    /// - Any error of the kernel, if `engine` is [`Engine::Uring`](crate::Engine::Uring).
    pub fn new(options: &RingOptions) -> io::Result<Ring> {
        if !(1..=32768).contains(&options.entries) {
            let message = format!("a ring has 1 to 32768 entries, not {}", options.entries);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Ring { core: RingCore::new(FileEngine::new(options)?), process: Process::this() })
    }

    /// Queues one I/O. [`submit`](Ring::submit) or [`wait`](Ring::wait) hands it to the kernel; a
    /// later `push` may do so too, to keep the kernel busy. The completion with `token` reports the
    /// result, even if the request is invalid. Blocks only while the store's length is being
    /// changed.
    ///
    /// `offset` and the lengths of the buffers are multiples of the store's block, and the buffers
    /// are aligned to 4096 bytes.
    ///
    /// # Safety
    ///
    /// Until the completion with `token` is delivered (or the ring is dropped), the buffers must
    /// stay valid. Meanwhile, no other party may write to them and, if `op` is a read, no other
    /// party may read them.
    pub unsafe fn push(&self, store: &Store, op: Op, offset: u64, buffers: &[IoBuffer], token: u64) {
        self.core.push(store, Io::new(op, offset, buffers, token));
    }

    /// Queues an I/O that clears a range, with [`Op::Zero`] or [`Op::Discard`]. It takes no
    /// buffers, and completes like any other I/O.
    ///
    /// The range begins at a multiple of the store's block. It ends at a multiple of the block, or
    /// at or past the end of the store. No other I/O may be in flight on the range.
    ///
    /// # Panics
    /// If `op` is neither [`Op::Zero`] nor [`Op::Discard`].
    ///
    /// # Examples
    /// ```
    /// use octavo_disk::{Op, Ring, RingOptions, Store};
    /// let store = Store::memory("scratch", 1 << 20);
    /// let ring = Ring::new(&RingOptions::default())?;
    /// ring.push_clear(&store, Op::Discard, 0, 65_536, 1);
    /// assert_eq!(ring.wait(&mut |_, result| assert!(result.is_ok()), None), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn push_clear(&self, store: &Store, op: Op, offset: u64, len_bytes: u64, token: u64) {
        self.core.push(store, Io::clear(op, offset, len_bytes, token));
    }

    /// Queues an I/O that clears a range, as [`push_clear`](Ring::push_clear) does, but only if the
    /// store can do so faster than by writing zeros: a file whose file system can, a device that
    /// can free the range ([`Op::Discard`]), a back end that supports one of the two operations, or
    /// memory. Otherwise it fails with `EOPNOTSUPP`.
    ///
    /// # Panics
    /// If `op` is neither [`Op::Zero`] nor [`Op::Discard`].
    pub fn push_clear_fast(&self, store: &Store, op: Op, offset: u64, len_bytes: u64, token: u64) {
        let mut io = Io::clear(op, offset, len_bytes, token);
        io.methods = Methods::Fast;
        self.core.push(store, io);
    }

    /// Starts a survey, which completes like an I/O and never fails. It runs on a thread of the
    /// blocking engine, because the kernel has no asynchronous call for it. See
    /// [`Store::holes`].
    pub fn push_survey(&self, store: &Store, survey: &Arc<Survey>, token: u64) {
        self.core.push_survey(store, survey, token);
    }

    /// Hands all queued I/O to the kernel, with one system call per `entries` I/Os.
    pub fn submit(&self) {
        self.core.files.submit(&self.core);
    }

    /// Delivers all available completions without waiting, and returns their number. The callback
    /// may use the ring.
    pub fn reap(&self, on_completion: &mut dyn FnMut(u64, Result<(), IoError>)) -> usize {
        self.core.reap(on_completion)
    }

    /// Submits, sleeps until a completion is available, [`wake`](Ring::wake) is called or `timeout`
    /// expires, and then delivers as [`reap`](Ring::reap) does. Returns the number of completions.
    /// A wake that was sent before the call ends the sleep at once. Without a timeout, the sleep
    /// has no time limit.
    ///
    /// The call sleeps even if nothing is in flight, because callers also wait for the work of
    /// other threads, which then call `wake`. With a timeout of zero, it is a `reap` that also
    /// submits and takes wakes, for event loops over [`poll_fd`](Ring::poll_fd).
    pub fn wait(
        &self,
        on_completion: &mut dyn FnMut(u64, Result<(), IoError>),
        timeout: Option<Duration>,
    ) -> usize {
        self.core.wait(on_completion, timeout)
    }

    /// Makes the kernel post the completions that it is holding back. The kernel may hold back a
    /// completion until the thread that submitted the I/O next enters the kernel; this call
    /// interrupts a submitter that is computing.
    ///
    /// A thread that waits for another thread's I/O by other means than `wait` calls this before it
    /// looks for completions, and every [`NUDGE_INTERVAL`](Ring::NUDGE_INTERVAL) while it waits.
    pub fn nudge(&self) {
        self.core.files.nudge();
    }

    /// The interval at which waiting threads call `nudge`: 20 ms. It bounds the delay of
    /// completions whose submitter is computing on a processor without timer ticks.
    pub const NUDGE_INTERVAL: Duration = NUDGE_INTERVAL;

    /// Makes every `wait` in progress return or, if there is none, the next one. Any thread may
    /// call this. If several threads share a ring and wait for the same event, a thread that was
    /// woken must call `wake` again: a thread that begins to wait later finds the wake already
    /// taken.
    ///
    /// # Examples
    /// ```
    /// use octavo_disk::{Ring, RingOptions};
    /// let ring = std::sync::Arc::new(Ring::new(&RingOptions::default())?);
    /// let waker = ring.clone();
    /// let thread = std::thread::spawn(move || waker.wake());
    /// assert_eq!(ring.wait(&mut |_, _| {}, None), 0);
    /// # thread.join().unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wake(&self) {
        self.core.wake();
    }

    /// Returns a descriptor that polls as readable while a completion or a wake is available. It
    /// may also be readable for no reason; `wait` with a timeout of zero clears that state. None
    /// under shuttle, or if the system has no descriptor left.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.core.poll_fd()
    }

    /// Returns whether the descriptor of `poll_fd` would be readable. The model checker has none.
    #[cfg(shuttle)]
    pub fn has_news(&self) -> bool {
        self.core.has_news()
    }

    /// Returns the number of I/Os pushed and not yet delivered.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// Returns the engine in use: "io_uring" or "blocking".
    pub fn engine_name(&self) -> &'static str {
        self.core.files.name()
    }

    /// Executes one I/O and returns its result; on a file, on the calling thread with plain system
    /// calls. For callers that have nothing else to do meanwhile: the I/O passes through no queue
    /// of this ring.
    ///
    /// # Safety
    ///
    /// Until this returns, the buffers must stay valid. Meanwhile, no other party may write to them
    /// and, if `op` is a read, no other party may read them.
    ///
    /// # Errors
    /// The [`IoError`] that a completion would have reported.
    pub unsafe fn run(
        &self,
        store: &Store,
        op: Op,
        offset: u64,
        buffers: &[IoBuffer],
    ) -> Result<(), IoError> {
        store.run(Io::new(op, offset, buffers, 0), self.core.shard)
    }

    /// Reads one buffer, and returns its result: [`run`](Ring::run) for a read by a thread that has
    /// no ring. On a file it takes one plain system call, and allocates nothing.
    ///
    /// # Safety
    ///
    /// As for [`run`](Ring::run).
    ///
    /// # Errors
    /// The [`IoError`] that a completion would have reported.
    pub unsafe fn read_alone(store: &Store, offset: u64, buffer: IoBuffer) -> Result<(), IoError> {
        store.read(offset, buffer, Gate::shard_of_thread())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A model checker that unwinds its threads lets no I/O complete any more.
        if cfg!(shuttle) && std::thread::panicking() {
            return;
        }
        // The I/O in flight completes in the process that submitted it.
        if !self.process.is_this() {
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
