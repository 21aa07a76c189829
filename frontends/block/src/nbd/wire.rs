//! The bytes of the NBD protocol: its constants, and the encoding and decoding of messages. Not
//! here: I/O, decisions.
//!
//! Names and values are those of the protocol document (doc/proto.md of NetworkBlockDevice/nbd, and
//! its branch extension-ext-header), without the prefix `NBD_`. All integers are big-endian.

/// The first bytes that a server sends: `NBDMAGIC`.
pub const INIT_PASSWD: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: begins the newstyle greeting and every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// The handshake flag of fixed newstyle, with the same value for server and client.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// The handshake flag that omits the 124 zeros after an export's flags.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Transmission flags.
pub mod transmission_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Options of the handshake.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options.
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Information about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands of the transmission phase.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

const REPLY_FLAG_DONE: u16 = 1 << 0;

/// Types of structured reply chunks.
mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = (1 << 15) + 1;
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// The error numbers of the protocol, whatever numbers the system uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Errno {
    Eperm = 1,
    Eio = 5,
    Enomem = 12,
    Einval = 22,
    Enospc = 28,
    Eoverflow = 75,
    Enotsup = 95,
    Eshutdown = 108,
}

impl Errno {
    /// Returns the message of an error chunk, for people.
    fn message(self) -> &'static str {
        match self {
            Errno::Eperm => "the export is read-only",
            Errno::Eio => "the store failed",
            Errno::Enomem => "the server is out of memory",
            Errno::Einval => "invalid request",
            Errno::Enospc => "no space, or past the end of the export",
            Errno::Eoverflow => "the read is too long",
            Errno::Enotsup => "not faster than a write",
            Errno::Eshutdown => "the server is shutting down",
        }
    }
}

/// The form of requests and replies in the transmission phase. Each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Headers {
    /// Compact requests and simple replies.
    #[default]
    Simple,
    /// Compact requests. Reads and block status have structured replies.
    Structured,
    /// Extended requests and replies, with lengths of 64 bits.
    Extended,
}

impl Headers {
    /// The form of this number, as `as u8` gives it.
    pub fn of_number(number: u8) -> Option<Headers> {
        [Headers::Simple, Headers::Structured, Headers::Extended].into_iter().find(|one| *one as u8 == number)
    }
}

/// Encodes the server's first message.
pub fn greeting() -> Vec<u8> {
    let flags = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
    [&INIT_PASSWD.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat()
}

/// Returns whether the client wants no zeros. None if it sent a flag that was not offered.
pub fn decode_client_flags(bytes: [u8; 4]) -> Option<bool> {
    let flags = u32::from_be_bytes(bytes);
    let known = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    (flags & !known == 0).then_some(flags & u32::from(FLAG_NO_ZEROES) != 0)
}

/// The length of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;

/// Returns the option and the length of its data. None if the magic is wrong.
pub fn decode_option(bytes: [u8; OPTION_HEADER_BYTES]) -> Option<(u32, u32)> {
    let mut fields = Fields(&bytes);
    (fields.u64()? == OPTION_MAGIC).then_some((fields.u32()?, fields.u32()?))
}

/// The data of `INFO` and `GO`: an export's name and the requested information.
pub struct InfoRequest<'a> {
    /// The name, of any length that fits in the option's data.
    pub name: &'a [u8],
    wanted: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Decodes the data. Returns None if the lengths do not add up.
    pub fn decode(data: &'a [u8]) -> Option<InfoRequest<'a>> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u16()?;
        let wanted = fields.0;
        (wanted.len() == 2 * usize::from(count)).then_some(InfoRequest { name, wanted })
    }

    /// Returns whether the client asked for this information.
    pub fn wants(&self, information: u16) -> bool {
        self.wanted.chunks_exact(2).any(|wanted| wanted == information.to_be_bytes())
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`: an export's name and queries.
pub struct ContextRequest<'a> {
    /// The name, of any length that fits in the option's data.
    pub name: &'a [u8],
    /// The queries, at most as many as fit in the option's data.
    pub queries: Vec<&'a [u8]>,
}

impl<'a> ContextRequest<'a> {
    /// Decodes the data. Returns None if the lengths do not add up.
    pub fn decode(data: &'a [u8]) -> Option<ContextRequest<'a>> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(fields.string()?);
        }
        fields.0.is_empty().then_some(ContextRequest { name, queries })
    }
}

/// Appends a reply to an option.
pub fn encode_option_reply(to: &mut Vec<u8>, option: u32, reply: u32, data: &[&[u8]]) {
    let data_bytes: usize = data.iter().map(|part| part.len()).sum();
    to.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    to.extend([option, reply, data_bytes as u32].iter().flat_map(|field| field.to_be_bytes()));
    to.extend(data.iter().copied().flatten());
}

impl Headers {
    /// Returns the length of a request without its payload.
    pub fn request_bytes(self) -> usize {
        if self == Headers::Extended { 32 } else { 28 }
    }

    /// Returns the longest part of a chunk before its payload.
    const CHUNK_BYTES_MAX: usize = 32;
}

/// A request, as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

impl RequestHeader {
    /// Decodes a request of `headers.request_bytes()`. Returns None if the magic is wrong.
    pub fn decode(bytes: &[u8], headers: Headers) -> Option<RequestHeader> {
        let is_extended = headers == Headers::Extended;
        let mut fields = Fields(bytes);
        let magic = if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        (fields.u32()? == magic).then_some(())?;
        Some(RequestHeader {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset_bytes: fields.u64()?,
            len_bytes: if is_extended { fields.u64()? } else { fields.u32()?.into() },
        })
    }
}

/// The payload of a block status request: the length of the range, and the chosen contexts.
pub struct Selection<'a> {
    pub len_bytes: u64,
    ids: &'a [u8],
}

impl<'a> Selection<'a> {
    /// Returns the length of the payload with this number of contexts.
    pub fn bytes_of(contexts: usize) -> u64 {
        8 + 4 * contexts as u64
    }

    /// Decodes the payload. Returns None if it has no such length.
    pub fn decode(payload: &'a [u8]) -> Option<Selection<'a>> {
        let mut fields = Fields(payload);
        let len_bytes = fields.u64()?;
        fields.0.len().is_multiple_of(4).then_some(Selection { len_bytes, ids: fields.0 })
    }

    /// Returns the chosen contexts, by their identifiers.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.ids.as_chunks().0.iter().map(|id| u32::from_be_bytes(*id))
    }
}

/// A reply without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple reply. Without an error it reports success, and data may follow.
    Simple { cookie: u64, error: Option<Errno> },
    /// The last chunk of a successful request, without content.
    None { cookie: u64 },
    /// A chunk that is followed by `len_bytes` of data.
    OffsetData { cookie: u64, offset_bytes: u64, len_bytes: u32, done: bool },
    /// The last chunk of a failed request.
    Error { cookie: u64, error: Errno },
    /// The last chunk of a request that failed at an offset.
    ErrorOffset { cookie: u64, error: Errno, offset_bytes: u64 },
    /// No bytes: the data continue the previous message, or have headers of their own.
    Continuation,
}

/// The length of the longest encoded [`Reply`].
const REPLY_MAX_BYTES: usize = Headers::CHUNK_BYTES_MAX + 6 + 42 + 8;

/// An encoded [`Reply`].
pub struct ReplyBytes {
    bytes: [u8; REPLY_MAX_BYTES],
    len: usize,
}

impl std::ops::Deref for ReplyBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl ReplyBytes {
    /// No bytes.
    pub const EMPTY: ReplyBytes = ReplyBytes { bytes: [0; REPLY_MAX_BYTES], len: 0 };

    fn put(mut self, field: &[u8]) -> ReplyBytes {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    fn chunk(form: Form, done: bool, kind: u16, cookie: u64, payload_bytes: u32) -> ReplyBytes {
        let is_extended = form.headers == Headers::Extended;
        let magic = if is_extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        let chunk = ReplyBytes::EMPTY
            .put(&magic.to_be_bytes())
            .put(&if done { REPLY_FLAG_DONE } else { 0 }.to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&cookie.to_be_bytes());
        match is_extended {
            true => chunk.put(&form.offset_bytes.to_be_bytes()).put(&u64::from(payload_bytes).to_be_bytes()),
            false => chunk.put(&payload_bytes.to_be_bytes()),
        }
    }

    fn error(form: Form, kind: u16, cookie: u64, error: Errno, tail: &[u8]) -> ReplyBytes {
        let message = error.message();
        ReplyBytes::chunk(form, true, kind, cookie, (6 + message.len() + tail.len()) as u32)
            .put(&u32::from(error as u8).to_be_bytes())
            .put(&(message.len() as u16).to_be_bytes())
            .put(message.as_bytes())
            .put(tail)
    }
}

/// What the encoding of a reply depends on: the negotiated headers, and the offset of its request.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub headers: Headers,
    pub offset_bytes: u64,
}

impl Reply {
    /// Encodes the reply, without its data. With extended headers, a simple reply becomes a chunk.
    pub fn encode(self, form: Form) -> ReplyBytes {
        match self {
            Reply::Simple { cookie, error: None } if form.headers == Headers::Extended => {
                Reply::None { cookie }.encode(form)
            }
            Reply::Simple { cookie, error: Some(error) } if form.headers == Headers::Extended => {
                Reply::Error { cookie, error }.encode(form)
            }
            Reply::Simple { cookie, error } => ReplyBytes::EMPTY
                .put(&SIMPLE_REPLY_MAGIC.to_be_bytes())
                .put(&error.map_or(0, |error| u32::from(error as u8)).to_be_bytes())
                .put(&cookie.to_be_bytes()),
            Reply::None { cookie } => ReplyBytes::chunk(form, true, chunk::NONE, cookie, 0),
            Reply::OffsetData { cookie, offset_bytes, len_bytes, done } => {
                ReplyBytes::chunk(form, done, chunk::OFFSET_DATA, cookie, 8 + len_bytes)
                    .put(&offset_bytes.to_be_bytes())
            }
            Reply::Error { cookie, error } => ReplyBytes::error(form, chunk::ERROR, cookie, error, &[]),
            Reply::ErrorOffset { cookie, error, offset_bytes } => {
                ReplyBytes::error(form, chunk::ERROR_OFFSET, cookie, error, &offset_bytes.to_be_bytes())
            }
            Reply::Continuation => ReplyBytes::EMPTY,
        }
    }
}

/// An extent of a block status chunk: its length in bytes, and its status.
pub type Extent = (u64, u32);

/// Encodes a block status chunk at the beginning of `to`, and returns its length. Takes as many
/// extents as fit, at least one.
///
/// # Panics
/// If `to` has no space for one extent, or `extents` has none.
pub fn encode_status(
    to: &mut [u8],
    form: Form,
    cookie: u64,
    context: u32,
    extents: &[Extent],
    done: bool,
) -> usize {
    let is_extended = form.headers == Headers::Extended;
    let (kind, fixed_bytes, extent_bytes) =
        if is_extended { (chunk::BLOCK_STATUS_EXT, 8, 16) } else { (chunk::BLOCK_STATUS, 4, 8) };
    let head_bytes = ReplyBytes::chunk(form, done, kind, cookie, 0).len;
    let count = extents.len().min((to.len() - head_bytes - fixed_bytes) / extent_bytes);
    assert!(count > 0, "a status has at least one extent");
    let payload_bytes = (fixed_bytes + count * extent_bytes) as u32;
    let mut at = 0;
    let mut put = |field: &[u8]| {
        to[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(&ReplyBytes::chunk(form, done, kind, cookie, payload_bytes));
    put(&context.to_be_bytes());
    if is_extended {
        put(&(count as u32).to_be_bytes());
    }
    for (len_bytes, status) in &extents[..count] {
        match is_extended {
            true => [*len_bytes, u64::from(*status)].iter().for_each(|field| put(&field.to_be_bytes())),
            false => [*len_bytes as u32, *status].iter().for_each(|field| put(&field.to_be_bytes())),
        }
    }
    at
}

/// Decodes big-endian fields from the front of a slice.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A string after its length.
    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(usize::try_from(len).ok()?)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_reply_of_every_error_fits() {
        for error in [
            Errno::Eperm,
            Errno::Eio,
            Errno::Enomem,
            Errno::Einval,
            Errno::Enospc,
            Errno::Eoverflow,
            Errno::Enotsup,
            Errno::Eshutdown,
        ] {
            for (headers, head_bytes) in [(Headers::Structured, 20), (Headers::Extended, 32)] {
                let form = Form { headers, offset_bytes: 0 };
                let bytes = Reply::ErrorOffset { cookie: 1, error, offset_bytes: 2 }.encode(form);
                assert_eq!(bytes.len(), head_bytes + 6 + error.message().len() + 8);
            }
        }
    }

    #[test]
    fn an_info_request_whose_lengths_do_not_add_up_is_refused_at_every_length() {
        let whole = [0, 0, 0, 2, b'a', b'b', 0, 2, 0, 3, 0, 1];
        assert!(InfoRequest::decode(&whole).is_some_and(|request| request.name == b"ab" && request.wants(3)));
        for len in 0..whole.len() {
            assert!(InfoRequest::decode(&whole[..len]).is_none(), "{len} bytes");
        }
        assert!(InfoRequest::decode(&[0xff, 0xff, 0xff, 0xff, 0, 0]).is_none());
    }
}
