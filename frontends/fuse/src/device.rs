//! [`Device`]: a descriptor of `/dev/fuse`, from which requests are read and to which replies are
//! written. Each thread of a mount has one of its own, a clone of the first. A request is answered
//! on the descriptor that it was read from.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl};
use zerocopy::IntoBytes;

use crate::wire::OutHeader;

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`.
const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);

/// Why no request was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// None is waiting.
    Yet,
    /// The file system was unmounted, or its connection aborted.
    Ever,
}

/// A descriptor of `/dev/fuse`. Its reads do not wait.
pub struct Device(OwnedFd);

impl Device {
    /// Opens the device for a new mount.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open() -> Result<Device, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open("/dev/fuse", flags, Mode::empty()).map(Device)
    }

    /// Takes a descriptor that `fusermount3` has opened.
    ///
    /// # Errors
    /// Those of `fcntl`.
    pub fn from_fd(fd: OwnedFd) -> Result<Device, Errno> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Device(fd))
    }

    /// Returns another descriptor of the same mount.
    ///
    /// # Errors
    /// Those of `open` and `ioctl`.
    pub fn another(&self) -> Result<Device, Errno> {
        let other = Device::open()?;
        let number = self.0.as_raw_fd() as u32;
        // SAFETY: the kernel reads a number of four bytes.
        let clone = unsafe { Setter::<CLONE, u32>::new(number) };
        // SAFETY: as above, and it changes no memory.
        unsafe { ioctl(&other.0, clone) }?;
        Ok(other)
    }

    /// Closes the device, whoever else uses it: its number stays open, and is `/dev/null`. The
    /// kernel aborts the requests that were read from it, and the connection with its last
    /// descriptor. In contrast to `umount -f` and to the file `abort` of the connection, this also
    /// works once the mount was detached, and without the file system fusectl.
    ///
    /// # Errors
    /// Those of `open` and `dup3`.
    pub fn abort(&self) -> Result<(), Errno> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // SAFETY: the arguments are numbers. `self` keeps the second one open, and no other value
        // owns it.
        let returned = unsafe { libc::dup3(null.as_raw_fd(), self.0.as_raw_fd(), libc::O_CLOEXEC) };
        if returned < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(())
    }

    /// Reads a request. Returns its length.
    ///
    /// # Errors
    /// Why there is none.
    pub fn read(&self, bytes: &mut [u8]) -> Result<usize, Nothing> {
        loop {
            match rustix::io::read(&self.0, &mut *bytes) {
                // The connection was aborted.
                Ok(0) => return Err(Nothing::Ever),
                Ok(len) => return Ok(len),
                // ENOENT: the program was interrupted before its request was taken.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Err(Nothing::Yet),
                Err(Errno::NODEV) => return Err(Nothing::Ever),
                Err(errno) => {
                    log::error!("cannot read requests of the kernel: {errno}");
                    return Err(Nothing::Ever);
                }
            }
        }
    }

    /// Answers a request.
    pub fn reply(&self, unique: u64, result: Result<(), Errno>, body: &[u8]) {
        let error = result.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
        let head = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error, unique };
        self.write(&[IoSlice::new(head.as_bytes()), IoSlice::new(body)]);
    }

    /// Answers a read with the bytes of `parts[1..]`, of which there are `len`. The first part is
    /// set here.
    pub fn reply_with<'p>(
        &self,
        unique: u64,
        len: usize,
        parts: &mut [IoSlice<'p>],
        head: &'p mut OutHeader,
    ) {
        *head = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error: 0, unique };
        parts[0] = IoSlice::new(head.as_bytes());
        self.write(parts);
    }

    /// Tells the kernel what it did not ask for.
    ///
    /// # Errors
    /// EINVAL if the kernel does not know the notification.
    pub fn notify(&self, code: i32, body: &[&[u8]]) -> Result<(), Errno> {
        let len = body.iter().map(|part| part.len()).sum::<usize>();
        let head = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error: code, unique: 0 };
        let mut parts = vec![IoSlice::new(head.as_bytes())];
        parts.extend(body.iter().map(|part| IoSlice::new(part)));
        rustix::io::writev(&self.0, &parts).map(|_| ())
    }

    fn write(&self, parts: &[IoSlice<'_>]) {
        match rustix::io::writev(&self.0, parts) {
            // The program was interrupted, or the file system unmounted.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(errno) => log::error!("the kernel takes no reply: {errno}"),
        }
    }
}

/// Readable when a request waits.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
