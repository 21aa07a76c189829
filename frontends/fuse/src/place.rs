//! [`Place`]: where a node's file is: a descriptor, or a handle by which it is opened again. A
//! limited number of nodes have a descriptor, because a server may know more files than it may
//! open. Handles need root and a file system that has them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;

/// The longest handle of the kernel (`MAX_HANDLE_SZ`).
const HANDLE_BYTES_MAX: usize = 128;

/// The kernel's `struct file_handle`.
#[repr(C)]
struct FileHandle {
    len_bytes: u32,
    kind: i32,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// Identifies a file of a file system for ever: no other file gets its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    kind: i32,
    bytes: Box<[u8]>,
}

/// Returns the handle of an open file, or of an entry of a directory.
///
/// # Errors
/// EOPNOTSUPP if the file system has no handles.
pub fn handle_of(at: impl AsFd, name: &std::ffi::CStr) -> Result<Handle, Errno> {
    let mut handle = FileHandle { len_bytes: HANDLE_BYTES_MAX as u32, kind: 0, bytes: [0; HANDLE_BYTES_MAX] };
    let mut mount_id: libc::c_int = 0;
    // SAFETY: the name is a C string, the handle has the room that it states, and the call writes
    // one `int` for the mount.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            at.as_fd().as_raw_fd(),
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if returned != 0 {
        return Err(last_error());
    }
    let bytes = handle.bytes.get(..handle.len_bytes as usize).ok_or(Errno::OVERFLOW)?;
    Ok(Handle { kind: handle.kind, bytes: bytes.into() })
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// How the places of a mount are kept.
pub struct Places {
    /// A descriptor of the lower file system, and the number of its mount. `None` if files cannot
    /// be opened by handle.
    mount: Option<(OwnedFd, u64)>,
    open: AtomicUsize,
    open_max: usize,
}

impl Places {
    /// Keeps at most `open_max` descriptors, if the root's file system and the process's rights
    /// allow that.
    pub fn new(root: &OwnedFd, stat: &Statx, open_max: usize) -> Arc<Places> {
        let places = |mount| Arc::new(Places { mount, open: AtomicUsize::new(0), open_max });
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = crate::lower::open_again(root, flags).map(|mount| (mount, stat.stx_mnt_id));
        let places_of = mount.ok().filter(|(mount, _)| {
            handle_of(root, c"").and_then(|handle| open_by_handle(mount, &handle)).is_ok()
        });
        if places_of.is_none() {
            log::debug!("files cannot be opened by handle: each known file keeps a descriptor");
        }
        places(places_of)
    }

    /// Makes the place of an open file.
    pub fn place(self: &Arc<Places>, file: OwnedFd, stat: &Statx) -> Place {
        let before = self.open.fetch_add(1, Relaxed);
        let has_handle = self.mount.as_ref().is_some_and(|(_, id)| *id == stat.stx_mnt_id);
        if before >= self.open_max
            && has_handle
            && let Ok(handle) = handle_of(&file, c"")
        {
            self.open.fetch_sub(1, Relaxed);
            return Place { places: self.clone(), kind: Kind::Handle(handle) };
        }
        Place { places: self.clone(), kind: Kind::Open(file) }
    }
}

fn open_by_handle(mount: &OwnedFd, handle: &Handle) -> Result<OwnedFd, Errno> {
    let mut raw =
        FileHandle { len_bytes: handle.bytes.len() as u32, kind: handle.kind, bytes: [0; HANDLE_BYTES_MAX] };
    raw.bytes[..handle.bytes.len()].copy_from_slice(&handle.bytes);
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the handle has the length that it states, and the call only reads it.
    let opened =
        unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw const raw, flags) };
    if opened < 0 {
        return Err(last_error());
    }
    // SAFETY: the call has just opened the descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as i32) })
}

/// Where a node's file is.
pub struct Place {
    places: Arc<Places>,
    kind: Kind,
}

enum Kind {
    Open(OwnedFd),
    Handle(Handle),
}

/// A descriptor (`O_PATH`) of a place.
pub enum At<'p> {
    /// The place's own.
    Kept(BorrowedFd<'p>),
    /// Opened for this call.
    Opened(OwnedFd),
}

impl AsFd for At<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            At::Kept(fd) => fd.as_fd(),
            At::Opened(fd) => fd.as_fd(),
        }
    }
}

impl Place {
    /// Returns a descriptor of the file.
    ///
    /// # Errors
    /// ESTALE if the file is gone, EMFILE.
    pub fn at(&self) -> Result<At<'_>, Errno> {
        match (&self.kind, &self.places.mount) {
            (Kind::Open(fd), _) => Ok(At::Kept(fd.as_fd())),
            (Kind::Handle(handle), Some((mount, _))) => open_by_handle(mount, handle).map(At::Opened),
            (Kind::Handle(_), None) => Err(Errno::STALE),
        }
    }

    /// The handle, if that is all that the place has: the inode's number may then be another
    /// file's by now.
    pub fn handle(&self) -> Option<&Handle> {
        match &self.kind {
            Kind::Open(_) => None,
            Kind::Handle(handle) => Some(handle),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if matches!(self.kind, Kind::Open(_)) {
            self.places.open.fetch_sub(1, Relaxed);
        }
    }
}
