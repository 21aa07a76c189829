//! The system calls of this crate that the standard library lacks, one safe function each. Errors
//! are error numbers, because retries are decided by number. Not here: what a call is for;
//! io_uring's calls (`uring.rs`).

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::buffer::IoBuffer;

/// Bytes of a device: `BLKGETSIZE64`, which libc does not name.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;
/// Whether a device is set read-only: `BLKROGET`, which libc does not name.
const BLKROGET: libc::Ioctl = 0x125e;
/// Ask `statx` for the alignment of direct I/O (Linux 6.1).
const STATX_DIOALIGN: libc::c_uint = 0x2000;

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn count(returned: isize) -> Result<usize, i32> {
    usize::try_from(returned).map_err(|_| errno())
}

fn done(returned: i32) -> Result<(), i32> {
    if returned == 0 { Ok(()) } else { Err(errno()) }
}

/// Reads into `pieces` from `offset`. Called for pieces that a pending I/O owns.
pub(crate) fn read_at(file: &File, pieces: &[IoBuffer], offset: u64) -> Result<usize, i32> {
    let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
    if let [one] = pieces {
        // SAFETY: the piece belongs to the pending I/O that this thread executes (`Ring::push`).
        return count(unsafe { libc::pread(fd, one.ptr.cast(), one.len, at) });
    }
    // SAFETY: as above for every piece; `IoBuffer` has the layout of `iovec`.
    count(unsafe { libc::preadv(fd, pieces.as_ptr().cast(), pieces.len() as libc::c_int, at) })
}

/// Writes `pieces` at `offset`. Called for pieces that a pending I/O owns.
pub(crate) fn write_at(file: &File, pieces: &[IoBuffer], offset: u64) -> Result<usize, i32> {
    let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
    if let [one] = pieces {
        // SAFETY: the piece belongs to the pending I/O that this thread executes (`Ring::push`).
        return count(unsafe { libc::pwrite(fd, one.ptr.cast(), one.len, at) });
    }
    // SAFETY: as above for every piece; `IoBuffer` has the layout of `iovec`.
    count(unsafe { libc::pwritev(fd, pieces.as_ptr().cast(), pieces.len() as libc::c_int, at) })
}

/// Makes the file's data durable, and as much of its metadata as reading them back needs.
pub(crate) fn sync_data(file: &File) -> Result<(), i32> {
    // SAFETY: takes a descriptor only, and `file` keeps it open.
    done(unsafe { libc::fdatasync(file.as_raw_fd()) })
}

/// `fallocate` with `mode`.
pub(crate) fn allocate(file: &File, mode: i32, offset: u64, len: u64) -> Result<(), i32> {
    // SAFETY: takes numbers only, and `file` keeps its descriptor open.
    done(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, len as libc::off_t) })
}

/// Tells the kernel how a range of the file will be used. Advice only, so that failures do not
/// matter.
pub(crate) fn advise(file: &File, offset: u64, len: u64, advice: i32) {
    // SAFETY: takes numbers only, and `file` keeps its descriptor open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as libc::off_t, len as libc::off_t, advice) };
}

/// The alignment that direct I/O on this file needs for offsets, in bytes: `Some(0)` means that
/// there is no direct I/O, `None` that this kernel or file system does not say.
pub(crate) fn direct_align_bytes(file: &File) -> Option<u32> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is a constant C string, and `stat` has room for what the kernel writes.
    let returned = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, stat.as_mut_ptr())
    };
    // SAFETY: all zeros is a valid `statx`, and the kernel only overwrote fields of it.
    let stat = unsafe { stat.assume_init() };
    if returned != 0 || stat.stx_mask & STATX_DIOALIGN == 0 {
        return None;
    }
    if stat.stx_dio_mem_align as usize > crate::buffer::ALIGNMENT_BYTES {
        return Some(0);
    }
    Some(stat.stx_dio_offset_align)
}

/// The length of a block device in bytes.
pub(crate) fn device_len_bytes(file: &File) -> Result<u64, i32> {
    let mut len: u64 = 0;
    // SAFETY: this request writes one `u64`.
    done(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut len) })?;
    Ok(len)
}

/// The logical block of a block device in bytes.
pub(crate) fn device_block_bytes(file: &File) -> Result<u32, i32> {
    let mut block: libc::c_int = 0;
    // SAFETY: this request writes one `int`.
    done(unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut block) })?;
    Ok(block as u32)
}

/// Whether a block device is set read-only, as `blockdev --setro` does.
pub(crate) fn device_is_read_only(file: &File) -> Result<bool, i32> {
    let mut read_only: libc::c_int = 0;
    // SAFETY: this request writes one `int`.
    done(unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut read_only) })?;
    Ok(read_only != 0)
}

/// Whether this process may open a path for writing, without opening it.
pub(crate) fn may_write(path: &CStr) -> Result<(), i32> {
    // SAFETY: the path is a C string that lives through the call.
    done(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) })
}

/// What [`lock_whole`] can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    Shared,
    Exclusive,
    Unlock,
}

fn whole_file(kind: LockKind) -> libc::flock {
    // SAFETY: all zeros is a valid `flock`: a lock from the start of the file to its end, however that
    // moves.
    let mut flock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    flock.l_type = match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    } as libc::c_short;
    flock.l_whence = libc::SEEK_SET as libc::c_short;
    flock
}

/// Takes or leaves the lock of the open file description on the whole file. Never waits.
pub(crate) fn lock_whole(file: &File, kind: LockKind) -> Result<(), i32> {
    let flock = whole_file(kind);
    // SAFETY: this command reads one `flock`.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const flock) })
}

/// The process that holds a traditional lock that conflicts with an exclusive one. None if the lock
/// is of an open file description, which belongs to no process, or is gone.
pub(crate) fn lock_holder_pid(file: &File) -> Option<i32> {
    let mut flock = whole_file(LockKind::Exclusive);
    // SAFETY: this command reads and writes one `flock`.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut flock) }).ok()?;
    (flock.l_type != libc::F_UNLCK as libc::c_short && flock.l_pid > 0).then_some(flock.l_pid)
}

/// A new event counter at zero, that never blocks.
#[cfg(not(shuttle))]
pub(crate) fn event_new() -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

/// Makes an event counter readable.
pub(crate) fn event_set(event: BorrowedFd<'_>) {
    let one: u64 = 1;
    // SAFETY: eight bytes of a live variable are read. The counter cannot overflow: it is set once
    // between two clears.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
}

/// Makes an event counter unreadable.
pub(crate) fn event_clear(event: BorrowedFd<'_>) {
    let mut value: u64 = 0;
    // SAFETY: eight bytes of a live variable are written.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut value).cast(), size_of::<u64>()) };
}

/// A word that is zero now, and zero again in each child of `fork`. None where the kernel has no
/// such memory (before Linux 4.14).
pub(crate) fn word_wiped_on_fork() -> Option<&'static std::sync::atomic::AtomicU64> {
    const BYTES: usize = 4096;
    if cfg!(any(miri, shuttle)) {
        return None;
    }
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, at an address that the kernel chooses.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping from above, of that length. (A kernel whose pages are larger has rounded
    // it up.)
    if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above, and nobody else knows of it.
        unsafe { libc::munmap(page, BYTES) };
        return None;
    }
    // SAFETY: zeroed, aligned to a page, and never unmapped.
    Some(unsafe { &*page.cast_const().cast() })
}

/// Every other thread of this process that runs enters and leaves the kernel once (an expedited
/// `membarrier`), as its next tick would make it do. Where the call is refused nothing happens.
pub(crate) fn interrupt_threads() {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    static REGISTERED: std::sync::Once = std::sync::Once::new();
    let membarrier = |command: libc::c_int| {
        // SAFETY: takes numbers only.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    };
    REGISTERED.call_once(|| _ = membarrier(REGISTER_PRIVATE_EXPEDITED));
    membarrier(PRIVATE_EXPEDITED);
}

/// An inotify instance that never blocks.
#[cfg(not(shuttle))]
pub(crate) struct Inotify(std::os::fd::OwnedFd);

/// Events that one `read` takes.
#[cfg(not(shuttle))]
const EVENTS: usize = 64;

#[cfg(not(shuttle))]
impl Inotify {
    pub(crate) fn new() -> io::Result<Inotify> {
        use std::os::fd::FromRawFd;
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Inotify(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches for others that close the file after they had it open for writing. Returns the
    /// number of the watch, the same one for the same file.
    pub(crate) fn watch_closed_for_writing(&self, file: &File) -> io::Result<i32> {
        // By the descriptor: its path may lead elsewhere by now.
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        // SAFETY: the path is a C string that lives through the call.
        let number =
            unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), libc::IN_CLOSE_WRITE) };
        if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
    }

    /// The numbers of the watches that something was reported of since the last call. What the
    /// kernel dropped because its queue was full is not among them.
    pub(crate) fn take(&self) -> Vec<i32> {
        let mut numbers = Vec::new();
        let mut events = [[0_u32; 4]; EVENTS];
        // The kernel's queue has some ten thousand events, one for several that are alike.
        for _ in 0..1024 {
            // SAFETY: as many bytes are written as there are. A watched file's events have no name behind
            // them.
            let read =
                unsafe { libc::read(self.0.as_raw_fd(), events.as_mut_ptr().cast(), size_of_val(&events)) };
            let Ok(bytes @ 1..) = usize::try_from(read) else { break };
            let closed =
                events[..bytes / size_of::<[u32; 4]>()].iter().filter(|e| e[1] & libc::IN_CLOSE_WRITE != 0);
            numbers.extend(closed.map(|event| event[0] as i32));
        }
        numbers
    }
}
