//! [`Place`]: where a node's file is: a descriptor, or a handle by which it is opened again. A
//! limited number of nodes have a descriptor, those in use, because a server may know more files
//! than it may open. Handles need root and a file system that has them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;

use crate::budget::{Budget, Paid, Stuck};

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
    /// The places that have a descriptor and can do without, those that got it first in front.
    kept: Mutex<VecDeque<Weak<Shared>>>,
    kept_max: usize,
    /// The process's descriptors.
    budget: Arc<Budget>,
}

impl Places {
    /// Keeps at most `kept_max` descriptors, if the root's file system and the process's rights
    /// allow that.
    pub fn new(root: &OwnedFd, stat: &Statx, kept_max: usize, budget: Arc<Budget>) -> Arc<Places> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = crate::lower::open_again(root, flags).map(|mount| (mount, stat.stx_mnt_id));
        let mount = mount.ok().filter(|(mount, _)| {
            handle_of(root, c"").and_then(|handle| open_by_handle(mount, &handle)).is_ok()
        });
        if mount.is_none() {
            log::debug!("files cannot be opened by handle: each known file keeps a descriptor");
        }
        Arc::new(Places { mount, kept: Mutex::default(), kept_max, budget })
    }

    /// Whether each known file keeps a descriptor of its own.
    pub fn keep_all(&self) -> bool {
        self.mount.is_none()
    }

    /// Makes the place of an open file.
    ///
    /// # Errors
    /// ENFILE if the place must keep the descriptor, and too many do (D6).
    pub fn place(self: &Arc<Places>, file: OwnedFd, stat: &Statx) -> Result<Place, Errno> {
        let has_handle = self.mount.as_ref().is_some_and(|(_, id)| *id == stat.stx_mnt_id);
        let stuck = (!has_handle).then(|| self.budget.take_for_stuck()).transpose()?;
        let state = State { file: Some(Arc::new(file)), paid: None, _stuck: stuck, handle: None };
        let shared = Shared { state: Mutex::new(state), was_used: AtomicBool::new(false) };
        let place = Place { places: self.clone(), shared: Arc::new(shared) };
        if has_handle {
            self.keep(&place.shared);
        }
        Ok(place)
    }

    /// Takes the descriptor of the place that got it first (D4). Returns whether there was one.
    pub fn give_back(&self) -> bool {
        loop {
            let Some(first) = lock(&self.kept).pop_front() else { return false };
            // None: its node was forgotten.
            let Some(first) = first.upgrade() else { continue };
            first.shelve();
            return true;
        }
    }

    /// Notes that a place has a descriptor, and takes the descriptor of another if there are too
    /// many: of the first that was not used since it was last considered.
    fn keep(&self, shared: &Arc<Shared>) {
        let mut paid = self.budget.take_for_known();
        if paid.is_none() && self.give_back() {
            paid = self.budget.take_for_known();
        }
        if paid.is_none() {
            // Those in use have the descriptors.
            return shared.shelve();
        }
        lock(&shared.state).paid = paid;
        let mut kept = lock(&self.kept);
        kept.push_back(Arc::downgrade(shared));
        let mut chances = CHANCES;
        let mut taken = Vec::new();
        while kept.len() > self.kept_max {
            // None: its node was forgotten.
            let Some(first) = kept.pop_front().and_then(|first| first.upgrade()) else { continue };
            if chances > 0 && first.was_used.swap(false, Relaxed) {
                chances -= 1;
                kept.push_back(Arc::downgrade(&first));
                continue;
            }
            taken.push(first);
        }
        drop(kept);
        taken.iter().for_each(|shared| shared.shelve());
    }
}

/// How many places that were used are passed over until one loses its descriptor nevertheless.
const CHANCES: usize = 8;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    shared: Arc<Shared>,
}

/// The memory of a place, in bytes, about: with its descriptor and its handle.
pub const PLACE_BYTES: usize = size_of::<Shared>() + size_of::<Weak<Shared>>() + 64;

struct Shared {
    state: Mutex<State>,
    /// Since it was last considered whether its descriptor is needed.
    was_used: AtomicBool,
}

/// One of the two is there. A file that was opened by its handle is the same file.
struct State {
    /// With `O_PATH`.
    file: Option<Arc<OwnedFd>>,
    /// For the descriptor, if it can be given back, and if not.
    paid: Option<Paid>,
    _stuck: Option<Stuck>,
    handle: Option<Handle>,
}

impl Shared {
    /// Keeps the handle in place of the descriptor. A place that is being opened again, which may
    /// wait for its file system, keeps its descriptor.
    fn shelve(&self) {
        let Ok(mut state) = self.state.try_lock() else { return };
        let Some(file) = &state.file else { return };
        if state.handle.is_none() {
            match handle_of(file, c"") {
                Ok(handle) => state.handle = Some(handle),
                // It keeps its descriptor, which is counted no more.
                Err(errno) => return log::debug!("a file has no handle: {errno}"),
            }
        }
        state.file = None;
        state.paid = None;
    }
}

/// A descriptor (`O_PATH`) of a place, which stays open as long as this.
pub struct At(Arc<OwnedFd>);

impl AsFd for At {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Place {
    /// Returns a descriptor of the file.
    ///
    /// # Errors
    /// ESTALE if the file is gone, EMFILE.
    pub fn at(&self) -> Result<At, Errno> {
        let mut state = lock(&self.shared.state);
        if let Some(file) = &state.file {
            self.shared.was_used.store(true, Relaxed);
            return Ok(At(file.clone()));
        }
        let (Some(handle), Some((mount, _))) = (&state.handle, &self.places.mount) else {
            return Err(Errno::STALE);
        };
        let file = Arc::new(open_by_handle(mount, handle)?);
        state.file = Some(file.clone());
        drop(state);
        self.places.keep(&self.shared);
        Ok(At(file))
    }

    /// The handle, if that is all that the place has: the inode's number may then be another
    /// file's by now.
    pub fn handle(&self) -> Option<Handle> {
        let state = lock(&self.shared.state);
        if state.file.is_some() { None } else { state.handle.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Descriptors used to belong to the first files that were looked up, for ever: once these were
    /// as many as allowed, each request about another file opened it by its handle, twice or more.
    #[test]
    fn the_files_in_use_have_the_descriptors() {
        let folder = std::env::temp_dir().join(format!("octavo-places-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let open = |path: &std::path::Path| {
            rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap()
        };
        let root = open(&folder);
        let stat = crate::lower::stat(&root).unwrap();
        let places = Places::new(&root, &stat, 10, Budget::new(1000));
        if places.mount.is_none() {
            println!("SKIPPED: opening by handle needs root, and a file system that has handles");
            return;
        }
        let inode = |place: &Place| crate::lower::stat(place.at().unwrap()).unwrap().stx_ino;
        let all: Vec<(Place, u64)> = (0..30)
            .map(|number| {
                let path = folder.join(number.to_string());
                std::fs::write(&path, "").unwrap();
                let file = open(&path);
                let stat = crate::lower::stat(&file).unwrap();
                (places.place(file, &stat).unwrap(), stat.stx_ino)
            })
            .collect();
        let has_descriptor = |place: &Place| place.handle().is_none();
        let count = || all.iter().filter(|(place, _)| has_descriptor(place)).count();
        assert!(count() == 10 && has_descriptor(&all[29].0) && !has_descriptor(&all[0].0));
        // In use: one of the first, now and then.
        for (place, expected) in &all {
            assert_eq!((inode(&all[3].0), inode(place)), (all[3].1, *expected));
        }
        assert!(count() == 10 && has_descriptor(&all[3].0));
        // Places that are gone make room.
        let mut all = all;
        all.truncate(15);
        assert!(all.iter().all(|(place, expected)| inode(place) == *expected));
        drop(all);
        // A file that is gone is not another one.
        let path = folder.join("0");
        let file = open(&path);
        let stat = crate::lower::stat(&file).unwrap();
        let gone = places.place(file, &stat).unwrap();
        gone.shared.shelve();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another").unwrap();
        assert_eq!(gone.at().err(), Some(Errno::STALE));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
