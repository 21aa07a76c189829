//! [`Objects`]: the objects whose pages are kept, for a whole process.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lru::LruCache;
use octavo::{Cache, Charge, Partition};
use octavo_async::{AsyncObject, Driver, DriverConfig};

use crate::config::{Hint, ObjectsConfig};
use crate::entry::{Entry, Key};
use crate::error::{Error, ErrorKind};
use crate::fetcher::{Fetcher, object_key};
use crate::origin::{Meta, Origin};
use crate::remote;
use crate::shared::Shared;
use crate::source::Source;
use crate::stat::{ObjectsStat, add};

/// Memory of an entry, its engine object and its source, as charged.
const ENTRY_BYTES: u64 = 2 << 10;

/// Entries that are charged together.
const CHARGED_TOGETHER: u64 = 64;

/// The cached objects of a process, in any number of stores. One is enough, however many runtimes
/// and sessions there are: make it once, and clone it.
///
/// # Examples
/// See `CachedStore` of the wrappers of `object_store`.
#[derive(Clone, Debug)]
pub struct Objects(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub fetcher: Fetcher,
    pub cache: Cache,
    /// By name. The first is for objects without a route or a tenant.
    partitions: Vec<(String, Partition)>,
    known: Mutex<Known>,
    /// `None` only in `drop`.
    driver: Option<Driver>,
}

/// Entries whose pages must be dropped.
#[derive(Default)]
struct Dropped {
    /// Their versions are gone: the file tier deletes their blocks, too.
    gone: Vec<Arc<Entry>>,
    unused: Vec<Arc<Entry>>,
}

/// The objects whose pages are kept, the most recently used first.
#[derive(Debug)]
struct Known {
    entries: LruCache<Key, Arc<Entry>>,
    /// Increases with every path that is forgotten.
    forgets: u64,
    charge: Charge,
}

impl Objects {
    /// Caches remote objects in the partitions of `cache`. Those without a route or a tenant of
    /// their own go to `partition`. Its pages should have 16 KiB or more: a page is the smallest
    /// part of an object that is kept.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a setting that cannot be, such as a route to a partition that is
    /// not there; [`ErrorKind::Engine`] if the cache has no memory left for its driver.
    pub fn new(cache: &Cache, partition: &Partition, config: ObjectsConfig) -> Result<Objects, Error> {
        config.validate()?;
        let failed = |error: octavo::Error| Error::engine("", &error);
        let named = |partition: Partition| (partition.stat().name, partition);
        let mut partitions = vec![named(partition.clone())];
        let first = partitions[0].0.clone();
        partitions.extend(cache.partitions().into_iter().map(named).filter(|(name, _)| *name != first));
        let wrong = |text: String| Error::new(ErrorKind::Config, "", text);
        if let Some(route) =
            config.routes.iter().find(|route| partitions.iter().all(|(name, _)| *name != route.partition))
        {
            return Err(wrong(format!(
                "route {:?}: there is no partition {:?}",
                route.prefix, route.partition
            )));
        }
        let driver = Driver::with_config(cache, driver_config(&config)).map_err(failed)?;
        let charge = cache.charge(0, "objects that are kept").map_err(failed)?;
        let known = Known { entries: LruCache::unbounded(), forgets: 0, charge };
        Ok(Objects(Arc::new(Inner {
            fetcher: Fetcher::new(cache, config)?,
            cache: cache.clone(),
            partitions,
            known: Mutex::new(known),
            driver: Some(driver),
        })))
    }

    /// Returns the settings.
    pub fn config(&self) -> &ObjectsConfig {
        &self.0.shared().config
    }

    /// Returns the cache that has the pages.
    pub fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// Returns what was counted.
    pub fn stat(&self) -> ObjectsStat {
        ObjectsStat { objects: self.0.known().entries.len() as u64, ..self.0.fetcher.stat() }
    }
}

fn driver_config(config: &ObjectsConfig) -> DriverConfig {
    // Reads that miss are filled by `WillNeed`, which needs no memory of the driver's.
    DriverConfig { requests_max: config.fills_max.max(64) * 4, ..DriverConfig::default() }
}

impl Inner {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn shared(&self) -> &Arc<Shared> {
        self.fetcher.shared()
    }

    fn driver(&self) -> &Driver {
        self.driver.as_ref().expect("only `drop` takes it")
    }

    /// The partition for an object: the hint's, the route's, or the first.
    pub fn partition_of(&self, path: &str, hint: &Hint) -> Result<usize, Error> {
        let route = || {
            let routes = &self.shared().config.routes;
            routes.iter().find(|route| path.starts_with(&route.prefix)).map(|route| &route.partition)
        };
        let Some(name) = hint.tenant.as_ref().or_else(route) else { return Ok(0) };
        self.partitions.iter().position(|(partition, _)| partition == name).ok_or_else(|| {
            Error::new(ErrorKind::Config, path, format!("there is no partition {name:?} for its tenant"))
        })
    }

    /// Returns the kept object, whatever its age.
    pub fn find(&self, key: &Key) -> Option<Arc<Entry>> {
        self.known().entries.get(key).cloned()
    }

    /// A number that changes whenever a path is forgotten.
    pub fn forgets(&self) -> u64 {
        self.known().forgets
    }

    /// Returns the entry for the version that the server has told, which replaces any other version
    /// of the object.
    pub fn keep(
        &self,
        key: &Key,
        meta: &Meta,
        origin: &Arc<dyn Origin>,
        asked: Option<(Instant, u64)>,
    ) -> Result<Arc<Entry>, Error> {
        let mut dropped = Dropped::default();
        let entry = {
            let mut known = self.known();
            let fresh = asked.filter(|(_, forgets)| *forgets == known.forgets).map(|(when, _)| when);
            match known.entries.get(key) {
                // A version that the server has denied meanwhile begins anew.
                Some(entry) if entry.is_version(meta) && entry.source.change().is_none() => {
                    entry.source.use_origin(origin);
                    entry.confirm(fresh);
                    Ok(entry.clone())
                }
                _ => self
                    .insert(&mut known, key, meta, origin, &mut dropped)
                    .inspect(|entry| entry.confirm(fresh)),
            }
        };
        self.drop_pages(dropped);
        entry
    }

    fn insert(
        &self,
        known: &mut Known,
        key: &Key,
        meta: &Meta,
        origin: &Arc<dyn Origin>,
        dropped: &mut Dropped,
    ) -> Result<Arc<Entry>, Error> {
        let id = object_key(&key.scope, &key.path, meta);
        let source = Source::new(self.shared(), key.path.clone(), meta.clone(), id, origin.clone());
        let entry = Arc::new(Entry::new(key.clone(), self.open(key, &source)?, source));
        dropped.gone.extend(known.entries.put(key.clone(), entry.clone()));
        let most = NonZeroUsize::new(self.shared().config.objects_max).expect("valid");
        while known.entries.len() > 1 && (known.entries.len() > most.get() || !known.is_charged()) {
            dropped.unused.extend(known.entries.pop_lru().map(|(_, entry)| entry));
            add(&self.shared().counters.forgotten, 1);
        }
        Ok(entry)
    }

    /// Opens a version of an object in its partition. `None` for an object without bytes.
    fn open(&self, key: &Key, source: &Arc<Source>) -> Result<Option<AsyncObject>, Error> {
        if source.meta.size == 0 {
            return Ok(None);
        }
        let name = format!("{}:{}", key.scope, key.path);
        let object = self.partitions[key.partition].1.open(remote::store(source, &name)?, &name);
        let object = object.map_err(|error| Error::engine(&key.path, &error))?;
        Ok(Some(self.driver().object(object)))
    }

    /// Forgets what is known of an object in every partition: its pages are dropped.
    pub fn forget(&self, scope: &Arc<str>, path: &str) {
        let path: Arc<str> = path.into();
        let mut dropped = Dropped::default();
        {
            let mut known = self.known();
            known.forgets += 1;
            for partition in 0..self.partitions.len() {
                let key = Key { scope: scope.clone(), partition, path: path.clone() };
                dropped.gone.extend(known.entries.pop(&key));
            }
        }
        self.drop_pages(dropped);
    }

    /// Forgets an entry, if it is still the one that is known.
    pub fn forget_entry(&self, key: &Key, entry: &Arc<Entry>) {
        let mut known = self.known();
        if known.entries.peek(key).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            known.entries.pop(key);
        }
        drop(known);
        let is_gone = entry.source.change().is_some();
        let mut dropped = Dropped::default();
        if is_gone { &mut dropped.gone } else { &mut dropped.unused }.push(entry.clone());
        self.drop_pages(dropped);
    }

    /// Drops the pages of objects. That may wait for their I/O, so another thread does it.
    fn drop_pages(&self, Dropped { gone, unused }: Dropped) {
        for entry in gone {
            self.shared().handle().spawn_blocking(move || {
                entry.end();
                entry.source.forget_blocks();
            });
        }
        for entry in unused {
            self.shared().handle().spawn_blocking(move || entry.end());
        }
    }
}

impl Known {
    /// Charges the entries. Returns whether there was memory for them.
    fn is_charged(&mut self) -> bool {
        let entries = (self.entries.len() as u64).next_multiple_of(CHARGED_TOGETHER);
        let bytes = entries * ENTRY_BYTES;
        self.charge.bytes() >= bytes || self.charge.resize(bytes).is_ok()
    }
}

impl Drop for Inner {
    /// The driver waits for its requests, and they for the fetcher. Neither may happen on a thread
    /// of the fetcher, which may drop the last handle.
    fn drop(&mut self) {
        let Some(driver) = self.driver.take() else { return };
        for (_, entry) in std::mem::replace(&mut self.known().entries, LruCache::unbounded()) {
            entry.unpin();
        }
        let fetcher = self.fetcher.clone();
        let end = move || {
            drop(driver);
            drop(fetcher);
        };
        if let Err(error) = std::thread::Builder::new().name("octavo-objects-end".into()).spawn(end) {
            log::warn!("the cache of objects does not end: {error}");
        }
    }
}
