//! [`Supervisor`]: notifies the service manager that the server serves, reloads or ends, by the
//! protocol of sd_notify(3).
//!
//! A message is a datagram with a `KEY=VALUE` on each line, to the socket that NOTIFY_SOCKET names.
//! The server ignores failures to send.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::time::{ClockId, clock_gettime};

/// How long a message may wait for a manager that reads none. It is then lost.
const SEND_MAX: Duration = Duration::from_secs(2);

/// A socket for messages, which does not wait for ever: a manager that hangs must not stop the
/// server.
fn socket() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_MAX))?;
    Ok(socket)
}

/// The service manager, if there is one.
#[derive(Default)]
pub struct Supervisor {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How long the server may be silent before the manager kills it.
    watchdog: Option<Duration>,
    is_stopping: AtomicBool,
}

impl Supervisor {
    /// The manager that listens at the socket of this name; `@` begins an abstract name.
    pub fn new(notify_socket: Option<&OsStr>, watchdog: Option<Duration>) -> Supervisor {
        let socket = notify_socket.and_then(|name| {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                _ => SocketAddr::from_pathname(name),
            };
            Some((socket().ok()?, address.ok()?))
        });
        Supervisor { socket, watchdog, is_stopping: AtomicBool::new(false) }
    }

    /// The server serves, and its configuration is in force. Ignored once the server ends.
    pub fn ready(&self, status: &str) {
        // Relaxed: a flag alone, for a reload that ends after the end has begun.
        if !self.is_stopping.load(Ordering::Relaxed) {
            self.send(&format!("READY=1\nSTATUS={status}"));
        }
    }

    /// The server reads its configuration again; `ready` follows.
    pub fn reloading(&self) {
        // The manager ignores every `READY=1` that was sent before this time.
        let now: Duration = clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
    }

    /// The server ends.
    pub fn stopping(&self, status: &str) {
        // Relaxed: see `ready`.
        self.is_stopping.store(true, Ordering::Relaxed);
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// What the server does, in a line.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// Asks for this much more time to end.
    pub fn extend(&self, time: Duration) {
        self.send(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
    }

    /// The main thread works.
    pub fn alive(&self) {
        if self.watchdog.is_some() {
            self.send("WATCHDOG=1");
        }
    }

    /// Time between two calls of `alive`: half of what the manager allows, and at most this.
    pub fn period(&self, most: Duration) -> Duration {
        self.watchdog.map_or(most, |watchdog| most.min(watchdog / 2))
    }

    /// Another process serves now.
    pub fn succeeded_by(&self, pid: i32) {
        self.send(&format!("MAINPID={pid}"));
    }

    /// Has the manager keep a descriptor, under this name, until the service is started again.
    pub fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let Some((_, address)) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        let socket = socket()?;
        socket.connect_addr(address)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let kept = [descriptor];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&kept)), "the buffer has room for it");
        let message = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        sendmsg(&socket, &[IoSlice::new(message.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Has the manager close the descriptors of this name.
    pub fn forget(&self, name: &str) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            log::debug!("cannot send {message:?} to the service manager: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_that_reads_no_messages_does_not_stop_the_server() {
        let path = std::env::temp_dir().join(format!("octavo-notify-{}", std::process::id()));
        let _unread = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor::new(Some(path.as_os_str()), None);
        let (_, address) = supervisor.socket.as_ref().unwrap();
        let full = UnixDatagram::unbound().unwrap();
        full.set_nonblocking(true).unwrap();
        while full.send_to_addr(b"STATUS=", address).is_ok() {}
        // Would wait for ever.
        supervisor.status("serving");
        std::fs::remove_file(&path).unwrap();
    }
}
