//! [`Export`]: an object that the server offers, and the counts of its requests.
//!
//! Each connection counts in cache lines of its own, which only its thread writes ([`Counts`]). A
//! reader adds up the counts of all connections. Counting a request therefore takes no locked
//! instruction, and no connection waits for the cache lines of another.

use crate::error::Error;
use crate::limits::NAME_MAX_BYTES;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

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
    /// Commands that the server does not know, answered with an error.
    Unknown,
}

impl Kind {
    /// All kinds. The index of a kind is its number.
    pub const ALL: [Kind; 7] =
        [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim, Kind::Zeroes, Kind::Cache, Kind::Unknown];

    /// Returns the kind's name, for people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Trim => "trim",
            Kind::Zeroes => "zeroes",
            Kind::Cache => "cache",
            Kind::Unknown => "unknown",
        }
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
}

impl ExportStat {
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
    }
}

/// The counts of one connection since it entered transmission.
///
/// Only the connection's thread writes, so adding is a load and a store. All accesses are Relaxed:
/// the counts are independent, and publish nothing. The alignment keeps the counts of two
/// connections in different cache lines, and in different pairs of lines, because some processors
/// fetch pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counts {
    received: AtomicU64,
    answered: [AtomicU64; Kind::ALL.len()],
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counts {
    pub fn received(&self) {
        add(&self.received, 1);
    }

    pub fn answered(&self, kind: Kind, is_error: bool) {
        add(&self.answered[kind as usize], 1);
        add(&self.errors, u64::from(is_error));
    }

    pub fn read(&self, len_bytes: u32) {
        add(&self.read_bytes, u64::from(len_bytes));
    }

    pub fn written(&self, len_bytes: u32) {
        add(&self.written_bytes, u64::from(len_bytes));
    }
}

/// Adds to a count that only the calling thread writes.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Relaxed) + more, Relaxed);
}

/// An export that is being served.
pub(crate) struct Served {
    pub export: Export,
    visitors: Mutex<Visitors>,
}

/// The connections of an export.
#[derive(Default)]
struct Visitors {
    live: Vec<Arc<Counts>>,
    /// The sums of the connections that have ended.
    ended: ExportStat,
}

impl Served {
    pub fn read_only(&self) -> bool {
        self.export.read_only || self.export.object.read_only()
    }

    /// Registers a connection, with counts of its own, until the visit is dropped.
    pub fn visit(self: &Arc<Self>) -> Visit {
        let counts = Arc::<Counts>::default();
        self.visitors().live.push(counts.clone());
        Visit { served: self.clone(), counts }
    }

    pub fn stat(&self) -> ExportStat {
        let visitors = self.visitors();
        let connections = visitors.live.len() as u64;
        let mut stat = ExportStat { name: self.export.name.clone(), connections, ..visitors.ended.clone() };
        visitors.live.iter().for_each(|counts| stat.add(counts));
        stat
    }

    fn visitors(&self) -> MutexGuard<'_, Visitors> {
        self.visitors.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A connection in transmission.
pub(crate) struct Visit {
    pub served: Arc<Served>,
    pub counts: Arc<Counts>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut visitors = self.served.visitors();
        visitors.live.retain(|counts| !Arc::ptr_eq(counts, &self.counts));
        visitors.ended.add(&self.counts);
        // Its unanswered requests are no longer in flight.
        visitors.ended.in_flight = 0;
    }
}

/// All exports of a server, the default one first.
pub(crate) struct Exports(Vec<Arc<Served>>);

impl Exports {
    pub fn new(exports: Vec<Export>) -> Result<Exports, Error> {
        let wrong = |name: &str, reason: &str| Error::Export { name: name.into(), reason: reason.into() };
        let mut names = HashSet::new();
        for export in &exports {
            if export.name.len() > NAME_MAX_BYTES || export.description.len() > NAME_MAX_BYTES {
                return Err(wrong(&export.name, "its name or description is longer than 4096 bytes"));
            }
            if !names.insert(&export.name) {
                return Err(wrong(&export.name, "another export has the same name"));
            }
        }
        if exports.is_empty() {
            return Err(wrong("", "there is nothing to serve; name at least one export"));
        }
        let served = |export| Arc::new(Served { export, visitors: Mutex::default() });
        Ok(Exports(exports.into_iter().map(served).collect()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.0.iter()
    }

    /// Returns the export of this name. The first one also has the empty name.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<Served>> {
        let named = self.iter().find(|served| served.export.name.as_bytes() == name);
        named.or_else(|| self.0.first().filter(|_| name.is_empty()))
    }
}
