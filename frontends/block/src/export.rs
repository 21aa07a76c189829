//! What is served, and the counts of what was.
//!
//! Each connection counts in cache lines of its own, which only its thread writes ([`Counts`]). A
//! reader adds up the counts of all connections. So counting a request takes no locked instruction,
//! and no connection waits for another's lines.

use crate::Error;
use crate::nbd::wire::STRING_MAX_BYTES;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// An object under a name.
pub struct Export {
    /// What clients ask for. The first export also answers to the empty name.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// What is served.
    pub object: octavo::Object,
    /// Refuses changes, even if the object does not.
    pub read_only: bool,
}

/// The kinds of requests that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes for the client.
    Read,
    /// Bytes from the client.
    Write,
    /// Durability of what was written.
    Flush,
    /// A range that is not needed any more.
    Trim,
    /// A range that has to read as zeros.
    Zeroes,
    /// A range that will be read soon.
    Cache,
    /// A command that the server does not know; it is answered with an error.
    Unknown,
}

impl Kind {
    /// All kinds; the place of a kind here is its number.
    pub const ALL: [Kind; 7] =
        [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim, Kind::Zeroes, Kind::Cache, Kind::Unknown];

    /// The kind's name, for people and metrics.
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

/// Counts of one export since the server's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportStat {
    /// The export's name.
    pub name: String,
    /// Clients that are in transmission now.
    pub connections: u64,
    /// Requests that were received and are not answered yet.
    pub in_flight: u64,
    /// Requests that were answered, by kind, in the order of [`Kind::ALL`].
    pub requests: [u64; Kind::ALL.len()],
    /// Those of them that were answered with an error.
    pub errors: u64,
    /// Bytes that clients read.
    pub read_bytes: u64,
    /// Bytes that clients wrote.
    pub written_bytes: u64,
}

impl ExportStat {
    /// Requests of a kind that were answered.
    pub fn requests_of(&self, kind: Kind) -> u64 {
        self.requests[kind as usize]
    }

    /// Adds what a connection has counted.
    fn add(&mut self, counts: &Counts) {
        // Answers are read first: a request that comes and is answered in between must not make the
        // difference negative.
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

/// What one connection has counted since it entered transmission.
///
/// Only the connection's thread writes, so that adding is a load and a store. All accesses are
/// Relaxed: the counts are independent, and nothing is published by them. The alignment keeps those
/// of two connections in different cache lines, and in different pairs of lines, which some
/// processors fetch together.
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

/// Adds to a count that only this thread writes.
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
    present: Vec<Arc<Counts>>,
    /// The sums of those that have left.
    left: ExportStat,
}

impl Served {
    pub fn read_only(&self) -> bool {
        self.export.read_only || self.export.object.read_only()
    }

    /// Counts a connection until the visit is dropped.
    pub fn visit(self: &Arc<Self>) -> Visit {
        let counts = Arc::<Counts>::default();
        self.visitors().present.push(counts.clone());
        Visit { served: self.clone(), counts }
    }

    pub fn stat(&self) -> ExportStat {
        let visitors = self.visitors();
        let connections = visitors.present.len() as u64;
        let mut stat = ExportStat { name: self.export.name.clone(), connections, ..visitors.left.clone() };
        visitors.present.iter().for_each(|counts| stat.add(counts));
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
        visitors.present.retain(|counts| !Arc::ptr_eq(counts, &self.counts));
        visitors.left.add(&self.counts);
        // Nobody answers any more what is left.
        visitors.left.in_flight = 0;
    }
}

/// All exports of a server, the default one first.
pub(crate) struct Exports(Vec<Arc<Served>>);

impl Exports {
    pub fn new(exports: Vec<Export>) -> Result<Exports, Error> {
        let wrong = |name: &str, reason: &str| Error::Export { name: name.into(), reason: reason.into() };
        let mut names = HashSet::new();
        for export in &exports {
            if export.name.len() > STRING_MAX_BYTES || export.description.len() > STRING_MAX_BYTES {
                return Err(wrong(&export.name, "its name or description is longer than 4096 bytes"));
            }
            if !names.insert(&export.name) {
                return Err(wrong(&export.name, "there are two of this name"));
            }
        }
        if exports.is_empty() {
            return Err(wrong("", "there is nothing to serve"));
        }
        let served = |export| Arc::new(Served { export, visitors: Mutex::default() });
        Ok(Exports(exports.into_iter().map(served).collect()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.0.iter()
    }

    /// The export of this name; the first one has the empty name, too.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<Served>> {
        let named = self.iter().find(|served| served.export.name.as_bytes() == name);
        named.or_else(|| self.0.first().filter(|_| name.is_empty()))
    }
}
