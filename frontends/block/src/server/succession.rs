//! How one server succeeds another, without a client that notices more than a pause: what the old
//! one leaves ([`Server::hand_over`]), and what the new one takes ([`Server::inherit`],
//! [`Server::adopt`]).
//!
//! The clients of vhost-user are disconnected. Their VMMs connect again, and their guests continue
//! with the requests that were in flight (`vhost/inflight.rs`).

use super::{Acceptor, NO_MEMORY, Serve, Server, Shared, Succession};
use crate::address::Address;
use crate::connection::Connection;
use crate::error::Error;
use crate::estate::{Estate, HeldClient, HeldListener};
use crate::nbd;
use crate::socket::{Listener, Socket};
use rustix::net::Shutdown;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long clients in the handshake may take to complete it.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(500);

/// Pause between two looks at them.
const LOOK: Duration = Duration::from_millis(2);

impl Server {
    /// Accepts no client until [`open`](Self::open), at whatever addresses the server listens from
    /// now on.
    pub fn hold(&self) {
        self.shared.succession().waiting.get_or_insert_default();
    }

    /// Takes over sockets that another server has left. [`listen`](Self::listen) and
    /// [`attach`](Self::attach) use them for their addresses.
    pub fn inherit(&self, listeners: Vec<HeldListener>) {
        self.shared.succession().inherited.extend(listeners);
    }

    /// Accepts clients. Closes the inherited sockets that nothing uses.
    ///
    /// # Errors
    /// [`Error::Listen`]: the system refuses a thread.
    pub fn open(&self) -> Result<(), Error> {
        let mut succession = self.shared.succession();
        let unused = std::mem::take(&mut succession.inherited);
        let waiting = succession.waiting.take().unwrap_or_default();
        drop(succession);
        for held in unused {
            log::info!("{}: no longer listened at", held.address);
            // Dropping a listener removes its path.
            drop(Listener::inherit(held, &self.shared.limits));
        }
        waiting.into_iter().try_for_each(|(listener, service)| self.shared.serve_at(listener, service))
    }

    /// Serves a client of another server on. A client that cannot be served any more is
    /// disconnected, with a line in the log.
    pub fn adopt(&self, client: HeldClient) {
        self.shared.adopt(client);
    }

    /// Leaves the sockets and the clients to another server: accepts no more clients, completes the
    /// requests in flight, and returns each NBD client at the end of a request. Closes the other
    /// connections: those that use TLS, that are in the handshake after half a second, or in the
    /// middle of a request after `grace`. Then the server has no exports, and can only be dropped.
    pub fn hand_over(&self, grace: Duration) -> Estate {
        let shared = &self.shared;
        shared.stopping.store(true, SeqCst);
        let listeners = shared.leave_listeners();
        shared.leave_connections();
        shared.wait_until_empty(grace);
        for connection in shared.connections().live.values() {
            connection.socket.shutdown(Shutdown::Both);
        }
        shared.wait_until_empty(super::LAST_GRACE);
        shared.exports.all().iter().for_each(|served| shared.exports.remove(served));
        Estate { listeners, clients: std::mem::take(&mut shared.succession().left) }
    }
}

impl Shared {
    pub(super) fn succession(&self) -> MutexGuard<'_, Succession> {
        self.succession.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the listener of an address: one that another server has left, or a new one.
    pub(super) fn listener(&self, address: &Address) -> Result<Listener, Error> {
        let mut succession = self.succession();
        let left = succession.inherited.iter().position(|held| held.address == *address);
        let left = left.map(|at| succession.inherited.swap_remove(at));
        drop(succession);
        match left.map(|held| Listener::inherit(held, &self.limits)) {
            Some(Ok(listener)) => return Ok(listener),
            // Its path is gone, say. Clients that wait there have to connect again.
            Some(Err(error)) => log::warn!("{error}: the former server's socket is not used"),
            None => {}
        }
        Listener::bind(address, &self.limits)
    }

    /// Ends the threads of all listeners, and returns the sockets.
    fn leave_listeners(&self) -> Vec<HeldListener> {
        let mut left = Vec::new();
        for Acceptor { listener, thread, .. } in std::mem::take(&mut *self.acceptors()) {
            if let Err(error) = listener.close() {
                log::warn!("{}: cannot end its thread: {error}", listener.address);
                continue;
            }
            // A thread that panicked has reported that itself.
            let _ = thread.join();
            left.extend(Arc::into_inner(listener).map(Listener::leave));
        }
        left
    }

    /// Has all connections leave, and stops those that cannot.
    fn leave_connections(&self) {
        let live: Vec<Arc<Connection>> = self.connections().live.values().cloned().collect();
        let (nbd, vhost): (Vec<_>, Vec<_>) = live.into_iter().partition(|connection| connection.is_nbd);
        vhost.iter().for_each(|connection| connection.stop());
        nbd.iter().for_each(|connection| connection.leave());
        let until = Instant::now() + HANDSHAKE_GRACE;
        // One that has ended since has no other owner.
        let is_awaited =
            |connection: &Arc<Connection>| !connection.can_leave() && Arc::strong_count(connection) > 1;
        while nbd.iter().any(is_awaited) && Instant::now() < until {
            thread::sleep(LOOK);
        }
        nbd.iter().filter(|connection| !connection.can_leave()).for_each(|connection| connection.stop());
    }

    fn adopt(self: &Arc<Self>, client: HeldClient) {
        let mut connections = self.connections();
        connections.accepted += 1;
        let number = connections.accepted;
        let HeldClient { socket, state } = client;
        let who = format!("client {number}, taken over, at {}", address_of(&state.who));
        let journal = self.journal.of("nbd").about(who.clone());
        let Some(memory) = self.memory() else {
            return journal.warn(format_args!("disconnected: {NO_MEMORY}"));
        };
        let connection = Arc::new(Connection::new(Socket::from(socket), who, true));
        connections.live.insert(number, connection.clone());
        drop(connections);
        let serve: Serve = Box::new(move |shared, connection, journal| {
            nbd::resume(connection, shared.house(), memory, &state, journal)
        });
        self.start(connection, number, "nbd", &journal, serve);
    }
}

/// The address in a client's name, which may have been taken over before.
fn address_of(who: &str) -> &str {
    who.split_once(" at ").map_or(who, |(_, address)| address)
}
