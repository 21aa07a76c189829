//! [`Ownership`] of a file: one opener that writes, or any number of openers that only read.
//! Protects a store from a second cache, in this process (a table by device and inode) and in other
//! processes (a lock of the open file description, `F_OFD_SETLK`). The table is needed as well,
//! because only it knows the path under which this process opened the file. Not here: opening
//! files.
//!
//! A store with direct I/O has two open file descriptions, and each holds a part of the lock: the
//! direct one the first byte, the buffered one the rest. If the process is killed, the kernel keeps
//! a description until the last I/O on it has ended, and with it the lock. Nobody else can open the
//! file while a write of a dead process may still reach it.
//!
//! A store that is closed in order unlocks its descriptions, and marks them until the kernel has
//! closed them (`sys::LockedPart::Mark`).

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::OpenError;
use crate::process::{PerProcess, Process};
use crate::store::sys::{self, LockKind, LockedPart};

/// The most processes that a search for a lock's holder visits, so that a refusal takes bounded
/// time.
const PROCESSES_MAX: usize = 4096;
/// The most descriptors of one process that the search visits.
const DESCRIPTORS_MAX: usize = 4096;

/// The device number and the inode number of a file; for a block device, its own number and 0.
/// While a file is open, no other file has its numbers.
pub(crate) type Numbers = (u64, u64);

/// How long an opener waits for a lock that no living process seems to hold: the I/O of a dead one
/// is ending. The kernel takes down the rings of a process after its end, in a work queue, which
/// took more than five seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// After this long, the log says that an opener waits.
const QUIET: Duration = Duration::from_secs(1);

/// Between two searches for the holder of a lock.
const SEARCH_PAUSE: Duration = Duration::from_millis(500);

/// Between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(10);

struct Owner {
    numbers: Numbers,
    path: PathBuf,
    read_only: bool,
    id: u64,
}

#[derive(Default)]
struct Owners {
    list: Vec<Owner>,
    next_id: u64,
}

static OWNERS: PerProcess<Mutex<Owners>> = PerProcess::new(Mutex::default);

fn owners() -> MutexGuard<'static, Owners> {
    OWNERS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to use a file, until [`release`](Ownership::release).
pub(crate) struct Ownership {
    id: u64,
    kind: LockKind,
    process: Process,
}

impl Ownership {
    /// Claims the file for this process. Waits for the I/O of a process that has ended.
    ///
    /// # Errors
    /// [`OpenError::Locked`], which names the holder, or [`OpenError::Io`].
    pub(crate) fn take(
        file: &File,
        path: &Path,
        numbers: Numbers,
        read_only: bool,
    ) -> Result<Ownership, OpenError> {
        let begun = Instant::now();
        let mut is_told = false;
        let mut searched: Option<Instant> = None;
        loop {
            if let Some(ownership) = Ownership::try_take(file, path, numbers, read_only)? {
                return Ok(ownership);
            }
            // Not at each attempt: a search visits all processes of a machine that may be busy.
            if searched.is_none_or(|searched| searched.elapsed() >= SEARCH_PAUSE) {
                if let Some(holder) = holder(file) {
                    return Err(OpenError::Locked { path: path.to_owned(), holder });
                }
                searched = Some(Instant::now());
            }
            if begun.elapsed() >= PATIENCE {
                let holder = format!(
                    "another process, which is not visible from here, or one that has ended and whose I/O is \
                     still in flight after {} s",
                    PATIENCE.as_secs()
                );
                return Err(OpenError::Locked { path: path.to_owned(), holder });
            }
            if !is_told && begun.elapsed() >= QUIET {
                is_told = true;
                log::warn!(
                    "{}: is locked, and no process is visible that has it open; waiting up to {} s for the I/O \
                     of one that has ended",
                    path.display(),
                    PATIENCE.as_secs()
                );
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns `None` if another process holds the lock.
    fn try_take(
        file: &File,
        path: &Path,
        numbers: Numbers,
        read_only: bool,
    ) -> Result<Option<Ownership>, OpenError> {
        let mut owners = owners();
        let conflict =
            owners.list.iter().find(|owner| owner.numbers == numbers && !(owner.read_only && read_only));
        if let Some(owner) = conflict {
            let holder = format!("this process, which opened it as {}", owner.path.display());
            return Err(OpenError::Locked { path: path.to_owned(), holder });
        }
        let kind = if read_only { LockKind::Shared } else { LockKind::Exclusive };
        match sys::set_lock(file, kind, LockedPart::Whole) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                return Ok(None);
            }
            Err(source) => {
                let step = "cannot lock it (F_OFD_SETLK)";
                return Err(OpenError::Io { path: path.to_owned(), step, source });
            }
        }
        owners.next_id += 1;
        let id = owners.next_id;
        owners.list.push(Owner { numbers, path: path.to_owned(), read_only, id });
        Ok(Some(Ownership { id, kind, process: Process::this() }))
    }

    /// Moves a part of the lock from `file` to another description of the same file, through which
    /// I/O will be done. If that fails, `file` holds the whole lock, as before. Nobody else can
    /// lock the file meanwhile, for `file` keeps the rest.
    pub(crate) fn share(&self, file: &File, other: &File) -> io::Result<()> {
        sys::set_lock(file, LockKind::Unlock, LockedPart::FirstByte)?;
        let shared = sys::set_lock(other, self.kind, LockedPart::FirstByte);
        if shared.is_err() {
            sys::set_lock(file, self.kind, LockedPart::FirstByte)?;
        }
        shared
    }

    /// Releases the file, of which `files` are the descriptions. Unlocks explicitly: closing them
    /// may not release the lock at once, because the kernel can keep an open file description a
    /// little longer while it finishes outstanding work. A writable one gets the mark meanwhile.
    pub(crate) fn release<'f>(&self, files: impl IntoIterator<Item = &'f File>) {
        // A child of `fork` shares the open file description with its parent: unlocking here would
        // release the parent's lock.
        if !self.process.is_this() {
            return;
        }
        let mut owners = owners();
        let unlock = |file| {
            if self.kind == LockKind::Exclusive {
                // Without the mark, a watch may report the close of this description.
                let _ = sys::set_lock(file, LockKind::Shared, LockedPart::Mark);
            }
            sys::set_lock(file, LockKind::Unlock, LockedPart::Whole).err()
        };
        for error in files.into_iter().filter_map(unlock) {
            let path = owners.list.iter().find(|owner| owner.id == self.id).map(|owner| owner.path.display());
            let path = path.map_or_else(|| "a closed file".into(), |path| path.to_string());
            log::warn!(
                "{path}: cannot release its lock (F_OFD_SETLK): {error}; it may stay locked for a short time"
            );
        }
        owners.list.retain(|owner| owner.id != self.id);
    }
}

/// Describes the living process that holds a lock on the file, if one is visible.
fn holder(file: &File) -> Option<String> {
    let pid = sys::lock_holder_pid(file).or_else(|| search_holder(file))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    Some(
        name.map_or_else(|_| format!("process {pid}"), |name| format!("process {pid} ({})", name.trim_end())),
    )
}

/// Searches the descriptors of all processes for one that has the file open and locked. The lock of
/// an open file description does not name a process itself.
///
/// The search reads what the kernel says about each descriptor, and never follows it to its file: a
/// file system that hangs, in whatever process, would hold up the start of a server.
fn search_holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
    let processes = fs::read_dir("/proc").ok()?.flatten().take(PROCESSES_MAX);
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    for pid in pids.filter(|pid| *pid != std::process::id()) {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in descriptors.flatten().take(DESCRIPTORS_MAX) {
            // Sockets, pipes and the like have no path.
            let found = fs::read_link(descriptor.path()).ok().filter(|found| found.is_absolute());
            let Some(found) = found else { continue };
            let info = format!("/proc/{pid}/fdinfo/{}", descriptor.file_name().display());
            let Ok(info) = fs::read_to_string(info) else { continue };
            let is_ours = |device: (u32, u32)| {
                let (major, minor) = device;
                libc::makedev(major, minor) == metadata.dev() || Some(&found) == link.as_ref()
            };
            if locks(&info).any(|(device, inode)| inode == metadata.ino() && is_ours(device)) {
                return Some(pid);
            }
        }
    }
    None
}

/// The device and the inode number of each lock in a text of `/proc/PID/fdinfo` (proc(5)). The
/// device is that of the file system, which btrfs and overlayfs hide from `stat`.
fn locks(info: &str) -> impl Iterator<Item = ((u32, u32), u64)> {
    info.lines().filter_map(|line| {
        let mut numbers = line.strip_prefix("lock:")?.split_ascii_whitespace().nth(5)?.split(':');
        let mut device = || u32::from_str_radix(numbers.next()?, 16).ok();
        let device = (device()?, device()?);
        Some((device, numbers.next()?.parse().ok()?))
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    /// The lock once belonged to the buffered description alone. After a SIGKILL, that was closed
    /// at once, while the ring of the dead process kept the direct one for its writes in flight:
    /// another process could open the file, write to it, and lose its bytes to an older write.
    #[test]
    fn a_description_that_outlives_its_process_keeps_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [0; 4096]).unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (buffered, direct, other) = (open(), open(), open());
        let metadata = buffered.metadata().unwrap();
        let numbers = (metadata.dev(), metadata.ino());
        let owned = Ownership::take(&buffered, &path, numbers, false).unwrap();
        owned.share(&buffered, &direct).unwrap();
        let lock_all = || sys::set_lock(&other, LockKind::Exclusive, LockedPart::Whole);
        assert!(lock_all().is_err());
        // The process is killed: its descriptors are closed, but for what the ring has.
        drop(buffered);
        assert!(lock_all().is_err(), "a write may be in flight");
        drop(direct);
        lock_all().unwrap();
        // The next file in the folder of another test may get this one's inode number.
        owned.release([&other]);
    }

    /// A restart on a busy machine found the store locked by the process that had just been killed,
    /// and ended after five seconds.
    #[test]
    fn an_opener_waits_for_a_lock_whose_holder_is_gone() {
        const { assert!(PATIENCE.as_secs() >= 30) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [0; 4096]).unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (left, file) = (open(), open());
        // No process holds it as far as the opener knows: the table lacks it, and it skips itself.
        sys::set_lock(&left, LockKind::Exclusive, LockedPart::Whole).unwrap();
        assert_eq!(holder(&file), None);
        let metadata = file.metadata().unwrap();
        let numbers = (metadata.dev(), metadata.ino());
        let (waits, waiting) = std::sync::mpsc::channel();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let owned = Ownership::take(&file, &path, numbers, false);
                waits.send(()).unwrap();
                owned.unwrap().release([&file]);
            });
            assert!(waiting.recv_timeout(5 * PAUSE).is_err(), "the lock is held");
            drop(left);
            waiting.recv_timeout(PATIENCE).unwrap();
        });
    }

    #[test]
    fn a_lock_is_found_in_what_the_kernel_says_about_a_descriptor() {
        let text = "pos:\t0\nflags:\t0100002\nmnt_id:\t29\nino:\t77\n\
                    lock:\t1: OFDLCK ADVISORY  WRITE -1 103:05:77 0 0\n\
                    lock:\t2: POSIX  ADVISORY  READ 7 00:2f:123456789012 5 EOF\n";
        let found: Vec<_> = locks(text).collect();
        assert_eq!(found, [((0x103, 5), 77), ((0, 0x2f), 123_456_789_012)]);
        assert_eq!(locks("lock:\nlock:\t1: OFDLCK ADVISORY\npos:\t0\n").count(), 0);
    }
}
