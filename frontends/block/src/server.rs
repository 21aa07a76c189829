//! [`Server`]: listeners, the threads of connections, and shutdown.
//!
//! One thread per listener waits in `accept`, and one thread per connection serves it. In an idle
//! server, all threads sleep. The server knows a connection from its accept until its thread has
//! freed everything.

use crate::address::Address;
use crate::buffers::Loans;
use crate::error::Error;
use crate::export::{Export, ExportStat, Exports};
use crate::journal::Journal;
use crate::limits::Limits;
use crate::nbd::connection::Connection;
use crate::nbd::{self, Memory};
use crate::socket::{Listener, Socket};
use octavo::Cache;
use rustix::net::Shutdown;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The stack of a connection's thread, in bytes. Untouched pages of it cost no memory.
const STACK_BYTES: usize = 512 << 10;

/// The pause after a failed accept. Most often the process has no descriptor left, and only waiting
/// helps.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The time that threads get to end after their sockets are shut down. Only a thread whose I/O
/// hangs takes longer.
const LAST_GRACE: Duration = Duration::from_secs(1);

/// A running server. Dropping it is a [`shutdown`](Server::shutdown) without grace.
pub struct Server {
    shared: Arc<Shared>,
    acceptors: Vec<(Arc<Listener>, JoinHandle<()>)>,
}

struct Shared {
    cache: Cache,
    loans: Arc<Loans>,
    exports: Exports,
    limits: Limits,
    journal: Journal,
    stopping: Arc<AtomicBool>,
    connections: Mutex<Connections>,
    /// Notified when a connection has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Connections {
    live: HashMap<u64, Arc<Connection>>,
    accepted: u64,
}

impl Server {
    /// Starts a server that serves the exports at all addresses. If this fails, the server listens
    /// at none of them. If the cache has memory for fewer clients than `connections_max`, that
    /// limit is lowered, with a line in the log.
    ///
    /// # Errors
    /// - [`Error::Limits`]: the server cannot work with these limits.
    /// - [`Error::Export`]: there is no export, or a name is too long or not unique.
    /// - [`Error::Address`]: the address is remote, and `tcp_remote` is false.
    /// - [`Error::Listen`]: the system refused to listen.
    pub fn start(
        cache: Cache,
        exports: Vec<Export>,
        listen: &[Address],
        limits: Limits,
    ) -> Result<Server, Error> {
        limits.validate()?;
        let mut limits = limits;
        let room = limits.room(&cache).max(1);
        if limits.connections_max > room {
            log::info!(
                "nbd: the cache has memory for {room} clients at a time, not for connections_max = {}",
                limits.connections_max
            );
            limits.connections_max = room;
        }
        let loans = Loans::new(limits.lendable_bytes(&cache, limits.connections_max));
        let exports = Exports::new(exports)?;
        let mut listeners = Vec::new();
        for address in listen {
            if matches!(address, Address::Tcp(tcp) if !tcp.ip().is_loopback() && !limits.tcp_remote) {
                let reason =
                    "it is not a loopback address, and remote clients are not allowed (tcp_remote)".into();
                return Err(Error::Address { address: address.to_string(), reason });
            }
            listeners.push(Arc::new(Listener::bind(address, limits.unix_mode)?));
        }
        let shared = Arc::new(Shared {
            cache,
            loans,
            exports,
            limits,
            journal: Journal::default(),
            stopping: Arc::default(),
            connections: Mutex::default(),
            ended: Condvar::new(),
        });
        let mut server = Server { shared: shared.clone(), acceptors: Vec::new() };
        for listener in listeners {
            let accepting = (shared.clone(), listener.clone());
            let thread = thread::Builder::new()
                .name("octavo-accept".into())
                .stack_size(STACK_BYTES)
                .spawn(move || accepting.0.accept(&accepting.1))
                .map_err(|source| Error::Listen { address: listener.address.clone(), source })?;
            log::info!("nbd: listening at {}", listener.address);
            server.acceptors.push((listener, thread));
        }
        Ok(server)
    }

    /// Returns the addresses at which the server listens, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.acceptors.iter().map(|(listener, _)| listener.address.clone()).collect()
    }

    /// Returns a handle to the counts, which outlives the server.
    pub fn traffic(&self) -> Traffic {
        Traffic(self.shared.clone())
    }

    /// Stops the server: it accepts no more clients, answers new requests with `ESHUTDOWN`,
    /// completes the requests in flight, and closes each connection when it has none. After `grace`
    /// it closes the remaining connections.
    pub fn shutdown(mut self, grace: Duration) {
        self.stop(grace);
    }

    fn stop(&mut self, grace: Duration) {
        self.shared.stopping.store(true, SeqCst); // S1
        for (listener, thread) in self.acceptors.drain(..) {
            match listener.close() {
                Ok(()) => drop(thread.join()),
                Err(error) => log::warn!("nbd: {}: cannot close the listener: {error}", listener.address),
            }
        }
        // A thread that waits for its client sees the end of the stream. A busy thread sees
        // `stopping`.
        for connection in self.shared.connections().live.values().filter(|connection| !connection.busy()) {
            connection.socket.shutdown(Shutdown::Read);
        }
        self.shared.wait_until_empty(grace);
        for connection in self.shared.connections().live.values() {
            connection.socket.shutdown(Shutdown::Both);
        }
        match self.shared.wait_until_empty(LAST_GRACE) {
            0 => {}
            left => log::warn!(
                "nbd: {left} connections still wait for I/O of their store; each ends when its I/O completes"
            ),
        }
    }
}

/// The counts of a server's clients. Outlives the server, and then keeps the last counts.
#[derive(Clone)]
pub struct Traffic(Arc<Shared>);

impl Traffic {
    /// Returns the number of connected clients.
    pub fn connections(&self) -> usize {
        self.0.connections().live.len()
    }

    /// Returns the counts of every export, in the order of the exports.
    pub fn exports(&self) -> Vec<ExportStat> {
        self.0.exports.iter().map(|served| served.stat()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.shared.stopping.load(SeqCst) {
            self.stop(Duration::ZERO);
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until no connection is left, or `time` has passed. Returns the number of connections
    /// that are left.
    fn wait_until_empty(&self, time: Duration) -> usize {
        let until = Instant::now() + time;
        let mut connections = self.connections();
        while !connections.live.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.ended.wait_timeout(connections, left);
            connections = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        connections.live.len()
    }

    /// Runs the thread of a listener.
    fn accept(self: &Arc<Self>, listener: &Listener) {
        while !self.stopping.load(SeqCst) {
            let accepted = listener.accept();
            if self.stopping.load(SeqCst) {
                return;
            }
            match accepted {
                Ok((socket, client)) => self.welcome(socket, client),
                Err(error) => {
                    self.journal
                        .about(listener.address.to_string())
                        .warn(format_args!("cannot accept a client: {error}; trying again in 100 ms"));
                    thread::sleep(ACCEPT_REST);
                }
            }
        }
    }

    /// Gives a client its memory and its thread, or disconnects the client.
    fn welcome(self: &Arc<Self>, socket: Socket, client: String) {
        let mut connections = self.connections();
        connections.accepted += 1;
        let number = connections.accepted;
        let journal = self.journal.about(format!("client {number} at {client}"));
        if connections.live.len() >= self.limits.connections_max {
            return journal.warn(format_args!(
                "disconnected: {} clients are connected, the most that connections_max or memory allows",
                connections.live.len()
            ));
        }
        let buffer = |bytes| self.cache.buffer(bytes);
        let (Some(input), Some(reserve)) =
            (buffer(self.limits.input_bytes), buffer(self.limits.reserve_bytes))
        else {
            return journal.warn(format_args!("disconnected: the cache has no memory for its buffers"));
        };
        let connection = Arc::new(Connection::new(socket, self.stopping.clone()));
        connections.live.insert(number, connection.clone());
        drop(connections);
        let presence = Presence { shared: self.clone(), number };
        let memory = Memory { input, reserve, loans: self.loans.clone() };
        let spawned =
            thread::Builder::new().name(format!("octavo-nbd-{number}")).stack_size(STACK_BYTES).spawn({
                let journal = journal.clone();
                move || {
                    let shared = &presence.shared;
                    log::debug!("nbd: {}: connected", journal.who());
                    let end = nbd::serve(
                        &connection,
                        &shared.cache,
                        memory,
                        &shared.exports,
                        &shared.limits,
                        &journal,
                    );
                    match end.is_ordinary() {
                        true => log::debug!("nbd: {}: {end}", journal.who()),
                        false => journal.warn(format_args!("{end}")),
                    }
                    drop(connection);
                    drop(presence);
                }
            });
        if let Err(error) = spawned {
            journal.warn(format_args!("disconnected: cannot start a thread: {error}"));
        }
    }
}

/// A connection's entry in the list of live connections, owned by its thread.
struct Presence {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let removed = self.shared.connections().live.remove(&self.number);
        drop(removed);
        self.shared.ended.notify_all();
    }
}
