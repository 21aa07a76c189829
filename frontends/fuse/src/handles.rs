//! [`Handles`]: what the kernel has opened: files and directories, by number.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::io::Errno;
use rustix::process::RawUid;

use crate::budget::Paid;
use crate::file::File;
use crate::leases::Leased;
use crate::lower;
use crate::nodes::Node;
use crate::uncached::Writer;

/// An open file.
pub struct Open {
    pub node: Arc<Node>,
    pub file: Arc<File>,
    /// Where pages are kept under leases, if the handle may write.
    pub writer: Option<Writer>,
    /// Opened with `O_APPEND`.
    pub appends: bool,
    /// Opened with `O_SYNC` or `O_DSYNC`.
    pub is_durable: bool,
    /// The number of the last failure of a write-back that it has been told, or need not be (E1).
    pub seen: AtomicU64,
    /// The user that opened it (D3).
    pub user: RawUid,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.file.shared.close(self.user);
    }
}

impl Open {
    /// Whether a read must not be served from the cache (L3). Tries to take the lease.
    pub fn is_uncached(&self) -> bool {
        let Some(lease) = self.file.lease() else { return false };
        if !lease.serves() {
            lease.try_take(&self.file, &self.node, false);
            return !lease.serves();
        }
        false
    }

    /// The lower file, for what is not cached.
    fn lower(&self) -> Result<BorrowedFd<'_>, Errno> {
        match (&self.writer, self.file.lease().and_then(Leased::reader)) {
            (Some(writer), _) => writer.lower(),
            (None, Some(reader)) => Ok(reader.as_fd()),
            (None, None) => Err(Errno::ACCESS),
        }
    }

    /// Reads bytes of the lower file itself.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn read_uncached(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        let lower = self.lower()?;
        lower::go_on(bytes.len(), |done| rustix::io::pread(lower, &mut bytes[done..], offset + done as u64))
    }

    /// Makes all that was written without the cache durable. `None` if the cache has written it.
    pub fn sync_uncached(&self, is_data_only: bool) -> Option<Result<(), Errno>> {
        self.file.lease()?;
        let sync = if is_data_only { rustix::fs::fdatasync } else { rustix::fs::fsync };
        Some(self.lower().and_then(sync))
    }
}

/// An open directory.
pub struct Directory {
    pub node: Arc<Node>,
    pub lower: OwnedFd,
    /// Held while the descriptor's position is used.
    pub position: std::sync::Mutex<()>,
    /// For the descriptor (D2).
    pub _paid: Paid,
}

/// What a number stands for.
#[derive(Clone)]
pub enum Handle {
    File(Arc<Open>),
    Directory(Arc<Directory>),
}

/// All handles of a mount.
#[derive(Default)]
pub struct Handles {
    table: RwLock<HashMap<u64, Handle>>,
    next: AtomicU64,
}

impl Handles {
    /// Adds a handle, and returns its number.
    pub fn add(&self, handle: Handle) -> u64 {
        let number = self.next.fetch_add(1, Relaxed) + 1;
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(number, handle);
        number
    }

    /// Returns an open file.
    ///
    /// # Errors
    /// EBADF if the number is that of no file.
    pub fn file(&self, number: u64) -> Result<Arc<Open>, Errno> {
        match self.table.read().unwrap_or_else(PoisonError::into_inner).get(&number) {
            Some(Handle::File(open)) => Ok(open.clone()),
            _ => Err(Errno::BADF),
        }
    }

    /// Returns an open directory.
    ///
    /// # Errors
    /// EBADF if the number is that of no directory.
    pub fn directory(&self, number: u64) -> Result<Arc<Directory>, Errno> {
        match self.table.read().unwrap_or_else(PoisonError::into_inner).get(&number) {
            Some(Handle::Directory(directory)) => Ok(directory.clone()),
            _ => Err(Errno::BADF),
        }
    }

    /// Takes a handle out.
    pub fn remove(&self, number: u64) -> Option<Handle> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }
}
