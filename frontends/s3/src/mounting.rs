//! Unmounting: by system calls as root, else by `fusermount3`. `octavo-fuse` does the same with
//! directories.

use std::io;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Unmounts a file system. If programs still use it, detaches it instead.
///
/// # Errors
/// Those of the system calls.
pub(crate) fn unmount(path: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        let run = |lazy: &[&str]| {
            let mut helper = Command::new("fusermount3");
            helper.args(["-u", "-q"]).args(lazy).arg("--").arg(path);
            helper.status().map(|status| status.success())
        };
        // A failure: nothing is mounted there any more.
        let _ = run(&[])? || run(&["-z"])?;
        return Ok(());
    }
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        // INVAL: nothing is mounted there any more, for example after `umount -l`.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::BUSY) => Ok(rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?),
        Err(errno) => Err(errno.into()),
    }
}
