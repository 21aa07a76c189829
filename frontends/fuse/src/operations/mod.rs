//! What each request does. Reads and writes are begun here, and ended by the worker (`worker.rs`)
//! or on an errand (`errands.rs`).

mod attributes;
mod contents;
mod directories;
mod names;
mod request;
mod undo;
mod xattrs;

use std::sync::Arc;

use rustix::io::Errno;

use crate::fs::Fs;
use crate::nodes::Node;
use crate::wire::Opcode;

pub use contents::{Pending, ReadPlan, WritePlan};
pub use request::Request;

/// What a request is, before anything is done that may wait.
pub enum Outcome {
    /// One that may wait for the lower file system ([`Fs::perform`]).
    Call,
    /// The kernel expects no reply.
    Silence,
    /// The kernel has forgotten these nodes. It expects no reply, and their files are closed when
    /// they are dropped.
    Forgotten(Vec<Arc<Node>>),
    /// A program that waits for a request has a signal.
    Interrupted,
    /// A read, which the worker serves from the cache.
    Read(ReadPlan),
    /// A write, as above.
    Write(WritePlan),
}

impl Fs {
    /// Begins a request, without calling the lower file system.
    ///
    /// # Errors
    /// What the program gets.
    pub fn begin(&self, operation: Opcode, request: Request<'_>) -> Result<Outcome, Errno> {
        Ok(match operation {
            Opcode::Read => Outcome::Read(self.read(request)?),
            Opcode::Write => Outcome::Write(self.write(request)?),
            Opcode::Forget | Opcode::BatchForget => Outcome::Forgotten(self.forget(operation, request)?),
            Opcode::Interrupt => Outcome::Interrupted,
            Opcode::Destroy => Outcome::Silence,
            _ => Outcome::Call,
        })
    }

    /// Performs a request that may wait for the lower file system, and puts the reply into `out`.
    ///
    /// # Errors
    /// What the program gets.
    pub fn perform(&self, operation: Opcode, request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        match operation {
            Opcode::Lookup => self.lookup(request, out),
            Opcode::Getattr => self.getattr(request, out),
            Opcode::Setattr => self.setattr(request, out),
            Opcode::Statx => self.statx(request, out),
            Opcode::Readlink => self.readlink(request, out),
            Opcode::Symlink => self.symlink(request, out),
            Opcode::Mknod => self.mknod(request, out),
            Opcode::Mkdir => self.mkdir(request, out),
            Opcode::Unlink => self.unlink(request, false),
            Opcode::Rmdir => self.unlink(request, true),
            Opcode::Rename | Opcode::Rename2 => self.rename(operation, request),
            Opcode::Link => self.link(request, out),
            Opcode::Open => self.open(request, out),
            Opcode::Create | Opcode::Tmpfile => self.create(operation, request, out),
            Opcode::Release => self.release(request),
            Opcode::Flush => self.flush(request),
            Opcode::Fsync => self.fsync(request),
            Opcode::Fallocate => self.fallocate(request),
            Opcode::Lseek => self.lseek(request, out),
            Opcode::CopyFileRange => self.copy_file_range(request, out),
            Opcode::Opendir => self.opendir(request, out),
            Opcode::Readdir => self.readdir(request, false, out),
            Opcode::Readdirplus => self.readdir(request, true, out),
            Opcode::Releasedir => self.releasedir(request),
            Opcode::Fsyncdir => self.fsyncdir(request),
            Opcode::Statfs => self.statfs(request, out),
            Opcode::Setxattr => self.setxattr(request),
            Opcode::Getxattr => self.getxattr(request, out),
            Opcode::Listxattr => self.listxattr(request, out),
            Opcode::Removexattr => self.removexattr(request),
            Opcode::Ioctl => Err(Errno::NOTTY),
            // The kernel sends the first once, before the workers begin; the others are begun only.
            Opcode::Init
            | Opcode::Read
            | Opcode::Write
            | Opcode::Forget
            | Opcode::BatchForget
            | Opcode::Interrupt
            | Opcode::Destroy => Err(Errno::IO),
        }
    }
}
