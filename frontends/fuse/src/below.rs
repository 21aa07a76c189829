//! The file systems that are mounted below a source, such as `/srv/data/disk2` below `/srv/data`.
//! Each is shown as a mount of its own: one mount is one device to programs, and two lower file
//! systems on one device would be one file system with ambiguous inode numbers.
//!
//! Here is which there are. What is left out is reached through the mount above it, with numbers
//! that carry the device (`numbers.rs`): what is mounted later, automounts, what does not answer,
//! and all but the first [`MOST`]. A bind mount of a directory of the file system above it needs no
//! mount of its own: its files are that file system's.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags, Statx, StatxAttributes};

use crate::lower::{self, Key};

/// Most file systems that get mounts of their own. Each takes threads with their buffers.
pub const MOST: usize = 16;

/// How long a file system may take to show its root.
const PATIENCE: Duration = Duration::from_secs(5);

/// A file system below a source.
pub struct Below {
    /// Its root.
    pub root: OwnedFd,
    /// Its path below the source.
    pub path: PathBuf,
}

/// Finds the file systems below a source that get mounts of their own, those above before those
/// below them. The path has no links.
pub fn find(source: &Path, root: &OwnedFd) -> Vec<Below> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut devices: Vec<(PathBuf, _)> = Vec::new();
    match lower::stat(root) {
        Ok(stat) => devices.push((PathBuf::new(), Key::of(&stat).device())),
        Err(_) => return Vec::new(),
    }
    let mut found = Vec::new();
    for path in mount_points(&mounts, source) {
        let Some((root, stat)) = open(root, &path) else {
            log::debug!("{} is no file system of its own", source.join(&path).display());
            continue;
        };
        let device = Key::of(&stat).device();
        let above = devices.iter().rfind(|(above, _)| path.starts_with(above));
        if above.is_some_and(|(_, other)| *other == device) {
            continue;
        }
        if found.len() == MOST {
            log::warn!(
                "{}: more than {MOST} file systems below it: programs such as `find -xdev` take the others for parts \
                 of those",
                source.display()
            );
            break;
        }
        devices.push((path.clone(), device));
        found.push(Below { root, path });
    }
    found
}

/// The mount points below a directory, by the table of mounts, those above before those below them.
fn mount_points(mounts: &[u8], source: &Path) -> Vec<PathBuf> {
    let below = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let point = unescaped(fields.get(4)?);
        let dash = fields.iter().position(|field| *field == b"-")?;
        // To look at an automount point can mount something.
        let is_automount = fields.get(dash + 1) == Some(&&b"autofs"[..]);
        let path = point.strip_prefix(source).ok()?;
        (!is_automount && path != Path::new("")).then(|| path.to_owned())
    };
    let mut points: Vec<PathBuf> = mounts.split(|byte| *byte == b'\n').filter_map(below).collect();
    // Paths compare by their components, so a directory comes before what is below it.
    points.sort();
    points.dedup();
    points
}

/// A path of the table of mounts, in which some bytes are written in octal.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\').then(|| after.get(..3)).flatten();
        let code = octal.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Opens the root of what is mounted at a path below a directory. No link is followed. A thread of
/// its own waits for a file system that hangs.
fn open(root: &OwnedFd, path: &Path) -> Option<(OwnedFd, Statx)> {
    let above = rustix::io::fcntl_dupfd_cloexec(root, 0).ok()?;
    let (path, shown) = (path.to_owned(), path.display().to_string());
    let (done, opened) = channel();
    let look = move || {
        let _ = done.send(look(&above, &path));
    };
    std::thread::Builder::new().name("octavo-below".into()).spawn(look).ok()?;
    opened.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        log::warn!("{shown}: the file system there does not answer");
        None
    })
}

fn look(above: &OwnedFd, path: &Path) -> Option<(OwnedFd, Statx)> {
    let root = open_below(above, path)?;
    let stat = lower::stat(&root).ok()?;
    stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT).then_some((root, stat))
}

/// Opens a directory below another one, by a path without links.
pub fn open_below(above: &OwnedFd, path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    rustix::fs::openat2(above, path, flags, Mode::empty(), resolve).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_in_order_and_once() {
        let mounts = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            30 22 8:2 / /srv/b rw shared:1 - ext4 /dev/sda2 rw\n\
            31 30 8:3 / /srv/b/a\\040\\134x rw - tmpfs none rw\n\
            32 22 8:4 / /srv/b rw - xfs /dev/sdb rw\n\
            33 22 0:5 / /srv/auto rw - autofs systemd rw\n\
            34 22 0:6 / /srvb rw - tmpfs none rw\n\
            35 22 0:7 / /srv/a\xff rw master:1 propagate_from:2 - tmpfs none rw\n\
            nonsense\n";
        let expected = [unescaped(b"a\xff"), PathBuf::from("b"), PathBuf::from("b/a \\x")];
        assert_eq!(mount_points(mounts, Path::new("/srv")), expected);
        assert_eq!(mount_points(mounts, Path::new("/srv/b")), [PathBuf::from("a \\x")]);
        assert_eq!(unescaped(b"/a\\04"), PathBuf::from("/a\\04"));
    }
}
