//! [`Export`]: an object that the server offers, and the counts of its requests. Exports come and
//! go while the server runs (X1 to X3).
//!
//! Each connection counts in cache lines of its own, which only its thread writes ([`Counts`]). A
//! reader adds up the counts of all connections. Counting a request therefore takes no locked
//! instruction, and no connection waits for the cache lines of another.
//!
//! How an export leaves:
//!
//! - **X1** A connection begins its *visit* of an export before the client learns that it may use
//!   the export. The visit ends when the connection has no operation in the engine.
//! - **X2** Retiring an export and beginning a visit take the same lock. Once an export is retired,
//!   no visit begins, so the number of visits only falls. At zero, no client uses the object.
//! - **X3** A retired export keeps its name and its place, until it is removed or offered again.

use crate::connection::Connection;
use crate::error::Error;
use crate::latency::{Class, Clock, Histogram, Latencies, Timing, add};
use crate::limits::NAME_MAX_BYTES;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An object that clients can open by name.
pub struct Export {
    /// The name that clients request. The first export also has the empty name.
    pub name: String,
    /// A description for people. May be empty.
    pub description: String,
    /// The object.
    pub object: octavo::Object,
    /// Refuses changes, even if the object is writable.
    pub read_only: bool,
    /// NBD clients find the export. False for one that is only attached by vhost-user.
    pub is_listed: bool,
}

/// The kinds of requests that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes, which make earlier writes durable.
    Flush,
    /// Discards of ranges that the client no longer needs.
    Trim,
    /// Zeroings of ranges.
    Zeroes,
    /// Announcements of ranges that the client will read soon.
    Cache,
    /// Requests for the status of a range: data or holes.
    Status,
    /// Commands that the server does not know, answered with an error.
    Unknown,
}

impl Kind {
    /// All kinds. The index of a kind is its number.
    pub const ALL: [Kind; 8] = [
        Kind::Read,
        Kind::Write,
        Kind::Flush,
        Kind::Trim,
        Kind::Zeroes,
        Kind::Cache,
        Kind::Status,
        Kind::Unknown,
    ];

    /// Returns the kind's name, for people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Trim => "trim",
            Kind::Zeroes => "zeroes",
            Kind::Cache => "cache",
            Kind::Status => "status",
            Kind::Unknown => "unknown",
        }
    }

    /// Returns the class under which the time of such a request is counted, if any. `is_hit`
    /// matters for reads.
    pub(crate) fn class(self, is_hit: bool) -> Option<Class> {
        Some(match self {
            Kind::Read if is_hit => Class::Hit,
            Kind::Read => Class::Miss,
            Kind::Write => Class::Write,
            Kind::Flush => Class::Flush,
            Kind::Trim | Kind::Zeroes => Class::Discard,
            Kind::Cache | Kind::Status | Kind::Unknown => return None,
        })
    }
}

/// The counts of one export since the start of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportStat {
    /// The export's name.
    pub name: String,
    /// The number of clients in transmission now.
    pub connections: u64,
    /// The number of requests that were received and are not answered yet.
    pub in_flight: u64,
    /// The numbers of answered requests by kind, in the order of [`Kind::ALL`].
    pub requests: [u64; Kind::ALL.len()],
    /// The number of requests that were answered with an error.
    pub errors: u64,
    /// The bytes that clients have read.
    pub read_bytes: u64,
    /// The bytes that clients have written.
    pub written_bytes: u64,
    /// How often a ring was given up, because its guest broke the rules or the guest's memory has
    /// shrunk.
    pub broken: u64,
    /// The times of the requests that were carried out, in the order of [`Class::ALL`].
    pub latencies: [Histogram; Class::ALL.len()],
}

impl ExportStat {
    /// Returns the times of the requests of a class.
    pub fn latency(&self, class: Class) -> &Histogram {
        &self.latencies[class as usize]
    }

    /// Returns the number of answered requests of a kind.
    pub fn requests_of(&self, kind: Kind) -> u64 {
        self.requests[kind as usize]
    }

    /// Adds the counts of a connection.
    fn add(&mut self, counts: &Counts) {
        // The answers are read first, so that a request which arrives and is answered in between
        // does not make the difference negative.
        let answered: [u64; Kind::ALL.len()] =
            std::array::from_fn(|kind| counts.answered[kind].load(Relaxed));
        let received = counts.received.load(Relaxed);
        self.in_flight += received.saturating_sub(answered.iter().sum());
        for (sum, count) in self.requests.iter_mut().zip(answered) {
            *sum += count;
        }
        self.errors += counts.errors.load(Relaxed);
        self.read_bytes += counts.read_bytes.load(Relaxed);
        self.written_bytes += counts.written_bytes.load(Relaxed);
        self.broken += counts.broken.load(Relaxed);
        counts.latencies.read(&mut self.latencies);
    }
}

/// The counts of one connection since it entered transmission.
///
/// Only the connection's thread writes, so adding is a load and a store ([`add`]). The alignment
/// keeps the counts of two connections in different cache lines, and in different pairs of lines,
/// because some processors fetch pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counts {
    received: AtomicU64,
    answered: [AtomicU64; Kind::ALL.len()],
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    broken: AtomicU64,
    latencies: Latencies,
}

impl Counts {
    pub fn received(&self) {
        add(&self.received, 1);
    }

    /// Counts a request that was refused.
    pub fn refused(&self, kind: Kind) {
        self.answered(kind, true);
    }

    /// Counts a request that was carried out, and its time.
    pub fn ended(&self, kind: Kind, timing: Timing, clock: &mut Clock, is_error: bool) {
        self.answered(kind, is_error);
        let (is_hit, ns) = timing.end(clock);
        if let Some(class) = kind.class(is_hit) {
            self.latencies.add(class, ns);
        }
    }

    fn answered(&self, kind: Kind, is_error: bool) {
        add(&self.answered[kind as usize], 1);
        add(&self.errors, u64::from(is_error));
    }

    pub fn read(&self, len_bytes: u32) {
        add(&self.read_bytes, u64::from(len_bytes));
    }

    pub fn written(&self, len_bytes: u32) {
        add(&self.written_bytes, u64::from(len_bytes));
    }

    pub fn broken(&self) {
        add(&self.broken, 1);
    }
}

/// An export that is being served.
pub(crate) struct Served {
    pub export: Export,
    visitors: Mutex<Visitors>,
    /// Notified when a visit ends.
    left: Condvar,
}

/// The connections of an export.
#[derive(Default)]
struct Visitors {
    live: Vec<(Arc<Counts>, Arc<Connection>)>,
    /// The sums of the connections that have ended.
    ended: ExportStat,
    /// No visit begins any more (X2).
    is_retired: bool,
}

impl Visitors {
    /// The connections, each once: one with several threads has several visits.
    fn connections(&self) -> Vec<&Arc<Connection>> {
        let mut all: Vec<&Arc<Connection>> = Vec::new();
        for (_, connection) in &self.live {
            if !all.iter().any(|other| Arc::ptr_eq(other, connection)) {
                all.push(connection);
            }
        }
        all
    }
}

impl Served {
    pub fn read_only(&self) -> bool {
        self.export.read_only || self.export.object.read_only()
    }

    /// Registers a connection, with counts of its own, until the visit is dropped (X1). None if the
    /// export is retired.
    pub fn visit(self: &Arc<Self>, connection: &Arc<Connection>) -> Option<Visit> {
        let mut visitors = self.visitors();
        if visitors.is_retired {
            return None;
        }
        let counts = Arc::<Counts>::default();
        visitors.live.push((counts.clone(), connection.clone()));
        Some(Visit { served: self.clone(), counts })
    }

    /// Retires the export (X2). If it has clients, fails with their names; with `disconnect`, stops
    /// their connections instead, whether or not it was retired before.
    pub fn retire(&self, disconnect: bool) -> Result<(), Error> {
        let mut visitors = self.visitors();
        if visitors.is_retired {
            let reason = "it is being removed already".into();
            return Err(Error::Export { name: self.export.name.clone(), reason });
        }
        if !visitors.live.is_empty() && !disconnect {
            return Err(self.in_use(&visitors));
        }
        visitors.is_retired = true;
        visitors.live.iter().for_each(|(_, connection)| connection.stop());
        Ok(())
    }

    /// Offers the export again (X3).
    pub fn offer(&self) {
        self.visitors().is_retired = false;
    }

    pub fn is_offered(&self) -> bool {
        !self.visitors().is_retired
    }

    /// Waits until no connection is left, or `time` has passed. The error names the connections
    /// that are left.
    pub fn wait_until_left(&self, time: Duration) -> Result<(), Error> {
        let until = Instant::now() + time;
        let mut visitors = self.visitors();
        while !visitors.live.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.in_use(&visitors));
            }
            let waited = self.left.wait_timeout(visitors, left);
            visitors = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Cuts the connections: their clients get no more replies.
    pub fn cut(&self) {
        for (_, connection) in &self.visitors().live {
            connection.socket.shutdown(rustix::net::Shutdown::Both);
        }
    }

    pub fn stat(&self) -> ExportStat {
        let visitors = self.visitors();
        let connections = visitors.connections().len() as u64;
        let mut stat = ExportStat { name: self.export.name.clone(), connections, ..visitors.ended.clone() };
        visitors.live.iter().for_each(|(counts, _)| stat.add(counts));
        stat
    }

    fn in_use(&self, visitors: &Visitors) -> Error {
        let clients = visitors.connections().iter().map(|connection| connection.who.clone()).collect();
        Error::InUse { name: self.export.name.clone(), clients }
    }

    fn visitors(&self) -> MutexGuard<'_, Visitors> {
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that has chosen an export.
pub(crate) struct Visit {
    pub served: Arc<Served>,
    pub counts: Arc<Counts>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut visitors = self.served.visitors();
        visitors.live.retain(|(counts, _)| !Arc::ptr_eq(counts, &self.counts));
        visitors.ended.add(&self.counts);
        // Its unanswered requests are no longer in flight.
        visitors.ended.in_flight = 0;
        drop(visitors);
        self.served.left.notify_all();
    }
}

/// All exports of a server, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Exports(Mutex<List>);

/// Exports by number, and numbers by name. A new export gets the next number.
#[derive(Default)]
struct List {
    served: BTreeMap<u64, Arc<Served>>,
    numbers: HashMap<String, u64>,
    next: u64,
}

impl Exports {
    /// Adds an export at the end.
    pub fn add(&self, export: Export) -> Result<(), Error> {
        let wrong = |reason: &str| Error::Export { name: export.name.clone(), reason: reason.into() };
        if export.name.len() > NAME_MAX_BYTES || export.description.len() > NAME_MAX_BYTES {
            return Err(wrong("its name or description is longer than 4096 bytes"));
        }
        let mut list = self.lock();
        if list.numbers.contains_key(&export.name) {
            return Err(wrong("another export has the same name"));
        }
        let number = list.next;
        list.next += 1;
        list.numbers.insert(export.name.clone(), number);
        let served = Arc::new(Served { export, visitors: Mutex::default(), left: Condvar::new() });
        list.served.insert(number, served);
        Ok(())
    }

    pub fn remove(&self, served: &Arc<Served>) {
        let mut list = self.lock();
        // The name is this export's: until it is removed, no other export can have it.
        if let Some(number) = list.numbers.remove(&served.export.name) {
            list.served.remove(&number);
        }
    }

    /// Returns the export of this name, also if it is retired.
    pub fn named(&self, name: &str) -> Option<Arc<Served>> {
        let list = self.lock();
        list.served.get(list.numbers.get(name)?).cloned()
    }

    /// Returns all exports, retired ones too.
    pub fn all(&self) -> Vec<Arc<Served>> {
        self.lock().served.values().cloned().collect()
    }

    /// Returns the exports that are not retired.
    pub fn offered(&self) -> Vec<Arc<Served>> {
        self.lock().served.values().filter(|served| served.is_offered()).cloned().collect()
    }

    /// Returns the exports that NBD clients can choose.
    pub fn listed(&self) -> Vec<Arc<Served>> {
        self.offered().into_iter().filter(|served| served.export.is_listed).collect()
    }

    /// Returns the listed export of this name. The first one also has the empty name.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Served>> {
        let is_listed = |served: &Arc<Served>| served.is_offered() && served.export.is_listed;
        let named = std::str::from_utf8(name).ok().and_then(|name| self.named(name)).filter(is_listed);
        if named.is_some() || !name.is_empty() {
            return named;
        }
        self.lock().served.values().find(|served| is_listed(served)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
