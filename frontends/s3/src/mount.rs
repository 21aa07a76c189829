//! [`Prefix`]: the objects below a prefix as a read-only file system.
//!
//! - **Names** come from listings, which are believed for [`PrefixOptions::valid`]. The kernel
//!   keeps names and attributes as long. A directory that is being read keeps its listing.
//! - **Opening** a file asks the server for its version, unless a listing told it that recently. An
//!   open file has the bytes of that version: if the object changes, reads of what is not cached
//!   fail with `ESTALE`.
//! - **Reads** go through the engine. The kernel keeps no pages of its own, except of files that
//!   are mapped.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use octavo::{Object, Partition};
use octavo_objects::Fetcher;
use rustix::process::{getegid, geteuid};

use crate::address::Address;
use crate::client::Client;
use crate::files::{Files, lock};
use crate::mounting::unmount;
use crate::requests::{FileSystem, Inner};
use crate::tree::{ROOT, Tree};

/// How long the end of a session is waited for. One that programs still use ends with them.
const SESSION_PATIENCE: Duration = Duration::from_secs(1);

/// How a prefix is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Whether other users have access. Default: whether root mounts.
    pub allow_other: bool,
    /// How long listings are believed, and the versions that they tell. Default: 10 s.
    pub valid: Duration,
    /// Threads that answer what needs no server. Others wait for it. Default: 4.
    pub threads: usize,
    /// Files whose pages are kept, open or not. Default: 4,096.
    pub files_max: NonZeroUsize,
}

impl Default for PrefixOptions {
    fn default() -> PrefixOptions {
        PrefixOptions {
            allow_other: geteuid().is_root(),
            valid: Duration::from_secs(10),
            threads: 4,
            files_max: NonZeroUsize::new(4096).expect("not zero"),
        }
    }
}

/// What a mounted prefix has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStat {
    /// Files and directories that the kernel knows.
    pub nodes: usize,
    /// Files whose pages are kept.
    pub files: usize,
}

/// A prefix that is mounted. Dropping it unmounts it.
pub struct Prefix {
    path: PathBuf,
    inner: Arc<Inner>,
    session: Mutex<Option<BackgroundSession>>,
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefix").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Prefix {
    /// Mounts the objects below `address` at `path`. `choose` gets the path of a file below the
    /// prefix when it is opened, and returns the partition of its pages.
    ///
    /// # Errors
    /// A sentence: the prefix cannot be listed, or the system refuses the mount.
    pub fn start(
        fetcher: Fetcher,
        client: Client,
        address: &Address,
        path: &Path,
        options: &PrefixOptions,
        choose: impl Fn(&Path) -> Partition + Send + Sync + 'static,
    ) -> Result<Prefix, String> {
        let tree = Tree::new(fetcher, client, &address.key, options.valid);
        // A bucket or credentials that are wrong are told now, and not to every program later.
        let root = tree.node(ROOT).expect("the root is there");
        let entries = tree.entries(&root.key).map_err(|error| format!("cannot list {address}: {error}"))?;
        if entries.len() == 0 {
            log::warn!("there is nothing below {address}");
        }
        let owner = (geteuid().as_raw(), getegid().as_raw());
        let files = Files::new(options.files_max);
        let inner = Arc::new(Inner::new(tree, files, Box::new(choose), &address.to_string(), owner));
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(address.to_string()),
            MountOption::Subtype("octavo".into()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::RO,
        ];
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = true;
        let session = fuser::spawn_mount(FileSystem(inner.clone()), path, &config)
            .map_err(|error| format!("cannot mount {address} at {}: {error}", path.display()))?;
        Ok(Prefix { path: path.to_owned(), inner, session: Mutex::new(Some(session)) })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it has now.
    pub fn stat(&self) -> PrefixStat {
        PrefixStat { nodes: self.inner.tree.nodes_count(), files: self.inner.files.count() }
    }

    /// The objects of the files whose pages are kept, and their paths below the prefix.
    pub fn objects(&self) -> Vec<(PathBuf, Object)> {
        let objects = self.inner.files.objects().into_iter();
        objects.map(|(key, object)| (self.inner.tree.path_of(&key).into(), object)).collect()
    }

    /// Whether it was unmounted.
    pub fn has_ended(&self) -> bool {
        *lock(&self.inner.ended)
    }

    /// Waits until it is unmounted, at most for this long. Returns whether it is.
    pub fn wait_until_ended(&self, most: Duration) -> bool {
        let begun = Instant::now();
        let mut ended = lock(&self.inner.ended);
        while !*ended {
            let Some(left) = most.checked_sub(begun.elapsed()) else { return false };
            // An absurdly long time would overflow.
            let left = left.min(Duration::from_secs(3600));
            ended = self.inner.end.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Unmounts it, also if programs use it. Returns at once. Files that programs still have open
    /// fail when this process has ended or [`Prefix::stop`] is called.
    pub fn begin_stop(&self) {
        let Some(session) = lock(&self.session).take() else { return };
        let path = self.path.clone();
        let inner = self.inner.clone();
        let stop = std::thread::Builder::new().name("octavo-unmount".into()).spawn(move || {
            let has_ended = *lock(&inner.ended);
            // Something else may be mounted there then.
            if !has_ended && let Err(error) = unmount(&path) {
                log::warn!("cannot unmount {}: {error}", path.display());
            }
            end_session(session);
            inner.has_ended();
        });
        if let Err(error) = stop {
            log::warn!("cannot start a thread: {error}");
        }
    }

    /// Unmounts it, waits for the end, and drops the pages.
    pub fn stop(&self, most: Duration) -> bool {
        self.begin_stop();
        let ended = self.wait_until_ended(most);
        self.inner.files.clear();
        ended
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        self.stop(Duration::from_secs(10));
    }
}

/// Ends the session of a mount that is no more. fuser tries to unmount it once more, and then waits
/// for programs that use it.
fn end_session(session: BackgroundSession) {
    let (tell, told) = channel();
    let join = std::thread::Builder::new().name("octavo-session".into()).spawn(move || {
        // An error: it is not mounted any more.
        let _ = session.umount_and_join();
        let _ = tell.send(());
    });
    if let Err(error) = join {
        log::warn!("cannot start a thread: {error}");
    }
    let _ = told.recv_timeout(SESSION_PATIENCE);
}
