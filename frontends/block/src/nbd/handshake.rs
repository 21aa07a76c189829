//! The handshake: from the greeting to the choice of an export.
//!
//! The server supports fixed newstyle only. `Negotiation::answer` decides on the replies and never
//! touches the socket. `negotiate` receives the options, one at a time, and sends the replies, all
//! within `handshake_time`, the handshake of TLS included.
//!
//! A client starts TLS by the option STARTTLS. Bytes before it are not authenticated and may come
//! from an attacker, so the server discards everything that was negotiated until then, and ends the
//! connection if bytes follow the option before its answer. Where TLS is required (FORCEDTLS in the
//! protocol document), no other option has an effect before it; elsewhere (SELECTIVETLS) no export
//! demands it.

use super::channel::Channel;
use super::input::Input;
use super::status::Contexts;
use super::wire::{self, ContextRequest, Headers, InfoRequest, OPTION_HEADER_BYTES};
use super::wire::{encode_option_reply, transmission_flag as flag};
use super::wire::{info, option, option_reply};
use crate::connection::{Connection, Hangup};
use crate::estate::ClientState;
use crate::export::{Exports, Served, Visit};
use crate::limits::{Limits, NAME_MAX_BYTES};
use crate::socket::Patience;
use crate::tls::{Security, Tls};
use octavo::{Interest, Queue};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The result of a handshake.
pub struct Agreement {
    /// The client's visit to the export that it chose.
    pub visit: Visit,
    /// The form of requests and replies that the client asked for.
    pub headers: Headers,
    /// The metadata contexts that the client has selected for this export.
    pub contexts: Contexts,
}

/// Runs the handshake.
pub fn negotiate(
    connection: &Arc<Connection>,
    link: &mut Link<'_, '_>,
    exports: &Exports,
    limits: &Limits,
    security: &Security,
) -> Result<Agreement, Hangup> {
    link.send(&wire::greeting())?;
    let no_zeroes = link.take().and_then(|flags| {
        wire::decode_client_flags(flags)
            .ok_or(Hangup::Protocol("the client set a flag that the server did not offer"))
    })?;
    let begin = |is_secure| Negotiation {
        security,
        is_secure,
        connection,
        exports,
        no_zeroes,
        headers: Headers::Simple,
        selected: None,
        payload_max_bytes: limits.payload_max_bytes,
    };
    let mut negotiation = begin(false);
    for _ in 0..limits.options_max {
        let header: [u8; OPTION_HEADER_BYTES] = link.take()?;
        let (option, len_bytes) =
            wire::decode_option(header).ok_or(Hangup::Protocol("wrong option magic"))?;
        if len_bytes > limits.option_max_bytes {
            return Err(Hangup::Protocol("an option is longer than option_max_bytes"));
        }
        let data = link.data(len_bytes as usize)?;
        let mut reply = Vec::new();
        let next = if connection.stopping() && option == option::EXPORT_NAME {
            // EXPORT_NAME has no error reply: the client would read an error as the export's
            // length.
            Next::Hangup(Hangup::Shutdown)
        } else if connection.stopping() && option != option::ABORT {
            encode_option_reply(&mut reply, option, option_reply::ERR_SHUTDOWN, &[]);
            Next::Option
        } else if negotiation.lacks_tls(option) {
            negotiation.demand_tls(option, &mut reply)
        } else {
            negotiation.answer(option, data, &mut reply)
        };
        if data.is_some() {
            link.input.consume(len_bytes as usize);
        }
        // An attacker may have added these plain bytes so that the session takes them for its own.
        if matches!(next, Next::Tls(_)) && !link.input.bytes().is_empty() {
            return Err(Hangup::Protocol("bytes in plain text follow STARTTLS"));
        }
        link.send(&reply)?;
        match next {
            Next::Option => {}
            Next::Transmission { visit } => {
                let contexts = negotiation.contexts_of(&visit.served);
                return Ok(Agreement { visit, headers: negotiation.headers, contexts });
            }
            Next::Tls(tls) => {
                link.start_tls(&tls)?;
                negotiation = begin(true);
            }
            Next::Hangup(hangup) => return Err(hangup),
        }
    }
    Err(Hangup::Protocol("the handshake has more options than options_max"))
}

/// Returns to what a client of another server has agreed with it. The error says what is different
/// now.
pub fn agree_again(
    connection: &Arc<Connection>,
    exports: &Exports,
    held: &ClientState,
) -> Result<Agreement, &'static str> {
    let served = exports.listed().into_iter().find(|served| served.export.name == held.export);
    let served = served.ok_or("its export is not served any more")?;
    if served.read_only() && !held.read_only {
        return Err("its export is read-only now");
    }
    if served.export.object.len_bytes() < held.len_bytes {
        return Err("its export is shorter now");
    }
    let headers = Headers::of_number(held.headers).ok_or("its form of replies is unknown")?;
    let contexts = Contexts::of_form(held.contexts).ok_or("its metadata contexts are unknown")?;
    let visit = served.visit(connection).ok_or("its export is being removed")?;
    Ok(Agreement { visit, headers, contexts })
}

/// The next step after an option.
enum Next {
    Option,
    Transmission { visit: Visit },
    Tls(Tls),
    Hangup(Hangup),
}

/// The state of the negotiation.
struct Negotiation<'a> {
    security: &'a Security,
    /// The client has started TLS.
    is_secure: bool,
    connection: &'a Arc<Connection>,
    exports: &'a Exports,
    no_zeroes: bool,
    headers: Headers,
    /// The contexts that the latest `SET_META_CONTEXT` selected, and the export that it named.
    selected: Option<(Arc<Served>, Contexts)>,
    payload_max_bytes: u32,
}

impl Negotiation<'_> {
    /// Returns whether the client must start TLS before it sends this option.
    fn lacks_tls(&self, option: u32) -> bool {
        let is_allowed = matches!(option, option::STARTTLS | option::ABORT);
        self.security.is_required && !self.is_secure && !is_allowed
    }

    fn demand_tls(&self, option: u32, reply: &mut Vec<u8>) -> Next {
        match option {
            option::EXPORT_NAME => {
                Next::Hangup(Hangup::Protocol("the client does not use TLS, which is required"))
            }
            _ => refuse(reply, option, option_reply::ERR_TLS_REQD, "this server requires TLS"),
        }
    }

    fn start_tls(&self, reply: &mut Vec<u8>) -> Next {
        let option = option::STARTTLS;
        match &self.security.tls {
            _ if self.is_secure => refuse(reply, option, option_reply::ERR_INVALID, "TLS is in use already"),
            None => refuse(reply, option, option_reply::ERR_UNSUP, "this server has no TLS"),
            Some(tls) => {
                acknowledge(reply, option);
                Next::Tls(tls.clone())
            }
        }
    }

    /// Appends the replies to one option. `data` is None if the data were longer than the input.
    fn answer(&mut self, option: u32, data: Option<&[u8]>, reply: &mut Vec<u8>) -> Next {
        let Some(data) = data else {
            return match option {
                option::EXPORT_NAME => Next::Hangup(Hangup::Protocol("the export's name is too long")),
                _ => refuse(reply, option, option_reply::ERR_TOO_BIG, "the option is too long"),
            };
        };
        match option {
            option::EXPORT_NAME => self.export_name(data, reply),
            option::INFO | option::GO => self.info(option, data, reply),
            option::ABORT => {
                encode_option_reply(reply, option, option_reply::ACK, &[]);
                Next::Hangup(Hangup::Client)
            }
            option::LIST | option::STRUCTURED_REPLY | option::STARTTLS | option::EXTENDED_HEADERS
                if !data.is_empty() =>
            {
                refuse(reply, option, option_reply::ERR_INVALID, "the option takes no data")
            }
            option::LIST => {
                for served in self.exports.listed() {
                    let name = served.export.name.as_bytes();
                    let name_bytes = (name.len() as u32).to_be_bytes();
                    let parts = [&name_bytes, name, served.export.description.as_bytes()];
                    encode_option_reply(reply, option, option_reply::SERVER, &parts);
                }
                acknowledge(reply, option)
            }
            option::STRUCTURED_REPLY if self.headers == Headers::Extended => refuse(
                reply,
                option,
                option_reply::ERR_EXT_HEADER_REQD,
                "extended headers are negotiated already",
            ),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                self.headers = match option {
                    option::STRUCTURED_REPLY => Headers::Structured,
                    _ => Headers::Extended,
                };
                acknowledge(reply, option)
            }
            option::STARTTLS => self.start_tls(reply),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data, reply),
            _ => refuse(reply, option, option_reply::ERR_UNSUP, "unknown option"),
        }
    }

    /// Answers EXPORT_NAME. The option has no error reply, so an unknown export ends the session.
    fn export_name(&self, name: &[u8], reply: &mut Vec<u8>) -> Next {
        if self.headers == Headers::Extended {
            return Next::Hangup(Hangup::Protocol("EXPORT_NAME after EXTENDED_HEADERS"));
        }
        let visit = self.exports.find(name).and_then(|served| served.visit(self.connection));
        let Some(visit) = visit else {
            return Next::Hangup(Hangup::Protocol("the client asked for an export that does not exist"));
        };
        let served = &visit.served;
        let len_bytes = served.export.object.len_bytes();
        reply.extend(len_bytes.to_be_bytes());
        reply.extend(self.flags(served).to_be_bytes());
        if !self.no_zeroes {
            reply.extend([0; 124]);
        }
        Next::Transmission { visit }
    }

    fn info(&self, option: u32, data: &[u8], reply: &mut Vec<u8>) -> Next {
        let Some(request) = InfoRequest::decode(data) else {
            return refuse(
                reply,
                option,
                option_reply::ERR_INVALID,
                "the lengths in the option do not add up",
            );
        };
        if request.name.len() > NAME_MAX_BYTES {
            return refuse(reply, option, option_reply::ERR_TOO_BIG, "the name is too long");
        }
        let unknown = |reply| refuse(reply, option, option_reply::ERR_UNKNOWN, "no export of this name");
        let Some(served) = self.exports.find(request.name) else { return unknown(reply) };
        // The visit begins before the reply: no export is retired between its reply and its
        // first request.
        let visit = match option {
            option::GO => match served.visit(self.connection) {
                None => return unknown(reply),
                visit => visit,
            },
            _ => None,
        };
        let len_bytes = served.export.object.len_bytes();
        let mut inform = |information: u16, parts: [&[u8]; 3]| {
            let [a, b, c] = parts;
            let data = [&information.to_be_bytes(), a, b, c];
            encode_option_reply(reply, option, option_reply::INFO, &data);
        };
        inform(info::EXPORT, [&len_bytes.to_be_bytes(), &self.flags(&served).to_be_bytes(), &[]]);
        if request.wants(info::NAME) {
            inform(info::NAME, [served.export.name.as_bytes(), &[], &[]]);
        }
        if request.wants(info::DESCRIPTION) {
            inform(info::DESCRIPTION, [served.export.description.as_bytes(), &[], &[]]);
        }
        if request.wants(info::BLOCK_SIZE) {
            // The page of the cache, at most 64 KiB.
            let page_bytes = served.export.object.page_bytes() as u32;
            let [min, preferred, max] = [1, page_bytes, self.payload_max_bytes].map(u32::to_be_bytes);
            inform(info::BLOCK_SIZE, [&min, &preferred, &max]);
        }
        encode_option_reply(reply, option, option_reply::ACK, &[]);
        visit.map_or(Next::Option, |visit| Next::Transmission { visit })
    }

    /// Lists or selects metadata contexts. A selection replaces the earlier one, even if it fails.
    fn contexts(&mut self, option: u32, data: &[u8], reply: &mut Vec<u8>) -> Next {
        let selects = option == option::SET_META_CONTEXT;
        if selects {
            self.selected = None;
        }
        let wrong = |reply, why| refuse(reply, option, option_reply::ERR_INVALID, why);
        if self.headers < Headers::Structured {
            return wrong(reply, "metadata contexts need structured replies or extended headers");
        }
        let Some(request) = ContextRequest::decode(data) else {
            return wrong(reply, "the lengths in the option do not add up");
        };
        if request.name.len() > NAME_MAX_BYTES {
            return refuse(reply, option, option_reply::ERR_TOO_BIG, "the name is too long");
        }
        let Some(served) = self.exports.find(request.name) else {
            return refuse(reply, option, option_reply::ERR_UNKNOWN, "no export of this name");
        };
        let of_query = if selects { Contexts::selected } else { Contexts::listed };
        let contexts = match request.queries.is_empty() && !selects {
            true => Contexts::ALL,
            false => request.queries.into_iter().map(of_query).fold(Contexts::default(), Contexts::with),
        };
        for (id, name) in contexts.names() {
            // The identifier has no meaning in a list.
            let id = if selects { id } else { 0 };
            let parts = [&id.to_be_bytes(), name.as_bytes()];
            encode_option_reply(reply, option, option_reply::META_CONTEXT, &parts);
        }
        if selects {
            self.selected = Some((served, contexts));
        }
        acknowledge(reply, option)
    }

    /// Returns the contexts that are selected for an export.
    fn contexts_of(&self, served: &Arc<Served>) -> Contexts {
        let selected = self.selected.as_ref().filter(|(named, _)| Arc::ptr_eq(named, served));
        selected.map_or(Contexts::default(), |(_, contexts)| *contexts)
    }

    /// Returns the transmission flags. CAN_MULTI_CONN, because all connections share one cache and
    /// a flush on any of them covers all.
    fn flags(&self, served: &Arc<Served>) -> u16 {
        let always =
            flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        let changes = match served.read_only() {
            true => flag::READ_ONLY,
            false => flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO,
        };
        let df = if self.headers >= Headers::Structured { flag::SEND_DF } else { 0 };
        let chooses = self.headers == Headers::Extended && !self.contexts_of(served).is_empty();
        always | changes | df | if chooses { flag::BLOCK_STATUS_PAYLOAD } else { 0 }
    }
}

fn acknowledge(reply: &mut Vec<u8>, option: u32) -> Next {
    encode_option_reply(reply, option, option_reply::ACK, &[]);
    Next::Option
}

fn refuse(reply: &mut Vec<u8>, option: u32, error: u32, message: &str) -> Next {
    encode_option_reply(reply, option, error, &[message.as_bytes()]);
    Next::Option
}

/// The channel of a handshake, with its deadline.
pub struct Link<'a, 's> {
    pub channel: Channel<'s>,
    /// Serves only to wait for the socket.
    queue: &'a mut Queue,
    input: &'a mut Input,
    deadline: Instant,
}

impl<'a, 's> Link<'a, 's> {
    pub fn new(
        channel: Channel<'s>,
        queue: &'a mut Queue,
        input: &'a mut Input,
        limits: &Limits,
    ) -> Link<'a, 's> {
        Link { channel, queue, input, deadline: Instant::now() + limits.handshake_time }
    }

    /// Runs the handshake of TLS.
    fn start_tls(&mut self, tls: &Tls) -> Result<(), Hangup> {
        self.channel.start_tls(tls)?;
        while let Some(interest) = self.channel.shake_hands()? {
            self.wait(interest)?;
        }
        Ok(())
    }

    /// Waits until `count` bytes of input are available.
    fn need(&mut self, count: usize) -> Result<(), Hangup> {
        while self.input.bytes().len() < count {
            match self.input.read(&mut self.channel, &mut [], Patience::None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(Interest { readable: true, writable: false })?;
                }
                received => _ = received?,
            }
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Hangup> {
        self.need(N)?;
        Ok(self.input.take().expect("`need` has waited for these bytes"))
    }

    /// Returns the data of an option, not yet consumed. If they are longer than the input, skips
    /// them and returns None.
    fn data(&mut self, count: usize) -> Result<Option<&[u8]>, Hangup> {
        if count <= self.input.capacity_bytes() {
            self.need(count)?;
            return Ok(Some(&self.input.bytes()[..count]));
        }
        let mut left = count;
        while left > 0 {
            self.need(1)?;
            let skipped = left.min(self.input.bytes().len());
            self.input.consume(skipped);
            left -= skipped;
        }
        Ok(None)
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), Hangup> {
        while !bytes.is_empty() {
            match self.channel.write(&[IoSlice::new(bytes)]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(Interest { readable: false, writable: true })?;
                }
                sent => bytes = &bytes[sent?..],
            }
        }
        Ok(())
    }

    /// Waits until the socket is ready. Fails once the deadline has passed, even if the socket was
    /// ready before that.
    fn wait(&mut self, interest: Interest) -> Result<(), Hangup> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Hangup::Late);
        }
        // Rounded up, because poll counts in milliseconds and a timeout of 0 would spin.
        let timeout = left + Duration::from_millis(1);
        self.queue.wait_or(self.channel.as_fd(), interest, Some(timeout), drop);
        Ok(())
    }
}
