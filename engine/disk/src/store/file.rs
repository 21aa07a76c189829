//! [`FileStore`]: files and block devices as stores. Opens them, cuts an I/O at the tail, executes
//! an I/O with plain system calls, and changes the length. Protects the tail unit by the protocol
//! of `gate.rs` (L1 to L6). Not here: what can be opened (`open.rs`), io_uring (`uring.rs`), the
//! methods of clearing (`method.rs`), ownership (`lock.rs`).

use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Advice, AtFlags, CWD, accessat, fadvise, fallocate, ioctl_blksszget};
use rustix::io::Errno;

use crate::error::{IoError, OpenError, Reason};
use crate::identity::Identity;
use crate::io::buffer::IoBuffer;
use crate::io::method::Methods;
use crate::io::{Channel, Io, NOT_FAST, PARTS, Part};
use crate::op::Op;
use crate::process::Process;
use crate::store::gate::Gate;
use crate::store::lock::{Numbers, Ownership};
use crate::store::open::{
    BLOCK_BYTES_MAX, OpenOptions, check_kind, check_writable, create, identity_of, is_same_file, link_of,
    open_with, options_of_open, probe_block_bytes, refusal,
};
use crate::store::sys;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// The length of the tail unit: the kernel's page, so that no page of the tail in the kernel's page
/// cache overlaps bytes that direct I/O moves.
pub(crate) const TAIL_UNIT_BYTES: u64 = 4096;

/// Why I/O on a closed store fails.
const CLOSED: Reason = Reason::Borrowed("the store was closed");

/// An open file or block device.
pub(crate) struct FileStore {
    /// The direct descriptor of a direct store, else the only one.
    main: File,
    /// The buffered descriptor of a direct store, for the tail unit (L2).
    tail: Option<File>,
    len_bytes: AtomicU64,
    pub(crate) block_bytes: u32,
    pub(crate) is_device: bool,
    /// I/O waits for another process or machine, perhaps for as long as it is submitted.
    pub(crate) is_remote: bool,
    pub(crate) read_only: bool,
    pub(crate) numbers: Numbers,
    identity: Identity,
    /// None if the store was opened by a descriptor.
    pub(crate) path: Option<PathBuf>,
    gate: Gate,
    /// Counts of the I/Os that may change what `stat` returns: begun when they enter the gate,
    /// ended when they leave it (`watch.rs`, W3).
    begun: AtomicU64,
    ended: AtomicU64,
    /// Held while the length changes (`watch.rs`, W2).
    pub(crate) length: Mutex<()>,
    /// None if the store was opened without a lock, or was closed. A `Mutex` of std and not of
    /// shuttle: a thread that holds it never waits for another thread.
    ownership: std::sync::Mutex<Option<Ownership>>,
    /// The store was closed while handles exist (`close`).
    is_closed: AtomicBool,
    /// Held by `close`.
    closing: Mutex<()>,
    /// The process that opened it.
    process: Process,
}

impl FileStore {
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<FileStore, OpenError> {
        if options.read_only && options.create_len_bytes.is_some() {
            let reason = "a store that may be created cannot be read-only".to_owned();
            return Err(OpenError::Invalid { path: path.to_owned(), reason });
        }
        // Opening a pipe or a character device may have side effects, so its kind is checked first.
        let metadata = match (fs::metadata(path), options.create_len_bytes) {
            (Err(error), Some(len_bytes)) if error.kind() == io::ErrorKind::NotFound => {
                create(path, len_bytes)?;
                fs::metadata(path)
            }
            (found, _) => found,
        };
        check_kind(path, &metadata.map_err(|e| refusal(path, "cannot read its metadata", e))?)?;
        let buffered = open_with(path, options, 0).map_err(|e| refusal(path, "cannot open it", e))?;
        FileStore::of(path, Some(path.to_owned()), buffered, options)
    }

    /// Makes a store of an open file or device, whose path is unknown.
    pub(crate) fn from_file(name: &Path, file: File, options: &OpenOptions) -> Result<FileStore, OpenError> {
        let (options, is_direct) = options_of_open(name, &file, options)?;
        // `file` stays open meanwhile.
        let buffered = match is_direct {
            true => open_with(&link_of(&file), &options, 0)
                .map_err(|e| refusal(name, "cannot open it again without O_DIRECT", e))?,
            false => file,
        };
        FileStore::of(name, None, buffered, &options)
    }

    /// Makes a store of a buffered descriptor. `name` is its name in errors.
    fn of(
        name: &Path,
        path: Option<PathBuf>,
        buffered: File,
        options: &OpenOptions,
    ) -> Result<FileStore, OpenError> {
        let failed = |step, source: io::Error| refusal(name, step, source);
        let metadata = buffered.metadata().map_err(|e| failed("cannot read its metadata", e))?;
        check_kind(name, &metadata)?;
        let is_device = metadata.file_type().is_block_device();
        if !options.read_only {
            check_writable(name, &buffered, is_device)?;
        }
        let numbers = FileStore::numbers_of(&metadata);
        let identity = identity_of(&buffered, numbers, is_device);
        let take = || Ownership::take(&buffered, name, numbers, options.read_only);
        let ownership = options.lock.then(take).transpose()?;

        // From here on, dropping `store` releases the ownership when a step fails.
        let mut store = FileStore {
            tail: None,
            len_bytes: AtomicU64::new(metadata.len()),
            block_bytes: 512,
            is_device,
            is_remote: !is_device && sys::is_remote(&buffered, metadata.dev()),
            main: buffered,
            read_only: options.read_only,
            numbers,
            identity,
            path,
            gate: Gate::of_len(if is_device { u64::MAX } else { metadata.len() }),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            length: Mutex::new(()),
            ownership: std::sync::Mutex::new(ownership),
            is_closed: AtomicBool::new(false),
            closing: Mutex::new(()),
            process: Process::this(),
        };
        if is_device {
            let len = sys::device_len_bytes(&store.main);
            let len = len.map_err(|e| failed("cannot read the device's length (BLKGETSIZE64)", e))?;
            store.len_bytes = AtomicU64::new(len);
            store.block_bytes = ioctl_blksszget(&store.main)
                .map_err(|e| failed("cannot read the device's block size (BLKSSZGET)", e.into()))?;
        }
        if options.direct {
            store.go_direct(name, options)?;
        }
        Ok(store)
    }

    /// Opens the store read-only and without a lock, if `open` with these options would succeed as
    /// far as that can be checked.
    pub(crate) fn rehearse(path: &Path, options: &OpenOptions) -> Result<FileStore, OpenError> {
        let reading = OpenOptions { read_only: true, lock: false, create_len_bytes: None, ..options.clone() };
        let store = FileStore::open(path, &reading)?;
        if !options.read_only {
            accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)
                .map_err(|errno| refusal(path, "cannot open it for writing", errno.into()))?;
            check_writable(path, &store.main, store.is_device)?;
        }
        Ok(store)
    }

    /// Opens the direct descriptor if the file system has direct I/O in blocks of at most 4096
    /// bytes. Otherwise the store stays buffered, with a warning in the log. For want of a
    /// descriptor or of memory it does not: its bytes would be in memory that no limit counts.
    ///
    /// # Errors
    /// EMFILE, ENFILE and ENOMEM.
    fn go_direct(&mut self, name: &Path, options: &OpenOptions) -> Result<(), OpenError> {
        const SHORT: [i32; 3] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
        let buffered_because = |why: &str| {
            let name = name.display();
            log::warn!(
                "{name}: {why}: the store is buffered, its I/O passes through the kernel's page cache"
            );
            Ok(())
        };
        let link = link_of(&self.main);
        let direct = match open_with(self.path.as_ref().unwrap_or(&link), options, libc::O_DIRECT) {
            Ok(direct) => direct,
            Err(error) if error.raw_os_error().is_some_and(|number| SHORT.contains(&number)) => {
                return Err(refusal(name, "cannot open it with O_DIRECT", error));
            }
            Err(error) => return buffered_because(&format!("it cannot be opened with O_DIRECT ({error})")),
        };
        if !is_same_file(&direct, &self.main) {
            return buffered_because("the path now leads to another file");
        }
        let block_bytes = match sys::direct_align_bytes(&direct) {
            Some(0) => return buffered_because("the file system does not support direct I/O on this file"),
            Some(align) => align.max(512),
            None if self.is_device => self.block_bytes,
            None => match probe_block_bytes(&direct, self.len_bytes()) {
                Some(block) => block,
                None => return buffered_because("direct reads of 512 and of 4096 bytes both fail"),
            },
        };
        if block_bytes > BLOCK_BYTES_MAX {
            return buffered_because(&format!(
                "direct I/O needs blocks of {block_bytes} bytes, and at most 4096 are supported"
            ));
        }
        let owned = self.ownership.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(Err(error)) = owned.as_ref().map(|owned| owned.share(&self.main, &direct)) {
            return buffered_because(&format!(
                "its lock cannot be shared with a direct descriptor ({error})"
            ));
        }
        // Sizes in between are rounded up to 4096.
        self.block_bytes = if block_bytes <= 512 { 512 } else { 4096 };
        // The advice may fail: it only saves the kernel from reading ahead.
        let _ = fadvise(&self.main, 0, None, Advice::Random);
        self.tail = Some(std::mem::replace(&mut self.main, direct));
        Ok(())
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity.clone()
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        // Acquire: pairs with `publish_len_bytes` (L5), so that a thread which sees a length finds
        // the file of that length.
        self.len_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.tail.is_some()
    }

    /// Returns the numbers of a file or device. Two paths with equal numbers lead to the same one,
    /// as long as it is open.
    pub(crate) fn numbers_of(metadata: &fs::Metadata) -> Numbers {
        match metadata.file_type().is_block_device() {
            true => (metadata.rdev(), 0),
            false => (metadata.dev(), metadata.ino()),
        }
    }

    /// Lets an I/O enter the gate, through the ring's shard (L1).
    pub(crate) fn enter(&self, shard: u8, op: Op) {
        self.gate.enter(shard);
        if op != Op::Read {
            // SeqCst: pairs with `begun` (W3).
            self.begun.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Lets an I/O leave the gate: its last part is finished (L1).
    pub(crate) fn leave(&self, shard: u8, op: Op) {
        if op != Op::Read {
            // SeqCst: pairs with `ended` (W3).
            self.ended.fetch_add(1, Ordering::SeqCst);
        }
        self.gate.leave(shard);
    }

    /// Returns the descriptor of a channel.
    pub(crate) fn descriptor(&self, channel: Channel) -> &File {
        match (channel, &self.tail) {
            (Channel::Tail, Some(tail)) => tail,
            _ => &self.main,
        }
    }

    /// Returns the offset at which the tail unit begins. It is the end of the store if the length
    /// is aligned or the store is buffered.
    fn tail_start(&self, len_bytes: u64) -> u64 {
        if self.is_direct() { len_bytes - len_bytes % TAIL_UNIT_BYTES } else { len_bytes }
    }

    /// Cuts an I/O by the current length. The I/O is inside the gate (L1).
    pub(crate) fn cut(&self, io: &mut Io) {
        if self.is_closed() {
            io.fail(libc::EBADF, Some(CLOSED));
            io.parts_left = 0;
            return;
        }
        let len_bytes = self.len_bytes();
        let granule_bytes = if self.is_direct() { self.block_bytes } else { 1 };
        io.cut(len_bytes, self.tail_start(len_bytes), granule_bytes);
        if self.is_device && io.methods == Methods::Fast {
            io.methods = Methods::First;
            if io.op != Op::Discard {
                io.fail(libc::EOPNOTSUPP, Some(NOT_FAST));
                io.parts_left = 0;
            }
        }
    }

    /// Reads a range into one buffer with one system call, and returns the outcome of the call.
    /// `None`, with no call made, if the range reaches into the tail unit. The I/O is inside the
    /// gate (L1).
    pub(crate) fn read_whole(&self, offset: u64, buffer: IoBuffer) -> Option<Result<usize, i32>> {
        let end = offset.checked_add(buffer.len as u64)?;
        let is_inside = !self.is_closed() && end <= self.tail_start(self.len_bytes());
        is_inside.then(|| sys::read_at(&self.main, &[buffer], offset))
    }

    /// Executes every part of a cut I/O on this thread. `first` is the outcome of the first
    /// attempt, if the caller has made it.
    pub(crate) fn execute(&self, io: &mut Io, mut first: Option<Result<usize, i32>>) {
        if let Some(survey) = &io.survey {
            // Surveys move the position of the descriptor, which no other call uses.
            return survey.find(self.descriptor(Channel::Tail));
        }
        let mut pieces: Vec<IoBuffer> = Vec::new();
        for index in 0..PARTS.min(io.parts_left as usize) {
            // Bounded: `Io::advance` fails a part that makes no progress.
            loop {
                let outcome = first.take().unwrap_or_else(|| self.attempt(io, index, &mut pieces));
                if !io.advance(index, outcome) {
                    break;
                }
            }
        }
    }

    /// Makes the next system call of a part of an I/O. `pieces` is room for its buffers.
    fn attempt(&self, io: &Io, index: usize, pieces: &mut Vec<IoBuffer>) -> Result<usize, i32> {
        let file = self.descriptor(io.parts[index].channel);
        let (skip, len) = io.span(index);
        io.buffers.pieces(skip, len, pieces);
        let Part { next, method, .. } = io.parts[index];
        let done = |result: Result<(), Errno>| result.map(|()| 0).map_err(Errno::raw_os_error);
        match (io.op, method.flags()) {
            (Op::Sync, _) => sys::sync(file).map(|()| 0),
            (Op::Read, _) => sys::read_at(file, pieces, next),
            (_, Some(flags)) => done(fallocate(file, flags, next, len)),
            (_, None) => sys::write_at(file, pieces, next),
        }
    }

    /// Changes the length by L3 to L6.
    pub(crate) fn set_len_bytes(&self, name: &str, len_new: u64) -> Result<(), IoError> {
        if self.is_device {
            let fixed = Some("the length of a block device cannot be changed".into());
            return match len_new == self.len_bytes() {
                true => Ok(()),
                false => Err(IoError::new(name, Op::Write, len_new, 0, libc::EOPNOTSUPP, fixed)),
            };
        }
        self.alone(|| self.change_len_bytes(name, len_new))
    }

    /// Makes the present length of the file or device the store's length, and returns it: L3, L4
    /// and L6, without a change of the file.
    pub(crate) fn adopt_len_bytes(&self, name: &str) -> Result<u64, IoError> {
        self.alone(|| {
            let len_new = self.present_len_bytes(name)?;
            if len_new != self.len_bytes() {
                let no_sync = |source| IoError::of_call(name, Op::Sync, 0, 0, &source);
                // L4.
                self.hand_over_tail(self.len_bytes()).map_err(no_sync)?;
                self.publish_len_bytes(len_new);
                // L6.
                self.hand_over_tail(len_new).map_err(no_sync)?;
            }
            Ok(len_new)
        })
    }

    /// Whether a write may lengthen it. Direct I/O cannot end inside a block.
    pub(crate) fn can_extend(&self) -> bool {
        !self.is_device && !self.is_direct() && !self.read_only
    }

    /// Writes bytes, and takes the length that the file has then: L3 and L5, with a write in place
    /// of a change of length alone. Returns how many bytes were written, if not none.
    pub(crate) fn extend(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<usize, IoError> {
        self.alone(|| {
            let mut written = 0;
            let refused = loop {
                let at = offset + written as u64;
                match sys::write_bytes_at(&self.main, &bytes[written..], at) {
                    Ok(0) => break None,
                    Ok(count) => written += count,
                    Err(libc::EINTR) => {}
                    Err(errno) => break Some(errno),
                }
                if written == bytes.len() {
                    break None;
                }
            };
            if written > 0 {
                self.publish_len_bytes(self.len_bytes().max(offset + written as u64));
                return Ok(written);
            }
            let errno = refused.unwrap_or(libc::EIO);
            Err(IoError::new(name, Op::Write, offset, bytes.len() as u64, errno, None))
        })
    }

    /// Asks the system for the present length of the file or device.
    pub(crate) fn present_len_bytes(&self, name: &str) -> Result<u64, IoError> {
        if self.is_closed() {
            return Err(IoError::new(name, Op::Read, 0, 0, libc::EBADF, Some(CLOSED)));
        }
        let found = self.descriptor(Channel::Tail).metadata();
        let found = found.and_then(|found| self.found_len_bytes(&found));
        found.map_err(|source| IoError::of_call(name, Op::Read, 0, 0, &source))
    }

    /// Calls `change` with no I/O in flight, and with no watch comparing lengths.
    pub(crate) fn alone<T>(&self, change: impl FnOnce() -> T) -> T {
        // L3.
        let _closed = self.gate.close();
        // W2.
        let _length = lock(&self.length);
        // W3: counted like an I/O.
        self.begun.fetch_add(1, Ordering::SeqCst);
        let result = change();
        self.ended.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// Whether the store was closed. Inside the gate, the answer stays valid.
    pub(crate) fn is_closed(&self) -> bool {
        // Acquire: pairs with `close`.
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether the store was closed, and its lock has ended.
    pub(crate) fn was_closed(&self) -> bool {
        let is_closed = self.is_closed();
        if is_closed {
            // `close` holds the lock until it has done everything.
            drop(lock(&self.closing));
        }
        is_closed
    }

    /// Closes the file though handles exist: ends the lock, and lets both descriptors lead nowhere.
    /// Their numbers stay taken until the last handle is dropped, so a thread that still uses one
    /// reaches no other file. With the gate closed, no I/O is in flight. `forget` takes the file
    /// out of the rings' tables.
    pub(crate) fn close(&self, name: &str, forget: impl FnOnce()) {
        // A child of `fork` shares the lock with its parent, and may find the gate locked for ever.
        if !self.process.is_this() || self.is_closed() {
            return;
        }
        // Not `alone`: a watch that looks at a file system which hangs has the lock `length`.
        let _gate = self.gate.close();
        let _closing = lock(&self.closing);
        // Release: pairs with `is_closed`.
        self.is_closed.store(true, Ordering::Release);
        if let Some(ownership) = self.ownership().take() {
            ownership.release(self.tail.iter().chain([&self.main]));
        }
        forget();
        let replaced = sys::nowhere().and_then(|nowhere| {
            self.tail.iter().chain([&self.main]).try_for_each(|file| sys::replace(file, &nowhere))
        });
        if let Err(error) = replaced {
            log::warn!("{name}: its descriptors stay open as long as a handle exists: {error}");
        }
    }

    fn ownership(&self) -> std::sync::MutexGuard<'_, Option<Ownership>> {
        self.ownership.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The descriptor whose I/O passes through the kernel's page cache.
    pub(crate) fn buffered(&self) -> &File {
        self.descriptor(Channel::Tail)
    }

    /// L4 to L6.
    fn change_len_bytes(&self, name: &str, len_new: u64) -> Result<(), IoError> {
        let no_sync = |source| IoError::of_call(name, Op::Sync, 0, 0, &source);
        let len_old = self.len_bytes();
        if len_new == len_old {
            return Ok(());
        }
        // L4.
        self.hand_over_tail(len_old).map_err(no_sync)?;
        // L5. Through the tail's descriptor: the direct one never touches the tail unit (L2).
        let file = self.descriptor(Channel::Tail);
        let changed = file.set_len(len_new);
        // A file system may change the length and then fail to allocate or free blocks.
        if changed.is_ok() || file.metadata().is_ok_and(|now| now.len() == len_new) {
            self.publish_len_bytes(len_new);
            // L6.
            self.hand_over_tail(len_new).map_err(no_sync)?;
        }
        changed.map_err(|source| IoError::of_call(name, Op::Write, len_new, 0, &source))
    }

    /// L5.
    fn publish_len_bytes(&self, len_bytes: u64) {
        // Release: pairs with `len_bytes`.
        self.len_bytes.store(len_bytes, Ordering::Release);
    }

    /// Writes the tail unit of a file of `len_bytes` to the device and drops it from the kernel's
    /// page cache.
    fn hand_over_tail(&self, len_bytes: u64) -> io::Result<()> {
        let start = self.tail_start(len_bytes);
        let Some(tail) = self.tail.as_ref().filter(|_| start < len_bytes) else { return Ok(()) };
        sys::sync(tail).map_err(io::Error::from_raw_os_error)?;
        // The advice may fail: then the kernel keeps a clean page.
        let _ = fadvise(tail, start, NonZeroU64::new(TAIL_UNIT_BYTES), Advice::DontNeed);
        Ok(())
    }
}

/// The queries of a watch.
impl FileStore {
    /// Returns how many I/Os that may change what `stat` returns have begun (W3).
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Returns how many I/Os that may change what `stat` returns have ended (W3).
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Returns the current length of the file or device, which other programs may have changed.
    pub(crate) fn found_len_bytes(&self, found: &fs::Metadata) -> io::Result<u64> {
        if self.is_device { sys::device_len_bytes(&self.main) } else { Ok(found.len()) }
    }

    /// Returns whether this is a device that was opened for writing and has been set read-only
    /// since.
    pub(crate) fn was_set_read_only(&self) -> bool {
        self.is_device && !self.read_only && sys::device_is_read_only(&self.main).unwrap_or(false)
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        // Without the lock, which a child of `fork` may find locked for ever.
        let owned = self.ownership.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(ownership) = owned.take() {
            ownership.release(self.tail.iter().chain([&self.main]));
        }
    }
}
