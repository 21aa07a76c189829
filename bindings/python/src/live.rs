//! What all handles of a cache keep alive, and how it ends.

use std::ffi::CString;

use pyo3::exceptions::{PyResourceWarning, PyTypeError};
use pyo3::prelude::*;

use crate::error::{Failure, Result};
use crate::fetch::Fetchers;
use crate::wait::{LeftBehind, wait};

/// What the handles of a cache share. Dropped with the last of them.
pub struct Live {
    /// Taken by `drop`.
    cache: Option<octavo::Cache>,
    /// The threads of its sources.
    pub fetchers: Fetchers,
    /// Its works that a signal has interrupted.
    pub left_behind: LeftBehind,
}

impl Live {
    /// Wraps a new cache.
    pub fn new(cache: octavo::Cache) -> Live {
        Live { cache: Some(cache), fetchers: Fetchers::default(), left_behind: LeftBehind::default() }
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
        let left_behind = self.left_behind.clone();
        let end = move || {
            let synced = cache.partitions().iter().map(|one| one.sync()).fold(Ok(()), Result::and);
            match left_behind.is_any() {
                // The end of the cache would wait for a source that hangs.
                true => std::mem::forget(cache),
                false => drop(cache),
            }
            synced
        };
        // The store of a source may need the GIL for its I/O, which the cache's end waits for.
        let ended = Python::try_attach(|py| {
            let ended = wait(py, &LeftBehind::default(), end);
            if let Err(failure) = ended.and_then(|synced| synced.map_err(Failure::from)) {
                PyErr::from(failure).write_unraisable(py, None);
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

/// Warns of a handle that is dropped open, as Python does of files. At the end of the interpreter
/// nobody can be warned.
pub fn warn_unclosed(what: &str) {
    let Ok(text) = CString::new(format!("unclosed {what}")) else { return };
    let warned = Python::try_attach(|py| {
        // A handle may be dropped because of an exception, which stays the one that is raised.
        let raised = PyErr::take(py);
        let class = py.get_type::<PyResourceWarning>();
        if let Err(error) = PyErr::warn(py, &class, &text, 1) {
            // Warnings may be errors, which a destructor cannot raise.
            error.write_unraisable(py, None);
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    });
    let _ = warned;
}
