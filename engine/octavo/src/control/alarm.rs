//! What the reaper sleeps by: a bell that other threads ring, and triggers, files of the kernel
//! that poll(2) tells of when processes have waited for memory. Between two news it costs nothing.
//!
//! What is not here: where triggers come from (`pressure`), and what follows from news (`reaper`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::sync::{AtomicBool, Ordering};

/// See the module.
pub(crate) struct Alarm {
    /// Neither end blocks: a byte that waits to be read is enough.
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

    /// Wakes who sleeps: it is over.
    pub fn end(&self) {
        self.ring(&self.over);
    }

    /// Wakes who sleeps: memory is short.
    pub fn tell_short(&self) {
        self.ring(&self.short);
    }

    fn ring(&self, what: &AtomicBool) {
        // Release: pairs with the loads behind `sleep`, who has read the byte or finds it at the next turn.
        what.store(true, Ordering::Release);
        // Full: it has been rung already.
        let _ = (&self.rope).write(&[1]);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Whether somebody has told that memory is short since this was last asked.
    pub fn take_short(&self) -> bool {
        self.short.swap(false, Ordering::Acquire)
    }

    /// Sleeps until the bell rings or a trigger fires, at most for so long. A trigger that can fire
    /// no more is dropped.
    pub fn sleep(&self, triggers: &mut Vec<File>, time: Duration) {
        let wanted = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut polled = vec![wanted(self.bell.as_raw_fd(), libc::POLLIN)];
        polled.extend(triggers.iter().map(|trigger| wanted(trigger.as_raw_fd(), libc::POLLPRI)));
        // Rounded up: to wait for nothing would be to spin.
        let timeout = time.as_millis().clamp(1, i32::MAX as u128) as i32;
        // SAFETY: the array is alive and has that many members; all files in it are open.
        let woken = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
        if woken < 0 {
            // A signal, or no memory in the kernel: the latter must not become a loop without a pause.
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                std::thread::sleep(time);
            }
            return;
        }
        // The kernel takes a trigger's news back as it tells them; bytes of the bell are taken here. An
        // error is a byte for the next turn.
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
