//! Addresses, listeners and sockets, unix and TCP alike.
//!
//! SIGPIPE has to be ignored, as it is in every Rust program that does not ask for it: a client
//! that has gone is an error of `write`.

use crate::Error;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{self, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, fs, str::FromStr};

/// Replies that a unix socket takes before its client reads them; Linux counts twice as much. By
/// default it takes three replies of 64 KiB, and is writable again when the client has read most of
/// them: server and client then work in turns.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// The longest sleep in a read. A connection that has slept this long gives back what it can do
/// without.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Where a server listens: `unix:/run/octavo.sock` or `tcp:127.0.0.1:10809`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket's path.
    Unix(PathBuf),
    /// An address and a port; port 0 lets the system choose one.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = |reason: &str| Error::Address { address: text.into(), reason: reason.into() };
        match text.split_once(':') {
            Some(("unix", "")) => Err(wrong("the path is empty")),
            Some(("unix", path)) => Ok(Address::Unix(path.into())),
            Some(("tcp", tcp)) => {
                tcp.parse().map(Address::Tcp).map_err(|_| wrong("expected tcp:<IP address>:<port>"))
            }
            _ => Err(wrong("expected unix:<path> or tcp:<IP address>:<port>")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// The path of a unix socket that listens. Removed when it is dropped, if it is still the one that
/// was made.
pub struct SocketPath {
    path: PathBuf,
    made: (u64, u64),
}

impl SocketPath {
    /// Makes way for a socket: one on which nobody listens any more, and which is ours, is removed.
    /// Anything else that is there is an error.
    pub fn clear(path: &Path) -> io::Result<()> {
        remove_stale(path)
    }

    /// The path of a socket that was just made there.
    pub fn of(path: &Path) -> io::Result<SocketPath> {
        Ok(SocketPath { path: path.into(), made: identity(path)? })
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.made) {
            // Somebody may have removed it this moment, which is what is wanted.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A listening socket. A unix socket's path goes with it.
pub struct Listener {
    /// The address, with the port that the system chose.
    pub address: Address,
    kind: Kind,
}

enum Kind {
    Unix(UnixListener, #[expect(dead_code, reason = "kept for its drop")] SocketPath),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens. A unix socket on which nobody listens any more, and which is ours, is replaced.
    pub fn bind(address: &Address, unix_mode: u32) -> Result<Listener, Error> {
        let failed = |source| Error::Listen { address: address.clone(), source };
        match address {
            Address::Tcp(tcp) => {
                let listener = TcpListener::bind(tcp).map_err(failed)?;
                let address = Address::Tcp(listener.local_addr().map_err(failed)?);
                Ok(Listener { address, kind: Kind::Tcp(listener) })
            }
            Address::Unix(path) => {
                SocketPath::clear(path).map_err(failed)?;
                let (listener, made) = listen_at(path, unix_mode).map_err(failed)?;
                Ok(Listener { address: address.clone(), kind: Kind::Unix(listener, made) })
            }
        }
    }

    /// Waits for a client. Fails for ever after `close`.
    pub fn accept(&self) -> io::Result<(Socket, String)> {
        match &self.kind {
            Kind::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                // The system may have a lower limit, and use that.
                let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
                stream.set_read_timeout(Some(SLEEP_MAX))?;
                Ok((Socket::Unix(stream), self.address.to_string()))
            }
            Kind::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_read_timeout(Some(SLEEP_MAX))?;
                // It fails if the client is gone already: its thread will find that out.
                let _ = stream.set_nodelay(true);
                Ok((Socket::Tcp(stream), format!("tcp:{peer}")))
            }
        }
    }

    /// Makes `accept` return, now and for ever, from another thread.
    pub fn close(&self) -> io::Result<()> {
        let fd: OwnedFd = match &self.kind {
            Kind::Unix(listener, _) => listener.try_clone()?.into(),
            Kind::Tcp(listener) => listener.try_clone()?.into(),
        };
        // Linux ends a blocked accept when its socket is shut down. std has that call for streams only.
        UnixStream::from(fd).shutdown(Shutdown::Both)
    }
}

/// Listens at a path that appears when all is ready, its mode included: whoever finds the socket is
/// let in, and who may not connect never could.
fn listen_at(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketPath)> {
    // One name for each socket of each process.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let unready = format!(".{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let unready = path.with_file_name(unready);
    let listener = UnixListener::bind(&unready)?;
    // Its first name goes when this does.
    let _first = SocketPath::of(&unready)?;
    fs::set_permissions(&unready, fs::Permissions::from_mode(mode))?;
    // Whoever guessed that name before it had its mode is turned away.
    listener.set_nonblocking(true)?;
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false)?;
    match fs::hard_link(&unready, path) {
        // Another server was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(io::ErrorKind::AddrInUse)?,
        // A file system without second names.
        Err(_) => fs::rename(&unready, path)?,
        Ok(()) => {}
    }
    let made = SocketPath::of(path)?;
    Ok((listener, made))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes a socket of this user on which nobody listens. Anything else that is there is an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    let in_use = |reason: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
    if !metadata.file_type().is_socket() {
        return in_use("something that is not a socket is there");
    }
    match UnixStream::connect(path) {
        Ok(_) => in_use("somebody listens there"),
        Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => Err(error),
        Err(_) if metadata.uid() != fs::metadata("/proc/self")?.uid() => {
            in_use("somebody else's socket is there")
        }
        Err(_) => fs::remove_file(path),
    }
}

/// Whether a read waits for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Fails with `WouldBlock` while nothing has arrived.
    None,
    /// Sleeps in the read until something arrives or the socket is shut down. Fails with
    /// `WouldBlock` after `SLEEP_MAX`.
    Some,
}

/// A client's socket. The socket itself blocks: each call says whether it may wait.
pub enum Socket {
    /// From a unix listener.
    Unix(UnixStream),
    /// From a TCP listener.
    Tcp(TcpStream),
}

impl Socket {
    /// Reads what has arrived into the slices, in their order. Returns 0 at the end of the stream.
    pub fn read(&self, slices: &mut [IoSliceMut<'_>], patience: Patience) -> io::Result<usize> {
        let flags = match patience {
            Patience::None => RecvFlags::DONTWAIT,
            Patience::Some => RecvFlags::empty(),
        };
        retry(|| match &mut *slices {
            // Without a message header to copy the call is cheaper.
            [slice] => Ok(net::recv(self, &mut **slice, flags)?.0),
            slices => Ok(net::recvmsg(self, slices, &mut RecvAncillaryBuffer::default(), flags)?.bytes),
        })
    }

    /// Writes as much of the slices as there is room for, and fails with `WouldBlock` where there
    /// is none.
    pub fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        retry(|| Ok(net::sendmsg(self, slices, &mut SendAncillaryBuffer::default(), flags)?))
    }

    /// Ends one or both directions, and wakes the thread that waits for the socket.
    pub fn shutdown(&self, how: Shutdown) {
        // It fails if the client is gone already, which is as good.
        let _ = match self {
            Socket::Unix(stream) => stream.shutdown(how),
            Socket::Tcp(stream) => stream.shutdown(how),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => return result,
        }
    }
}
