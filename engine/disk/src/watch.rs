//! Notices what others do to the files and devices of stores: overwritten, cut, replaced, made
//! read-only. Protects nobody from it: a cache cannot know what its pages should hold then, only
//! people can. Not here: when to look, and whom to tell (the program's matter).
//!
//! Every look compares what can be asked cheaply (`stat`, two requests of a device). Five rules
//! keep a store's own writes from being taken for somebody else's:
//!
//! * W1. Which file the path leads to, and whether it leads anywhere, never changes by I/O: any
//!   change is somebody else's.
//! * W2. The length changes by [`Store::set_len_bytes`] alone, which holds `FileStore::length`. A
//!   look that finds it held compares no length; any other difference is somebody else's.
//! * W3. The time of modification counts only between two looks without own I/O: `ended` as read
//!   before the first `stat` equals `begun` as read after the second. Then no write, zeroing,
//!   discard or sync of this store was in flight at any moment between the two. Reads and the
//!   backups of others change the time of access alone; chmod, chown and links change the inode's
//!   time alone; neither is compared.
//! * W4. The interval before the first of the two had no own I/O either, so that a time that a
//!   network file system tells late, or a coarse clock, is no false alarm.
//! * W5. While the store is being written, W3 tells nothing. There inotify does: a descriptor for
//!   writing that is closed (`IN_CLOSE_WRITE`) is another's, because the store keeps its own open.
//!   It counts if the time of modification moved since the look before; for a device, whose node
//!   keeps its time, it counts always.
//!
//! What is missed: a writer on another machine, or one that keeps the file open, while the store
//! itself is being written.

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::time::SystemTime;

use crate::file::FileStore;
use crate::io::Channel;
use crate::store::{Kind, Store};
use crate::sys::Inotify;

/// Looks without a change before the next change is reported again, so that a program that writes
/// for an hour is reported once.
const CALM_LOOKS: u32 = 20;

/// What others did to the file or device of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The path leads nowhere any more.
    Missing,
    /// The path leads to another file or device.
    Replaced,
    /// The path leads to the store again.
    Restored,
    /// The length is not the store's any more.
    Length {
        /// The length that the store keeps using.
        expected_bytes: u64,
        /// The length that was found.
        found_bytes: u64,
    },
    /// The length is the store's again. What lay past a shorter end is lost all the same.
    LengthRestored,
    /// Somebody else wrote.
    Written,
    /// Somebody else had it open for writing, while the store was being written too.
    Opened,
    /// The device was set read-only.
    ReadOnly,
    /// The device can be written again.
    Writable,
}

impl Change {
    /// Whether people have to do something; else an earlier change was undone.
    pub fn is_alarming(&self) -> bool {
        !matches!(self, Change::Restored | Change::Writable)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Missing => {
                "its path leads nowhere any more (moved, removed or unmounted); the file that was opened is still used"
            }
            Change::Replaced => {
                "its path leads to another file now; the one that was opened is still used, and the new one is not"
            }
            Change::Restored => "its path leads to it again",
            Change::Length { expected_bytes, found_bytes } => {
                return write!(
                    f,
                    "another program changed its length to {found_bytes} bytes; it is used as {expected_bytes} bytes"
                );
            }
            Change::LengthRestored => "its length is what it was; what lay past a shorter end is lost",
            Change::Written => "another program wrote to it; pages in the cache are as they were before",
            Change::Opened => {
                "another program had it open for writing; pages in the cache are as they were before"
            }
            Change::ReadOnly => "the device was set read-only, and refuses what is written back",
            Change::Writable => "the device can be written again",
        })
    }
}

/// What was noticed of a store since it was first watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noticed {
    /// Alarming changes.
    pub count: u64,
    /// The last change of any kind.
    pub last: Option<Change>,
}

/// Looks after a number of stores. Holds them open.
pub struct Watch {
    stores: Vec<Watched>,
    /// None where the kernel gives no inotify: then W5 is not done.
    inotify: Option<Inotify>,
}

struct Watched {
    store: Store,
    /// The number of its inotify watch.
    number: Option<i32>,
    path: Path,
    has_length: bool,
    is_read_only: bool,
    /// The last look's: `ended` before its `stat`, what that told, and whether its interval had no
    /// own I/O (W4).
    ended: u64,
    modified: Option<SystemTime>,
    is_settled: bool,
    /// Looks left until a change of content is reported again.
    told_looks: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Here,
    Missing,
    Elsewhere,
}

impl Watch {
    /// Begins to watch those of the stores that are files or devices, as they are now.
    pub fn new(stores: impl IntoIterator<Item = Store>) -> Watch {
        let inotify = Inotify::new().map_err(|error| log::debug!("inotify: {error}")).ok();
        let watched = stores.into_iter().map(|store| {
            let number = match (store.kind(), &inotify) {
                (Kind::File(file), Some(inotify)) => inotify
                    .watch_closed_for_writing(file.descriptor(Channel::Tail))
                    .map_err(|error| log::debug!("{}: inotify: {error}", store.name()))
                    .ok(),
                _ => None,
            };
            Watched {
                store,
                number,
                path: Path::Here,
                has_length: true,
                is_read_only: false,
                ended: u64::MAX,
                modified: None,
                is_settled: false,
                told_looks: 0,
            }
        });
        let mut watch = Watch { stores: watched.collect(), inotify };
        for watched in &mut watch.stores {
            watched.begin();
        }
        watch
    }

    /// Looks at every store. Returns what has changed since the last look, with the number of the
    /// store in the order of `new`; [`Store::noticed`] keeps it. Blocks as long as `stat` does.
    pub fn look(&mut self) -> Vec<(usize, Change)> {
        let closed = self.inotify.as_ref().map_or_else(Vec::new, Inotify::take);
        let mut changes = Vec::new();
        for (number, watched) in self.stores.iter_mut().enumerate() {
            let was_closed = watched.number.is_some_and(|number| closed.contains(&number));
            for change in watched.look(was_closed) {
                watched.store.notice(&change);
                changes.push((number, change));
            }
        }
        changes
    }
}

impl Watched {
    /// The first look: nothing is compared but what the store itself knows.
    fn begin(&mut self) {
        let Kind::File(file) = self.store.kind() else { return };
        (self.ended, self.is_settled) = (file.ended(), file.begun() == 0);
        self.modified = file.descriptor(Channel::Tail).metadata().and_then(|found| found.modified()).ok();
    }

    fn look(&mut self, was_closed: bool) -> Vec<Change> {
        let mut changes = Vec::new();
        let Kind::File(file) = self.store.kind() else { return changes };
        // W3: before the `stat`.
        let ended = file.ended();
        // W2.
        let length = file.length.try_lock();
        let (path, here) = lead(file);
        // A file that its path does not lead to is asked by its descriptor.
        let Ok(found) = here.map_or_else(|| file.descriptor(Channel::Tail).metadata(), Ok) else {
            return changes;
        };
        let length = length.is_ok().then(|| (file.len_bytes(), file.found_len_bytes(&found)));
        // W3: after it.
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
            let has_length = expected_bytes == found_bytes;
            match (self.has_length, has_length) {
                (true, false) => changes.push(Change::Length { expected_bytes, found_bytes }),
                (false, true) => changes.push(Change::LengthRestored),
                _ => {}
            }
            self.has_length = has_length;
        }
        let modified = found.modified().ok();
        let has_moved = file.is_device() || modified != self.modified;
        let content = match (is_quiet && self.is_settled, has_moved) {
            (true, true) if !file.is_device() => Some(Change::Written),
            (_, true) if was_closed => Some(if is_quiet { Change::Written } else { Change::Opened }),
            _ => None,
        };
        // A change of length is one of content too, and was told.
        let is_told =
            self.told_looks > 0 || changes.iter().any(|change| matches!(change, Change::Length { .. }));
        self.told_looks = if content.is_some() { CALM_LOOKS } else { self.told_looks.saturating_sub(1) };
        changes.extend(content.filter(|_| !is_told));
        (self.ended, self.modified, self.is_settled) = (ended, modified, is_quiet);
        let is_read_only = file.was_set_read_only();
        if is_read_only != self.is_read_only {
            self.is_read_only = is_read_only;
            changes.push(if is_read_only { Change::ReadOnly } else { Change::Writable });
        }
        changes
    }
}

/// Where the path of a file leads (None: that cannot be told now), and what `stat` says if it leads
/// to the file.
fn lead(file: &FileStore) -> (Option<Path>, Option<Metadata>) {
    match fs::metadata(file.path()) {
        Ok(found) if FileStore::identity_of(&found) == file.identity() => (Some(Path::Here), Some(found)),
        Ok(_) => (Some(Path::Elsewhere), None),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            (Some(Path::Missing), None)
        }
        Err(_) => (None, None),
    }
}
