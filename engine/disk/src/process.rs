//! Which process this is, told without a system call: the child of a `fork` has its parent's memory
//! and descriptors, and none of its threads.
//!
//! What belongs to a process remembers it ([`Process::this`]) and leaves its parts alone elsewhere
//! ([`Process::is_this`]): the queues of an io_uring are not inherited (`dontfork`), locks of open
//! file descriptions are shared with the parent, and a mutex that another thread held stays locked
//! for ever. What serves the whole process is made anew in each ([`PerProcess`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys;

/// A process, as told apart from those that it was forked from and those that it forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// The calling process.
    pub fn this() -> Process {
        /// Wiped in a child, which then gives itself a number.
        static NUMBER: OnceLock<Option<&AtomicU64>> = OnceLock::new();
        /// Not wiped: so no process has the number of one that its memory comes from.
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let Some(number) = NUMBER.get_or_init(sys::word_wiped_on_fork) else {
            return Process(u64::from(std::process::id()));
        };
        // Relaxed, here and below: a number orders nothing.
        match number.load(Ordering::Relaxed) {
            0 => {
                let new = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
                let given = number.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
                Process(given.map_or_else(|other| other, |_| new))
            }
            number => Process(number),
        }
    }

    /// Whether it is the calling process, and not one that this was forked from.
    pub fn is_this(self) -> bool {
        self == Process::this()
    }
}

/// Something that each process has one of. A child gets a new one; its parent's, which a thread
/// that is not there may hold locked, stays untouched.
pub(crate) struct PerProcess<T: 'static> {
    make: fn() -> T,
    first: Link<T>,
}

/// One process's, and those of the processes that were forked from it: a link for each generation.
struct Link<T> {
    own: OnceLock<(Process, T)>,
    next: OnceLock<Box<Link<T>>>,
}

impl<T> Link<T> {
    const fn new() -> Link<T> {
        Link { own: OnceLock::new(), next: OnceLock::new() }
    }
}

impl<T> PerProcess<T> {
    pub(crate) const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess { make, first: Link::new() }
    }

    /// This process's.
    pub(crate) fn get(&self) -> &T {
        let mut link = &self.first;
        loop {
            let (process, own) = link.own.get_or_init(|| (Process::this(), (self.make)()));
            if process.is_this() {
                return own;
            }
            link = link.next.get_or_init(|| Box::new(Link::new()));
        }
    }
}
