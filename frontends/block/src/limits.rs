//! What a server grants to clients that it does not know.

use crate::Error;
use crate::executor::REQUEST_STATE_BYTES;
use crate::nbd::MESSAGE_BYTES;
use octavo::{Cache, Queue};
use std::time::Duration;

/// What a server grants. Beside its buffers, which are charged to the cache, a connection holds a
/// thread and about 128 bytes per request in flight: 16 KiB with the defaults. The kernel holds up
/// to 1 MiB of replies that the client of a unix socket has not read.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Clients at a time, or as many as there is [`room`](Limits::room) for; more are turned away.
    /// 64.
    pub connections_max: usize,
    /// A client has to enter transmission within this time, however slowly it sends. 10 s.
    pub handshake_time: Duration,
    /// A client that has said goodbye, or closed its sending side, gets this time to read the
    /// replies that are left. 10 s.
    pub goodbye_time: Duration,
    /// Options of one handshake; more end the connection. 256.
    pub options_max: u32,
    /// Data of one option; longer ones end the connection. 64 KiB. Options longer than
    /// `input_bytes` are answered with an error.
    pub option_max_bytes: u32,
    /// Longest read or write. 32 MiB.
    pub payload_max_bytes: u32,
    /// Requests in flight per connection, replies that the client has not read among them; the
    /// socket of a client that has as many is not read. 128.
    pub requests_max: usize,
    /// Requests and small payloads are received into a buffer of this length, charged to the cache.
    /// 16 KiB.
    pub input_bytes: usize,
    /// Every connection has a buffer of this length for payloads for itself, charged to the cache.
    /// 32 KiB.
    pub reserve_bytes: usize,
    /// Other buffers are borrowed from the cache while it has any, none longer than this. 256 KiB.
    pub piece_max_bytes: usize,
    /// And no more than this per connection. 4 MiB. A simple reply that is longer may have to be
    /// begun before all of its bytes are read; an error that comes later can then only end the
    /// connection.
    pub borrowed_max_bytes: usize,
    /// Whether TCP addresses other than the loopback's are listened on: NBD without TLS has no
    /// secrets. False.
    pub tcp_remote: bool,
    /// The mode of unix sockets. 0600.
    pub unix_mode: u32,
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
            tcp_remote: false,
            unix_mode: 0o600,
        }
    }
}

fn left_bytes(cache: &Cache) -> u64 {
    let stat = cache.stat();
    stat.buffers_max_bytes.saturating_sub(stat.buffers_used_bytes)
}

/// The protocol's default maximum; it asks servers not to take a payload up to this for an attack.
pub(crate) const PAYLOAD_BYTES: u32 = 32 << 20;

/// Identifiers of requests have 16 bits.
const REQUESTS_BOUND: usize = 1 << 15;

// A little more than 128, for the handle of the engine's buffer in a message is not ours.
const _: () = assert!(REQUEST_STATE_BYTES + MESSAGE_BYTES <= 144);

impl Limits {
    /// What a connection is charged, idle or not: its input, its reserve and its queue.
    fn connection_bytes(&self) -> u64 {
        let buffers = self.input_bytes.next_multiple_of(4096) + self.reserve_bytes.next_multiple_of(4096);
        buffers as u64 + Queue::CHARGED_BYTES
    }

    /// How many clients the cache has memory for: three quarters of what is left now of its share
    /// for buffers.
    pub fn room(&self, cache: &Cache) -> usize {
        (left_bytes(cache) / 4 * 3 / self.connection_bytes()) as usize
    }

    /// What so many clients leave to be lent. An eighth is for others that make calls: control
    /// clients, the cleaner.
    pub(crate) fn lendable_bytes(&self, cache: &Cache, connections: usize) -> usize {
        let left = left_bytes(cache) / 8 * 7;
        left.saturating_sub(connections as u64 * self.connection_bytes()) as usize
    }

    /// Names the first limit under which a server could not work.
    pub fn validate(&self) -> Result<(), Error> {
        let checks = [
            (self.connections_max > 0, "connections_max is 0"),
            (self.options_max > 0, "options_max is 0"),
            ((1..=REQUESTS_BOUND).contains(&self.requests_max), "requests_max is not between 1 and 32768"),
            (self.input_bytes >= 8192, "input_bytes is less than 8192: an export's name has to fit"),
            (self.reserve_bytes >= 4096, "reserve_bytes is less than 4096"),
            (self.piece_max_bytes >= 4096, "piece_max_bytes is less than 4096"),
            (self.payload_max_bytes >= 4096, "payload_max_bytes is less than 4096"),
            (self.unix_mode & !0o777 == 0, "unix_mode has bits beside 0777"),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            Some((_, wrong)) => Err(Error::Limits { reason: wrong.into() }),
            None => Ok(()),
        }
    }
}
