//! The errors of the cache, one variant per thing that the caller can do about it. Not here:
//! error codes of protocols and of the operating system (front ends translate).

use octavo_disk::IoError;
use octavo_share::Bytes;

/// Why a call failed. Each variant stands for one thing that the caller can do about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The store failed. `source` names the store, the operation and the offset. After a failed
    /// write the store's bytes in that range are unknown; pages of a failed write-back are still
    /// in the cache.
    Io {
        /// The object's name.
        object: String,
        /// The store's error.
        source: IoError,
    },
    /// The request reaches past the object's end. Lengthen the object first (`set_len_bytes`).
    PastEnd {
        /// The object's name.
        object: String,
        /// Offset of the request, in bytes.
        offset_bytes: u64,
        /// Length of the request, in bytes.
        len_bytes: u64,
        /// Length of the object, in bytes.
        end_bytes: u64,
    },
    /// The object was opened read-only. Open its store for writing.
    ReadOnly {
        /// The object's name.
        object: String,
    },
    /// An earlier sync of the store failed, so the contents of the store are unknown. Every later
    /// sync fails, and so does [`Object::close`](crate::Object::close):
    /// [`Object::abandon`](crate::Object::abandon) closes the object, and then the store can be
    /// opened again. Reads and writes of the cache go on meanwhile.
    Failed {
        /// The object's name.
        object: String,
    },
    /// A memory limit leaves no room. Raise the limit, or need less memory: fewer queues and
    /// buffers, smaller partitions.
    NoMemory {
        /// What needs the memory.
        what: String,
        /// Bytes needed.
        wanted_bytes: u64,
        /// Bytes free.
        left_bytes: u64,
        /// The limit: `memory_max`, or its part `buffers_max` for I/O rings, bounce pages and
        /// other buffers.
        bound: &'static str,
        /// Value of the limit, in bytes.
        bound_bytes: u64,
    },
    /// The object was closed. Open its store again.
    Closed {
        /// The object's name.
        object: String,
    },
    /// The calling process is a child of `fork`; its parent created the cache. Call the cache in
    /// the parent, or create another one in the child.
    Forked,
    /// An argument or a configuration value is invalid, or the system refused a resource. The
    /// sentence says which, and what is allowed.
    Config(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Io { object, source } => write!(f, "{object}: {source}"),
            Error::PastEnd { object, offset_bytes, len_bytes, end_bytes } => {
                write!(f, "{object}: {len_bytes} bytes at offset {offset_bytes} reach past its end at {end_bytes}")
            }
            Error::ReadOnly { object } => write!(f, "{object}: cannot change it: its store was opened read-only"),
            Error::Failed { object } => {
                write!(
                    f,
                    "{object}: an earlier sync of its store failed: check the store, abandon the object, then \
                     open the store again"
                )
            }
            Error::NoMemory { what, wanted_bytes, left_bytes, bound, bound_bytes } => {
                let [wanted, left, most] = [wanted_bytes, left_bytes, bound_bytes].map(|bytes| Bytes(*bytes));
                write!(f, "{what} needs {wanted}, but only {left} of {bound} = {most} are free")?;
                // In whole KiB: a size that people write.
                let least = bound_bytes.saturating_sub(*left_bytes).saturating_add(*wanted_bytes);
                write!(f, ": {bound} must be at least {}", Bytes(least.div_ceil(1 << 10) << 10))
            }
            Error::Closed { object } => write!(f, "{object}: the object was closed"),
            Error::Forked => f.write_str(
                "this process is a child of fork and has neither the cache's threads nor its I/O rings: call the cache in the parent, or create another one here",
            ),
            Error::Config(message) => f.write_str(message),
        }
    }
}

impl From<Error> for std::io::Error {
    /// Keeps the error as the source, under the kind that callers of files expect: that of the
    /// system's error for [`Error::Io`], `UnexpectedEof` for [`Error::PastEnd`],
    /// `ReadOnlyFilesystem`, `OutOfMemory`, `NotConnected` for [`Error::Closed`], `InvalidInput`
    /// for [`Error::Config`], `Unsupported` for [`Error::Forked`], else `Other`.
    ///
    /// # Examples
    /// ```
    /// let error = std::io::Error::from(octavo::Error::Closed { object: "disk".into() });
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
    /// assert_eq!(error.to_string(), "disk: the object was closed");
    /// ```
    fn from(error: Error) -> std::io::Error {
        use std::io::ErrorKind;
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::PastEnd { .. } => ErrorKind::UnexpectedEof,
            Error::ReadOnly { .. } => ErrorKind::ReadOnlyFilesystem,
            Error::NoMemory { .. } => ErrorKind::OutOfMemory,
            Error::Closed { .. } => ErrorKind::NotConnected,
            Error::Config(_) => ErrorKind::InvalidInput,
            Error::Forked => ErrorKind::Unsupported,
            Error::Failed { .. } => ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
