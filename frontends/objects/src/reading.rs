//! [`Reading`]: an answer of a server while it is read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use octavo::{Cache, Charge};

use crate::error::{Error, ErrorKind};

/// Bytes that are charged together.
const STEP_BYTES: u64 = 256 << 10;

/// An answer of a server while it is read: when its last bytes came, and the memory that it takes,
/// which is charged to the cache until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Reading(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cache: Cache,
    path: Arc<str>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the request began, or the last bytes came.
    last: Instant,
    charge: Option<Charge>,
}

impl Reading {
    pub(crate) fn new(cache: &Cache, path: &Arc<str>) -> Reading {
        let state = Mutex::new(State { last: Instant::now(), charge: None });
        Reading(Arc::new(Inner { cache: cache.clone(), path: path.clone(), state }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the answer has `bytes` so far: the server is not silent, and memory for so many
    /// is charged. To be called before they are kept, on the fetcher's threads.
    ///
    /// # Errors
    /// [`ErrorKind::Engine`] if the cache has no memory for them.
    pub fn note(&self, bytes: u64) -> Result<(), Error> {
        let charged = {
            let mut state = self.state();
            state.last = Instant::now();
            state.charge.as_ref().map_or(0, Charge::bytes)
        };
        if bytes <= charged {
            return Ok(());
        }
        // A charge may wait until pages have left.
        tokio::task::block_in_place(|| self.charge(bytes.next_multiple_of(STEP_BYTES)))
    }

    fn charge(&self, bytes: u64) -> Result<(), Error> {
        let mut state = self.state();
        let charged = match &mut state.charge {
            Some(charge) => charge.resize(bytes),
            none => self.0.cache.charge(bytes, "an answer of a server").map(|charge| *none = Some(charge)),
        };
        charged.map_err(|error| Error::engine(&self.0.path, &error))
    }

    /// Waits for `answer`, but not for a server that has sent nothing for `patience`.
    pub(crate) async fn patiently<T>(
        &self,
        patience: Duration,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut answer = std::pin::pin!(answer);
        loop {
            let until = self.state().last + patience;
            if let Ok(told) = tokio::time::timeout_at(until.into(), &mut answer).await {
                return told;
            }
            if self.state().last + patience <= until {
                return Err(silent(&self.0.path, patience));
            }
        }
    }
}

/// The error of a server that sends nothing.
pub(crate) fn silent(path: &str, patience: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, path, format!("the server sent nothing for {patience:?}"))
}
