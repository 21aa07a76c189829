//! The two ways in which a ring reaches the kernel, and the dispatch between them: io_uring
//! (`uring.rs`) and a pool of threads (`pool.rs`). Not here: waiting and delivering (`inbox.rs`).

use std::io;
use std::os::fd::BorrowedFd;

use crate::inbox::RingCore;
use crate::io::Io;
use crate::ring::{Engine, RingOptions};
use crate::sync::{Arc, Mutex, lock};
#[cfg(not(shuttle))]
use crate::uring::Uring;

/// The engine of one ring.
pub(crate) enum FileEngine {
    #[cfg(not(shuttle))]
    Uring(Box<Uring>),
    Blocking(Blocking),
}

/// The blocking engine's share of a ring: what was pushed and not yet submitted, and the descriptor
/// to poll.
#[derive(Default)]
pub(crate) struct Blocking {
    pending: Mutex<Vec<Io>>,
    #[cfg(not(shuttle))]
    event: std::sync::OnceLock<std::os::fd::OwnedFd>,
}

/// What a look at the kernel's completions found.
#[derive(Clone, Copy, Default)]
pub(crate) struct Harvest {
    /// The NOP of R4 was among them.
    pub(crate) nop: bool,
    /// Continued or delayed I/O was queued and wants a submit.
    pub(crate) queued: bool,
}

impl FileEngine {
    #[cfg(not(shuttle))]
    pub(crate) fn new(options: &RingOptions) -> io::Result<FileEngine> {
        use std::sync::atomic::{AtomicBool, Ordering};
        static WARNED: AtomicBool = AtomicBool::new(false);
        if options.engine == Engine::Blocking {
            return Ok(FileEngine::blocking());
        }
        match Uring::new(options.entries) {
            Ok(uring) => Ok(FileEngine::Uring(Box::new(uring))),
            Err(error) if options.engine == Engine::Uring => Err(error),
            Err(error) => {
                // Relaxed: at worst a second warning.
                if !WARNED.swap(true, Ordering::Relaxed) {
                    log::warn!("io_uring is refused ({error}): I/O on files uses a pool of threads");
                }
                Ok(FileEngine::blocking())
            }
        }
    }

    #[cfg(shuttle)]
    pub(crate) fn new(options: &RingOptions) -> io::Result<FileEngine> {
        match options.engine {
            Engine::Uring => Err(io::Error::new(io::ErrorKind::Unsupported, "no io_uring under shuttle")),
            Engine::Auto | Engine::Blocking => Ok(FileEngine::blocking()),
        }
    }

    pub(crate) fn blocking() -> FileEngine {
        FileEngine::Blocking(Blocking::default())
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(_) => "io_uring",
            FileEngine::Blocking(_) => "blocking",
        }
    }

    /// Queues an I/O of a file, which has parts to do.
    pub(crate) fn push(&self, io: Io) {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.push(io),
            FileEngine::Blocking(blocking) => lock(&blocking.pending).push(io),
        }
    }

    /// Hands over what was queued for `core`, whose engine this is. False if the kernel is short of
    /// memory and did not take everything.
    pub(crate) fn submit(&self, core: &Arc<RingCore>) -> bool {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.submit(),
            FileEngine::Blocking(blocking) => {
                let pending = std::mem::take(&mut *lock(&blocking.pending));
                #[cfg(not(shuttle))]
                crate::pool::submit(core, pending);
                #[cfg(shuttle)]
                pending.into_iter().for_each(|io| core.execute(io));
                true
            }
        }
    }

    /// Makes the kernel post what waits for the calling thread (`uring.rs`, U6).
    pub(crate) fn collect(&self) {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.collect(),
            FileEngine::Blocking(_) => {}
        }
    }

    /// Makes the kernel post what waits for any thread (`uring.rs`, U6).
    pub(crate) fn nudge(&self) {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.nudge(),
            FileEngine::Blocking(_) => {}
        }
    }

    /// Takes what the kernel has completed; the pool tells the ring itself.
    pub(crate) fn harvest(&self, finished: &mut dyn FnMut(Io)) -> Harvest {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.harvest(finished),
            FileEngine::Blocking(_) => {
                let _ = finished;
                Harvest::default()
            }
        }
    }

    /// True if I/O is queued that was not handed over.
    pub(crate) fn has_unsubmitted(&self) -> bool {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.has_unsubmitted(),
            FileEngine::Blocking(blocking) => !lock(&blocking.pending).is_empty(),
        }
    }

    /// True if queued I/O must be handed over before its ring's thread sleeps. An io_uring leader
    /// need not: it submits in the system call that it sleeps in.
    pub(crate) fn must_submit(&self, has_leader: bool) -> bool {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => uring.has_backlog_room() || (has_leader && uring.has_unsubmitted()),
            FileEngine::Blocking(_) => {
                let _ = has_leader;
                self.has_unsubmitted()
            }
        }
    }

    /// The descriptor to poll for completions.
    pub(crate) fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            #[cfg(not(shuttle))]
            FileEngine::Uring(uring) => Some(uring.descriptor()),
            FileEngine::Blocking(blocking) => blocking.event(),
        }
    }
}

impl Blocking {
    #[cfg(not(shuttle))]
    fn event(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        use std::sync::atomic::{AtomicBool, Ordering};
        if let Some(event) = self.event.get() {
            return Some(event.as_fd());
        }
        static WARNED: AtomicBool = AtomicBool::new(false);
        let warn = |error: &io::Error| {
            // Relaxed: at worst a second warning.
            if !WARNED.swap(true, Ordering::Relaxed) {
                log::warn!("no eventfd for a ring ({error}): its thread looks for completions now and then");
            }
        };
        let event = crate::sys::event_new().inspect_err(warn).ok()?;
        Some(self.event.get_or_init(|| event).as_fd())
    }

    #[cfg(shuttle)]
    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    pub(crate) fn set_event(&self, is_set: bool) {
        match self.event() {
            Some(event) if is_set => crate::sys::event_set(event),
            Some(event) => crate::sys::event_clear(event),
            None => {}
        }
    }
}
