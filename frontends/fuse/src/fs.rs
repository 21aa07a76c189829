//! [`Fs`]: a mount's nodes, files and handles, and what all its threads share. Not here: what each
//! request does (`operations/`).

use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use octavo::Cache;
use rustix::fs::{FileType, OFlags, Statx};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::budget::Budget;
use crate::calls::Calls;
use crate::crossings::Crossings;
use crate::device::Device;
use crate::files::Files;
use crate::handles::Handles;
use crate::labels::Chooser;
use crate::lower::{self, Key};
use crate::nodes::{Node, Nodes};
use crate::numbers::Numbers;
use crate::options::MountOptions;
use crate::place::handle_of;
use crate::running::Running;
use crate::stores::{self, Seats};
use crate::wire::{
    Attr, AttrOut, EntryOut, InHeader, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, NotifyInvalInodeOut, NotifyPruneOut,
    Opcode, ROOT, Reader,
};

/// What all threads of a mount share.
pub struct Fs {
    pub nodes: Nodes,
    pub files: Files,
    pub handles: Handles,
    pub options: MountOptions,
    pub calls: Calls,
    pub crossings: Crossings,
    /// The file system of the root.
    pub device: stores::Device,
    pub seats: Seats,
    pub running: Arc<Running>,
    pub is_stopping: AtomicBool,
    /// The process's descriptors.
    pub budget: Arc<Budget>,
    numbers: Numbers,
}

/// What a mount shows.
pub struct Shown {
    /// The directory that is its root, of the source's file system or of one below it.
    pub root: OwnedFd,
    /// The source.
    pub source: OwnedFd,
    /// The source's path.
    pub path: PathBuf,
}

impl Fs {
    /// Begins with the root directory.
    ///
    /// # Errors
    /// Those of `stat`, and ENOMEM.
    pub fn new(
        cache: &Cache,
        Shown { root, source, path }: Shown,
        options: MountOptions,
        chooser: Arc<Chooser>,
        budget: &Arc<Budget>,
    ) -> Result<Fs, Errno> {
        let stat = lower::stat(&root)?;
        let most = (options.nodes_max, options.places_max);
        Ok(Fs {
            nodes: Nodes::new(root, &stat, cache, most, budget.clone())?,
            files: Files::new((source, path), &options, chooser, (cache, budget.clone()))?,
            handles: Handles::default(),
            calls: Calls::default(),
            crossings: Crossings::default(),
            device: Key::of(&stat).device(),
            seats: Seats::new(options.threads.max(1)),
            running: Arc::default(),
            options,
            is_stopping: AtomicBool::new(false),
            budget: budget.clone(),
            numbers: Numbers::new(Key::of(&stat).device()),
        })
    }

    /// Has budgets take back what nobody pays for (D4).
    pub fn keep_for_others(self: &Arc<Self>) {
        let fs = Arc::downgrade(self);
        self.budget.add_keeper(move || {
            let fs = fs.upgrade()?;
            Some(fs.files.close_first_idle() || fs.nodes.give_back_place())
        });
        let fs = Arc::downgrade(self);
        self.files.kept().add_keeper(move || Some(fs.upgrade()?.files.close_first_idle()));
    }

    /// Asks the kernel to forget nodes if it knows too many. Kernels before Linux 6.18 forget only
    /// when they are short of memory.
    pub fn prune(&self, device: &Device) {
        let surplus = self.nodes.surplus();
        if surplus.is_empty() {
            return;
        }
        let head = NotifyPruneOut { count: surplus.len() as u32, padding: 0, spare: 0 };
        if let Err(errno) = device.notify(NOTIFY_PRUNE, &[head.as_bytes(), surplus.as_bytes()]) {
            log::warn!(
                "the kernel cannot be asked to forget files ({errno}): those that it knows take memory beyond \
                 memory_max"
            );
            self.nodes.cannot_shrink();
        }
    }

    /// Has the kernel ask for the attributes of a node again. It waits for nothing meanwhile, in
    /// contrast to when it drops pages.
    pub fn outdate_attributes(&self, node: &Node, device: &Device) {
        let attributes = NotifyInvalInodeOut { ino: node.id, off: -1, len: 0 };
        match device.notify(NOTIFY_INVAL_INODE, &[attributes.as_bytes()]) {
            // The kernel has forgotten the node, or the mount has ended.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(errno) => log::warn!("the kernel keeps old attributes of a file: {errno}"),
        }
    }

    /// Makes all that was written to the lower file system durable, and to others below it of which
    /// the kernel knows a file.
    ///
    /// # Errors
    /// Those of the lower file systems.
    pub fn sync_lower(&self) -> Result<(), Errno> {
        let sync = |node: &Node, flags| rustix::fs::syncfs(lower::open_again(node.place.at()?, flags)?);
        let root = self.nodes.get(ROOT)?;
        let synced = sync(&root, OFlags::RDONLY | OFlags::DIRECTORY);
        let others = self.nodes.of_other_devices(&root);
        others.iter().map(|node| sync(node, OFlags::RDONLY)).fold(synced, Result::and)
    }

    /// The inode number to show for a file of these attributes.
    pub fn number(&self, stat: &Statx) -> u64 {
        self.numbers.shown(Key::of(stat).device(), stat.stx_ino)
    }

    /// The inode number to show for an entry of a directory.
    pub fn number_in(&self, directory: &Node, inode: u64) -> u64 {
        self.numbers.shown(directory.key.device(), inode)
    }

    /// Looks up an entry of a directory, and counts the lookup.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn look_up(&self, parent: &Node, name: &OsStr) -> Result<(Arc<Node>, Statx), Errno> {
        let directory = parent.place.at()?;
        let mut stat = lower::stat_at(&directory, name)?;
        self.crossings.note((parent.id, parent.key.device()), name, Key::of(&stat).device());
        if self.files.find(Key::of(&stat)).is_some_and(|file| file.settle() != Ok(false)) {
            stat = lower::stat_at(&directory, name)?;
        }
        let handle = || handle_of(&directory, &CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?);
        if let Some(node) = self.nodes.enter_known(&stat, handle) {
            return Ok((node, stat));
        }
        self.enter(lower::open_node(&directory, name)?)
    }

    /// Counts a lookup of an open file, and makes its node if it has none.
    ///
    /// # Errors
    /// Those of `stat`.
    pub fn enter(&self, file: OwnedFd) -> Result<(Arc<Node>, Statx), Errno> {
        // Of the descriptor: the name may lead elsewhere by now.
        let stat = lower::stat(&file)?;
        Ok((self.nodes.enter(&stat, file)?, stat))
    }

    /// The file system that the call of a request asks (B6).
    pub fn store_of(&self, head: &InHeader, request: &[u8]) -> stores::Device {
        if Opcode::of(head.opcode) == Some(Opcode::Lookup) {
            let mut body = Reader::new(request);
            let name = body.take::<InHeader>().and_then(|_| body.name());
            if let Some(device) = name.ok().and_then(|name| self.crossings.find(head.nodeid, name)) {
                return device;
            }
        }
        self.nodes.get(head.nodeid).map_or(self.device, |node| node.key.device())
    }

    /// Returns the attributes of a node, with the length that its readers see.
    pub fn attributes(&self, node: &Node, stat: &Statx) -> Attr {
        let mut attributes = lower::attributes(stat, self.number(stat));
        if let Some(file) = self.files.find_regular(node) {
            attributes.size = file.len_to_show(attributes.size);
        }
        attributes
    }

    /// Makes the reply to a request that looks a node up.
    pub fn entry(&self, node: &Node, stat: &Statx) -> EntryOut {
        let (seconds, nanoseconds) = self.valid();
        let (attr_valid, attr_valid_nsec) = self.attributes_valid(node);
        EntryOut {
            nodeid: node.id,
            generation: 0,
            entry_valid: seconds,
            attr_valid,
            entry_valid_nsec: nanoseconds,
            attr_valid_nsec,
            attr: self.attributes(node, stat),
        }
    }

    /// Makes the reply to a request for attributes.
    pub fn attributes_out(&self, node: &Node, stat: &Statx) -> AttrOut {
        let (attr_valid, attr_valid_nsec) = self.attributes_valid(node);
        AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: self.attributes(node, stat) }
    }

    /// For how long the kernel may keep the attributes of a node, as [`Self::valid`]. Where pages
    /// are kept under leases, not without a lease: the length changes at any time.
    pub fn attributes_valid(&self, node: &Node) -> (u64, u32) {
        let is_covered = || self.files.find_regular(node)?.lease().map(|lease| lease.covers(node));
        let may_change = self.options.has_leases() && node.kind == FileType::RegularFile;
        if may_change && !is_covered().unwrap_or(false) { (0, 0) } else { self.valid() }
    }

    /// For how long the kernel may keep names and attributes, in seconds and nanoseconds.
    pub fn valid(&self) -> (u64, u32) {
        let valid = self.options.valid_for();
        (valid.as_secs(), valid.subsec_nanos())
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        self.files.leases().iter().for_each(|leases| leases.end());
    }
}
