//! Exports of running servers: one cache for all processes that attach to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use octavo::Error;
use octavo::disk::Process;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{Failure, Result, config, of_io};
use crate::memory::{Memory, new_bytes, with_readable, with_writable};
use crate::nbd::{Address, Command, Connection, Pool, Target};

/// An export of a server, over NBD. Each process has connections of its own, which it makes when it
/// needs them.
#[pyclass(frozen, weakref, module = "octavo", name = "Remote")]
pub struct Remote {
    target: Target,
    size: u64,
    read_only: bool,
    /// Locked with the GIL held.
    pool: Mutex<State>,
}

enum State {
    Open(Process, Arc<Pool>),
    Closed,
}

#[pymethods]
impl Remote {
    #[new]
    #[pyo3(signature = (address, export="", *, timeout=None, connections_max=4))]
    fn new(
        py: Python<'_>,
        address: &str,
        export: &str,
        timeout: Option<f64>,
        connections_max: usize,
    ) -> Result<Remote> {
        let target = Target {
            address: Address::of(address).map_err(config)?,
            export: export.into(),
            timeout: timeout.map(duration).transpose()?,
            connections_max: connections_max.max(1),
        };
        let opened = py.detach(|| Pool::open(target.clone(), on_signal));
        let pool = opened.map_err(|error| of_io(&target.address, error))?;
        let (size, read_only) = (pool.export.size, pool.export.read_only());
        let pool = Mutex::new(State::Open(Process::this(), Arc::new(pool)));
        Ok(Remote { target, size, read_only, pool })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.target.export
    }

    #[getter]
    fn address(&self) -> String {
        self.target.address.to_string()
    }

    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.read_only
    }

    /// Fills a buffer, and returns the bytes read: fewer than its length only at the end.
    #[pyo3(signature = (buffer, offset=0))]
    fn read_into(&self, buffer: &Bound<'_, PyAny>, offset: u64) -> Result<usize> {
        with_writable(buffer, |py, memory| {
            let memory = memory.first(self.size.saturating_sub(offset));
            self.run(py, Command::Read, offset, memory.len as u64, memory)?;
            Ok(memory.len)
        })
    }

    /// Reads up to `size` bytes.
    #[pyo3(signature = (size, offset=0))]
    fn read<'py>(&self, py: Python<'py>, size: u64, offset: u64) -> Result<Bound<'py, PyBytes>> {
        let size = size.min(self.size.saturating_sub(offset));
        new_bytes(py, size as usize, |memory| self.run(py, Command::Read, offset, size, memory))
    }

    /// Writes all bytes of a buffer, and returns their number.
    #[pyo3(signature = (data, offset=0))]
    fn write(&self, data: &Bound<'_, PyAny>, offset: u64) -> Result<usize> {
        with_readable(data, |py, memory| {
            self.change(py, Command::Write, offset, memory.len as u64, memory)?;
            Ok(memory.len)
        })
    }

    /// Makes all acknowledged writes durable.
    fn sync(&self, py: Python<'_>) -> Result<()> {
        let pool = self.pool(py)?;
        py.detach(|| pool.flush()).map_err(|error| self.failed(error))
    }

    /// Discards a range, which then reads as zeros.
    fn discard(&self, py: Python<'_>, offset: u64, length: u64) -> Result<()> {
        self.change(py, Command::Trim, offset, length, NONE)
    }

    /// Zeroes a range.
    fn zero(&self, py: Python<'_>, offset: u64, length: u64) -> Result<()> {
        self.change(py, Command::WriteZeroes, offset, length, NONE)
    }

    /// Ends this process's connections.
    fn close(&self, py: Python<'_>) {
        let state = std::mem::replace(&mut *self.lock(), State::Closed);
        if let State::Open(process, pool) = state {
            match process.is_this() {
                true => py.detach(|| pool.close()),
                false => leave(pool),
            }
        }
    }

    #[getter]
    fn closed(&self) -> bool {
        matches!(*self.lock(), State::Closed)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    /// Pickles the address: the other process connects by itself.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Arguments)> {
        let Target { address, export, timeout, connections_max } = &slf.get().target;
        let seconds = timeout.map(|timeout| timeout.as_secs_f64());
        let attach = slf.py().import("octavo")?.getattr("attach")?;
        Ok((attach, (address.to_string(), export.clone(), seconds, *connections_max)))
    }

    fn __repr__(&self) -> String {
        let Target { address, export, .. } = &self.target;
        format!("<octavo.Remote {export:?} at {address}, {} bytes>", self.size)
    }
}

/// The arguments of `attach`, in order.
type Arguments = (String, String, Option<f64>, usize);

const NONE: Memory = Memory { start: std::ptr::null_mut(), len: 0 };

impl Remote {
    fn failed(&self, error: std::io::Error) -> Failure {
        of_io(&self.target.address, error)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns this process's connections, and makes them in a child of `fork`.
    fn pool(&self, py: Python<'_>) -> Result<Arc<Pool>> {
        match &*self.lock() {
            State::Closed => return Err(Error::Closed { object: self.target.export.clone() }.into()),
            State::Open(process, pool) if process.is_this() => return Ok(pool.clone()),
            State::Open(..) => {}
        }
        let opened = py.detach(|| Pool::open(self.target.clone(), on_signal));
        let new = Arc::new(opened.map_err(|error| self.failed(error))?);
        if new.export.size != self.size {
            let (is, was) = (new.export.size, self.size);
            return Err(config(format!("the export has {is} bytes, and had {was}: attach to it again")));
        }
        let mut state = self.lock();
        // Another thread may have made them in the meantime.
        if let State::Open(process, pool) = &*state
            && process.is_this()
        {
            return Ok(pool.clone());
        }
        if let State::Open(_, inherited) =
            std::mem::replace(&mut *state, State::Open(Process::this(), new.clone()))
        {
            leave(inherited);
        }
        Ok(new)
    }

    fn run(&self, py: Python<'_>, command: Command, offset: u64, len: u64, memory: Memory) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let pool = self.pool(py)?;
        // SAFETY: the memory is lent for the call, or is new, and nothing has a reference to its
        // bytes.
        let ran = py.detach(move || unsafe { pool.run(command, offset, len, memory) });
        ran.map_err(|error| self.failed(error))
    }

    fn change(&self, py: Python<'_>, command: Command, offset: u64, len: u64, memory: Memory) -> Result<()> {
        let object = || self.target.export.clone();
        if self.read_only {
            return Err(Error::ReadOnly { object: object() }.into());
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            let (offset_bytes, len_bytes, end_bytes) = (offset, len, self.size);
            return Err(Error::PastEnd { object: object(), offset_bytes, len_bytes, end_bytes }.into());
        }
        self.run(py, command, offset, len, memory)
    }
}

/// Leaves a pool to the parent of `fork`. Its memory leaks: its locks may be held for good.
fn leave(pool: Arc<Pool>) {
    pool.leave_to_the_parent();
    std::mem::forget(pool);
}

/// Runs the handlers of signals, so that Ctrl-C ends a wait.
fn on_signal() -> std::io::Result<()> {
    Ok(Python::attach(|py| py.check_signals())?)
}

fn duration(seconds: f64) -> Result<Duration> {
    let wrong = || config(format!("timeout is {seconds}: seconds above 0 are needed"));
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}

/// Returns the names of a server's exports.
#[pyfunction]
#[pyo3(signature = (address, *, timeout=None))]
pub fn exports(py: Python<'_>, address: &str, timeout: Option<f64>) -> Result<Vec<String>> {
    let address = Address::of(address).map_err(config)?;
    let timeout = timeout.map(duration).transpose()?;
    py.detach(|| Connection::list(&address, timeout, on_signal)).map_err(|error| of_io(&address, error))
}
