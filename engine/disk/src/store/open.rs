//! What can be opened as a file or device, and how: [`OpenOptions`], the creation of a file, and
//! the checks of what was found. Not here: the open store (`file.rs`), ownership (`lock.rs`).

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fcntl_getfl, linkat, open};
use rustix::io::Errno;

use crate::error::OpenError;
use crate::identity::Identity;
use crate::io::buffer::{AlignedBytes, IoBuffer};
use crate::store::lock::Numbers;
use crate::store::sys;

/// The largest logical block, in bytes, that pages of 4096 bytes can be served from.
pub(super) const BLOCK_BYTES_MAX: u32 = 4096;

/// How [`Store::open`](crate::Store::open) and [`Store::from_file`](crate::Store::from_file) open a
/// file or device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuses writes, and lets other readers open the store too. Default: false.
    pub read_only: bool,
    /// Bypasses the kernel's page cache (`O_DIRECT`), if the file system supports that. Default:
    /// true.
    pub direct: bool,
    /// Locks the store, so that no second opener can write it. Default: true.
    pub lock: bool,
    /// If there is no file of this path, creates one of this many bytes, which read as zeros and
    /// take no space. A file that exists keeps its content and its length. Default: None, the file
    /// or device must exist.
    pub create_len_bytes: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { read_only: false, direct: true, lock: true, create_len_bytes: None }
    }
}

/// Creates a file of `len_bytes` zeros, unless there is one by now. The file appears with its
/// length, so that no other opener finds it empty, and stays after a crash.
pub(super) fn create(path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let step = "cannot create it";
    let failed = |source: io::Error| match source.kind() {
        // It is the directory that was not found.
        io::ErrorKind::NotFound => OpenError::Io { path: path.to_owned(), step, source },
        _ => refusal(path, step, source),
    };
    let resize = |file: &File| {
        let sized = file.set_len(len_bytes).and_then(|()| file.sync_all());
        sized.map_err(|e| refusal(path, "cannot give the new file its length", e))
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match open(directory, flags, Mode::from_raw_mode(0o666)).map(File::from) {
        Ok(file) => {
            resize(&file)?;
            match linkat(CWD, link_of(&file), CWD, path, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        // The file system has no files without a name: the file is empty for a moment.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => match File::create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            created => {
                let file = created.map_err(failed)?;
                resize(&file).inspect_err(|_| _ = fs::remove_file(path))?;
            }
        },
        Err(errno) => return Err(failed(errno.into())),
    }
    // Not every file system can sync a directory.
    if let Err(error) = File::open(directory).and_then(|directory| directory.sync_all()) {
        log::debug!("{}: cannot sync its directory ({error})", path.display());
    }
    Ok(())
}

/// Checks the flags of an open file. Returns the options by which it can be a store, and whether
/// its descriptor is direct.
pub(super) fn options_of_open(
    name: &Path,
    file: &File,
    options: &OpenOptions,
) -> Result<(OpenOptions, bool), OpenError> {
    let invalid =
        |why: &str| Err(OpenError::Invalid { path: name.to_owned(), reason: format!("the open file {why}") });
    let flags = fcntl_getfl(file).map_err(|errno| refusal(name, "cannot read its flags", errno.into()))?;
    if options.create_len_bytes.is_some() {
        return invalid("exists, and cannot be created");
    }
    if flags.contains(OFlags::PATH) {
        return invalid("was opened with O_PATH, and can do no I/O");
    }
    let read_only = match flags & OFlags::RWMODE {
        OFlags::WRONLY => return invalid("was opened for writing only, and a store is read too"),
        OFlags::RDONLY => true,
        _ => options.read_only,
    };
    if flags.contains(OFlags::APPEND) && !read_only {
        return invalid("was opened for appending, and would write everything at its end");
    }
    Ok((OpenOptions { read_only, ..options.clone() }, flags.contains(OFlags::DIRECT)))
}

/// Returns a path that leads to an open file, wherever its own path leads by now.
pub(super) fn link_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

pub(super) fn open_with(path: &Path, options: &OpenOptions, flags: i32) -> io::Result<File> {
    fs::OpenOptions::new().read(true).write(!options.read_only).custom_flags(flags).open(path)
}

pub(super) fn is_same_file(one: &File, other: &File) -> bool {
    let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino(), found.rdev()));
    identity(one).is_ok_and(|one| identity(other).is_ok_and(|other| one == other))
}

/// Returns the identity of a file or device. A file system gives the inode number of a removed file
/// to another. The file's handle (or else its generation number) tells the two apart.
pub(super) fn identity_of(file: &File, (device, inode): Numbers, is_device: bool) -> Identity {
    let (kind, rest) = match (is_device, sys::handle(file), sys::generation(file)) {
        (true, ..) => (b'd', Vec::new()),
        (false, Some(handle), _) => (b'h', handle),
        (false, None, Some(generation)) => (b'g', [&inode.to_le_bytes()[..], &generation].concat()),
        (false, None, None) => (b'i', inode.to_le_bytes().to_vec()),
    };
    Identity::from_bytes(&[&[kind], &device.to_le_bytes()[..], &rest].concat())
}

pub(super) fn check_kind(path: &Path, metadata: &fs::Metadata) -> Result<(), OpenError> {
    let (kind, path) = (metadata.file_type(), path.to_owned());
    match kind.is_file() || kind.is_block_device() {
        true => Ok(()),
        false if kind.is_dir() => Err(OpenError::IsDirectory { path }),
        false => Err(OpenError::NotAFileOrDevice { path }),
    }
}

/// Refuses a device that is set read-only. It could be opened for writing, but would refuse each
/// write.
pub(super) fn check_writable(path: &Path, file: &File, is_device: bool) -> Result<(), OpenError> {
    let step = "cannot read whether the device is read-only (BLKROGET)";
    match is_device && sys::device_is_read_only(file).map_err(|e| refusal(path, step, e))? {
        true => Err(OpenError::ReadOnlyDevice { path: path.to_owned() }),
        false => Ok(()),
    }
}

pub(super) fn refusal(path: &Path, step: &'static str, source: io::Error) -> OpenError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => OpenError::NotFound { path },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::Permission { path, source }
        }
        _ => OpenError::Io { path, step, source },
    }
}

/// Returns the smallest block that a direct read accepts, in bytes, for kernels that do not report
/// it. A file too short to try 512 gets 4096, which every file system with direct I/O accepts.
pub(super) fn probe_block_bytes(direct: &File, len_bytes: u64) -> Option<u32> {
    let memory = AlignedBytes::new(BLOCK_BYTES_MAX as usize);
    let reads = |bytes: usize, offset| {
        let piece = IoBuffer { len: bytes, ..memory.io_buffer() };
        sys::read_at(direct, &[piece], offset).is_ok()
    };
    if len_bytes >= 1024 && reads(512, 512) {
        return Some(512);
    }
    reads(BLOCK_BYTES_MAX as usize, 0).then_some(BLOCK_BYTES_MAX)
}
