//! The NBD protocol: one connection, from its greeting to its end.
//!
//! Written after the protocol document (doc/proto.md of NetworkBlockDevice/nbd). `wire` knows the
//! bytes, `handshake` chooses an export, `transmission` serves it, `outgoing` writes the replies.
//! No listener and no thread is made here.

mod handshake;
mod input;
mod outgoing;
mod transmission;
pub mod wire;

pub(crate) use outgoing::MESSAGE_BYTES;

use crate::buffers::{Buffers, Loans};
use crate::executor::Executor;
use crate::export::Exports;
use crate::journal::Journal;
use crate::limits::Limits;
use crate::socket::Socket;
use input::Input;
use octavo::{Buffer, Cache};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::{fmt, io};

/// What a server and the thread of a connection share.
pub(crate) struct Connection {
    pub socket: Socket,
    /// Requests are in flight or replies unsent: a shutdown waits for them.
    busy: AtomicBool,
    stopping: Arc<AtomicBool>,
}

// S1. A server that stops sets `stopping`, then looks at `busy`, and wakes the thread if it is not
// busy. S2. A thread that becomes idle clears `busy`, then looks at `stopping`, and waits if it
// does not stop. Whoever comes second sees the other's store: both are SeqCst on both sides.
impl Connection {
    pub fn new(socket: Socket, stopping: Arc<AtomicBool>) -> Connection {
        Connection { socket, busy: AtomicBool::new(false), stopping }
    }

    /// Whether the server is shutting down (S2).
    pub fn stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    /// Whether a shutdown has to wait for the connection (S1).
    pub fn busy(&self) -> bool {
        self.busy.load(SeqCst)
    }

    fn set_busy(&self, busy: bool) {
        // Only the connection's thread stores it, so it knows what it holds.
        if self.busy.load(SeqCst) != busy {
            self.busy.store(busy, SeqCst);
        }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Hangup {
    /// The client said goodbye or went away.
    Client,
    /// The server is shutting down.
    Shutdown,
    /// The client took too long.
    Late,
    /// The socket failed.
    Socket(io::Error),
    /// The client broke a rule that has no error reply.
    Protocol(&'static str),
    /// A read failed after a simple reply had promised its bytes.
    Store,
    /// The engine had no queue for the connection.
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
    /// Whether it is nobody's fault.
    pub fn is_ordinary(&self) -> bool {
        matches!(self, Hangup::Client | Hangup::Shutdown)
    }
}

impl fmt::Display for Hangup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hangup::Client => f.write_str("the client left"),
            Hangup::Shutdown => f.write_str("the server is shutting down"),
            Hangup::Late => f.write_str("the client took too long"),
            Hangup::Socket(error) => write!(f, "the socket failed: {error}"),
            Hangup::Protocol(what) => write!(f, "protocol error: {what}"),
            Hangup::Store => f.write_str("a read failed after its reply had begun"),
            Hangup::Engine(error) => write!(f, "no queue: {error}"),
        }
    }
}

/// The memory that a connection has for itself.
pub(crate) struct Memory {
    pub input: Buffer,
    pub reserve: Buffer,
    /// Where it may borrow more.
    pub loans: Arc<Loans>,
}

/// Serves one client until it leaves or has to.
pub(crate) fn serve(
    connection: &Connection,
    cache: &Cache,
    memory: Memory,
    exports: &Exports,
    limits: &Limits,
    journal: &Journal,
) -> Hangup {
    let mut queue = match cache.queue() {
        Ok(queue) => queue,
        Err(error) => return Hangup::Engine(error),
    };
    let mut input = Input::new(memory.input);
    let agreement = match handshake::negotiate(connection, &mut queue, &mut input, exports, limits) {
        Ok(agreement) => agreement,
        Err(hangup) => return hangup,
    };
    let visit = agreement.served.visit();
    let export = &visit.served.export;
    let journal = journal.about(format!("{}: export {:?}", journal.who(), export.name));
    let buffers = Buffers::new(
        cache.clone(),
        memory.loans,
        memory.reserve,
        limits.piece_max_bytes,
        limits.borrowed_max_bytes,
    );
    let executor = Executor::new(queue, export.object.clone(), buffers, journal);
    let counts = visit.counts.clone();
    transmission::Transmission::new(connection, limits, agreement, input, executor, counts).run()
}
