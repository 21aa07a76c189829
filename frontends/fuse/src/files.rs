//! [`Files`]: the regular files whose pages are cached, each with its object. A file keeps its
//! object, and so its pages, after its last close, until other files need its descriptors.
//!
//! Rules:
//! - **F1** A length changes under `File::length` (`file.rs`). An extending write raises
//!   `File::visible` when it has ended. Reads end there, so no reader sees zeros where the engine
//!   lengthens a direct store before it writes.
//! - **F2** A file is idle while it has no handles. Idle files are closed, the longest idle first:
//!   when there are more files than `files_max` or than memory has room for (F8), when an open
//!   needs their descriptors (D4, `budget.rs`), and after `idle_max`.
//! - **F3** When a file is opened or its attributes are asked for, its stamp is compared, unless no
//!   other program may change it: if another program has changed the file since the last look, its
//!   clean pages are dropped. The mount counts its own changes when they begin and when they end,
//!   and the cache counts its write-backs. If either count has moved since the last look, or a
//!   change is under way, a look cannot tell whose change it sees, and takes it for the mount's.
//! - **F4** Files that are likely to grow (new, empty or cut to nothing, or opened to append) have
//!   buffered stores: a direct store syncs its last bytes whenever its length changes. An object
//!   may be replaced by another while requests to it are in flight. These fail with `Closed`, and
//!   are repeated.
//! - **F5** A write-through file is closed without a sync, as a program's `close` is. A file that
//!   has lost its last name loses its pages, dirty ones too.
//! - **F6** A write-back changes the times of the lower file. Before attributes are shown, dirty
//!   pages are therefore written: times do not change later without a change by a program.
//! - **F7** A file without handles that the lower file system refuses to take stays open with its
//!   unwritten bytes, and so does one whose error no program has got (E1 to E3, `told.rs`). Such
//!   files do not count against `files_max`. When there are `unwritten_max` of them, a write that
//!   would make a further file dirty first has one of them written, or fails with its error.
//! - **F8** The memory of the table is charged to the cache's buffers. The files of a mount may
//!   take half of these, which its users share as they share descriptors (D5). If others have taken
//!   the buffers, idle files are closed; files that programs have open then go without a charge.

mod opener;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use octavo::{Cache, CacheMode, Charge, Object};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::process::RawUid;

use self::opener::{Made, Opener};
use crate::budget::{Budget, Kind, Shared};
use crate::errors::errno_of;
use crate::file::{Access, File};
use crate::labels::Chooser;
use crate::leases::Leases;
use crate::lock::lock;
use crate::lower::{self, Key};
use crate::nodes::Node;
use crate::options::MountOptions;
use crate::space::Promise;

#[derive(Default)]
struct Table {
    files: HashMap<Key, Arc<Entry>>,
    /// F2: idle files, in the order in which they became idle.
    idle: BTreeMap<u64, (Instant, Arc<Entry>)>,
    /// F7: the one that was tried last comes last.
    unwritten: BTreeMap<u64, Arc<Entry>>,
    next: u64,
    /// F8: the memory of all files.
    bytes: u64,
}

impl Table {
    fn remove(&mut self, key: Key) {
        if let Some(entry) = self.files.remove(&key) {
            self.bytes -= entry.bytes();
        }
    }
}

/// A file in the table. Lock order: its state, then the table.
struct Entry {
    file: Arc<File>,
    /// Its path below the source when it was opened, byte for byte.
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handles: usize,
    /// Its place among the idle files, or among those of F7.
    idle: Option<u64>,
    unwritten: Option<u64>,
    /// It has left the table, or is about to.
    is_closed: bool,
}

/// The memory of a file with its object and its store, in bytes, about, without its path.
const FILE_BYTES: u64 = 2048;

/// What the failure of a sync means.
pub const UNSYNCED: &str = "what was written without a sync may not be durable";

/// The memory of files is charged in steps of this many bytes.
const STEP_BYTES: u64 = 64 << 10;

/// How often room for a charge is made by closing idle files.
const CHARGE_ROUNDS: usize = 4;

/// The least number of files that a mount may keep (F8).
const KEPT_LEAST: usize = 64;

impl Entry {
    /// The path is in the names of the object and of the store, too.
    fn bytes(&self) -> u64 {
        FILE_BYTES + 3 * self.path.as_os_str().len() as u64
    }
}

/// The most files whose bytes are counted for `df` (S6).
const UNRESERVED_MAX: usize = 64;

/// All files of a mount whose pages are cached.
pub struct Files {
    table: Mutex<Table>,
    files_max: usize,
    idle_max: Duration,
    /// The process's descriptors.
    budget: Arc<Budget>,
    /// F8: the files of this mount, and their memory.
    kept: Arc<Budget>,
    charge: Mutex<Charge>,
    /// F7, and how many there are now.
    unwritten_max: usize,
    unwritten_count: AtomicUsize,
    opener: Opener,
    /// No other program changes files.
    is_exclusive: bool,
    /// Pages are kept under leases.
    leases: Option<Arc<Leases>>,
}

impl Files {
    /// # Errors
    /// ENOMEM, EMFILE and the like.
    pub fn new(
        root: (OwnedFd, PathBuf),
        options: &MountOptions,
        chooser: Arc<Chooser>,
        (cache, budget): (&Cache, Arc<Budget>),
    ) -> Result<Files, Errno> {
        let &MountOptions { files_max, idle_max, unwritten_max, .. } = options;
        let kept_max = (cache.stat().buffers_max_bytes / 2 / FILE_BYTES) as usize;
        let kept_max = kept_max.max(KEPT_LEAST);
        let charge = cache.charge(0, "the table of kept files").map_err(|error| errno_of(&error))?;
        let is_exclusive = options.is_exclusive();
        let leases = options.has_leases().then(Leases::new).transpose()?;
        Ok(Files {
            table: Mutex::default(),
            files_max,
            idle_max,
            budget,
            kept: Budget::new(kept_max),
            charge: Mutex::new(charge),
            unwritten_max: unwritten_max.min(kept_max / 4),
            unwritten_count: AtomicUsize::new(0),
            opener: Opener::new(root, options, chooser)?,
            is_exclusive,
            leases,
        })
    }

    /// The leases, if the mount takes them.
    pub fn leases(&self) -> Option<&Arc<Leases>> {
        self.leases.as_ref()
    }

    /// Opens a file for a handle.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn open(&self, node: &Node, access: Access) -> Result<Arc<File>, Errno> {
        self.open_as(node, access, None)
    }

    /// Opens a file that was just made: its descriptor may write it, whatever its mode says.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_created(&self, node: &Node, access: Access, created: OwnedFd) -> Result<Arc<File>, Errno> {
        self.open_as(node, Access::writes(access.user), Some(created))
    }

    fn open_as(&self, node: &Node, access: Access, mut created: Option<OwnedFd>) -> Result<Arc<File>, Errno> {
        loop {
            let entry = lock(&self.table).files.get(&node.key).cloned();
            let (entry, is_new) = match entry {
                Some(entry) => (entry, false),
                None => self.add(node, access, created.take())?,
            };
            let mut state = lock(&entry.state);
            // Its last bytes are written before it leaves the table, so the next look finds them.
            if state.is_closed {
                continue;
            }
            if !is_new && !self.is_exclusive {
                entry.file.look(node)?;
            }
            self.make_writable(&entry.file, node, access)?;
            entry.file.shared.open(access.user)?;
            state.handles += 1;
            self.take_out(&mut state);
            return Ok(entry.file.clone());
        }
    }

    /// Adds a file without handles, which is not idle. Returns the file that is in the table then,
    /// and whether it is new.
    fn add(
        &self,
        node: &Node,
        access: Access,
        created: Option<OwnedFd>,
    ) -> Result<(Arc<Entry>, bool), Errno> {
        // D2.
        let descriptors = if self.leases.is_some() { 3 } else { 2 };
        let descriptors = self.budget.take(access.user, descriptors, Kind::File)?;
        let kept = self.kept.take(access.user, 1, Kind::File)?;
        let shared = Shared::new([descriptors, kept]);
        let Made { object, path, stamp, terms } = self.opener.open(node, access, created)?;
        let lease = self.leases.as_ref().map(|leases| leases.of(node));
        let file = Arc::new(File::new(node.key, object, stamp, lease, (terms, shared)));
        let entry = Arc::new(Entry { file, path, state: Mutex::default() });
        let mut table = lock(&self.table);
        if let Some(other) = table.files.get(&node.key).cloned() {
            // Another thread was faster. This object has read nothing.
            drop(table);
            entry.file.object().abandon();
            return Ok((other, false));
        }
        table.files.insert(node.key, entry.clone());
        table.bytes += entry.bytes();
        drop(table);
        self.charge();
        self.close_surplus();
        Ok((entry, true))
    }

    /// F2.
    fn close_surplus(&self) {
        loop {
            let mut table = lock(&self.table);
            if table.files.len() - table.unwritten.len() <= self.files_max {
                return;
            }
            let Some((_, (_, entry))) = table.idle.pop_first() else { return };
            drop(table);
            self.close_idle(&entry, false);
        }
    }

    /// Closes the file that has been idle for longest. Returns whether there was one.
    pub fn close_first_idle(&self) -> bool {
        let first = lock(&self.table).idle.pop_first();
        first.map(|(_, (_, entry))| self.close_idle(&entry, false)).is_some()
    }

    /// Closes the files that have been idle for long (F2).
    pub fn close_old(&self) {
        loop {
            let mut table = lock(&self.table);
            let is_old = |since: &Instant| since.elapsed() >= self.idle_max;
            let first = table.idle.first_entry().filter(|first| is_old(&first.get().0));
            let Some((_, entry)) = first.map(|first| first.remove()) else { break };
            drop(table);
            self.close_idle(&entry, false);
        }
        let mut table = lock(&self.table);
        if table.files.capacity() > 4 * table.files.len().max(KEPT_LEAST) {
            table.files.shrink_to_fit();
        }
    }

    /// Charges the memory of the table (F8).
    fn charge(&self) {
        // Otherwise another thread does it, or this one in `close_first_idle`.
        let Ok(mut charge) = self.charge.try_lock() else { return };
        for _ in 0..CHARGE_ROUNDS {
            let bytes = lock(&self.table).bytes.next_multiple_of(STEP_BYTES);
            let is_right = (bytes..=bytes + STEP_BYTES).contains(&charge.bytes());
            if is_right || charge.resize(bytes).is_ok() {
                return;
            }
            for _ in 0..STEP_BYTES / FILE_BYTES {
                if !self.close_first_idle() {
                    return;
                }
            }
        }
    }

    /// The descriptors of the process.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The files that the mount may keep.
    pub fn kept(&self) -> &Arc<Budget> {
        &self.kept
    }

    /// Takes a file from its place among those without handles.
    fn take_out(&self, state: &mut State) {
        if state.idle.is_none() && state.unwritten.is_none() {
            return;
        }
        let mut table = lock(&self.table);
        state.idle.take().map(|place| table.idle.remove(&place));
        state.unwritten.take().map(|place| table.unwritten.remove(&place));
        self.unwritten_count.store(table.unwritten.len(), Relaxed);
    }

    /// Puts a file without handles to the others: last among the idle ones, or those of F7.
    fn put_in(&self, entry: &Arc<Entry>, state: &mut State, is_unwritten: bool) {
        self.take_out(state);
        let mut table = lock(&self.table);
        table.next += 1;
        let place = table.next;
        if is_unwritten {
            state.unwritten = Some(place);
            table.unwritten.insert(place, entry.clone());
        } else {
            state.idle = Some(place);
            table.idle.insert(place, (Instant::now(), entry.clone()));
        }
        self.unwritten_count.store(table.unwritten.len(), Relaxed);
    }

    /// Looks at the first file of F7: it becomes idle if its bytes were written in the meantime.
    fn review(&self) {
        let first = lock(&self.table).unwritten.first_key_value().map(|(_, entry)| entry.clone());
        let Some(entry) = first else { return };
        let mut state = lock(&entry.state);
        if state.unwritten.is_some() {
            self.put_in(&entry, &mut state, entry.file.is_failing());
        }
    }

    /// Whether writes to further files must be admitted (F7).
    pub fn is_crowded(&self) -> bool {
        // Relaxed, here and elsewhere: the limit may be passed by a few.
        self.unwritten_count.load(Relaxed) >= self.unwritten_max
    }

    /// Lets a write to a file begin (F7).
    ///
    /// # Errors
    /// That of a file which could not be written, when there are too many of these.
    pub fn admit(&self, file: &File) -> Result<(), Errno> {
        while self.is_crowded() && file.is_settled() {
            let first = lock(&self.table).unwritten.first_key_value().map(|(_, entry)| entry.clone());
            let Some(entry) = first else { break };
            let cleaned = entry.file.object().clean();
            self.review();
            cleaned.map_err(|error| errno_of(&error))?;
        }
        Ok(())
    }

    /// The files that could not be written yet, and their unwritten bytes. Does not wait for a file
    /// whose object is being replaced.
    pub fn unwritten(&self) -> (usize, u64) {
        let entries: Vec<_> = lock(&self.table).files.values().cloned().collect();
        let objects = entries.iter().filter_map(|entry| entry.file.object_at_once());
        let failing = objects.filter(|object| object.faults().is_failing);
        let failing: Vec<Object> = failing.map(|object| object.clone()).collect();
        let dirty_bytes = Object::stats_of(&failing).iter().map(|stat| stat.dirty_bytes).sum();
        (failing.len(), dirty_bytes)
    }

    /// Bytes of files that the lower file system has neither got nor reserved space for (S6), of
    /// the first files at least.
    pub fn unreserved_bytes(&self) -> u64 {
        let is_unreserved = |file: &File| {
            matches!(file.space.promise(), Promise::AtClose | Promise::AtSync) && !file.is_settled()
        };
        let entries: Vec<_> = {
            let table = lock(&self.table);
            let unreserved = table.files.values().filter(|entry| is_unreserved(&entry.file));
            unreserved.take(UNRESERVED_MAX).cloned().collect()
        };
        dirty_bytes(entries)
    }

    /// Closes a file if it has no handles (F5).
    fn close_idle(&self, entry: &Arc<Entry>, is_removed: bool) {
        let mut state = lock(&entry.state);
        if state.handles > 0 || state.is_closed {
            return;
        }
        let is_written_back = entry.file.object().cache_mode() == CacheMode::Writeback;
        if is_removed || !is_written_back {
            entry.file.object().abandon();
        } else if let Err(error) = entry.file.write_out() {
            log::warn!("{error}: its unwritten bytes stay in the cache, and are tried again");
            return self.put_in(entry, &mut state, true);
        }
        state.is_closed = true;
        self.take_out(&mut state);
        lock(&self.table).remove(entry.file.key);
        self.charge();
    }

    /// Replaces an object that can only be read.
    fn make_writable(&self, file: &File, node: &Node, access: Access) -> Result<(), Errno> {
        if !access.writes || !file.object().read_only() {
            return Ok(());
        }
        let _length = file.hold_length();
        let made = self.opener.open(node, access, None)?;
        let mut held = file.object_to_replace();
        // It has no dirty pages.
        held.abandon();
        file.replace(&mut held, made.object);
        file.space.terms_are(made.terms);
        Ok(())
    }

    /// Cuts a file to nothing. Its store is buffered from then on (F4).
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn empty(&self, file: &File, node: &Node, user: RawUid) -> Result<(), Errno> {
        if !file.object().store().is_direct() {
            return file.set_len_bytes(0);
        }
        if !file.is_settled() {
            // If the lower file system refuses, unwritten bytes must stay.
            file.set_len_bytes(0)?;
        }
        let _length = file.hold_length();
        let lower = lower::open_again(node.place.at()?, OFlags::RDWR)?;
        file.hide_all();
        let mut held = file.object_to_replace();
        // First, so that no write-back of a dirty page lengthens the file again.
        held.abandon();
        rustix::fs::ftruncate(&lower, 0)?;
        let made = self.opener.open(node, Access::writes(user), Some(lower))?;
        file.replace(&mut held, made.object);
        Ok(())
    }

    /// Returns a file that is cached, whether it has handles or not.
    pub fn find(&self, key: Key) -> Option<Arc<File>> {
        lock(&self.table).files.get(&key).map(|entry| entry.file.clone())
    }

    /// Returns the file of a node, if it is cached.
    pub fn find_regular(&self, node: &Node) -> Option<Arc<File>> {
        (node.kind == FileType::RegularFile).then(|| self.find(node.key))?
    }

    /// Gives a handle of a file back.
    pub fn close(&self, node: &Node) {
        let Some(entry) = lock(&self.table).files.get(&node.key).cloned() else { return };
        let mut state = lock(&entry.state);
        state.handles -= 1;
        if state.handles > 0 {
            return;
        }
        // The mount's own changes are in the stamp then, and the next change is another's.
        let stat = if self.is_exclusive { node.stat() } else { entry.file.look(node) };
        let is_removed = stat.is_ok_and(|stat| stat.stx_nlink == 0);
        if !is_removed {
            self.put_in(&entry, &mut state, entry.file.is_failing());
        }
        drop(state);
        if is_removed {
            self.close_idle(&entry, true);
        }
        self.review();
        self.close_surplus();
    }

    /// Closes a file without handles: its last name was removed.
    pub fn drop_idle(&self, key: Key) {
        let entry = lock(&self.table).files.get(&key).cloned();
        if let Some(entry) = entry {
            self.close_idle(&entry, true);
        }
    }

    /// Writes everything to the lower file system, and closes all files. Returns the errors of
    /// those that could not be written.
    pub fn close_everything(&self) -> Vec<String> {
        let entries: Vec<_> = {
            let mut table = lock(&self.table);
            table.idle.clear();
            table.unwritten.clear();
            table.bytes = 0;
            table.files.drain().map(|(_, entry)| entry).collect()
        };
        let mut failed = Vec::new();
        for entry in entries {
            entry.file.free_surplus();
            let object = entry.file.object();
            let closed = match object.cache_mode() {
                CacheMode::Writeback => object.close(),
                // The sync of the whole file system follows.
                CacheMode::Writethrough => Ok(()),
            };
            let lost = object.abandon();
            if let Err(error) = closed {
                failed.push(match lost {
                    0 => format!("{error}: {UNSYNCED}"),
                    lost => format!("{error}: {lost} bytes lost"),
                });
            }
        }
        failed
    }

    /// Gives back the reserved space of all files (S4).
    pub fn free_reserved(&self) {
        let entries: Vec<_> = lock(&self.table).files.values().cloned().collect();
        entries.iter().for_each(|entry| _ = entry.file.free_surplus());
    }

    /// The objects of all files, and their paths below the source when they were opened.
    pub fn objects(&self) -> Vec<(PathBuf, Object)> {
        let entries: Vec<_> = lock(&self.table).files.values().cloned().collect();
        entries.iter().map(|entry| (entry.path.clone(), entry.file.object().clone())).collect()
    }

    /// The number of files whose pages are cached.
    pub fn count(&self) -> usize {
        lock(&self.table).files.len()
    }
}

/// The dirty bytes of files.
fn dirty_bytes(entries: Vec<Arc<Entry>>) -> u64 {
    let objects: Vec<Object> = entries.iter().map(|entry| entry.file.object().clone()).collect();
    Object::stats_of(&objects).iter().map(|stat| stat.dirty_bytes).sum()
}
