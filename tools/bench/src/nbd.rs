//! The part of the NBD protocol that the clients in this crate share: the fixed newstyle handshake
//! with `NBD_OPT_EXPORT_NAME`, and the numbers of simple replies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::error::Error;

const HANDSHAKE: [u8; 16] = *b"NBDMAGICIHAVEOPT";
const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
const EXPORT_NAME: u32 = 1;
/// Fixed newstyle, and no padding after the export's size.
const CLIENT_FLAGS: u32 = 3;
/// The first word of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The first word of a simple reply.
pub const REPLY_MAGIC: u32 = 0x6744_6698;
/// The length of a simple reply without data.
pub const REPLY_BYTES: usize = 16;

/// The longest time for one request.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// Connects to an export. Reads of the returned stream fail if nothing arrives for a minute.
pub fn connect(socket: &Path, export: &str) -> Result<UnixStream, Error> {
    let wrong = |error: std::io::Error| Error::at("NBD")(error);
    let mut socket = UnixStream::connect(socket).map_err(wrong)?;
    socket.set_read_timeout(Some(REQUEST_MAX)).map_err(wrong)?;
    socket.set_write_timeout(Some(REQUEST_MAX)).map_err(wrong)?;
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).map_err(wrong)?;
    if greeting[..16] != HANDSHAKE {
        return Err(Error::new("NBD: the server does not speak the newstyle protocol"));
    }
    let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC);
    hello.extend(EXPORT_NAME.to_be_bytes());
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export.bytes());
    socket.write_all(&hello).map_err(wrong)?;
    let mut size_and_flags = [0; 10];
    socket.read_exact(&mut size_and_flags).map_err(wrong)?;
    Ok(socket)
}
