//! [`Prefix`]: the objects below a prefix as a read-only file system.
//!
//! - **Names** come from listings, which are believed for [`PrefixOptions::valid`]. The kernel
//!   keeps names and attributes as long. A directory that is being read keeps its listing.
//! - **Opening** a file asks the server for its version, unless a listing told it that recently. An
//!   open file has the bytes of that version: if the object changes, reads of what is not cached
//!   fail with `ESTALE`.
//! - **Reads** go through the engine. The kernel keeps no pages of its own, except of files that
//!   are mapped.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenAccMode, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request, SessionACL,
};
use octavo::{Object, Partition};
use octavo_objects::{Error, ErrorKind, Fetcher};
use rustix::process::{getegid, geteuid};

use crate::address::Address;
use crate::client::Client;
use crate::files::{Files, lock};
use crate::listing::{Kind, Listing};
use crate::tree::{Node, ROOT, Tree};

/// The longest read that the kernel sends.
const READ_BYTES_MAX: usize = 1 << 20;

/// How a prefix is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Whether other users have access. Default: whether root mounts.
    pub allow_other: bool,
    /// How long listings are believed, and the versions that they tell. Default: 10 s.
    pub valid: Duration,
    /// Reads that wait for the server at a time. Default: 16.
    pub threads: usize,
    /// Files whose pages are kept, open or not. Default: 4,096.
    pub files_max: NonZeroUsize,
}

impl Default for PrefixOptions {
    fn default() -> PrefixOptions {
        PrefixOptions {
            allow_other: geteuid().is_root(),
            valid: Duration::from_secs(10),
            threads: 16,
            files_max: NonZeroUsize::new(4096).expect("not zero"),
        }
    }
}

/// What a mounted prefix has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStat {
    /// Files and directories that the kernel knows.
    pub nodes: usize,
    /// Files whose pages are kept.
    pub files: usize,
}

/// A prefix that is mounted. Dropping it unmounts it.
pub struct Prefix {
    path: PathBuf,
    inner: Arc<Inner>,
    session: Mutex<Option<BackgroundSession>>,
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefix").field("path", &self.path).finish_non_exhaustive()
    }
}

type Choose = Box<dyn Fn(&Path) -> Partition + Send + Sync>;

struct Inner {
    tree: Tree,
    files: Files,
    directories: Mutex<Directories>,
    choose: Choose,
    ended: Mutex<bool>,
    end: Condvar,
    owner: (u32, u32),
    since: SystemTime,
}

/// Open directories.
#[derive(Default)]
struct Directories {
    /// What each reader of a directory is being told.
    listings: HashMap<u64, Arc<Listing>>,
    next: u64,
}

impl Prefix {
    /// Mounts the objects below `address` at `path`. `choose` gets the path of a file below the
    /// prefix when it is opened, and returns the partition of its pages.
    ///
    /// # Errors
    /// A sentence: the prefix cannot be listed, or the system refuses the mount.
    pub fn start(
        fetcher: Fetcher,
        client: Client,
        address: &Address,
        path: &Path,
        options: &PrefixOptions,
        choose: impl Fn(&Path) -> Partition + Send + Sync + 'static,
    ) -> Result<Prefix, String> {
        let tree = Tree::new(fetcher, client, &address.key, options.valid);
        // A bucket or credentials that are wrong are told now, and not to every program later.
        let root = tree.node(ROOT).expect("the root is there");
        let entries = tree.entries(&root.key).map_err(|error| format!("cannot list {address}: {error}"))?;
        if entries.len() == 0 {
            log::warn!("there is nothing below {address}");
        }
        let owner = (geteuid().as_raw(), getegid().as_raw());
        let inner = Arc::new(Inner {
            tree,
            files: Files::new(options.files_max),
            directories: Mutex::default(),
            choose: Box::new(choose),
            ended: Mutex::new(false),
            end: Condvar::new(),
            owner,
            since: SystemTime::now(),
        });
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(address.to_string()),
            MountOption::Subtype("octavo".into()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::RO,
        ];
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = true;
        let session = fuser::spawn_mount(FileSystem(inner.clone()), path, &config)
            .map_err(|error| format!("cannot mount {address} at {}: {error}", path.display()))?;
        Ok(Prefix { path: path.to_owned(), inner, session: Mutex::new(Some(session)) })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it has now.
    pub fn stat(&self) -> PrefixStat {
        PrefixStat { nodes: self.inner.tree.nodes_count(), files: self.inner.files.count() }
    }

    /// The objects of the files whose pages are kept, and their paths below the prefix.
    pub fn objects(&self) -> Vec<(PathBuf, Object)> {
        let objects = self.inner.files.objects().into_iter();
        objects.map(|(key, object)| (self.inner.tree.path_of(&key).into(), object)).collect()
    }

    /// Whether it was unmounted.
    pub fn has_ended(&self) -> bool {
        *lock(&self.inner.ended)
    }

    /// Waits until it is unmounted, at most for this long. Returns whether it is.
    pub fn wait_until_ended(&self, most: Duration) -> bool {
        let begun = Instant::now();
        let mut ended = lock(&self.inner.ended);
        while !*ended {
            let Some(left) = most.checked_sub(begun.elapsed()) else { return false };
            // An absurdly long time would overflow.
            let left = left.min(Duration::from_secs(3600));
            ended = self.inner.end.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Unmounts it. Returns at once; programs that have files open keep them.
    pub fn begin_stop(&self) {
        let Some(session) = lock(&self.session).take() else { return };
        let path = self.path.clone();
        let inner = self.inner.clone();
        // Unmounting waits for programs that use it.
        let stop = std::thread::Builder::new().name("octavo-unmount".into()).spawn(move || {
            if let Err(error) = session.umount_and_join() {
                log::warn!("{}: {error}", path.display());
            }
            inner.has_ended();
        });
        if let Err(error) = stop {
            log::warn!("cannot start a thread: {error}");
        }
    }

    /// Unmounts it, waits for the end, and drops the pages.
    pub fn stop(&self, most: Duration) -> bool {
        self.begin_stop();
        let ended = self.wait_until_ended(most);
        self.inner.files.clear();
        ended
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        self.stop(Duration::from_secs(10));
    }
}

impl Inner {
    fn has_ended(&self) {
        *lock(&self.ended) = true;
        self.end.notify_all();
    }

    fn attributes(&self, number: u64, node: &Node) -> FileAttr {
        let (kind, perm, size, time) = match &node.kind {
            Kind::Directory => (FileType::Directory, 0o555, 0, self.since),
            Kind::File(meta) => {
                (FileType::RegularFile, 0o444, meta.size, meta.version.modified.unwrap_or(UNIX_EPOCH))
            }
        };
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 1 << 16,
            flags: 0,
        }
    }

    /// Opens a file at its present version.
    fn open(&self, number: u64) -> Result<u64, Errno> {
        let told = |error: Error| errno(&error);
        let node = self.tree.node(number).ok_or(Errno::ENOENT)?;
        let key = &node.key;
        let fresh = || self.tree.refreshed(number);
        let meta = match self.tree.valid.is_zero() {
            true => self.tree.client().head(self.tree.fetcher(), key).map_err(told)?,
            false => match fresh().map_err(told)?.kind {
                Kind::File(meta) => meta,
                Kind::Directory => return Err(Errno::EISDIR),
            },
        };
        self.tree.note(number, &meta);
        let name = self.tree.path_of(key);
        let partition = (self.choose)(Path::new(name));
        self.files.open(self.tree.fetcher(), self.tree.client(), key, name, meta, &partition).map_err(told)
    }

    fn read(&self, handle: u64, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let file = self.files.get(handle).ok_or(Errno::EBADF)?;
        let len = len.min(usize::try_from(file.meta.size.saturating_sub(offset)).unwrap_or(usize::MAX));
        let Some(object) = file.object.as_ref().filter(|_| len > 0) else { return Ok(Vec::new()) };
        let mut bytes = vec![0; len];
        match object.read_at(offset, &mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) => {
                log::warn!("{}: {error}", object.store().name());
                let errno = errno_of_read(&error);
                if errno.code() == Errno::ESTALE.code() {
                    file.doubt();
                    self.tree.doubt(&file.key);
                }
                Err(errno)
            }
        }
    }

    /// Returns the listing for a reader of a directory, which is at the entry `offset`: the one
    /// that it began with.
    fn entries(&self, number: u64, handle: u64, offset: u64) -> Result<Arc<Listing>, Errno> {
        let begun = lock(&self.directories).listings.get(&handle).cloned();
        if let Some(listing) = begun.filter(|_| offset > 0) {
            return Ok(listing);
        }
        let node = self.tree.node(number).ok_or(Errno::ENOENT)?;
        let listing = self.tree.entries(&node.key).map_err(|error| errno(&error))?;
        lock(&self.directories).listings.insert(handle, listing.clone());
        Ok(listing)
    }
}

/// An error of the server as the kernel's number.
fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Denied | ErrorKind::Unauthenticated => Errno::EACCES,
        ErrorKind::Changed => Errno::ESTALE,
        ErrorKind::Engine => Errno::ENOMEM,
        _ => Errno::EIO,
    }
}

/// An error of the engine as the kernel's number.
fn errno_of_read(error: &octavo::Error) -> Errno {
    match error {
        octavo::Error::Io { source, .. } => Errno::from_i32(source.errno()),
        octavo::Error::NoMemory { .. } => Errno::ENOMEM,
        octavo::Error::Closed { .. } => Errno::ESTALE,
        _ => Errno::EIO,
    }
}

/// The requests of the kernel.
struct FileSystem(Arc<Inner>);

impl Filesystem for FileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Kernels before 6.6 cannot map files that they do not cache.
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        let _ = config.set_max_readahead(READ_BYTES_MAX as u32);
        Ok(())
    }

    fn destroy(&mut self) {
        self.0.has_ended();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(name) = name.to_str() else { return reply.error(Errno::ENOENT) };
        match self.0.tree.look_up(parent.0, name) {
            Ok((number, node)) => {
                reply.entry(&self.0.tree.valid, &self.0.attributes(number, &node), Generation(0));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.0.tree.forget(ino.0, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        // An open file keeps the attributes of its version.
        let open = handle.and_then(|handle| self.0.files.get(handle.0));
        let node = match (open, self.0.tree.node(ino.0)) {
            (Some(file), Some(node)) => Ok(Node { kind: Kind::File(file.meta.clone()), ..node }),
            _ => self.0.tree.refreshed(ino.0),
        };
        match node {
            Ok(node) => reply.attr(&self.0.tree.valid, &self.0.attributes(ino.0, &node)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        match self.0.open(ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.read(handle.0, offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.files.close(handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut directories = lock(&self.0.directories);
        directories.next += 1;
        reply.opened(FileHandle(directories.next), FopenFlags::empty());
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let listing = lock(&self.0.directories).listings.remove(&handle.0);
        drop(listing);
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listing = match self.0.entries(ino.0, handle.0, offset) {
            Ok(listing) => listing,
            Err(errno) => return reply.error(errno),
        };
        let own = [(".", true), ("..", true)];
        for at in offset.. {
            let number = usize::try_from(at).unwrap_or(usize::MAX);
            let entry = own.get(number).copied().or_else(|| listing.entry(number.checked_sub(own.len())?));
            let Some((name, is_directory)) = entry else { break };
            let kind = if is_directory { FileType::Directory } else { FileType::RegularFile };
            // Numbers are given out by lookups; any other will do here.
            if reply.add(INodeNo(u64::MAX), at + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, self.0.tree.nodes_count() as u64, 0, 1 << 16, 255, 1 << 16);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOTSUP);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOTSUP);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}
