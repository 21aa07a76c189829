//! What users may ask of an object: reads, writes, syncs, discards, advice.

use octavo_disk::Store;
use octavo_table::State;

use crate::error::Error;
use crate::flight::{END, Job, Object, SyncState, Task};
use crate::request::{Advice, Read};
use crate::stat::ObjectStat;
use crate::state::counters::Count;
use crate::sync::{Ordering, lock};

impl Object {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its store.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Its length.
    pub fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    /// Bytes of a page of its cache.
    pub fn page_bytes(&self) -> u64 {
        self.inner.partition.page_bytes() as u64
    }

    /// Whether it was opened read-only.
    pub fn read_only(&self) -> bool {
        self.inner.store.read_only()
    }

    /// Fills `buffer` with the bytes at `offset`: from pages that are there without a lock or a
    /// system call, the rest from the store.
    ///
    /// ```
    /// use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// let cache = Cache::new(CacheConfig::default())?;
    /// let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(5000, b"octavo")?;
    /// let mut six = [0; 6];
    /// object.read_at(5000, &mut six)?;
    /// assert_eq!(&six, b"octavo");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    #[inline]
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the slice is valid for its length.
        match unsafe { self.inner.read_inline(offset, buffer.as_mut_ptr(), buffer.len()) } {
            true => Ok(()),
            false => self.read_any(offset, buffer),
        }
    }

    #[inline(never)]
    fn read_any(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let inner = &*self.inner;
        inner.check(offset, buffer.len() as u64)?;
        if inner.in_one_page(offset, buffer.len()) {
            let is_hit = match inner.partition.counters.at_hand() {
                Some(counts) => {
                    // SAFETY: the slice is valid for its length, and the range lies in one page.
                    let is_hit = unsafe { inner.read_page(offset, buffer.as_mut_ptr(), buffer.len()) };
                    if is_hit {
                        counts.add_hit(buffer.len() as u64);
                    }
                    is_hit
                }
                None => inner.read_heard(offset, buffer),
            };
            if is_hit {
                return Ok(());
            }
        }
        self.read_slowly(offset, buffer)
    }

    #[cold]
    fn read_slowly(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let partition = &*self.inner.partition;
        // The set's lines come together while the task is made.
        partition.table.prefetch_miss(self.inner.tag(offset >> partition.page_shift));
        self.inner.count_read(1, buffer.len() as u64);
        self.run_bytes(Job::Read, offset, buffer.as_mut_ptr(), buffer.len())
    }

    /// Does many reads at once: lookups overlap, and what is missing is fetched together, adjacent
    /// pages in one I/O. Returns the first error after all have ended.
    pub fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        let partition = &*self.inner.partition;
        let mut missing: Vec<usize> = Vec::new();
        match partition.counters.at_hand() {
            Some(counts) => {
                let bytes = self.inner.read_many(reads, &mut missing);
                counts.add_batch(reads.len() as u64, bytes, (reads.len() - missing.len()) as u64);
            }
            None => {
                partition.shared.check_process()?;
                if partition.places.messages {
                    return self.read_batch_by_message(reads);
                }
                missing = self.inner.read_many_heard(reads);
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => self.read_missing(reads, &missing),
        }
    }

    /// Writes `bytes` at `offset`, inside the object. Write-through: returns when the store has
    /// them. Write-back: when the pages have them. Neither is durable before a
    /// [`sync`](Object::sync).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.inner.check_writable()?;
        self.inner.check(offset, bytes.len() as u64)?;
        self.inner.partition.counters.add(Count::Writes, 1);
        self.inner.partition.counters.add(Count::WrittenBytes, bytes.len() as u64);
        self.run_bytes(Job::Write { durable: false }, offset, bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Returns when every write replied to before the call is durable. Fails if one cannot be made
    /// so; what could not be written stays dirty, and a later sync tries again.
    pub fn sync(&self) -> Result<(), Error> {
        self.sync_pages(0, END)
    }

    /// `sync` for the pages that `offset..offset + len` touches.
    pub fn sync_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        let partition = &*self.inner.partition;
        let end = offset.saturating_add(len).div_ceil(partition.page_bytes() as u64);
        self.sync_pages(offset >> partition.page_shift, end)
    }

    fn sync_pages(&self, next: u64, end: u64) -> Result<(), Error> {
        self.inner.partition.counters.add(Count::Syncs, 1);
        self.inner.check_open()?;
        if self.read_only() {
            return Ok(());
        }
        self.inner.check_not_failed()?;
        self.run(Task::of_pages(Job::Sync(SyncState::new(true, u64::MAX)), &self.inner, next, end))
    }

    /// The range reads as zeros afterwards, and the store may give its space back. Where the store
    /// refuses it fails: each byte is what it was, or zero.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.run(Task::clearing(&self.inner, octavo_disk::Op::Discard, offset, len, false)?)
    }

    /// The range reads as zeros afterwards; its space stays allocated where the store can do that.
    /// Fails as [`discard`](Object::discard) does.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.run(Task::clearing(&self.inner, octavo_disk::Op::Zero, offset, len, false)?)
    }

    /// Whether the page at `offset` is in the cache now. A hint: it may come or go at any time.
    pub fn is_resident(&self, offset: u64) -> bool {
        self.inner.partition.table.find(self.inner.tag(offset >> self.inner.partition.page_shift)).is_some()
    }

    /// The node where the page at `offset` belongs now, by its place in the topology; 0 where there
    /// is one.
    pub fn node_of(&self, offset: u64) -> u32 {
        self.inner.partition.node_of(self.inner.tag(offset >> self.inner.partition.page_shift)).0
    }

    /// Says what will happen to a range. Advice never loses anything, and what cannot be followed
    /// is passed over.
    ///
    /// # Errors
    /// [`Error::PastEnd`] where the range ends beyond the object, [`Error::Closed`],
    /// [`Error::Forked`].
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<(), Error> {
        self.inner.partition.shared.check_process()?;
        self.inner.check(offset, len)?;
        match advice {
            Advice::WillNeed => {
                self.run_bytes(Job::Populate, offset, std::ptr::null_mut(), self.populate_len(len))
            }
            Advice::DontNeed => self.let_go(offset, len),
            // As with the kernel's, these are about the whole object, whatever the range.
            Advice::Normal | Advice::Sequential | Advice::Random | Advice::NoReuse => {
                self.inner.streams.advise(advice);
                Ok(())
            }
        }
    }

    /// How much of so many bytes is brought in at most: no more than there is room for.
    pub(crate) fn populate_len(&self, len: u64) -> usize {
        len.min(self.inner.partition.table.slots_count() << self.inner.partition.page_shift) as usize
    }

    /// How many pages were written back so far: whether a sync gets anywhere. Costs less than
    /// [`stat`](Object::stat).
    pub fn pages_written(&self) -> u64 {
        // Relaxed: a count.
        self.inner.written.load(Ordering::Relaxed)
    }

    /// Figures of this object.
    pub fn stat(&self) -> ObjectStat {
        let inner = &self.inner;
        if inner.partition.shared.is_forked() {
            return ObjectStat { name: inner.name.clone(), ..ObjectStat::default() };
        }
        let mut dirty = 0;
        let still = lock(&inner.partition.moves);
        inner.partition.table.for_each_dirty(|_, tag, word| {
            let is_dirty = word.state() == State::Dirty || word.held();
            let concerned = is_dirty && inner.partition.page_of(tag).0 == inner.id;
            dirty += concerned as u64;
        });
        drop(still);
        ObjectStat {
            name: inner.name.clone(),
            len_bytes: inner.len_bytes(),
            dirty_bytes: dirty << inner.partition.page_shift,
            failed: inner.failed.load(Ordering::Acquire),
            writeback_error: lock(&inner.writeback_error).as_ref().map(Error::to_string),
        }
    }
}
