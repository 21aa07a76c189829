//! Block protocols in front of an Octavo cache: NBD and vhost-user.
//!
//! Each line of this table imports only from the lines below it:
//!
//! | file | idea |
//! |---|---|
//! | `server` | listeners, the threads of connections, shutdown |
//! | `nbd/` | the NBD protocol: bytes become requests, events become bytes |
//! | `vhost/` | the vhost-user protocol: rings in a guest's memory become operations of the cache |
//! | `executor` | requests become batches for the cache, completions become events (E1 to E3) |
//! | `buffers` | the memory of a connection: a reserve, and loans from the cache |
//! | `export` | the served objects, which come and go, and the counts of their requests |
//! | `latency` | how long requests take: a clock, and histograms |
//! | `connection` | what a server shares with the thread of a connection (S1, S2) |
//! | `socket`, `spin` | listeners and sockets; a short busy wait before a sleep |
//! | `request`, `limits`, `journal` | neutral requests and events; limits for clients; the log |
//! | `tls`, `validity` | the certificates of a server |
//! | `estate` | what a server leaves to its successor (S4) |
//! | `error`, `address` | the errors of this crate; the addresses of listeners |
//!
//! A further protocol gets its own module beside these. NBD copies bytes to a socket and needs
//! buffers, which the executor gives it; the pages of a vhost-user disk go straight to the guest's
//! memory. No code here reads the environment. Only `vhost/fault.rs` and `vhost/memory.rs` have
//! `unsafe` code, for memory that is not the process's own.
//!
//! # Examples
//! ```no_run
//! use octavo::{Cache, CacheConfig, PartitionConfig, disk};
//! use octavo_block::{Export, Limits, Server};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new(CacheConfig::default())?;
//! let disk = disk::Store::open("disk.img".as_ref(), &disk::OpenOptions::default())?;
//! let object = cache.partition(PartitionConfig::new("vm"))?.open(disk, "disk")?;
//! let (name, description) = ("disk".into(), String::new());
//! let export = Export { name, description, object, read_only: false, is_listed: true };
//! let listen = ["unix:/run/disk.sock".parse()?];
//! let server = Server::start(cache, vec![export], &listen, Limits::default())?;
//! // ... and at the end:
//! server.shutdown(std::time::Duration::from_secs(5));
//! # Ok(()) }
//! ```

#![deny(unsafe_code)]

mod address;
mod buffers;
mod connection;
mod error;
mod estate;
mod executor;
mod export;
mod journal;
mod latency;
mod limits;
mod nbd;
mod request;
mod server;
mod socket;
mod spin;
mod tls;
mod validity;
mod vhost;

pub use address::Address;
pub use error::{Error, TlsPart};
pub use estate::{ClientState, Estate, HeldClient, HeldListener};
pub use export::{Export, ExportStat, Kind};
pub use latency::{Class, Histogram};
pub use limits::Limits;
pub use server::{Retired, Server, Traffic};
pub use socket::SocketPath;
pub use tls::{Pem, Tls};
pub use validity::Validity;
pub use vhost::VhostSettings;
#[doc(hidden)]
pub use vhost::fuzzing;
