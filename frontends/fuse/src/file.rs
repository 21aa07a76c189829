//! [`File`]: a regular file whose pages are cached. The rules F1 to F6 are in `files.rs`, which has
//! the table of all files.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use octavo::{CacheMode, Error, Object, ObjectFaults};
use rustix::fs::Statx;
use rustix::io::Errno;
use rustix::process::RawUid;

use crate::budget::Shared;
use crate::errors::{errno_of, length_errno};
use crate::in_flight::WritesInFlight;
use crate::leases::Leased;
use crate::lock::lock;
use crate::lower::{Key, Stamp};
use crate::nodes::Node;
use crate::space::{Promise, Space, Terms};
use crate::told::Told;

/// A regular file whose pages are cached.
pub struct File {
    pub key: Key,
    object: RwLock<Object>,
    /// F1.
    length: Mutex<()>,
    visible: AtomicU64,
    /// This mount's own changes (F3).
    begun: AtomicU64,
    ended: AtomicU64,
    /// F6: the value of `begun` up to which all changes are in the lower file.
    settled: AtomicU64,
    seen: Mutex<Seen>,
    /// Where pages are kept under leases.
    lease: Option<Leased>,
    /// Which errors programs have got, and how many the objects before this one had.
    told: Told,
    faults_before: AtomicU64,
    /// S5: the value of `begun` up to which all changes are synced.
    synced: AtomicU64,
    pub space: Space,
    /// What the file has taken of budgets, and for whom.
    pub shared: Shared,
    /// Those through the cache.
    pub writes: WritesInFlight,
}

/// A change of a file by this mount, from before it begins until it has ended (F3).
pub struct Change(Arc<File>);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

/// The file as it was last seen (F3).
#[derive(Clone, Copy)]
struct Seen {
    stamp: Stamp,
    counts: Counts,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub writes: bool,
    /// All writes are appended.
    pub appends: bool,
    pub user: RawUid,
}

impl Access {
    /// Reads by a user.
    pub fn reads(user: RawUid) -> Access {
        Access { writes: false, appends: false, user }
    }

    /// Any write by a user.
    pub fn writes(user: RawUid) -> Access {
        Access { writes: true, ..Access::reads(user) }
    }
}

/// What this mount has done to a file by some moment (F3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    begun: u64,
    ended: u64,
    /// Pages that the cache has written back.
    pages_written: u64,
}

impl File {
    /// Makes the file of a new object.
    pub fn new(
        key: Key,
        object: Object,
        stamp: Stamp,
        lease: Option<Leased>,
        (terms, shared): (Terms, Shared),
    ) -> File {
        File {
            key,
            visible: AtomicU64::new(object.len_bytes()),
            object: RwLock::new(object),
            length: Mutex::default(),
            begun: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            seen: Mutex::new(Seen { stamp, counts: Counts::default() }),
            lease,
            told: Told::default(),
            faults_before: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            space: Space::new(terms),
            shared,
            writes: WritesInFlight::default(),
        }
    }

    /// Keeps the length as it is (F1).
    pub fn hold_length(&self) -> MutexGuard<'_, ()> {
        lock(&self.length)
    }

    /// Waits until no call uses the object, to replace it (F4).
    pub fn object_to_replace(&self) -> RwLockWriteGuard<'_, Object> {
        self.object.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts another object in place of one that was abandoned (F4).
    pub fn replace(&self, held: &mut Object, object: Object) {
        // Relaxed: the lock that `held` comes from orders it.
        self.faults_before.fetch_add(held.faults().count, Relaxed);
        *held = object;
    }

    /// Has readers see an empty file (F1). The caller holds the length.
    pub fn hide_all(&self) {
        self.visible.store(0, Relaxed);
        self.space.cut(0);
    }

    /// Returns the object. Do not keep it across calls that may replace it.
    pub fn object(&self) -> RwLockReadGuard<'_, Object> {
        self.object.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the object, unless another thread replaces it, which may wait for the lower file
    /// system.
    pub fn object_at_once(&self) -> Option<RwLockReadGuard<'_, Object>> {
        self.object.try_read().ok()
    }

    /// The length that readers see (F1).
    pub fn len_bytes(&self) -> u64 {
        // Relaxed: the kernel orders a read behind the reply to the write that lengthened the file.
        self.visible.load(Relaxed)
    }

    /// What the file has to do with leases, if the mount takes them.
    pub fn lease(&self) -> Option<&Leased> {
        self.lease.as_ref()
    }

    /// The length that attributes show, of a lower file of `lower` bytes: while this mount changes
    /// it through the cache, the length that readers see.
    pub fn len_to_show(&self, lower: u64) -> u64 {
        let is_changing = self.lease.is_none() && self.ended.load(SeqCst) != self.begun.load(SeqCst);
        if is_changing { self.len_bytes() } else { lower }
    }

    /// Begins a change by this mount (F3).
    pub fn change(self: &Arc<Self>) -> Change {
        // SeqCst, here and where it ends: a look that sees what the change has done sees the count.
        self.begun.fetch_add(1, SeqCst);
        Change(self.clone())
    }

    fn counts(&self) -> Counts {
        let ended = self.ended.load(SeqCst);
        Counts { begun: self.begun.load(SeqCst), ended, pages_written: self.object().pages_written() }
    }

    /// Whether a write of this range goes to bytes that the file has, and needs no reservation
    /// (S1). Others are for [`extend`](File::extend).
    pub fn is_ready_for(&self, range: &Range<u64>) -> bool {
        range.end <= self.len_bytes() && self.space.has(range)
    }

    /// Writes bytes that may end past the file's end (F1), or fill a hole. `None` as the offset
    /// appends them. Returns how many were written: fewer if the lower file system had no room for
    /// more.
    ///
    /// # Errors
    /// ENOSPC and others, of the lower file system.
    pub fn extend(&self, offset: Option<u64>, bytes: &[u8]) -> Result<usize, Errno> {
        let _length = lock(&self.length);
        let offset = offset.unwrap_or(self.len_bytes());
        let object = self.object();
        // S1.
        let write = offset..offset.saturating_add(bytes.len() as u64);
        let room = self.space.reserve(write, self.len_bytes(), object.page_bytes(), object.store())?;
        let written = object.extend_at(offset, &bytes[..room as usize]).map_err(|error| {
            // The length may have been cut again.
            self.space.forget();
            length_errno(&error)
        })?;
        self.visible.fetch_max(offset + written as u64, Relaxed);
        Ok(written)
    }

    /// Writes bytes that lay in the file when the write began.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        match self.object().write_at(offset, bytes) {
            // The file was cut meanwhile.
            Err(octavo::Error::PastEnd { .. }) => self.extend(Some(offset), bytes),
            written => written.map(|()| bytes.len()).map_err(|error| errno_of(&error)),
        }
    }

    /// Changes the length.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn set_len_bytes(&self, len: u64) -> Result<(), Errno> {
        let _length = lock(&self.length);
        let object = self.object();
        if len < self.len_bytes() {
            self.visible.store(len, Relaxed);
            self.space.cut(len);
        }
        let set = object.set_len_bytes(len).map_err(|error| length_errno(&error));
        self.visible.store(object.len_bytes(), Relaxed);
        set
    }

    /// Runs `change`, which changes the lower file behind the cache, and drops the pages of the
    /// range after it. All that was written before is in the lower file when `change` runs.
    ///
    /// # Errors
    /// Those of `change`, and of writing back.
    pub fn change_below<T>(
        &self,
        offset: u64,
        len: u64,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let _length = lock(&self.length);
        let object = self.object();
        object.sync().map_err(|error| errno_of(&error))?;
        let changed = change();
        self.space.forget();
        let adopted = object.adopt_len_bytes().map_err(|error| errno_of(&error));
        let dropped = object.invalidate(offset, len.min(u64::MAX - offset)).map_err(|error| errno_of(&error));
        self.visible.store(object.len_bytes(), Relaxed);
        let result = changed?;
        adopted.and(dropped).map(|_| result)
    }

    /// Writes dirty pages to the lower file, without making them durable (F6). Returns whether the
    /// mount has changed the file since the last call.
    ///
    /// # Errors
    /// EIO and others, of the lower file system. They are kept for handles, too (E1).
    pub fn settle(&self) -> Result<bool, Errno> {
        // S4.
        let has_freed = self.free_surplus();
        // The end first: no change that has begun by then is unfinished if both are equal.
        let ended = self.ended.load(SeqCst);
        let begun = self.begun.load(SeqCst);
        if self.settled.load(SeqCst) == begun || self.object().cache_mode() == CacheMode::Writethrough {
            return Ok(has_freed);
        }
        self.object().clean().map_err(|error| errno_of(&error))?;
        if ended == begun {
            self.settled.fetch_max(begun, SeqCst);
        }
        Ok(true)
    }

    /// Makes all that was written durable.
    ///
    /// # Errors
    /// EIO and others, of the lower file system: written bytes may be lost.
    pub fn sync(&self) -> Result<(), Errno> {
        self.object().sync().map_err(|error| errno_of(&error))
    }

    /// F3. Returns the attributes that it has compared.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn look(&self, node: &Node) -> Result<Statx, Errno> {
        let mut seen = lock(&self.seen);
        // The counts first: a change in between moves them again.
        let counts = self.counts();
        let stat = node.stat()?;
        let is_ours = counts != seen.counts || counts.begun != counts.ended;
        let stamp = Stamp::of(&stat);
        if stamp != seen.stamp && !is_ours {
            self.refresh()?;
        }
        *seen = Seen { stamp, counts };
        Ok(stat)
    }

    /// Drops all clean pages, and adopts the length of the lower file. Waits for fills in flight.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn refresh(&self) -> Result<(), Errno> {
        let _length = lock(&self.length);
        let object = self.object();
        object.adopt_len_bytes().map_err(|error| errno_of(&error))?;
        object.invalidate(0, u64::MAX).map_err(|error| errno_of(&error))?;
        self.visible.store(object.len_bytes(), Relaxed);
        self.space.forget();
        Ok(())
    }

    /// Gives back what was reserved past the end (S4). Returns whether there was something.
    pub fn free_surplus(&self) -> bool {
        if !self.space.has_surplus() {
            return false;
        }
        let _length = lock(&self.length);
        let object = self.object();
        let last = self.space.last(self.len_bytes(), object.page_bytes());
        let Some(end) = self.space.take_surplus(last) else { return false };
        // F3: it changes the times.
        self.begun.fetch_add(1, SeqCst);
        if let Err(error) = object.store().free_surplus(end) {
            log::debug!("{}: reserved space stays allocated: {error}", object.name());
        }
        self.ended.fetch_add(1, SeqCst);
        true
    }

    /// The failures of write-backs so far.
    fn faults(&self) -> ObjectFaults {
        let object = self.object();
        let mut faults = object.faults();
        // Relaxed: as in `replace`.
        faults.count += self.faults_before.load(Relaxed);
        faults
    }

    /// Whether bytes could not be written back yet.
    pub fn is_failing(&self) -> bool {
        self.object().faults().is_failing
    }

    /// Whether all changes are in the lower file. A hint: the cleaner may have written the rest.
    pub fn is_settled(&self) -> bool {
        self.settled.load(SeqCst) == self.begun.load(SeqCst)
    }

    /// Notes that a handle is opened. Returns the number of the last failure that it need not be
    /// told, and whether its close may have something to tell (E1, E2).
    pub fn open_handle(&self) -> (u64, bool) {
        let faults = self.faults();
        let seen = self.told.open(&faults);
        (seen, seen < faults.count || !self.is_settled())
    }

    /// Makes all that was written durable, for a handle that has seen failures up to `seen`.
    ///
    /// # Errors
    /// EIO and others, of the lower file system; also those of earlier write-backs (E1).
    pub fn sync_for(&self, seen: &AtomicU64) -> Result<(), Errno> {
        let synced = self.sync();
        let told = self.told.tell(seen, &self.faults());
        synced.and(told)
    }

    /// A close of a handle that has seen failures up to `seen`.
    ///
    /// # Errors
    /// Those of write-backs that it has not been told yet (E1, S5).
    pub fn close_for(&self, seen: &AtomicU64) -> Result<(), Errno> {
        let written = match self.space.promise() {
            Promise::NotNeeded | Promise::Reserves => Ok(()),
            Promise::AtClose => self.settle().map(drop),
            Promise::AtSync => self.sync_once(),
        };
        self.free_surplus();
        let told = self.told.tell_at_close(seen, &self.faults());
        written.and(told)
    }

    /// S5.
    fn sync_once(&self) -> Result<(), Errno> {
        let begun = self.begun.load(SeqCst);
        if self.synced.load(SeqCst) == begun {
            return Ok(());
        }
        self.sync()?;
        self.synced.fetch_max(begun, SeqCst);
        Ok(())
    }

    /// Writes everything, makes it durable and closes the object, of a file without handles.
    ///
    /// # Errors
    /// Those of the store. The object stays open then, with its unwritten bytes (E3).
    pub fn write_out(&self) -> Result<(), Error> {
        self.free_surplus();
        let object = self.object();
        let Err(error) = object.close() else { return Ok(()) };
        let is_told = !self.told.owes(&self.faults());
        if !matches!(error, Error::Failed { .. }) || !is_told {
            return Err(error);
        }
        // A sync has failed before, and a program knows. The store is opened anew.
        object.clean()?;
        object.abandon();
        Ok(())
    }
}
