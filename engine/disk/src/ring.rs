//! [`Ring`]: the queue that carries I/O to stores and brings completions back, as callers see it. Not here: how
//! completions wait and are waited for (`inbox.rs`), how files are read and written (`engine.rs`),
//! what a simulated disk does in what order (`sim/`).

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::buffer::IoBuffer;
use crate::engine::FileEngine;
use crate::error::IoError;
use crate::inbox::RingCore;
use crate::io::{Io, Op};
use crate::process::Process;
use crate::store::{Kind, Store};
use crate::sync::Arc;

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
    /// I/Os handed to the kernel with one call; 1 to 32768. More may be queued: they wait in the
    /// ring.
    pub entries: u32,
    /// The engine for files and devices.
    pub engine: Engine,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions { entries: 128, engine: Engine::Auto }
    }
}

/// A queue of I/O to any stores. Best made one per thread that submits; every method may be called
/// by any thread.
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
///
/// A ring belongs to the process that made it: in a child of `fork` it may be dropped, and nothing
/// else.
pub struct Ring {
    core: Arc<RingCore>,
    process: Process,
}

impl Ring {
    /// Makes a ring. Fails if `entries` is out of range, or io_uring is refused and was asked for
    /// by name.
    pub fn new(options: &RingOptions) -> io::Result<Ring> {
        if !(1..=32768).contains(&options.entries) {
            let message = format!("a ring has 1 to 32768 entries, not {}", options.entries);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Ring::with(FileEngine::new(options)?))
    }

    fn with(engine: FileEngine) -> Ring {
        Ring { core: RingCore::new(engine), process: Process::this() }
    }

    /// Queues one I/O; [`submit`](Ring::submit) or [`wait`](Ring::wait) hands it over, or a later
    /// `push` for a kernel that has no more to do than what is queued. What is wrong with it is
    /// said by its completion. Blocks only while the store's length is being changed.
    ///
    /// `offset` and the lengths are multiples of the store's block, and the buffers are aligned to
    /// 4096 bytes.
    ///
    /// # Safety
    ///
    /// Until the completion with `token` was delivered (or the ring dropped), the buffers must stay
    /// valid, and nobody else may write them; nor read them, if this is a read.
    pub unsafe fn push(&self, store: &Store, op: Op, offset: u64, buffers: &[IoBuffer], token: u64) {
        RingCore::push(&self.core, store, Io::new(store, op, offset, buffers, token));
    }

    /// Queues the clearing of a range: [`Op::Zero`] or [`Op::Discard`]. It needs no memory, and
    /// completes as any other I/O.
    ///
    /// The range begins and ends at multiples of the store's block, or ends at the store's end or
    /// past it. No other I/O may be in flight on it.
    pub fn push_clear(&self, store: &Store, op: Op, offset: u64, len_bytes: u64, token: u64) {
        RingCore::push(&self.core, store, Io::clear(store, op, offset, len_bytes, token));
    }

    /// Hands all queued I/O over to the kernel, with one system call unless there is more than one
    /// ring full.
    pub fn submit(&self) {
        RingCore::submit(&self.core);
    }

    /// Delivers what has completed, without waiting, and returns how much that was. Callbacks may
    /// use the ring.
    pub fn reap(&self, on_completion: &mut dyn FnMut(u64, Result<(), IoError>)) -> usize {
        self.core.reap(on_completion)
    }

    /// Sleeps until something can be delivered, [`wake`](Ring::wake) is called or `timeout` is
    /// over; then delivers as [`reap`](Ring::reap) does. Submits first. Takes a wake that came
    /// before.
    ///
    /// With nothing in flight it still sleeps: callers also wait for other threads' work, and are
    /// woken by them. With a timeout of zero it is a `reap` that takes wakes, as an event loop
    /// over [`poll_fd`](Ring::poll_fd) needs it.
    pub fn wait(
        &self,
        on_completion: &mut dyn FnMut(u64, Result<(), IoError>),
        timeout: Option<Duration>,
    ) -> usize {
        RingCore::wait(&self.core, on_completion, timeout)
    }

    /// For a thread that waits for what another has submitted, before it looks and every
    /// [`NUDGE_INTERVAL`](Ring::NUDGE_INTERVAL) while it waits by other means than `wait`: a
    /// completion may be held up until its submitter next enters the kernel, and a submitter that
    /// computes is interrupted.
    pub fn nudge(&self) {
        self.core.nudge();
    }

    /// How long completions may at most be held up by a submitter that computes, on a processor
    /// that does not tick.
    pub const NUDGE_INTERVAL: Duration = Duration::from_millis(20);

    /// Makes every `wait` that is under way return, or else the next one. Threads that share a ring
    /// and wait for the same news pass the wake on: one that comes late finds it taken.
    pub fn wake(&self) {
        self.core.wake();
    }

    /// A descriptor that polls as readable when there is something to deliver or a wake to take. It
    /// may be readable without; `wait` with a timeout of zero settles that. None under shuttle,
    /// or if the system has no descriptor left.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.core.poll_fd()
    }

    /// I/Os pushed and not yet delivered.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// "io_uring" or "blocking".
    pub fn engine_name(&self) -> &'static str {
        self.core.engine_name()
    }

    /// One I/O from start to end on the calling thread, by plain system calls: for callers that
    /// have nothing else to do meanwhile. Its completion is the returned value and goes through
    /// no ring.
    ///
    /// # Safety
    ///
    /// The buffers are valid, and nobody else writes them (nor reads them, if this is a read) until
    /// this returns.
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
                file.enter(self.core.shard(), op);
                file.cut(&mut io);
                file.execute(&mut io);
                file.leave(self.core.shard(), op);
            }
            Kind::Sim(_) => return run_simulated(store, io),
        }
        io.error.map_or(Ok(()), Err)
    }
}

/// A simulated disk delivers to rings only, so this I/O gets one of its own.
fn run_simulated(store: &Store, io: Io) -> Result<(), IoError> {
    let ring = Ring::with(FileEngine::blocking());
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
        // What is in flight completes in the process that submitted it.
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
