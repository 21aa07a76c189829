//! Where a server listens: `unix:/path` or `tcp:host:port`.

use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::stream::OnSignal;
use crate::wait::BETWEEN_LOOKS;

/// The port of NBD.
const PORT: u16 = 10809;

/// An address, as text in configurations has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The path of a unix socket.
    Unix(String),
    /// A host and a port.
    Tcp(String),
}

impl Address {
    /// Reads an address. The error is a sentence.
    pub fn of(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(path.into()));
        }
        if let Some(host) = text.strip_prefix("tcp:") {
            let has_port = host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
            return Ok(Address::Tcp(if has_port { host.into() } else { format!("{host}:{PORT}") }));
        }
        Err(format!("{text:?} is no address: write unix:/path/of/socket or tcp:host:port"))
    }

    /// Connects, by a thread of its own, which is left behind if `on_signal` returns an error. Each
    /// later call of the socket returns after [`BETWEEN_LOOKS`].
    pub fn connect(&self, timeout: Option<Duration>, on_signal: OnSignal) -> io::Result<OwnedFd> {
        let address = self.clone();
        let (sender, connected) = channel();
        std::thread::Builder::new().name("octavo-connect".into()).spawn(move || {
            // Nobody waits for a connection that was left behind.
            let _ = sender.send(address.connect_waiting(timeout));
        })?;
        let begun = Instant::now();
        loop {
            match connected.recv_timeout(BETWEEN_LOOKS) {
                Ok(socket) => return socket,
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("cannot connect")),
                Err(RecvTimeoutError::Timeout) => on_signal()?,
            }
            if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time"));
            }
        }
    }

    fn connect_waiting(&self, timeout: Option<Duration>) -> io::Result<OwnedFd> {
        let look = Some(BETWEEN_LOOKS);
        match self {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(look)?;
                stream.set_write_timeout(look)?;
                Ok(stream.into())
            }
            Address::Tcp(host) => {
                let stream = connect_tcp(host, timeout)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(look)?;
                stream.set_write_timeout(look)?;
                Ok(stream.into())
            }
        }
    }
}

/// Connects to the first address of a host that answers.
fn connect_tcp(host: &str, timeout: Option<Duration>) -> io::Result<TcpStream> {
    let Some(timeout) = timeout else { return TcpStream::connect(host) };
    let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    for address in host.to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, timeout);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{path}"),
            Address::Tcp(host) => write!(f, "tcp:{host}"),
        }
    }
}
