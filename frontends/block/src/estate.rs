//! What a server leaves to its successor in another process: its listening sockets, and the
//! connections of NBD clients that wait between two requests.
//!
//! - **S4** A server that leaves sets `leaving` of a connection, then wakes its thread. The thread
//!   looks at `leaving` before each wait. It starts no further request, completes those in flight,
//!   sends their replies, and then ends with the connection's state instead of closing it.
//!
//! Not here: how descriptors reach another process.

use crate::address::Address;
use std::os::fd::OwnedFd;

/// What a server leaves to its successor.
#[derive(Debug, Default)]
pub struct Estate {
    /// Its listening sockets. Clients that connect meanwhile wait in their queues.
    pub listeners: Vec<HeldListener>,
    /// Its NBD clients. Their further requests wait in their sockets.
    pub clients: Vec<HeldClient>,
}

/// A listening socket that no process accepts clients at.
#[derive(Debug)]
pub struct HeldListener {
    /// Where it listens.
    pub address: Address,
    /// The socket.
    pub socket: OwnedFd,
}

/// An NBD client between two requests.
#[derive(Debug)]
pub struct HeldClient {
    /// Its socket.
    pub socket: OwnedFd,
    /// What it has agreed with the server, and sent.
    pub state: ClientState,
}

/// The state of an NBD client between two requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientState {
    /// Names the client in messages: its address.
    pub who: String,
    /// The export that it has chosen.
    pub export: String,
    /// Whether it was told that the export is read-only.
    pub read_only: bool,
    /// The export's length when it left.
    pub len_bytes: u64,
    /// The form of its requests and replies: 0 simple, 1 structured, 2 extended.
    pub headers: u8,
    /// The metadata contexts that it has selected, a bit each.
    pub contexts: u8,
    /// Bytes that it has sent and that were not parsed: the beginning of its next requests.
    pub unread: Vec<u8>,
}
