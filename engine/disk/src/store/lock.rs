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

use std::fs::{self, File};
use std::io;
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
/// is ending.
const PATIENCE: Duration = Duration::from_secs(5);

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
        loop {
            if let Some(ownership) = Ownership::try_take(file, path, numbers, read_only)? {
                return Ok(ownership);
            }
            wait_for_holder(file, path, begun)?;
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
    /// little longer while it finishes outstanding work.
    pub(crate) fn release<'f>(&self, files: impl IntoIterator<Item = &'f File>) {
        // A child of `fork` shares the open file description with its parent: unlocking here would
        // release the parent's lock.
        if !self.process.is_this() {
            return;
        }
        let mut owners = owners();
        let unlock = |file| sys::set_lock(file, LockKind::Unlock, LockedPart::Whole).err();
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

/// Waits for a moment, if no living process is seen that holds the lock. The error names one.
fn wait_for_holder(file: &File, path: &Path, begun: Instant) -> Result<(), OpenError> {
    let holder = match sys::lock_holder_pid(file).or_else(|| search_holder(file)) {
        Some(pid) => match fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim_end()),
            Err(_) => format!("process {pid}"),
        },
        None if begun.elapsed() < PATIENCE => {
            std::thread::sleep(PAUSE);
            return Ok(());
        }
        None => "another process, which is not visible from here, or one that has ended and whose I/O \
                 is still in flight"
            .to_owned(),
    };
    Err(OpenError::Locked { path: path.to_owned(), holder })
}

/// Searches the descriptors of all processes for one that has the file open and locked. The lock of
/// an open file description does not name a process itself.
fn search_holder(file: &File) -> Option<u32> {
    let wanted = file.metadata().ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten().take(PROCESSES_MAX);
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    for pid in pids.filter(|pid| *pid != std::process::id()) {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in descriptors.flatten().take(DESCRIPTORS_MAX) {
            let Ok(found) = fs::metadata(descriptor.path()) else { continue };
            if (found.dev(), found.ino()) != (wanted.dev(), wanted.ino()) {
                continue;
            }
            let info = format!("/proc/{pid}/fdinfo/{}", descriptor.file_name().display());
            if fs::read_to_string(info).is_ok_and(|info| info.contains("lock:")) {
                return Some(pid);
            }
        }
    }
    None
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
    }
}
