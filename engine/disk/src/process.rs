//! [`Process`]: tells a process from its children of `fork`, without a system call. A child has its
//! parent's memory and descriptors, and none of its threads.
//!
//! State that belongs to one process stores the [`Process`] that created it ([`Process::this`]). A
//! child of that process detects this ([`Process::is_this`]) and does not use the state, for three
//! reasons: the queues of an io_uring are not inherited (`dontfork`), locks of open file
//! descriptions are shared with the parent, and a mutex that another thread held stays locked for
//! ever. State that serves the whole process is created again in each process ([`PerProcess`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Tells a process from those that it was forked from: the value of a child differs from every
/// value that its ancestors obtained before they forked. (Two children of one parent may have equal
/// values.)
///
/// ```
/// let process = octavo_disk::Process::this();
/// assert!(process.is_this());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// Returns the calling process.
    pub fn this() -> Process {
        /// The kernel wipes this word in a child, which then gives itself a number.
        static NUMBER: OnceLock<Option<&AtomicU64>> = OnceLock::new();
        /// Not wiped, so that a child never reuses the number of an ancestor.
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let Some(number) = NUMBER.get_or_init(word_wiped_on_fork) else {
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

    /// Returns whether this is the calling process, and not an ancestor of it.
    #[inline(always)]
    pub fn is_this(self) -> bool {
        let word = WORD.load(Ordering::Relaxed);
        // SAFETY: null, or the word of `word_wiped_on_fork`, which is never unmapped.
        let number = unsafe { word.as_ref() }.map(|number| number.load(Ordering::Relaxed));
        number == Some(self.0) || self == Process::this()
    }
}

/// The word that `Process::this` has mapped. Null before, and if there is none.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Returns a word that is zero now, and zero again in each child of `fork`. None if the kernel has
/// no such memory (before Linux 4.14).
fn word_wiped_on_fork() -> Option<&'static AtomicU64> {
    const BYTES: usize = 4096;
    if cfg!(any(miri, shuttle)) {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, at an address that the kernel chooses.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, access, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the mapping from above, of that length. (A kernel with larger pages has rounded the
    // length up.)
    if unsafe { madvise(page, BYTES, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above, and no reference to the mapping exists.
        let _ = unsafe { munmap(page, BYTES) };
        return None;
    }
    // SAFETY: zeroed, aligned to a page, and never unmapped.
    let word: &AtomicU64 = unsafe { &*page.cast_const().cast() };
    // Relaxed: the kernel has zeroed the word for every thread.
    WORD.store(std::ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
    Some(word)
}

/// One value per process. A child of `fork` creates a new value and never touches its parent's,
/// which may be locked by a thread that does not exist in the child.
pub(crate) struct PerProcess<T: 'static> {
    make: fn() -> T,
    first: Link<T>,
}

/// The value of one process, and the link to those of its children: one link per generation.
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

    /// Returns the value of the calling process, and creates it at the first call.
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
