//! Errors of the engine as exceptions of Python. The classes are Python's own
//! (`python/octavo/_errors.py`), because most of them have two bases.

use octavo::Error;
use octavo::disk::OpenError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A result that becomes an exception at the border to Python.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a call failed, without the GIL.
#[derive(Debug)]
pub enum Failure {
    /// The engine's error.
    Engine(Error),
    /// A store that cannot be opened.
    Open(OpenError),
    /// An exception that exists already.
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Engine(error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::Open(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure {
            Failure::Python(error) => error,
            Failure::Engine(error) => of_engine(&error),
            Failure::Open(error) => of_open(&error),
        }
    }
}

/// The exception of a configuration that cannot be.
pub fn config(sentence: String) -> Failure {
    Failure::Engine(Error::Config(sentence))
}

fn of_engine(error: &Error) -> PyErr {
    let sentence = error.to_string();
    match error {
        Error::Io { source, .. } => exception("IoError", Some(source.errno()), sentence),
        Error::PastEnd { .. } => exception("PastEndError", None, sentence),
        Error::ReadOnly { .. } => exception("ReadOnlyError", Some(libc::EROFS), sentence),
        Error::Failed { .. } => exception("IoError", Some(libc::EIO), sentence),
        Error::NoMemory { .. } => exception("NoMemoryError", None, sentence),
        Error::Closed { .. } => exception("ClosedError", None, sentence),
        Error::Forked => exception("ForkedError", None, sentence),
        _ => exception("ConfigError", None, sentence),
    }
}

/// Files that are missing or forbidden raise what `open` raises.
fn of_open(error: &OpenError) -> PyErr {
    let errno = match error {
        OpenError::NotFound { .. } => libc::ENOENT,
        OpenError::Permission { .. } => libc::EACCES,
        OpenError::IsDirectory { .. } => libc::EISDIR,
        OpenError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => return exception("ConfigError", None, error.to_string()),
    };
    PyOSError::new_err((errno, error.to_string()))
}

/// The exception of a connection to `place` that failed. An exception that a signal handler raised
/// comes out as it was.
pub fn of_io(place: &impl std::fmt::Display, error: std::io::Error) -> Failure {
    if error.get_ref().is_some_and(|inner| inner.is::<PyErr>()) {
        return Failure::Python(error.into());
    }
    let errno = error.raw_os_error().or_else(|| errno_of(error.kind())).unwrap_or(libc::EIO);
    Failure::Python(exception("IoError", Some(errno), format!("{place}: {error}")))
}

/// The error numbers of the errors that have none of the system.
fn errno_of(kind: std::io::ErrorKind) -> Option<i32> {
    Some(match kind {
        std::io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        std::io::ErrorKind::ConnectionReset => libc::ECONNRESET,
        std::io::ErrorKind::NotFound => libc::ENOENT,
        std::io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => return None,
    })
}

/// Makes an exception of the class `octavo.NAME`.
fn exception(name: &str, errno: Option<i32>, sentence: String) -> PyErr {
    static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Python::attach(|py| {
        let make = || {
            let classes = CLASSES.get_or_try_init(py, || py.import("octavo._errors").map(Bound::unbind))?;
            let class = classes.bind(py).getattr(name)?;
            match errno {
                Some(errno) => class.call1((errno, &sentence)),
                None => class.call1((&sentence,)),
            }
        };
        make().map_or_else(|error| error, PyErr::from_value)
    })
}
