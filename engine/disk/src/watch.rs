//! [`Watch`]: notices when other programs overwrite, truncate, extend or replace the file of a
//! store, or set its device read-only. Only reports: after such a change, an operator must decide
//! what the cached pages should contain. Not here: when to look, and where to report (the program's
//! matter).
//!
//! Each look compares only what is cheap to query: the result of `stat` and, for a device, of two
//! ioctls. Six rules keep a look from mistaking a store's own I/O for another program's:
//!
//! * W1. I/O never changes where the path leads, or whether it leads anywhere. Any such
//!   change was made by another program.
//! * W2. Only [`Store::set_len_bytes`] changes the file's length, and only that call and
//!   [`Store::adopt_len_bytes`] change the store's. Both hold `FileStore::length` meanwhile. A
//!   look that finds this lock held does not compare lengths. If the lock is free and the lengths
//!   differ, another program changed the file's. If they become equal again, it has undone that
//!   change, unless the store's length has changed since the previous look.
//! * W3. The modification time counts only between two looks with no own I/O between them: `ended`,
//!   as read before the first `stat`, equals `begun`, as read after the second. Then no write,
//!   zeroing, discard or sync of this store was in flight at any moment between the two. Reads and
//!   other programs' backups change only the access time; chmod, chown and links change only the
//!   inode's change time; a look compares neither.
//! * W4. The interval before the first of the two looks had no own I/O either. This prevents false
//!   alarms from a coarse clock, or from a network file system that reports a modification time
//!   late.
//! * W5. While the store is being written, W3 cannot tell, so inotify decides. The store keeps its
//!   own descriptors open, so a writable descriptor that is closed (`IN_CLOSE_WRITE`) belongs to
//!   another program. The close counts if the modification time moved since the previous look. For
//!   a device, whose node keeps its modification time, the close always counts.
//! * W6. A store that was closed, in this process or in another one that the present one follows,
//!   may leave writable descriptors to an I/O ring, which closes them a little later. They have a
//!   mark (`sys::LockedPart::Mark`) until inotify has reported their close. A close does not count
//!   if there was a mark at the previous look. A look asks for the mark before it takes the closes.
//!
//! During the store's own writes, a watch misses a writer on another machine, and a writer that
//! keeps the file open.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::SystemTime;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use crate::io::Channel;
use crate::store::change::Change;
use crate::store::file::FileStore;
use crate::store::keep::WeakStore;
use crate::store::sys;
use crate::store::{Kind, Store};

/// After a change of content is reported, further ones are not reported until this many looks in a
/// row have found none. A program that writes for an hour is therefore reported once.
const CALM_LOOKS: u32 = 20;

/// The most inotify events that one look takes. The kernel's queue has 16,384 by default, and
/// merges equal events.
const EVENTS_MAX: usize = 1 << 16;

/// A watch over a number of stores. Does not keep them open, and forgets those that were closed.
///
/// ```
/// use octavo_disk::{Store, Watch};
/// let store = Store::memory("scratch", 4096);
/// let mut watch = Watch::new();
/// watch.add(&store);
/// assert_eq!(watch.look(), []);
/// ```
pub struct Watch {
    /// By the numbers that `add` returned.
    stores: BTreeMap<usize, Watched>,
    next: usize,
    /// None if the kernel offers no inotify: then W5 is not applied.
    inotify: Option<OwnedFd>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("stores", &self.stores.len()).finish_non_exhaustive()
    }
}

struct Watched {
    store: WeakStore,
    /// The descriptor of the store's inotify watch.
    inotify_watch: Option<i32>,
    /// A closed store has left writable descriptors (W6), as of this look.
    is_marked: bool,
    /// The same, as of the look before.
    was_marked: bool,
    path: Path,
    length_matches: bool,
    /// The store's length at the last look that compared lengths.
    len_bytes: u64,
    is_read_only: bool,
    /// `ended`, as read before the last look's `stat` (W3).
    ended: u64,
    /// The modification time that the last look found.
    modified: Option<SystemTime>,
    /// The interval before the last look had no own I/O (W4).
    is_settled: bool,
    /// The looks left until a change of content is reported again.
    calm_looks_left: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Here,
    Missing,
    Elsewhere,
}

impl Watch {
    /// Creates a watch over no store.
    #[expect(clippy::new_without_default, reason = "it makes a system call")]
    pub fn new() -> Watch {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|error| {
                log::debug!(
                    "cannot start inotify ({error}): changes by other programs during the store's own \
                     writes go unnoticed"
                );
            })
            .ok();
        Watch { stores: BTreeMap::new(), next: 0, inotify }
    }

    /// Starts watching a store if it is a file or a device, and takes its present state as the
    /// baseline. Returns the number by which [`look`](Watch::look) refers to it.
    pub fn add(&mut self, store: &Store) -> usize {
        let number = self.next;
        self.next += 1;
        self.stores.insert(number, Watched::new(store, self.inotify.as_ref()));
        number
    }

    /// Returns whether all stores were closed.
    pub fn is_empty(&self) -> bool {
        self.stores.values().all(|watched| watched.store.peek().is_none())
    }

    /// Returns what other programs have changed since the last look, each change with the number of
    /// its store. [`Store::noticed`] returns the number of alarming changes and the latest change.
    /// Blocks as long as `stat` does.
    ///
    /// If the store was written through this handle since the look before the last one, a write of
    /// another program cannot be told from its own: it is noticed later, or when that program
    /// closes the file.
    pub fn look(&mut self) -> Vec<(usize, Change)> {
        // W6: before the closes are taken.
        self.stores.values_mut().for_each(Watched::ask_for_mark);
        let closed = self.inotify.as_ref().map_or_else(Vec::new, take_closes);
        let mut changes = Vec::new();
        self.forget_closed();
        for (number, watched) in &mut self.stores {
            let was_closed = watched.inotify_watch.is_some_and(|watch| closed.contains(&watch));
            let was_closed = was_closed && !watched.was_marked;
            let Some(store) = watched.store.peek() else { continue };
            for change in watched.look(&store, was_closed) {
                store.notice(&change);
                changes.push((*number, change));
            }
        }
        changes
    }

    /// Forgets the stores that were closed. Two stores of one file share its inotify watch, which
    /// ends with the last of them.
    fn forget_closed(&mut self) {
        let gone = self.stores.extract_if(.., |_, watched| watched.store.peek().is_none());
        let gone: Vec<i32> = gone.filter_map(|(_, watched)| watched.inotify_watch).collect();
        for watch in gone {
            let is_shared = self.stores.values().any(|watched| watched.inotify_watch == Some(watch));
            if let (Some(inotify), false) = (&self.inotify, is_shared) {
                // Fails if the file was deleted, which has ended the watch.
                let _ = inotify::remove_watch(inotify, watch);
            }
        }
    }
}

impl Watched {
    /// Takes the first look, which compares nothing.
    fn new(store: &Store, inotify: Option<&OwnedFd>) -> Watched {
        let mut watched = Watched {
            store: store.downgrade(),
            inotify_watch: None,
            is_marked: false,
            was_marked: false,
            path: Path::Here,
            length_matches: true,
            len_bytes: store.len_bytes(),
            is_read_only: false,
            ended: u64::MAX,
            modified: None,
            is_settled: false,
            calm_looks_left: 0,
        };
        let Kind::File(file) = store.kind() else { return watched };
        let descriptor = file.descriptor(Channel::Tail);
        let log = |error: &io::Error| log::debug!("{}: no inotify watch ({error})", store.name());
        watched.inotify_watch =
            inotify.and_then(|inotify| watch_closes(inotify, descriptor).inspect_err(log).ok());
        // W6: after the watch has begun.
        watched.is_marked = sys::is_marked(descriptor);
        (watched.ended, watched.is_settled) = (file.ended(), file.begun() == 0);
        watched.modified = descriptor.metadata().and_then(|found| found.modified()).ok();
        watched
    }

    /// W6. A mark that is gone does not return: nobody else opens the file for writing in order.
    fn ask_for_mark(&mut self) {
        self.was_marked = self.is_marked;
        if !self.is_marked {
            return;
        }
        let store = self.store.peek();
        self.is_marked = store.is_some_and(|store| match store.kind() {
            Kind::File(file) => sys::is_marked(file.descriptor(Channel::Tail)),
            _ => false,
        });
    }

    fn look(&mut self, store: &Store, was_closed: bool) -> Vec<Change> {
        let mut changes = Vec::new();
        let Kind::File(file) = store.kind() else { return changes };
        // W3: read before the `stat`.
        let ended = file.ended();
        // W2.
        let length = file.length.try_lock();
        let (path, here) = follow(file);
        // If the path does not lead to the file, its descriptor does.
        let Ok(found) = here.map_or_else(|| file.descriptor(Channel::Tail).metadata(), Ok) else {
            return changes;
        };
        let length = length.is_ok().then(|| (file.len_bytes(), file.found_len_bytes(&found).ok()));
        // A store that was closed in the meantime has other descriptors.
        if file.is_closed() {
            return changes;
        }
        // W3: read after the `stat`.
        let is_quiet = file.begun() == self.ended;

        // W1.
        if let Some(path) = path.filter(|path| *path != self.path) {
            self.path = path;
            changes.push(match path {
                Path::Here => Change::Restored,
                Path::Missing => Change::Missing,
                Path::Elsewhere => Change::Replaced,
            });
        }
        if let Some((expected_bytes, Some(found_bytes))) = length {
            let length_matches = expected_bytes == found_bytes;
            match (self.length_matches, length_matches) {
                (true, false) => changes.push(Change::Length { expected_bytes, found_bytes }),
                (false, true) if expected_bytes == self.len_bytes => changes.push(Change::LengthRestored),
                _ => {}
            }
            (self.length_matches, self.len_bytes) = (length_matches, expected_bytes);
        }
        let modified = found.modified().ok();
        let has_moved = file.is_device || modified != self.modified;
        let content = match (is_quiet && self.is_settled, has_moved) {
            (true, true) if !file.is_device => Some(Change::Written),
            (_, true) if was_closed => Some(if is_quiet { Change::Written } else { Change::Opened }),
            _ => None,
        };
        // A change of length also changes the content, and has been reported.
        let is_reported =
            self.calm_looks_left > 0 || changes.iter().any(|change| matches!(change, Change::Length { .. }));
        self.calm_looks_left =
            if content.is_some() { CALM_LOOKS } else { self.calm_looks_left.saturating_sub(1) };
        changes.extend(content.filter(|_| !is_reported));
        (self.ended, self.modified, self.is_settled) = (ended, modified, is_quiet);
        let is_read_only = file.was_set_read_only();
        if is_read_only != self.is_read_only {
            self.is_read_only = is_read_only;
            changes.push(if is_read_only { Change::ReadOnly } else { Change::Writable });
        }
        changes
    }
}

/// Returns where the path of a file leads (None if that or the path is unknown), and the metadata
/// if it leads to the file.
fn follow(file: &FileStore) -> (Option<Path>, Option<Metadata>) {
    let Some(path) = &file.path else { return (None, None) };
    match fs::metadata(path) {
        Ok(found) if FileStore::numbers_of(&found) == file.numbers => (Some(Path::Here), Some(found)),
        Ok(_) => (Some(Path::Elsewhere), None),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            (Some(Path::Missing), None)
        }
        Err(_) => (None, None),
    }
}

/// Starts an inotify watch for the closing of writable descriptors of this file or device (W5).
/// Returns the descriptor of the watch.
fn watch_closes(inotify: &OwnedFd, file: &File) -> io::Result<i32> {
    // By the descriptor, because the file's path may lead elsewhere by now.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(inotify::add_watch(inotify, path, WatchFlags::CLOSE_WRITE)?)
}

/// Returns the watches that have seen a close since the last call. Events that the kernel dropped
/// because its queue was full are missing.
fn take_closes(inotify: &OwnedFd) -> Vec<i32> {
    let mut memory = [MaybeUninit::uninit(); 1024];
    let mut reader = inotify::Reader::new(inotify, &mut memory);
    let mut closed = Vec::new();
    for _ in 0..EVENTS_MAX {
        let Ok(event) = reader.next() else { break };
        if event.events().contains(ReadFlags::CLOSE_WRITE) {
            closed.push(event.wd());
        }
    }
    closed
}
