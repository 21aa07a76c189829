//! The NBD protocol: [`serve`] runs one connection, from its greeting to its end.
//!
//! The reference is the protocol document (doc/proto.md of NetworkBlockDevice/nbd). `wire` encodes
//! and decodes messages, `handshake` negotiates an export, `transmission` serves it, `outgoing`
//! sends the replies, `status` describes data and holes, `input` holds received bytes, and
//! `channel` encrypts and decrypts all bytes of a client that uses TLS. Not here: listeners and
//! threads (`server.rs`).

mod channel;
mod handshake;
mod input;
mod outgoing;
mod status;
mod transmission;
mod wire;

use crate::buffers::{Buffers, Loans};
use crate::connection::{Connection, Hangup};
use crate::executor::{BATCH_READ_BYTES, Executor, REQUEST_STATE_BYTES};
use crate::export::Exports;
use crate::journal::Journal;
use crate::limits::Limits;
use crate::tls::Security;
use channel::Channel;
use input::Input;
use octavo::{Buffer, Cache};
use outgoing::MESSAGE_BYTES;
use std::sync::Arc;

// `Limits` promises about 150 bytes per request in flight. The handle of the cache's buffer, which
// a message contains, is counted by the cache.
const _: () = assert!(REQUEST_STATE_BYTES + MESSAGE_BYTES <= 160);

/// The memory of a connection.
pub(crate) struct Memory {
    /// The buffer for received bytes.
    pub input: Buffer,
    /// The reserve of [`Buffers`].
    pub reserve: Buffer,
    /// The account that further buffers are borrowed from.
    pub loans: Arc<Loans>,
}

/// Serves one client until the connection ends, and returns the reason.
pub(crate) fn serve(
    connection: &Arc<Connection>,
    cache: &Cache,
    memory: Memory,
    exports: &Exports,
    limits: &Limits,
    security: &Security,
    journal: &Journal,
) -> Hangup {
    let mut queue = match cache.queue() {
        Ok(queue) => queue,
        Err(error) => return Hangup::Engine(error),
    };
    let mut input = Input::new(memory.input);
    let mut link = handshake::Link::new(Channel::Plain(&connection.socket), &mut queue, &mut input, limits);
    let agreement = match handshake::negotiate(connection, &mut link, exports, limits, security) {
        Ok(agreement) => agreement,
        Err(hangup) => return hangup,
    };
    let channel = link.channel;
    let export = &agreement.visit.served.export;
    let who = format!("{}: export {:?}", journal.who(), export.name);
    let journal = journal.about(who).of_export(&export.name);
    let buffers = Buffers::new(
        cache.clone(),
        memory.loans,
        memory.reserve,
        limits.piece_max_bytes,
        limits.borrowed_max_bytes,
        BATCH_READ_BYTES,
    );
    let executor = Executor::new(queue, export.object.clone(), buffers, journal);
    transmission::Transmission::new(connection, channel, limits, agreement, input, executor).run()
}
