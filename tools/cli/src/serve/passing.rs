//! Passes descriptors from one process to another: through a unix socket, or to the program that
//! replaces this one in its own process.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde_json::json;

use crate::control::protocol::{self, Body, REPLY_BYTES_MAX, Reply};
use crate::descriptors::close_on_exec;
use crate::environment::{DESCRIPTORS, Environment, GUARDED_CONTROL, SUCCESSOR};
use crate::logger;

/// Descriptors of one message. The kernel takes 253.
const MESSAGE_MAX: usize = 64;

/// The most descriptors that a process takes over.
const ALL_MAX: u64 = 1 << 17;

/// Answers a `hand-over`: sends the number of the descriptors, and then the descriptors.
pub fn send(mut stream: &UnixStream, descriptors: &[OwnedFd]) -> io::Result<()> {
    protocol::send(&mut stream, &Reply::new(Body::Ok(json!({"descriptors": descriptors.len()}))))?;
    for some in descriptors.chunks(MESSAGE_MAX) {
        let some: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&some)), "the buffer has room for them");
        sendmsg(stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Reads the answer to a `hand-over`. `told` gets the dirty bytes that are left meanwhile. The
/// error is a sentence.
pub fn receive(stream: &UnixStream, mut told: impl FnMut(u64)) -> Result<Vec<OwnedFd>, String> {
    let broken = |error: io::Error| format!("the running server did not hand over: {error}");
    let count = loop {
        let reply: Reply = serde_json::from_slice(&line(stream).map_err(broken)?)
            .map_err(|error| format!("the answer is not that of an octavo server: {error}"))?;
        match reply.body {
            Body::Progress(progress) => told(progress.dirty_bytes),
            Body::Recording(_) | Body::Events(_) => {}
            Body::Error(fault) => return Err(fault.message),
            Body::Ok(answer) => break answer["descriptors"].as_u64().unwrap_or(0),
        }
    };
    if count > ALL_MAX {
        return Err(format!("the running server hands over {count} descriptors, more than {ALL_MAX}"));
    }
    let mut descriptors = Vec::new();
    // Each message brings at least one, or ends the loop.
    while (descriptors.len() as u64) < count {
        let before = descriptors.len();
        take_some(stream, &mut descriptors).map_err(broken)?;
        if descriptors.len() == before {
            return Err("the running server did not hand over all that it announced".into());
        }
    }
    Ok(descriptors)
}

fn take_some(stream: &UnixStream, descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    retry_on_intr(|| recvmsg(stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    Ok(())
}

/// Reads a line without reading past it: the descriptors come with the bytes behind it.
fn line(mut stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while (line.len() as u64) < REPLY_BYTES_MAX {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            return Ok(line);
        }
        line.push(byte[0]);
    }
    Err(ErrorKind::InvalidData.into())
}

/// Replaces the program of this process by itself, with these descriptors and without anything else
/// of the old one: its memory, its threads and its locks on stores are gone. `control` is the path
/// of the control socket. Returns only an error.
pub fn restart(
    environment: &Environment,
    descriptors: Vec<OwnedFd>,
    successor: UnixStream,
    control: Option<&Path>,
) -> io::Error {
    close_on_exec();
    let keep = |descriptor: BorrowedFd<'_>| fcntl_setfd(descriptor, FdFlags::empty());
    let numbers = descriptors.iter().map(|one| keep(one.as_fd()).map(|()| one.as_raw_fd().to_string()));
    let numbers: Vec<String> = match numbers.collect() {
        Ok(numbers) => numbers,
        Err(error) => return error.into(),
    };
    if let Err(error) = keep(successor.as_fd()) {
        return error.into();
    }
    logger::flush();
    // The kernel finds the program there even if an upgrade has removed its file.
    Command::new("/proc/self/exe")
        .args(environment.arguments().filter(|argument| *argument != OsStr::new("--take-over")))
        .env(DESCRIPTORS, numbers.join(","))
        .env(SUCCESSOR, successor.as_raw_fd().to_string())
        .envs(control.map(|path| (GUARDED_CONTROL, path)))
        .exec()
}
