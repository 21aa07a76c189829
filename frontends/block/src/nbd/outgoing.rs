//! [`Outgoing`]: turns events into messages, and sends them as fast as the client reads.
//!
//! Most messages are whole: a header, and the bytes of one buffer or none. A contiguous read (a
//! simple reply, or a structured one with DF) is one message on the wire for several buffers. If
//! its header is queued before all of its bytes are read, the read streams: messages of other
//! requests wait until this message is complete. If the read then fails, a structured reply is
//! padded with zeros and an error chunk follows. A simple reply has no place for an error, and the
//! protocol asks the server to hang up.

use super::channel::Channel;
use super::status;
use super::wire::{Errno, Form, Headers, Reply, ReplyBytes, RequestHeader};
use crate::export::{Counts, Kind};
use crate::latency::Clock;
use crate::request::{Cause, Event, Failure, Request, RequestId, Verb};
use octavo::Buffer;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// The most messages of one `write`. Their slices stay below the kernel's limit of 1024, and their
/// headers fit on the stack.
const GATHER_MAX: usize = 32;

/// The padding of a chunk whose bytes could not be read.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

struct Message {
    reply: Reply,
    /// The offset of the request.
    offset_bytes: u64,
    body: Body,
}

enum Body {
    Empty,
    Bytes { buffer: Buffer, len_bytes: u32 },
    Zeros { len_bytes: u32 },
}

/// The bytes that a queued message takes in memory.
pub const MESSAGE_BYTES: usize = size_of::<Message>();

impl Body {
    fn as_slice(&self) -> &[u8] {
        match self {
            Body::Empty => &[],
            Body::Bytes { buffer, len_bytes } => &buffer[..*len_bytes as usize],
            Body::Zeros { len_bytes } => &ZEROS[..ZEROS.len().min(*len_bytes as usize)],
        }
    }
}

/// A contiguous read whose header is queued before all of its bytes.
struct Stream {
    id: RequestId,
    left_bytes: u32,
}

/// The replies of one connection; see the module.
pub struct Outgoing {
    headers: Headers,
    messages: VecDeque<Message>,
    /// The number of bytes of the first message that are already sent.
    sent_bytes: usize,
    stream: Option<Stream>,
    /// The messages that wait for the end of the streaming read.
    behind: VecDeque<Message>,
    /// The socket is full: the client does not read.
    pub blocked: bool,
    /// A simple reply cannot be completed, and the connection must end.
    pub cut: bool,
    /// The counts of the connection.
    pub counts: Arc<Counts>,
    /// The clock of the connection.
    pub clock: Clock,
}

impl Outgoing {
    pub fn new(headers: Headers, counts: Arc<Counts>) -> Outgoing {
        Outgoing {
            headers,
            messages: VecDeque::new(),
            sent_bytes: 0,
            stream: None,
            behind: VecDeque::new(),
            blocked: false,
            cut: false,
            counts,
            clock: Clock::default(),
        }
    }

    /// Returns the number of messages that are not completely sent.
    pub fn unsent(&self) -> usize {
        self.messages.len() + self.behind.len()
    }

    /// Returns whether a message is ready to be sent.
    pub fn can_send(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Answers a request that was never started.
    pub fn refuse(&mut self, kind: Kind, header: &RequestHeader, error: Errno) {
        self.counts.refused(kind);
        let (cookie, offset_bytes) = (header.cookie, header.offset_bytes);
        let reply = match self.is_structured() {
            true => Reply::Error { cookie, error },
            false => Reply::Simple { cookie, error: Some(error) },
        };
        self.push(None, Message { reply, offset_bytes, body: Body::Empty });
    }

    /// Turns an event into messages.
    pub fn event(&mut self, event: Event) {
        match event {
            Event::Data { id, request, timing, offset_bytes, buffer, len_bytes, last, whole } => {
                if last {
                    self.counts.ended(kind(request.verb), timing, &mut self.clock, false);
                }
                self.counts.read(len_bytes);
                let body = Body::Bytes { buffer, len_bytes };
                let reply = self.data_reply(&request, offset_bytes, len_bytes, last, whole);
                if reply != Reply::Continuation && !whole && request.verb == (Verb::Read { contiguous: true })
                {
                    debug_assert!(self.stream.is_none(), "one read streams at a time");
                    self.stream = Some(Stream { id, left_bytes: request.len_bytes as u32 });
                }
                self.push(Some(id), Message { reply, offset_bytes: request.offset_bytes, body });
                if let Some(stream) = self.stream.as_mut().filter(|stream| stream.id == id) {
                    stream.left_bytes -= len_bytes;
                    if last {
                        let end = self.is_structured().then_some(Reply::None { cookie: request.tag });
                        self.end_stream(request.offset_bytes, end);
                    }
                }
            }
            Event::Status { id, request, timing, holes, mut buffer } => {
                self.counts.ended(kind(request.verb), timing, &mut self.clock, false);
                let len = status::encode(&mut buffer, self.headers, &request, &holes);
                let body = Body::Bytes { buffer, len_bytes: len as u32 };
                let offset_bytes = request.offset_bytes;
                self.push(Some(id), Message { reply: Reply::Continuation, offset_bytes, body });
            }
            Event::Done { id, request, timing, result } => {
                self.counts.ended(kind(request.verb), timing, &mut self.clock, result.is_err());
                if result.is_ok() && request.verb == Verb::Write {
                    self.counts.written(request.len_bytes as u32);
                }
                let (reply, offset_bytes) = (self.done_reply(&request, result), request.offset_bytes);
                match self.stream.take_if(|stream| stream.id == id) {
                    Some(_) if !self.is_structured() => self.cut = true,
                    Some(Stream { left_bytes, .. }) => {
                        let body = Body::Zeros { len_bytes: left_bytes };
                        self.messages.push_back(Message { reply: Reply::Continuation, offset_bytes, body });
                        self.end_stream(offset_bytes, Some(reply));
                    }
                    None => self.push(Some(id), Message { reply, offset_bytes, body: Body::Empty }),
                }
            }
        }
    }

    /// Returns the header of a piece of a read.
    fn data_reply(
        &self,
        request: &Request,
        offset_bytes: u64,
        len_bytes: u32,
        last: bool,
        whole: bool,
    ) -> Reply {
        let cookie = request.tag;
        let contiguous = request.verb == Verb::Read { contiguous: true };
        match (contiguous, offset_bytes == request.offset_bytes) {
            (false, _) => Reply::OffsetData { cookie, offset_bytes, len_bytes, done: last },
            (true, false) => Reply::Continuation,
            (true, true) if self.is_structured() => {
                let len_bytes = request.len_bytes as u32;
                Reply::OffsetData { cookie, offset_bytes, len_bytes, done: whole }
            }
            (true, true) => Reply::Simple { cookie, error: None },
        }
    }

    /// Returns the answer to a request that ends without data, or without its remaining data.
    fn done_reply(&self, request: &Request, result: Result<(), Failure>) -> Reply {
        let cookie = request.tag;
        let is_read = matches!(request.verb, Verb::Read { .. });
        match result.map_err(|failure| (errno(request.verb, failure.cause), failure.offset_bytes)) {
            Ok(()) if self.is_structured() && is_read => Reply::None { cookie },
            Ok(()) => Reply::Simple { cookie, error: None },
            Err((error, _)) if !self.is_structured() => Reply::Simple { cookie, error: Some(error) },
            Err((error, _)) if request.verb == Verb::Flush => Reply::Error { cookie, error },
            Err((error, offset_bytes)) => Reply::ErrorOffset { cookie, error, offset_bytes },
        }
    }

    fn is_structured(&self) -> bool {
        self.headers >= Headers::Structured
    }

    fn push(&mut self, id: Option<RequestId>, message: Message) {
        match &self.stream {
            Some(stream) if Some(stream.id) != id => self.behind.push_back(message),
            _ => self.messages.push_back(message),
        }
    }

    fn end_stream(&mut self, offset_bytes: u64, reply: Option<Reply>) {
        self.stream = None;
        let end = reply.map(|reply| Message { reply, offset_bytes, body: Body::Empty });
        self.messages.extend(end);
        self.messages.append(&mut self.behind);
    }

    /// Sends as many bytes as the socket takes, and passes sent buffers to `give_back`. Returns
    /// whether the socket took any.
    pub fn send(&mut self, channel: &mut Channel<'_>, mut give_back: impl FnMut(Buffer)) -> io::Result<bool> {
        let mut any = false;
        while !self.blocked && !self.messages.is_empty() {
            match self.write(channel) {
                Ok(count) => self.advance(count, &mut give_back),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(any);
                }
                Err(error) => return Err(error),
            }
            any = true;
        }
        Ok(any)
    }

    fn write(&self, channel: &mut Channel<'_>) -> io::Result<usize> {
        let count = self.messages.len().min(GATHER_MAX);
        let heads: [ReplyBytes; GATHER_MAX] = std::array::from_fn(|i| {
            self.messages.get(i).map_or(ReplyBytes::EMPTY, |message| message.head(self.headers))
        });
        let mut slices = [IoSlice::new(&[]); 2 * GATHER_MAX];
        let mut used = 0;
        for (head, message) in heads.iter().zip(&self.messages).take(count) {
            slices[used] = IoSlice::new(head);
            slices[used + 1] = IoSlice::new(message.body.as_slice());
            used += 2;
            if message.body.as_slice().len() < message.body.len_bytes() {
                break;
            }
        }
        let mut unsent = &mut slices[..used];
        IoSlice::advance_slices(&mut unsent, self.sent_bytes);
        channel.write(unsent)
    }

    fn advance(&mut self, mut count: usize, give_back: &mut impl FnMut(Buffer)) {
        while let Some(message) = self.messages.front_mut() {
            let left_bytes = message.head(self.headers).len() + message.body.len_bytes() - self.sent_bytes;
            if count < left_bytes {
                match &mut message.body {
                    // Padding has no header, and `ZEROS` may be shorter than the padding.
                    Body::Zeros { len_bytes } => *len_bytes -= count as u32,
                    _ => self.sent_bytes += count,
                }
                return;
            }
            count -= left_bytes;
            self.sent_bytes = 0;
            if let Some(Message { body: Body::Bytes { buffer, .. }, .. }) = self.messages.pop_front() {
                give_back(buffer);
            }
        }
    }
}

impl Message {
    fn head(&self, headers: Headers) -> ReplyBytes {
        self.reply.encode(Form { headers, offset_bytes: self.offset_bytes })
    }
}

impl Body {
    fn len_bytes(&self) -> usize {
        match self {
            Body::Empty => 0,
            Body::Bytes { len_bytes, .. } | Body::Zeros { len_bytes } => *len_bytes as usize,
        }
    }
}

/// Returns the kind under which a request is counted.
pub fn kind(verb: Verb) -> Kind {
    match verb {
        Verb::Read { .. } => Kind::Read,
        Verb::Write => Kind::Write,
        Verb::Flush => Kind::Flush,
        Verb::Discard => Kind::Trim,
        Verb::Zero { .. } | Verb::ZeroFast { .. } => Kind::Zeroes,
        Verb::Prefetch => Kind::Cache,
        Verb::Status { .. } => Kind::Status,
    }
}

/// Returns the protocol's error for a cause. Writes and zeroings past the end have an error of
/// their own.
pub fn errno(verb: Verb, cause: Cause) -> Errno {
    match (cause, verb) {
        (Cause::PastEnd, Verb::Write | Verb::Zero { .. } | Verb::ZeroFast { .. }) | (Cause::NoSpace, _) => {
            Errno::Enospc
        }
        (Cause::NotFast, Verb::ZeroFast { .. }) => Errno::Enotsup,
        (Cause::PastEnd, _) => Errno::Einval,
        (Cause::ReadOnly, _) => Errno::Eperm,
        (Cause::Io | Cause::NotFast, _) => Errno::Eio,
        (Cause::NoMemory, _) => Errno::Enomem,
        (Cause::Closed, _) => Errno::Eshutdown,
    }
}
