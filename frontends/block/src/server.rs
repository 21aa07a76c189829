//! [`Server`]: listeners, the threads of connections, and shutdown.
//!
//! One thread per listener waits in `accept`, and one thread per connection serves it. In an idle
//! server, all threads sleep. The server knows a connection from its accept until its thread has
//! freed everything.

mod succession;

use crate::address::Address;
use crate::buffers::Loans;
use crate::connection::{Connection, Hangup};
use crate::error::Error;
use crate::estate::{HeldClient, HeldListener};
use crate::export::{Export, ExportStat, Exports, Served};
use crate::journal::Journal;
use crate::limits::Limits;
use crate::nbd::{self, Memory};
use crate::socket::{Listener, Socket};
use crate::tls::{Security, Tls};
use crate::vhost::{self, Disk, VhostSettings};
use octavo::Cache;
use rustix::net::Shutdown;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
}

/// A listener and its thread.
struct Acceptor {
    listener: Arc<Listener>,
    service: Service,
    thread: JoinHandle<()>,
}

/// Serves one client, and returns why its connection ended.
type Serve = Box<dyn FnOnce(&Arc<Shared>, &Arc<Connection>, &Journal) -> Hangup + Send>;

/// What a listener's clients get.
#[derive(Clone)]
enum Service {
    Nbd,
    Vhost(Arc<Disk>),
}

impl Service {
    /// The protocol's name in the log.
    fn protocol(&self) -> &'static str {
        match self {
            Service::Nbd => "nbd",
            Service::Vhost(_) => "vhost-user",
        }
    }
}

struct Shared {
    cache: Cache,
    loans: Arc<Loans>,
    exports: Exports,
    limits: Limits,
    /// The TLS of the clients that connect from now on.
    tls: Mutex<Option<Tls>>,
    journal: Journal,
    stopping: AtomicBool,
    acceptors: Mutex<Vec<Acceptor>>,
    connections: Mutex<Connections>,
    /// Notified when a connection has ended.
    ended: Condvar,
    succession: Mutex<Succession>,
}

#[derive(Default)]
struct Connections {
    live: HashMap<u64, Arc<Connection>>,
    accepted: u64,
}

/// What a server has from its predecessor, or leaves to its successor.
#[derive(Default)]
struct Succession {
    /// Sockets that nobody listens at yet.
    inherited: Vec<HeldListener>,
    /// The listeners that wait until the server opens. None: it is open.
    waiting: Option<Vec<(Arc<Listener>, Service)>>,
    /// Clients that have left.
    left: Vec<HeldClient>,
}

impl Server {
    /// Starts a server that serves the exports at all addresses: [`new`](Server::new),
    /// [`add`](Server::add) and [`listen`](Server::listen).
    ///
    /// # Errors
    /// Those of the three calls.
    pub fn start(
        cache: Cache,
        exports: Vec<Export>,
        listen: &[Address],
        limits: Limits,
    ) -> Result<Server, Error> {
        let server = Server::new(cache, limits)?;
        exports.into_iter().try_for_each(|export| server.add(export))?;
        server.listen(listen)?;
        Ok(server)
    }

    /// Creates a server without exports that listens nowhere yet. If the cache has memory for fewer
    /// clients than `connections_max`, that limit is lowered, with a line in the log.
    ///
    /// # Errors
    /// [`Error::Limits`]: the server cannot work with these limits.
    pub fn new(cache: Cache, limits: Limits) -> Result<Server, Error> {
        limits.validate()?;
        let mut limits = limits;
        let room = limits.room(&cache).max(1);
        if limits.connections_max > room {
            log::info!(
                "the cache has memory for {room} clients at a time, not for connections_max = {}",
                limits.connections_max
            );
            limits.connections_max = room;
        }
        let loans = Loans::new(limits.lendable_bytes(&cache, limits.connections_max));
        let shared = Arc::new(Shared {
            cache,
            loans,
            exports: Exports::default(),
            limits,
            tls: Mutex::default(),
            journal: Journal::default(),
            stopping: AtomicBool::new(false),
            acceptors: Mutex::default(),
            connections: Mutex::default(),
            ended: Condvar::new(),
            succession: Mutex::default(),
        });
        Ok(Server { shared })
    }

    /// Listens at all these addresses. If this fails, the server must be dropped: it may listen at
    /// some of them until then.
    ///
    /// # Errors
    /// - [`Error::Address`]: the address is not loopback, and the server has no TLS.
    /// - [`Error::Listen`]: the system refused to listen.
    pub fn listen(&self, addresses: &[Address]) -> Result<(), Error> {
        let mut listeners = Vec::new();
        for address in addresses {
            if address.is_remote() && self.shared.tls().is_none() {
                return Err(needs_tls(address));
            }
            listeners.push(Arc::new(self.shared.listener(address)?));
        }
        listeners.into_iter().try_for_each(|listener| self.shared.serve_at(listener, Service::Nbd))
    }

    /// Sets the TLS of the NBD clients that connect from now on; see [`Tls::new`] for those that
    /// must use it. None: the server has no TLS.
    ///
    /// # Errors
    /// [`Error::Address`]: there is none, but the server listens at an address that is not
    /// loopback.
    pub fn set_tls(&self, tls: Option<Tls>) -> Result<(), Error> {
        let mut current = self.shared.tls();
        if tls.is_none()
            && let Some(address) = self.addresses().iter().find(|address| address.is_remote())
        {
            return Err(needs_tls(address));
        }
        *current = tls;
        Ok(())
    }

    /// Attaches an export by vhost-user: listens at a unix socket, through which the VMM of one
    /// guest at a time gets the export as a virtio block device.
    ///
    /// # Errors
    /// - [`Error::Export`]: no export has this name, or the settings are wrong.
    /// - [`Error::Listen`]: the system refused to listen there.
    pub fn attach(&self, name: &str, socket: &Path, settings: VhostSettings) -> Result<(), Error> {
        let wrong = |reason: String| Error::Export { name: name.into(), reason };
        settings.validate().map_err(wrong)?;
        let found = self.shared.exports.named(name).filter(|served| served.is_offered());
        let served = found.ok_or_else(|| wrong("there is no such export".into()))?;
        let listener = self.shared.listener(&Address::Unix(socket.into()))?;
        let disk = Arc::new(Disk::new(self.shared.cache.clone(), served, settings));
        self.shared.serve_at(Arc::new(listener), Service::Vhost(disk))
    }

    /// Returns the object of an export.
    pub fn object(&self, name: &str) -> Option<octavo::Object> {
        self.shared.exports.named(name).map(|served| served.export.object.clone())
    }

    /// Tells the VMMs of all exports of this object that its length has changed, so that their
    /// guests see the new one. Does not wait for them.
    pub fn announce_len(&self, object: &octavo::Object) {
        for acceptor in self.shared.acceptors().iter() {
            if let Service::Vhost(disk) = &acceptor.service
                && disk.served.export.object.is_same(object)
            {
                disk.tell();
            }
        }
    }

    /// Returns the limits.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Returns the addresses at which NBD clients connect, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<Address> {
        let acceptors = self.shared.acceptors();
        let nbd = acceptors.iter().filter(|acceptor| matches!(acceptor.service, Service::Nbd));
        nbd.map(|acceptor| acceptor.listener.address.clone()).collect()
    }

    /// Returns a handle to the counts, which outlives the server.
    pub fn traffic(&self) -> Traffic {
        Traffic(self.shared.clone())
    }

    /// Adds an export, after the others. Clients find it at once.
    ///
    /// # Errors
    /// [`Error::Export`]: its name is too long or not unique.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # use octavo_block::{Export, Limits, Server};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("vm"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// let server = Server::new(cache, Limits::default())?;
    /// let (name, description) = ("disk".to_owned(), String::new());
    /// server.add(Export { name, description, object, read_only: false, is_listed: true })?;
    /// assert_eq!(server.traffic().exports()[0].name, "disk");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&self, export: Export) -> Result<(), Error> {
        self.shared.exports.add(export)
    }

    /// Retires an export: clients no longer find it. When this returns, no client uses the object.
    ///
    /// If the export has clients, the call fails and changes nothing. With `disconnect`, it stops
    /// them instead, as a [`shutdown`](Server::shutdown) does: it answers new requests with
    /// `ESHUTDOWN`, completes the requests in flight, and closes each connection when it has none.
    /// After this time it closes the remaining connections.
    ///
    /// # Errors
    /// - [`Error::Export`]: no export has this name, or it is retired already.
    /// - [`Error::InUse`]: the export has clients, or requests of clients still wait for I/O of the
    ///   store although they were disconnected. The export is offered as before.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # use octavo_block::{Export, Limits, Server};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("vm"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// # let server = Server::new(cache, Limits::default())?;
    /// # let (name, description) = ("disk".to_owned(), String::new());
    /// # server.add(Export { name, description, object, read_only: false, is_listed: true })?;
    /// let retired = server.retire("disk", None)?;
    /// retired.object().close()?;
    /// retired.remove();
    /// assert!(server.traffic().exports().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retire(&self, name: &str, disconnect: Option<Duration>) -> Result<Retired, Error> {
        let found = self.shared.exports.named(name);
        let served = found
            .ok_or_else(|| Error::Export { name: name.into(), reason: "there is no such export".into() })?;
        served.retire(disconnect.is_some())?;
        // Its drop offers the export again.
        let retired = Retired { shared: self.shared.clone(), served, is_removed: false };
        if retired.served.wait_until_left(disconnect.unwrap_or_default()).is_err() {
            retired.served.cut();
            retired.served.wait_until_left(LAST_GRACE)?;
        }
        Ok(retired)
    }

    /// Stops the server: it accepts no more clients, answers new requests with `ESHUTDOWN`,
    /// completes the requests in flight, and closes each connection when it has none. After `grace`
    /// it closes the remaining connections.
    pub fn shutdown(&self, grace: Duration) {
        self.shared.stopping.store(true, SeqCst);
        self.shared.close_listeners(|_| true);
        self.shared.connections().live.values().for_each(|connection| connection.stop());
        self.shared.wait_until_empty(grace);
        for connection in self.shared.connections().live.values() {
            connection.socket.shutdown(Shutdown::Both);
        }
        match self.shared.wait_until_empty(LAST_GRACE) {
            0 => {}
            left => log::warn!(
                "{left} connections still wait for I/O of their store; each ends when its I/O completes"
            ),
        }
    }
}

/// An export that clients no longer find, and that none of them uses. Dropping it offers the export
/// again.
pub struct Retired {
    shared: Arc<Shared>,
    served: Arc<Served>,
    is_removed: bool,
}

impl Retired {
    /// Returns the export's name.
    pub fn name(&self) -> &str {
        &self.served.export.name
    }

    /// Returns the export's object.
    pub fn object(&self) -> &octavo::Object {
        &self.served.export.object
    }

    /// Removes the export from its server. Another export may then have its name.
    pub fn remove(mut self) {
        self.shared.close_listeners(|service| match service {
            Service::Vhost(disk) => Arc::ptr_eq(&disk.served, &self.served),
            Service::Nbd => false,
        });
        self.shared.exports.remove(&self.served);
        self.is_removed = true;
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        if !self.is_removed {
            self.served.offer();
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
        self.0.exports.all().iter().map(|served| served.stat()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.shared.stopping.load(SeqCst) {
            self.shutdown(Duration::ZERO);
        }
    }
}

/// Why a client is disconnected at once.
const NO_MEMORY: &str = "the cache has no memory for its buffers";

/// The error of an address that clients reach from other machines.
fn needs_tls(address: &Address) -> Error {
    let reason = "it is not a loopback address, and NBD without TLS is neither encrypted nor authenticated";
    Error::Address { address: address.to_string(), reason: reason.into() }
}

impl Shared {
    fn tls(&self) -> MutexGuard<'_, Option<Tls>> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the protection of a client that connects at this address now.
    fn security(&self, address: &Address) -> Security {
        let tls = self.tls().clone();
        let is_tcp = matches!(address, Address::Tcp(_));
        let is_required = address.is_remote() || is_tcp && tls.as_ref().is_some_and(Tls::is_required);
        Security { tls, is_required }
    }

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

    fn acceptors(&self) -> MutexGuard<'_, Vec<Acceptor>> {
        self.acceptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of a listener, unless it has to wait ([`Server::hold`]).
    fn serve_at(self: &Arc<Self>, listener: Arc<Listener>, service: Service) -> Result<(), Error> {
        if let Some(waiting) = &mut self.succession().waiting {
            waiting.push((listener, service));
            return Ok(());
        }
        let accepting = (self.clone(), listener.clone(), service.clone());
        let thread = thread::Builder::new()
            .name("octavo-accept".into())
            .stack_size(STACK_BYTES)
            .spawn(move || accepting.0.accept(&accepting.1, &accepting.2))
            .map_err(|source| Error::Listen { address: listener.address.clone(), source })?;
        match &service {
            Service::Nbd => log::info!("nbd: listening at {}", listener.address),
            Service::Vhost(disk) => log::info!(
                "vhost-user: export {:?} is attached at {}",
                disk.served.export.name,
                listener.address
            ),
        }
        self.acceptors().push(Acceptor { listener, service, thread });
        Ok(())
    }

    /// Closes the listeners of some services, and waits for their threads.
    fn close_listeners(&self, is_one: impl Fn(&Service) -> bool) {
        let closed: Vec<Acceptor> =
            self.acceptors().extract_if(.., |acceptor| is_one(&acceptor.service)).collect();
        for Acceptor { listener, thread, .. } in closed {
            match listener.close() {
                Ok(()) => drop(thread.join()),
                Err(error) => log::warn!("{}: cannot close the listener: {error}", listener.address),
            }
        }
    }

    /// Runs the thread of a listener.
    fn accept(self: &Arc<Self>, listener: &Listener, service: &Service) {
        let is_over = || self.stopping.load(SeqCst) || listener.is_closed();
        while !is_over() {
            let accepted = listener.accept();
            if is_over() {
                return;
            }
            match accepted {
                Ok((socket, client)) => self.welcome(socket, client, service, &listener.address),
                Err(error) => {
                    self.journal
                        .about(listener.address.to_string())
                        .of(service.protocol())
                        .warn(format_args!("cannot accept a client: {error}; trying again in 100 ms"));
                    thread::sleep(ACCEPT_REST);
                }
            }
        }
    }

    /// Gives a client its memory and its thread, or disconnects the client.
    fn welcome(self: &Arc<Self>, socket: Socket, client: String, service: &Service, address: &Address) {
        let mut connections = self.connections();
        connections.accepted += 1;
        let number = connections.accepted;
        let protocol = service.protocol();
        let mut journal = self.journal.of(protocol);
        let who = match service {
            Service::Nbd => format!("client {number} at {client}"),
            Service::Vhost(disk) => {
                let name = &disk.served.export.name;
                journal = journal.of_export(name);
                format!("export {name:?}: {client}")
            }
        };
        let journal = journal.about(who.clone());
        if connections.live.len() >= self.limits.connections_max {
            return journal.warn(format_args!(
                "disconnected: {} clients are connected, the most that connections_max or memory allows",
                connections.live.len()
            ));
        }
        let serve: Serve = match service {
            Service::Nbd => {
                let Some(memory) = self.memory() else {
                    return journal.warn(format_args!("disconnected: {NO_MEMORY}"));
                };
                let security = self.security(address);
                Box::new(move |shared, connection, journal| {
                    nbd::serve(connection, shared.house(), memory, &security, journal)
                })
            }
            Service::Vhost(disk) => {
                let disk = disk.clone();
                Box::new(move |_, connection, journal| vhost::serve(&disk, connection, journal))
            }
        };
        let connection = Arc::new(Connection::new(socket, who, matches!(service, Service::Nbd)));
        connections.live.insert(number, connection.clone());
        drop(connections);
        self.start(connection, number, protocol, &journal, serve);
    }

    /// Returns the memory of an NBD client, if there is enough.
    fn memory(&self) -> Option<Memory> {
        let (input, reserve) = (self.limits.input_bytes, self.limits.reserve_bytes);
        let (input, reserve) = (self.cache.buffer(input)?, self.cache.buffer(reserve)?);
        Some(Memory { input, reserve, loans: self.loans.clone() })
    }

    fn house(&self) -> nbd::House<'_> {
        nbd::House { cache: &self.cache, exports: &self.exports, limits: &self.limits }
    }

    /// Starts the thread of a connection that is in the list of live ones.
    fn start(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        number: u64,
        protocol: &str,
        journal: &Journal,
        serve: Serve,
    ) {
        let presence = Presence { shared: self.clone(), number };
        let spawned = thread::Builder::new()
            .name(format!("octavo-{protocol}-{number}"))
            .stack_size(STACK_BYTES)
            .spawn({
                let journal = journal.clone();
                move || {
                    journal.debug(format_args!("connected"));
                    let end = serve(&presence.shared, &connection, &journal);
                    match end.is_ordinary() {
                        true => journal.debug(format_args!("{end}")),
                        false => journal.warn(format_args!("{end}")),
                    }
                    if let Hangup::Left(client) = end {
                        presence.shared.succession().left.push(*client);
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
