//! The engine's errors as those of the system.

use octavo::Error;
use rustix::io::Errno;

/// Returns what a program gets for an error of the engine.
pub fn errno_of(error: &Error) -> Errno {
    match error {
        Error::Io { source, .. } => Errno::from_raw_os_error(source.errno()),
        Error::ReadOnly { .. } => Errno::ROFS,
        Error::NoMemory { .. } => Errno::NOMEM,
        Error::Config(_) => Errno::INVAL,
        _ => Errno::IO,
    }
}
