//! A socket that sends and receives a header together with memory that must not become a slice.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::memory::Memory;

/// Called while a call waits, ten times a second. An error ends the wait.
pub type OnSignal = fn() -> io::Result<()>;

/// A connected socket.
pub struct Stream {
    socket: OwnedFd,
    /// The longest wait for the server.
    timeout: Option<Duration>,
    on_signal: OnSignal,
}

impl Stream {
    /// Wraps a connected socket, whose calls return after `wait::BETWEEN_LOOKS`.
    pub fn new(socket: OwnedFd, timeout: Option<Duration>, on_signal: OnSignal) -> Stream {
        Stream { socket, timeout, on_signal }
    }

    /// Looks at signals after a call that has moved nothing since `since`.
    fn look(&self, since: Instant) -> io::Result<()> {
        (self.on_signal)()?;
        if self.timeout.is_some_and(|timeout| since.elapsed() >= timeout) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time"));
        }
        Ok(())
    }

    /// Sends a header, and then the memory.
    ///
    /// # Safety
    /// The memory is valid for reads until the call returns.
    pub unsafe fn send(&self, header: &[u8], memory: Memory) -> io::Result<()> {
        let header = Memory { start: header.as_ptr().cast_mut(), len: header.len() };
        self.transfer([header, memory], |message| {
            // SAFETY: the caller's promise, and `sendmsg` only reads.
            unsafe { libc::sendmsg(self.socket.as_raw_fd(), message, libc::MSG_NOSIGNAL) }
        })
    }

    /// Receives a header, and then the memory, as far as `wanted` returns that it follows once the
    /// header is complete. No byte may follow the memory.
    ///
    /// # Safety
    /// The memory is valid for writes until the call returns, and nothing has a reference to it.
    pub unsafe fn receive<const N: usize>(
        &self,
        memory: Memory,
        wanted: impl FnOnce(&[u8; N]) -> io::Result<bool>,
    ) -> io::Result<()> {
        let mut header = [0_u8; N];
        let mut got = 0;
        let start = header.as_mut_ptr();
        while got < N {
            let rest = Memory { start, len: N }.skip(got);
            // SAFETY: the array and, by the caller's promise, the memory are valid for writes.
            got += unsafe { self.receive_some([rest, memory]) }?;
        }
        if wanted(&header)? {
            let rest = memory.skip(got - N);
            return self.transfer([rest, rest.skip(rest.len)], |message| {
                // SAFETY: the caller's promise.
                unsafe { libc::recvmsg(self.socket.as_raw_fd(), message, 0) }
            });
        }
        Ok(())
    }

    /// Receives all of a slice.
    pub fn receive_all(&self, bytes: &mut [u8]) -> io::Result<()> {
        let memory = Memory { start: bytes.as_mut_ptr(), len: bytes.len() };
        self.transfer([memory, memory.skip(memory.len)], |message| {
            // SAFETY: the slice is valid for its length.
            unsafe { libc::recvmsg(self.socket.as_raw_fd(), message, 0) }
        })
    }

    /// # Safety
    /// The pieces are valid for writes.
    unsafe fn receive_some(&self, pieces: [Memory; 2]) -> io::Result<usize> {
        let since = Instant::now();
        loop {
            // SAFETY: the caller's promise.
            let result =
                call(pieces, |message| unsafe { libc::recvmsg(self.socket.as_raw_fd(), message, 0) });
            match result {
                Err(error) if has_waited(&error) => self.look(since)?,
                Ok(0) => return Err(closed()),
                result => return result,
            }
        }
    }

    /// Repeats a call until it has moved all bytes of both pieces.
    fn transfer(
        &self,
        mut pieces: [Memory; 2],
        mut once: impl FnMut(*mut libc::msghdr) -> isize,
    ) -> io::Result<()> {
        let mut since = Instant::now();
        while pieces[0].len + pieces[1].len > 0 {
            match call(pieces, &mut once) {
                Err(error) if has_waited(&error) => self.look(since)?,
                Err(error) => return Err(error),
                Ok(0) => return Err(closed()),
                Ok(moved) => {
                    since = Instant::now();
                    let first = moved.min(pieces[0].len);
                    pieces = [pieces[0].skip(first), pieces[1].skip(moved - first)];
                }
            }
        }
        Ok(())
    }
}

/// Calls with the pieces as the buffers of a message.
fn call(pieces: [Memory; 2], once: impl FnOnce(*mut libc::msghdr) -> isize) -> io::Result<usize> {
    let mut buffers = pieces.map(|piece| libc::iovec { iov_base: piece.start.cast(), iov_len: piece.len });
    // SAFETY: zeros are a valid message without an address, buffers and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = buffers.as_mut_ptr();
    message.msg_iovlen = buffers.len() as _;
    let moved = once(&raw mut message);
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// Whether a call has returned to let the caller look at signals.
fn has_waited(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the server closed the connection")
}
