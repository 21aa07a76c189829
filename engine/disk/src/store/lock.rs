//! [`Ownership`] of a file: one opener that writes, or any number of openers that only read.
//! Protects a store from a second cache, in this process (a table by device and inode) and in other
//! processes (a lock of the open file description, `F_OFD_SETLK`). The table is needed as well,
//! because only it knows the path under which this process opened the file. Not here: opening
//! files.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::OpenError;
use crate::process::{PerProcess, Process};
use crate::store::sys::{self, LockKind};

/// The most processes that a search for a lock's holder visits, so that a refusal takes bounded
/// time.
const PROCESSES_MAX: usize = 4096;
/// The most descriptors of one process that the search visits.
const DESCRIPTORS_MAX: usize = 4096;

/// The device number and the inode number of a file; for a block device, its own number and 0.
/// While a file is open, no other file has its numbers.
pub(crate) type Numbers = (u64, u64);

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
    process: Process,
}

impl Ownership {
    /// Claims the file for this process.
    ///
    /// # Errors
    /// [`OpenError::Locked`], which names the holder, or [`OpenError::Io`].
    pub(crate) fn take(
        file: &File,
        path: &Path,
        numbers: Numbers,
        read_only: bool,
    ) -> Result<Ownership, OpenError> {
        let mut owners = owners();
        let conflict =
            owners.list.iter().find(|owner| owner.numbers == numbers && !(owner.read_only && read_only));
        if let Some(owner) = conflict {
            let holder = format!("this process, which opened it as {}", owner.path.display());
            return Err(OpenError::Locked { path: path.to_owned(), holder });
        }
        let kind = if read_only { LockKind::Shared } else { LockKind::Exclusive };
        sys::lock_whole(file, kind).map_err(|source| match source.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => {
                OpenError::Locked { path: path.to_owned(), holder: holder(file) }
            }
            _ => OpenError::Io { path: path.to_owned(), step: "cannot lock it (F_OFD_SETLK)", source },
        })?;
        owners.next_id += 1;
        let id = owners.next_id;
        owners.list.push(Owner { numbers, path: path.to_owned(), read_only, id });
        Ok(Ownership { id, process: Process::this() })
    }

    /// Releases the file. Unlocks explicitly: closing `file` may not release the lock at once,
    /// because the kernel can keep the open file description a little longer while it finishes
    /// outstanding work.
    pub(crate) fn release(&self, file: &File) {
        // A child of `fork` shares the open file description with its parent: unlocking here would
        // release the parent's lock.
        if !self.process.is_this() {
            return;
        }
        let mut owners = owners();
        if let Err(error) = sys::lock_whole(file, LockKind::Unlock) {
            let path = owners.list.iter().find(|owner| owner.id == self.id).map(|owner| owner.path.display());
            let path = path.map_or_else(|| "a closed file".into(), |path| path.to_string());
            log::warn!(
                "{path}: cannot release its lock (F_OFD_SETLK): {error}; it may stay locked for a short time"
            );
        }
        owners.list.retain(|owner| owner.id != self.id);
    }
}

/// Describes the process that holds a lock on `file`.
fn holder(file: &File) -> String {
    match sys::lock_holder_pid(file).or_else(|| search_holder(file)) {
        Some(pid) => match fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim_end()),
            Err(_) => format!("process {pid}"),
        },
        None => "another process, which is not visible from here".to_owned(),
    }
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
