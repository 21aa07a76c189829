//! The control file system: the tree of partitions, mounted with FUSE, for `cat` and `echo`.
//!
//! The files behave like those of procfs and cgroupfs:
//! - They have no length, and the kernel does not cache them (direct I/O).
//! - A read at offset 0 creates the text; reads at later offsets continue the same text.
//! - Truncating changes nothing. Each `write`, at any offset, sets the whole value.
//! - A refused value gets EINVAL and a line in the log.
//!
//! The kernel checks permissions; only the server's user has access. Not here: the content of the
//! files, which is in `tree`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use octavo::Cache;

use super::tree::{Node, ROOT, Tree};
use crate::environment::make_private_dir;
use crate::lock::lock;
use crate::{mounts, own};

/// The source of our mounts in the table of mounts.
const NAME: &str = "octavo";

/// Most files open at a time; each may hold its text.
const OPEN_MAX: usize = 1024;

/// Requests that are processed concurrently, so that setting a value that takes long does not delay
/// reads.
const THREADS: usize = 4;

/// The longest `write` that arrives in one piece, in bytes: longer than any value.
const WRITE_BYTES_MAX: u32 = 64 << 10;

/// Most dead mounts, on top of each other at one path, that are removed.
const DEAD_MAX: usize = 8;

/// The kernel caches no entry and no attribute.
const TTL: Duration = Duration::ZERO;

/// A mounted tree; unmounted when dropped.
pub struct Mounted {
    session: Option<BackgroundSession>,
    path: PathBuf,
    _served: own::Entry,
}

/// Why a tree was not mounted.
pub enum Unmounted {
    /// The path is unsuitable. A sentence.
    Path(String),
    /// The system refuses. A sentence.
    System(String),
}

/// Mounts the tree of a cache. Makes the directory if it is missing, and removes the mount of a
/// server that was killed.
pub fn mount(path: &Path, cache: Cache) -> Result<Mounted, Unmounted> {
    let own = || own::check(path).map_err(|why| format!("{} {why}", path.display()));
    let prepared = remove_dead(path)
        .and_then(|()| own())
        .and_then(|()| make_private_dir(path))
        .and_then(|()| check_empty(path));
    prepared.map_err(Unmounted::Path)?;
    let mut options = Config::default();
    options.mount_options = vec![
        MountOption::FSName(NAME.into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
    ];
    options.n_threads = Some(THREADS);
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let files = Files { tree: Tree::new(cache), open: Mutex::default(), uid, gid };
    let session = fuser::spawn_mount(files, path, &options).map_err(|error| {
        Unmounted::System(match Path::new("/dev/fuse").exists() {
            true => error.to_string().trim().to_owned(),
            false => "/dev/fuse does not exist; load the module: modprobe fuse".into(),
        })
    })?;
    let served = own::Entry::add(&mounts::resolved(path));
    Ok(Mounted { session: Some(session), path: path.to_owned(), _served: served })
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        // A process may still have its working directory or an open file in the tree. The mount is
        // then detached, and disappears when that process leaves it.
        if let Err(error) = session.umount_and_join() {
            log::debug!("{}: {error}; detached", self.path.display());
            mounts::detach(&self.path);
        }
    }
}

/// Removes mounts at this path whose server has ended. The error is a sentence.
fn remove_dead(path: &Path) -> Result<(), String> {
    for _ in 0..DEAD_MAX {
        let dead = match std::fs::metadata(path) {
            Ok(_) => false,
            Err(error) => mounts::is_dead(&error),
        };
        let ours = is_ours(path);
        match (dead, ours) {
            (true, true) => {
                log::info!("removing the dead mount at {}, left by a server that was killed", path.display());
                mounts::detach(path);
            }
            (true, false) => return Err("there is a dead mount of another program here; unmount it".into()),
            (false, true) => return Err("the control file system of another server is mounted here".into()),
            (false, false) => return Ok(()),
        }
    }
    Err("the dead mounts here cannot be removed; unmount them".into())
}

/// Refuses a directory that is not empty: the mount would hide its files, such as those of `/proc`
/// or the sockets.
fn check_empty(path: &Path) -> Result<(), String> {
    let mut entries = std::fs::read_dir(path).map_err(|error| error.to_string())?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err("the directory is not empty, and a mount would hide its files; name another".into()),
    }
}

/// Whether the uppermost mount at this path is a control file system.
fn is_ours(path: &Path) -> bool {
    mounts::uppermost(path).is_some_and(|(kind, source)| kind.starts_with("fuse") && source == NAME)
}

/// The tree as a FUSE file system.
struct Files {
    tree: Tree,
    open: Mutex<Open>,
    uid: u32,
    gid: u32,
}

/// Open files by handle: their text when they were last read from the beginning.
#[derive(Default)]
struct Open {
    texts: HashMap<u64, String>,
    next: u64,
}

impl Files {
    fn attributes(&self, node: &Node) -> FileAttr {
        FileAttr {
            ino: INodeNo(node.number),
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: kind(node),
            perm: node.file.unwrap_or(0o555),
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn kind(node: &Node) -> FileType {
    if node.file.is_some() { FileType::RegularFile } else { FileType::Directory }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Refused only if the system's own limit is lower, which then holds.
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let entries = self.tree.entries(parent.0).unwrap_or_default();
        match name.to_str().and_then(|name| entries.get(name)) {
            Some(node) => reply.entry(&TTL, &self.attributes(node), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree.node(ino.0) {
            Some(node) => reply.attr(&TTL, &self.attributes(&node)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.tree.node(ino.0) {
            Some(_) if mode.is_some() || uid.is_some() || gid.is_some() => reply.error(Errno::EPERM),
            Some(node) => reply.attr(&TTL, &self.attributes(&node)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.tree.node(ino.0).is_none() {
            return reply.error(Errno::ENOENT);
        }
        let mut open = lock(&self.open);
        if open.texts.len() >= OPEN_MAX {
            return reply.error(Errno::ENFILE);
        }
        open.next += 1;
        let handle = open.next;
        open.texts.insert(handle, String::new());
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The text is created at offset 0 only, so that a text that is read in pieces is
        // consistent.
        let made = match offset {
            0 => match self.tree.read(ino.0) {
                Some(text) => Some(text),
                None => return reply.error(Errno::ENOENT),
            },
            _ => None,
        };
        let mut open = lock(&self.open);
        let Some(text) = open.texts.get_mut(&fh.0) else { return reply.error(Errno::EBADF) };
        if let Some(made) = made {
            *text = made;
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(size as usize).min(text.len());
        reply.data(&text.as_bytes()[from..to]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.tree.write(ino.0, data) {
            // At most 64 KiB, see WRITE_BYTES_MAX.
            Ok(()) => reply.written(data.len() as u32),
            Err(why) => {
                log::warn!("control file system: {why}");
                reply.error(Errno::EINVAL);
            }
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.open).texts.remove(&fh.0);
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(entries) = self.tree.entries(ino.0) else { return reply.error(Errno::ENOTDIR) };
        // The kernel knows the number of the parent directory, so any number will do for `..`.
        let above = [(".", ino.0), ("..", ROOT)].map(|(name, number)| (name, Node { number, file: None }));
        let all = above.iter().map(|(name, node)| (*name, node));
        let all = all.chain(entries.iter().map(|(name, node)| (name.as_str(), node)));
        for (at, (name, node)) in all.enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(INodeNo(node.number), at as u64 + 1, kind(node), name) {
                break;
            }
        }
        reply.ok();
    }

    // These calls are refused: the configuration and `octavo ctl partition` create and remove
    // partitions.
    // (Without `create`, the kernel calls `mknod`. It needs neither `flush` nor `fsync`.)

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
