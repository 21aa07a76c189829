//! [`Files`]: open files, and the pages of files that were closed.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use octavo::{Object, Partition};
use octavo_objects::{Error, ErrorKind, Fetcher, Meta};

use crate::client::Client;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One version of an object whose pages are kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub key: Arc<str>,
    pub meta: Meta,
    /// `None` for an object without bytes.
    pub object: Option<Object>,
    /// The server has answered that it does not have this version. It may have been wrong, or have
    /// it again: the next open begins anew.
    pub is_doubted: AtomicBool,
}

impl Kept {
    /// Notes that the server does not have this version. Relaxed: the flag stands alone.
    pub fn doubt(&self) {
        self.is_doubted.store(true, Ordering::Relaxed);
    }

    /// Whether it has the pages of a version.
    fn is_version(&self, meta: &Meta) -> bool {
        self.meta.size == meta.size
            && self.meta.version.is_same(&meta.version)
            && !self.is_doubted.load(Ordering::Relaxed)
    }
}

impl Drop for Kept {
    /// Nobody reads it any more: its pages go. Waits for those that are being fetched.
    fn drop(&mut self) {
        if let Some(object) = &self.object {
            object.abandon();
        }
    }
}

/// The files whose pages are kept, open or not.
#[derive(Debug)]
pub(crate) struct Files {
    kept: Mutex<LruCache<Arc<str>, Arc<Kept>>>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_handle: HashMap<u64, Arc<Kept>>,
    next: u64,
}

impl Files {
    /// Keeps the pages of at most this many files.
    pub fn new(most: NonZeroUsize) -> Files {
        Files { kept: Mutex::new(LruCache::new(most)), open: Mutex::default() }
    }

    /// Opens a version of an object. Returns a handle, and a file that had to go: its last drop may
    /// wait for the server.
    ///
    /// # Errors
    /// [`ErrorKind::Engine`] if the cache has no memory left.
    pub fn open(
        &self,
        fetcher: &Fetcher,
        client: &Client,
        key: &Arc<str>,
        name: &str,
        meta: Meta,
        partition: &Partition,
    ) -> Result<(u64, Option<Arc<Kept>>), Error> {
        let mut kept = lock(&self.kept);
        let mut gone = None;
        let file = match kept.get(key).filter(|kept| kept.is_version(&meta)) {
            Some(file) => file.clone(),
            None => {
                let object = match meta.size {
                    0 => None,
                    _ => {
                        let store = client.open(fetcher, key, meta.clone())?;
                        let object = partition.open(store, &octavo::display_name(name));
                        Some(object.map_err(|error| Error::new(ErrorKind::Engine, key, error))?)
                    }
                };
                let file =
                    Arc::new(Kept { key: key.clone(), meta, object, is_doubted: AtomicBool::new(false) });
                // The version before goes when the last reader has closed it.
                gone = kept.push(key.clone(), file.clone()).map(|(_, gone)| gone);
                file
            }
        };
        drop(kept);
        let mut open = lock(&self.open);
        open.next += 1;
        let handle = open.next;
        open.by_handle.insert(handle, file);
        Ok((handle, gone))
    }

    pub fn get(&self, handle: u64) -> Option<Arc<Kept>> {
        lock(&self.open).by_handle.get(&handle).cloned()
    }

    /// The size and version of an open file.
    pub fn meta(&self, handle: u64) -> Option<Meta> {
        lock(&self.open).by_handle.get(&handle).map(|file| file.meta.clone())
    }

    /// Closes a file. Returns it: its last drop may wait for the server.
    pub fn close(&self, handle: u64) -> Option<Arc<Kept>> {
        lock(&self.open).by_handle.remove(&handle)
    }

    /// Drops the pages of all files that are closed, and of the others when they are.
    pub fn clear(&self) {
        let kept = std::mem::replace(&mut *lock(&self.kept), LruCache::new(NonZeroUsize::MIN));
        drop(kept);
        let open = std::mem::take(&mut lock(&self.open).by_handle);
        drop(open);
    }

    pub fn count(&self) -> usize {
        lock(&self.kept).len()
    }

    /// The objects whose pages are kept, by their keys.
    pub fn objects(&self) -> Vec<(Arc<str>, Object)> {
        let kept = lock(&self.kept);
        kept.iter().filter_map(|(key, file)| Some((key.clone(), file.object.clone()?))).collect()
    }
}
