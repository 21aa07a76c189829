//! The rivals: how each is opened, and how a page is read from it. The loop around a read is in
//! `tools/bench`.
//!
//! | name | cache | settings |
//! |---|---|---|
//! | `quick_cache` | its `sync::Cache` (like S3-FIFO, sharded) | `new`, capacity in pages |
//! | `moka` | moka's `sync::Cache` (TinyLFU) | `max_capacity` in pages |
//! | `foyer` | foyer's memory cache | the defaults: LRU with a high-priority pool, eight shards |
//! | `mutex_lru` | the `lru` crate's list behind a mutex, in 64 shards | copies under the lock |
//! | `pread` | blocking reads of a file in the kernel's page cache | |
//! | `mmap` | copies from a populated mapping of the same file | the kernel's 4 KiB pages |
//! | `uring_direct` | direct reads by io_uring, one at a time per thread | no cache |
//!
//! `quick_cache` and `moka` hold pages behind an `Arc`, as their manuals say for large values;
//! entries of `foyer` are handles. A miss reads past the kernel's page cache into a new page, which
//! is inserted and copied out.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foyer_memory::CacheBuilder;
use memmap2::{Mmap, MmapOptions};
use octavo_bench::rival::{Places, Reader, Rival, RivalCache, Room};
use octavo_bench::{AlignedBytes, DirectFile, Error, PAGE_BYTES, PrivateIo, Store, Worker};

type Page = [u8; PAGE_BYTES];

/// All rivals.
pub fn all() -> Vec<Box<dyn Rival>> {
    vec![
        keyed("quick_cache", |capacity| quick_cache::sync::Cache::<u64, Arc<Page>>::new(capacity as usize)),
        keyed("moka", moka::sync::Cache::<u64, Arc<Page>>::new),
        keyed("foyer", |capacity| Foyer(CacheBuilder::new(capacity as usize).build())),
        keyed("mutex_lru", ShardedLru::new),
        Box::new(Simple("pread")),
        Box::new(Simple("mmap")),
        Box::new(Simple("uring_direct")),
    ]
}

// ---- Caches with keys

/// What the four caches with keys have in common.
trait Keyed: Send + Sync + 'static {
    /// Calls `act` with the bytes of a page, if the page is cached.
    fn with<R>(&self, page: u64, act: impl FnOnce(&Page) -> R) -> Option<R>;
    fn insert(&self, page: u64, bytes: Arc<Page>);
}

impl Keyed for quick_cache::sync::Cache<u64, Arc<Page>> {
    #[inline]
    fn with<R>(&self, page: u64, act: impl FnOnce(&Page) -> R) -> Option<R> {
        self.get(&page).map(|bytes| act(&bytes))
    }

    fn insert(&self, page: u64, bytes: Arc<Page>) {
        self.insert(page, bytes);
    }
}

impl Keyed for moka::sync::Cache<u64, Arc<Page>> {
    #[inline]
    fn with<R>(&self, page: u64, act: impl FnOnce(&Page) -> R) -> Option<R> {
        self.get(&page).map(|bytes| act(&bytes))
    }

    fn insert(&self, page: u64, bytes: Arc<Page>) {
        self.insert(page, bytes);
    }
}

struct Foyer(foyer_memory::Cache<u64, Arc<Page>>);

impl Keyed for Foyer {
    #[inline]
    fn with<R>(&self, page: u64, act: impl FnOnce(&Page) -> R) -> Option<R> {
        self.0.get(&page).map(|entry| act(entry.value()))
    }

    fn insert(&self, page: u64, bytes: Arc<Page>) {
        self.0.insert(page, bytes);
    }
}

/// LRU lists behind mutexes, one per shard.
struct ShardedLru {
    shards: Vec<Mutex<lru::LruCache<u64, Arc<Page>>>>,
    hasher: RandomState,
}

const SHARDS: u64 = 64;

impl ShardedLru {
    fn new(capacity: u64) -> ShardedLru {
        let each = NonZeroUsize::new((capacity / SHARDS).max(1) as usize).expect("at least one");
        let shards = (0..SHARDS).map(|_| Mutex::new(lru::LruCache::new(each))).collect();
        ShardedLru { shards, hasher: RandomState::new() }
    }

    fn shard(&self, page: u64) -> MutexGuard<'_, lru::LruCache<u64, Arc<Page>>> {
        let shard = &self.shards[(self.hasher.hash_one(page) % SHARDS) as usize];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keyed for ShardedLru {
    #[inline]
    fn with<R>(&self, page: u64, act: impl FnOnce(&Page) -> R) -> Option<R> {
        self.shard(page).get(&page).map(|bytes| act(bytes))
    }

    fn insert(&self, page: u64, bytes: Arc<Page>) {
        self.shard(page).put(page, bytes);
    }
}

struct KeyedRival<F> {
    name: &'static str,
    make: F,
}

fn keyed<C: Keyed>(name: &'static str, make: impl Fn(u64) -> C + Send + Sync + 'static) -> Box<dyn Rival> {
    Box::new(KeyedRival { name, make })
}

impl<C: Keyed, F: Fn(u64) -> C + Send + Sync> Rival for KeyedRival<F> {
    fn name(&self) -> &str {
        self.name
    }

    fn open(&self, room: &Room) -> Result<Box<dyn RivalCache>, Error> {
        let opened = KeyedCache { cache: (self.make)(room.capacity_pages), file: room.direct.clone() };
        if room.holds_all() {
            let (mut reader, mut page) = (opened.reader(), [0; PAGE_BYTES]);
            (0..room.pages).try_for_each(|number| reader.read(number, 0, &mut page))?;
        }
        Ok(Box::new(opened))
    }
}

struct KeyedCache<C> {
    cache: C,
    file: Arc<DirectFile>,
}

struct KeyedReader<'c, C> {
    cache: &'c C,
    file: &'c DirectFile,
    page: AlignedBytes,
}

impl<C: Keyed> KeyedCache<C> {
    fn reader(&self) -> KeyedReader<'_, C> {
        KeyedReader { cache: &self.cache, file: &self.file, page: AlignedBytes::new(PAGE_BYTES) }
    }
}

impl<C: Keyed> RivalCache for KeyedCache<C> {
    fn worker<'t>(&'t self, places: Places<'t>) -> Result<Box<dyn Worker + 't>, Error> {
        Ok(places.by(self.reader()))
    }
}

impl<C: Keyed> Reader for KeyedReader<'_, C> {
    #[inline]
    fn read(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error> {
        match self.cache.with(page, |bytes| into.copy_from_slice(&bytes[skip..skip + into.len()])) {
            Some(()) => Ok(()),
            None => self.miss(page, skip, into),
        }
    }
}

impl<C: Keyed> KeyedReader<'_, C> {
    #[cold]
    fn miss(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error> {
        self.file.read(page, &mut self.page).map_err(Error::at("a direct read"))?;
        let bytes: Arc<Page> = Arc::new(self.page[..].try_into().expect("a page is a page long"));
        into.copy_from_slice(&bytes[skip..skip + into.len()]);
        self.cache.insert(page, bytes);
        Ok(())
    }
}

// ---- Caches of the kernel, and no cache

struct Simple(&'static str);

enum SimpleCache {
    Pread(File),
    Mmap(Mmap),
    Uring(Store),
}

impl Rival for Simple {
    fn name(&self) -> &str {
        self.0
    }

    fn open(&self, room: &Room) -> Result<Box<dyn RivalCache>, Error> {
        let file = room.buffered.try_clone().map_err(Error::at("a file"))?;
        Ok(Box::new(match self.0 {
            "pread" => {
                // Read the file into the kernel's page cache.
                let mut page = [0; PAGE_BYTES];
                let all = (0..room.pages)
                    .try_for_each(|number| file.read_exact_at(&mut page, number * PAGE_BYTES as u64));
                all.map_err(Error::at("a read"))?;
                SimpleCache::Pread(file)
            }
            "mmap" => {
                // SAFETY: the file is unlinked and its owner only reads it, so no process writes or
                // truncates it while it is mapped.
                let map = unsafe { MmapOptions::new().populate().map(&file) };
                SimpleCache::Mmap(map.map_err(Error::at("a mapping"))?)
            }
            _ => SimpleCache::Uring(room.store.clone()),
        }))
    }
}

impl RivalCache for SimpleCache {
    fn worker<'t>(&'t self, places: Places<'t>) -> Result<Box<dyn Worker + 't>, Error> {
        Ok(match self {
            SimpleCache::Pread(file) => places.by(Pread(file)),
            SimpleCache::Mmap(map) => places.by(Mapped(map)),
            SimpleCache::Uring(store) => {
                let reads = PrivateIo::new(store, 1, 1).map_err(Error::at("a ring"))?;
                places.by(Uring { reads, done: Vec::new() })
            }
        })
    }
}

struct Pread<'f>(&'f File);

impl Reader for Pread<'_> {
    fn read(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error> {
        self.0.read_exact_at(into, page * PAGE_BYTES as u64 + skip as u64).map_err(Error::at("a read"))
    }
}

struct Mapped<'m>(&'m Mmap);

impl Reader for Mapped<'_> {
    #[inline]
    fn read(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error> {
        let at = page as usize * PAGE_BYTES + skip;
        into.copy_from_slice(&self.0[at..at + into.len()]);
        Ok(())
    }
}

struct Uring {
    reads: PrivateIo,
    done: Vec<usize>,
}

impl Reader for Uring {
    fn read(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error> {
        self.reads.read(0, page);
        self.done.clear();
        while self.done.is_empty() {
            self.reads.wait(&mut self.done).map_err(Error::at("a direct read"))?;
        }
        into.copy_from_slice(&self.reads.page(0)[skip..skip + into.len()]);
        Ok(())
    }
}
