//! What keeps the process alive if a guest's memory file shrinks.
//!
//! The guest's memory is a file that its virtual machine monitor (VMM) shares with this process.
//! A VMM that shortens the file takes the pages away, and the next access of one of them is a
//! SIGBUS. A file with the seal `F_SEAL_SHRINK` cannot shrink, but many VMMs do not seal their
//! files. So every mapping is *guarded*: the handler of SIGBUS replaces a guarded mapping by
//! anonymous memory, marks it lost, and returns. The access is then repeated and ends, and the
//! owner of the mapping finds the mark and gives the device up.
//!
//! System calls on such memory fail with EFAULT; they raise no signal.
//!
//! A guard is an entry of a list that is never freed, so the handler can walk it at any time. A
//! SIGBUS anywhere else goes to the handler that was there before.

#![expect(unsafe_code, reason = "a signal handler, and what it shares")]

use std::io;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// A guarded mapping, or an entry that is free (`len` is 0).
struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    is_lost: AtomicBool,
    is_taken: AtomicBool,
    next: *const Entry,
}

/// The first entry. Entries are added at the front and never removed.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

/// The action that was there before; set once, before the handler is installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Guards a mapping until it is dropped. Drop it before the mapping.
#[derive(Debug)]
pub(super) struct Guard(&'static Entry);

// SAFETY: an entry has atomics, and a pointer that never changes.
unsafe impl Sync for Entry {}
// SAFETY: as above.
unsafe impl Send for Entry {}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("start", &self.start).field("len", &self.len).finish()
    }
}

impl Guard {
    /// Guards `len` bytes at `start`: a whole mapping.
    pub fn new(start: *mut u8, len: usize) -> io::Result<Guard> {
        install()?;
        let entry = free_entry();
        entry.is_lost.store(false, SeqCst);
        entry.start.store(start.addr(), SeqCst);
        // Last: an entry without a length guards nothing.
        entry.len.store(len, SeqCst);
        Ok(Guard(entry))
    }

    /// Returns whether the mapping was replaced, because its file has shrunk.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost.load(SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.len.store(0, SeqCst);
        self.0.is_taken.store(false, SeqCst);
    }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut next: *const Entry = ENTRIES.load(SeqCst);
    std::iter::from_fn(move || {
        // SAFETY: an entry is leaked, so it lives for ever.
        let entry = unsafe { next.as_ref()? };
        next = entry.next;
        Some(entry)
    })
}

/// Takes a free entry of the list, or adds one.
fn free_entry() -> &'static Entry {
    let take = |entry: &&Entry| !entry.is_taken.swap(true, SeqCst);
    if let Some(entry) = entries().find(take) {
        return entry;
    }
    let mut first = ENTRIES.load(SeqCst);
    let entry = Box::leak(Box::new(Entry {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
        is_taken: AtomicBool::new(true),
        next: first,
    }));
    loop {
        entry.next = first;
        match ENTRIES.compare_exchange(first, entry, SeqCst, SeqCst) {
            Ok(_) => return entry,
            Err(other) => first = other,
        }
    }
}

/// Installs the handler, once.
fn install() -> io::Result<()> {
    static DONE: OnceLock<i32> = OnceLock::new();
    let errno = *DONE.get_or_init(|| {
        // SAFETY: zeros are a valid `sigaction`.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: both point to valid values, or null, which only asks.
        let asked = unsafe { libc::sigaction(libc::SIGBUS, null(), &mut before) };
        if asked != 0 {
            return last_errno();
        }
        let _ = BEFORE.set(before);
        // SAFETY: the handler only makes calls that a handler may make.
        match unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) } {
            0 => 0,
            _ => last_errno(),
        }
    });
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

/// The handler of SIGBUS.
extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let about = unsafe { &*info };
    // SAFETY: for SIGBUS it has an address.
    let address = unsafe { about.si_addr() }.addr();
    let guards = |entry: &&Entry| address.wrapping_sub(entry.start.load(SeqCst)) < entry.len.load(SeqCst);
    if let Some(entry) = entries().find(guards) {
        let (start, len) = (entry.start.load(SeqCst), entry.len.load(SeqCst));
        // The whole mapping: a part of one with huge pages could not be replaced.
        // SAFETY: the guard is dropped before the mapping, so the range is still the mapping.
        let replaced = unsafe {
            libc::mmap(
                std::ptr::without_provenance_mut(start),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if replaced != libc::MAP_FAILED {
            return entry.is_lost.store(true, SeqCst);
        }
    }
    pass_on(signal, info, context);
}

/// Does what would have happened without this handler.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    match BEFORE.get() {
        Some(before) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction) => {
            // SAFETY: it was installed as a handler. One that takes only the signal ignores the
            // other arguments.
            let handler: Handler = unsafe { std::mem::transmute(before.sa_sigaction) };
            handler(signal, info, context);
        }
        _ => {
            // The access is repeated after the return, and ends the process.
            // SAFETY: SIG_DFL is a valid action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
