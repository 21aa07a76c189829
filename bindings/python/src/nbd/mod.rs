//! A client of NBD servers: the fixed newstyle handshake and simple replies, by unix sockets and
//! TCP. Each request has a connection to itself while it runs, so that a reply goes straight to its
//! caller's memory, in one system call with its header.
//!
//! The protocol: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.
//!
//! Not here: Python (`remote.rs`), TLS.

mod address;
mod connection;
mod pool;
mod stream;

pub use address::Address;
pub use connection::{Command, Connection};
pub use pool::{Pool, Target};
