//! The file systems that this process serves itself, and the rule that nothing of its own lies on
//! one of them.
//!
//! A file that the process writes and also serves makes it its own client: a request can wait for
//! the thread that made it, and when the process ends, the mount goes before the last dirty pages
//! are in their file. Two rules exclude that:
//! - S1. A path is compared when it is opened for use: an export's store, a mount's source, a
//!   recording, a log, the file tier, a socket. What is compared is the device of the file that the
//!   path leads to, so links, `..` and bind mounts lead to the same answer. For a block device,
//!   that of the files behind it (loop devices, also below others).
//! - S2. At the end, exports are drained while the mounts still serve; mounts end last
//!   (`serve/mod.rs`). That covers what S1 cannot see, such as an overlay over a mount.
//!
//! No comparison asks a file system for attributes: the kernel has the device of an open file.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, makedev};

use crate::lock::lock;
use crate::mounts;

/// The devices of the mounts that this process serves. Devices of a process, like its descriptors,
/// belong to no part of it, so this is the one list.
static SERVED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Where the kernel describes devices.
const SYSTEM: &str = "/sys";

/// Most devices that lie on top of each other.
const DEPTH_MAX: usize = 8;

/// A mount of this process. Its drop takes it off the list.
#[derive(Debug)]
pub struct Entry(Option<u64>);

impl Entry {
    /// Puts the file system that is mounted at a path, which has no links, on the list.
    pub fn add(path: &Path) -> Entry {
        let device = opened(path).map(|file| file.device);
        lock(&SERVED).extend(device);
        Entry(device)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut served = lock(&SERVED);
        if let Some(place) = served.iter().position(|device| Some(*device) == self.0) {
            served.swap_remove(place);
        }
    }
}

/// Detaches the mounts of this process, which is about to end and would leave them dead. The last
/// ones first: they may lie below others.
pub fn detach_all() {
    let served = std::mem::take(&mut *lock(&SERVED));
    for path in served.iter().rev().flat_map(|device| mounts::fuse_at(*device).into_iter().rev()) {
        mounts::detach(&path);
    }
}

/// Refuses a path that leads to a mount of this process. What does not exist yet is judged by the
/// nearest directory above it. The error is the rest of a sentence that begins with the path.
pub fn check(path: &Path) -> Result<(), String> {
    let served = lock(&SERVED).clone();
    if served.is_empty() {
        return Ok(());
    }
    let Some(file) = path.ancestors().find_map(opened) else { return Ok(()) };
    let behind =
        file.block.map(|block| files_behind(Path::new(SYSTEM), block, DEPTH_MAX)).unwrap_or_default();
    let behind = behind.iter().filter_map(|path| opened(path));
    let devices: Vec<u64> = behind.map(|file| file.device).chain([file.device]).collect();
    let is_served = |device: &&u64| served.contains(*device) && mounts::is_fuse(**device);
    match devices.iter().find(is_served) {
        Some(_) => Err("is on a mount of this server itself; name the file by a path that is not".into()),
        None => Ok(()),
    }
}

/// What the kernel tells of a file without asking its file system.
struct Opened {
    /// The device of its file system.
    device: u64,
    /// The number of the block device that it is.
    block: Option<(u32, u32)>,
}

/// Follows a path, and opens nothing of the file but its place. `None` if it leads nowhere.
fn opened(path: &Path) -> Option<Opened> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file.as_fd(), "", flags, StatxFlags::TYPE).ok()?;
    let is_block = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice;
    let block = is_block.then_some((stat.stx_rdev_major, stat.stx_rdev_minor));
    Some(Opened { device: makedev(stat.stx_dev_major, stat.stx_dev_minor), block })
}

/// The files on which a block device lies, by the kernel's description of devices at `system`: of
/// a loop device, of a partition of one, and of the devices that others consist of.
fn files_behind(system: &Path, (major, minor): (u32, u32), depth: usize) -> Vec<PathBuf> {
    let device = system.join(format!("dev/block/{major}:{minor}"));
    let Ok(device) = device.canonicalize() else { return Vec::new() };
    let mut found = Vec::new();
    for place in [Some(&*device), device.parent()].into_iter().flatten() {
        if let Ok(path) = fs::read_to_string(place.join("loop/backing_file")) {
            found.push(PathBuf::from(path.trim_end_matches('\n')));
        }
    }
    if depth == 0 {
        return found;
    }
    for below in fs::read_dir(device.join("slaves")).into_iter().flatten().flatten() {
        let number = fs::read_to_string(below.path().join("dev")).unwrap_or_default();
        let number = number.trim().split_once(':').and_then(|(major, minor)| {
            let major = major.parse().ok()?;
            Some((major, minor.parse().ok()?))
        });
        found.extend(number.into_iter().flat_map(|number| files_behind(system, number, depth - 1)));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A dm device on a partition of a loop device, as sysfs describes them.
    #[test]
    fn the_files_behind_loop_devices_are_found_below_other_devices() {
        let system = std::env::temp_dir().join(format!("octavo-own-{}", std::process::id()));
        let partition = system.join("devices/virtual/block/loop7/loop7p1");
        let mapped = system.join("devices/virtual/block/dm-0");
        for directory in [&partition, &mapped.join("slaves"), &system.join("dev/block")] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::create_dir(partition.parent().unwrap().join("loop")).unwrap();
        fs::write(partition.parent().unwrap().join("loop/backing_file"), "/mnt/a b.raw\n").unwrap();
        fs::write(partition.join("dev"), "259:1\n").unwrap();
        symlink(&partition, mapped.join("slaves/loop7p1")).unwrap();
        symlink(&partition, system.join("dev/block/259:1")).unwrap();
        symlink(&mapped, system.join("dev/block/253:0")).unwrap();
        // A device below itself, which no kernel has, ends.
        symlink(&mapped, mapped.join("slaves/dm-0")).unwrap();
        fs::write(mapped.join("dev"), "253:0\n").unwrap();
        let behind = |device, depth| files_behind(&system, device, depth);
        assert_eq!(behind((259, 1), 0), [PathBuf::from("/mnt/a b.raw")]);
        assert!(behind((253, 0), DEPTH_MAX).contains(&PathBuf::from("/mnt/a b.raw")));
        assert!(behind((253, 0), 0).is_empty() && behind((1, 1), 2).is_empty());
        fs::remove_dir_all(&system).unwrap();
    }

    #[test]
    fn a_path_that_is_on_no_mount_of_this_process_is_allowed() {
        let missing = std::env::temp_dir().join("octavo-own-missing/a/b");
        // On the list, but no FUSE mount of the system has the device of a file system of the disk.
        let here = Entry::add(&std::env::temp_dir());
        assert!(here.0.is_some());
        assert_eq!(check(&missing), Ok(()));
    }
}
