//! [`Limits`]: the bounds on what the clients of a server can use.

use crate::error::Error;
use octavo::{Cache, Queue};
use std::time::Duration;

/// The limits of a server.
///
/// A connection uses buffers, which are charged to the cache, a thread, and about 150 bytes per
/// request in flight: 19 KiB with the defaults. The kernel holds up to 1 MiB of replies that the
/// client of a unix socket has not read.
///
/// A client that uses TLS takes up to 160 KiB more, which are not charged: 32 KiB for received
/// records, 34 KiB to decrypt one, 66 KiB for records that the client has not read yet, and the
/// session.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most clients that are connected at a time. [`room`](Limits::room) bounds it too. Further
    /// clients are disconnected. Default: 64.
    pub connections_max: usize,
    /// The most time for the handshake, however slowly the client sends. Default: 10 s.
    pub handshake_time: Duration,
    /// The time that a client gets to read its last replies after its goodbye, or after it closed
    /// its sending side. Default: 10 s.
    pub goodbye_time: Duration,
    /// The most options of one handshake. A further option ends the connection. Default: 256.
    pub options_max: u32,
    /// The longest data of one option. Longer data end the connection. Data within this limit but
    /// longer than `input_bytes` are answered with an error. Default: 64 KiB.
    pub option_max_bytes: u32,
    /// The longest read or write. Default: 32 MiB.
    pub payload_max_bytes: u32,
    /// The most requests in flight per connection, including those whose replies the client has not
    /// read. At this limit, the server does not read the client's socket. Default: 128.
    pub requests_max: usize,
    /// The length of a connection's buffer for requests and small payloads, charged to the cache.
    /// Default: 16 KiB.
    pub input_bytes: usize,
    /// The length of a connection's reserve, a buffer for payloads, charged to the cache. Default:
    /// 32 KiB.
    pub reserve_bytes: usize,
    /// The longest buffer that a connection borrows from the cache. Default: 256 KiB.
    pub piece_max_bytes: usize,
    /// The most bytes that a connection borrows from the cache. A simple reply that is longer may
    /// begin before all of its bytes are read. If the read then fails, the server can only end the
    /// connection. Default: 4 MiB.
    pub borrowed_max_bytes: usize,
    /// The file mode of unix sockets. Default: 0600.
    pub unix_mode: u32,
    /// The group of unix sockets. Default: that of the process.
    pub unix_group: Option<u32>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 64,
            handshake_time: Duration::from_secs(10),
            goodbye_time: Duration::from_secs(10),
            options_max: 256,
            option_max_bytes: 64 << 10,
            payload_max_bytes: PAYLOAD_BYTES,
            requests_max: 128,
            input_bytes: 16 << 10,
            reserve_bytes: 32 << 10,
            piece_max_bytes: 256 << 10,
            borrowed_max_bytes: 4 << 20,
            unix_mode: 0o600,
            unix_group: None,
        }
    }
}

fn left_bytes(cache: &Cache) -> u64 {
    let stat = cache.stat();
    stat.buffers_max_bytes.saturating_sub(stat.buffers_used_bytes)
}

/// The default maximum of a payload in the NBD document, which asks servers not to treat a payload
/// of up to this length as an attack.
pub(crate) const PAYLOAD_BYTES: u32 = 32 << 20;

/// The longest name and description of an export, and the longest string of the NBD document.
pub(crate) const NAME_MAX_BYTES: usize = 4096;

/// The most requests in flight per connection: an identifier has 16 bits.
const REQUESTS_BOUND: usize = 1 << 15;

impl Limits {
    /// Returns the bytes that the cache charges for every connection, idle or not: its input, its
    /// reserve and its queue.
    fn connection_bytes(&self) -> u64 {
        let buffers = self.input_bytes.next_multiple_of(4096) + self.reserve_bytes.next_multiple_of(4096);
        buffers as u64 + Queue::CHARGED_BYTES
    }

    /// Returns the number of clients whose memory fits in three quarters of the cache's free buffer
    /// share.
    pub fn room(&self, cache: &Cache) -> usize {
        (left_bytes(cache) / 4 * 3 / self.connection_bytes()) as usize
    }

    /// Returns the bytes that are left for loans after this number of connections has its memory.
    /// An eighth of the free buffer share stays for other callers: control clients, the cleaner.
    pub(crate) fn lendable_bytes(&self, cache: &Cache, connections: usize) -> usize {
        let left = left_bytes(cache) / 8 * 7;
        left.saturating_sub(connections as u64 * self.connection_bytes()) as usize
    }

    /// Checks that a server can work with these limits.
    ///
    /// # Errors
    /// [`Error::Limits`], which names the first wrong limit and its bound.
    ///
    /// # Examples
    /// ```
    /// use octavo_block::Limits;
    /// assert!(Limits::default().validate().is_ok());
    /// assert!(Limits { requests_max: 0, ..Limits::default() }.validate().is_err());
    /// ```
    pub fn validate(&self) -> Result<(), Error> {
        let checks = [
            (self.connections_max > 0, "connections_max is 0; at least 1 is needed"),
            (self.options_max > 0, "options_max is 0; at least 1 is needed"),
            ((1..=REQUESTS_BOUND).contains(&self.requests_max), "requests_max is not between 1 and 32768"),
            (self.input_bytes >= 8192, "input_bytes is less than 8192, and must hold an export's name"),
            (self.reserve_bytes >= 4096, "reserve_bytes is less than 4096"),
            (self.piece_max_bytes >= 4096, "piece_max_bytes is less than 4096"),
            (self.payload_max_bytes >= 4096, "payload_max_bytes is less than 4096"),
            (self.unix_mode & !0o777 == 0, "unix_mode has bits outside 0777"),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            Some((_, wrong)) => Err(Error::Limits { reason: wrong.into() }),
            None => Ok(()),
        }
    }
}
