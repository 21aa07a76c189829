//! Another directory as a file system, with the bytes of its files in an Octavo cache: for programs
//! that read and write files and know nothing of the cache.
//!
//! A [`Mount`] passes names and attributes through to the *lower* file system, and reads and writes
//! files through the cache. It speaks the protocol of FUSE itself: each thread reads requests from
//! a descriptor of its own, answers hits at once from pinned pages, and misses as they complete.
//!
//! ```no_run
//!
//! use octavo::{Cache, CacheConfig, PartitionConfig};
//! use octavo_fuse::{Mount, MountOptions};
//!
//! let cache = Cache::new(CacheConfig::default())?;
//! let partition = cache.partition(PartitionConfig::new("files"))?;
//! let (source, target) = ("/srv/data".as_ref(), "/mnt".as_ref());
//! let options = MountOptions::default();
//! let choose = move |_: &octavo_fuse::Opened<'_>| Some(partition.clone());
//! let mount = Mount::start(cache, source, target, &options, choose)?;
//! // Until someone unmounts it.
//! mount.wait();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: configuration files, and the command line (`octavo mount`).

#![warn(missing_debug_implementations)]

mod below;
mod budget;
mod calls;
mod crossings;
mod device;
mod errands;
mod errors;
mod file;
mod files;
mod fs;
mod handles;
mod in_flight;
mod labels;
mod lease_calls;
mod leases;
mod lock;
mod looks;
mod lower;
mod mounting;
mod nodes;
mod numbers;
mod operations;
mod options;
mod place;
mod reference;
mod resident;
mod running;
mod space;
mod stores;
mod thread;
mod tidying;
mod told;
mod uncached;
mod wire;
mod worker;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use octavo::{Cache, Object, Partition};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use zerocopy::IntoBytes;

use below::Below;
use budget::Budget;
use device::{Device, Nothing};
use errands::Errand;
use fs::{Fs, Shown};
use labels::Chooser;
pub use labels::Opened;
use mounting::Mounted;
#[doc(hidden)]
pub use options::Reference;
pub use options::{Coherence, MountOptions};
use stores::Stores;
use thread::{Counts, Memory, REQUEST_HEAD_BYTES_MAX};
use tidying::Tidier;
use wire::{InHeader, InitIn, InitOut, Opcode, Reader, init};
use worker::Worker;

/// Requests that the kernel may have in flight on behalf of nobody who waits for them, such as
/// read-ahead. Too few leave programs waiting for each other.
const BACKGROUND_MAX: u16 = 128;

/// How long the beginning of the end waits for an unmount.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// What a mount has at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountStat {
    /// Files and directories that the kernel knows.
    pub nodes: usize,
    /// Files whose pages are kept.
    pub files: usize,
    /// Files whose bytes could not be written back yet, and how many bytes these are. The cache
    /// tries again.
    pub unwritten_files: usize,
    /// Their unwritten bytes.
    pub unwritten_bytes: u64,
    /// Descriptors of the process that its mounts keep open, and how many they may.
    pub descriptors: usize,
    /// The most descriptors that the mounts of the process may keep open.
    pub descriptors_max: usize,
    /// Opens that were refused with ENFILE: their users had too many files open.
    pub refused: u64,
    /// Files whose pages are kept under a lease.
    pub leases: usize,
    /// Leases that other programs have broken.
    pub lease_breaks: u64,
    /// Requests that the kernel has sent.
    pub requests: u64,
    /// Reads of the kernel's requests that found none.
    pub empty_reads: u64,
    /// Times that a thread has slept until a request came or an operation completed.
    pub waits: u64,
}

impl MountStat {
    fn plus(self, other: MountStat) -> MountStat {
        MountStat {
            nodes: self.nodes + other.nodes,
            files: self.files + other.files,
            unwritten_files: self.unwritten_files + other.unwritten_files,
            unwritten_bytes: self.unwritten_bytes + other.unwritten_bytes,
            // They share these.
            descriptors: self.descriptors,
            descriptors_max: self.descriptors_max,
            refused: self.refused.max(other.refused),
            leases: self.leases + other.leases,
            lease_breaks: self.lease_breaks + other.lease_breaks,
            requests: self.requests + other.requests,
            empty_reads: self.empty_reads + other.empty_reads,
            waits: self.waits + other.waits,
        }
    }
}

/// A mounted directory, with the file systems that are mounted below it.
pub struct Mount {
    fs: Arc<Fs>,
    mounted: Arc<Mounted>,
    stop: OwnedFd,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// One for each thread.
    counts: OnceLock<Vec<Arc<Counts>>>,
    stores: Arc<Stores<Errand>>,
    /// The descriptors of `/dev/fuse`.
    devices: Mutex<Vec<Arc<Device>>>,
    /// The file systems below the source, each a mount of its own, those above before those below
    /// them.
    below: Vec<Mount>,
    /// Of this mount and those below it.
    tidier: Option<Tidier>,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("path", &self.mounted.path()).finish_non_exhaustive()
    }
}

impl Mount {
    /// Mounts the directory `source` at `target`, which may be the same directory: then programs
    /// reach it only through the mount. `choose` returns the partition of a file when its pages
    /// begin to be cached; `None` refuses to open it.
    ///
    /// As root, each file system that is mounted below the source now becomes a mount of its own
    /// below the first. One that cannot be mounted so is reached through the first, like those that
    /// are mounted later.
    ///
    /// # Errors
    /// A sentence.
    pub fn start(
        cache: Cache,
        source: &Path,
        target: &Path,
        options: &MountOptions,
        choose: impl Fn(&Opened<'_>) -> Option<Partition> + Send + Sync + 'static,
    ) -> Result<Mount, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(source, flags, Mode::empty())
            .map_err(|errno| format!("cannot open the directory {}: {errno}", source.display()))?;
        let path = lower::path_of(&root).unwrap_or_else(|_| PathBuf::from(source));
        // Before the mount, which may cover them.
        let is_root = rustix::process::geteuid().is_root();
        let below = if is_root { below::find(&path, &root) } else { Vec::new() };
        let budget = options.descriptors_max.map_or_else(Budget::of_process, Budget::new);
        let options = &options.divided(1 + below.len());
        let choose: Arc<Chooser> = Arc::new(choose);
        let shown = |root: OwnedFd, source: &OwnedFd| {
            let source = rustix::io::fcntl_dupfd_cloexec(source, 0).map_err(|errno| errno.to_string())?;
            Ok::<_, String>(Shown { root, source, path: path.clone() })
        };
        let again = rustix::io::fcntl_dupfd_cloexec(&root, 0).map_err(|errno| errno.to_string())?;
        let first = shown(again, &root)?;
        let server = (&cache, &budget);
        let mut mount = Mount::start_one(server, (first, source), (target, None), options, choose.clone())?;
        let options = &options.of_one_below();
        for Below { root: lower, path: place } in below {
            let (source, target) = (source.join(&place), target.join(&place));
            let started = shown(lower, &root).and_then(|shown| {
                let at = mount.open_below(&place)?;
                Mount::start_one(server, (shown, &source), (&target, Some(&at)), options, choose.clone())
            });
            match started {
                Ok(below) => mount.below.push(below),
                Err(why) => log::warn!("{} gets no mount of its own: {why}", source.display()),
            }
        }
        let all = std::iter::once(&mount).chain(&mount.below).map(|mount| &mount.fs);
        mount.tidier = Some(Tidier::start(all, options.idle_max)?);
        Ok(mount)
    }

    /// Opens the directory of this mount at which a file system below is to be mounted: no link of
    /// a path may lead elsewhere.
    fn open_below(&self, path: &Path) -> Result<OwnedFd, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(self.path(), flags, Mode::empty()).map_err(|errno| errno.to_string())?;
        below::open_below(&root, path).ok_or_else(|| "its directory cannot be opened".to_owned())
    }

    /// Mounts one file system. `at` is the directory at the path of `target`, if that must not be
    /// looked up.
    fn start_one(
        (cache, budget): (&Cache, &Arc<Budget>),
        (shown, source): (Shown, &Path),
        (target, at): (&Path, Option<&OwnedFd>),
        options: &MountOptions,
        choose: Arc<Chooser>,
    ) -> Result<Mount, String> {
        let name = lower::path_of(&shown.root).unwrap_or_else(|_| PathBuf::from(source));
        let fs = Fs::new(cache, shown, options.clone(), choose, budget);
        let fs = Arc::new(fs.map_err(|errno| format!("{}: {errno}", source.display()))?);
        fs.keep_for_others();
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| errno.to_string())?;
        let (device, mounted) = mounting::mount(&name, (target, at), options)?;
        let mount = Mount {
            fs,
            mounted: Arc::new(mounted),
            stop,
            threads: Mutex::default(),
            counts: OnceLock::new(),
            stores: Arc::new(Stores::new(Errand::bytes, Errand::perform)),
            devices: Mutex::default(),
            below: Vec::new(),
            tidier: None,
        };
        match mount.begin(device, cache, at.is_some()) {
            Ok(()) => Ok(mount),
            Err(why) => {
                mount.undo();
                Err(why)
            }
        }
    }

    /// Leaves nothing mounted after a start that has failed.
    fn undo(&self) {
        // `begin_stop` does not unmount if no thread serves. A program that waits must not wait on.
        if self.has_ended() {
            self.abort();
            if let Err(error) = self.mounted.unmount() {
                log::warn!("cannot unmount {}: {error}", self.mounted.path().display());
            }
        }
        self.stop();
    }

    /// Agrees with the kernel on the protocol, and starts the threads: of the source, or of a file
    /// system below it.
    fn begin(&self, device: Device, cache: &Cache, is_below: bool) -> Result<(), String> {
        agree(&device, self.fs.options.transfer_bytes_max)?;
        let add = |device: Device| {
            let device = Arc::new(device);
            self.devices().push(device.clone());
            device
        };
        let first = add(device);
        let another = || {
            let opened = first.another();
            opened.map(add).map_err(|errno| format!("cannot open /dev/fuse again: {errno}"))
        };
        if let Some(leases) = self.fs.files.leases() {
            leases.start(another()?)?;
        }
        let mut devices = vec![first.clone()];
        for _ in 1..self.fs.options.threads.max(1) {
            devices.push(another()?);
        }
        let mut workers = Vec::new();
        for device in devices {
            workers.push(Worker::new((self.fs.clone(), self.stores.clone()), device, cache, &self.stop)?);
        }
        let _ = self.counts.set(workers.iter().map(Worker::counts).collect());
        let workers_left = Arc::new(AtomicUsize::new(workers.len()));
        let mut handles = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, worker) in workers.into_iter().enumerate() {
            let thread = std::thread::Builder::new().name(format!("octavo-fuse-{number}"));
            let serves = self.fs.running.begin();
            let below = is_below.then(|| (self.fs.clone(), workers_left.clone()));
            let thread = thread.spawn(move || {
                worker.run();
                drop(serves);
                // Someone may have unmounted this file system alone. Its files are then reached
                // through the mount above it, by other objects. Errors stay with these objects.
                if let Some((fs, left)) = below
                    && left.fetch_sub(1, SeqCst) == 1
                {
                    // Requests that were handed over.
                    fs.running.wait(Duration::MAX);
                    fs.files.objects().iter().for_each(|(_, object)| drop(object.sync()));
                }
            });
            handles.push(thread.map_err(|error| format!("cannot start a thread: {error}"))?);
        }
        Ok(())
    }

    /// Gives back the space that is reserved for files which programs have open. Call it after the
    /// mount has ended.
    pub fn free_reserved(&self) {
        self.fs.files.free_reserved();
        self.below.iter().for_each(Mount::free_reserved);
    }

    /// Checks that a cache has memory for the threads of a mount, without those of file systems
    /// below the source.
    ///
    /// # Errors
    /// A sentence that says what does not fit.
    pub fn check_memory(cache: &Cache, options: &MountOptions) -> Result<(), String> {
        let threads = 0..options.threads.max(1);
        let taken: Result<Vec<Memory>, String> = threads.map(|_| Memory::take(cache, options)).collect();
        taken.map(drop)
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Arc<Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the directory is mounted.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Where the file systems below the source are mounted.
    pub fn paths_below(&self) -> impl Iterator<Item = &Path> {
        self.below.iter().map(|mount| mount.path())
    }

    /// Returns what the mount has at the moment, with those of the file systems below the source.
    pub fn stat(&self) -> MountStat {
        self.below.iter().map(Mount::stat).fold(self.stat_of_one(), MountStat::plus)
    }

    fn stat_of_one(&self) -> MountStat {
        let (unwritten_files, unwritten_bytes) = self.fs.files.unwritten();
        let (descriptors_max, descriptors) = self.fs.budget.max_and_used();
        let counts = self.counts.get().map(Vec::as_slice).unwrap_or_default();
        let sum = |of: fn(&Counts) -> &AtomicU64| counts.iter().map(|one| of(one).load(Relaxed)).sum();
        let leases = self.fs.files.leases();
        MountStat {
            nodes: self.fs.nodes.count(),
            files: self.fs.files.count(),
            unwritten_files,
            unwritten_bytes,
            descriptors,
            descriptors_max,
            refused: self.fs.budget.refused() + self.fs.files.kept().refused(),
            leases: leases.map_or(0, |leases| leases.count()),
            lease_breaks: leases.map_or(0, |leases| leases.breaks()),
            requests: sum(|one| &one.requests),
            empty_reads: sum(|one| &one.empty_reads),
            waits: sum(|one| &one.waits),
        }
    }

    /// Returns the objects of the files whose pages are kept, and the paths below the source that
    /// the files had when they were opened. A path is empty if the kernel does not tell it: it has
    /// 4096 bytes or more.
    pub fn objects(&self) -> Vec<(PathBuf, Object)> {
        let mut objects = self.fs.files.objects();
        for mount in &self.below {
            let place = mount.path().strip_prefix(self.path()).unwrap_or(mount.path());
            objects.extend(mount.objects().into_iter().map(|(path, object)| (place.join(path), object)));
        }
        objects
    }

    /// Returns whether the mount has ended: it was unmounted, by whomever.
    pub fn has_ended(&self) -> bool {
        self.has_one_ended() && self.below.iter().all(Mount::has_ended)
    }

    fn has_one_ended(&self) -> bool {
        self.fs.running.is_over()
    }

    /// Waits until the mount has ended, at most for this long. Returns whether it has. Another
    /// thread may stop it meanwhile. Bytes in the cache may not be durable then.
    pub fn wait_until_ended(&self, most: Duration) -> bool {
        // None: too long for a clock.
        let end = Instant::now().checked_add(most);
        let left = || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        self.fs.running.wait(most) && self.below.iter().all(|mount| mount.wait_until_ended(left()))
    }

    /// Waits until the mount has ended. Afterwards all bytes are durable. Returns the errors of
    /// files that could not be written.
    pub fn wait(&self) -> Vec<String> {
        let mut failed = self.wait_and_close_one();
        failed.extend(self.below.iter().flat_map(Mount::wait));
        failed
    }

    fn wait_and_close_one(&self) -> Vec<String> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
        self.tidier.iter().for_each(Tidier::end);
        // Requests that were handed over.
        self.fs.running.wait(Duration::MAX);
        let mut failed = self.fs.files.close_everything();
        self.fs.files.leases().iter().for_each(|leases| leases.end());
        if let Err(errno) = self.fs.sync_lower() {
            failed.push(format!("the lower file system cannot be synced: {errno}: {}", files::UNSYNCED));
        }
        failed
    }

    /// Unmounts the directory, and tells the threads to end once they have answered the requests in
    /// flight. Does not wait for them. Files that programs still have open fail from then on.
    pub fn begin_stop(&self) {
        // What is mounted below another mount goes first.
        self.below.iter().rev().for_each(Mount::begin_stop);
        // Once: something else may be mounted there by the second time.
        if !self.has_one_ended() && !self.fs.is_stopping.load(SeqCst) {
            self.unmount();
        }
        self.fs.is_stopping.store(true, SeqCst);
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Unmounts the directory. If that takes long, it is left to a thread: a path below another
    /// mount is looked up there, and a helper closes copies of the descriptors of lower files. A
    /// lower file system that hangs keeps both waiting until [`Self::abort`].
    fn unmount(&self) {
        let mounted = self.mounted.clone();
        let (tell, told) = channel();
        let unmount = move || {
            if let Err(error) = mounted.unmount() {
                log::warn!("cannot unmount {}: {error}", mounted.path().display());
            }
            let _ = tell.send(());
        };
        let thread = std::thread::Builder::new().name("octavo-unmount".into());
        if let Err(error) = thread.spawn(unmount) {
            log::warn!("cannot unmount {}: {error}", self.mounted.path().display());
        }
        // An error: the thread could not be started.
        if told.recv_timeout(UNMOUNT_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            log::warn!("{} is still being unmounted", self.mounted.path().display());
        }
    }

    /// Aborts the connection to the kernel, after [`Self::begin_stop`]: all requests fail at once
    /// with ECONNABORTED, and later ones with ENOTCONN, also those that wait for a lower file
    /// system that hangs. The threads that wait for it end when it answers. So [`Self::wait`] must
    /// not be called if the process is to end before.
    pub fn abort(&self) {
        self.below.iter().rev().for_each(Mount::abort);
        self.stores.abort().into_iter().for_each(Errand::give_up);
        for device in &*self.devices() {
            if let Err(errno) = device.abort() {
                log::error!("{}: a connection cannot be aborted: {errno}", self.mounted.path().display());
            }
        }
    }

    /// Unmounts the directory, completes the requests in flight, and makes all bytes durable. Files
    /// that programs still have open fail from then on. Returns the errors of files that could not
    /// be written.
    pub fn stop(&self) -> Vec<String> {
        self.begin_stop();
        self.wait()
    }
}

impl Drop for Mount {
    /// Unmounts the directory, if it is still mounted: nobody could do it later.
    fn drop(&mut self) {
        if !self.has_ended() {
            self.begin_stop();
        }
    }
}

/// Agrees with the kernel on the protocol, and that a request moves at most this many bytes.
fn agree(device: &Device, transfer_bytes_max: usize) -> Result<(), String> {
    let mut bytes = vec![0; transfer_bytes_max + REQUEST_HEAD_BYTES_MAX];
    let len = loop {
        match device.read(&mut bytes) {
            Ok(len) => break len,
            Err(Nothing::Ever) => return Err("it was unmounted before it began".into()),
            Err(Nothing::Yet) => {
                let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
                retry_on_intr(|| poll(&mut fds, None)).map_err(|errno| errno.to_string())?;
            }
        }
    };
    let mut body = Reader::new(&bytes[..len]);
    let head: InHeader = body.take().map_err(|errno| errno.to_string())?;
    // Old kernels send less.
    let rest = (len - size_of::<InHeader>()).min(size_of::<InitIn>());
    let asked: InitIn = body.take_short(rest).map_err(|errno| errno.to_string())?;
    if Opcode::of(head.opcode) != Some(Opcode::Init) || asked.major != wire::VERSION.0 || asked.minor < 36 {
        return Err(format!(
            "the kernel speaks FUSE {}.{}: 7.36 (Linux 5.17) is needed",
            asked.major, asked.minor
        ));
    }
    // Not ATOMIC_O_TRUNC: the kernel would send OPEN before it finds that the file is being
    // executed, and a running program would be cut.
    let offered = u64::from(asked.flags) | u64::from(asked.flags2) << 32;
    let wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::DONT_MASK
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::POSIX_ACL
        | init::MAX_PAGES
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP;
    let agreed = wanted & offered;
    let reply = InitOut {
        major: wire::VERSION.0,
        minor: wire::VERSION.1.min(asked.minor),
        max_readahead: asked.max_readahead.min(transfer_bytes_max as u32),
        flags: agreed as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX / 4 * 3,
        max_write: transfer_bytes_max as u32,
        time_gran: 1,
        max_pages: (transfer_bytes_max / 4096) as u16,
        flags2: (agreed >> 32) as u32,
        ..InitOut::default()
    };
    device.reply(head.unique, Ok(()), reply.as_bytes());
    Ok(())
}
