//! [`StubConfig`]: settings of a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a [`Stub`](crate::Stub).
#[derive(Clone, Debug)]
pub struct StubConfig {
    /// The address to listen at. Default: a free port of 127.0.0.1.
    pub listen: SocketAddr,
    /// A directory whose files are the objects: the first part of a path is the bucket. Default:
    /// `None`, objects are in memory.
    pub directory: Option<PathBuf>,
    /// Whether every version of an object has an identifier and is kept, as in a bucket with
    /// versioning. Default: false.
    pub version_ids: bool,
    /// How long every answer to a HEAD, GET or listing is held back. Default: zero.
    pub first_byte: Duration,
    /// Threads that serve requests. Default: 1.
    pub threads: usize,
}

impl Default for StubConfig {
    fn default() -> StubConfig {
        StubConfig {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            directory: None,
            version_ids: false,
            first_byte: Duration::ZERO,
            threads: 1,
        }
    }
}
