//! The handles of a store, and which of them keep its file open. Not here: what closing does
//! (`file.rs`).
//!
//! * K1. Each handle counts as a *keeper* until it is dropped or lets go. I/O inside the gate has a
//!   handle that does not count, and the watch another.
//! * K2. The last keeper closes the file if a handle has let go before, with the gate closed: no
//!   I/O is in flight, and later I/O fails. Without such a handle, none is left that could use the
//!   file, and the store closes when it is dropped.
//! * K3. The descriptors of a closed file lead nowhere. Their numbers stay taken until the store is
//!   dropped, so a thread that has read one before reaches no other file.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Inner, Keep, Store};
use crate::sync::{Arc, Weak};

/// A reference to a [`Store`] that does not keep it open.
#[derive(Clone)]
pub struct WeakStore(Weak<Inner>);

impl WeakStore {
    /// Returns a handle of the store, or None if the store was closed.
    pub fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().filter(|inner| !inner.is_closed()).map(Store::keeping)
    }

    /// Does what [`upgrade`](WeakStore::upgrade) does. The handle does not keep a file open.
    pub(crate) fn peek(&self) -> Option<Store> {
        self.0.upgrade().filter(|inner| !inner.is_closed()).map(Store::passing)
    }
}

impl fmt::Debug for WeakStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakStore").field(&self.upgrade()).finish()
    }
}

impl Store {
    /// Returns a reference that does not keep the store open.
    ///
    /// # Examples
    /// ```
    /// let store = octavo_disk::Store::memory("scratch", 4096);
    /// let weak = store.downgrade();
    /// assert!(weak.upgrade().is_some());
    /// drop(store);
    /// assert!(weak.upgrade().is_none());
    /// ```
    pub fn downgrade(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.0))
    }

    /// Makes a handle that keeps the file open.
    pub(super) fn keeping(inner: Arc<Inner>) -> Store {
        // Relaxed: as in `Arc::clone`.
        inner.keepers.fetch_add(1, Ordering::Relaxed);
        Store(inner, Keep(AtomicBool::new(true)))
    }

    /// Makes a handle that does not keep the file open.
    fn passing(inner: Arc<Inner>) -> Store {
        Store(inner, Keep(AtomicBool::new(false)))
    }

    /// Returns a handle for an I/O inside the gate: until it leaves, the file stays open.
    pub(crate) fn inside_gate(&self) -> Store {
        Store::passing(self.0.clone())
    }

    /// This handle no longer keeps the file or device open. If no other handle does, closes it:
    /// ends its lock and closes its descriptors, after the I/O in flight. Every later I/O fails
    /// with `EBADF`. Handles that still exist keep two descriptors, which lead nowhere, so that no
    /// later file gets their numbers. A store that is neither stays as it is.
    ///
    /// # Examples
    /// ```
    /// use octavo_disk::{OpenOptions, Store};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("disk.img");
    /// # std::fs::write(&path, [0; 4096])?;
    /// let store = Store::open(&path, &OpenOptions::default())?;
    /// assert!(Store::open(&path, &OpenOptions::default()).is_err(), "the file is locked");
    /// store.let_go();
    /// assert!(store.is_closed());
    /// Store::open(&path, &OpenOptions::default())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn let_go(&self) {
        self.0.has_let_go.store(true, Ordering::SeqCst);
        if self.is_last_keeper() {
            self.0.close();
        }
    }

    /// Returns whether the file was closed: all handles have let go.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Ends this handle's part in keeping the file open. Returns whether it was the last one.
    fn is_last_keeper(&self) -> bool {
        // SeqCst (K2): the last of several handles sees `has_let_go`, and all that the others did.
        self.1.0.swap(false, Ordering::SeqCst) && self.0.keepers.fetch_sub(1, Ordering::SeqCst) == 1
    }
}

impl Clone for Store {
    fn clone(&self) -> Store {
        Store::keeping(self.0.clone())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // K2.
        if self.is_last_keeper() && self.0.has_let_go.load(Ordering::SeqCst) {
            self.0.close();
        }
    }
}
