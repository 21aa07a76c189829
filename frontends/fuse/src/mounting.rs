//! Mounting and unmounting: by system calls as root, else by `fusermount3`.

use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::device::Device;
use crate::lower;
use crate::options::MountOptions;

/// The type of our mounts in the table of mounts.
const SUBTYPE: &str = "octavo";

/// A place where a file system is mounted. Does not unmount it when dropped.
pub struct Mounted {
    path: PathBuf,
    by_helper: bool,
}

/// Mounts a file system of this source's name at a path. Root may name its directory by a
/// descriptor, so that the path is not looked up.
///
/// # Errors
/// A sentence.
pub fn mount(
    source: &Path,
    (path, at): (&Path, Option<&OwnedFd>),
    options: &MountOptions,
) -> Result<(Device, Mounted), String> {
    let mounted = |by_helper| Mounted { path: path.to_owned(), by_helper };
    if rustix::process::geteuid().is_root() {
        let device = Device::open().map_err(|errno| match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                "this kernel has no FUSE: there is no /dev/fuse (modprobe fuse)".to_owned()
            }
            errno => format!("cannot open /dev/fuse: {errno}"),
        })?;
        let place = at.map_or_else(|| path.to_owned(), |at| lower::link_of(at.as_fd()));
        mount_directly(&device, source, &place, options)
            .map_err(|errno| format!("cannot mount at {}: {errno}", path.display()))?;
        return Ok((device, mounted(false)));
    }
    let device = mount_by_helper(source, path, options)?;
    Ok((device, mounted(true)))
}

fn mount_directly(device: &Device, source: &Path, path: &Path, options: &MountOptions) -> Result<(), Errno> {
    use std::os::unix::ffi::OsStrExt;
    let fd = device.as_fd().as_raw_fd();
    let mut data = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,default_permissions");
    if options.allow_other {
        data += ",allow_other";
    }
    let mut flags = MountFlags::empty();
    for (is_set, flag) in [
        (!options.suid, MountFlags::NOSUID),
        (!options.dev, MountFlags::NODEV),
        (!options.exec, MountFlags::NOEXEC),
        (options.read_only, MountFlags::RDONLY),
    ] {
        flags.set(flag, is_set);
    }
    let source = CString::new(source.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(&source, path, format!("fuse.{SUBTYPE}"), flags, Some(&*data))
}

fn mount_by_helper(source: &Path, path: &Path, options: &MountOptions) -> Result<Device, String> {
    let failed = |error: io::Error| format!("cannot run fusermount3: {error}");
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    // It must live through exec.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let mut words = OsString::from(format!("default_permissions,subtype={SUBTYPE},fsname="));
    // A comma would begin another option.
    words.push(source.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,"));
    if options.allow_other {
        words.push(",allow_other");
    }
    if options.read_only {
        words.push(",ro");
    }
    if !options.exec {
        words.push(",noexec");
    }
    let mut helper = Command::new("fusermount3");
    helper.arg("-o").arg(words).arg("--").arg(path);
    helper.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    let output = helper.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "cannot mount without root: there is no fusermount3 (package fuse3)".to_owned()
        }
        _ => failed(error),
    })?;
    drop(theirs);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cannot mount at {}: {}", path.display(), said.trim()));
    }
    let fd = receive(&ours).map_err(failed)?;
    Device::from_fd(fd).map_err(|errno| failed(errno.into()))
}

/// Receives the descriptor that the helper sends.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let found = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    found.ok_or_else(|| io::Error::other("it has sent no descriptor"))
}

impl Mounted {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts the file system. If programs still use it, detaches it instead: they keep what they
    /// have opened for as long as the server runs. Returns whether it is gone entirely.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn unmount(&self) -> io::Result<bool> {
        if self.by_helper {
            let run = |lazy: &[&str]| {
                let mut helper = Command::new("fusermount3");
                helper.args(["-u", "-q"]).args(lazy).arg("--").arg(&self.path);
                helper.status().map(|status| status.success())
            };
            return Ok(run(&[])? || !run(&["-z"])?);
        }
        match rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW) {
            // INVAL: nothing is mounted there any more, for example after `umount -l`.
            Ok(()) | Err(Errno::INVAL) => Ok(true),
            Err(Errno::BUSY) => {
                rustix::mount::unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
                Ok(false)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}
