//! System calls on files and block devices that `rustix` lacks, or lacks for raw buffers: one safe
//! function each. The errors of I/O are error numbers, because retries are decided by number. Not
//! here: what a call is for; io_uring's calls (`uring.rs`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, statx};
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

use crate::io::buffer::{ALIGNMENT_BYTES, IoBuffer};

/// Asks for the length of a device in bytes. Neither `rustix` nor `libc` names it.
const BLKGETSIZE64: Opcode = 0x8008_1272;
/// Asks for the generation number of an inode (`FS_IOC_GETVERSION`).
const GETVERSION: Opcode = opcode::read::<libc::c_long>(b'v', 1);
/// Asks for a handle that tells files apart and may not lead back to the file (Linux 6.5).
const AT_HANDLE_FID: libc::c_int = 0x200;
/// The most bytes of a handle (`MAX_HANDLE_SZ`).
const HANDLE_BYTES_MAX: usize = 128;
/// Asks whether a device is set read-only. Neither `rustix` nor `libc` names it.
const BLKROGET: Opcode = 0x125e;

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn count(returned: isize) -> Result<usize, i32> {
    usize::try_from(returned).map_err(|_| errno())
}

fn done(returned: i32) -> Result<(), i32> {
    if returned == 0 { Ok(()) } else { Err(errno()) }
}

/// Reads into `pieces` from `offset`. The pieces belong to a pending I/O. Raw pointers stay raw
/// here: `rustix` takes references, but other threads may speculatively read a frame of the cache
/// while this call fills it.
pub(crate) fn read_at(file: &File, pieces: &[IoBuffer], offset: u64) -> Result<usize, i32> {
    let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
    if let [one] = pieces {
        // SAFETY: the piece belongs to the pending I/O that this thread executes (`Ring::push`).
        return count(unsafe { libc::pread(fd, one.ptr.cast(), one.len, at) });
    }
    // SAFETY: as above for every piece; `IoBuffer` has the layout of `iovec`.
    count(unsafe { libc::preadv(fd, pieces.as_ptr().cast(), pieces.len() as libc::c_int, at) })
}

/// Writes `pieces` at `offset`. The pieces belong to a pending I/O.
pub(crate) fn write_at(file: &File, pieces: &[IoBuffer], offset: u64) -> Result<usize, i32> {
    let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
    if let [one] = pieces {
        // SAFETY: the piece belongs to the pending I/O that this thread executes (`Ring::push`).
        return count(unsafe { libc::pwrite(fd, one.ptr.cast(), one.len, at) });
    }
    // SAFETY: as above for every piece; `IoBuffer` has the layout of `iovec`.
    count(unsafe { libc::pwritev(fd, pieces.as_ptr().cast(), pieces.len() as libc::c_int, at) })
}

/// Writes the caller's bytes at `offset`.
pub(crate) fn write_bytes_at(file: &File, bytes: &[u8], offset: u64) -> Result<usize, i32> {
    // SAFETY: the slice is valid for its length, and borrowed until the call returns.
    let written =
        unsafe { libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset as libc::off_t) };
    count(written)
}

/// Makes all data written to a file durable. Calls libc, as reads and writes do, so that a library
/// preloaded to inject faults intercepts all three.
pub(crate) fn sync(file: &File) -> Result<(), i32> {
    // SAFETY: the descriptor is open; no memory is passed.
    done(unsafe { libc::fdatasync(file.as_raw_fd()) })
}

/// Opens a descriptor for which every I/O fails with `EBADF`.
pub(crate) fn nowhere() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Lets the descriptor of `file` lead where `other` leads. Its number stays the same.
pub(crate) fn replace(file: &File, other: &OwnedFd) -> io::Result<()> {
    // SAFETY: both descriptors are open; no memory is passed. The number stays the descriptor of
    // `file`, which closes it on drop.
    match unsafe { libc::dup3(other.as_raw_fd(), file.as_raw_fd(), libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the alignment in bytes that direct I/O on this file needs for offsets (`statx`, Linux
/// 6.1). `Some(0)` means that the file has no direct I/O, or none for our buffers; `None` means
/// that this kernel or file system does not report the alignment.
pub(crate) fn direct_align_bytes(file: &File) -> Option<u32> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    let fits = found.stx_dio_mem_align as usize <= ALIGNMENT_BYTES;
    Some(if fits { found.stx_dio_offset_align } else { 0 })
}

/// Returns the length of a block device in bytes.
pub(crate) fn device_len_bytes(device: &File) -> io::Result<u64> {
    // SAFETY: this request writes one `u64`.
    let request = unsafe { Getter::<BLKGETSIZE64, u64>::new() };
    // SAFETY: as above.
    Ok(unsafe { ioctl(device, request) }?)
}

/// Returns whether a block device is set read-only, as `blockdev --setro` does.
pub(crate) fn device_is_read_only(device: &File) -> io::Result<bool> {
    // SAFETY: this request writes one `int`.
    let request = unsafe { Getter::<BLKROGET, libc::c_int>::new() };
    // SAFETY: as above.
    Ok(unsafe { ioctl(device, request) }? != 0)
}

/// The types of file systems, as `fstatfs` has them, whose I/O waits for another process or
/// machine: FUSE, NFS, SMB 1 to 3, 9P, Ceph, AFS, Coda, Lustre, GFS2 and OCFS2.
const REMOTE: [u32; 12] = [
    0x6573_5546,
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x7375_7245,
    0x0bd0_0bd0,
    0x0116_1970,
    0x7461_636f,
];

/// The most devices whose type is remembered.
const DEVICES_MAX: usize = 1024;

/// Returns whether I/O on a file waits for another process or machine. Asks the file system once
/// for each device, because the call itself waits for it. A device number that another file system
/// gets later may have the old answer, which costs time only.
pub(crate) fn is_remote(file: &File, device: u64) -> bool {
    static KNOWN: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known().get(&device) {
        return *known;
    }
    // Not under the lock.
    let Ok(found) = rustix::fs::fstatfs(file) else { return false };
    // The field has 32 bits that count, and another type on each architecture.
    let is_remote = REMOTE.contains(&(found.f_type as u32));
    let mut known = known();
    if known.len() >= DEVICES_MAX {
        known.clear();
    }
    known.insert(device, is_remote);
    is_remote
}

/// A `struct file_handle` with room for any handle.
#[repr(C)]
struct FileHandle {
    handle_bytes: libc::c_uint,
    handle_type: libc::c_int,
    f_handle: [u8; HANDLE_BYTES_MAX],
}

/// Returns the type and the bytes of the file's handle, which no other file of the file system has
/// or will have. None if the file system has no handles.
pub(crate) fn handle(file: &File) -> Option<Vec<u8>> {
    // Before Linux 6.5 the kernel refuses the first form. A few file systems have only that one.
    [AT_HANDLE_FID, 0].into_iter().find_map(|flags| {
        let mut handle = FileHandle {
            handle_bytes: HANDLE_BYTES_MAX as libc::c_uint,
            handle_type: 0,
            f_handle: [0; HANDLE_BYTES_MAX],
        };
        let mut mount_id: libc::c_int = 0;
        // SAFETY: the path is a C string, the handle has the room that it states, and the call
        // writes one `int` for the mount.
        let returned = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                c"".as_ptr(),
                &raw mut handle,
                &raw mut mount_id,
                libc::AT_EMPTY_PATH | flags,
            )
        };
        let bytes = handle.f_handle.get(..handle.handle_bytes as usize)?;
        (returned == 0).then(|| [&handle.handle_type.to_le_bytes(), bytes].concat())
    })
}

/// Returns the generation number of the file's inode. None if the file system has none.
pub(crate) fn generation(file: &File) -> Option<[u8; 4]> {
    // SAFETY: this request writes one `int`, although its number states a `long`.
    let request = unsafe { Getter::<GETVERSION, libc::c_int>::new() };
    // SAFETY: as above.
    unsafe { ioctl(file, request) }.ok().map(libc::c_int::to_le_bytes)
}

/// The kinds of lock that [`set_lock`] sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    Shared,
    Exclusive,
    Unlock,
}

/// The parts of a file that are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockedPart {
    /// From the start to the end, wherever that is; without the mark.
    Whole,
    /// The first byte, whether it exists or not.
    FirstByte,
    /// The last byte that any file can have. A store that is closed leaves this lock on its
    /// writable descriptions, until the kernel has closed them (`watch.rs`, W6).
    Mark,
}

fn flock_of(kind: LockKind, part: LockedPart) -> libc::flock {
    // SAFETY: all zeros is a valid `flock`.
    let mut flock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    flock.l_type = match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    } as libc::c_short;
    flock.l_whence = libc::SEEK_SET as libc::c_short;
    match part {
        LockedPart::Whole => flock.l_len = libc::off_t::MAX,
        LockedPart::FirstByte => flock.l_len = 1,
        LockedPart::Mark => (flock.l_start, flock.l_len) = (libc::off_t::MAX, 1),
    }
    flock
}

/// Sets or clears the lock of the open file description on a part of the file (`F_OFD_SETLK`, which
/// `rustix` lacks). Never blocks.
pub(crate) fn set_lock(file: &File, kind: LockKind, part: LockedPart) -> io::Result<()> {
    let flock = flock_of(kind, part);
    // SAFETY: this command reads one `flock`.
    let returned = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const flock) };
    done(returned).map_err(io::Error::from_raw_os_error)
}

/// Returns the process that holds a traditional lock which conflicts with an exclusive one. None if
/// the lock belongs to an open file description, and so to no process, or if it is gone.
pub(crate) fn lock_holder_pid(file: &File) -> Option<u32> {
    let mut flock = flock_of(LockKind::Exclusive, LockedPart::Whole);
    // SAFETY: this command reads and writes one `flock`.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut flock) }).ok()?;
    let pid = u32::try_from(flock.l_pid).ok().filter(|pid| *pid > 0);
    pid.filter(|_| flock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Whether another open file description of this file has the mark.
pub(crate) fn is_marked(file: &File) -> bool {
    let mut flock = flock_of(LockKind::Exclusive, LockedPart::Mark);
    // SAFETY: this command reads and writes one `flock`.
    let asked = done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut flock) });
    asked.is_ok() && flock.l_type != libc::F_UNLCK as libc::c_short
}
