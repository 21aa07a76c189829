//! The mounts of the system: what is mounted at a path, and how to detach it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::UnmountFlags;

/// Whether this error is that of a mount whose server has ended.
pub fn is_dead(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

/// The type and the source of the uppermost mount at this path, if it is the root of a mount.
pub fn uppermost(path: &Path) -> Option<(String, String)> {
    let path = resolved(path);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut at = mounts.lines().filter_map(parse).filter(|(at, ..)| Path::new(at) == path);
    at.next_back().map(|(_, kind, source)| (kind.to_owned(), source))
}

/// Whether a FUSE file system with this device is mounted.
pub fn is_fuse(device: u64) -> bool {
    !fuse_at(device).is_empty()
}

/// Where a FUSE file system with this device is mounted, the oldest mount first. Asks no file
/// system.
pub fn fuse_at(device: u64) -> Vec<PathBuf> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let has_number = |line: &&str| line.split(' ').nth(2) == Some(&number);
    let found = mounts.lines().filter(has_number).filter_map(parse);
    found.filter(|(_, kind, _)| kind.starts_with("fuse")).map(|(at, ..)| at.into()).collect()
}

/// Returns the name of the kernel's file system that makes up a file's contents when they are read,
/// if it is one of these. Its files have no length, and `/proc/self/mem` is the server itself.
pub fn kernel_view(path: &Path) -> Option<&'static str> {
    const SYSTEMS: [(u64, &str); 12] = [
        (0x9fa0, "proc"),
        (0x6265_6572, "sysfs"),
        (0x6462_6720, "debugfs"),
        (0x7472_6163, "tracefs"),
        (0x6265_6570, "configfs"),
        (0x7363_6673, "securityfs"),
        (0xf97c_ff8c, "selinuxfs"),
        (0x0027_e0eb, "cgroup"),
        (0x6367_7270, "cgroup2"),
        (0x6573_5543, "fusectl"),
        (0x4249_4e4d, "binfmt_misc"),
        (0x6165_676c, "pstore"),
    ];
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    // The kernel's numbers have 32 bits; statfs(2) extends their sign on some machines.
    let kind = u64::from(kind as u32);
    SYSTEMS.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

/// A path without links and dots. Its last component may be a dead mount, which cannot be examined;
/// its parents cannot.
pub fn resolved(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parent = absolute.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, absolute.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// The mount point, the type and the source of a line of `/proc/self/mountinfo`.
fn parse(line: &str) -> Option<(String, &str, String)> {
    let (before, after) = line.split_once(" - ")?;
    let at = unescaped(before.split(' ').nth(4)?);
    let mut after = after.split(' ');
    Some((at, after.next()?, unescaped(after.next()?)))
}

fn unescaped(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

/// Detaches a mount, even while processes still use it.
pub fn detach(path: &Path) {
    if rustix::mount::unmount(path, UnmountFlags::DETACH).is_ok() {
        return;
    }
    // Users other than root need this program.
    let mut command = Command::new("fusermount3");
    command.args(["-u", "-z", "--"]).arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    match command.stderr(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        Ok(status) => log::warn!("{}: fusermount3: {status}", path.display()),
        Err(error) => log::warn!("{}: fusermount3: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_parsed() {
        let line =
            "98 31 0:53 / /run/a\\040b rw,nosuid,nodev shared:5 - fuse.octavo /srv/c\\040d rw,user_id=0";
        assert_eq!(parse(line), Some(("/run/a b".into(), "fuse.octavo", "/srv/c d".into())));
        assert_eq!(parse("nonsense"), None);
        assert!(uppermost(Path::new("/")).is_some());
    }
}
