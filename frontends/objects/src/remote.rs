//! [`Remote`]: a version of an object as a store of the engine.
//!
//! The engine asks for a unit whose pages are partly resident with an I/O for each run of missing
//! pages. A GET for each would cost a round trip and a billed request each. Therefore a read of a
//! part of a unit waits for [`merge_window`](crate::ObjectsConfig::merge_window), and one GET then
//! serves all reads of the unit that have come by then. The bytes between them, which are resident
//! already, are fetched and dropped.
//!
//! Not here: how bytes are fetched and checked (`source.rs`).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use octavo::disk::{Backend, IoRequest, Op, Store};
use tokio::time::sleep;

use crate::config::Usage;
use crate::error::{Error, ErrorKind};
use crate::source::Source;

/// A version of an object as a store of the engine.
struct Remote {
    source: Arc<Source>,
    parts: Arc<Parts>,
}

/// Returns a version of an object as a store of the engine.
///
/// # Errors
/// [`ErrorKind::Engine`] if the engine does not take it.
pub(crate) fn store(source: &Arc<Source>, name: &str) -> Result<Store, Error> {
    let remote = Remote { source: source.clone(), parts: Arc::default() };
    Store::from_backend(name, remote).map_err(|error| Error::new(ErrorKind::Engine, &source.path, error))
}

impl Backend for Remote {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.source.meta.size)
    }

    fn submit(&self, request: IoRequest) {
        if request.op() != Op::Read {
            return request.complete(Err(io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        let (source, window) = (self.source.clone(), self.source.shared.config.merge_window);
        // O6. If the runtime has ended, the requests are dropped, and fail.
        match self.source.unit_of_part(&range_of(&request)) {
            Some(unit) if !window.is_zero() => {
                let Some(waiting) = self.parts.add(unit, request) else { return };
                self.source.shared.handle().spawn(async move {
                    sleep(window).await;
                    bring(&source, waiting.take()).await;
                });
            }
            _ => drop(self.source.shared.handle().spawn(async move { bring(&source, vec![request]).await })),
        }
    }

    fn fill_bytes(&self) -> u32 {
        self.source.shared.config.fill_bytes
    }

    fn read_only(&self) -> bool {
        true
    }
}

fn range_of(request: &IoRequest) -> Range<u64> {
    request.offset()..request.offset() + request.len_bytes() as u64
}

/// Brings the bytes of all requests, which are a few parts of one unit or a single one, at once.
async fn bring(source: &Arc<Source>, mut requests: Vec<IoRequest>) {
    let ranges: Vec<_> = requests.iter().map(range_of).collect();
    let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let mut deliver = |at: usize, bytes: &[u8]| {
        let piece = start + at as u64..start + (at + bytes.len()) as u64;
        for (request, range) in requests.iter_mut().zip(&ranges) {
            let (from, to) = (piece.start.max(range.start), piece.end.min(range.end));
            if from < to {
                let bytes = &bytes[(from - piece.start) as usize..(to - piece.start) as usize];
                request.copy_in((from - range.start) as usize, bytes);
            }
        }
    };
    let brought = source.bring(start..end, Usage::Normal, &mut deliver).await;
    for request in requests {
        let len = request.len_bytes();
        request.complete(brought.clone().map(|()| len).map_err(Error::into_io));
    }
}

/// The reads of parts of units that wait for others, by unit.
#[derive(Default)]
struct Parts(Mutex<HashMap<u64, Vec<IoRequest>>>);

impl Parts {
    /// Adds a read. Returns what takes all reads of the unit, if it is the first.
    fn add(self: &Arc<Self>, unit: u64, request: IoRequest) -> Option<Waiting> {
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = units.entry(unit).or_default();
        waiting.push(request);
        (waiting.len() == 1).then(|| Waiting { parts: self.clone(), unit: Some(unit) })
    }

    fn take(&self, unit: u64) -> Vec<IoRequest> {
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        units.remove(&unit).unwrap_or_default()
    }
}

/// The right to take the reads of a unit. Dropping it fails them: they keep their store alive, and
/// it them.
struct Waiting {
    parts: Arc<Parts>,
    /// `None` once they are taken: the unit's next reads are another's.
    unit: Option<u64>,
}

impl Waiting {
    fn take(mut self) -> Vec<IoRequest> {
        self.unit.take().map(|unit| self.parts.take(unit)).unwrap_or_default()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(unit) = self.unit {
            drop(self.parts.take(unit));
        }
    }
}
