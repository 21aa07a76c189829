//! What all handles of a cache keep alive, and how it ends.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::{Failure, Result};
use crate::fetch::Fetchers;

/// What the handles of a cache share. Dropped with the last of them.
pub struct Live {
    /// Taken by `drop`.
    cache: Option<octavo::Cache>,
    /// The threads of its sources.
    pub fetchers: Fetchers,
}

impl Live {
    /// Wraps a new cache.
    pub fn new(cache: octavo::Cache) -> Live {
        Live { cache: Some(cache), fetchers: Fetchers::default() }
    }

    /// The cache.
    pub fn cache(&self) -> &octavo::Cache {
        self.cache.as_ref().expect("only `drop` takes the cache")
    }
}

impl Drop for Live {
    /// Writes what is dirty, as a file does that is dropped before it was closed.
    fn drop(&mut self) {
        let Some(cache) = self.cache.take() else { return };
        let end = move || {
            let synced = cache.partitions().iter().map(|one| one.sync()).fold(Ok(()), Result::and);
            drop(cache);
            synced
        };
        // The store of a source may need the GIL for its I/O, which the cache's end waits for.
        let ended = Python::try_attach(|py| {
            let ended = py.detach(end);
            if let Err(error) = ended {
                PyErr::from(Failure::from(error)).write_unraisable(py, None);
            }
        });
        // The interpreter is ending: nobody can be told. The closure was dropped, and with it the
        // cache.
        let _ = ended;
    }
}

/// The exception of an object that cannot be pickled.
pub fn refuse_pickle(what: &str) -> PyResult<()> {
    Err(PyTypeError::new_err(format!(
        "a {what} lives in its process and cannot be pickled: open it in the other process, or attach \
         both to one server (octavo.attach)"
    )))
}
