//! [`Channel`]: the socket by which the device notifies a VMM of a change of the configuration
//! space, such as a new length of the disk.
//!
//! The crate `vhost` takes the channel from the VMM, but it neither sends this message nor gives
//! the socket away. [`peek`] therefore looks at each message before the crate receives it, and
//! keeps a duplicate of the descriptor that comes with SET_BACKEND_REQ_FD. The device uses it only
//! after the crate has checked that it is a socket.
//!
//! The device neither asks for replies nor waits for them, so a VMM that does not read its channel
//! delays no call.

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// The bytes of a message's header: request, flags and the length of what follows.
const HEADER_BYTES: usize = 12;

/// VHOST_USER_SET_BACKEND_REQ_FD, a request of the VMM.
const SET_BACKEND_REQ_FD: u32 = 21;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, a request of the device.
const CONFIG_CHANGE: u32 = 2;

/// The version of the protocol, in the flags of a message.
const VERSION: u32 = 1;

/// The channel of a VMM.
pub(super) struct Channel(OwnedFd);

impl Channel {
    pub fn new(socket: OwnedFd) -> Channel {
        Channel(socket)
    }

    /// Tells the VMM to read the configuration space again. Does not wait: fails if the VMM has
    /// left the channel full.
    pub fn tell(&self) -> io::Result<()> {
        let message: Vec<u8> = [CONFIG_CHANGE, VERSION, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        send(&self.0, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Waits for the next message of a VMM and leaves it in the socket. Returns a duplicate of its
/// descriptor if it hands over a channel. Whatever is wrong with the message or the socket is left
/// to the next receive.
pub(super) fn peek(socket: impl AsFd) -> Option<OwnedFd> {
    let mut header = [0; HEADER_BYTES];
    loop {
        match recv(&socket, &mut header, RecvFlags::PEEK) {
            Err(Errno::INTR) => {}
            Ok((HEADER_BYTES, _)) if header[..4] == SET_BACKEND_REQ_FD.to_ne_bytes() => break,
            _ => return None,
        }
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    recvmsg(&socket, &mut [IoSliceMut::new(&mut header)], &mut control, flags).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}
