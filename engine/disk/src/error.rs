//! The errors of this crate: [`OpenError`] for opening a store, with a variant for each thing that
//! the caller can do about it, and [`IoError`] for an I/O. Not here: retries (`io.rs`), the errors
//! that a client sees (the cache's matter).

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::op::Op;

/// The reason why a store could not be opened. Every variant names the path, or the name that the
/// caller gave the store.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// No file or device has this path.
    NotFound {
        /// The path of the store.
        path: PathBuf,
    },
    /// The path is a directory.
    IsDirectory {
        /// The path of the store.
        path: PathBuf,
    },
    /// The path is a pipe, a socket or a character device, which cannot be read by offset.
    NotAFileOrDevice {
        /// The path of the store.
        path: PathBuf,
    },
    /// The process has no permission to open the path in this mode, or the file system is mounted
    /// read-only.
    Permission {
        /// The path of the store.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The block device is set read-only (`blockdev --setro`), and the options ask for write
    /// access. Open it read-only, or make it writable (`blockdev --setrw`).
    ReadOnlyDevice {
        /// The path of the store.
        path: PathBuf,
    },
    /// The store is already open, in this process or another, and at least one of the two openers
    /// writes.
    Locked {
        /// The path of the store.
        path: PathBuf,
        /// The holder of the lock: this process and the path that it opened, or another process
        /// with its ID and name, as far as they are known.
        holder: String,
    },
    /// The options contradict each other, or what is to be opened cannot be a store.
    Invalid {
        /// The path or name of the store.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Any other error of the system, or of a back end.
    Io {
        /// The path of the store.
        path: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, why) = match self {
            OpenError::NotFound { path } => (path, "no such file or device".to_owned()),
            OpenError::IsDirectory { path } => {
                (path, "is a directory, not a file or block device".to_owned())
            }
            OpenError::NotAFileOrDevice { path } => {
                (path, "is neither a regular file nor a block device".to_owned())
            }
            OpenError::Permission { path, source } => (path, format!("no permission to open it: {source}")),
            OpenError::ReadOnlyDevice { path } => {
                let remedy = format!("`blockdev --setrw {}` makes it writable", path.display());
                (path, format!("this block device is set read-only; {remedy}"))
            }
            OpenError::Locked { path, holder } => (path, format!("is in use: held by {holder}")),
            OpenError::Invalid { path, reason } => (path, reason.clone()),
            OpenError::Io { path, step, source } => (path, format!("{step}: {source}")),
        };
        write!(f, "{}: {why}", path.display())
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

/// The reason why an I/O failed, wholly or in part. Cheap to clone, because every waiter of an I/O
/// gets a copy.
#[derive(Clone)]
pub struct IoError(Arc<Detail>);

struct Detail {
    store: String,
    op: Op,
    offset: u64,
    len_bytes: u64,
    errno: i32,
    reason: Option<Reason>,
}

/// The text of an error that explains more than its number does.
pub(crate) type Reason = Cow<'static, str>;

impl IoError {
    pub(crate) fn new(
        store: &str,
        op: Op,
        offset: u64,
        len_bytes: u64,
        errno: i32,
        reason: Option<Reason>,
    ) -> IoError {
        IoError(Arc::new(Detail { store: store.to_owned(), op, offset, len_bytes, errno, reason }))
    }

    /// Creates the error of a call on the store itself (a change of its length, a range) that the
    /// system refused with `source`.
    pub(crate) fn of_call(store: &str, op: Op, offset: u64, len_bytes: u64, source: &io::Error) -> IoError {
        let (errno, reason) = errno_and_reason(source);
        IoError::new(store, op, offset, len_bytes, errno, reason)
    }

    /// Returns the error's kind, as the standard library defines it.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.0.errno).kind()
    }

    /// Returns the system's error number. For errors of a simulated disk, and for requests that
    /// this crate refuses, it is the error number that fits best.
    pub fn errno(&self) -> i32 {
        self.0.errno
    }

    /// Returns the operation that failed.
    pub fn op(&self) -> Op {
        self.0.op
    }

    /// Returns the name of the store.
    pub fn store(&self) -> &str {
        &self.0.store
    }

    /// Returns the offset of the I/O in bytes; 0 for a sync.
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

/// Returns the error number that fits `error` best, and its text if the number does not tell it.
pub(crate) fn errno_and_reason(error: &io::Error) -> (i32, Option<Reason>) {
    if let Some(errno) = error.raw_os_error() {
        return (errno, None);
    }
    let errno = match error.kind() {
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::ReadOnlyFilesystem => libc::EROFS,
        io::ErrorKind::StorageFull => libc::ENOSPC,
        io::ErrorKind::QuotaExceeded => libc::EDQUOT,
        io::ErrorKind::FileTooLarge => libc::EFBIG,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::BrokenPipe => libc::EPIPE,
        io::ErrorKind::ConnectionReset => libc::ECONNRESET,
        io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        io::ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        io::ErrorKind::NotConnected => libc::ENOTCONN,
        io::ErrorKind::HostUnreachable => libc::EHOSTUNREACH,
        io::ErrorKind::NetworkUnreachable => libc::ENETUNREACH,
        io::ErrorKind::StaleNetworkFileHandle => libc::ESTALE,
        _ => libc::EIO,
    };
    (errno, Some(error.to_string().into()))
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
