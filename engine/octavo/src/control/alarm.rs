//! The reaper's sleep. Two kinds of events end it: other threads ring the alarm's bell, and
//! triggers fire. A *trigger* is a kernel file for which poll(2) reports that processes have waited
//! for memory. Between two events the sleeping reaper uses no CPU.
//!
//! Not here: how triggers are opened (`pressure.rs`), what the reaper does after an event
//! (`reaper.rs`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::sync::{AtomicBool, Ordering};

/// The reaper's bell, and the reasons for which it was rung; see the module.
pub(crate) struct Alarm {
    /// The reaper reads from `bell`; other threads write to `rope`. Both ends are non-blocking,
    /// because one unread byte is enough.
    bell: UnixStream,
    rope: UnixStream,
    over: AtomicBool,
    short: AtomicBool,
}

impl Alarm {
    pub fn new() -> io::Result<Alarm> {
        let (bell, rope) = UnixStream::pair()?;
        // Miri cannot do that, and its tests run no reaper.
        if !cfg!(miri) {
            bell.set_nonblocking(true)?;
            rope.set_nonblocking(true)?;
        }
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
        // Release: pairs with the loads after `sleep`. The reaper has read this byte, or its next
        // `sleep` finds the byte.
        what.store(true, Ordering::Release);
        // If the socket is full, the bell has already been rung.
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
            // A signal has arrived, or the kernel has no memory. In the second case pause, so that
            // the reaper's loop does not spin.
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                std::thread::sleep(time);
            }
            return;
        }
        // `poll` itself resets a trigger's event, but not the bell: read its bytes here. If the
        // read fails, the next `sleep` finds them.
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
