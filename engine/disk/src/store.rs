//! [`Store`]: the handle of everything that I/O can go to, and the dispatch to its kinds. Not here: how a kind does
//! its work (`file.rs`, `memory.rs`, `sim/`), and how I/O reaches it (`ring.rs`).

use std::fmt;
use std::path::Path;

use crate::error::{IoError, OpenError};
use crate::file::FileStore;
use crate::io::Op;
use crate::memory::MemoryStore;
use crate::sim::SimStore;
use crate::sync::Arc;
#[cfg(not(shuttle))]
use crate::watch::{Change, Noticed};

/// How a file or device is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Writes are refused, and other readers may open it too.
    pub read_only: bool,
    /// Bypass the kernel's page cache (`O_DIRECT`), where the file system can.
    pub direct: bool,
    /// Refuse to share the store with anyone who writes it.
    pub lock: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { read_only: false, direct: true, lock: true }
    }
}

/// A range of bytes that I/O can go to. Cheap to clone; the store is closed with its last handle,
/// and an I/O in flight counts as one.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    /// Never given twice, so that rings can tell a store from a later one.
    #[cfg_attr(shuttle, allow(dead_code, reason = "only io_uring registers files"))]
    id: u64,
    name: String,
    kind: Kind,
    /// Who writes it: see `take`. A lock of std's: nothing waits for anything under it.
    taken_as: std::sync::Mutex<Option<String>>,
    /// What others did to it. A lock of std's, as above.
    #[cfg(not(shuttle))]
    noticed: std::sync::Mutex<Noticed>,
}

pub(crate) enum Kind {
    File(Box<FileStore>),
    Memory(MemoryStore),
    Sim(SimStore),
}

impl Store {
    /// Opens a regular file or a block device, which must exist. Without `O_DIRECT` on its file
    /// system the store is buffered, with a warning in the log.
    ///
    /// ```no_run
    /// let store = octavo_disk::Store::open("/srv/disk.img".as_ref(), &octavo_disk::OpenOptions::default())?;
    /// println!("{} has {} bytes", store.name(), store.len_bytes());
    /// # Ok::<(), octavo_disk::OpenError>(())
    /// ```
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Store, OpenError> {
        let file = FileStore::open(path, options)?;
        Ok(Store::new(path.display().to_string(), Kind::File(Box::new(file))))
    }

    /// Opens a store for reading and without claiming it, to learn whether [`open`](Store::open)
    /// with these options would succeed, while another process may be using it. Whether
    /// somebody else has it locked is not learnt.
    ///
    /// # Errors
    /// Those of [`open`](Store::open), but for [`OpenError::Locked`].
    pub fn rehearse(path: &Path, options: &OpenOptions) -> Result<Store, OpenError> {
        let file = FileStore::rehearse(path, options)?;
        Ok(Store::new(path.display().to_string(), Kind::File(Box::new(file))))
    }

    /// A store in memory, all zeros, that takes memory as it is written. For tests and tools: it is
    /// lost on drop.
    pub fn memory(name: &str, len_bytes: u64) -> Store {
        Store::new(name.to_owned(), Kind::Memory(MemoryStore::new(len_bytes)))
    }

    pub(crate) fn new(name: String, kind: Kind) -> Store {
        static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let id = NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Store(Arc::new(Inner {
            id,
            name,
            kind,
            taken_as: std::sync::Mutex::new(None),
            #[cfg(not(shuttle))]
            noticed: std::sync::Mutex::default(),
        }))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    #[cfg(not(shuttle))]
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// Whether it is a file of a simulated disk, whose I/O moves only when somebody reaps.
    pub fn is_simulated(&self) -> bool {
        matches!(self.0.kind, Kind::Sim(_))
    }

    /// The path, or the name that it was given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Takes it for one user, known as `name`, until [`release`](Store::release): two caches of the
    /// same bytes would undo each other's writes. Err names who has it. A store that nobody can
    /// write is anybody's.
    pub fn take(&self, name: &str) -> Result<(), String> {
        if self.read_only() {
            return Ok(());
        }
        let mut taken_as = self.taken_as();
        if let Some(other) = &*taken_as {
            return Err(other.clone());
        }
        *taken_as = Some(name.to_owned());
        Ok(())
    }

    /// The end of [`take`](Store::take).
    pub fn release(&self) {
        *self.taken_as() = None;
    }

    /// What a [`Watch`](crate::Watch) has noticed that others did to the file or device.
    #[cfg(not(shuttle))]
    pub fn noticed(&self) -> Noticed {
        self.0.noticed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    #[cfg(not(shuttle))]
    pub(crate) fn notice(&self, change: &Change) {
        let mut noticed = self.0.noticed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        noticed.count += u64::from(change.is_alarming());
        noticed.last = Some(change.clone());
    }

    fn taken_as(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.taken_as.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The length in bytes. Changes by [`set_len_bytes`](Store::set_len_bytes) only: what others do
    /// to a file is noticed by a [`Watch`](crate::Watch) and changes nothing here.
    pub fn len_bytes(&self) -> u64 {
        match self.kind() {
            Kind::File(file) => file.len_bytes(),
            Kind::Memory(memory) => memory.len_bytes(),
            Kind::Sim(sim) => sim.len_bytes(),
        }
    }

    /// The logical block, 512 or 4096 bytes: I/O begins at a multiple of it and has a multiple of
    /// it as length.
    pub fn block_bytes(&self) -> u32 {
        match self.kind() {
            Kind::File(file) => file.block_bytes(),
            Kind::Memory(_) => 512,
            Kind::Sim(sim) => sim.block_bytes(),
        }
    }

    /// False if the kernel's page cache lies between this store and its device. Memory and the
    /// simulated disk have none.
    pub fn is_direct(&self) -> bool {
        match self.kind() {
            Kind::File(file) => file.is_direct(),
            Kind::Memory(_) | Kind::Sim(_) => true,
        }
    }

    /// True if writes are refused.
    pub fn read_only(&self) -> bool {
        match self.kind() {
            Kind::File(file) => file.read_only(),
            Kind::Memory(_) | Kind::Sim(_) => false,
        }
    }

    /// Device and inode of a file; the device's own number, and inode 0, for a block device.
    pub fn identity(&self) -> Option<(u64, u64)> {
        match self.kind() {
            Kind::File(file) => Some(file.identity()),
            Kind::Memory(_) | Kind::Sim(_) => None,
        }
    }

    /// Changes the length. Blocks: waits for the I/O in flight on this store, and holds off new I/O
    /// meanwhile; it drives that I/O itself, so that the caller may have some in flight. Bytes
    /// that a longer store gains are zeros. A block device's length cannot be changed
    /// (`Unsupported`).
    ///
    /// Where it fails, [`len_bytes`](Store::len_bytes) tells which of the two lengths there is. An
    /// error whose `op` is a sync is that of a sync that the change needs: then bytes written
    /// before and not synced may be lost, as with any sync that fails.
    pub fn set_len_bytes(&self, len_bytes: u64) -> Result<(), IoError> {
        let refused = |errno| Err(IoError::new(self.name(), Op::Write, len_bytes, 0, errno, None));
        if self.read_only() {
            return refused(libc::EROFS);
        }
        if len_bytes > i64::MAX as u64 {
            return refused(libc::EFBIG);
        }
        match self.kind() {
            Kind::File(file) => file.set_len_bytes(self.name(), len_bytes),
            Kind::Memory(memory) => {
                memory.set_len_bytes(len_bytes);
                Ok(())
            }
            Kind::Sim(sim) => sim.set_len_bytes(len_bytes),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A file that a ring still has registered would stay open, and locked.
        #[cfg(not(shuttle))]
        if let Kind::File(_) = self.kind {
            crate::registry::forget_store(self.id);
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({}, {} bytes)", self.name(), self.len_bytes())
    }
}
