//! [`FileEngine`]: the two ways in which a ring reaches the kernel, io_uring (`uring.rs`) and a
//! pool of threads (`pool.rs`), and the dispatch between them. Not here: waiting and delivering
//! (`inbox.rs`).

pub(crate) mod job;
mod pool;
pub(crate) mod uring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Once, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::engine::job::{FileIo, Harvest};
use crate::engine::uring::Uring;
use crate::io::sink::Sink;
use crate::sync::{Arc, Mutex, lock};

/// How I/O on files reaches the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Uses io_uring. If the kernel refuses that, uses `Blocking`, with a warning in the log.
    #[default]
    Auto,
    /// Uses io_uring. If the kernel refuses that, creating the ring fails.
    Uring,
    /// Uses a pool of threads, which all rings of the process share.
    Blocking,
}

/// The options of a ring.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// The most I/Os that one system call hands to the kernel, from 1 to 32768. More may be pushed:
    /// they wait in the ring. Default: 128.
    pub entries: u32,
    /// The engine for files and devices. Default: [`Engine::Auto`].
    pub engine: Engine,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions { entries: 128, engine: Engine::Auto }
    }
}

/// The engine of one ring.
pub(crate) enum FileEngine {
    Uring(Box<Uring>),
    Blocking(Blocking),
}

/// The blocking engine's state in one ring: the I/Os that were pushed and not yet submitted, and
/// the descriptor to poll.
#[derive(Default)]
pub(crate) struct Blocking {
    pending: Mutex<Vec<FileIo>>,
    event: OnceLock<OwnedFd>,
}

/// Executes an I/O of a ring on a thread of the pool, whatever the ring's engine is.
pub(crate) fn execute_aside<S: Sink + 'static>(ring: &Arc<S>, job: FileIo) {
    if cfg!(shuttle) {
        job.execute(&**ring);
    } else {
        pool::submit(ring, vec![job]);
    }
}

impl FileEngine {
    pub(crate) fn new(options: &RingOptions) -> io::Result<FileEngine> {
        static WARNED: Once = Once::new();
        if options.engine == Engine::Blocking {
            return Ok(FileEngine::blocking());
        }
        match Uring::new(options.entries) {
            Ok(uring) => Ok(FileEngine::Uring(Box::new(uring))),
            Err(error) if options.engine == Engine::Uring => Err(error),
            Err(error) => {
                WARNED.call_once(|| {
                    log::warn!("the kernel refuses io_uring ({error}): I/O on files uses a pool of threads");
                });
                Ok(FileEngine::blocking())
            }
        }
    }

    pub(crate) fn blocking() -> FileEngine {
        FileEngine::Blocking(Blocking::default())
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            FileEngine::Uring(_) => "io_uring",
            FileEngine::Blocking(_) => "blocking",
        }
    }

    /// Queues an I/O that has parts to do.
    pub(crate) fn push(&self, job: FileIo) {
        match self {
            FileEngine::Uring(uring) => uring.push(job),
            FileEngine::Blocking(blocking) => lock(&blocking.pending).push(job),
        }
    }

    /// Submits everything that is queued. `ring` is the ring of this engine. Returns false if the
    /// kernel is short of memory and has not taken everything.
    pub(crate) fn submit<S: Sink + 'static>(&self, ring: &Arc<S>) -> bool {
        match self {
            FileEngine::Uring(uring) => uring.submit(),
            FileEngine::Blocking(blocking) => {
                let pending = std::mem::take(&mut *lock(&blocking.pending));
                if cfg!(shuttle) {
                    pending.into_iter().for_each(|job| job.execute(&**ring));
                } else {
                    pool::submit(ring, pending);
                }
                true
            }
        }
    }

    /// Makes the kernel post the completions that it holds back for the calling thread (`uring.rs`,
    /// U6).
    pub(crate) fn collect(&self) {
        if let FileEngine::Uring(uring) = self {
            uring.collect();
        }
    }

    /// Makes the kernel post the completions that it holds back for any thread (`uring.rs`, U6).
    pub(crate) fn nudge(&self) {
        if let FileEngine::Uring(uring) = self {
            uring.nudge();
        }
    }

    /// Takes the completions that the kernel has posted. Threads of the pool complete their I/O
    /// themselves.
    pub(crate) fn harvest(&self, finished: &mut dyn FnMut(FileIo)) -> Harvest {
        match self {
            FileEngine::Uring(uring) => uring.harvest(finished),
            FileEngine::Blocking(_) => Harvest::default(),
        }
    }

    /// Returns whether queued I/O has not been submitted.
    pub(crate) fn has_unsubmitted(&self) -> bool {
        match self {
            FileEngine::Uring(uring) => uring.has_unsubmitted(),
            FileEngine::Blocking(blocking) => !lock(&blocking.pending).is_empty(),
        }
    }

    /// Returns whether queued I/O must be submitted before the calling thread sleeps. A thread that
    /// is about to become the io_uring leader submits in the system call that it sleeps in; it must
    /// submit earlier only if entries of the backlog fit into the ring.
    pub(crate) fn must_submit(&self, has_leader: bool) -> bool {
        match self {
            FileEngine::Uring(uring) => uring.has_backlog_room() || (has_leader && uring.has_unsubmitted()),
            FileEngine::Blocking(_) => self.has_unsubmitted(),
        }
    }

    /// Returns the descriptor to poll for completions.
    pub(crate) fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            FileEngine::Uring(uring) => Some(uring.descriptor()),
            FileEngine::Blocking(blocking) => blocking.event(),
        }
    }
}

impl Blocking {
    fn event(&self) -> Option<BorrowedFd<'_>> {
        static WARNED: Once = Once::new();
        if cfg!(shuttle) {
            return None;
        }
        if let Some(event) = self.event.get() {
            return Some(event.as_fd());
        }
        let warn = |error: &Errno| {
            WARNED.call_once(|| {
                log::warn!("cannot create an eventfd for a ring ({error}): its thread polls periodically");
            });
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).inspect_err(warn).ok()?;
        Some(self.event.get_or_init(|| event).as_fd())
    }

    /// Makes the descriptor to poll readable, or unreadable.
    pub(crate) fn set_event(&self, is_set: bool) {
        let Some(event) = self.event() else { return };
        // Neither call can fail or block: the counter is set once between two clears.
        let _ = match is_set {
            true => rustix::io::write(event, &1_u64.to_ne_bytes()),
            false => rustix::io::read(event, &mut [0; size_of::<u64>()]),
        };
    }
}
