//! [`FileSystem`]: the requests of the kernel for a prefix. Those that need no server are answered
//! at once: hits, and names of listings that are believed. The rest is left to the threads of
//! [`Waiting`].

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use octavo::Partition;
use octavo_objects::{Error, ErrorKind, Meta};

use crate::files::{Files, Kept, lock};
use crate::listing::{Kind, Listing};
use crate::tree::{Node, Tree, split};
use crate::waiting::{Reply, Waiting};

/// The longest read that the kernel sends.
const READ_BYTES_MAX: usize = 1 << 20;

/// The reads ahead of mapped files that the kernel sends at a time. More than wait for the server:
/// so those that hang keep no others.
const BACKGROUND_MAX: u16 = 1024;

type Choose = Box<dyn Fn(&Path) -> Partition + Send + Sync>;

/// What the requests of a mount share.
pub(crate) struct Inner {
    pub tree: Tree,
    pub files: Files,
    directories: Mutex<Directories>,
    choose: Choose,
    /// Requests that wait for listings.
    names: Arc<Waiting>,
    /// Requests that wait for objects. Those that hang do not keep listings.
    objects: Arc<Waiting>,
    pub ended: Mutex<bool>,
    pub end: Condvar,
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

impl Inner {
    /// For a mount of this name and owner.
    pub fn new(tree: Tree, files: Files, choose: Choose, name: &str, owner: (u32, u32)) -> Inner {
        let waiting = || Waiting::new(name.to_owned(), tree.fetcher().deadline());
        let (names, objects) = (waiting(), waiting());
        Inner {
            tree,
            files,
            directories: Mutex::default(),
            choose,
            names,
            objects,
            ended: Mutex::new(false),
            end: Condvar::new(),
            owner,
            since: SystemTime::now(),
        }
    }

    pub fn has_ended(&self) {
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

    fn entry(&self, found: Result<(u64, Node), Error>, reply: ReplyEntry) {
        match found {
            Ok((number, node)) => {
                reply.entry(&self.tree.valid, &self.attributes(number, &node), Generation(0));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn attr(&self, number: u64, node: &Node, reply: ReplyAttr) {
        reply.attr(&self.tree.valid, &self.attributes(number, node));
    }

    /// Opens a file at the version that the server has told.
    fn open(&self, number: u64, key: &Arc<str>, told: Result<Meta, Error>, reply: ReplyOpen) {
        let opened = told.and_then(|meta| {
            self.tree.note(number, &meta);
            let name = self.tree.path_of(key);
            let partition = (self.choose)(Path::new(name));
            self.files.open(self.tree.fetcher(), self.tree.client(), key, name, meta, &partition)
        });
        match opened {
            Ok((handle, gone)) => {
                gone.into_iter().for_each(|gone| self.drop_later(gone));
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Drops a file. The last drop waits for pages that are being fetched.
    fn drop_later(&self, file: Arc<Kept>) {
        if let Some(file) = Arc::into_inner(file) {
            self.objects.add_errand(move || drop(file));
        }
    }

    /// The error of a read that has failed.
    fn read_failed(&self, file: &Kept, error: &octavo::Error) -> Errno {
        self.tree.warn(format_args!("{}: {error}", file.key));
        let errno = errno_of_read(error);
        if errno.code() == Errno::ESTALE.code() {
            file.doubt();
            self.tree.doubt(&file.key);
        }
        errno
    }

    /// Lists entries of a directory from the entry `offset`.
    fn list(&self, listing: &Listing, offset: u64, mut reply: ReplyDirectory) {
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
pub(crate) struct FileSystem(pub Arc<Inner>);

impl FileSystem {
    /// Answers a request that needs the listing of a directory.
    fn with_listing<R: Reply>(
        &self,
        request: &Request,
        key: Arc<str>,
        reply: R,
        answer: impl FnOnce(&Inner, Result<Arc<Listing>, Error>, R) + Send + 'static,
    ) {
        if let Some(listing) = self.0.tree.believed(&key) {
            return answer(&self.0, Ok(listing), reply);
        }
        let (asked, inner) = (self.0.clone(), self.0.clone());
        let list = move || asked.tree.entries(&key);
        self.0.names.add(request.pid(), reply, list, move |listing, reply| answer(&inner, listing, reply));
    }

    /// Answers a request that needs a file as the listing of its directory has it.
    fn with_fresh<R: Reply>(
        &self,
        request: &Request,
        (number, node): (u64, Node),
        reply: R,
        answer: impl FnOnce(&Inner, Result<Node, Error>, R) + Send + 'static,
    ) {
        let directory = split(&node.key).0.into();
        self.with_listing(request, directory, reply, move |inner, listing, reply| {
            let fresh = listing.map(|listing| inner.tree.refreshed(number, node, &listing));
            answer(inner, fresh, reply);
        });
    }
}

impl Filesystem for FileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Kernels before 6.6 cannot map files that they do not cache.
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        let _ = config.set_max_readahead(READ_BYTES_MAX as u32);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        self.0.has_ended();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(name) = name.to_str().map(str::to_owned) else { return reply.error(Errno::ENOENT) };
        let Some(parent) = self.0.tree.node(parent.0) else { return reply.error(Errno::ENOENT) };
        let directory = parent.key.clone();
        self.with_listing(request, directory, reply, move |inner, listing, reply| {
            let found = listing.and_then(|listing| inner.tree.look_up(&parent.key, &name, &listing));
            inner.entry(found, reply);
        });
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.0.tree.forget(ino.0, lookups);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let Some(node) = self.0.tree.node(ino.0) else { return reply.error(Errno::ENOENT) };
        // An open file keeps the attributes of its version.
        let open = handle.and_then(|handle| self.0.files.meta(handle.0));
        match (open, &node.kind) {
            (Some(meta), _) => self.0.attr(ino.0, &Node { kind: Kind::File(meta), ..node }, reply),
            (None, Kind::Directory) => self.0.attr(ino.0, &node, reply),
            (None, Kind::File(_)) => {
                self.with_fresh(request, (ino.0, node), reply, move |inner, fresh, reply| match fresh {
                    Ok(node) => inner.attr(ino.0, &node, reply),
                    Err(error) => reply.error(errno(&error)),
                });
            }
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let Some(node) = self.0.tree.node(ino.0) else { return reply.error(Errno::ENOENT) };
        let key = node.key.clone();
        if self.0.tree.valid.is_zero() {
            let (asked, inner, path) = (self.0.clone(), self.0.clone(), key.clone());
            let head = move || asked.tree.client().head(asked.tree.fetcher(), &path);
            let open = move |told, reply| inner.open(ino.0, &key, told, reply);
            return self.0.objects.add(request.pid(), reply, head, open);
        }
        self.with_fresh(request, (ino.0, node), reply, move |inner, fresh, reply| {
            match fresh.map(|node| node.kind) {
                Ok(Kind::File(meta)) => inner.open(ino.0, &key, Ok(meta), reply),
                Ok(Kind::Directory) => reply.error(Errno::EISDIR),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.0.files.get(handle.0) else { return reply.error(Errno::EBADF) };
        let left = usize::try_from(file.meta.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = left.min(size as usize);
        let Some(object) = file.object.clone().filter(|_| len > 0) else {
            self.0.drop_later(file);
            return reply.data(&[]);
        };
        let mut bytes = vec![0; len];
        match object.try_read_at(offset, &mut bytes) {
            Ok(true) => {
                if object.reads_ahead_at(offset, len as u64) {
                    // Once more, to read ahead. Nobody waits for it.
                    let again = move || _ = object.read_at(offset, &mut vec![0; len]);
                    self.0.objects.add_errand(again);
                }
                // The reply may be followed by the end of the file, whose last drop waits.
                self.0.drop_later(file);
                reply.data(&bytes);
            }
            Ok(false) => {
                let (inner, read) = (self.0.clone(), file.clone());
                // A request that waits for a thread has no buffer.
                let perform = move || {
                    let mut bytes = vec![0; len];
                    object.read_at(offset, &mut bytes).map(|()| bytes)
                };
                let answer = move |told: Result<Vec<u8>, octavo::Error>, reply: ReplyData| match told {
                    Ok(bytes) => reply.data(&bytes),
                    Err(error) => reply.error(inner.read_failed(&read, &error)),
                };
                self.0.objects.add(request.pid(), reply, perform, answer);
                self.0.drop_later(file);
            }
            Err(error) => {
                let errno = self.0.read_failed(&file, &error);
                self.0.drop_later(file);
                reply.error(errno);
            }
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
        let file = self.0.files.close(handle.0);
        file.into_iter().for_each(|file| self.0.drop_later(file));
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

    fn readdir(&self, request: &Request, ino: INodeNo, handle: FileHandle, at: u64, reply: ReplyDirectory) {
        // Who reads a directory gets the listing that it began with.
        let begun = lock(&self.0.directories).listings.get(&handle.0).cloned();
        if let Some(listing) = begun.filter(|_| at > 0) {
            return self.0.list(&listing, at, reply);
        }
        // Programs take ENOENT for the end of a directory.
        let Some(node) = self.0.tree.node(ino.0) else { return reply.error(Errno::EIO) };
        self.with_listing(request, node.key, reply, move |inner, listing, reply| match listing {
            Ok(listing) => {
                lock(&inner.directories).listings.insert(handle.0, listing.clone());
                inner.list(&listing, at, reply);
            }
            Err(error) => reply.error(errno(&error)),
        });
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
