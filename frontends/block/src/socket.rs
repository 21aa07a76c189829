//! [`Listener`] and [`Socket`]: listening and connected sockets, for unix and TCP alike.
//!
//! The process must ignore SIGPIPE, as every Rust program does by default, so that a write to a
//! client that has left returns an error.

use crate::address::Address;
use crate::error::Error;
use crate::estate::HeldListener;
use crate::limits::Limits;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_send_buffer_size, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    socket_peercred,
};
use rustix::net::{self, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The bytes of replies that a unix socket holds before its client reads them; Linux accounts for
/// twice as much. With the default of Linux, a socket holds three replies of 64 KiB, and becomes
/// writable again only when the client has read most of them: server and client would take turns
/// instead of working at the same time.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// The longest sleep in a read. A connection that has slept this long frees the memory that it does
/// not need while idle.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// TCP keep-alive: the idle time before the first probe, the time between probes, and their number.
/// Without probes, the connection of a machine that has lost its power or its network would keep
/// its memory and its export for ever.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);

/// The path of a listening unix socket. Dropping this removes the path, if it is still the socket
/// that was created.
pub struct SocketPath {
    path: PathBuf,
    made: (u64, u64),
}

impl SocketPath {
    /// Removes a stale socket from the path: a socket of this user on which no process listens.
    ///
    /// # Errors
    /// `AddrInUse` if the path is anything else.
    pub fn clear(path: &Path) -> io::Result<()> {
        let metadata = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            metadata => metadata?,
        };
        let in_use = |reason: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
        if !metadata.file_type().is_socket() {
            return in_use("the path exists and is not a socket");
        }
        match UnixStream::connect(path) {
            Ok(_) => in_use("another process listens there"),
            Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => Err(error),
            Err(_) if metadata.uid() != fs::metadata("/proc/self")?.uid() => {
                in_use("the path is a socket of another user")
            }
            Err(_) => fs::remove_file(path),
        }
    }

    /// Takes ownership of the path of a socket that was just created there.
    ///
    /// # Errors
    /// The error of the system, if there is no such path.
    pub fn of(path: &Path) -> io::Result<SocketPath> {
        Ok(SocketPath { path: path.into(), made: identity(path)? })
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.made) {
            // The removal fails if another process has just removed the path, which is fine.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A listening socket. Dropping it removes the path of a unix socket.
pub struct Listener {
    /// The address, with the port that the system chose.
    pub address: Address,
    kind: Kind,
    is_closed: AtomicBool,
    /// Ends a blocked `accept`.
    wake: OwnedFd,
}

enum Kind {
    Unix(UnixListener, SocketPath),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at an address. Replaces a stale unix socket of this user.
    pub fn bind(address: &Address, limits: &Limits) -> Result<Listener, Error> {
        let failed = |source| Error::Listen { address: address.clone(), source };
        match address {
            Address::Tcp(tcp) => {
                let listener = TcpListener::bind(tcp).map_err(failed)?;
                let address = Address::Tcp(listener.local_addr().map_err(failed)?);
                Listener::of(address, Kind::Tcp(listener)).map_err(failed)
            }
            Address::Unix(path) => {
                SocketPath::clear(path).map_err(failed)?;
                let (listener, made) = listen_at(path, limits).map_err(failed)?;
                Listener::of(address.clone(), Kind::Unix(listener, made)).map_err(failed)
            }
        }
    }

    /// Continues to listen at a socket that another server has left.
    pub fn inherit(held: HeldListener, limits: &Limits) -> Result<Listener, Error> {
        let HeldListener { address, socket } = held;
        let failed = |source| Error::Listen { address: address.clone(), source };
        let kind = match &address {
            Address::Tcp(_) => Kind::Tcp(socket.into()),
            Address::Unix(path) => {
                let made = SocketPath::of(path).map_err(failed)?;
                permit(path, limits).map_err(failed)?;
                Kind::Unix(socket.into(), made)
            }
        };
        Listener::of(address.clone(), kind).map_err(failed)
    }

    fn of(address: Address, kind: Kind) -> io::Result<Listener> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let listener = Listener { address, kind, is_closed: AtomicBool::new(false), wake };
        // `accept` polls: a successor may take the client that the poll has found.
        ioctl_fionbio(listener.fd(), true)?;
        Ok(listener)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Unix(listener, _) => listener.as_fd(),
            Kind::Tcp(listener) => listener.as_fd(),
        }
    }

    /// Waits for a client. After `close`, it always fails.
    pub fn accept(&self) -> io::Result<(Socket, String)> {
        let mut fds = [self.fd(), self.wake.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        loop {
            retry(|| Ok(poll(&mut fds, None)?))?;
            if self.is_closed() {
                return Err(io::ErrorKind::NotConnected.into());
            }
            match self.take() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                accepted => return accepted,
            }
        }
    }

    fn take(&self) -> io::Result<(Socket, String)> {
        match &self.kind {
            Kind::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                // The system may clamp the size to its limit.
                let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
                stream.set_read_timeout(Some(SLEEP_MAX))?;
                let mut client = self.address.to_string();
                if let Ok(peer) = socket_peercred(&stream) {
                    client += &format!(" (process {})", peer.pid.as_raw_nonzero());
                }
                Ok((Socket(stream.into()), client))
            }
            Kind::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_read_timeout(Some(SLEEP_MAX))?;
                // These fail if the client has already left; the connection's thread notices that.
                let _ = stream.set_nodelay(true);
                let _ = keep_alive(&stream);
                Ok((Socket(stream.into()), format!("tcp:{peer}")))
            }
        }
    }

    /// Returns whether `close` was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Makes an `accept` that blocks in another thread, and every later one, fail.
    pub fn close(&self) -> io::Result<()> {
        self.is_closed.store(true, Ordering::SeqCst);
        Ok(rustix::io::write(&self.wake, &1u64.to_ne_bytes()).map(drop)?)
    }

    /// Returns the socket of a closed listener, for another server. Clients can still connect, and
    /// wait there.
    pub fn leave(self) -> HeldListener {
        let Listener { address, kind, .. } = self;
        let socket = match kind {
            Kind::Unix(listener, path) => {
                // The successor removes it.
                std::mem::forget(path);
                listener.into()
            }
            Kind::Tcp(listener) => listener.into(),
        };
        HeldListener { address, socket }
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (silence, pause, count) = KEEPALIVE;
    set_tcp_keepidle(stream, silence)?;
    set_tcp_keepintvl(stream, pause)?;
    set_tcp_keepcnt(stream, count)?;
    Ok(set_socket_keepalive(stream, true)?)
}

/// Listens at a path that appears only when the socket is ready and has its group and its mode. A
/// client that finds the socket is therefore accepted, and a client without permission can never
/// connect.
fn listen_at(path: &Path, limits: &Limits) -> io::Result<(UnixListener, SocketPath)> {
    // Gives each socket of each process a name of its own.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let unready = format!(".{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let unready = path.with_file_name(unready);
    let listener = UnixListener::bind(&unready)?;
    // Dropping this removes the first name.
    let _first = SocketPath::of(&unready)?;
    permit(&unready, limits)?;
    // A client that guessed the first name before it had its mode is disconnected.
    listener.set_nonblocking(true)?;
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false)?;
    match fs::hard_link(&unready, path) {
        // Another server has just created the path.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(io::ErrorKind::AddrInUse)?,
        // The file system has no hard links.
        Err(_) => fs::rename(&unready, path)?,
        Ok(()) => {}
    }
    let made = SocketPath::of(path)?;
    Ok((listener, made))
}

/// Gives a socket its group and its mode.
fn permit(path: &Path, limits: &Limits) -> io::Result<()> {
    if let Some(group) = limits.unix_group {
        // The group precedes the mode: no other group may ever connect.
        chown(path, None, Some(group)).map_err(|error| {
            let why =
                format!("cannot give the socket to group {group}, which the server must be in: {error}");
            io::Error::new(error.kind(), why)
        })?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(limits.unix_mode))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// How long a read waits for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Does not wait: fails with `WouldBlock` if nothing has arrived.
    None,
    /// Sleeps until bytes arrive or the socket is shut down. Fails with `WouldBlock` after
    /// `SLEEP_MAX`.
    Some,
}

/// A client's socket, in blocking mode. Each call chooses whether it may block.
pub struct Socket(OwnedFd);

impl Socket {
    /// Reads into the slices, in their order. Returns the number of bytes, or 0 at the end of the
    /// stream.
    pub fn read(&self, slices: &mut [IoSliceMut<'_>], patience: Patience) -> io::Result<usize> {
        let flags = match patience {
            Patience::None => RecvFlags::DONTWAIT,
            Patience::Some => RecvFlags::empty(),
        };
        retry(|| match &mut *slices {
            // Cheaper than recvmsg, because the kernel copies no message header.
            [slice] => Ok(net::recv(self, &mut **slice, flags)?.0),
            slices => Ok(net::recvmsg(self, slices, &mut RecvAncillaryBuffer::default(), flags)?.bytes),
        })
    }

    /// Writes as many bytes of the slices as the socket takes. Fails with `WouldBlock` if it takes
    /// none.
    pub fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        retry(|| Ok(net::sendmsg(self, slices, &mut SendAncillaryBuffer::default(), flags)?))
    }

    /// Shuts down one or both directions, and wakes the thread that waits for the socket.
    pub fn shutdown(&self, how: Shutdown) {
        // This fails only if the client has already left.
        let _ = net::shutdown(&self.0, how);
    }
}

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Socket {
        Socket(socket)
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket(stream.into())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Repeats a system call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => return result,
        }
    }
}
