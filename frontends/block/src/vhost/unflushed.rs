//! [`Unflushed`]: whether there are completed writes whose data only this process has.
//!
//! A VMM with `reconnect` keeps its guest running when the server is killed. The guest then loses
//! writes that the server had acknowledged and not yet written to the store, and its next flush
//! would claim that they are durable. So the record of requests in flight, which outlives the
//! server, says whether there are such writes (`inflight.rs`).
//!
//! Writes of a partition in write-through mode reach the store before they complete, and outlive
//! the process: they are not counted.

use super::inflight::Tracker;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The writes of one device since its last flush.
#[derive(Debug)]
pub(super) struct Unflushed {
    /// The record of the first queue. None if there is none, or nothing to record.
    record: Option<Tracker>,
    ended: Mutex<Ended>,
}

#[derive(Debug, Default)]
struct Ended {
    writes: u64,
    is_recorded: bool,
}

impl Unflushed {
    pub fn new(record: Option<Tracker>) -> Unflushed {
        Unflushed { record, ended: Mutex::default() }
    }

    /// Called before the guest sees the completion of a write.
    pub fn note_write(&self) {
        if let Some(record) = &self.record {
            let mut ended = self.ended();
            ended.writes += 1;
            if !std::mem::replace(&mut ended.is_recorded, true) {
                record.set_unflushed(true);
            }
        }
    }

    /// Returns the number of writes that a flush that begins now makes durable.
    pub fn begin_flush(&self) -> u64 {
        self.ended().writes
    }

    /// Called after a flush has succeeded, before the guest sees its completion.
    pub fn end_flush(&self, begun: u64) {
        if let Some(record) = &self.record {
            let mut ended = self.ended();
            if ended.writes == begun && std::mem::take(&mut ended.is_recorded) {
                record.set_unflushed(false);
            }
        }
    }

    /// When no request is in flight: makes the writes durable, if there are any that the next
    /// server would take for lost.
    pub fn settle(&self, sync: impl FnOnce() -> bool) {
        let begun = self.begin_flush();
        let is_recorded = self.ended().is_recorded;
        if is_recorded && sync() {
            self.end_flush(begun);
        }
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
