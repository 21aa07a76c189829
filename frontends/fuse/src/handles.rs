//! [`Handles`]: what the kernel has opened: files and directories, by number.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::io::Errno;

use crate::files::File;
use crate::nodes::Node;

/// An open file.
pub struct Open {
    pub node: Arc<Node>,
    pub file: Arc<File>,
    /// Opened with `O_APPEND`.
    pub appends: bool,
    /// Opened with `O_SYNC` or `O_DSYNC`.
    pub is_durable: bool,
}

/// An open directory.
pub struct Directory {
    pub node: Arc<Node>,
    pub lower: OwnedFd,
    /// Held while the descriptor's position is used.
    pub position: std::sync::Mutex<()>,
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
