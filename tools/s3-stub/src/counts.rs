//! What was asked and sent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::request::Operation;

/// Requests and bytes of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests by operation.
    pub requests: BTreeMap<Operation, u64>,
    /// Bytes of bodies that were handed to connections.
    pub sent_bytes: u64,
    /// Wrong answers by the name of the lie.
    pub lies: BTreeMap<&'static str, u64>,
    /// The same by path (`bucket/key`), for reads of objects.
    pub paths: BTreeMap<String, PathCounts>,
}

/// Requests and bytes of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// HEAD requests.
    pub heads: u64,
    /// GET requests.
    pub gets: u64,
    /// Bytes of bodies that were handed to connections.
    pub sent_bytes: u64,
}

impl Counts {
    /// Requests of one operation.
    pub fn of(&self, operation: Operation) -> u64 {
        self.requests.get(&operation).copied().unwrap_or_default()
    }

    /// GET requests of objects.
    pub fn gets(&self) -> u64 {
        self.of(Operation::Get)
    }

    /// HEAD requests.
    pub fn heads(&self) -> u64 {
        self.of(Operation::Head)
    }

    /// Requests and bytes of the object at `path` (`bucket/key`).
    pub fn path(&self, path: &str) -> PathCounts {
        self.paths.get(path).copied().unwrap_or_default()
    }

    pub(crate) fn note_request(&mut self, operation: Operation, path: &str) {
        *self.requests.entry(operation).or_default() += 1;
        match operation {
            Operation::Head => self.of_path(path).heads += 1,
            Operation::Get => self.of_path(path).gets += 1,
            _ => {}
        }
    }

    pub(crate) fn note_lie(&mut self, name: &'static str) {
        *self.lies.entry(name).or_default() += 1;
    }

    pub(crate) fn note_sent(&mut self, path: &str, bytes: u64) {
        self.sent_bytes += bytes;
        self.of_path(path).sent_bytes += bytes;
    }

    fn of_path(&mut self, path: &str) -> &mut PathCounts {
        if !self.paths.contains_key(path) {
            self.paths.insert(path.to_owned(), PathCounts::default());
        }
        self.paths.get_mut(path).expect("just inserted")
    }
}

impl fmt::Display for Counts {
    /// One figure a line: its name, a space, the value. Then one line for each path: `path`, its
    /// HEADs, GETs, bytes and name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for operation in Operation::ALL {
            writeln!(f, "{} {}", operation.name(), self.of(operation))?;
        }
        writeln!(f, "sent_bytes {}", self.sent_bytes)?;
        for (name, count) in &self.lies {
            writeln!(f, "lie_{name} {count}")?;
        }
        for (path, counts) in &self.paths {
            writeln!(f, "path {} {} {} {path}", counts.heads, counts.gets, counts.sent_bytes)?;
        }
        Ok(())
    }
}

/// The counts of a server, which all its connections add to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<Mutex<Counts>>);

impl Tally {
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
