//! Block protocols in front of an Octavo cache. Today: NBD.
//!
//! Each line of this table imports only from the lines below it:
//!
//! | file | idea |
//! |---|---|
//! | `server` | listeners, the threads of connections, shutdown |
//! | `nbd/` | the NBD protocol: bytes become requests, events become bytes |
//! | `executor` | requests become batches for the cache, completions become events (E1 to E3) |
//! | `buffers` | the memory of a connection: a reserve, and loans from the cache |
//! | `export` | the served objects, which come and go, and the counts of their requests |
//! | `connection` | what a server shares with the thread of a connection (S1, S2) |
//! | `socket`, `spin` | listeners and sockets; a short busy wait before a sleep |
//! | `request`, `limits`, `journal` | neutral requests and events; limits for clients; the log |
//! | `error`, `address` | the errors of this crate; the addresses of listeners |
//!
//! A further protocol gets its own module beside `nbd`, and never accesses the cache itself. No
//! code here reads the environment, and no code is `unsafe`.
//!
//! # Examples
//! ```no_run
//! use octavo::{Cache, CacheConfig, PartitionConfig, disk};
//! use octavo_block::{Export, Limits, Server};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new(CacheConfig::default())?;
//! let disk = disk::Store::open("disk.img".as_ref(), &disk::OpenOptions::default())?;
//! let object = cache.partition(PartitionConfig::new("vm"))?.open(disk, "disk")?;
//! let export = Export { name: "disk".into(), description: "".into(), object, read_only: false };
//! let listen = ["unix:/run/disk.sock".parse()?];
//! let server = Server::start(cache, vec![export], &listen, Limits::default())?;
//! // ... and at the end:
//! server.shutdown(std::time::Duration::from_secs(5));
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod address;
mod buffers;
mod connection;
mod error;
mod executor;
mod export;
mod journal;
mod limits;
mod nbd;
mod request;
mod server;
mod socket;
mod spin;

pub use address::Address;
pub use error::Error;
pub use export::{Export, ExportStat, Kind};
pub use limits::Limits;
pub use server::{Retired, Server, Traffic};
pub use socket::SocketPath;
