//! [`Store`]: the handle of everything that can do I/O, and the dispatch to files and targets.
//! Not here: how a store does its work (`file.rs`, `target.rs`), how I/O reaches it (`ring.rs`).

pub(crate) mod backend;
pub(crate) mod change;
pub(crate) mod file;
pub(crate) mod gate;
pub(crate) mod keep;
pub(crate) mod lock;
pub(crate) mod memory;
pub(crate) mod open;
pub(crate) mod request;
mod space;
mod stamp;
pub(crate) mod sys;
pub(crate) mod target;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use crate::error::{IoError, OpenError};
use crate::identity::Identity;
use crate::io::Io;
use crate::io::buffer::IoBuffer;
use crate::io::sink::Handle;
use crate::io::survey::{Holes, Survey};
use crate::op::Op;
use crate::process::PerProcess;
use crate::sim::SimDisk;
use crate::store::backend::BackendStore;
use crate::store::change::{Change, Noticed};
use crate::store::file::FileStore;
use crate::store::gate::Gate;
use crate::store::memory::MemoryStore;
use crate::store::open::OpenOptions;
use crate::store::request::Backend;
use crate::store::target::Target;
use crate::sync::Arc;

/// A range of bytes that I/O can go to: a file, a block device, memory, a file of a [`SimDisk`], or
/// a [`Backend`] of yours. Cheap to clone. The store closes with its last handle, and every I/O in
/// flight on a file, a device or a back end holds one. A handle that has [let
/// go](Store::let_go) does not keep a file open.
pub struct Store(Arc<Inner>, Keep);

/// Whether a handle of a store keeps its file open (`keep.rs`). An atomic of std and not of
/// shuttle: no thread waits for it.
struct Keep(std::sync::atomic::AtomicBool);

struct Inner {
    /// Never reused, so that rings can tell a store from a later one.
    id: u64,
    name: String,
    kind: Kind,
    /// The name of the user that has claimed the store (`take`). A `Mutex` of std and not of
    /// shuttle: a thread that holds it never waits for another thread.
    taken_as: std::sync::Mutex<Option<String>>,
    /// The changes by other programs. A `Mutex` of std, as above.
    noticed: std::sync::Mutex<Noticed>,
    /// Number of the handles that keep the file open, and whether one has let go.
    keepers: std::sync::atomic::AtomicUsize,
    has_let_go: std::sync::atomic::AtomicBool,
}

pub(crate) enum Kind {
    File(Box<FileStore>),
    Target(Box<dyn Target>),
}

impl Store {
    /// Opens a regular file or a block device, which must exist unless the options create it. If
    /// its file system does not support `O_DIRECT`, the store is buffered, with a warning in the
    /// log.
    ///
    /// # Errors
    /// Each variant of [`OpenError`] tells what the caller can do about it.
    ///
    /// # Examples
    /// ```
    /// use octavo_disk::{OpenOptions, Store};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("disk.img");
    /// let create = OpenOptions { create_len_bytes: Some(1 << 20), ..OpenOptions::default() };
    /// let store = Store::open(&path, &create)?;
    /// assert_eq!(store.len_bytes(), 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Store, OpenError> {
        let file = FileStore::open(path, options)?;
        Ok(Store::new(path.display().to_string(), Kind::File(Box::new(file))))
    }

    /// Checks whether [`open`](Store::open) with these options would succeed, and opens the store
    /// read-only and without a lock. Another process may be using the store; whether it has the
    /// store locked is not checked. Creates no file: if none exists, the error is
    /// [`OpenError::NotFound`].
    ///
    /// # Errors
    /// Those of [`open`](Store::open), except [`OpenError::Locked`].
    ///
    /// # Examples
    /// ```
    /// use octavo_disk::{OpenOptions, Store};
    /// let missing = Store::rehearse("/no/such/disk.img".as_ref(), &OpenOptions::default());
    /// assert!(missing.is_err_and(|error| error.to_string().starts_with("/no/such/disk.img")));
    /// ```
    pub fn rehearse(path: &Path, options: &OpenOptions) -> Result<Store, OpenError> {
        let file = FileStore::rehearse(path, options)?;
        Ok(Store::new(path.display().to_string(), Kind::File(Box::new(file))))
    }

    /// Makes a store of an open file or block device: a [`File`] or an
    /// [`OwnedFd`](std::os::fd::OwnedFd), perhaps without a name or from another process. `name` is
    /// the store's name in errors and in the log. A [`Watch`](crate::Watch) does not follow any
    /// path for this store.
    ///
    /// The store is read-only if the options say so, or if the file was opened for reading only. It
    /// opens the file again for direct I/O, through `/proc/self/fd`; if that fails, it is buffered,
    /// with a warning in the log. The lock belongs to the open file description, so it does not
    /// keep out a process that has a duplicate of the descriptor.
    ///
    /// # Errors
    /// - [`OpenError::Invalid`]: the file was opened for writing only, for appending or with
    ///   `O_PATH`, or the options ask to create it.
    /// - Those of [`open`](Store::open).
    ///
    /// # Examples
    /// ```
    /// use octavo_disk::{OpenOptions, Store};
    /// let file = tempfile::tempfile()?;
    /// file.set_len(1 << 20)?;
    /// let store = Store::from_file("scratch", file, &OpenOptions::default())?;
    /// assert_eq!((store.name(), store.len_bytes()), ("scratch", 1 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_file(name: &str, file: impl Into<File>, options: &OpenOptions) -> Result<Store, OpenError> {
        let file = FileStore::from_file(name.as_ref(), file.into(), options)?;
        Ok(Store::new(name.to_owned(), Kind::File(Box::new(file))))
    }

    /// Creates a store in memory of `len_bytes` zeros, for tests and tools. It allocates memory as
    /// it is written, and its content is lost on drop.
    pub fn memory(name: &str, len_bytes: u64) -> Store {
        Store::new(name.to_owned(), Kind::Target(Box::new(MemoryStore::new(len_bytes))))
    }

    /// Creates a store whose I/O `backend` carries. `name` is the store's name in errors and in the
    /// log.
    ///
    /// # Errors
    /// - [`OpenError::Io`]: the back end did not tell its length.
    /// - [`OpenError::Invalid`]: its block is not a power of two from 512 to 4096, or its length
    ///   exceeds 2^63 - 1.
    ///
    /// # Examples
    /// See [`Backend`].
    pub fn from_backend(name: &str, backend: impl Backend) -> Result<Store, OpenError> {
        let backend = BackendStore::open(name, Box::new(backend))?;
        Ok(Store::new(name.to_owned(), Kind::Target(Box::new(backend))))
    }

    fn new(name: String, kind: Kind) -> Store {
        static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let id = NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Store::keeping(Arc::new(Inner {
            id,
            name,
            kind,
            taken_as: std::sync::Mutex::new(None),
            noticed: std::sync::Mutex::default(),
            keepers: std::sync::atomic::AtomicUsize::new(0),
            has_let_go: std::sync::atomic::AtomicBool::new(false),
        }))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    pub(crate) fn into_handle(self) -> Handle {
        self.0.clone()
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// Fails an I/O that this store cannot do, and returns true. In debug builds, panics on memory
    /// and ranges that direct I/O cannot take.
    pub(crate) fn refuses(&self, io: &mut Io) -> bool {
        if cfg!(debug_assertions) {
            io.assert_aligned(self.block_bytes(), self.len_bytes());
        }
        io.refuse_invalid(self.read_only())
    }

    /// Executes one I/O on this thread, and returns its result.
    pub(crate) fn run(&self, mut io: Io, shard: u8) -> Result<(), IoError> {
        if self.refuses(&mut io) {
            return io.result(self.name());
        }
        match &self.0.kind {
            Kind::Target(target) => target.run(io, shard),
            Kind::File(file) => {
                file.enter(shard, io.op);
                file.cut(&mut io);
                file.execute(&mut io, None);
                file.leave(shard, io.op);
                io.result(self.name())
            }
        }
    }

    /// Reads one buffer on this thread. From a file, with one system call and without an [`Io`],
    /// unless the range reaches into the tail unit or the call does not fill the buffer.
    pub(crate) fn read(&self, offset: u64, buffer: IoBuffer, shard: u8) -> Result<(), IoError> {
        let io = || Io::new(Op::Read, offset, &[buffer], 0);
        let Kind::File(file) = &self.0.kind else { return self.run(io(), shard) };
        if cfg!(debug_assertions) {
            io().assert_aligned(self.block_bytes(), self.len_bytes());
        }
        file.enter(shard, Op::Read);
        let result = match file.read_whole(offset, buffer) {
            Some(Ok(bytes)) if bytes == buffer.len => Ok(()),
            first => {
                let mut io = io();
                if !self.refuses(&mut io) {
                    file.cut(&mut io);
                    file.execute(&mut io, first);
                }
                io.result(self.name())
            }
        };
        file.leave(shard, Op::Read);
        result
    }

    /// Returns whether a survey can find holes: the store is a regular file.
    pub fn may_have_holes(&self) -> bool {
        self.file().is_some_and(|file| !file.is_device)
    }

    /// Looks for the parts of a range that have no data, and returns those among the first
    /// `extents_max` extents. Blocks for as long as the file system takes, usually microseconds a
    /// hole; [`Ring::push_survey`](crate::Ring::push_survey) does the same in the background. A
    /// store other than a regular file has no holes.
    ///
    /// A hole had no data at some moment of the call. A write that ended before the call is never
    /// in a hole.
    ///
    /// # Panics
    /// If `extents_max` is 0.
    ///
    /// # Examples
    /// ```
    /// use octavo_disk::{Holes, OpenOptions, Store};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("disk.img");
    /// let create = OpenOptions { create_len_bytes: Some(1 << 20), ..OpenOptions::default() };
    /// let store = Store::open(&path, &create)?;
    /// assert_eq!(store.holes(4096..8192, 10), Holes { ranges: vec![4096..8192], end: 8192 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holes(&self, range: Range<u64>, extents_max: usize) -> Holes {
        let survey = Arc::new(Survey::new(range, extents_max));
        self.survey(&survey);
        survey.take()
    }

    /// Makes a survey on this thread.
    pub fn survey(&self, survey: &Arc<Survey>) {
        if self.may_have_holes() {
            // A survey never fails.
            let _ = self.run(Io::survey(survey.clone(), 0), Gate::shard_of_thread());
        } else {
            survey.find_data();
        }
    }

    /// Returns whether this is a file of a simulated disk. I/O on such a file progresses only while
    /// a thread reaps or waits on its ring.
    pub fn is_simulated(&self) -> bool {
        matches!(&self.0.kind, Kind::Target(target) if target.disk().is_some())
    }

    /// Returns the path, or the name given at creation.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Claims exclusive write access for `name` until [`release`](Store::release), because two
    /// caches of the same bytes would overwrite each other's writes. A claim of one store is also a
    /// claim of every other store of this process over a back end of the same identity (files lock
    /// each other when they are opened). A read-only store needs no claim: this succeeds and
    /// changes nothing.
    ///
    /// # Errors
    /// The name of the user that has claimed the store.
    ///
    /// # Examples
    /// ```
    /// let store = octavo_disk::Store::memory("scratch", 4096);
    /// store.take("one cache")?;
    /// assert_eq!(store.take("another cache"), Err("one cache".to_owned()));
    /// store.release();
    /// # Ok::<(), String>(())
    /// ```
    pub fn take(&self, name: &str) -> Result<(), String> {
        if self.read_only() {
            return Ok(());
        }
        let mut taken_as = self.taken_as();
        if let Some(other) = &*taken_as {
            return Err(other.clone());
        }
        if let Some(identity) = self.0.shared_identity() {
            let mut taken = taken_back_ends();
            if let Some(other) = taken.get(&identity) {
                return Err(other.clone());
            }
            taken.insert(identity, name.to_owned());
        }
        *taken_as = Some(name.to_owned());
        Ok(())
    }

    /// Ends the claim of [`take`](Store::take).
    pub fn release(&self) {
        self.0.release(&mut self.taken_as());
    }

    /// Returns the number of alarming changes by other programs that a [`Watch`](crate::Watch) has
    /// noticed, and the latest change.
    pub fn noticed(&self) -> Noticed {
        self.0.noticed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(crate) fn notice(&self, change: &Change) {
        let mut noticed = self.0.noticed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        noticed.count += u64::from(change.is_alarming());
        noticed.last = Some(change.clone());
    }

    fn taken_as(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.taken_as.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the file, if this is a file or device.
    fn file(&self) -> Option<&FileStore> {
        if let Kind::File(file) = self.kind() { Some(file) } else { None }
    }

    /// Returns the length in bytes. Only [`set_len_bytes`](Store::set_len_bytes) and
    /// [`adopt_len_bytes`](Store::adopt_len_bytes) change it: when another program changes the
    /// file's length, a [`Watch`](crate::Watch) notices, and this length stays.
    pub fn len_bytes(&self) -> u64 {
        match self.kind() {
            Kind::File(file) => file.len_bytes(),
            Kind::Target(target) => target.len_bytes(),
        }
    }

    /// Returns the logical block in bytes: a power of two from 512 to 4096. Offsets and lengths of
    /// I/O are multiples of it.
    pub fn block_bytes(&self) -> u32 {
        match self.kind() {
            Kind::File(file) => file.block_bytes,
            Kind::Target(target) => target.block_bytes(),
        }
    }

    /// Returns the unit in bytes in which reads are cheapest, or 0: see [`Backend::fill_bytes`].
    pub fn fill_bytes(&self) -> u32 {
        if let Kind::Target(target) = self.kind() { target.fill_bytes() } else { 0 }
    }

    /// Returns whether I/O bypasses the kernel's page cache. True for all stores but files.
    pub fn is_direct(&self) -> bool {
        self.file().is_none_or(FileStore::is_direct)
    }

    /// Returns whether the store refuses writes.
    pub fn read_only(&self) -> bool {
        match self.kind() {
            Kind::File(file) => file.read_only,
            Kind::Target(target) => target.read_only(),
        }
    }

    /// Changes the length. A longer store gains zeros.
    ///
    /// Blocks until the I/O in flight on this store has finished, and holds off new I/O meanwhile.
    /// It drives that I/O itself, so the caller may have I/O in flight.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the length of a block device cannot be changed, nor that of a back end which
    ///   does not support it.
    /// - `EROFS`: the store is read-only. `EFBIG`: the length exceeds 2^63 - 1.
    /// - An error whose `op` is [`Op::Sync`]: a sync that the change needs has failed. Bytes
    ///   written before and not synced may be lost, as with any failed sync.
    ///
    /// After an error, [`len_bytes`](Store::len_bytes) returns the length that the store has.
    ///
    /// # Examples
    /// ```
    /// let store = octavo_disk::Store::memory("scratch", 4096);
    /// store.set_len_bytes(8192)?;
    /// assert_eq!(store.len_bytes(), 8192);
    /// # Ok::<(), octavo_disk::IoError>(())
    /// ```
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
            Kind::Target(target) => target.set_len_bytes(len_bytes),
        }
    }

    /// Whether [`extend`](Store::extend) lengthens the store: true of files that can be written and
    /// are not direct.
    pub fn can_extend(&self) -> bool {
        matches!(self.kind(), Kind::File(file) if file.can_extend())
    }

    /// Writes bytes at `offset`, and makes the store as long as they reach, with zeros between its
    /// former end and `offset`. Returns how many bytes were written: fewer than asked for if the
    /// file system had no room for more. Blocks as [`set_len_bytes`](Store::set_len_bytes) does.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the store [cannot be extended](Store::can_extend). `EFBIG`: the range ends
    /// past 2^63 - 1. Those of the file system: nothing was written.
    ///
    /// # Examples
    /// ```
    /// # use octavo_disk::{OpenOptions, Store};
    /// # let path = std::env::temp_dir().join(format!("octavo-extend-{}", std::process::id()));
    /// # std::fs::write(&path, b"one ")?;
    /// let store = Store::open(&path, &OpenOptions { direct: false, ..OpenOptions::default() })?;
    /// assert_eq!(store.extend(4, b"two")?, 3);
    /// assert_eq!((store.len_bytes(), std::fs::read(&path)?), (7, b"one two".to_vec()));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn extend(&self, offset: u64, bytes: &[u8]) -> Result<usize, IoError> {
        let len = bytes.len() as u64;
        let refused = |errno| Err(IoError::new(self.name(), Op::Write, offset, len, errno, None));
        if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return refused(libc::EFBIG);
        }
        match self.kind() {
            _ if bytes.is_empty() => Ok(0),
            Kind::File(file) if file.can_extend() => file.extend(self.name(), offset, bytes),
            _ => refused(libc::EOPNOTSUPP),
        }
    }

    /// Asks the file, device or back end how long it is now, which may differ from
    /// [`len_bytes`](Store::len_bytes), because other programs change it too. Changes nothing.
    ///
    /// # Errors
    /// The system or the back end did not tell the length, or it exceeds 2^63 - 1.
    ///
    /// # Examples
    /// ```
    /// let store = octavo_disk::Store::memory("scratch", 4096);
    /// assert_eq!(store.present_len_bytes()?, 4096);
    /// # Ok::<(), octavo_disk::IoError>(())
    /// ```
    pub fn present_len_bytes(&self) -> Result<u64, IoError> {
        match self.kind() {
            Kind::File(file) => file.present_len_bytes(self.name()),
            Kind::Target(target) => target.present_len_bytes(),
        }
    }

    /// Makes the length that the file or device has now the store's length, and returns it. For a
    /// file that another program has lengthened or cut, a device that has grown, and a back end
    /// whose volume has. The file itself stays as it is. A store in memory or on a simulated disk
    /// keeps its length.
    ///
    /// Blocks until the I/O in flight on this store has finished, and holds off new I/O meanwhile,
    /// as [`set_len_bytes`](Store::set_len_bytes) does. A read-only store can adopt a length too.
    ///
    /// # Errors
    /// - An error whose `op` is [`Op::Read`]: the system or the back end did not tell the length,
    ///   or it exceeds 2^63 - 1. The store keeps its own.
    /// - An error whose `op` is [`Op::Sync`]: a sync that the change needs has failed. Bytes
    ///   written before and not synced may be lost. [`len_bytes`](Store::len_bytes) returns the
    ///   length that the store uses, which is the old one or the new one.
    ///
    /// # Examples
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("disk.img");
    /// # std::fs::write(&path, [0; 4096])?;
    /// let store = octavo_disk::Store::open(&path, &octavo_disk::OpenOptions::default())?;
    /// // What another program would do.
    /// std::fs::OpenOptions::new().write(true).open(&path)?.set_len(8192)?;
    /// assert_eq!(store.len_bytes(), 4096);
    /// assert_eq!(store.adopt_len_bytes()?, 8192);
    /// assert_eq!(store.len_bytes(), 8192);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adopt_len_bytes(&self) -> Result<u64, IoError> {
        match self.kind() {
            Kind::File(file) => file.adopt_len_bytes(self.name()),
            Kind::Target(target) => target.adopt_len_bytes(),
        }
    }
}

/// The back ends that stores of this process have claimed, and the names of the claims. A `Mutex`
/// of std, as for `taken_as`, under which it is locked.
fn taken_back_ends() -> std::sync::MutexGuard<'static, HashMap<Identity, String>> {
    static TAKEN: PerProcess<std::sync::Mutex<HashMap<Identity, String>>> =
        PerProcess::new(std::sync::Mutex::default);
    TAKEN.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Inner {
    /// Returns the identity that other stores of this process may have too.
    fn shared_identity(&self) -> Option<Identity> {
        if let Kind::Target(target) = &self.kind { target.identity() } else { None }
    }

    /// Returns whether the file was closed. Waits for a close that is under way.
    fn is_closed(&self) -> bool {
        matches!(&self.kind, Kind::File(file) if file.was_closed())
    }

    /// Closes the file, which no handle keeps open any more.
    fn close(&self) {
        if let Kind::File(file) = &self.kind {
            // A file that a ring has registered would stay open (`uring.rs`, U5).
            file.close(&self.name, || crate::io::sink::forget_store(self.id));
        }
    }

    /// Ends the claim that `taken_as` names, if any.
    fn release(&self, taken_as: &mut Option<String>) {
        if taken_as.take().is_some()
            && let Some(identity) = self.shared_identity()
        {
            taken_back_ends().remove(&identity);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without the lock, which a child of `fork` may find locked for ever.
        let taken_as = self.taken_as.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut taken_as = std::mem::take(taken_as);
        self.release(&mut taken_as);
        // A file that a ring has registered would stay open, and locked (`uring.rs`, U5).
        if let Kind::File(_) = self.kind {
            crate::io::sink::forget_store(self.id);
        }
    }
}

impl SimDisk {
    /// Opens the file of this name. If there is none, creates one of `len_bytes` zeros, which are
    /// durable from the start. An existing file keeps its length.
    pub fn store(&self, name: &str, len_bytes: u64) -> Store {
        Store::new(name.to_owned(), Kind::Target(Box::new(self.open(name, len_bytes))))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({}, {} bytes)", self.name(), self.len_bytes())
    }
}
