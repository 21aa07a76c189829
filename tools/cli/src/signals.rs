//! [`Signals`]: signals that are blocked in all threads, and that one thread waits for.
//!
//! A signal with a handler is delivered to any thread that does not block it, usually to the main
//! thread. If that thread waits in the kernel for a file system that hangs, the signal waits with
//! it, and so does the end of the process. A blocked signal reaches the thread that waits for it
//! (sigtimedwait(2)), whatever the others do.
//!
//! A process started by this one inherits the blocked signals, and so does the program that
//! replaces this one: a signal that arrives in between is not lost.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The signals that end a server, or have it read its configuration again.
pub const OF_SERVERS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// A set of signals.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks these signals in the calling thread, and in the threads that it starts later. Call it
    /// before the first thread starts.
    pub fn block(numbers: &[i32]) -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the call writes a set to the memory that it gets.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: sigemptyset has initialized it, and does not fail.
        let mut set = unsafe { set.assume_init() };
        for number in numbers {
            // SAFETY: the call changes the set, and refuses numbers that are no signals.
            if unsafe { libc::sigaddset(&raw mut set, *number) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: the call reads the set and changes the mask of this thread alone. Nothing in this
        // process relies on a handler of these signals.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(Signals(set)),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Ends the block in the calling thread. A signal that has waited takes effect at once.
    pub fn unblock(self) {
        // SAFETY: the call reads the set and changes the mask of this thread alone. It fails only
        // for an unknown operation.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// Waits for one of the signals, at most for this long. Returns its number.
    pub fn next(&self, most: Duration) -> Option<i32> {
        let most = libc::timespec {
            tv_sec: libc::time_t::try_from(most.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: most.subsec_nanos().into(),
        };
        // SAFETY: the call reads the set and the time, and writes nothing. It fails when the time
        // is over, and when the thread was stopped and continued.
        let number = unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const most) };
        (number > 0).then_some(number)
    }
}
