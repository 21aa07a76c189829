//! A client that sends and receives raw bytes. Its constants are copied from the protocol document,
//! and not from the server, so that it finds a wrong constant there.

use crate::rig::PATIENCE;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;

pub const EPERM: u32 = 1;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ESHUTDOWN: u32 = 108;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;

pub const ACK: u32 = 1;
pub const UNSUP: u32 = 0x8000_0001;
pub const INVALID: u32 = 0x8000_0003;
pub const UNKNOWN: u32 = 0x8000_0006;
pub const TOO_BIG: u32 = 0x8000_0009;

pub enum Client {
    Unix(UnixStream),
    Tcp(TcpStream),
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

    pub fn error_offset(&self) -> u64 {
        assert_eq!(self.kind, 0x8002, "{self:?}");
        u64::from_be_bytes(*self.payload.last_chunk().unwrap())
    }
}

pub fn request_bytes(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
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
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client::Unix(stream)
    }

    pub fn tcp(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client::Tcp(stream)
    }

    pub fn try_clone(&self) -> Client {
        match self {
            Client::Unix(stream) => Client::Unix(stream.try_clone().unwrap()),
            Client::Tcp(stream) => Client::Tcp(stream.try_clone().unwrap()),
        }
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Client::Unix(stream) => stream.write_all(bytes),
            Client::Tcp(stream) => stream.write_all(bytes),
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    pub fn close_sending_side(&self) {
        match self {
            Client::Unix(stream) => stream.shutdown(Shutdown::Write).unwrap(),
            Client::Tcp(stream) => stream.shutdown(Shutdown::Write).unwrap(),
        }
    }

    pub fn receive(&mut self, len: usize) -> Vec<u8> {
        self.try_receive(len).unwrap()
    }

    pub fn try_receive(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self {
            Client::Unix(stream) => stream.read_exact(&mut bytes)?,
            Client::Tcp(stream) => stream.read_exact(&mut bytes)?,
        }
        Ok(bytes)
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
        let read = match self {
            Client::Unix(stream) => stream.read_to_end(&mut bytes),
            Client::Tcp(stream) => stream.read_to_end(&mut bytes),
        };
        match read {
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
        self.greet(3);
        if structured {
            self.expect_option_reply(8, b"", ACK);
        }
        self.option(7, &info_data(export.as_bytes(), &[]));
        let (kind, data) = self.option_reply(7);
        assert_eq!((kind, data.len(), &data[..2]), (3, 12, &[0, 0][..]));
        assert_eq!(self.option_reply(7).0, ACK);
        let len = u64::from_be_bytes(data[2..10].try_into().unwrap());
        (len, u16::from_be_bytes(data[10..].try_into().unwrap()))
    }

    pub fn request(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
        self.send(&request_bytes(flags, command, cookie, offset, len));
    }

    pub fn write(&mut self, flags: u16, cookie: u64, offset: u64, payload: &[u8]) {
        let mut bytes = request_bytes(flags, WRITE, cookie, offset, payload.len() as u32);
        bytes.extend(payload);
        self.send(&bytes);
    }

    /// Receives the header of a simple reply. Returns its error and its cookie.
    pub fn simple(&mut self) -> (u32, u64) {
        assert_eq!(self.u32(), 0x6744_6698);
        (self.u32(), self.u64())
    }

    pub fn chunk(&mut self) -> Chunk {
        assert_eq!(self.u32(), 0x668e_33ef);
        self.chunk_after_magic()
    }

    pub fn chunk_after_magic(&mut self) -> Chunk {
        let (flags, kind, cookie) = (self.u16(), self.u16(), self.u64());
        let len = self.u32() as usize;
        Chunk { done: flags == 1, kind, cookie, payload: self.receive(len) }
    }

    /// Receives a reply without data, simple or structured. Returns its error (0: none) and its
    /// cookie.
    pub fn status(&mut self) -> (u32, u64) {
        match self.u32() {
            0x6744_6698 => (self.u32(), self.u64()),
            0x668e_33ef => {
                let chunk = self.chunk_after_magic();
                assert!(chunk.done);
                (if chunk.kind == 0 { 0 } else { chunk.error() }, chunk.cookie)
            }
            magic => panic!("no reply begins with {magic:x}"),
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
