//! The engine's errors as those of the system.

use octavo::Error;
use octavo::disk::OpenError;
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

/// Returns what a program gets for a store that cannot be opened.
pub fn errno_of_open(error: &OpenError) -> Errno {
    let OpenError::Io { source, .. } = error else { return Errno::IO };
    match source.raw_os_error() {
        // The descriptors are the server's, not the program's.
        Some(libc::EMFILE | libc::ENFILE) => Errno::NFILE,
        Some(libc::ENOMEM) => Errno::NOMEM,
        _ => Errno::IO,
    }
}

/// The same for a change of length.
pub fn length_errno(error: &Error) -> Errno {
    match error {
        Error::Config(_) => Errno::FBIG,
        other => errno_of(other),
    }
}
