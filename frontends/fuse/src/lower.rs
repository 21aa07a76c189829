//! System calls on the lower file system: the directory that is mounted. Files are named by
//! descriptors (`O_PATH`), never by paths, so that no rename or symbolic link leads elsewhere. Not
//! here: which descriptor a node has (`nodes.rs`), the bytes of files (`files.rs`).

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawMode, Statx, StatxFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{RawGid, RawUid};
use rustix::thread::{CapabilitySet, Gid, Uid};

use crate::numbers::DeviceNumber;
use crate::wire;

/// What is asked of `statx`.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

/// Identifies a file of the lower file system while a descriptor of it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    device: DeviceNumber,
    mount: u64,
    inode: u64,
}

impl Key {
    pub fn of(stat: &Statx) -> Key {
        Key { device: (stat.stx_dev_major, stat.stx_dev_minor), mount: stat.stx_mnt_id, inode: stat.stx_ino }
    }

    /// The device of the file's file system.
    pub fn device(&self) -> DeviceNumber {
        self.device
    }
}

/// What tells that another program has changed a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    len_bytes: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl Stamp {
    pub fn of(stat: &Statx) -> Stamp {
        Stamp {
            len_bytes: stat.stx_size,
            modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        }
    }
}

/// Returns the attributes of an open file.
pub fn stat(file: impl AsFd) -> Result<Statx, Errno> {
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW, WANTED)
}

/// Returns the attributes of an entry of a directory.
pub fn stat_at(directory: impl AsFd, name: &OsStr) -> Result<Statx, Errno> {
    rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, WANTED)
}

/// Opens an entry of a directory as a node.
pub fn open_node(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// Returns a path that leads to an open file, whatever its type, while the file is open.
pub fn link_of(file: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Opens the file of a node for I/O.
pub fn open_again(node: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags.difference(OFlags::NOFOLLOW | OFlags::CREATE) | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::open(link_of(node.as_fd()), flags, Mode::empty())
}

/// Returns the path of a node, as far as it has one.
pub fn path_of(node: impl AsFd) -> Result<PathBuf, Errno> {
    let path = rustix::fs::readlinkat(CWD, link_of(node.as_fd()), Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(path.as_bytes())))
}

/// Converts the attributes for the kernel, with the inode number to show.
pub fn attributes(stat: &Statx, inode: u64) -> wire::Attr {
    // Unsigned in the protocol, signed to the kernel.
    let seconds = |time: rustix::fs::StatxTimestamp| time.tv_sec as u64;
    wire::Attr {
        ino: inode,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: seconds(stat.stx_atime),
        mtime: seconds(stat.stx_mtime),
        ctime: seconds(stat.stx_ctime),
        atimensec: stat.stx_atime.tv_nsec,
        mtimensec: stat.stx_mtime.tv_nsec,
        ctimensec: stat.stx_ctime.tv_nsec,
        mode: u32::from(stat.stx_mode),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: device_number(stat.stx_rdev_major, stat.stx_rdev_minor),
        blksize: stat.stx_blksize,
        flags: 0,
    }
}

/// Converts the attributes for the kernel's `statx`, with the inode number to show.
pub fn attributes_of_statx(stat: &Statx, inode: u64) -> wire::Statx {
    let time =
        |time: rustix::fs::StatxTimestamp| wire::SxTime { sec: time.tv_sec, nsec: time.tv_nsec, reserved: 0 };
    wire::Statx {
        mask: stat.stx_mask & (StatxFlags::BASIC_STATS | StatxFlags::BTIME).bits(),
        blksize: stat.stx_blksize,
        attributes: stat.stx_attributes.bits(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        mode: stat.stx_mode,
        ino: inode,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        attributes_mask: stat.stx_attributes_mask.bits(),
        atime: time(stat.stx_atime),
        btime: time(stat.stx_btime),
        ctime: time(stat.stx_ctime),
        mtime: time(stat.stx_mtime),
        rdev_major: stat.stx_rdev_major,
        rdev_minor: stat.stx_rdev_minor,
        dev_major: stat.stx_dev_major,
        dev_minor: stat.stx_dev_minor,
        ..wire::Statx::default()
    }
}

/// The kernel's own encoding of a device number (`new_encode_dev`).
fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Decodes a device number of the protocol.
pub fn device_of(number: u32) -> u64 {
    rustix::fs::makedev(number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xfff00)
}

/// Changes the permissions of a node.
pub fn set_mode(node: impl AsFd, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(link_of(node.as_fd()), Mode::from_raw_mode(mode as RawMode & 0o7777))
}

/// Changes the owner of a node.
pub fn set_owner(node: impl AsFd, uid: Option<RawUid>, gid: Option<RawGid>) -> Result<(), Errno> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(node, "", uid, gid, AtFlags::EMPTY_PATH)
}

/// Changes the times of a node; `None` keeps one.
pub fn set_times(
    node: impl AsFd,
    access: Option<Timespec>,
    modification: Option<Timespec>,
) -> Result<(), Errno> {
    let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = rustix::fs::Timestamps {
        last_access: access.unwrap_or(keep),
        last_modification: modification.unwrap_or(keep),
    };
    rustix::fs::utimensat(node, "", &times, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
}

/// Takes the set-user-ID bit, the set-group-ID bit and the capabilities of a file that its writer
/// may not keep. Returns whether the file had such a bit.
pub fn take_privileges(node: impl AsFd, writer: Caller) -> Result<bool, Errno> {
    let stat = stat(&node)?;
    let (mode, mut kept) = (u32::from(stat.stx_mode), u32::from(stat.stx_mode));
    kept &= !0o4000;
    // Without the group's right to execute, the bit gives nobody a group; members and root keep it.
    if mode & 0o2000 != 0 && (mode & 0o010 != 0 || writer.uid != 0 && !writer.is_member_of(stat.stx_gid)) {
        kept &= !0o2000;
    }
    let has_changed = kept != mode;
    if has_changed {
        set_mode(&node, kept)?;
    }
    match rustix::fs::removexattr(link_of(node.as_fd()), "security.capability") {
        // EPERM without root, even if there is none: the write itself removes it then.
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => Ok(has_changed),
        Err(errno) => Err(errno),
    }
}

/// The user on whose behalf files are created and changed.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: RawUid,
    pub gid: RawGid,
    /// The thread; 0 if it is in another PID namespace.
    pub thread: u32,
}

/// While it lives, the thread creates files as another user.
pub struct Disguise(bool);

/// What a thread keeps in disguise: the kernel has checked the caller's permissions already, by its
/// groups too, which the protocol does not tell.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);

impl Caller {
    /// Whether the caller is in a group. The protocol tells only the first of its groups.
    fn is_member_of(self, gid: RawGid) -> bool {
        self.gid == gid
            || self.thread != 0
                && std::fs::read_to_string(format!("/proc/{}/status", self.thread))
                    .is_ok_and(|status| has_group(&status, gid))
    }

    /// Makes this thread create files as the caller, if the process is root's.
    pub fn disguise(self) -> Result<Disguise, Errno> {
        let is_needed = rustix::process::geteuid().is_root() && (self.uid, self.gid) != (0, 0);
        if !is_needed {
            return Ok(Disguise(false));
        }
        // Set first, so that a failure on the way is undone.
        let disguise = Disguise(true);
        let gid = Gid::from_raw(self.gid);
        rustix::thread::set_thread_res_gid(Gid::ROOT, gid, Gid::ROOT)?;
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::from_raw(self.uid), Uid::ROOT)?;
        if self.uid != 0 {
            let mut sets = rustix::thread::capabilities(None)?;
            sets.effective |= KEPT & sets.permitted;
            rustix::thread::set_capabilities(None, sets)?;
        }
        Ok(disguise)
    }
}

impl Drop for Disguise {
    fn drop(&mut self) {
        if self.0 {
            let undone = rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
                .and_then(|()| rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT));
            // Root may always become root. A thread that stayed another user would fail requests
            // of everybody.
            undone.expect("root becomes root");
        }
    }
}

/// Repeats a read or a write until `len` bytes have moved or no more do. `call` gets the number of
/// bytes so far, and returns that of its own. Returns how many bytes have moved.
///
/// # Errors
/// That of the first call that moves none.
pub fn go_on(len: usize, mut call: impl FnMut(usize) -> Result<usize, Errno>) -> Result<usize, Errno> {
    let mut done = 0;
    while done < len {
        match call(done) {
            Ok(0) => break,
            Ok(moved) => done += moved,
            Err(Errno::INTR) => {}
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Whether a thread has ended or is about to: it, or its process, was killed.
pub fn is_killed(thread: u32) -> bool {
    if thread == 0 {
        // One of another PID namespace.
        return false;
    }
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{thread}/{name}"));
    match read("status") {
        // An exiting thread has taken its signal, and closes its files.
        Ok(status) => has_kill_pending(&status) || read("stat").is_ok_and(|stat| is_exiting(&stat)),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// The flag of a thread that is exiting (`PF_EXITING`).
const EXITING: u64 = 4;

/// Whether the thread of a `stat` of /proc is exiting: by the ninth field, its flags. The second
/// one is a name in parentheses, which may contain any character.
fn is_exiting(stat: &str) -> bool {
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace());
    let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Whether SIGKILL waits for the thread of a status of /proc. The kernel sends it to all threads of
/// a process that any signal ends.
fn has_kill_pending(status: &str) -> bool {
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    pending.is_some_and(|signals| signals & 1 << (libc::SIGKILL - 1) != 0)
}

/// Whether the thread of a status of /proc has a supplementary group.
fn has_group(status: &str, gid: RawGid) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supplementary_groups_are_read() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nNStgid:\t1\n";
        assert!(has_group(status, 4) && has_group(status, 1000));
        assert!(!has_group(status, 7) && !has_group(status, 2) && !has_group("Groups:\t \n", 0));
    }

    #[test]
    fn the_killed_are_told_from_the_living() {
        let status = |pending: &str| format!("Name:\tcat\nSigPnd:\t{pending}\nShdPnd:\t0000000000000100\n");
        assert!(has_kill_pending(&status("0000000000000100")));
        assert!(!has_kill_pending(&status("0000000000002002")));
        let stat = |flags: u32| format!("7 (a) b) S 1 7 7 0 -1 {flags} 100 0 0 0");
        assert!(is_exiting(&stat(0x40_0004)) && !is_exiting(&stat(0x40_0000)) && !is_exiting("7 (a"));
        assert!(!is_killed(std::process::id()) && !is_killed(0) && is_killed(u32::MAX >> 1));
    }
}
