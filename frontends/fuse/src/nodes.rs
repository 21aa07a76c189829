//! [`Nodes`]: the files of the lower file system that the kernel knows. A node lives while the
//! kernel has looked it up more often than it has forgotten it.
//!
//! A node's descriptor keeps its inode, so no other file gets the inode's number meanwhile, and the
//! key of a node is unique.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{FileType, Statx};
use rustix::io::Errno;

use crate::lower::Key;
use crate::wire::ROOT;

/// A file that the kernel knows.
pub struct Node {
    /// The kernel's number for it.
    pub id: u64,
    pub key: Key,
    pub kind: FileType,
    /// Opened with `O_PATH`.
    pub place: OwnedFd,
    /// Lookups that the kernel has not forgotten. Raised under a shared lock of the table, lowered
    /// under an exclusive one.
    lookups: AtomicU64,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<u64, Arc<Node>>,
    by_key: HashMap<Key, Arc<Node>>,
}

/// All nodes of a mount.
pub struct Nodes {
    table: RwLock<Table>,
    /// Numbers are used once, so generations are not needed.
    next: AtomicU64,
}

impl Nodes {
    /// Begins with the root.
    pub fn new(root: OwnedFd, stat: &Statx) -> Nodes {
        let nodes = Nodes { table: RwLock::default(), next: AtomicU64::new(ROOT) };
        nodes.enter(stat, root);
        nodes
    }

    fn shared(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a node by its number.
    ///
    /// # Errors
    /// ESTALE if the kernel has forgotten it.
    pub fn get(&self, id: u64) -> Result<Arc<Node>, Errno> {
        self.shared().by_id.get(&id).cloned().ok_or(Errno::STALE)
    }

    /// The number of nodes.
    pub fn count(&self) -> usize {
        self.shared().by_id.len()
    }

    /// Counts a lookup of a file that has a node.
    pub fn enter_known(&self, stat: &Statx) -> Option<Arc<Node>> {
        let table = self.shared();
        let node = table.by_key.get(&Key::of(stat))?;
        node.lookups.fetch_add(1, Relaxed);
        Some(node.clone())
    }

    /// Counts a lookup of an open file. Makes its node if it has none.
    pub fn enter(&self, stat: &Statx, place: OwnedFd) -> Arc<Node> {
        let key = Key::of(stat);
        let mut table = self.exclusive();
        if let Some(node) = table.by_key.get(&key) {
            node.lookups.fetch_add(1, Relaxed);
            return node.clone();
        }
        let id = self.next.fetch_add(1, Relaxed);
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let node = Arc::new(Node { id, key, kind, place, lookups: AtomicU64::new(1) });
        table.by_id.insert(id, node.clone());
        table.by_key.insert(key, node.clone());
        node
    }

    /// Takes back lookups of a node. Returns the node if none is left.
    pub fn forget(&self, id: u64, lookups: u64) -> Option<Arc<Node>> {
        if id == ROOT {
            return None;
        }
        let mut table = self.exclusive();
        let node = table.by_id.get(&id)?;
        let before = node.lookups.load(Relaxed);
        node.lookups.store(before.saturating_sub(lookups), Relaxed);
        if before > lookups {
            return None;
        }
        let node = table.by_id.remove(&id)?;
        table.by_key.remove(&node.key);
        Some(node)
    }
}
