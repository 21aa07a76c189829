//! The bytes of the NBD protocol: its constants, and the encoding and decoding of messages. Not
//! here: I/O, decisions.
//!
//! Names and values are those of the protocol document (doc/proto.md of NetworkBlockDevice/nbd),
//! without the prefix `NBD_`. All integers are big-endian.

/// The first bytes that a server sends: `NBDMAGIC`.
pub const INIT_PASSWD: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: begins the newstyle greeting and every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

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
}

/// Replies to options.
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
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
}

/// Flags of commands.
pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
}

const REPLY_FLAG_DONE: u16 = 1 << 0;

/// Types of structured reply chunks.
mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
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
            Errno::Eshutdown => "the server is shutting down",
        }
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
        let name_bytes = fields.u32()?;
        let name = fields.bytes(usize::try_from(name_bytes).ok()?)?;
        let count = fields.u16()?;
        let wanted = fields.0;
        (wanted.len() == 2 * usize::from(count)).then_some(InfoRequest { name, wanted })
    }

    /// Returns whether the client asked for this information.
    pub fn wants(&self, information: u16) -> bool {
        self.wanted.chunks_exact(2).any(|wanted| wanted == information.to_be_bytes())
    }
}

/// Appends a reply to an option.
pub fn encode_option_reply(to: &mut Vec<u8>, option: u32, reply: u32, data: &[&[u8]]) {
    let data_bytes: usize = data.iter().map(|part| part.len()).sum();
    to.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    to.extend([option, reply, data_bytes as u32].iter().flat_map(|field| field.to_be_bytes()));
    to.extend(data.iter().copied().flatten());
}

/// The length of a request without its payload.
pub const REQUEST_BYTES: usize = 28;

/// A request, as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset_bytes: u64,
    pub len_bytes: u32,
}

impl RequestHeader {
    /// Decodes a request. Returns None if the magic is wrong.
    pub fn decode(bytes: [u8; REQUEST_BYTES]) -> Option<RequestHeader> {
        let mut fields = Fields(&bytes);
        (fields.u32()? == REQUEST_MAGIC).then_some(())?;
        Some(RequestHeader {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset_bytes: fields.u64()?,
            len_bytes: fields.u32()?,
        })
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
    /// No bytes: the data continue the previous message.
    Continuation,
}

/// The length of the longest encoded [`Reply`].
pub const REPLY_MAX_BYTES: usize = 80;

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
    const EMPTY: ReplyBytes = ReplyBytes { bytes: [0; REPLY_MAX_BYTES], len: 0 };

    fn put(mut self, field: &[u8]) -> ReplyBytes {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    fn chunk(done: bool, kind: u16, cookie: u64, payload_bytes: u32) -> ReplyBytes {
        ReplyBytes::EMPTY
            .put(&STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .put(&if done { REPLY_FLAG_DONE } else { 0 }.to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&cookie.to_be_bytes())
            .put(&payload_bytes.to_be_bytes())
    }

    fn error(kind: u16, cookie: u64, error: Errno, tail: &[u8]) -> ReplyBytes {
        let message = error.message();
        ReplyBytes::chunk(true, kind, cookie, (6 + message.len() + tail.len()) as u32)
            .put(&u32::from(error as u8).to_be_bytes())
            .put(&(message.len() as u16).to_be_bytes())
            .put(message.as_bytes())
            .put(tail)
    }
}

impl Reply {
    /// Encodes the reply, without its data.
    pub fn encode(self) -> ReplyBytes {
        match self {
            Reply::Simple { cookie, error } => ReplyBytes::EMPTY
                .put(&SIMPLE_REPLY_MAGIC.to_be_bytes())
                .put(&error.map_or(0, |error| u32::from(error as u8)).to_be_bytes())
                .put(&cookie.to_be_bytes()),
            Reply::None { cookie } => ReplyBytes::chunk(true, chunk::NONE, cookie, 0),
            Reply::OffsetData { cookie, offset_bytes, len_bytes, done } => {
                ReplyBytes::chunk(done, chunk::OFFSET_DATA, cookie, 8 + len_bytes)
                    .put(&offset_bytes.to_be_bytes())
            }
            Reply::Error { cookie, error } => ReplyBytes::error(chunk::ERROR, cookie, error, &[]),
            Reply::ErrorOffset { cookie, error, offset_bytes } => {
                ReplyBytes::error(chunk::ERROR_OFFSET, cookie, error, &offset_bytes.to_be_bytes())
            }
            Reply::Continuation => ReplyBytes::EMPTY,
        }
    }
}

/// Decodes big-endian fields from the front of a slice.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
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
            Errno::Eshutdown,
        ] {
            let bytes = Reply::ErrorOffset { cookie: 1, error, offset_bytes: 2 }.encode();
            assert_eq!(bytes.len(), 20 + 6 + error.message().len() + 8);
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
