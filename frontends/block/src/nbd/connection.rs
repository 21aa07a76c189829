//! [`Connection`]: the state that a server shares with the thread of a connection (S1, S2), and
//! [`Hangup`]: the reasons why a connection ends.
//!
//! - **S1** A server that shuts down sets `stopping`, then reads `busy`, and wakes the thread if
//!   the connection is not busy.
//! - **S2** A thread that becomes idle clears `busy`, then reads `stopping`, and waits only if the
//!   server is not shutting down.
//!
//! The later of the two sees the other's store, because all four accesses are SeqCst.

use crate::socket::Socket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::{fmt, io};

/// A connection, shared by the server and the connection's thread.
pub(crate) struct Connection {
    pub socket: Socket,
    /// Requests are in flight, or replies unsent. A shutdown waits for them.
    busy: AtomicBool,
    stopping: Arc<AtomicBool>,
}

impl Connection {
    pub fn new(socket: Socket, stopping: Arc<AtomicBool>) -> Connection {
        Connection { socket, busy: AtomicBool::new(false), stopping }
    }

    /// Returns whether the server is shutting down (S2).
    pub fn stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    /// Returns whether a shutdown has to wait for the connection (S1).
    pub fn busy(&self) -> bool {
        self.busy.load(SeqCst)
    }

    /// S2. Only the connection's thread calls this.
    pub fn set_busy(&self, busy: bool) {
        // A load is cheaper than a SeqCst store, and no other thread stores.
        if self.busy.load(SeqCst) != busy {
            self.busy.store(busy, SeqCst);
        }
    }
}

/// The reason why a connection ended.
#[derive(Debug)]
pub(crate) enum Hangup {
    /// The client sent its goodbye, or closed its socket.
    Client,
    /// The server is shutting down.
    Shutdown,
    /// The client exceeded the time of the handshake or of the goodbye.
    Late,
    /// The socket failed.
    Socket(io::Error),
    /// The client broke a rule for which the protocol has no error reply.
    Protocol(&'static str),
    /// A read failed after the header of its simple reply was sent.
    Store,
    /// The cache had no queue for the connection.
    Engine(octavo::Error),
}

impl From<io::Error> for Hangup {
    fn from(error: io::Error) -> Hangup {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match error.kind() {
            UnexpectedEof | ConnectionReset | BrokenPipe => Hangup::Client,
            _ => Hangup::Socket(error),
        }
    }
}

impl Hangup {
    /// Returns whether the end is ordinary and needs no warning.
    pub fn is_ordinary(&self) -> bool {
        matches!(self, Hangup::Client | Hangup::Shutdown)
    }
}

impl fmt::Display for Hangup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hangup::Client => f.write_str("the client left"),
            Hangup::Shutdown => f.write_str("the server is shutting down"),
            Hangup::Late => f.write_str("the client took too long (limits handshake_time, goodbye_time)"),
            Hangup::Socket(error) => write!(f, "the socket failed: {error}"),
            Hangup::Protocol(what) => write!(f, "protocol error: {what}"),
            Hangup::Store => f.write_str("a read failed after its reply had begun"),
            Hangup::Engine(error) => write!(f, "the cache has no queue for the connection: {error}"),
        }
    }
}
