//! The socket of a VMM: sequences of messages with descriptors.

use super::input::Input;
use octavo_block::fuzzing::Socketed;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Messages of one input: a device is configured with about twenty.
const MESSAGES_MAX: usize = 48;
/// The bytes of memory that a VMM shares.
const MEMORY: u64 = 0x1_0000;

/// Sends the messages that an input encodes.
pub fn messages(bytes: &[u8]) {
    thread_local! {
        static RIG: Rig = Rig::new();
    }
    RIG.with(|rig| rig.run(bytes));
}

struct Rig {
    disk: Socketed,
    /// The descriptors that messages carry: memory, an event, short memory, a pipe, a socket, a
    /// device.
    descriptors: Vec<OwnedFd>,
}

impl Rig {
    fn new() -> Rig {
        let memory = |len: u64| {
            let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("there is memory"));
            file.set_len(len).expect("there is memory");
            OwnedFd::from(file)
        };
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("there are descriptors");
        let (pipe, _) = std::io::pipe().expect("there are descriptors");
        let (socket, _) = UnixStream::pair().expect("there are descriptors");
        let device = File::open("/dev/null").expect("Linux has it");
        let descriptors =
            vec![memory(MEMORY), event, memory(0x100), pipe.into(), socket.into(), device.into()];
        Rig { disk: Socketed::new(0x1_0000), descriptors }
    }

    fn run(&self, bytes: &[u8]) {
        let mut input = Input(bytes);
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        // A device that does not read must not stop the fuzzer.
        ours.set_nonblocking(true).expect("it is a socket");
        for _ in 0..MESSAGES_MAX {
            if input.is_empty() || !self.send(&ours, &mut input) {
                break;
            }
        }
        let _ = ours.shutdown(Shutdown::Write);
        self.disk.serve(theirs);
    }

    /// Sends a message. False if the socket takes no more.
    fn send(&self, socket: &UnixStream, input: &mut Input) -> bool {
        let (kind, carried) = (input.byte(), input.byte());
        let message = match kind {
            // Bytes without a frame.
            250.. => input.take(usize::from(kind - 249) * 4).to_vec(),
            // A well-formed message, with bytes of the input in it.
            _ => frame(kind, input),
        };
        let count = usize::from(carried >> 4).min(9);
        let first = usize::from(carried & 15);
        let all: Vec<BorrowedFd> =
            (0..count).map(|n| self.descriptors[(first + n) % self.descriptors.len()].as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !all.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&all));
        }
        let sent = sendmsg(socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
        sent.is_ok_and(|count| count == message.len())
    }
}

/// Makes a message: its number, flags, length and body. Bodies have the shapes of the protocol: a
/// number, a state, addresses, regions.
fn frame(kind: u8, input: &mut Input) -> Vec<u8> {
    let request = u32::from(kind % 48);
    let control = input.byte();
    // Version 1, at times with a reply wanted, seldom anything else.
    let flags = match control & 0x0f {
        15 => u32::from(input.word()),
        other => 1 | u32::from(other & 1) << 3,
    };
    let mut body = Vec::new();
    for _ in 0..control >> 4 {
        match input.byte() % 8 {
            0 => body.extend(0_u64.to_le_bytes()),
            1 => body.extend(u64::from(input.byte()).to_le_bytes()),
            2 => body.extend(u32::from(input.byte()).to_le_bytes()),
            3 => body.extend((0x1_0000 + u64::from(input.word())).to_le_bytes()),
            4 => body.extend(MEMORY.to_le_bytes()),
            5 => body.extend(input.take(8)),
            6 => body.extend((1_u64 << (input.byte() % 64)).to_le_bytes()),
            _ => body.extend(u64::MAX.to_le_bytes()),
        }
    }
    let len = match control & 0x0f {
        14 => u32::from(input.word()),
        _ => body.len() as u32,
    };
    [&request.to_le_bytes()[..], &flags.to_le_bytes(), &len.to_le_bytes(), &body].concat()
}
