//! [`Address`]: where a server listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The address of a listener: `unix:/run/octavo.sock` or `tcp:127.0.0.1:10809`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The path of a unix socket.
    Unix(PathBuf),
    /// An IP address and a port. With port 0, the system chooses a port.
    Tcp(SocketAddr),
}

impl Address {
    /// Returns whether clients reach the address from other machines: TCP, and not loopback.
    pub fn is_remote(&self) -> bool {
        matches!(self, Address::Tcp(address) if !address.ip().is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
