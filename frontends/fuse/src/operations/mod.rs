//! What each request does. Requests that wait for the cache are begun here, and ended by the worker
//! (`worker.rs`).

mod attributes;
mod contents;
mod directories;
mod names;
mod request;
mod xattrs;

use rustix::io::Errno;

use crate::fs::Fs;
use crate::wire::Opcode;

pub use contents::{Pending, ReadPlan, WritePlan};
pub use request::Request;

/// What becomes of a request that was handled.
pub enum Outcome {
    /// The reply is in the buffer.
    Reply,
    /// The kernel expects none.
    Silence,
    /// A read, which the worker serves from the cache.
    Read(ReadPlan),
    /// A write, as above.
    Write(WritePlan),
}

impl Fs {
    /// Handles a request, and puts the reply into `out`.
    ///
    /// # Errors
    /// What the program gets.
    pub fn handle(
        &self,
        operation: Opcode,
        request: Request<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Outcome, Errno> {
        let done = match operation {
            Opcode::Read => return self.read(request).map(Outcome::Read),
            Opcode::Write => return self.write(request).map(Outcome::Write),
            Opcode::Forget | Opcode::BatchForget => {
                self.forget(operation, request)?;
                return Ok(Outcome::Silence);
            }
            Opcode::Interrupt | Opcode::Destroy => return Ok(Outcome::Silence),
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
            // The kernel sends it once, before the workers begin.
            Opcode::Init => Err(Errno::IO),
        };
        done.map(|()| Outcome::Reply)
    }
}
