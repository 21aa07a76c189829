//! Stores whose bytes a function of Python returns, on threads of their own: the engine must not
//! wait for a back end, and Python may hold the GIL for long.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use octavo::disk::{Backend, IoRequest, Op};
use pyo3::prelude::*;

use crate::error::{Failure, Result, of_io};
use crate::memory::with_readable;
use crate::wait::LeftBehind;

/// Threads that call functions of Python. More would not help: they share the GIL, and wait only
/// for networks.
const THREADS: usize = 8;

/// The most threads, if functions hang and were left behind.
const THREADS_MAX: usize = 64;

/// A request, the function that serves it, and where its exceptions go.
type Task = (IoRequest, Arc<Py<PyAny>>, Arc<Raised>);

/// The last exception of a function: the cause of what its readers get.
#[derive(Default)]
pub struct Raised(Mutex<Option<(String, PyErr)>>);

impl Raised {
    /// Locked with the GIL held.
    fn last(&self) -> MutexGuard<'_, Option<(String, PyErr)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, py: Python<'_>, text: &str, error: &PyErr) {
        let before = self.last().replace((text.to_owned(), error.clone_ref(py)));
        // Its destructors may run code of Python.
        drop(before);
    }

    /// Forgets the exception, whose traceback keeps frames alive.
    pub fn clear(&self, _py: Python<'_>) {
        let before = self.last().take();
        drop(before);
    }

    /// Returns the exception that a sentence of the engine tells of.
    pub fn behind(&self, py: Python<'_>, sentence: &str) -> Option<PyErr> {
        let last = self.last();
        let (text, error) = last.as_ref()?;
        sentence.contains(text).then(|| error.clone_ref(py))
    }
}

/// The threads of one cache, which start with its first source, and end with its last.
#[derive(Default)]
pub struct Fetchers(Mutex<Option<Desk>>);

/// The way to the threads.
#[derive(Clone)]
pub struct Desk {
    tasks: Sender<Task>,
    crew: Arc<Crew>,
    left_behind: LeftBehind,
}

/// What the threads share.
struct Crew {
    tasks: Mutex<Receiver<Task>>,
    /// Threads that wait for a task. Relaxed, as below: a hint.
    idle: AtomicUsize,
    /// Tasks that no thread has taken.
    waiting: AtomicUsize,
    started: AtomicUsize,
}

impl Fetchers {
    /// Returns the way to the threads, and starts them if this is the first call. With the GIL
    /// held.
    pub fn desk(&self, left_behind: &LeftBehind) -> Result<Desk> {
        let mut desk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(desk) = &*desk {
            return Ok(desk.clone());
        }
        let (sender, tasks) = channel();
        let tasks = Mutex::new(tasks);
        let none = || AtomicUsize::new(0);
        let crew = Arc::new(Crew { tasks, idle: none(), waiting: none(), started: none() });
        for _ in 0..THREADS {
            start(&crew).map_err(|error| of_io(&"a thread for sources", error))?;
        }
        Ok(desk.insert(Desk { tasks: sender, crew, left_behind: left_behind.clone() }).clone())
    }
}

impl Desk {
    /// Hands a task over. If the threads are gone, it is dropped, and fails.
    fn hand_over(&self, task: Task) {
        let crew = &self.crew;
        crew.waiting.fetch_add(1, Ordering::Relaxed);
        let _ = self.tasks.send(task);
        // Threads in functions that hang, which a signal has left behind, serve nobody else.
        let is_short = crew.idle.load(Ordering::Relaxed) < crew.waiting.load(Ordering::Relaxed);
        let may_start = crew.started.load(Ordering::Relaxed) < THREADS_MAX;
        if is_short && may_start && self.left_behind.is_any() {
            // Without the thread, the task waits for one of the others.
            let _ = start(crew);
        }
    }
}

/// Starts a thread.
fn start(crew: &Arc<Crew>) -> io::Result<()> {
    let number = crew.started.fetch_add(1, Ordering::Relaxed);
    let crew = crew.clone();
    let thread = std::thread::Builder::new().name(format!("octavo-fetch-{number}"));
    thread.spawn(move || serve(&crew)).map(drop)
}

/// Serves tasks until no source is left.
fn serve(crew: &Crew) {
    loop {
        crew.idle.fetch_add(1, Ordering::Relaxed);
        // The lock is held while this thread waits: the others wait for the lock.
        let task = crew.tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        crew.idle.fetch_sub(1, Ordering::Relaxed);
        let Ok((mut request, fetch, raised)) = task else { return };
        crew.waiting.fetch_sub(1, Ordering::Relaxed);
        // If the interpreter is ending, the request is dropped, and fails.
        if let Some(outcome) = Python::try_attach(|py| fill(py, &mut request, &fetch, &raised)) {
            request.complete(outcome);
        }
    }
}

/// Fills a read with what the function returns.
fn fill(py: Python<'_>, request: &mut IoRequest, fetch: &Py<PyAny>, raised: &Raised) -> io::Result<usize> {
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
        Ok(_) => {
            raised.clear(py);
            Ok(wanted)
        }
        Err(failure) => {
            let error = PyErr::from(failure);
            let errno = error.value(py).getattr("errno").and_then(|errno| errno.extract::<i32>());
            let kind = errno.map_or(io::ErrorKind::Other, |errno| io::Error::from_raw_os_error(errno).kind());
            let text = error.to_string();
            raised.note(py, &text, &error);
            Err(io::Error::new(kind, text))
        }
    }
}

/// A read-only store of bytes from Python.
pub struct Source {
    desk: Desk,
    len_bytes: u64,
    fetch: Arc<Py<PyAny>>,
    raised: Arc<Raised>,
}

impl Source {
    /// Makes a store of `len_bytes` that `fetch(offset, length)` returns. Its exceptions go to
    /// `raised`.
    pub fn new(desk: Desk, len_bytes: u64, fetch: Py<PyAny>, raised: Arc<Raised>) -> Source {
        Source { desk, len_bytes, fetch: Arc::new(fetch), raised }
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
        let task = (request, self.fetch.clone(), self.raised.clone());
        self.desk.hand_over(task);
    }

    fn read_only(&self) -> bool {
        true
    }
}
