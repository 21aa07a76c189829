//! [`Nodes`]: the files of the lower file system that the kernel knows. A node lives while the
//! kernel has looked it up more often than it has forgotten it.
//!
//! A node's descriptor keeps its inode, so no other file gets the inode's number meanwhile, and the
//! key of a node is unique. A node that has only a handle is compared by that, too: its file may be
//! gone, and the number another file's. Such a node loses its key, and stays until it is forgotten.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use octavo::{Cache, Charge};
use rustix::fs::{FileType, Statx};
use rustix::io::Errno;

use crate::budget::Budget;
use crate::errors::errno_of;
use crate::lower::{self, Key};
use crate::place::{Handle, PLACE_BYTES, Place, Places, handle_of};
use crate::wire::ROOT;

/// A file that the kernel knows.
pub struct Node {
    /// The kernel's number for it.
    pub id: u64,
    pub key: Key,
    pub kind: FileType,
    pub place: Place,
    /// Lookups that the kernel has not forgotten. Raised under a shared lock of the table, lowered
    /// under an exclusive one.
    lookups: AtomicU64,
}

impl Node {
    /// Returns the attributes of the lower file.
    ///
    /// # Errors
    /// ESTALE if it is gone.
    pub fn stat(&self) -> Result<Statx, Errno> {
        lower::stat(self.place.at()?)
    }
}

#[derive(Default)]
struct Table {
    by_id: HashMap<u64, Arc<Node>>,
    by_key: HashMap<Key, Arc<Node>>,
}

/// The memory of a node and of its places in the table, in bytes, about. The tables of the maps are
/// at least half full.
const NODE_BYTES: u64 = {
    let maps = size_of::<(u64, Arc<Node>)>() + size_of::<(Key, Arc<Node>)>() + 2;
    (size_of::<Node>() + 2 * size_of::<usize>() + 2 * maps + PLACE_BYTES) as u64
};

/// Nodes are charged in steps of this many.
const STEP: usize = 1024;

/// How many nodes the kernel is asked to forget at a time.
const SURPLUS: usize = 64;

/// How many numbers are looked at for these.
const SURPLUS_LOOKS: usize = 4096;

/// How many nodes there may be without a charge, until the kernel has forgotten others.
const OVERDRAFT: usize = 4 * STEP;

/// All nodes of a mount.
pub struct Nodes {
    table: RwLock<Table>,
    /// The table's memory.
    charge: Mutex<Charge>,
    /// The kernel is asked to forget some above this number: the configured one, or a smaller one
    /// if `memory_max` has no room for that.
    most: AtomicUsize,
    /// The kernel cannot be asked to forget any, so there may be nodes without a charge.
    is_unbounded: AtomicBool,
    /// Numbers are used once, so generations are not needed.
    next: AtomicU64,
    /// The number from which on nodes are looked for that the kernel should forget.
    oldest: AtomicU64,
    places: Arc<Places>,
}

impl Nodes {
    /// Begins with the root. At most `open_max` nodes have descriptors, where handles serve.
    /// The kernel is asked to forget some if there are more than `nodes_max`.
    ///
    /// # Errors
    /// ENOMEM, ENFILE.
    pub fn new(
        root: OwnedFd,
        stat: &Statx,
        cache: &Cache,
        (nodes_max, open_max): (usize, usize),
        budget: Arc<Budget>,
    ) -> Result<Nodes, Errno> {
        // The rest is for files that are kept, and for requests.
        let affordable = (cache.stat().buffers_max_bytes / 8 * 3 / NODE_BYTES) as usize;
        let mut nodes_max = nodes_max.min(affordable.max(2 * STEP));
        let places = Places::new(&root, stat, open_max, budget.clone());
        if places.keep_all() {
            // D6: before they are refused.
            nodes_max = nodes_max.min(budget.max_and_used().0 / 8 * 3);
        }
        let charge = cache.charge(STEP as u64 * NODE_BYTES, "the table of known files");
        let charge = Mutex::new(charge.map_err(|error| errno_of(&error))?);
        let (table, next) = (RwLock::default(), AtomicU64::new(ROOT));
        let (most, oldest) = (AtomicUsize::new(nodes_max), AtomicU64::new(ROOT + 1));
        let is_unbounded = AtomicBool::new(false);
        let nodes = Nodes { table, charge, most, is_unbounded, next, oldest, places };
        nodes.enter(stat, root)?;
        Ok(nodes)
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

    /// A directory or a regular file of each device other than a node's, of those that the kernel
    /// knows.
    pub fn of_other_devices(&self, node: &Node) -> Vec<Arc<Node>> {
        let mut devices = HashSet::from([node.key.device()]);
        let is_plain = |node: &&Arc<Node>| matches!(node.kind, FileType::Directory | FileType::RegularFile);
        let table = self.shared();
        let plain = table.by_id.values().filter(is_plain);
        plain.filter(|node| devices.insert(node.key.device())).cloned().collect()
    }

    /// Counts a lookup of a file that has a node. `handle` returns the file's handle.
    pub fn enter_known(
        &self,
        stat: &Statx,
        handle: impl FnOnce() -> Result<Handle, Errno>,
    ) -> Option<Arc<Node>> {
        let key = Key::of(stat);
        let node = self.shared().by_key.get(&key).cloned()?;
        // Without the lock: it may wait for the lower file system.
        if node.place.handle().is_some_and(|known| handle() != Ok(known)) {
            return None;
        }
        let table = self.shared();
        let is_current = table.by_key.get(&key).is_some_and(|current| Arc::ptr_eq(current, &node));
        is_current.then(|| {
            node.lookups.fetch_add(1, Relaxed);
            node.clone()
        })
    }

    /// Counts a lookup of an open file. Makes its node if it has none.
    ///
    /// # Errors
    /// ENOMEM if `memory_max` leaves no room for it, ENFILE (D6).
    pub fn enter(&self, stat: &Statx, file: OwnedFd) -> Result<Arc<Node>, Errno> {
        let key = Key::of(stat);
        // All of this without the lock: it may wait for the lower file system.
        let place = self.places.place(file, stat)?;
        let at = place.at()?;
        let is_it = |node: &Node| node.place.handle().is_none_or(|known| handle_of(&at, c"") == Ok(known));
        loop {
            let known = self.shared().by_key.get(&key).cloned();
            let is_known = known.as_ref().is_some_and(|node| is_it(node));
            let mut table = self.exclusive();
            let current = table.by_key.get(&key).map(Arc::as_ptr);
            if current != known.as_ref().map(Arc::as_ptr) {
                continue;
            }
            if let (true, Some(node)) = (is_known, &known) {
                node.lookups.fetch_add(1, Relaxed);
                return Ok(node.clone());
            }
            self.charge_for(table.by_id.len() + 1)?;
            let id = self.next.fetch_add(1, Relaxed);
            let kind = FileType::from_raw_mode(stat.stx_mode.into());
            let node = Arc::new(Node { id, key, kind, place, lookups: AtomicU64::new(1) });
            table.by_id.insert(id, node.clone());
            table.by_key.insert(key, node.clone());
            return Ok(node);
        }
    }

    /// Charges the memory of this many nodes. If there is no room for more, the kernel is asked to
    /// forget some from now on, and a few more nodes go without a charge meanwhile.
    fn charge_for(&self, count: usize) -> Result<(), Errno> {
        let mut charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = count.next_multiple_of(STEP) as u64 * NODE_BYTES;
        // Relaxed, here and below: these are hints, and the charge has a lock.
        let most = self.most.load(Relaxed);
        let is_overdrawn = (most..most.saturating_add(OVERDRAFT)).contains(&count);
        if bytes <= charge.bytes() || is_overdrawn || self.is_unbounded.load(Relaxed) {
            return Ok(());
        }
        let Err(error) = charge.resize(bytes) else { return Ok(()) };
        let charged = (charge.bytes() / NODE_BYTES) as usize;
        if charged < most {
            log::info!("the kernel is asked to forget files above {charged}: {error}");
            self.most.store(charged, Relaxed);
            return Ok(());
        }
        log::warn!("cannot know {count} files: {error}");
        Err(errno_of(&error))
    }

    /// Takes the descriptor of a node that can do without (D4). Returns whether there was one.
    pub fn give_back_place(&self) -> bool {
        self.places.give_back()
    }

    /// Notes that the kernel cannot be asked to forget nodes.
    pub fn cannot_shrink(&self) {
        self.is_unbounded.store(true, Relaxed);
    }

    /// Returns nodes that the kernel should forget, if there are too many and it can: the oldest,
    /// and at the next call those after them.
    pub fn surplus(&self) -> Vec<u64> {
        let table = self.shared();
        if self.is_unbounded.load(Relaxed) || table.by_id.len() <= self.most.load(Relaxed) {
            return Vec::new();
        }
        let (mut id, next) = (self.oldest.load(Relaxed), self.next.load(Relaxed));
        let mut found = Vec::with_capacity(SURPLUS);
        for _ in 0..SURPLUS_LOOKS.min(next as usize) {
            if found.len() == SURPLUS {
                break;
            }
            // Numbers of nodes that are gone are passed over, and those in use come again.
            id = if id + 1 < next { id + 1 } else { ROOT + 1 };
            found.extend(table.by_id.contains_key(&id).then_some(id));
        }
        self.oldest.store(id, Relaxed);
        found
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
        if table.by_id.len().is_multiple_of(STEP) {
            // Rarely: it moves all entries.
            if table.by_id.capacity() > 4 * table.by_id.len().max(STEP) {
                table.by_id.shrink_to_fit();
                table.by_key.shrink_to_fit();
            }
            let mut charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
            // A smaller charge is never refused.
            let _ = charge.resize((table.by_id.len() + STEP) as u64 * NODE_BYTES);
        }
        // Unless another file has the number by now.
        if table.by_key.get(&node.key).is_some_and(|other| other.id == id) {
            table.by_key.remove(&node.key);
        }
        Some(node)
    }
}
