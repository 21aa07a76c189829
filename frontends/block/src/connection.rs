//! [`Connection`]: the state that a server shares with the thread of a connection (S1, S2), and
//! [`Hangup`]: the reasons why a connection ends.
//!
//! - **S1** A server that stops a connection (all of them when it shuts down, those of an export
//!   when it retires the export) sets `stopping`, then reads `busy`, and wakes the thread if the
//!   connection is not busy.
//! - **S2** A thread that becomes idle clears `busy`, then reads `stopping`, and waits only if the
//!   connection is not being stopped.
//!
//! The later of the two sees the other's store, because all four accesses are SeqCst. `estate.rs`
//! describes S4, by which a connection leaves to another server.

use crate::estate::HeldClient;
use crate::socket::Socket;
use crate::tls;
use octavo::QueueWaker;
use rustix::net::Shutdown;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::{fmt, io};

/// A connection, shared by the server and the connection's thread.
pub(crate) struct Connection {
    pub socket: Socket,
    /// Names the client in messages: its number and its address.
    pub who: String,
    /// The client speaks NBD, so that another server can take it over.
    pub is_nbd: bool,
    /// Requests are in flight, or replies unsent. A stop waits for them.
    busy: AtomicBool,
    stopping: AtomicBool,
    leaving: AtomicBool,
    /// Ends a wait of the connection's thread.
    waker: OnceLock<QueueWaker>,
}

impl Connection {
    pub fn new(socket: Socket, who: String, is_nbd: bool) -> Connection {
        Connection {
            socket,
            who,
            is_nbd,
            busy: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            waker: OnceLock::new(),
        }
    }

    /// S4: the connection starts no further request, completes those in flight, and leaves its
    /// state to another server. One in the handshake completes it first.
    pub fn leave(&self) {
        self.leaving.store(true, SeqCst);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Returns whether the connection can leave now: it is in transmission.
    pub fn can_leave(&self) -> bool {
        self.waker.get().is_some()
    }

    /// Returns whether the connection leaves (S4).
    pub fn leaving(&self) -> bool {
        self.leaving.load(SeqCst)
    }

    /// S4. The connection's thread calls this when transmission begins.
    pub fn set_waker(&self, waker: QueueWaker) {
        // Only one thread ever sets it.
        let _ = self.waker.set(waker);
    }

    /// S1: the connection answers new requests with `ESHUTDOWN`, completes those in flight, and
    /// ends. A thread that waits for its client sees the end of the stream. A busy thread sees
    /// `stopping`.
    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        if !self.busy.load(SeqCst) {
            self.socket.shutdown(Shutdown::Read);
        }
    }

    /// Returns whether the connection is being stopped (S2).
    pub fn stopping(&self) -> bool {
        self.stopping.load(SeqCst)
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
    /// The server stopped the connection: it is shutting down, or retires the export.
    Shutdown,
    /// A client of another server cannot be served on.
    Successor(&'static str),
    /// The connection is left to another server (S4).
    Left(Box<HeldClient>),
    /// The client exceeded the time of the handshake or of the goodbye.
    Late,
    /// The socket failed.
    Socket(io::Error),
    /// TLS failed: the client sent no TLS, or one of the two refused the other's certificate.
    Tls(rustls::Error),
    /// The client broke a rule for which the protocol has no error reply.
    Protocol(&'static str),
    /// A read failed after the header of its simple reply was sent.
    Store,
    /// A VMM sent what the device cannot do.
    Vmm(String),
    /// The cache had no queue for the connection.
    Engine(octavo::Error),
}

impl From<io::Error> for Hangup {
    fn from(error: io::Error) -> Hangup {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        if let Some(failure) = error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>()) {
            return Hangup::Tls(failure.clone());
        }
        match error.kind() {
            UnexpectedEof | ConnectionReset | BrokenPipe => Hangup::Client,
            _ => Hangup::Socket(error),
        }
    }
}

impl Hangup {
    /// Returns whether the end is ordinary and needs no warning.
    pub fn is_ordinary(&self) -> bool {
        matches!(self, Hangup::Client | Hangup::Shutdown | Hangup::Left(_))
    }
}

impl fmt::Display for Hangup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hangup::Client => f.write_str("the client left"),
            Hangup::Shutdown => f.write_str("the server closed the connection"),
            Hangup::Successor(why) => write!(f, "the client of the former server is disconnected: {why}"),
            Hangup::Left(_) => f.write_str("another server takes the connection over"),
            Hangup::Late => f.write_str("the client took too long (limits handshake_time, goodbye_time)"),
            Hangup::Socket(error) => write!(f, "the socket failed: {error}"),
            Hangup::Tls(error) => match error {
                rustls::Error::NoCertificatesPresented => {
                    f.write_str("TLS failed: the client has no certificate, which the server demands")
                }
                rustls::Error::InvalidCertificate(wrong) => {
                    write!(f, "TLS failed: the client's certificate is refused: {}", tls::flaw(wrong))
                }
                rustls::Error::AlertReceived(alert) => {
                    write!(f, "TLS failed: the client refused the server or gave up: {alert:?}")
                }
                error => write!(f, "TLS failed: {error}"),
            },
            Hangup::Protocol(what) => write!(f, "protocol error: {what}"),
            Hangup::Store => f.write_str("a read failed after its reply had begun"),
            Hangup::Vmm(what) => write!(f, "disconnected: {what}"),
            Hangup::Engine(error) => write!(f, "the cache has no queue for the connection: {error}"),
        }
    }
}
