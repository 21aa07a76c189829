//! The reaper's sleep: ended by a bell that other threads ring, or by triggers, kernel files for
//! which poll(2) reports that processes have waited for memory. Between two events the sleep
//! costs nothing.
//!
//! Not here: where triggers come from (`pressure.rs`), what an event leads to (`reaper.rs`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::sync::{AtomicBool, Ordering};

/// What wakes the reaper, and why it was woken; see the module.
pub(crate) struct Alarm {
    /// Both ends are non-blocking: one unread byte is enough.
    bell: UnixStream,
    rope: UnixStream,
    over: AtomicBool,
    short: AtomicBool,
}

impl Alarm {
    pub fn new() -> io::Result<Alarm> {
        let (bell, rope) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rope.set_nonblocking(true)?;
        Ok(Alarm { bell, rope, over: AtomicBool::new(false), short: AtomicBool::new(false) })
    }

    /// Wakes the reaper: the cache is being dropped.
    pub fn end(&self) {
        self.ring(&self.over);
    }

    /// Wakes the reaper: memory is short.
    pub fn tell_short(&self) {
        self.ring(&self.short);
    }

    fn ring(&self, what: &AtomicBool) {
        // Release: pairs with the loads after `sleep`; the reaper has read the byte, or finds it
        // at the next turn.
        what.store(true, Ordering::Release);
        // If the socket is full, the bell has been rung already.
        let _ = (&self.rope).write(&[1]);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Whether memory was reported short since the last call.
    pub fn take_short(&self) -> bool {
        self.short.swap(false, Ordering::Acquire)
    }

    /// Sleeps until the bell rings, a trigger fires or `time` has passed. Drops triggers that
    /// can no longer fire.
    pub fn sleep(&self, triggers: &mut Vec<File>, time: Duration) {
        let wanted = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut polled = vec![wanted(self.bell.as_raw_fd(), libc::POLLIN)];
        polled.extend(triggers.iter().map(|trigger| wanted(trigger.as_raw_fd(), libc::POLLPRI)));
        // Rounded up: a timeout of zero would spin.
        let timeout = time.as_millis().clamp(1, i32::MAX as u128) as i32;
        // SAFETY: the array is alive and has that many members; all files in it are open.
        let woken = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
        if woken < 0 {
            // A signal, or no memory in the kernel. The latter must not become a loop without a
            // pause.
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                std::thread::sleep(time);
            }
            return;
        }
        // Poll itself resets a trigger's event; bytes of the bell are taken here. After a failed
        // read the byte is left for the next turn.
        let _ = (&self.bell).read(&mut [0; 64]);
        let mut told = polled[1..].iter().map(|file| file.revents);
        triggers.retain(|_| {
            let told = told.next().unwrap_or(0);
            if told & libc::POLLPRI != 0 {
                self.short.store(true, Ordering::Release);
            }
            told & (libc::POLLERR | libc::POLLNVAL) == 0
        });
    }
}
