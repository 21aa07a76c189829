//! Stores whose bytes a function of Python returns, on threads of their own: the engine must not
//! wait for a back end, and Python may hold the GIL for long.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use octavo::disk::{Backend, IoRequest, Op};
use pyo3::prelude::*;

use crate::error::{Failure, Result, of_io};
use crate::memory::with_readable;

/// Threads that call functions of Python. More would not help: they share the GIL, and wait only
/// for networks.
const THREADS: usize = 8;

/// A request, and the function that serves it.
type Task = (IoRequest, Arc<Py<PyAny>>);

/// The threads of one cache, which start with its first source, and end with its last.
#[derive(Default)]
pub struct Fetchers(Mutex<Option<Sender<Task>>>);

impl Fetchers {
    /// Returns the way to the threads, and starts them if this is the first call. With the GIL
    /// held.
    pub fn sender(&self) -> Result<Sender<Task>> {
        let mut sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender {
            return Ok(sender.clone());
        }
        let (new, tasks) = channel();
        let tasks = Arc::new(Mutex::new(tasks));
        for number in 0..THREADS {
            let tasks = tasks.clone();
            let thread = std::thread::Builder::new().name(format!("octavo-fetch-{number}"));
            let started = thread.spawn(move || serve(&tasks));
            started.map_err(|error| of_io(&"a thread for sources", error))?;
        }
        Ok(sender.insert(new).clone())
    }
}

/// Serves tasks until no source is left.
fn serve(tasks: &Mutex<Receiver<Task>>) {
    loop {
        // The lock is held while this thread waits: the others wait for the lock.
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((mut request, fetch)) = task else { return };
        // If the interpreter is ending, the request is dropped, and fails.
        if let Some(outcome) = Python::try_attach(|py| fill(py, &mut request, &fetch)) {
            request.complete(outcome);
        }
    }
}

/// Fills a read with what the function returns.
fn fill(py: Python<'_>, request: &mut IoRequest, fetch: &Py<PyAny>) -> io::Result<usize> {
    let wanted = request.len_bytes();
    let filled = fetch.bind(py).call1((request.offset(), wanted)).map_err(Failure::from).and_then(|answer| {
        with_readable(&answer, |_, memory| {
            if memory.len == wanted {
                // SAFETY: the buffer is lent for the call. The GIL is held, so no code of Python
                // changes the bytes.
                request.copy_in(0, unsafe { std::slice::from_raw_parts(memory.start, wanted) });
            }
            Ok(memory.len)
        })
    });
    match filled {
        // A short answer would end the file here, with zeros behind.
        Ok(got) if got != wanted => Err(io::Error::other(format!("{got} bytes came instead of {wanted}"))),
        Ok(_) => Ok(wanted),
        Err(failure) => {
            let error = PyErr::from(failure);
            let errno = error.value(py).getattr("errno").and_then(|errno| errno.extract::<i32>());
            let kind = errno.map_or(io::ErrorKind::Other, |errno| io::Error::from_raw_os_error(errno).kind());
            Err(io::Error::new(kind, error.to_string()))
        }
    }
}

/// A read-only store of bytes from Python.
pub struct Source {
    tasks: Sender<Task>,
    len_bytes: u64,
    fetch: Arc<Py<PyAny>>,
}

impl Source {
    /// Makes a store of `len_bytes` that `fetch(offset, length)` returns.
    pub fn new(tasks: Sender<Task>, len_bytes: u64, fetch: Py<PyAny>) -> Source {
        Source { tasks, len_bytes, fetch: Arc::new(fetch) }
    }
}

impl Backend for Source {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes)
    }

    fn submit(&self, request: IoRequest) {
        if request.op() == Op::Sync {
            return request.complete(Ok(0));
        }
        let task = (request, self.fetch.clone());
        // If the threads are gone, the request is dropped, and fails.
        let _ = self.tasks.send(task);
    }

    fn read_only(&self) -> bool {
        true
    }
}
