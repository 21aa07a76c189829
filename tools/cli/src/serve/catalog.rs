//! [`Catalog`]: the partitions and exports that the server has now. Only it adds and removes them,
//! at the start, for `octavo ctl` and in a reload.
//!
//! - One lock guards the lists. A change that holds it for long makes others fail after
//!   [`LOCK_PATIENCE`] instead of hanging.
//! - The start is a reload of a server that has nothing (`reload.rs`).
//! - An export leaves in four steps: (1) no client finds it any more, and none uses it
//!   ([`octavo_block::Server::retire`]); (2) its dirty pages are written and synced; (3) its object
//!   is closed; (4) its store is closed and unlocked. Up to the third step, a failure offers the
//!   export again. Steps 1 and 2 of `octavo ctl export remove` run without the lock: the export
//!   is still listed, so nothing else can take its name, its path or its partition.
//!
//! Statistics, metrics and the control file system ask the cache and the NBD server, which follow
//! at once.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use octavo::{Cache, CacheMode, Object, Partition};
use octavo_block::{Export, Retired, Server, VhostSettings};
use toml::Spanned;

use super::build::{self, Opener};
use super::lists::{List, Named};
use super::mounts::Mounts;
use super::share::Images;
use super::sockets::make_socket_dir;
use super::watch::Watches;
use crate::config::s3::S3Section;
use crate::config::values::Attach;
use crate::config::{Config, ExportSection, PartitionSection, check};
use crate::control::drain::{self, Refusal, Timeout};
use crate::control::protocol::Request;
use crate::control::recorders::{self, Recorders};
use crate::control::tree;
use crate::lock::lock;
use crate::logger::{Settings, Wishes};
use crate::remotes::Remotes;
use crate::suggest;
use crate::supervisor::Supervisor;
use crate::units::human_bytes;

/// How long clients may take to finish their requests when they are disconnected.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long a change waits for another one.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// How long a removal waits until the last user of the store, such as a report, has let it go.
const UNLOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two looks at a lock or a store.
const LOOK: Duration = Duration::from_millis(2);

/// The partitions and exports of a server.
pub struct Catalog {
    /// The cache.
    pub cache: Cache,
    /// The NBD server.
    pub server: Server,
    /// The recordings in progress.
    pub recorders: Arc<Recorders>,
    /// When drains are given up.
    pub drain_timeout: Arc<Timeout>,
    /// The file that a reload reads.
    pub file: Option<PathBuf>,
    /// The log's settings without the file's, and the command line's wishes.
    pub log: (Settings, Wishes),
    /// The images that exports share.
    pub images: Arc<Images>,
    /// The directories that are mounted.
    pub mounts: Arc<Mounts>,
    /// Objects of S3.
    pub remotes: Arc<Remotes>,
    /// The service manager.
    pub supervisor: Arc<Supervisor>,
    pub(super) watches: Watches,
    is_stopping: AtomicBool,
    state: Mutex<State>,
}

/// The lists.
#[derive(Default)]
pub struct State {
    /// The configuration in force, without its partitions and exports. None before the start.
    pub config: Option<Config>,
    /// Identifies the certificates in force.
    pub tls_mark: Option<u64>,
    /// The partitions, oldest first.
    pub partitions: List<Owned>,
    /// The exports, oldest first.
    pub exports: List<Listed>,
}

/// A partition.
pub struct Owned {
    /// Its settings at the start, or since the last reload.
    pub section: PartitionSection,
    /// The partition.
    pub partition: Partition,
    /// The request of `octavo ctl` that added it; `None`: the configuration's file has it.
    pub asked: Option<Request>,
}

/// An export.
pub struct Listed {
    /// Its description.
    pub section: ExportSection,
    /// The name of the partition that caches it.
    pub partition: String,
    /// Its length when it was added.
    pub len_bytes: u64,
    /// Equal for all paths of its store.
    pub identity: (u64, u64),
    /// The request of `octavo ctl` that added it; `None`: the configuration's file has it.
    pub asked: Option<Request>,
}

impl Catalog {
    /// A server that has nothing yet.
    pub fn new(
        cache: Cache,
        server: Server,
        file: Option<PathBuf>,
        log: (Settings, Wishes),
        s3: S3Section,
        supervisor: Arc<Supervisor>,
    ) -> Catalog {
        Catalog {
            remotes: Arc::new(Remotes::new(&cache, s3)),
            cache,
            server,
            recorders: Arc::default(),
            drain_timeout: Arc::default(),
            file,
            log,
            images: Arc::default(),
            mounts: Arc::default(),
            supervisor,
            watches: Watches::default(),
            is_stopping: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Refuses all further changes: the server is ending.
    pub fn stop(&self) {
        // Relaxed: a flag alone. A change that has begun is finished or abandoned.
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// The lists, for a change. The error is a sentence.
    pub fn state(&self) -> Result<MutexGuard<'_, State>, String> {
        let begun = Instant::now();
        loop {
            if self.is_stopping.load(Ordering::Relaxed) {
                return Err("the server is ending".into());
            }
            match self.state.try_lock() {
                Ok(state) => return Ok(state),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => {
                    return Err("another change has not ended yet, such as a reload that drains an export; \
                                try again later"
                        .into());
                }
            }
        }
    }

    fn lists(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The lists for a server that ends. `None`: a change holds them that waits for a store.
    fn lists_at_end(&self) -> Option<MutexGuard<'_, State>> {
        let begun = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => {
                    log::warn!(
                        "a change has not ended; what `octavo ctl` has added is not left to the next server"
                    );
                    return None;
                }
            }
        }
    }

    /// Adds the export that `request` describes. Returns the name of its partition, and its length.
    /// The error is a sentence.
    pub fn add_export(
        &self,
        section: ExportSection,
        request: &Request,
        was_served: bool,
    ) -> Result<(String, u64), String> {
        let mut state = self.state()?;
        let (name, path) = (section.name.get_ref(), section.path.get_ref());
        for text in [Some(&section.name), section.description.as_ref()].into_iter().flatten() {
            octavo::check_name(text.get_ref())?;
        }
        if let Some(other) = state.exports.get(name) {
            let path = other.section.path.get_ref().display();
            return Err(format!("there is an export \"{name}\" already: {path}"));
        }
        let shown = path.display();
        let identity = check::identity(path).map_err(|why| format!("\"{shown}\" {why}"))?;
        if let Some(other) =
            state.exports.iter().find(|other| other.conflicts_with(identity, section.read_only))
        {
            return Err(format!(
                "\"{shown}\" is exported already, as \"{}\"; a path can be exported twice only if every export of it \
                 is read-only",
                other.section.name.get_ref()
            ));
        }
        if let Some((_, why)) = section.contradiction() {
            return Err(why);
        }
        let partition = state.partition_of(&section)?.clone();
        let opener = Opener { remotes: &self.remotes, claims: true, was_served };
        let object = self.open(&section, &partition, opener)?;
        let len_bytes = object.len_bytes();
        self.offer(&section, object)?;
        let name = partition.name().to_owned();
        state.exports.push(Listed {
            section,
            partition: name.clone(),
            len_bytes,
            identity,
            asked: Some(request.clone()),
        });
        Ok((name, len_bytes))
    }

    /// Opens the object of an export, or finds the one of its share group. The error is a sentence.
    pub fn open(
        &self,
        section: &ExportSection,
        partition: &Partition,
        opener: Opener<'_>,
    ) -> Result<Object, String> {
        match &section.share {
            Some(share) => self.images.join(share.get_ref(), section, partition, opener),
            None => build::object(section, section.name.get_ref(), partition, opener),
        }
    }

    /// Closes the object of an export, unless other exports share it.
    pub fn close(&self, export: &str, object: &Object) -> Result<(), octavo::Error> {
        match self.images.leave(export, object) {
            true => object.close(),
            false => Ok(()),
        }
    }

    /// Lets clients find an export, and watches its store. The error is a sentence; the object is
    /// then closed.
    pub fn offer(&self, section: &ExportSection, object: Object) -> Result<(), String> {
        let export = Export {
            name: section.name.get_ref().clone(),
            description: section.description.as_ref().map(Spanned::get_ref).cloned().unwrap_or_default(),
            read_only: section.read_only,
            object: object.clone(),
            is_listed: section.attached().any(|attach| *attach == Attach::Nbd),
        };
        let offered = self.server.add(export).map_err(|error| error.to_string());
        if let Err(why) = offered.and_then(|()| self.attach(section, &object)) {
            if let Ok(retired) = self.server.retire(section.name.get_ref(), None) {
                retired.remove();
            }
            // It has no dirty page, so this cannot lose one.
            let _ = self.close(section.name.get_ref(), &object);
            return Err(why);
        }
        if self.images.is_to_be_watched(&object) {
            self.watches.add(object.name(), object.store());
        }
        Ok(())
    }

    /// Lets virtual machines attach the export as a disk, if its section asks for it.
    fn attach(&self, section: &ExportSection, object: &Object) -> Result<(), String> {
        let is_writeback = object.cache_mode() == CacheMode::Writeback;
        for attach in section.attached() {
            let Attach::VhostUser(socket) = attach else { continue };
            if let Some(directory) = socket.parent() {
                make_socket_dir(directory, self.server.limits())?;
            }
            let settings = VhostSettings { is_writeback, ..section.vhost() };
            let attached = self.server.attach(section.name.get_ref(), socket, settings);
            attached.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Drains and removes an export. `progress` gets its dirty bytes.
    pub fn remove_export(
        &self,
        name: &str,
        disconnect: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Refused> {
        let known = self.state()?;
        known.exports.named(name)?;
        drop(known);
        // Steps 1 and 2.
        let retired = self.retire(name, disconnect)?;
        let refusals = drain::drain(vec![retired.object().clone()], self.drain_timeout.get(), progress);
        if !refusals.is_empty() {
            let message =
                format!("\"{name}\" is not removed; it is served again, and its dirty pages are kept");
            return Err(Refused { message, refusals });
        }
        // Its object has no dirty page and no client, so closing it writes nothing. It stays open
        // if other exports share it.
        self.close(name, retired.object()).map_err(|error| error.to_string())?;
        // Without a limit on the wait: from here on the export cannot be offered again.
        let mut state = self.lists();
        self.let_go(retired);
        state.exports.remove(name);
        log::info!(event = "changed", export = name; "export \"{name}\" is removed");
        Ok(())
    }

    /// Gives up the dirty bytes of an export, and removes it. Returns how many were lost. Unless it
    /// is `confirmed`, the error says how many would be.
    ///
    /// 1. The object is abandoned: each request of a client fails from here on, so no byte is
    ///    acknowledged that is lost. This waits for I/O in flight.
    /// 2. Clients are disconnected, and the export and its store are let go.
    pub fn abandon_export(&self, name: &str, confirmed: bool) -> Result<u64, String> {
        let known = self.state()?;
        let export = known.exports.named(name)?;
        let partition = known.partition(&export.partition)?.clone();
        drop(known);
        let mut objects = partition.objects().into_iter();
        let Some(object) = objects.find(|object| object.name() == name && !self.images.has(object)) else {
            return Err(format!("\"{name}\" has no unwritten bytes of its own; remove it instead"));
        };
        let stat = object.stat();
        let dirty = format!("{} bytes ({})", stat.dirty_bytes, human_bytes(stat.dirty_bytes));
        let why = stat.writeback_error.as_deref().map(|error| drain::without_name(name, error));
        let why = why.map_or(String::new(), |why| format!(" (the last write-back failed: {why})"));
        if !confirmed {
            return Err(format!("\"{name}\" would lose {dirty}{why}; to give them up, add --yes"));
        }
        let lost_bytes = object.abandon();
        let lost = format!("{lost_bytes} bytes lost ({})", human_bytes(lost_bytes));
        log::warn!(event = "given-up", export = name; "export \"{name}\" is given up: {lost}{why}");
        let retired = self.retire(name, true).map_err(|why| format!("\"{name}\": {lost}; {why}"))?;
        drop(object);
        let mut state = self.lists();
        self.let_go(retired);
        state.exports.remove(name);
        Ok(lost_bytes)
    }

    /// Step 1. The error says what to do about clients.
    pub fn retire(&self, name: &str, disconnect: bool) -> Result<Retired, String> {
        self.server.retire(name, disconnect.then_some(GRACE)).map_err(|error| match error {
            octavo_block::Error::InUse { .. } if disconnect => {
                format!("{error}: the store does not answer their requests; it is served again")
            }
            octavo_block::Error::InUse { .. } => format!("{error}; --disconnect closes their connections"),
            _ => error.to_string(),
        })
    }

    /// Step 4, after the object was closed: forgets the export, and waits until its store is
    /// unlocked, unless other exports share the object.
    pub fn let_go(&self, retired: Retired) {
        let name = retired.name().to_owned();
        let is_shared = self.images.has(retired.object());
        let store = retired.object().store().downgrade();
        retired.remove();
        if is_shared {
            return;
        }
        let begun = Instant::now();
        while let Some(store) = store.upgrade() {
            if begun.elapsed() >= UNLOCK_PATIENCE {
                log::warn!("\"{name}\": {} stays locked until its last user lets it go", store.name());
                break;
            }
            drop(store);
            std::thread::sleep(LOOK);
        }
    }

    /// Adds the partition that `request` describes. The error is a sentence.
    pub fn add_partition(&self, section: PartitionSection, request: &Request) -> Result<(), String> {
        let mut state = self.state()?;
        let name = section.name.get_ref();
        if name.is_empty() {
            return Err("a partition's name cannot be empty".into());
        }
        let twin = |other: &&Owned| tree::path_of(other.partition.name()) == tree::path_of(name);
        if let Some(other) = state.partitions.iter().find(twin) {
            return Err(match other.partition.name() == name {
                true => format!("there is a partition \"{name}\" already"),
                false => {
                    let other = other.partition.name();
                    format!(
                        "\"{name}\" and the partition \"{other}\" would be one directory of the control file system"
                    )
                }
            });
        }
        let partition = self.cache.partition(build::partition(&section, None));
        let partition = partition.map_err(|error| error.to_string())?;
        if let Err(why) = self.record(&section, &partition) {
            self.remove_made(&partition);
            return Err(why);
        }
        log::info!(event = "changed", partition = name.as_str(); "partition \"{name}\" is added");
        state.partitions.push(Owned { section, partition, asked: Some(request.clone()) });
        Ok(())
    }

    /// Starts the recording of a new partition, if its section asks for one.
    pub fn record(&self, section: &PartitionSection, partition: &Partition) -> Result<(), String> {
        let Some(order) = section.order() else { return Ok(()) };
        recorders::make_way(&order)?;
        self.recorders.start(partition, &order).map(drop)
    }

    /// Removes a partition that no export uses. The error is a sentence.
    pub fn remove_partition(&self, name: &str) -> Result<(), String> {
        let mut state = self.state()?;
        let partition = state.partition(name)?.clone();
        let used: Vec<&str> =
            state.exports_of(name).map(|export| export.section.name.get_ref().as_str()).collect();
        if !used.is_empty() {
            let list = used.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
            return Err(format!("partition \"{name}\" is used by its exports: {list}; remove them first"));
        }
        if let Some(path) = self.mounts.user_of(name) {
            return Err(format!(
                "partition \"{name}\" is used by the mount {path}; remove it from the file first"
            ));
        }
        self.remove_made(&partition);
        state.partitions.remove(name);
        log::info!(event = "changed", partition = name; "partition \"{name}\" is removed");
        Ok(())
    }

    /// Removes a partition without objects.
    pub fn remove_made(&self, partition: &Partition) {
        self.recorders.stop(partition.name());
        // A partition without objects has no page, so nothing can refuse.
        if let Err(error) = self.cache.remove_partition(partition.name()) {
            log::warn!("partition \"{}\": {error}", partition.name());
        }
    }

    /// Whether another server can take over all that this one serves. The error is a sentence.
    /// Otherwise neither the successor nor this server could serve on.
    pub fn can_be_replaced(&self) -> Result<(), String> {
        if let Some(mount) = self.mounts.list().first() {
            return Err(format!(
                "{} is mounted, and programs use it through this process; stop the server instead",
                mount.section.path.get_ref().display()
            ));
        }
        // What no process can open again must stay open here.
        for export in self.state()?.exports.iter() {
            let (name, path) = (export.section.name.get_ref(), export.section.path.get_ref());
            match check::identity(path) {
                Ok(identity) if identity == export.identity => {}
                Ok(_) => {
                    let path = path.display();
                    return Err(format!(
                        "export \"{name}\": {path} is another file now than the one it serves"
                    ));
                }
                Err(why) => return Err(format!("export \"{name}\": \"{}\" {why}", path.display())),
            }
        }
        Ok(())
    }

    /// The requests of `octavo ctl` that added partitions and exports which the configuration's
    /// file lacks, in an order in which they can be repeated.
    pub fn asked(&self) -> Vec<Request> {
        let Some(state) = self.lists_at_end() else { return Vec::new() };
        let partitions = state.partitions.iter().filter_map(|owned| owned.asked.clone());
        partitions.chain(state.exports.iter().filter_map(|export| export.asked.clone())).collect()
    }

    /// Whether the server has what a request of [`asked`](Self::asked) adds.
    pub fn has(&self, request: &Request) -> bool {
        let state = self.lists();
        match (&request.object, &request.partition) {
            (Some(name), _) => state.exports.get(name).is_some(),
            (None, Some(name)) => state.partitions.get(name).is_some(),
            (None, None) => false,
        }
    }

    /// The path of the control socket.
    pub fn control_path(&self) -> Option<PathBuf> {
        let state = self.lists_at_end()?;
        Some(state.config.as_ref()?.listen.control.as_ref()?.get_ref().0.0.clone())
    }

    /// The name and the text of the configuration in force.
    pub fn config_in_force(&self) -> Option<(String, String)> {
        let state = self.lists_at_end()?;
        state.config.as_ref().map(|config| (config.source.name.clone(), config.source.text.clone()))
    }

    /// A line that counts what the server serves.
    pub fn summary(&self) -> String {
        let counted = |count, what| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let exports = counted(self.server.traffic().exports().len(), "export");
        match self.mounts.list().len() {
            0 => format!("serving {exports}"),
            mounts => format!("serving {exports} and {}", counted(mounts, "mount")),
        }
    }

    /// What to attach to: each export's name, path and length.
    pub fn exports(&self) -> Vec<(ExportSection, u64)> {
        self.lists().exports.iter().map(|export| (export.section.clone(), export.len_bytes)).collect()
    }
}

impl Named for Owned {
    const KIND: &'static str = "partition";

    fn name(&self) -> &str {
        self.partition.name()
    }
}

impl Named for Listed {
    const KIND: &'static str = "export";

    fn name(&self) -> &str {
        self.section.name.get_ref()
    }
}

impl Listed {
    /// Whether a store with this identity cannot be opened beside this export.
    pub fn conflicts_with(&self, identity: (u64, u64), read_only: bool) -> bool {
        self.identity == identity && !(read_only && self.section.read_only)
    }
}

impl State {
    /// A partition by name. The error is a sentence.
    pub fn partition(&self, name: &str) -> Result<&Partition, String> {
        self.partitions.named(name).map(|owned| &owned.partition)
    }

    /// The partition that caches an export: its own, or that of its share group. The error is a
    /// sentence.
    pub fn partition_of(&self, section: &ExportSection) -> Result<&Partition, String> {
        let Some(group) = &section.share else {
            let name = section.partition.as_ref().map(|name| name.get_ref().as_str());
            return self.partition(name.unwrap_or_default());
        };
        let shares = self.config.as_ref().map_or(&[][..], |config| &config.shares);
        let share = suggest::named("share group", group.get_ref(), shares, |share| share.name.get_ref())?;
        self.partition(share.partition.get_ref())
    }

    /// The exports of a partition.
    pub fn exports_of<'s>(&'s self, partition: &'s str) -> impl Iterator<Item = &'s Listed> {
        self.exports.iter().filter(move |export| export.partition == partition)
    }
}

/// Why an export was not removed.
pub struct Refused {
    /// A sentence.
    pub message: String,
    /// The objects that could not be drained.
    pub refusals: Vec<Refusal>,
}

impl From<String> for Refused {
    fn from(message: String) -> Refused {
        Refused { message, refusals: Vec::new() }
    }
}
