//! What is served, and the counts of what was.

use crate::Error;
use crate::nbd::wire::STRING_MAX_BYTES;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// Counts of one export since the server's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportStat {
    /// The export's name.
    pub name: String,
    /// Clients that are in transmission now.
    pub connections: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Those of them that were answered with an error.
    pub errors: u64,
    /// Bytes that clients read.
    pub read_bytes: u64,
    /// Bytes that clients wrote.
    pub written_bytes: u64,
}

/// What a connection has counted and not yet added to its export.
#[derive(Default)]
pub(crate) struct Tally {
    pub requests: u64,
    pub errors: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// An export that is being served.
pub(crate) struct Served {
    pub export: Export,
    // Independent counts: nothing is ordered by them.
    connections: AtomicU64,
    requests: AtomicU64,
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Served {
    pub fn read_only(&self) -> bool {
        self.export.read_only || self.export.object.read_only()
    }

    /// Counts a connection until the visit is dropped.
    pub fn visit(self: &Arc<Self>) -> Visit {
        self.connections.fetch_add(1, Relaxed);
        Visit(self.clone())
    }

    pub fn add(&self, tally: Tally) {
        if tally.requests > 0 {
            self.requests.fetch_add(tally.requests, Relaxed);
            self.errors.fetch_add(tally.errors, Relaxed);
            self.read_bytes.fetch_add(tally.read_bytes, Relaxed);
            self.written_bytes.fetch_add(tally.written_bytes, Relaxed);
        }
    }

    pub fn stat(&self) -> ExportStat {
        ExportStat {
            name: self.export.name.clone(),
            connections: self.connections.load(Relaxed),
            requests: self.requests.load(Relaxed),
            errors: self.errors.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
        }
    }
}

/// A connection in transmission.
pub(crate) struct Visit(pub Arc<Served>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
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
        let served = |export| {
            Arc::new(Served {
                export,
                connections: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                errors: AtomicU64::new(0),
                read_bytes: AtomicU64::new(0),
                written_bytes: AtomicU64::new(0),
            })
        };
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
