//! One version of an object whose pages are kept, and how ranges of it are read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use octavo::{Advice, OwnedPin};
use octavo_async::AsyncObject;

use crate::config::Usage;
use crate::error::{Error, ErrorKind};
use crate::origin::Meta;
use crate::source::Source;
use crate::stat::add;

/// Tells one cached object from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub scope: Arc<str>,
    pub partition: usize,
    pub path: Arc<str>,
}

/// A kept object. Readers hold it while they read; it may be dropped meanwhile, and their reads
/// then fail with `Changed`.
#[derive(Debug)]
pub(crate) struct Entry {
    pub key: Key,
    pub source: Arc<Source>,
    /// `None` for an object without bytes.
    object: Option<AsyncObject>,
    /// When the server last told that this is the present version.
    confirmed: Mutex<Option<Instant>>,
    /// Pinned pages by their offsets.
    pins: Mutex<BTreeMap<u64, OwnedPin>>,
}

impl Entry {
    /// `object` is `None` for an object without bytes.
    pub fn new(key: Key, object: Option<AsyncObject>, source: Arc<Source>) -> Entry {
        Entry { key, source, object, confirmed: Mutex::default(), pins: Mutex::default() }
    }

    pub fn meta(&self) -> &Meta {
        &self.source.meta
    }

    /// Whether the entry is of the version that the server tells.
    pub fn is_version(&self, meta: &Meta) -> bool {
        self.meta().size == meta.size && self.meta().version.is_same(&meta.version)
    }

    /// Notes that the server was asked at `when`, and told this version.
    pub fn confirm(&self, when: Option<Instant>) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        *confirmed = (*confirmed).max(when);
    }

    /// Whether the server told this version less than `age` ago.
    pub fn is_fresh(&self, age: Duration) -> bool {
        let confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        confirmed.is_some_and(|when| when.elapsed() < age)
    }

    /// Returns the bytes of a range, which lies inside the object.
    pub async fn read(&self, range: Range<u64>, usage: Usage) -> Result<Bytes, Error> {
        let len = (range.end - range.start) as usize;
        let Some(object) = self.object.as_ref().filter(|_| len > 0) else { return Ok(Bytes::new()) };
        let counters = &self.source.shared.counters;
        if usage == Usage::Bypass {
            add(&counters.passed_bytes, len as u64);
            return self.source.pass(range, usage).await;
        }
        let resident = object.object().resident_bytes(range.start, len as u64);
        let resident = resident.map_err(|error| self.explain(&error))?;
        let missing = len as u64 - resident;
        if missing > 0 && usage == Usage::Once {
            add(&counters.passed_bytes, len as u64);
            return self.source.pass(range, usage).await;
        }
        add(&counters.hit_bytes, resident);
        add(&counters.miss_bytes, missing);
        if missing > 0 {
            // The whole unit, with one GET. If that fails, the read below finds out why.
            let unit = self.units(&range);
            let _ = object.advise(unit.start, unit.end - unit.start, Advice::WillNeed).await;
        }
        let bytes = object.read_bytes_at(range.start, len).await.map_err(|error| self.explain(&error))?;
        if usage == Usage::Pin {
            self.pin(object, &range);
        }
        Ok(bytes)
    }

    /// The whole fill units that a range touches.
    fn units(&self, range: &Range<u64>) -> Range<u64> {
        let unit = u64::from(self.source.shared.config.fill_bytes);
        range.start / unit * unit..range.end.next_multiple_of(unit).min(self.meta().size)
    }

    /// Pins the resident pages of a range, as far as there is room.
    fn pin(&self, object: &AsyncObject, range: &Range<u64>) {
        let shared = &self.source.shared;
        let page_bytes = object.object().page_bytes();
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let mut offset = range.start / page_bytes * page_bytes;
        while offset < range.end {
            if let Place::Vacant(place) = pins.entry(offset) {
                if !shared.reserve_pin(page_bytes) {
                    return;
                }
                match object.object().try_pin_owned(offset) {
                    Ok(Some(pin)) => {
                        place.insert(pin);
                    }
                    _ => shared.release_pins(page_bytes),
                }
            }
            offset += page_bytes;
        }
    }

    /// Lets go of all pinned pages.
    pub fn unpin(&self) {
        let pins = std::mem::take(&mut *self.pins.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(object) = &self.object {
            self.source.shared.release_pins(pins.len() as u64 * object.object().page_bytes());
        }
    }

    /// Drops the pages. Waits for I/O in flight.
    pub fn end(&self) {
        self.unpin();
        if let Some(object) = &self.object {
            object.object().abandon();
        }
    }

    /// The error of the server behind an error of the engine, if there is one.
    fn explain(&self, error: &octavo::Error) -> Error {
        match (error, self.source.failure()) {
            (octavo::Error::Io { .. }, Some(failure)) => failure,
            (octavo::Error::Closed { .. }, _) => {
                Error::new(ErrorKind::Changed, &self.key.path, "was replaced while it was read")
            }
            (error, _) => Error::engine(&self.key.path, error),
        }
    }
}
