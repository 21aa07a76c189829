//! E1 to E4: the pages of a cache leave for a file.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;

use octavo_table::{SegmentIndex, SetGuard, State};

use super::catalog::{Catalog, ObjectEntry, PartitionEntry};
use super::chunk::{Chunk, Record};
use super::header::{ALIGN_BYTES, checksum, mark_complete, mark_used};
use super::workers;
use crate::api::cache::Cache;
use crate::api::lifecycle::ClosedRange;
use crate::control::Partition;
use crate::error::Error;
use crate::flight::{EVERY, Object};
use crate::memory::copy;
use crate::state::counters::Count;
use crate::state::partition::PartitionInner;
use crate::sync::{Mutex, lock};
use crate::ways::WAYS;

/// The result of [`Cache::evacuate`].
#[derive(Debug, Default)]
pub struct Evacuated {
    /// Pages that are in the file.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that stay open, because not all of their bytes are in their stores.
    pub refused: Vec<Refused>,
}

/// An object that could not be evacuated.
#[derive(Debug)]
pub struct Refused {
    /// The object's name.
    pub object: String,
    /// What its store answered.
    pub error: Error,
}

impl Cache {
    /// Writes the clean pages of all partitions to `into`, from which
    /// [`restore`](Cache::restore) takes them into the cache of another process, and closes all
    /// objects. The memory of each page is returned to the system as soon as the page is copied, so
    /// the cache and the file together need at most two MiB (or one set) more than the cache did,
    /// if the file lies in memory (`memfd_create(2)`).
    ///
    /// Other threads may use the cache meanwhile. Their writes reach the stores, or fail with
    /// [`Error::Closed`]. A call that needs a page which has left waits for the end of the
    /// evacuation, and fails.
    ///
    /// Dirty pages are written back and synced first, so the call waits for the stores: sync the
    /// objects before, to know how long that takes. An object whose bytes cannot be written stays
    /// open, and none of its pages count as evacuated. The pages of stores without an
    /// [`identity`](crate::disk::Store::identity) are dropped.
    ///
    /// # Errors
    /// Any error of the file. The objects are closed then, too, and every byte is in its store, but
    /// the file is not complete. `Unsupported` in a child of `fork`.
    ///
    /// # Examples
    /// ```
    /// use octavo::disk::{OpenOptions, Store};
    /// use octavo::{Cache, CacheConfig, Object, PartitionConfig, WarmPages};
    /// # let folder = std::env::temp_dir().join(format!("octavo-evacuate-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let (path, pages) = (folder.join("file"), folder.join("pages"));
    /// # std::fs::write(&path, [7; 8192])?;
    /// let open = |cache: &Cache| -> Result<Object, Box<dyn std::error::Error>> {
    ///     let partition = cache.partition(PartitionConfig::new("app"))?;
    ///     Ok(partition.open(Store::open(&path, &OpenOptions::default())?, "file")?)
    /// };
    /// let old = Cache::new(CacheConfig::default())?;
    /// let object = open(&old)?;
    /// object.read_at(0, &mut [0; 8192])?;
    /// old.evacuate(&std::fs::File::create(&pages)?)?;
    ///
    /// // Usually in another process, which has the file as a descriptor.
    /// let file = std::fs::File::options().read(true).write(true).open(&pages)?;
    /// let (new, warm) = (Cache::new(CacheConfig::default())?, WarmPages::open(file)?);
    /// new.expect(&warm);
    /// let object = open(&new)?;
    /// assert_eq!(new.restore(warm)?.pages, 2);
    /// assert!(object.is_resident(4096));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn evacuate(&self, into: &File) -> io::Result<Evacuated> {
        if self.core().shared.is_forked() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let progress = Progress { at: ALIGN_BYTES, written: mark_used(into) };
        let mut leaving = Leaving {
            file: into,
            progress: Mutex::new(progress),
            catalog: Catalog::default(),
            refused: Vec::new(),
        };
        self.partitions().iter().for_each(|partition| leaving.partition(partition));
        leaving.finish()
    }
}

/// An evacuation in progress.
struct Leaving<'f> {
    file: &'f File,
    progress: Mutex<Progress>,
    catalog: Catalog,
    refused: Vec<Refused>,
}

/// The file so far. Threads that fill chunks share it.
struct Progress {
    /// Where the next chunk begins.
    at: u64,
    /// The first error of the file. No chunk is written after it.
    written: io::Result<()>,
}

impl Leaving<'_> {
    fn partition(&mut self, partition: &Partition) {
        let inner = &*partition.inner;
        // E1.
        let mut leaving = Vec::new();
        for object in partition.objects() {
            match object.sync().and_then(|()| object.close_range(EVERY)) {
                Ok(closed) => leaving.push(closed),
                Err(error) => self.refuse(&object, error),
            }
        }
        // E2.
        let start = lock(&self.progress).at;
        let known = |closed: &&ClosedRange| closed.object.inner.store.identity().is_some();
        let mut counts: HashMap<u64, u64> =
            leaving.iter().filter(known).map(|closed| (closed.object.inner.id, 0)).collect();
        self.pages(inner, &mut counts);
        let pages = counts.values().sum();
        // E3.
        let objects: Vec<ObjectEntry> = leaving
            .into_iter()
            .filter_map(|closed| match leave(&closed.object) {
                Ok(entry) => entry,
                Err(error) => {
                    self.refuse(&closed.object, error);
                    None
                }
            })
            .map(|entry| ObjectEntry { pages: counts[&entry.id], ..entry })
            .collect();
        self.catalog.partitions.push(PartitionEntry {
            name: partition.name().to_owned(),
            page_bytes: inner.page_bytes() as u32,
            policy: inner.table.policy().name().to_owned(),
            secret: inner.secret,
            next_id: lock(&inner.objects).numbers.bound(),
            chunks: start..lock(&self.progress).at,
            pages,
            objects,
        });
    }

    /// E2: writes the pages of the objects in `counts` to the file, and counts them.
    fn pages(&self, partition: &PartitionInner, counts: &mut HashMap<u64, u64>) {
        let segments: Vec<_> = partition.table.segments().collect();
        let none = counts.clone();
        let work = |mine: &mut dyn Iterator<Item = &SegmentIndex>| {
            let mut counts = none.clone();
            let mut chunk = Chunk::new(self.catalog.partitions.len() as u32, partition.page_bytes());
            for segment in mine {
                for mut guard in partition.table.guards_of(*segment) {
                    partition.take_set(&mut guard, &mut counts, &mut chunk);
                    drop(guard);
                    if chunk.is_full() {
                        self.write(&mut chunk);
                    }
                }
            }
            self.write(&mut chunk);
            counts
        };
        for (object, count) in workers::run(partition.page_bytes(), &segments, work).into_iter().flatten() {
            *counts.entry(object).or_default() += count;
        }
    }

    /// Writes a chunk behind all others, and clears it.
    fn write(&self, chunk: &mut Chunk) {
        if let Some(at) = self.reserve(chunk)
            && let Err(error) = chunk.write(self.file, at)
        {
            lock(&self.progress).written = Err(error);
        }
        chunk.clear();
    }

    /// Returns where the chunk belongs, unless there is nothing to write.
    fn reserve(&self, chunk: &Chunk) -> Option<u64> {
        let mut progress = lock(&self.progress);
        if chunk.is_empty() || progress.written.is_err() {
            return None;
        }
        let at = progress.at;
        progress.at = (at + chunk.len_bytes()).next_multiple_of(ALIGN_BYTES);
        Some(at)
    }

    fn refuse(&mut self, object: &Object, error: Error) {
        // Another thread has closed the object: its pages have left.
        if !matches!(error, Error::Closed { .. }) {
            self.refused.push(Refused { object: object.name().to_owned(), error });
        }
    }

    /// E4.
    fn finish(self) -> io::Result<Evacuated> {
        let Leaving { file, progress, catalog, refused } = self;
        let Progress { at, written } = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
        written?;
        let bytes = catalog.encode();
        file.write_all_at(&bytes, at)?;
        mark_complete(file, at..at + bytes.len() as u64, checksum(&bytes))?;
        let mut evacuated = Evacuated { refused, ..Evacuated::default() };
        for partition in &catalog.partitions {
            let pages: u64 = partition.objects.iter().map(|object| object.pages).sum();
            evacuated.pages += pages;
            evacuated.bytes += pages * u64::from(partition.page_bytes);
        }
        Ok(evacuated)
    }
}

/// E3 for an object whose range is closed. Returns `None` if nothing tells whether its store is
/// changed by others.
fn leave(object: &Object) -> Result<Option<ObjectEntry>, Error> {
    let inner = &object.inner;
    object.write_and_drop(&EVERY)?;
    object.sync()?;
    let (identity, stamp, len_bytes) = (inner.store.identity(), inner.store.stamp(), inner.len_bytes());
    inner.set_closed();
    Ok(identity.zip(stamp).map(|(identity, stamp)| ObjectEntry {
        id: inner.id,
        name: inner.name.clone(),
        identity: identity.as_bytes().to_vec(),
        len_bytes,
        stamp,
        pages: 0,
    }))
}

impl PartitionInner {
    /// E2 for a set, whose lock the caller holds.
    fn take_set(&self, guard: &mut SetGuard<'_, WAYS>, counts: &mut HashMap<u64, u64>, chunk: &mut Chunk) {
        let mut free = Vec::with_capacity(WAYS);
        let pages: Vec<_> = guard.pages().collect();
        for found in pages {
            let (object, page) = self.page_of(found.tag());
            let Some(count) = counts.get_mut(&object) else { continue };
            let bits = guard.policy_bits(&found);
            if self.drop_quiet(guard, &found, Count::EvictionsDiscard).is_err() {
                continue;
            }
            let record = Record { object: object as u32, page: page.0, bits };
            chunk.push(record, |to| {
                // SAFETY: the slot is free or detached, and only a holder of the set's lock can
                // claim it, so nobody writes the frame. The chunk has room for a page.
                unsafe { copy::copy_out(self.frames.at(found.index), to, self.page_bytes()) }
            });
            *count += 1;
            // A page that was pinned has left its frame to the pins (Detached).
            if self.table.slot(found.index).load().state() == State::Free {
                free.push(found.index);
            }
        }
        self.frames.give_back_frames(&free);
    }
}
