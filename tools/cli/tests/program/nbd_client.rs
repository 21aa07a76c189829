//! A small NBD client that records exactly which requests were answered, and when.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY_MAGIC: u32 = 0x6744_6698;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;

/// A connection to an export, in transmission.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects and agrees on an export with simple replies.
    pub fn connect(socket: &Path, export: &str) -> std::io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut option = 3_u32.to_be_bytes().to_vec();
        option.extend(OPTION_MAGIC.to_be_bytes());
        option.extend(OPTION_GO.to_be_bytes());
        option.extend((export.len() as u32 + 6).to_be_bytes());
        option.extend((export.len() as u32).to_be_bytes());
        option.extend(export.as_bytes());
        option.extend(0_u16.to_be_bytes());
        stream.write_all(&option)?;
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header)?;
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            let mut data = vec![0; word(16) as usize];
            stream.read_exact(&mut data)?;
            let kind = word(12);
            assert!(kind < 1 << 31, "the server refuses \"{export}\": {}", String::from_utf8_lossy(&data));
            if kind == REPLY_ACK {
                return Ok(Client { stream });
            }
        }
    }

    /// Sends a write without waiting for its reply.
    pub fn send_write(&mut self, cookie: u64, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut message = request(WRITE, cookie, offset, data.len() as u32);
        message.extend(data);
        self.stream.write_all(&message)
    }

    /// Sends the header of a write and half of its bytes.
    pub fn send_half_a_write(&mut self, offset: u64, len: usize) {
        let mut message = request(WRITE, 1, offset, len as u32);
        message.extend(vec![9; len / 2]);
        self.stream.write_all(&message).unwrap();
    }

    /// Sends a flush without waiting for its reply.
    pub fn send_flush(&mut self, cookie: u64) -> std::io::Result<()> {
        self.stream.write_all(&request(FLUSH, cookie, 0, 0))
    }

    /// Sends a read without waiting for its reply.
    pub fn send_read(&mut self, cookie: u64, offset: u64, len: u32) -> std::io::Result<()> {
        self.stream.write_all(&request(READ, cookie, offset, len))
    }

    /// Reads up to so many bytes of whatever the server sends, and drops them.
    pub fn take_some(&mut self, len: usize) {
        let mut rest = (&mut self.stream).take(len as u64);
        let _ = std::io::copy(&mut rest, &mut std::io::sink());
    }

    /// Waits for a reply without data: its cookie and error.
    pub fn reply(&mut self) -> std::io::Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], REPLY_MAGIC.to_be_bytes(), "this is no reply");
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        Ok((u64::from_be_bytes(reply[8..].try_into().unwrap()), error))
    }

    /// Writes and waits.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.send_write(1, offset, data).unwrap();
        assert_eq!(self.reply().unwrap(), (1, 0), "write of {} at {offset}", data.len());
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.stream.write_all(&request(READ, 2, offset, len as u32)).unwrap();
        assert_eq!(self.reply().unwrap(), (2, 0), "read of {len} at {offset}");
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    /// Flushes and waits; the error.
    pub fn flush(&mut self) -> u32 {
        self.send_flush(3).unwrap();
        self.reply().unwrap().1
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A killed server does not listen any more.
        let _ = self.stream.write_all(&request(DISCONNECT, 0, 0, 0));
    }
}

fn request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut message = REQUEST_MAGIC.to_be_bytes().to_vec();
    message.extend(0_u16.to_be_bytes());
    message.extend(command.to_be_bytes());
    message.extend(cookie.to_be_bytes());
    message.extend(offset.to_be_bytes());
    message.extend(len.to_be_bytes());
    message
}
