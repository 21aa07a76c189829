//! Block protocols in front of an Octavo cache.
//!
//! | file | idea |
//! |---|---|
//! | `request` | what a block protocol asks for, in words that belong to none |
//! | `executor`, `buffers` | requests become batches of the cache's queue, within the memory that there is |
//! | `nbd` | the NBD protocol: bytes to requests, events to bytes |
//! | `server`, `socket`, `export`, `limits`, `journal` | listeners, threads, names, bounds on strangers, the log |
//!
//! A further protocol brings its own module beside `nbd`; it never looks into the cache. Nothing
//! here reads the environment, and nothing is `unsafe`.
//!
//! ```no_run
//! use octavo::{Cache, CacheConfig, PartitionConfig, disk};
//! use octavo_block::{Export, Limits, Server};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new(CacheConfig::default())?;
//! let disk = disk::Store::open("disk.img".as_ref(), &disk::OpenOptions::default())?;
//! let object = cache.partition(PartitionConfig::new("vm"))?.open(disk, "disk")?;
//! let export = Export { name: "disk".into(), description: "".into(), object, read_only: false };
//! let server = Server::start(cache, vec![export], &["unix:/run/disk.sock".parse()?], Limits::default())?;
//! // ... until it is told to end:
//! server.shutdown(std::time::Duration::from_secs(5));
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod buffers;
mod executor;
mod export;
mod journal;
mod limits;
mod nbd;
mod request;
mod server;
mod socket;
mod spin;

pub use export::{Export, ExportStat, Kind};
pub use limits::Limits;
pub use server::{Server, Traffic};
pub use socket::{Address, SocketPath};

use std::fmt;

/// Why a server did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An address that cannot be listened on.
    Address {
        /// As it was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The system did not let us listen.
    Listen {
        /// Where.
        address: Address,
        /// Why.
        source: std::io::Error,
    },
    /// An export that cannot be served.
    Export {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A limit under which nothing works.
    Limits {
        /// Which, and why.
        reason: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Address { address, reason } => write!(f, "address {address:?}: {reason}"),
            Error::Listen { address, source } => write!(f, "cannot listen at {address}: {source}"),
            Error::Export { name, reason } => write!(f, "export {name:?}: {reason}"),
            Error::Limits { reason } => write!(f, "limits: {reason}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Listen { source, .. } => Some(source),
            _ => None,
        }
    }
}
