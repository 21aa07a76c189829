//! One connection: its handshake, and one request at a time.

use std::io;
use std::time::Duration;

use super::address::Address;
use super::stream::{OnSignal, Stream};
use crate::memory::Memory;

/// Options of the handshake.
mod option {
    pub const LIST: u32 = 3;
    pub const GO: u32 = 7;
}

/// Replies to options.
mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
}

/// Flags of an export.
mod flag {
    pub const READ_ONLY: u16 = 1 << 1;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// The longest reply to an option that is read, in bytes: names and descriptions have 4,096 at
/// most.
const REPLY_MAX_BYTES: u32 = 16 << 10;

/// The most exports that are listed.
const EXPORTS_MAX: usize = 1 << 20;

/// The longest request, unless the server names a smaller one, in bytes: every server takes it.
const REQUEST_MAX_BYTES: u32 = 32 << 20;

/// The commands that the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Fills memory.
    Read = 0,
    /// Writes memory.
    Write = 1,
    /// Ends the connection.
    Disconnect = 2,
    /// Makes acknowledged writes durable.
    Flush = 3,
    /// Discards a range.
    Trim = 4,
    /// Zeroes a range.
    WriteZeroes = 6,
}

/// What the server says about an export.
#[derive(Clone, Copy, Debug)]
pub struct Export {
    /// Length in bytes.
    pub size: u64,
    flags: u16,
    /// The longest read or write in bytes.
    pub request_max_bytes: u32,
}

impl Export {
    /// Whether writes fail.
    pub fn read_only(&self) -> bool {
        self.flags & flag::READ_ONLY != 0
    }

    /// Whether a flush on one connection covers the writes of all.
    pub fn can_multi_conn(&self) -> bool {
        self.flags & flag::CAN_MULTI_CONN != 0
    }
}

/// A connection to an export.
pub struct Connection {
    stream: Stream,
    /// What the server said when the connection was made.
    pub export: Export,
    cookie: u64,
}

impl Connection {
    /// Connects to an export.
    pub fn open(
        address: &Address,
        name: &str,
        timeout: Option<Duration>,
        on_signal: OnSignal,
    ) -> io::Result<Connection> {
        let stream = greet(address, timeout, on_signal)?;
        let export = go(&stream, name)?;
        Ok(Connection { stream, export, cookie: 0 })
    }

    /// Returns the names of a server's exports.
    pub fn list(
        address: &Address,
        timeout: Option<Duration>,
        on_signal: OnSignal,
    ) -> io::Result<Vec<String>> {
        let stream = greet(address, timeout, on_signal)?;
        send_option(&stream, option::LIST, &[])?;
        let mut names = Vec::new();
        loop {
            match receive_reply(&stream, option::LIST)? {
                (reply::ACK, _) => return Ok(names),
                (reply::SERVER, data) if names.len() < EXPORTS_MAX => {
                    let (len, rest) = data.split_first_chunk().ok_or_else(malformed)?;
                    let name = rest.get(..u32::from_be_bytes(*len) as usize).ok_or_else(malformed)?;
                    names.push(String::from_utf8_lossy(name).into_owned());
                }
                (kind, data) => return Err(refused("the list of exports", kind, &data)),
            }
        }
    }

    /// Runs one command, and waits for its reply. After an error of the connection, which has no
    /// error number of the server, the connection is of no more use.
    ///
    /// # Safety
    /// Until the call returns, the memory is valid for writes if the command is a read, and for
    /// reads if it is a write; nothing has a reference to memory that is written.
    pub unsafe fn run(
        &mut self,
        command: Command,
        offset: u64,
        len: u32,
        memory: Memory,
    ) -> Result<(), Fault> {
        self.cookie += 1;
        let mut header = [0; 28];
        header[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        header[6..8].copy_from_slice(&(command as u16).to_be_bytes());
        header[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..].copy_from_slice(&len.to_be_bytes());
        let none = memory.first(0);
        let (sent, received) = match command {
            Command::Read => (none, memory),
            Command::Write => (memory, none),
            _ => (none, none),
        };
        // SAFETY: the caller's promise.
        unsafe { self.stream.send(&header, sent) }.map_err(Fault::Connection)?;
        if command == Command::Disconnect {
            return Ok(());
        }
        let mut errno = 0;
        let check = |reply: &[u8; 16]| {
            let is_reply = reply[..4] == 0x6744_6698_u32.to_be_bytes();
            if !is_reply || reply[8..] != self.cookie.to_be_bytes() {
                return Err(malformed());
            }
            errno = u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]);
            Ok(errno == 0)
        };
        // SAFETY: the caller's promise. One request is in flight, so nothing follows its reply.
        unsafe { self.stream.receive(received, check) }.map_err(Fault::Connection)?;
        match errno {
            0 => Ok(()),
            errno => Err(Fault::Server(io::Error::from_raw_os_error(errno as i32))),
        }
    }
}

/// Why a command failed.
#[derive(Debug)]
pub enum Fault {
    /// The server refused it, or its store failed. The connection serves further requests.
    Server(io::Error),
    /// The connection broke.
    Connection(io::Error),
}

/// Connects, and exchanges the greeting.
fn greet(address: &Address, timeout: Option<Duration>, on_signal: OnSignal) -> io::Result<Stream> {
    let stream = Stream::new(address.connect(timeout, on_signal)?, timeout, on_signal);
    let mut greeting = [0; 18];
    stream.receive_all(&mut greeting)?;
    if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(malformed());
    }
    // FIXED_NEWSTYLE, and NO_ZEROES if the server knows it.
    let flags = u32::from(u16::from_be_bytes([greeting[16], greeting[17]]) & 3);
    if flags & 1 == 0 {
        return Err(io::Error::other("the server is too old: it has no fixed newstyle handshake"));
    }
    send(&stream, &flags.to_be_bytes())?;
    Ok(stream)
}

/// Begins the transmission phase of an export.
fn go(stream: &Stream, name: &str) -> io::Result<Export> {
    const BLOCK_SIZE: u16 = 3;
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend([1_u16.to_be_bytes(), BLOCK_SIZE.to_be_bytes()].concat());
    send_option(stream, option::GO, &data)?;
    let mut found = None;
    let mut request_max_bytes = REQUEST_MAX_BYTES;
    loop {
        match receive_reply(stream, option::GO)? {
            (reply::INFO, data) => match (data.as_slice(), data.len()) {
                ([0, 0, info @ ..], 12) => {
                    let (size, flags) = info.split_at(8);
                    let size = u64::from_be_bytes(size.try_into().expect("eight bytes"));
                    found = Some((size, u16::from_be_bytes([flags[0], flags[1]])));
                }
                ([0, 3, sizes @ ..], 14) => {
                    let most = u32::from_be_bytes(sizes[8..].try_into().expect("four bytes"));
                    request_max_bytes = most.clamp(4096, REQUEST_MAX_BYTES);
                }
                _ => {}
            },
            (reply::ACK, _) => {
                let (size, flags) = found.ok_or_else(malformed)?;
                return Ok(Export { size, flags, request_max_bytes });
            }
            (kind, data) => return Err(refused(&format!("the export {name:?}"), kind, &data)),
        }
    }
}

fn send_option(stream: &Stream, option: u32, data: &[u8]) -> io::Result<()> {
    let head = [&b"IHAVEOPT"[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat();
    send(stream, &[&head, data].concat())
}

fn send(stream: &Stream, bytes: &[u8]) -> io::Result<()> {
    let none = Memory { start: std::ptr::null_mut(), len: 0 };
    // SAFETY: the memory is empty.
    unsafe { stream.send(bytes, none) }
}

/// Receives a reply to an option: its type and its data.
fn receive_reply(stream: &Stream, option: u32) -> io::Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    stream.receive_all(&mut head)?;
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let (kind, len) = (number(12), number(16));
    if head[..8] != 0x0003_e889_0455_65a9_u64.to_be_bytes() || number(8) != option || len > REPLY_MAX_BYTES {
        return Err(malformed());
    }
    let mut data = vec![0; len as usize];
    stream.receive_all(&mut data)?;
    Ok((kind, data))
}

fn refused(what: &str, kind: u32, data: &[u8]) -> io::Error {
    let message = String::from_utf8_lossy(data);
    let (error, why) = match kind {
        reply::ERR_UNKNOWN => (io::ErrorKind::NotFound, "the server has none of this name".into()),
        reply::ERR_TLS_REQD => {
            (io::ErrorKind::Unsupported, "the server asks for TLS, which this client cannot do".into())
        }
        reply::ERR_UNSUP => (io::ErrorKind::Unsupported, "the server is too old".into()),
        _ => (io::ErrorKind::Other, format!("the server refused it ({kind:#x}): {message}")),
    };
    io::Error::new(error, format!("{what}: {why}"))
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server does not speak the NBD protocol")
}
