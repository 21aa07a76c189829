//! A client that sends and receives raw bytes. Its constants are copied from the protocol document,
//! and not from the server, so that it finds a wrong constant there.

use crate::rig::PATIENCE;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;
pub const PAYLOAD_LEN: u16 = 32;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ENOTSUP: u32 = 95;
pub const ESHUTDOWN: u32 = 108;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const ACK: u32 = 1;
pub const UNSUP: u32 = 0x8000_0001;
pub const INVALID: u32 = 0x8000_0003;
pub const UNKNOWN: u32 = 0x8000_0006;
pub const TOO_BIG: u32 = 0x8000_0009;
pub const EXT_HEADER_REQD: u32 = 0x8000_000a;

/// A connection by a unix socket or by TCP: every call here works on the descriptor of either.
pub struct Client {
    wire: Wire,
    /// The greeting was exchanged before TLS began.
    is_greeted: bool,
}

enum Wire {
    Plain(UnixStream),
    Tls(Box<StreamOwned<ClientConnection, UnixStream>>),
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(bytes),
            Wire::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(bytes),
            Wire::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.flush(),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}

impl Wire {
    fn socket(&self) -> &UnixStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream) => &stream.sock,
        }
    }
}

/// A simple reply without its data, or a chunk of a structured one.
pub enum Reply {
    Simple { error: u32, cookie: u64 },
    Chunk(Chunk),
}

/// The status of the extents from the offset of a request on, in one context.
#[derive(Debug, PartialEq, Eq)]
pub struct Status {
    pub context: u32,
    /// The length and the status of each.
    pub extents: Vec<(u64, u64)>,
}

/// A chunk of a structured reply.
#[derive(Debug)]
pub struct Chunk {
    pub done: bool,
    pub kind: u16,
    pub cookie: u64,
    pub payload: Vec<u8>,
}

impl Chunk {
    pub fn offset(&self) -> u64 {
        assert_eq!(self.kind, 1, "{self:?}");
        u64::from_be_bytes(self.payload[..8].try_into().unwrap())
    }

    pub fn error(&self) -> u32 {
        assert!(self.kind & 0x8000 != 0, "an error chunk: {self:?}");
        let message = u16::from_be_bytes(self.payload[4..6].try_into().unwrap());
        let tail = if self.kind == 0x8002 { 8 } else { 0 };
        assert_eq!(self.payload.len(), 6 + usize::from(message) + tail);
        assert!(std::str::from_utf8(&self.payload[6..6 + usize::from(message)]).is_ok());
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }

    /// Returns the content of a block status chunk.
    pub fn status(&self) -> Status {
        let u32_at = |at: usize| u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_be_bytes(self.payload[at..at + 8].try_into().unwrap());
        let count = match self.kind {
            5 => (self.payload.len() - 4) / 8,
            6 => u32_at(4) as usize,
            _ => panic!("no status: {self:?}"),
        };
        let extents: Vec<(u64, u64)> = match self.kind {
            5 => (0..count).map(|i| 4 + i * 8).map(|at| (u32_at(at).into(), u32_at(at + 4).into())).collect(),
            _ => (0..count).map(|i| 8 + i * 16).map(|at| (u64_at(at), u64_at(at + 8))).collect(),
        };
        assert_eq!(self.payload.len(), if self.kind == 5 { 4 + 8 * count } else { 8 + 16 * count });
        assert!(count > 0 && extents.iter().all(|extent| extent.0 > 0), "{self:?}");
        Status { context: u32_at(0), extents }
    }

    pub fn error_offset(&self) -> u64 {
        assert_eq!(self.kind, 0x8002, "{self:?}");
        u64::from_be_bytes(*self.payload.last_chunk().unwrap())
    }
}

pub fn request_bytes(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let magic = 0x2560_9513_u32.to_be_bytes();
    let [flags, command] = [flags, command].map(u16::to_be_bytes);
    [&magic[..], &flags, &command, &cookie.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// A request with extended headers.
pub fn extended_bytes(flags: u16, command: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    let magic = 0x21e4_1c71_u32.to_be_bytes();
    let [flags, command] = [flags, command].map(u16::to_be_bytes);
    let [cookie, offset, len] = [cookie, offset, len].map(u64::to_be_bytes);
    [&magic[..], &flags, &command, &cookie, &offset, &len].concat()
}

/// The data of the options that list or select contexts.
pub fn context_data(export: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let string = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat();
    let count = (queries.len() as u32).to_be_bytes().to_vec();
    let parts = [vec![string(export), count], queries.iter().map(|query| string(query)).collect()];
    parts.concat().concat()
}

pub fn write_bytes(flags: u16, cookie: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    [&request_bytes(flags, WRITE, cookie, offset, payload.len() as u32), payload].concat()
}

pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

pub fn info_data(name: &[u8], wanted: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|information| information.to_be_bytes()));
    data
}

impl Client {
    pub fn unix(path: &Path) -> Client {
        Client::over(UnixStream::connect(path).unwrap())
    }

    pub fn tcp(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Client::over(UnixStream::from(OwnedFd::from(stream)))
    }

    fn over(stream: UnixStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client { wire: Wire::Plain(stream), is_greeted: false }
    }

    /// Greets, asks for TLS, and runs its handshake.
    pub fn start_tls(mut self, config: &Arc<ClientConfig>) -> io::Result<Client> {
        self.greet(3);
        self.expect_option_reply(5, b"", ACK);
        self.handshake(config)
    }

    /// Asks the server for new keys of the session.
    pub fn update_keys(&mut self) {
        let Wire::Tls(stream) = &mut self.wire else { unreachable!() };
        stream.conn.refresh_traffic_keys().unwrap();
    }

    /// Runs the handshake of TLS, to which the server has agreed.
    pub fn handshake(self, config: &Arc<ClientConfig>) -> io::Result<Client> {
        let Wire::Plain(mut stream) = self.wire else { unreachable!() };
        let name = "localhost".try_into().unwrap();
        let mut tls = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)?;
        }
        Ok(Client { wire: Wire::Tls(Box::new(StreamOwned::new(tls, stream))), is_greeted: true })
    }

    pub fn try_clone(&self) -> Client {
        Client { wire: Wire::Plain(self.wire.socket().try_clone().unwrap()), is_greeted: false }
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.write_all(bytes)?;
        self.wire.flush()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    pub fn close_sending_side(&self) {
        self.wire.socket().shutdown(Shutdown::Write).unwrap();
    }

    pub fn receive(&mut self, len: usize) -> Vec<u8> {
        self.try_receive(len).unwrap()
    }

    pub fn try_receive(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.wire.read_exact(&mut bytes).map(|()| bytes)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.receive(N).try_into().unwrap()
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Receives everything up to the end of the stream. Panics if the server neither sends nor
    /// hangs up.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.wire.read_to_end(&mut bytes) {
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => panic!("no end: {error}"),
            _ => bytes,
        }
    }

    pub fn expect_end(&mut self) {
        assert_eq!(self.rest(), b"", "the server sends nothing more");
    }

    /// Receives the greeting and sends the client's flags.
    pub fn greet(&mut self, flags: u32) {
        assert_eq!(self.receive(16), b"NBDMAGICIHAVEOPT");
        assert_eq!(self.u16(), 3, "FIXED_NEWSTYLE and NO_ZEROES");
        self.send(&flags.to_be_bytes());
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        self.send(&option_bytes(option, data));
    }

    /// Receives the next reply to an option. Returns its type and its data.
    pub fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.u64(), 0x0003_e889_0455_65a9);
        assert_eq!(self.u32(), option);
        let kind = self.u32();
        let len = self.u32() as usize;
        (kind, self.receive(len))
    }

    /// Sends an option and expects one reply, of type `kind`.
    pub fn expect_option_reply(&mut self, option: u32, data: &[u8], kind: u32) {
        self.option(option, data);
        let (found, message) = self.option_reply(option);
        assert_eq!(found, kind, "{:?}", String::from_utf8_lossy(&message));
    }

    /// Runs the handshake up to transmission. Returns the export's length and flags.
    pub fn enter(&mut self, export: &str, structured: bool) -> (u64, u16) {
        if !self.is_greeted {
            self.greet(3);
        }
        self.enter_greeted(export, structured)
    }

    /// Runs the handshake after the greeting, or after that of TLS.
    pub fn enter_greeted(&mut self, export: &str, structured: bool) -> (u64, u16) {
        if structured {
            self.expect_option_reply(8, b"", ACK);
        }
        self.go(export)
    }

    /// Lists (9) or selects (10) contexts. Returns their identifiers and names, or the error.
    pub fn contexts(
        &mut self,
        option: u32,
        export: &str,
        queries: &[&str],
    ) -> Result<Vec<(u32, String)>, u32> {
        let queries: Vec<&[u8]> = queries.iter().map(|query| query.as_bytes()).collect();
        self.option(option, &context_data(export.as_bytes(), &queries));
        let mut contexts = Vec::new();
        loop {
            match self.option_reply(option) {
                (ACK, data) => {
                    assert!(data.is_empty());
                    return Ok(contexts);
                }
                (4, data) => {
                    let id = u32::from_be_bytes(data[..4].try_into().unwrap());
                    contexts.push((id, String::from_utf8(data[4..].to_vec()).unwrap()));
                }
                (error, _) => return Err(error),
            }
        }
    }

    /// Runs the handshake with both contexts selected, with structured replies or extended headers.
    /// Returns the transmission flags.
    pub fn enter_with_contexts(&mut self, export: &str, extended: bool) -> u16 {
        self.greet(3);
        self.expect_option_reply(if extended { 11 } else { 8 }, b"", ACK);
        let selected = self.contexts(10, export, &["base:allocation", "qemu:allocation-depth"]).unwrap();
        assert_eq!(selected, [(1, "base:allocation".into()), (2, "qemu:allocation-depth".into())]);
        self.go(export).1
    }

    /// Ends the handshake with GO. Returns the export's length and flags.
    pub fn go(&mut self, export: &str) -> (u64, u16) {
        self.option(7, &info_data(export.as_bytes(), &[]));
        let (kind, data) = self.option_reply(7);
        assert_eq!((kind, data.len(), &data[..2]), (3, 12, &[0, 0][..]));
        assert_eq!(self.option_reply(7).0, ACK);
        let len = u64::from_be_bytes(data[2..10].try_into().unwrap());
        (len, u16::from_be_bytes(data[10..].try_into().unwrap()))
    }

    /// Receives a chunk with an extended header, which repeats the offset of its request.
    pub fn extended_chunk(&mut self, offset: u64) -> Chunk {
        assert_eq!(self.u32(), 0x6e8a_278c);
        let (flags, kind, cookie) = (self.u16(), self.u16(), self.u64());
        assert!(flags <= 1, "DONE is the only flag");
        assert_eq!(self.u64(), offset);
        let len = self.u64() as usize;
        Chunk { done: flags == 1, kind, cookie, payload: self.receive(len) }
    }

    /// Sends an extended request, with a payload after it, and returns the error of its reply,
    /// which has no data.
    pub fn ask_extended(&mut self, flags: u16, command: u16, offset: u64, len: u64, payload: &[u8]) -> u32 {
        self.send(&[&extended_bytes(flags, command, 5, offset, len)[..], payload].concat());
        let chunk = self.extended_chunk(offset);
        assert!(chunk.done && chunk.cookie == 5);
        if chunk.kind == 0 { 0 } else { chunk.error() }
    }

    /// Reads with extended headers.
    pub fn read_extended(&mut self, flags: u16, offset: u64, len: u64) -> Result<Vec<u8>, u32> {
        self.send(&extended_bytes(flags, READ, 6, offset, len));
        let (mut data, mut is_done) = (vec![0; len as usize], false);
        while !is_done {
            let chunk = self.extended_chunk(offset);
            match chunk.kind {
                0 => {}
                1 => {
                    let at = (chunk.offset() - offset) as usize;
                    data[at..at + chunk.payload.len() - 8].copy_from_slice(&chunk.payload[8..]);
                }
                _ => return Err(chunk.error()),
            }
            is_done = chunk.done;
        }
        Ok(data)
    }

    /// Asks for the status of a range. Returns that of each context, or the error.
    pub fn block_status(
        &mut self,
        extended: bool,
        flags: u16,
        offset: u64,
        len: u64,
    ) -> Result<Vec<Status>, u32> {
        match extended {
            true => self.send(&extended_bytes(flags, BLOCK_STATUS, 9, offset, len)),
            false => self.request(flags, BLOCK_STATUS, 9, offset, len as u32),
        }
        self.statuses(extended, offset)
    }

    /// Receives the chunks of a block status reply.
    pub fn statuses(&mut self, extended: bool, offset: u64) -> Result<Vec<Status>, u32> {
        let mut statuses = Vec::new();
        loop {
            let chunk = if extended { self.extended_chunk(offset) } else { self.chunk() };
            assert_eq!(chunk.cookie, 9);
            if chunk.kind & 0x8000 != 0 {
                assert!(chunk.done && statuses.is_empty());
                return Err(chunk.error());
            }
            assert_eq!(chunk.kind, if extended { 6 } else { 5 });
            statuses.push(chunk.status());
            if chunk.done {
                return Ok(statuses);
            }
        }
    }

    pub fn request(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
        self.send(&request_bytes(flags, command, cookie, offset, len));
    }

    pub fn write(&mut self, flags: u16, cookie: u64, offset: u64, payload: &[u8]) {
        self.send(&write_bytes(flags, cookie, offset, payload));
    }

    /// Sends a request without a payload, and returns the error of its reply, which has no data.
    pub fn ask(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> u32 {
        self.request(flags, command, cookie, offset, len);
        self.expect_status_of(cookie)
    }

    /// Writes, and returns the error of the reply.
    pub fn put(&mut self, flags: u16, cookie: u64, offset: u64, payload: &[u8]) -> u32 {
        self.write(flags, cookie, offset, payload);
        self.expect_status_of(cookie)
    }

    fn expect_status_of(&mut self, cookie: u64) -> u32 {
        let (error, found) = self.status();
        assert_eq!(found, cookie, "error {error}");
        error
    }

    /// Receives a simple reply without its data, or a chunk.
    pub fn reply(&mut self) -> Reply {
        match self.u32() {
            0x6744_6698 => Reply::Simple { error: self.u32(), cookie: self.u64() },
            0x668e_33ef => Reply::Chunk(self.chunk_after_magic()),
            magic => panic!("no reply begins with {magic:x}"),
        }
    }

    /// Receives the header of a simple reply. Returns its error and its cookie.
    pub fn simple(&mut self) -> (u32, u64) {
        match self.reply() {
            Reply::Simple { error, cookie } => (error, cookie),
            Reply::Chunk(chunk) => panic!("not simple: {chunk:?}"),
        }
    }

    pub fn chunk(&mut self) -> Chunk {
        match self.reply() {
            Reply::Chunk(chunk) => chunk,
            Reply::Simple { error, cookie } => panic!("a simple reply: {error}, {cookie}"),
        }
    }

    pub fn chunk_after_magic(&mut self) -> Chunk {
        let (flags, kind, cookie) = (self.u16(), self.u16(), self.u64());
        assert!(flags <= 1, "DONE is the only flag");
        let len = self.u32() as usize;
        Chunk { done: flags == 1, kind, cookie, payload: self.receive(len) }
    }

    /// Receives a reply without data, simple or structured. Returns its error (0: none) and its
    /// cookie.
    pub fn status(&mut self) -> (u32, u64) {
        match self.reply() {
            Reply::Simple { error, cookie } => (error, cookie),
            Reply::Chunk(chunk) => {
                assert!(chunk.done);
                (if chunk.kind == 0 { 0 } else { chunk.error() }, chunk.cookie)
            }
        }
    }

    /// Reads a range with a reply of the negotiated form. A structured one has the flags.
    pub fn read(&mut self, structured: bool, flags: u16, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        match structured {
            true => self.read_structured(flags, offset, len),
            false => self.read_simple(offset, len),
        }
    }

    /// Reads a range with a structured reply. Returns the data of all its chunks, or the error.
    pub fn read_structured(&mut self, flags: u16, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.request(flags, READ, 77, offset, len);
        let (mut data, mut received) = (vec![0; len as usize], 0);
        loop {
            let chunk = self.chunk();
            assert_eq!(chunk.cookie, 77);
            match chunk.kind {
                0 => {}
                1 => {
                    let at = (chunk.offset() - offset) as usize;
                    data[at..at + chunk.payload.len() - 8].copy_from_slice(&chunk.payload[8..]);
                    received += chunk.payload.len() - 8;
                }
                _ => {
                    assert!(chunk.done);
                    return Err(chunk.error());
                }
            }
            if chunk.done {
                assert_eq!(received, len as usize);
                return Ok(data);
            }
        }
    }

    /// Reads a range with a simple reply.
    pub fn read_simple(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.request(0, READ, 78, offset, len);
        match self.simple() {
            (0, 78) => Ok(self.receive(len as usize)),
            (error, 78) => Err(error),
            (_, cookie) => panic!("no request has the cookie {cookie}"),
        }
    }
}
