//! Changes from outside: the caller reports that a store has changed by other means, and the cache
//! drops its outdated pages.
//!
//! All three calls take the steps of `lifecycle.rs`: they close the range, take or drop its pages,
//! and open it. While the range is closed no page of it is brought in, and take waits for every
//! fill and stray that began before. So each byte that is in the cache afterwards was read from the
//! store after the call began, or was written to the cache.
//!
//! Not here: how changes are noticed (`octavo_disk::Watch`, or the caller).

use crate::error::Error;
use crate::flight::{EVERY, Object};
use crate::position::ByteOffset;

impl Object {
    /// Forgets what the cache knows of the range of `len` bytes at `offset`, because something else
    /// has changed the store there. Drops the pages that overlap the range, so that the next read
    /// asks the store. Dirty pages stay: they are newer than the store, and will overwrite it.
    /// Returns the bytes of the pages that stay. The range may reach past the object's end.
    ///
    /// What a reader sees of a change from outside:
    /// - A read that starts after `invalidate` has returned gets bytes that the store held after
    ///   the call had begun, or bytes of a later write.
    /// - Before that, a read may get the old bytes or the new ones, for each page of its own. One
    ///   read of one page gets bytes that the store returned together.
    /// - A pin keeps its bytes, which are a snapshot.
    ///
    /// Waits for the range's I/O in flight. Meanwhile, reads of its pages wait if they miss.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::{OpenOptions, Store}};
    /// # use std::os::unix::fs::FileExt;
    /// # let path = std::env::temp_dir().join(format!("octavo-invalidate-{}", std::process::id()));
    /// # std::fs::write(&path, [0; 8192])?;
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::open(&path, &OpenOptions::default())?, "file")?;
    /// let mut byte = [0];
    /// object.read_at(4096, &mut byte)?;
    /// // Another program changes the file.
    /// std::fs::OpenOptions::new().write(true).open(&path)?.write_all_at(b"x", 4096)?;
    /// assert_eq!(object.invalidate(4096, 1)?, 0);
    /// object.read_at(4096, &mut byte)?;
    /// assert_eq!(&byte, b"x");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn invalidate(&self, offset: u64, len: u64) -> Result<u64, Error> {
        let page_size = self.inner.partition.page_size;
        let pages = page_size.page_range(ByteOffset(offset), len);
        if pages.is_empty() {
            return self.inner.check_open().map(|()| 0);
        }
        self.closed_range(pages.clone(), |object| {
            object.inner.check_open()?;
            object.take_all(&pages)?;
            Ok(page_size.len_of(object.inner.give_back(&pages)))
        })
    }

    /// Makes the length that the store's file, device or back end has now the length of the object,
    /// and returns it. Call it after something else has changed the length. Pages past a new end
    /// are dropped, dirty ones too. Bytes that the store has gained are read from it.
    ///
    /// Before the call returns, a read inside the old length may get zeros for bytes that the store
    /// has lost, and [`Error::PastEnd`] for bytes that it has gained. A dirty page that is written
    /// back before the call lengthens a file that was cut again, as a plain write would.
    ///
    /// # Errors
    /// [`Error::Io`] if the store does not tell its length, or the dirty page at the end cannot be
    /// written; [`Error::Config`] if the store is longer than an object can be; [`Error::Closed`],
    /// [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::{OpenOptions, Store}};
    /// # let path = std::env::temp_dir().join(format!("octavo-adopt-{}", std::process::id()));
    /// # std::fs::write(&path, [0; 8192])?;
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::open(&path, &OpenOptions::default())?, "file")?;
    /// // Another program appends to the file.
    /// std::fs::OpenOptions::new().write(true).open(&path)?.set_len(10_000)?;
    /// assert_eq!(object.len_bytes(), 8192);
    /// assert_eq!(object.adopt_len_bytes()?, 10_000);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adopt_len_bytes(&self) -> Result<u64, Error> {
        let inner = &self.inner;
        inner.partition.shared.check_process()?;
        loop {
            inner.check_open()?;
            let old = inner.len_bytes();
            let found = inner.store.present_len_bytes().map_err(|source| inner.io_error(&source))?;
            inner.partition.check_len(&inner.name, found)?;
            if found == old && inner.store.len_bytes() == old {
                return Ok(old);
            }
            self.adopt_len_from(old)?;
        }
    }

    /// Adopts the store's length if the object's is still `old`: first the length, then, if it is
    /// shorter, drops what was cut off.
    fn adopt_len_from(&self, old: u64) -> Result<(), Error> {
        let inner = &self.inner;
        let page_size = inner.partition.page_size;
        // The page at the old end: its bytes past that end are zeros, and the store may have others
        // by now. If the page is dirty, it is written up to the old end.
        let at_end = page_size.page_of(ByteOffset(old));
        let is_adopted = self.closed_range(at_end..EVERY.end, |object| {
            inner.check_open()?;
            if inner.len_bytes() != old {
                return Ok(false);
            }
            object.write_and_drop(&(at_end..at_end + 1))?;
            object.take_all(&(at_end..EVERY.end))?;
            let adopted = inner.store.adopt_len_bytes();
            inner.drop_held(&(at_end..EVERY.end));
            inner.set_len(inner.store.len_bytes());
            adopted.map(|_| true).map_err(|source| self.length_error(&source))
        })?;
        let now = inner.len_bytes();
        if !is_adopted || now >= old {
            return Ok(());
        }
        let cut = page_size.page_of(ByteOffset(now));
        self.closed_range(cut..EVERY.end, |object| {
            inner.check_open()?;
            // If the length has changed again, that change has dropped what it had to.
            if inner.len_bytes() != now {
                return Ok(());
            }
            object.take_all(&(cut..EVERY.end))?;
            inner.drop_held(&(cut + 1..EVERY.end));
            inner.give_back(&(cut..cut + 1));
            object.write_and_drop(&(cut..cut + 1))
        })
    }

    /// Starts a new generation of the object: the content of the store was replaced as a whole, so
    /// nothing that the cache has of the old one is worth anything. (If the path leads to another
    /// file now, close the object and open that file: the store is still the old one.) Drops every
    /// page, and adopts the store's length. Dirty pages are lost, too: returns their bytes.
    ///
    /// A read that starts after the call has returned gets only bytes of the new generation, or of
    /// later writes. A read that overlaps the call may get pages of both. A sync that overlaps the
    /// call may succeed, although pages that it should have written are lost.
    ///
    /// # Errors
    /// [`Error::Io`] if the store does not tell its length: the pages are dropped, and the length
    /// stays. [`Error::Config`] if the store is longer than an object can be; [`Error::Closed`],
    /// [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::{OpenOptions, Store}};
    /// # let path = std::env::temp_dir().join(format!("octavo-generation-{}", std::process::id()));
    /// # std::fs::write(&path, [1; 8192])?;
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::open(&path, &OpenOptions::default())?, "file")?;
    /// object.read_at(0, &mut [0; 8192])?;
    /// // Another program writes a new version of the file.
    /// std::fs::write(&path, [2; 100])?;
    /// assert_eq!(object.start_generation()?, 0, "nothing was dirty");
    /// let mut bytes = [0; 100];
    /// object.read_at(0, &mut bytes)?;
    /// assert_eq!((bytes, object.len_bytes()), ([2; 100], 100));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_generation(&self) -> Result<u64, Error> {
        let inner = &self.inner;
        self.closed_range(EVERY, |object| {
            inner.check_open()?;
            let found = inner.store.present_len_bytes().unwrap_or(0);
            inner.partition.check_len(&inner.name, found)?;
            object.take_all(&EVERY)?;
            let lost = inner.drop_held(&EVERY);
            let adopted = inner.store.adopt_len_bytes();
            inner.set_len(inner.store.len_bytes());
            adopted.map_err(|source| self.length_error(&source))?;
            Ok(inner.partition.page_size.len_of(lost))
        })
    }
}
