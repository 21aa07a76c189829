//! [`Channel`]: the bytes of a connection, in plain text or through TLS.
//!
//! A plain channel passes every call to its socket. A TLS channel keeps three rules, so that the
//! rest of the protocol need not know which of the two it uses:
//!
//! - **L1** A read leaves no byte in the session that it could have returned: if it reports the
//!   socket as drained, only the socket can bring more, and a wait for the socket is safe.
//! - **L2** A write counts bytes only once all their records are in the socket. If the socket is
//!   full it returns `WouldBlock`, and the next write must offer the same bytes, with others behind
//!   them at most. Replies of a client that does not read stay in their queue, as without TLS.
//! - **L3** The session holds at most [`SENDABLE_BYTES`] of unsent bytes, and decrypts no record
//!   before the previous ones were read.
//!
//! An end of the stream without `close_notify` is an ordinary end: requests have lengths, and one
//! that is cut off is never executed as if it were whole. rustls bounds what else a client can
//! send: renegotiation does not exist in TLS 1.3; key updates, empty records and the length of the
//! handshake have limits, which end the connection.

use crate::socket::{Patience, Socket};
use crate::tls::Tls;
use octavo::Interest;
use rustls::ServerConnection;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// The length of the buffer for received records: two of the longest ones, for one system call.
const RECEIVED_BYTES: usize = 32 << 10;

/// The most plain bytes whose records wait for the socket.
const SENDABLE_BYTES: usize = 64 << 10;

/// The result of a read.
pub struct Taken {
    /// The number of bytes. 0: the end of the stream.
    pub bytes: usize,
    /// The socket had no more bytes.
    pub drained: bool,
}

/// The channel of a connection; see the module.
pub enum Channel<'a> {
    Plain(&'a Socket),
    Tls(Box<Session<'a>>),
}

impl<'a> Channel<'a> {
    /// Reads into the slices, in their order.
    ///
    /// # Errors
    /// `WouldBlock` by `patience`, `UnexpectedEof`, or any of the socket or of TLS.
    pub fn read(&mut self, slices: &mut [IoSliceMut<'_>], patience: Patience) -> io::Result<Taken> {
        match self {
            Channel::Plain(socket) => {
                let offered_bytes: usize = slices.iter().map(|slice| slice.len()).sum();
                let bytes = socket.read(slices, patience)?;
                Ok(Taken { bytes, drained: bytes < offered_bytes })
            }
            Channel::Tls(session) => session.read(slices, patience),
        }
    }

    /// Writes as many bytes of the slices as the socket takes (L2).
    ///
    /// # Errors
    /// `WouldBlock` if it takes none, or any of the socket or of TLS.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Channel::Plain(socket) => socket.write(slices),
            Channel::Tls(session) => session.write(slices),
        }
    }

    /// Returns whether the session may hold bytes that were not read.
    pub fn may_hold_bytes(&self) -> bool {
        matches!(self, Channel::Tls(_))
    }

    /// Begins TLS: every later byte of the socket belongs to it. The handshake is still to be run
    /// ([`shake_hands`](Channel::shake_hands)).
    pub fn start_tls(&mut self, tls: &Tls) -> io::Result<()> {
        if let Channel::Plain(socket) = *self {
            *self = Channel::Tls(Box::new(Session::new(socket, tls)?));
        }
        Ok(())
    }

    /// Continues the TLS handshake. Returns None when it is complete, or what to wait for.
    pub fn shake_hands(&mut self) -> io::Result<Option<Interest>> {
        let Channel::Tls(session) = self else { return Ok(None) };
        match session.shake_hands() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let writable = session.tls.wants_write();
                Ok(Some(Interest { readable: !writable, writable }))
            }
            done => done.map(|()| None),
        }
    }
}

impl AsFd for Channel<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Channel::Plain(socket) => socket.as_fd(),
            Channel::Tls(session) => session.socket.as_fd(),
        }
    }
}

/// A TLS session over a socket.
pub struct Session<'a> {
    socket: &'a Socket,
    tls: ServerConnection,
    /// Received records. `received[start..end]` are not yet in `tls`.
    received: Vec<u8>,
    start: usize,
    end: usize,
    /// The last receive took all that the socket had.
    drained: bool,
    /// The plain bytes that were encrypted, and not yet counted by a write (L2).
    owed_bytes: usize,
    /// The error that ended the session.
    failure: Option<rustls::Error>,
}

impl<'a> Session<'a> {
    fn new(socket: &'a Socket, tls: &Tls) -> io::Result<Session<'a>> {
        let mut tls = ServerConnection::new(tls.config()).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(SENDABLE_BYTES));
        let received = vec![0; RECEIVED_BYTES];
        Ok(Session { socket, tls, received, start: 0, end: 0, drained: false, owed_bytes: 0, failure: None })
    }

    fn shake_hands(&mut self) -> io::Result<()> {
        loop {
            self.flush()?;
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            if self.fill(Patience::None)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn read(&mut self, slices: &mut [IoSliceMut<'_>], mut patience: Patience) -> io::Result<Taken> {
        let mut bytes = 0;
        self.drained = false;
        for slice in slices {
            let mut filled = 0;
            while filled < slice.len() {
                let end = match self.tls.reader().read(&mut slice[filled..]) {
                    Ok(0) => Ok(Taken { bytes: 0, drained: true }),
                    Ok(count) => {
                        filled += count;
                        bytes += count;
                        continue;
                    }
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                    Err(error) if self.drained && self.start == self.end => Err(error),
                    Err(_) => match self.fill(std::mem::replace(&mut patience, Patience::None)) {
                        Ok(_) => continue,
                        Err(error) => Err(error),
                    },
                };
                // What was read comes first. The next read finds the end or the error again.
                let blocked = matches!(&end, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
                return if bytes > 0 { Ok(Taken { bytes, drained: blocked }) } else { end };
            }
            patience = Patience::None;
        }
        Ok(Taken { bytes, drained: false })
    }

    /// Decrypts received bytes, and receives more first if there are none. Returns their number, or
    /// 0 at the end of the socket's stream.
    fn fill(&mut self, patience: Patience) -> io::Result<usize> {
        if let Some(failure) = &self.failure {
            return Err(invalid(failure));
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.end = self.socket.read(&mut [IoSliceMut::new(&mut self.received)], patience)?;
            self.drained = self.end < self.received.len();
        }
        // An empty read tells the session that the stream has ended.
        let count = self.tls.read_tls(&mut &self.received[self.start..self.end])?;
        self.start += count;
        if let Err(failure) = self.tls.process_new_packets() {
            // The alert that says why. A client that does not read it loses it.
            let _ = self.flush();
            let error = invalid(&failure);
            self.failure = Some(failure);
            return Err(error);
        }
        Ok(count)
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.owed_bytes == 0 {
            if slices.iter().all(|slice| slice.is_empty()) {
                return Ok(0);
            }
            self.owed_bytes = self.tls.writer().write_vectored(slices)?;
            if self.owed_bytes == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.flush()?;
        Ok(std::mem::take(&mut self.owed_bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Records(self.socket))?;
        }
        Ok(())
    }
}

impl Drop for Session<'_> {
    /// Says goodbye, if the socket takes it.
    fn drop(&mut self) {
        if self.failure.is_none() {
            self.tls.send_close_notify();
            let _ = self.flush();
        }
    }
}

/// The error of a broken session. [`Hangup`](crate::connection::Hangup) finds the source in it.
fn invalid(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.clone())
}

/// The socket as the receiver of records.
struct Records<'a>(&'a Socket);

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
