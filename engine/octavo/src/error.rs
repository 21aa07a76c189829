//! What can go wrong, sorted by what the caller can do about it.

use octavo_disk::IoError;

/// Why a call failed. A variant per thing that the caller can do about it; front ends translate it
/// to their own codes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The store failed. The source names the store, the operation and the offset; the bytes of a
    /// failed write are unknown in the store, those of a failed write-back are still in the
    /// cache.
    Io {
        /// The object.
        object: String,
        /// What the store said.
        source: IoError,
    },
    /// The request reaches past the object's end. Lengthen the object first (`set_len_bytes`).
    PastEnd {
        /// The object.
        object: String,
        /// Where the request starts.
        offset_bytes: u64,
        /// How long it is.
        len_bytes: u64,
        /// Where the object ends.
        end_bytes: u64,
    },
    /// The object was opened read-only.
    ReadOnly {
        /// The object.
        object: String,
    },
    /// A sync of the store failed, after which nobody knows what it holds: every later sync fails
    /// until the object is opened again.
    Failed {
        /// The object.
        object: String,
    },
    /// A bound on memory leaves no room. Raise it, or make do with less: fewer queues and buffers,
    /// smaller partitions.
    NoMemory {
        /// What needs it.
        what: String,
        /// How much it needs.
        wanted_bytes: u64,
        /// How much is free.
        left_bytes: u64,
        /// The bound: `memory_max` or, for I/O rings, bounce pages and other buffers,
        /// `buffers_max`, a part of it.
        bound: &'static str,
        /// Its value.
        bound_bytes: u64,
    },
    /// The object was closed.
    Closed {
        /// The object.
        object: String,
    },
    /// The calling process is a child that was forked from the one that made the cache. Call the
    /// cache in the parent, or make another one in the child.
    Forked,
    /// A value that the cache cannot work with.
    Config(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Io { object, source } => write!(f, "{object}: {source}"),
            Error::PastEnd { object, offset_bytes, len_bytes, end_bytes } => {
                write!(f, "{object}: {len_bytes} bytes at {offset_bytes} reach past the end at {end_bytes}")
            }
            Error::ReadOnly { object } => write!(f, "{object}: opened read-only"),
            Error::Failed { object } => {
                write!(f, "{object}: an earlier sync of the store failed; open it again after checking it")
            }
            Error::NoMemory { what, wanted_bytes, left_bytes, bound, bound_bytes } => {
                let [wanted, left, most] = [wanted_bytes, left_bytes, bound_bytes].map(|bytes| Bytes(*bytes));
                write!(f, "{what} needs {wanted}, but only {left} of {bound} = {most} are free")
            }
            Error::Closed { object } => write!(f, "{object}: closed"),
            Error::Forked => f.write_str(
                "this process was forked from the one that made the cache, and has neither its threads nor its I/O rings: make a cache of its own here",
            ),
            Error::Config(message) => f.write_str(message),
        }
    }
}

/// A number of bytes, in the largest unit that it is a multiple of.
struct Bytes(u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.iter().find(|(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
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
