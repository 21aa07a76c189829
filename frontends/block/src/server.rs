//! Listeners, the threads of connections, and the end of both.
//!
//! One thread per listener waits in `accept`, one thread per connection serves it; nothing runs
//! while nothing happens. A connection is known to the server from its accept until its thread has
//! given everything back.

use crate::Error;
use crate::buffers::Loans;
use crate::export::{Export, ExportStat, Exports};
use crate::journal::Journal;
use crate::limits::Limits;
use crate::nbd::{self, Connection, Memory};
use crate::socket::{Address, Listener, Socket};
use octavo::Cache;
use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Stack of a connection's thread; what is not touched costs no memory.
const STACK_BYTES: usize = 512 << 10;

/// Rest after a failed accept, which is mostly for want of descriptors: waiting is all that helps.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Time that threads get to end after their sockets were shut down. Only an I/O that hangs takes
/// longer.
const LAST_GRACE: Duration = Duration::from_secs(1);

/// A server that is running. Dropped without `shutdown`, it ends without grace.
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
    /// A connection has left.
    left: Condvar,
}

#[derive(Default)]
struct Connections {
    live: HashMap<u64, Arc<Connection>>,
    accepted: u64,
}

impl Server {
    /// Serves the exports at all addresses, or fails and listens at none.
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
            log::info!("nbd: room for {room} clients at a time, not for {}", limits.connections_max);
            limits.connections_max = room;
        }
        let loans = Loans::new(limits.lendable_bytes(&cache, limits.connections_max));
        let exports = Exports::new(exports)?;
        let mut listeners = Vec::new();
        for address in listen {
            if matches!(address, Address::Tcp(tcp) if !tcp.ip().is_loopback() && !limits.tcp_remote) {
                let reason = "it is not the loopback's, and remote clients are not allowed".into();
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
            left: Condvar::new(),
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

    /// Where the server listens, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.acceptors.iter().map(|(listener, _)| listener.address.clone()).collect()
    }

    /// Clients that are connected.
    pub fn connections(&self) -> usize {
        self.traffic().connections()
    }

    /// The counts of every export, in their order.
    pub fn stat(&self) -> Vec<ExportStat> {
        self.traffic().exports()
    }

    /// What clients do, for somebody who asks after the server has ended, too.
    pub fn traffic(&self) -> Traffic {
        Traffic(self.shared.clone())
    }

    /// Stops accepting, answers new requests with `ESHUTDOWN`, lets those in flight finish and be
    /// replied to, and closes each connection when it has none. After `grace` it closes those
    /// that are left.
    pub fn shutdown(mut self, grace: Duration) {
        self.stop(grace);
    }

    fn stop(&mut self, grace: Duration) {
        self.shared.stopping.store(true, SeqCst); // S1
        for (listener, thread) in self.acceptors.drain(..) {
            match listener.close() {
                Ok(()) => drop(thread.join()),
                Err(error) => log::warn!("nbd: {}: cannot be closed: {error}", listener.address),
            }
        }
        // A thread that waits for its client sees the end of the stream; one that is busy sees `stopping`.
        for connection in self.shared.connections().live.values().filter(|connection| !connection.busy()) {
            connection.socket.shutdown(Shutdown::Read);
        }
        self.shared.wait_until_empty(grace);
        for connection in self.shared.connections().live.values() {
            connection.socket.shutdown(Shutdown::Both);
        }
        match self.shared.wait_until_empty(LAST_GRACE) {
            0 => {}
            left => log::warn!("nbd: {left} connections are left waiting for their I/O"),
        }
    }
}

/// What the clients of a server do and did. Outlives the server, with the counts as they were at
/// its end.
#[derive(Clone)]
pub struct Traffic(Arc<Shared>);

impl Traffic {
    /// Clients that are connected.
    pub fn connections(&self) -> usize {
        self.0.connections().live.len()
    }

    /// The counts of every export, in their order.
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

    /// Waits until no connection is left, or the time is over. Returns how many are.
    fn wait_until_empty(&self, time: Duration) -> usize {
        let until = Instant::now() + time;
        let mut connections = self.connections();
        while !connections.live.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.left.wait_timeout(connections, left);
            connections = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        connections.live.len()
    }

    /// The thread of a listener.
    fn accept(self: &Arc<Self>, listener: &Listener) {
        while !self.stopping.load(SeqCst) {
            let accepted = listener.accept();
            if self.stopping.load(SeqCst) {
                return;
            }
            match accepted {
                Ok((socket, client)) => self.welcome(socket, client),
                Err(error) => {
                    self.journal.about(listener.address.to_string()).warn(format_args!("no accept: {error}"));
                    thread::sleep(ACCEPT_REST);
                }
            }
        }
    }

    /// Gives a client its memory and its thread, or turns it away.
    fn welcome(self: &Arc<Self>, socket: Socket, client: String) {
        let mut connections = self.connections();
        connections.accepted += 1;
        let number = connections.accepted;
        let journal = self.journal.about(format!("client {number} at {client}"));
        if connections.live.len() >= self.limits.connections_max {
            return journal.warn(format_args!("turned away: {} clients are here", connections.live.len()));
        }
        let buffer = |bytes| self.cache.buffer(bytes);
        let (Some(input), Some(reserve)) =
            (buffer(self.limits.input_bytes), buffer(self.limits.reserve_bytes))
        else {
            return journal.warn(format_args!("turned away: the cache has no buffer to spare"));
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
            journal.warn(format_args!("turned away: no thread: {error}"));
        }
    }
}

/// A connection's place in the list, kept by its thread.
struct Presence {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let removed = self.shared.connections().live.remove(&self.number);
        drop(removed);
        self.shared.left.notify_all();
    }
}
