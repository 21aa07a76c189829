//! What can go wrong, by what the caller can do about it: [`OpenError`] for opening a store,
//! [`IoError`] for an I/O. Not here: retries (`io.rs`) and which errors a client sees (the engine's
//! matter).

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::io::Op;

/// Why a store could not be opened. Every variant names the path.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing has this path.
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path is a directory.
    IsDirectory {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path is a pipe, a socket, a character device: nothing that can be read by offset.
    NotAFileOrDevice {
        /// The path asked for.
        path: PathBuf,
    },
    /// The process may not open the path this way (permissions, or a file system mounted
    /// read-only).
    Permission {
        /// The path asked for.
        path: PathBuf,
        /// The system's own words.
        source: io::Error,
    },
    /// The block device is set read-only (`blockdev --setro`), and was to be written. Open it
    /// read-only, or make it writable.
    ReadOnlyDevice {
        /// The path asked for.
        path: PathBuf,
    },
    /// The store is in use, here or in another process, and one of the two sides would write.
    Locked {
        /// The path asked for.
        path: PathBuf,
        /// Who has it: a path opened by this process, another process, or all that is known.
        holder: String,
    },
    /// Anything else that the system refused.
    Io {
        /// The path asked for.
        path: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The system's own words.
        source: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotFound { path } => write!(f, "{}: no such file or device", path.display()),
            OpenError::IsDirectory { path } => {
                write!(f, "{}: is a directory, not a file or block device", path.display())
            }
            OpenError::NotAFileOrDevice { path } => {
                write!(f, "{}: is neither a regular file nor a block device", path.display())
            }
            OpenError::Permission { path, source } => {
                write!(f, "{}: may not be opened: {source}", path.display())
            }
            OpenError::ReadOnlyDevice { path } => {
                let path = path.display();
                write!(
                    f,
                    "{path}: this block device is set read-only; `blockdev --setrw {path}` makes it writable"
                )
            }
            OpenError::Locked { path, holder } => {
                write!(f, "{}: is in use: held by {holder}", path.display())
            }
            OpenError::Io { path, step, source } => write!(f, "{}: {step}: {source}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Permission { source, .. } | OpenError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why an I/O did not happen, or not wholly. Cheap to clone, because every waiter of an I/O gets
/// one.
#[derive(Clone)]
pub struct IoError(Arc<Detail>);

struct Detail {
    store: String,
    op: Op,
    offset: u64,
    len_bytes: u64,
    errno: i32,
    reason: Option<&'static str>,
}

impl IoError {
    pub(crate) fn new(
        store: &str,
        op: Op,
        offset: u64,
        len_bytes: u64,
        errno: i32,
        reason: Option<&'static str>,
    ) -> IoError {
        IoError(Arc::new(Detail { store: store.to_owned(), op, offset, len_bytes, errno, reason }))
    }

    /// The same for a call on the store itself (its length, a range) that the system refused.
    pub fn of_call(store: &str, op: Op, offset: u64, len_bytes: u64, source: &io::Error) -> IoError {
        IoError::new(store, op, offset, len_bytes, source.raw_os_error().unwrap_or(libc::EIO), None)
    }

    /// The kind, in the standard library's words.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.0.errno).kind()
    }

    /// The system's error number; simulated disks and refusals of this crate use the nearest one.
    pub fn errno(&self) -> i32 {
        self.0.errno
    }

    /// The operation that failed.
    pub fn op(&self) -> Op {
        self.0.op
    }

    /// The name of the store.
    pub fn store(&self) -> &str {
        &self.0.store
    }

    /// Where the I/O began, in bytes; 0 for a sync.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Detail { store, op, offset, len_bytes, errno, reason } = &*self.0;
        match op {
            Op::Sync => write!(f, "{store}: sync: ")?,
            Op::Read => write!(f, "{store}: read of {len_bytes} bytes at {offset}: ")?,
            Op::Write => write!(f, "{store}: write of {len_bytes} bytes at {offset}: ")?,
            Op::Zero => write!(f, "{store}: zeroing of {len_bytes} bytes at {offset}: ")?,
            Op::Discard => write!(f, "{store}: discard of {len_bytes} bytes at {offset}: ")?,
        }
        match reason {
            Some(reason) => f.write_str(reason),
            None => write!(f, "{}", io::Error::from_raw_os_error(*errno)),
        }
    }
}

impl fmt::Debug for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoError({self})")
    }
}

impl std::error::Error for IoError {}

impl From<IoError> for io::Error {
    fn from(error: IoError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
