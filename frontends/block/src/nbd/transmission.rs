//! [`Transmission`]: the loop of one connection, which receives requests and sends replies.
//!
//! One thread owns the socket, the input, the executor and the replies. A *turn* does all work that
//! needs no waiting:
//!
//! 1. parse the input, start requests, and pass on the bytes of a write as they arrive;
//! 2. submit started requests, and collect completions;
//! 3. send replies;
//! 4. read the socket, if there is space for its bytes.
//!
//! Only a turn in which nothing happened is followed by a wait, for a completion or for the socket.
//! A wait therefore misses no event. A client that reads no replies delays neither the engine nor
//! another client: its own requests in flight reach their maximum, and its socket is no longer
//! read.
//!
//! A connection with nothing in the engine and nothing to send can be woken only by its client or
//! by a shutdown. It waits in the read itself, so a request whose pages are resident takes two
//! system calls: its read, and the write of its reply. Before that read it spins briefly, if the
//! client sends one request at a time (`spin.rs`). After a silence it frees the memory that it
//! keeps for the next requests, and polls. All other waits are polls too.

use super::channel::Channel;
use super::handshake::Agreement;
use super::input::Input;
use super::outgoing::{Outgoing, errno, kind};
use super::status::Contexts;
use super::wire::{Errno, Headers, RequestHeader, Selection, command, command_flag as flag};
use crate::connection::{Connection, Hangup};
use crate::estate::{ClientState, HeldClient};
use crate::executor::Executor;
use crate::export::Kind;
use crate::limits::{Limits, PAYLOAD_BYTES};
use crate::request::{Request, RequestId, Verb};
use crate::socket::Patience;
use crate::spin::Spin;
use octavo::{Buffer, Interest};
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

/// The number of consecutive waits, with at most one request each, after which the connection
/// assumes that the client has one request in flight at a time.
const LONE_MIN: u32 = 8;

/// The meaning of the next byte of input.
enum Incoming {
    /// The first byte of a request.
    Header,
    /// A byte of a write. `left_bytes` bytes of the write follow its last complete piece.
    Payload { id: RequestId, left_bytes: u32, buffer: Option<Filling> },
    /// The first byte of the payload of a block status request.
    Selection { header: RequestHeader },
    /// A byte of a payload that is not used.
    Discarded { left_bytes: u32 },
}

/// A piece of a write that is being received.
struct Filling {
    buffer: Buffer,
    filled_bytes: usize,
    /// The length of the piece: as much as the buffer holds.
    goal_bytes: usize,
}

impl Filling {
    fn space(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled_bytes..self.goal_bytes]
    }
}

/// A connection in transmission; see the module.
pub struct Transmission<'a> {
    connection: &'a Connection,
    channel: Channel<'a>,
    limits: &'a Limits,
    read_only: bool,
    input: Input,
    incoming: Incoming,
    executor: Executor,
    outgoing: Outgoing,
    /// The socket may have more bytes.
    readable: bool,
    /// The client has been silent: no memory is kept for its next request, and the next wait is a
    /// poll.
    silent: bool,
    /// The connection leaves to another server (S4): no further request begins.
    leaving: bool,
    /// The number of requests since the last wait.
    arrived: usize,
    /// The number of consecutive waits, up to the latest one, before each of which at most one
    /// request arrived.
    lone: u32,
    spin: Spin,
    /// Set after the goodbye: no more input is read, and replies may be sent until this time.
    goodbye: Option<Instant>,
    /// After `executor`, whose drop waits for the operations in the engine: the visit ends last
    /// (X1).
    agreement: Agreement,
}

impl<'a> Transmission<'a> {
    pub fn new(
        connection: &'a Connection,
        channel: Channel<'a>,
        limits: &'a Limits,
        agreement: Agreement,
        input: Input,
        executor: Executor,
    ) -> Transmission<'a> {
        Transmission {
            connection,
            limits,
            read_only: agreement.visit.served.read_only(),
            outgoing: Outgoing::new(agreement.headers, agreement.visit.counts.clone()),
            agreement,
            input,
            incoming: Incoming::Header,
            executor,
            readable: channel.may_hold_bytes(),
            channel,
            silent: false,
            leaving: false,
            arrived: 0,
            lone: 0,
            spin: Spin::default(),
            goodbye: None,
        }
    }

    /// Serves requests until the connection ends, and returns the reason.
    pub fn run(mut self) -> Hangup {
        loop {
            // Once a round, so that a round which may wait for input does not change its mind.
            self.leaving = self.connection.leaving();
            let any = match self.turn() {
                Ok(any) => any,
                Err(hangup) => return hangup,
            };
            let idle = self.executor.running() == 0 && self.outgoing.unsent() == 0;
            self.connection.set_busy(!idle);
            if any {
                continue;
            }
            match self.goodbye {
                Some(_) if idle => return Hangup::Client,
                Some(until) if Instant::now() >= until => return Hangup::Late,
                None if idle && self.connection.stopping() => return Hangup::Shutdown,
                None if idle && self.leaving && self.is_between_requests() => {
                    return self.left();
                }
                _ => {}
            }
            if let Err(hangup) = self.wait() {
                return hangup;
            }
        }
    }

    fn is_between_requests(&self) -> bool {
        matches!(self.incoming, Incoming::Header)
    }

    /// S4: the state of the connection. The state of TLS cannot be passed on, so that such a
    /// connection ends.
    fn left(self) -> Hangup {
        let Channel::Plain(socket) = &self.channel else { return Hangup::Shutdown };
        let Agreement { visit, headers, contexts } = &self.agreement;
        let export = &visit.served.export;
        let state = ClientState {
            who: self.connection.who.clone(),
            export: export.name.clone(),
            read_only: self.read_only,
            len_bytes: export.object.len_bytes(),
            headers: *headers as u8,
            contexts: contexts.form(),
            unread: self.input.bytes().to_vec(),
        };
        match socket.as_fd().try_clone_to_owned() {
            Err(error) => Hangup::Socket(error),
            Ok(socket) => Hangup::Left(Box::new(HeldClient { socket, state })),
        }
    }

    /// Takes a turn. Returns whether anything happened.
    fn turn(&mut self) -> Result<bool, Hangup> {
        self.outgoing.clock.begin_phase();
        let mut any = self.parse()?;
        let outgoing = &mut self.outgoing;
        any |= self.executor.submit(&mut |event| outgoing.event(event));
        outgoing.clock.begin_phase();
        any |= self.executor.collect(&mut |event| outgoing.event(event));
        if outgoing.cut {
            return Err(Hangup::Store);
        }
        any |= outgoing.send(&mut self.channel, |buffer| self.executor.give_back(buffer))?;
        if self.readable && self.wants_input() {
            any |= self.receive(Patience::None)?;
        }
        Ok(any)
    }

    fn wait(&mut self) -> Result<(), Hangup> {
        let interest = Interest { readable: self.wants_input(), writable: self.outgoing.can_send() };
        self.lone = if std::mem::take(&mut self.arrived) > 1 { 0 } else { self.lone.saturating_add(1) };
        if interest.readable && self.outgoing.unsent() == 0 && self.executor.at_rest() && !self.silent {
            return self.wait_for_client();
        }
        let now = Instant::now();
        let timeout =
            self.goodbye.filter(|_| interest.writable).map(|until| until.saturating_duration_since(now));
        let outgoing = &mut self.outgoing;
        outgoing.clock.begin_phase();
        let fd = self.channel.as_fd();
        let ready = self.executor.wait(fd, interest, timeout, &mut |event| outgoing.event(event));
        self.readable |= ready.readable;
        // A socket that is reported as readable although the wait did not ask for that has hung up.
        // The next write returns the reason.
        let hung_up = ready.readable && !interest.readable;
        self.outgoing.blocked &= !(ready.writable || hung_up);
        Ok(())
    }

    /// Waits for bytes. A shutdown of the socket ends this wait, as it ends a poll (S1).
    fn wait_for_client(&mut self) -> Result<(), Hangup> {
        // With several requests in flight there is no round trip to shorten, and the next requests
        // accumulate during a sleep.
        if self.lone >= LONE_MIN {
            let mut spin = std::mem::take(&mut self.spin);
            let found = spin.wait(Instant::now, || match self.receive(Patience::None) {
                Ok(false) => None,
                received => Some(received),
            });
            self.spin = spin;
            if let Some(received) = found {
                return received.map(drop);
            }
        }
        if !self.receive(Patience::Some)? {
            self.executor.release_buffers();
            self.silent = true;
        }
        Ok(())
    }

    /// Returns whether received bytes could be used now.
    fn wants_input(&self) -> bool {
        self.goodbye.is_none()
            && self.input.has_space()
            && match &self.incoming {
                Incoming::Header => !self.full() && !self.leaving,
                Incoming::Payload { buffer, .. } => buffer.is_some(),
                Incoming::Selection { .. } | Incoming::Discarded { .. } => true,
            }
    }

    /// Returns whether the requests in flight have reached their maximum.
    fn full(&self) -> bool {
        self.executor.running() + self.outgoing.unsent() >= self.limits.requests_max
    }

    /// Reads the socket once. Returns whether anything was received.
    fn receive(&mut self, patience: Patience) -> Result<bool, Hangup> {
        let received = match &mut self.incoming {
            Incoming::Payload { buffer: Some(filling), .. } => {
                let received = self.input.read(&mut self.channel, filling.space(), patience);
                filling.filled_bytes += received.as_ref().map_or(0, |received| received.ahead_bytes);
                received
            }
            _ => self.input.read(&mut self.channel, &mut [], patience),
        };
        match received {
            Ok(received) => {
                self.readable = !received.drained;
                self.silent = false;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(false)
            }
            // The client may have closed only its sending side, and still read replies.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.say_goodbye();
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn say_goodbye(&mut self) {
        self.goodbye = Some(Instant::now() + self.limits.goodbye_time);
        if let Incoming::Payload { id, buffer, .. } = std::mem::replace(&mut self.incoming, Incoming::Header)
        {
            if let Some(Filling { buffer, .. }) = buffer {
                self.executor.give_back(buffer);
            }
            self.executor.write_end(id, &mut |event| self.outgoing.event(event));
        }
    }

    /// Parses input until it is used up, or until a request or its payload has to wait for space.
    /// Returns whether it parsed anything.
    fn parse(&mut self) -> Result<bool, Hangup> {
        let mut any = false;
        while self.goodbye.is_none() && self.step()? {
            any = true;
        }
        Ok(any)
    }

    /// Parses one request, one piece of payload, or discarded bytes. Returns whether it parsed
    /// anything.
    fn step(&mut self) -> Result<bool, Hangup> {
        match self.incoming {
            Incoming::Header if self.full() || self.leaving => Ok(false),
            Incoming::Header => {
                let len = self.agreement.headers.request_bytes();
                let Some(bytes) = self.input.bytes().get(..len) else { return Ok(false) };
                let header = RequestHeader::decode(bytes, self.agreement.headers);
                self.input.consume(len);
                self.request(header.ok_or(Hangup::Protocol("wrong request magic"))?)?;
                Ok(true)
            }
            Incoming::Selection { header } => Ok(self.selection(header)),
            Incoming::Payload { .. } => Ok(self.payload()),
            Incoming::Discarded { left_bytes: 0 } => {
                self.incoming = Incoming::Header;
                Ok(true)
            }
            Incoming::Discarded { left_bytes } => {
                let count = self.input.bytes().len().min(left_bytes as usize);
                self.input.consume(count);
                self.incoming = Incoming::Discarded { left_bytes: left_bytes - count as u32 };
                Ok(count > 0)
            }
        }
    }

    /// Advances a write by one step. Returns whether anything happened.
    fn payload(&mut self) -> bool {
        let Incoming::Payload { id, left_bytes, buffer } = &mut self.incoming else { return false };
        let id = *id;
        let Some(filling) = buffer else {
            if *left_bytes == 0 || self.executor.write_failed(id) {
                self.incoming = Incoming::Discarded { left_bytes: *left_bytes };
                self.executor.write_end(id, &mut |event| self.outgoing.event(event));
                return true;
            }
            *buffer = self.executor.write_buffer(id, *left_bytes).map(|buffer| {
                let goal_bytes = buffer.len().min(*left_bytes as usize);
                Filling { buffer, filled_bytes: 0, goal_bytes }
            });
            return buffer.is_some();
        };
        let came = self.input.bytes();
        let count = came.len().min(filling.space().len());
        filling.space()[..count].copy_from_slice(&came[..count]);
        filling.filled_bytes += count;
        self.input.consume(count);
        if !filling.space().is_empty() {
            return count > 0;
        }
        *left_bytes -= filling.goal_bytes as u32;
        if let Some(Filling { buffer, goal_bytes, .. }) = buffer.take() {
            self.executor.write_piece(id, buffer, goal_bytes as u32);
        }
        true
    }

    /// Starts or refuses a request.
    fn request(&mut self, header: RequestHeader) -> Result<(), Hangup> {
        self.arrived += 1;
        if header.command == command::DISC {
            self.say_goodbye();
            return Ok(());
        }
        // With extended headers, a write must have the flag. QEMU (10.0) does not set it, and sends
        // a payload.
        let is_extended = self.agreement.headers == Headers::Extended;
        let has_payload =
            header.command == command::WRITE || (is_extended && header.flags & flag::PAYLOAD_LEN != 0);
        let payload_bytes = if has_payload { header.len_bytes } else { 0 };
        if payload_bytes > u64::from(PAYLOAD_BYTES.max(self.limits.payload_max_bytes)) {
            return Err(Hangup::Protocol("a payload is longer than payload_max_bytes"));
        }
        let payload_bytes = payload_bytes as u32;
        self.outgoing.counts.received();
        if has_payload && header.command == command::BLOCK_STATUS && self.may_select(payload_bytes) {
            self.incoming = Incoming::Selection { header };
            return Ok(());
        }
        // Of all other requests, only a write may have a payload.
        match self.check(&header, self.agreement.contexts) {
            Ok(request) if request.verb == Verb::Write => {
                let id = self.executor.start_write(request, self.outgoing.clock.take());
                self.incoming = Incoming::Payload { id, left_bytes: payload_bytes, buffer: None };
            }
            Ok(request) => self.executor.start(request, self.outgoing.clock.take()),
            Err(error) => {
                self.refuse(&header, error);
                self.incoming = Incoming::Discarded { left_bytes: payload_bytes };
            }
        }
        Ok(())
    }

    fn refuse(&mut self, header: &RequestHeader, error: Errno) {
        let operation = self.operation(header, self.agreement.contexts);
        let kind = operation.map_or(Kind::Unknown, |(verb, _)| kind(verb));
        self.outgoing.refuse(kind, header, error);
    }

    /// Returns whether a payload has the length of a choice among the selected contexts.
    fn may_select(&self, payload_bytes: u32) -> bool {
        let contexts = self.agreement.contexts.count();
        (1..=contexts).any(|count| Selection::bytes_of(count) == u64::from(payload_bytes))
    }

    /// Starts or refuses a block status request when its payload has arrived. Returns whether it
    /// has.
    fn selection(&mut self, header: RequestHeader) -> bool {
        let len = header.len_bytes as usize;
        let Some(payload) = self.input.bytes().get(..len) else { return false };
        let chosen = Selection::decode(payload).and_then(|selection| {
            let contexts = self.agreement.contexts.choose(selection.ids())?;
            Some((selection.len_bytes, contexts))
        });
        self.input.consume(len);
        self.incoming = Incoming::Header;
        let request = chosen.ok_or(Errno::Einval).and_then(|(len_bytes, contexts)| {
            let flags = header.flags & !flag::PAYLOAD_LEN;
            self.check(&RequestHeader { flags, len_bytes, ..header }, contexts)
        });
        match request {
            Ok(request) => self.executor.start(request, self.outgoing.clock.take()),
            Err(error) => self.refuse(&header, error),
        }
        true
    }

    fn check(&self, header: &RequestHeader, contexts: Contexts) -> Result<Request, Errno> {
        let operation = self.operation(header, contexts);
        operation.ok_or(Errno::Einval).and_then(|operation| self.judge(header, operation))
    }

    /// Returns the operation of a request, and the flags that it may have besides FUA. None for an
    /// unknown command.
    fn operation(&self, header: &RequestHeader, contexts: Contexts) -> Option<(Verb, u16)> {
        let structured = self.agreement.headers >= Headers::Structured;
        let hole = header.flags & flag::NO_HOLE == 0;
        Some(match header.command {
            command::READ => {
                let contiguous = !structured || header.flags & flag::DF != 0;
                (Verb::Read { contiguous }, if structured { flag::DF } else { 0 })
            }
            command::WRITE if self.agreement.headers == Headers::Extended => (Verb::Write, flag::PAYLOAD_LEN),
            command::WRITE => (Verb::Write, 0),
            command::FLUSH => (Verb::Flush, 0),
            command::TRIM => (Verb::Discard, 0),
            command::CACHE => (Verb::Prefetch, 0),
            // Only NO_HOLE asks to keep the space. Without it, a sparse image that is copied here
            // stays sparse.
            command::WRITE_ZEROES => {
                let is_fast = header.flags & flag::FAST_ZERO != 0;
                let verb = if is_fast { Verb::ZeroFast { hole } } else { Verb::Zero { hole } };
                (verb, flag::NO_HOLE | flag::FAST_ZERO)
            }
            command::BLOCK_STATUS => {
                let is_one = header.flags & flag::REQ_ONE != 0;
                let extents_max = if is_one { 1 } else { contexts.extents_max() };
                (Verb::Status { extents_max, form: contexts.form() }, flag::REQ_ONE)
            }
            _ => return None,
        })
    }

    /// Returns the neutral request, or the error with which it is refused.
    fn judge(&self, header: &RequestHeader, (verb, flags): (Verb, u16)) -> Result<Request, Errno> {
        // FUA is valid for every command, and has an effect on those that change bytes.
        if header.flags & !(flags | flag::FUA) != 0 {
            return Err(Errno::Einval);
        }
        if let Verb::Status { form, .. } = verb
            && (form == Contexts::default().form() || header.len_bytes == 0)
        {
            return Err(Errno::Einval);
        }
        if self.connection.stopping() {
            return Err(Errno::Eshutdown);
        }
        if matches!(verb, Verb::Read { .. } | Verb::Write)
            && header.len_bytes > u64::from(self.limits.payload_max_bytes)
        {
            // The protocol has EOVERFLOW for structured reads only.
            return Err(if self.agreement.headers >= Headers::Structured && verb != Verb::Write {
                Errno::Eoverflow
            } else {
                Errno::Einval
            });
        }
        if verb == Verb::Flush && (header.offset_bytes, header.len_bytes) != (0, 0) {
            return Err(Errno::Einval);
        }
        let request = Request {
            tag: header.cookie,
            offset_bytes: header.offset_bytes,
            len_bytes: header.len_bytes,
            verb,
            durable: header.flags & flag::FUA != 0,
        };
        // The present length: it may change while the client is connected.
        let end_bytes = self.agreement.visit.served.export.object.len_bytes();
        let checked = request.check(end_bytes, self.read_only);
        checked.map(|()| request).map_err(|failure| errno(verb, failure.cause))
    }
}
