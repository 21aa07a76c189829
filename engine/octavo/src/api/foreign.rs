//! Reads and writes of memory that is not one slice: several slices, or memory that only addresses
//! describe. The calls on one slice (`object.rs`) take the same path.
//!
//! Not here: requests of queues (`queue.rs`), how bytes in several pieces are copied
//! (`memory/pieces.rs`, F1 to F3).

use std::io::{IoSlice, IoSliceMut};

use octavo_table::Tag;

use crate::error::Error;
use crate::flight::{Job, Object, Task};
use crate::memory::{Lent, Piece, PieceList};
use crate::position::ByteOffset;
use crate::request::RawRead;
use crate::state::counters::Count;

impl Object {
    /// Fills `buffers`, one after the other, with the bytes at `offset` (in bytes). Unlike `std`'s
    /// `read_vectored`, the call fills all buffers or fails; it never returns a short count.
    /// Missing pages are read from the store together, adjacent ones in one I/O. Bytes of one page
    /// that go to several buffers are of one version of the page. There may be thousands of
    /// buffers, and buffers may be empty.
    ///
    /// # Errors
    /// Those of [`read_at`](Object::read_at). After an error, any of the buffers may have changed.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// use std::io::IoSliceMut;
    /// object.write_at(4094, b"octavo")?;
    /// let (mut head, mut tail) = ([0; 3], [0; 3]);
    /// let mut buffers = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    /// object.read_vectored_at(4094, &mut buffers)?;
    /// assert_eq!((&head, &tail), (b"oct", b"avo"));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn read_vectored_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let pieces = buffers.iter_mut().map(|buffer| Piece { start: buffer.as_mut_ptr(), len: buffer.len() });
        // SAFETY: the slices are valid for their lengths, and borrowed until the call returns.
        unsafe { self.read_pieces(offset, pieces) }
    }

    /// Writes `buffers`, one after the other, at `offset` (in bytes). Unlike `std`'s
    /// `write_vectored`, the call writes all buffers or fails; it never returns a short count. In
    /// all else it is a [`write_at`](Object::write_at) of the concatenated buffers: a reader sees
    /// all or nothing of what one write changes in one page. There may be thousands of buffers,
    /// and buffers may be empty.
    ///
    /// # Errors
    /// Those of [`write_at`](Object::write_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// use std::io::IoSlice;
    /// object.write_vectored_at(4094, &[IoSlice::new(b"oct"), IoSlice::new(b"avo")])?;
    /// let mut six = [0; 6];
    /// object.read_at(4094, &mut six)?;
    /// assert_eq!(&six, b"octavo");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn write_vectored_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<(), Error> {
        let pieces = buffers.iter().map(|b| Piece { start: b.as_ptr().cast_mut(), len: b.len() });
        // SAFETY: the slices are valid for their lengths, and borrowed until the call returns.
        unsafe { self.write_pieces(offset, pieces) }
    }

    /// Does what [`read_at`](Object::read_at) does, for memory that must not become a slice because
    /// other parties may access it at any time: a guest's RAM, memory shared with another process,
    /// a buffer of C or Python.
    ///
    /// # Safety
    /// Until the call returns:
    /// - `memory` is valid for writes of `len` bytes. It may be uninitialised; the call
    ///   initialises all of it if it succeeds.
    /// - No Rust code accesses the bytes by plain reads and writes, and no reference to them is
    ///   used.
    ///
    /// Other parties may access the bytes meanwhile: a guest, the kernel, another process, or
    /// atomic accesses of bytes. Then it is undefined which bytes they see and which bytes are
    /// there in the end, but nothing else.
    ///
    /// The call may touch the memory while it owns a page. If touching it runs a handler of the
    /// process (`userfaultfd`), the handler must not wait for the cache.
    ///
    /// # Errors
    /// Those of [`read_at`](Object::read_at). After an error, any of the bytes may have changed.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(5000, b"octavo")?;
    /// let mut six = std::mem::MaybeUninit::<[u8; 6]>::uninit();
    /// // SAFETY: the array has six bytes, which nothing else uses.
    /// unsafe { object.read_raw_at(5000, six.as_mut_ptr().cast(), 6)? };
    /// // SAFETY: the call has initialised all of them.
    /// let six = unsafe { six.assume_init() };
    /// assert_eq!(&six, b"octavo");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    #[inline]
    pub unsafe fn read_raw_at(&self, offset: u64, memory: *mut u8, len: usize) -> Result<(), Error> {
        let offset = ByteOffset(offset);
        // SAFETY: the caller's promise.
        match unsafe { self.inner.read_inline(offset, memory, len) } {
            true => Ok(()),
            // SAFETY: as above.
            false => unsafe { self.read_any(offset, memory, len) },
        }
    }

    /// Does what [`try_read_at`](Object::try_read_at) does, for memory that must not become a slice
    /// because other parties may access it at any time.
    ///
    /// # Safety
    /// That of [`read_raw_at`](Object::read_raw_at).
    ///
    /// # Errors
    /// Those of [`try_read_at`](Object::try_read_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(5000, b"octavo")?;
    /// let mut six = [0; 6];
    /// // SAFETY: the array has six bytes, which nothing else uses.
    /// assert!(unsafe { object.try_read_raw_at(5000, six.as_mut_ptr(), 6)? });
    /// assert_eq!(&six, b"octavo");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    #[inline]
    pub unsafe fn try_read_raw_at(&self, offset: u64, memory: *mut u8, len: usize) -> Result<bool, Error> {
        let offset = ByteOffset(offset);
        // SAFETY: the caller's promise.
        match unsafe { self.inner.read_inline(offset, memory, len) } {
            true => Ok(true),
            // SAFETY: as above.
            false => unsafe { self.try_read_any(offset, memory, len) },
        }
    }

    /// # Safety
    /// As `read_raw_at`.
    #[inline(never)]
    unsafe fn try_read_any(
        &self,
        mut offset: ByteOffset,
        memory: *mut u8,
        len: usize,
    ) -> Result<bool, Error> {
        let inner = &*self.inner;
        inner.check(offset, len as u64)?;
        inner.partition.shared.check_process()?;
        let mut done = 0;
        while done < len {
            let in_page = inner.partition.page_bytes() - inner.partition.page_size.offset_in_page(offset);
            let (to, now) = (memory.wrapping_add(done), in_page.min(len - done));
            // SAFETY: the caller's promise, and the range lies in one page.
            if !unsafe { inner.read_hit(inner.tag_at(offset), offset, to, now) } {
                return Ok(false);
            }
            (offset, done) = (offset + now as u64, done + now);
        }
        Ok(true)
    }

    /// Serves the reads of a batch whose bytes are resident, and sets `missing` to the indices of
    /// the others, in ascending order. The memory of those may have changed. Lookups overlap, so
    /// this is faster than one call per read. Never waits, and returns no errors: another call with
    /// the same read does.
    ///
    /// Reads that cross pages, and reads of an object's last page, may be missing although they are
    /// resident. Each read that was served counts as a read and a hit; the others count nothing.
    ///
    /// # Safety
    /// That of [`read_raw_at`](Object::read_raw_at), for each read.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, RawRead, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(5000, b"octavo")?;
    /// let (mut bytes, mut missing) = ([0; 12], Vec::new());
    /// let start = bytes.as_mut_ptr();
    /// let absent = RawRead { offset: 1 << 19, start: start.wrapping_add(6), len: 6 };
    /// let mut reads = [RawRead { offset: 5000, start, len: 6 }, absent];
    /// // SAFETY: the array has twelve bytes, which nothing else uses.
    /// unsafe { object.try_read_raw_batch(&mut reads, &mut missing) };
    /// assert_eq!((&bytes[..6], &*missing), (&b"octavo"[..], &[1][..]));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub unsafe fn try_read_raw_batch(&self, reads: &mut [RawRead], missing: &mut Vec<usize>) {
        missing.clear();
        let counters = &self.inner.partition.counters;
        if let Some(counts) = counters.at_hand() {
            let all_bytes = self.inner.read_many(reads, missing);
            let missing_bytes: usize = missing.iter().map(|number| reads[*number].len).sum();
            let hits = (reads.len() - missing.len()) as u64;
            return counts.add_batch(hits, all_bytes - missing_bytes as u64, hits);
        }
        for (number, RawRead { offset, start, len }) in reads.iter().copied().enumerate() {
            // SAFETY: the caller's promise.
            let read = unsafe { self.try_read_raw_at(offset, start, len) };
            if !read.unwrap_or(false) {
                missing.push(number);
            }
        }
    }

    /// Does what [`write_at`](Object::write_at) does, for memory that must not become a slice
    /// because other parties may access it at any time.
    ///
    /// # Safety
    /// Until the call returns:
    /// - `memory` is valid for reads of `len` initialised bytes.
    /// - No Rust code writes the bytes, except by atomic accesses of bytes.
    ///
    /// Other parties may write the bytes meanwhile. Each byte is copied once, before anything else
    /// uses it. A racing writer therefore decides which bytes are written, old and new ones mixed
    /// at will, but nothing else: afterwards all readers, the page and the store agree.
    ///
    /// The call touches the memory while it owns a page. If touching it runs a handler of the
    /// process (`userfaultfd`), the handler must not wait for the cache.
    ///
    /// # Errors
    /// Those of [`write_at`](Object::write_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// let bytes = b"octavo";
    /// // SAFETY: the bytes are constant.
    /// unsafe { object.write_raw_at(5000, bytes.as_ptr(), bytes.len())? };
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub unsafe fn write_raw_at(&self, offset: u64, memory: *const u8, len: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.write_lent(ByteOffset(offset), memory, len) }
    }

    /// Does what [`read_vectored_at`](Object::read_vectored_at) does, for memory that must not
    /// become slices. The pieces may be any mix of memory, and may overlap: then it is undefined
    /// which of their bytes come out on top.
    ///
    /// # Safety
    /// That of [`read_raw_at`](Object::read_raw_at), for each piece.
    ///
    /// # Errors
    /// Those of [`read_at`](Object::read_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// use octavo::Piece;
    /// object.write_at(4094, b"octavo")?;
    /// let mut bytes = [0_u8; 6];
    /// let start = bytes.as_mut_ptr();
    /// let pieces = [Piece { start, len: 3 }, Piece { start: start.wrapping_add(3), len: 3 }];
    /// // SAFETY: the pieces are the array, which nothing else uses.
    /// unsafe { object.read_raw_vectored_at(4094, &pieces)? };
    /// assert_eq!(&bytes, b"octavo");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub unsafe fn read_raw_vectored_at(&self, offset: u64, pieces: &[Piece]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.read_pieces(offset, pieces.iter().copied()) }
    }

    /// Does what [`write_vectored_at`](Object::write_vectored_at) does, for memory that must not
    /// become slices. The pieces may overlap.
    ///
    /// # Safety
    /// That of [`write_raw_at`](Object::write_raw_at), for each piece.
    ///
    /// # Errors
    /// Those of [`write_at`](Object::write_at).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// use octavo::Piece;
    /// let mut head = *b"octavo";
    /// let piece = Piece { start: head.as_mut_ptr(), len: head.len() };
    /// // SAFETY: nothing changes the array meanwhile.
    /// unsafe { object.write_raw_vectored_at(4094, &[piece, piece])? };
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub unsafe fn write_raw_vectored_at(&self, offset: u64, pieces: &[Piece]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.write_pieces(offset, pieces.iter().copied()) }
    }

    /// # Safety
    /// As `read_raw_vectored_at`.
    unsafe fn read_pieces(&self, offset: u64, pieces: impl Iterator<Item = Piece>) -> Result<(), Error> {
        let list = PieceList::new(pieces);
        // SAFETY: the list outlives the call.
        let (memory, len) = (unsafe { list.lend() }, list.len_bytes());
        if let Some(memory) = memory.one() {
            // SAFETY: the caller's promise.
            return unsafe { self.read_raw_at(offset, memory, len) };
        }
        let offset = ByteOffset(offset);
        self.inner.check(offset, len as u64)?;
        self.read_slowly(offset, memory, len)
    }

    /// # Safety
    /// As `write_raw_vectored_at`.
    unsafe fn write_pieces(&self, offset: u64, pieces: impl Iterator<Item = Piece>) -> Result<(), Error> {
        let list = PieceList::new(pieces);
        // SAFETY: the list outlives the call.
        let (memory, len) = (unsafe { list.lend() }, list.len_bytes());
        match memory.one() {
            // SAFETY: the caller's promise.
            Some(memory) => unsafe { self.write_raw_at(offset, memory, len) },
            // SAFETY: as above.
            None => unsafe { self.write_slowly(ByteOffset(offset), memory, len) },
        }
    }

    /// # Safety
    /// As `write_raw_at`.
    #[inline(always)]
    pub(super) unsafe fn write_lent(
        &self,
        offset: ByteOffset,
        memory: *const u8,
        len: usize,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        match unsafe { self.inner.write_resident(offset, memory, len) } {
            true => Ok(()),
            // SAFETY: as above.
            false => unsafe { self.write_slowly(offset, Lent::one_piece(memory.cast_mut()), len) },
        }
    }

    /// # Safety
    /// As `read_raw_at`.
    #[inline(never)]
    unsafe fn read_any(&self, offset: ByteOffset, memory: *mut u8, len: usize) -> Result<(), Error> {
        self.inner.check(offset, len as u64)?;
        if !self.inner.in_one_page(offset, len) {
            // SAFETY: the caller's promise, and the range was checked.
            return unsafe { self.read_several(offset, memory, len) };
        }
        let tag = self.inner.tag_at(offset);
        // SAFETY: the caller's promise, and the range lies in one page.
        if unsafe { self.inner.read_hit(tag, offset, memory, len) } {
            return Ok(());
        }
        self.begin_slow_read(tag, len);
        // SAFETY: as above.
        unsafe { self.read_alone(tag, offset, memory, len) }
    }

    /// Reads a range of several pages: a run of hits, and a task for the rest.
    ///
    /// # Safety
    /// As `read_raw_at`, and the range lies in the object.
    unsafe fn read_several(&self, offset: ByteOffset, memory: *mut u8, len: usize) -> Result<(), Error> {
        let inner = &*self.inner;
        inner.count_read(1, len as u64);
        inner.partition.shared.check_process()?;
        // SAFETY: the caller's promise.
        let next = unsafe { inner.read_run(offset, memory, len) };
        if next == inner.partition.page_size.page_range(offset, len as u64).end {
            return Ok(());
        }
        let task = Task::new(Job::Read, self.inner.clone(), offset, Lent::one_piece(memory), len);
        self.run(task.starting_at(next))
    }

    #[cold]
    fn read_slowly(&self, offset: ByteOffset, memory: Lent, len: usize) -> Result<(), Error> {
        self.begin_slow_read(self.inner.tag_at(offset), len);
        self.run_lent(Job::Read, offset, memory, len)
    }

    /// Prefetches the cache lines of the first page's set, and counts the request meanwhile.
    fn begin_slow_read(&self, tag: Tag, len: usize) {
        self.inner.partition.table.prefetch_miss(tag);
        self.inner.count_read(1, len as u64);
    }

    /// Writes what `write_resident` has not written.
    ///
    /// # Safety
    /// As `write_raw_at`.
    #[inline(never)]
    unsafe fn write_slowly(&self, offset: ByteOffset, memory: Lent, len: usize) -> Result<(), Error> {
        self.inner.check_writable()?;
        self.inner.check(offset, len as u64)?;
        self.inner.partition.counters.add(Count::Writes, 1);
        self.inner.partition.counters.add(Count::WrittenBytes, len as u64);
        let was_tried = memory.one().is_some() && self.inner.in_one_page(offset, len);
        let done = match was_tried {
            true => 0,
            // SAFETY: the caller's promise.
            false => unsafe { self.inner.write_resident_pages(offset, memory, len) },
        };
        if done == len && len > 0 {
            return Ok(());
        }
        let job = Job::Write { durable: false };
        self.run_lent(job, offset + done as u64, memory.skip(done), len - done)
    }
}
