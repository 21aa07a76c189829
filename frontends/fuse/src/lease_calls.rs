//! System calls for leases: `fcntl`, and the signals by which the kernel announces that a lease is
//! being broken. Not here: what a lease is for (`leases.rs`).

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, signalfd_siginfo};
use rustix::io::Errno;
use rustix::thread::Pid;

const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;

/// The kernel's `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: c_int,
    thread: libc::pid_t,
}

fn result(returned: c_int) -> Result<c_int, Errno> {
    match returned {
        0.. => Ok(returned),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The signal of a break. It goes to one thread, which blocks it, so handlers that the process has
/// for it elsewhere never run for a break.
fn signal() -> c_int {
    libc::SIGRTMAX() - 1
}

/// Takes a lease for reading. The kernel signals `thread` when another program breaks it.
///
/// # Errors
/// EAGAIN if the file is open for writing, EACCES if another user owns it, EINVAL if the file
/// system has no leases.
pub fn take(file: BorrowedFd<'_>, thread: Pid) -> Result<(), Errno> {
    let owner = Owner { kind: F_OWNER_TID, thread: thread.as_raw_nonzero().get() };
    // SAFETY: the kernel reads the structure during the call.
    result(unsafe { libc::fcntl(file.as_raw_fd(), F_SETOWN_EX, &raw const owner) })?;
    // SAFETY: the arguments are numbers.
    result(unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, signal()) })?;
    // SAFETY: as above.
    result(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) }).map(drop)
}

/// Gives a lease back, if there is one.
pub fn give_back(file: BorrowedFd<'_>) {
    // SAFETY: the arguments are numbers.
    let _ = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Returns whether a lease is held that nobody is breaking.
pub fn is_held(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the arguments are numbers. During a break, the call returns what the lease becomes.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
}

/// What the kernel has announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The lease of this descriptor is being broken.
    Break(RawFd),
    /// Leases are being broken: the kernel had no memory to say which ones.
    Any,
}

/// The breaks that the kernel announces to one thread. Readable when there is one.
pub struct Notices(OwnedFd);

impl Notices {
    /// Blocks the signals in this thread, which is the only one that may use the value.
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn of_this_thread() -> Result<Notices, Errno> {
        // SAFETY: all zeros are a valid set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        for signal in [signal(), libc::SIGIO] {
            // SAFETY: the set lives during the call, and the signal has a valid number.
            result(unsafe { libc::sigaddset(&raw mut set, signal) })?;
        }
        // SAFETY: the set lives during the call, and the previous mask is not asked for.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(Errno::from_raw_os_error(blocked));
        }
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set lives during the call.
        let fd = result(unsafe { libc::signalfd(-1, &raw const set, flags) })?;
        // SAFETY: the call has just opened the descriptor, and no other value owns it.
        Ok(Notices(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes the next one. `None` if there is none.
    pub fn take(&self) -> Option<Notice> {
        let mut info = [0; size_of::<signalfd_siginfo>()];
        let len = rustix::io::read(&self.0, &mut info).ok()?;
        let number = |at: usize| info.get(at..at + 4)?.try_into().ok().map(c_int::from_ne_bytes);
        if len < info.len() || number(offset_of!(signalfd_siginfo, ssi_signo)) != Some(signal()) {
            return Some(Notice::Any);
        }
        number(offset_of!(signalfd_siginfo, ssi_fd)).map(Notice::Break)
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
