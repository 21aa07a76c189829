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
use crate::estate::ClientState;
use crate::executor::{BATCH_READ_BYTES, Executor, REQUEST_STATE_BYTES};
use crate::export::Exports;
use crate::journal::Journal;
use crate::limits::Limits;
use crate::tls::Security;
use channel::Channel;
use handshake::Agreement;
use input::Input;
use octavo::{Buffer, Cache, Queue};
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

/// What the connections of a server share.
#[derive(Clone, Copy)]
pub(crate) struct House<'a> {
    pub cache: &'a Cache,
    pub exports: &'a Exports,
    pub limits: &'a Limits,
}

/// Serves one client until the connection ends, and returns the reason.
pub(crate) fn serve(
    connection: &Arc<Connection>,
    house: House<'_>,
    memory: Memory,
    security: &Security,
    journal: &Journal,
) -> Hangup {
    let House { cache, exports, limits } = house;
    let mut queue = match cache.queue() {
        Ok(queue) => queue,
        Err(error) => return Hangup::Engine(error),
    };
    let Memory { input, reserve, loans } = memory;
    let mut input = Input::new(input);
    let mut link = handshake::Link::new(Channel::Plain(&connection.socket), &mut queue, &mut input, limits);
    let agreement = match handshake::negotiate(connection, &mut link, exports, limits, security) {
        Ok(agreement) => agreement,
        Err(hangup) => return hangup,
    };
    let channel = link.channel;
    transmit(connection, house, (reserve, loans), journal, Agreed { agreement, channel, input, queue })
}

/// Serves a client of another server, from the request on at which it was left (S4), until the
/// connection ends. Returns the reason.
pub(crate) fn resume(
    connection: &Arc<Connection>,
    house: House<'_>,
    memory: Memory,
    held: &ClientState,
    journal: &Journal,
) -> Hangup {
    let Memory { input, reserve, loans } = memory;
    let agreement = match handshake::agree_again(connection, house.exports, held) {
        Ok(agreement) => agreement,
        Err(why) => return Hangup::Successor(why),
    };
    let Some(input) = Input::with(input, &held.unread) else {
        return Hangup::Successor("the buffer for received bytes is smaller now");
    };
    let queue = match house.cache.queue() {
        Ok(queue) => queue,
        Err(error) => return Hangup::Engine(error),
    };
    let channel = Channel::Plain(&connection.socket);
    transmit(connection, house, (reserve, loans), journal, Agreed { agreement, channel, input, queue })
}

/// A connection whose transmission begins.
struct Agreed<'s> {
    agreement: Agreement,
    channel: Channel<'s>,
    input: Input,
    queue: Queue,
}

fn transmit(
    connection: &Arc<Connection>,
    house: House<'_>,
    (reserve, loans): (Buffer, Arc<Loans>),
    journal: &Journal,
    agreed: Agreed<'_>,
) -> Hangup {
    let Agreed { agreement, channel, input, queue } = agreed;
    let House { cache, limits, .. } = house;
    let export = &agreement.visit.served.export;
    let who = format!("{}: export {:?}", journal.who(), export.name);
    let journal = journal.about(who).of_export(&export.name);
    let buffers = Buffers::new(
        cache.clone(),
        loans,
        reserve,
        limits.piece_max_bytes,
        limits.borrowed_max_bytes,
        BATCH_READ_BYTES,
    );
    connection.set_waker(queue.waker());
    let executor = Executor::new(queue, export.object.clone(), buffers, journal);
    transmission::Transmission::new(connection, channel, limits, agreement, input, executor).run()
}
