//! [`Served`]: a mounted directory whose files have several partitions. It notices when someone
//! unmounts it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use octavo::{Cache, Object, Partition};
use octavo_fuse::{MountOptions, MountStat};

use super::lower::{Asked, Lower};
use super::place;
use crate::config::DRAIN_TIMEOUT_DEFAULT;
use crate::config::mount::Pattern;
use crate::control::drain;
use crate::lock::lock;
use crate::own;
use crate::remotes::Remotes;

/// Which partition a file gets: that of the first pattern that matches its path; else the one that
/// its extended attributes name, if it is one of these; else the last one.
pub struct Rules {
    /// In order. Without a pattern, a tenant gets only files that ask for it.
    pub tenants: Vec<(Option<Pattern>, Partition)>,
    /// Of the other files.
    pub rest: Partition,
}

impl Rules {
    fn choose(&self, file: &Asked<'_>) -> Partition {
        let matched = self
            .tenants
            .iter()
            .find(|(pattern, _)| pattern.as_ref().is_some_and(|pattern| pattern.matches(file.path)));
        let named = || {
            // Without tenants there is nothing to choose, and no need to ask for attributes.
            let wanted = (!self.tenants.is_empty()).then(|| (file.wanted)())??;
            self.tenants.iter().find(|(_, partition)| partition.name() == wanted)
        };
        matched.or_else(named).map_or(&self.rest, |(_, partition)| partition).clone()
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let tenants = self.tenants.iter().map(|(_, partition)| partition);
        tenants.chain([&self.rest]).map(|partition| partition.name().to_owned())
    }
}

/// A directory that is mounted.
pub struct Served {
    source: PathBuf,
    path: PathBuf,
    mount: Arc<Lower>,
    rules: Arc<RwLock<Rules>>,
    /// The partitions that its files may be in: those of all rules that it has had.
    partitions: Mutex<BTreeSet<String>>,
    is_stopping: Arc<AtomicBool>,
    /// Gets the errors of files that could not be written, when all are closed.
    closed: Mutex<Receiver<Vec<String>>>,
}

impl Served {
    /// Mounts a directory. The error is a sentence.
    pub fn start(
        cache: &Cache,
        remotes: &Remotes,
        source: &Path,
        path: &Path,
        options: &MountOptions,
        rules: Rules,
    ) -> Result<Arc<Served>, String> {
        let source = place::source(source)?;
        if Remotes::address(&source).is_none() {
            own::check(&source).map_err(|why| format!("cannot mount {}: it {why}", source.display()))?;
        }
        let path = place::target(&source, path)?;
        let partitions = Mutex::new(rules.names().collect());
        let rules = Arc::new(RwLock::new(rules));
        let chosen = Arc::clone(&rules);
        let choose =
            move |file: &Asked<'_>| chosen.read().unwrap_or_else(PoisonError::into_inner).choose(file);
        let mount = Arc::new(Lower::start(cache, remotes, &source, &path, options, choose)?);
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (closed, receiver) = channel();
        let (watched, is_expected, shown) = (mount.clone(), is_stopping.clone(), path.display().to_string());
        let watch = std::thread::Builder::new().name("unmounted".into()).spawn(move || {
            watched.wait_until_ended(Duration::MAX);
            // Relaxed: only for the log.
            if !is_expected.load(Ordering::Relaxed) {
                log::warn!("{shown} was unmounted; a reload mounts it again");
            }
            // A store that refuses is tried again for a while, as at the end of the server.
            let objects = watched.objects().into_iter().map(|(_, object)| object).collect();
            drain::drain(objects, DRAIN_TIMEOUT_DEFAULT, |_| {});
            let lost = watched.stop();
            for why in &lost {
                log::error!(event = "given-up"; "{shown}: {why}");
            }
            let _ = closed.send(lost);
        });
        watch.map_err(|error| format!("cannot start a thread: {error}"))?;
        let closed = Mutex::new(receiver);
        Ok(Arc::new(Served { source, path, mount, rules, partitions, is_stopping, closed }))
    }

    /// The mounted directory.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was unmounted.
    pub fn has_ended(&self) -> bool {
        self.mount.has_ended()
    }

    /// What it has at the moment.
    pub fn stat(&self) -> MountStat {
        self.mount.stat()
    }

    /// The objects of its files, and their paths below the source.
    pub fn objects(&self) -> Vec<(PathBuf, Object)> {
        self.mount.objects()
    }

    /// The names of the partitions that its files may be in.
    pub fn partitions(&self) -> Vec<String> {
        lock(&self.partitions).iter().cloned().collect()
    }

    /// Changes the rules, for files that are opened from now on.
    pub fn change_rules(&self, rules: Rules) {
        lock(&self.partitions).extend(rules.names());
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Unmounts it, and waits until its requests have ended, at most for this long. Then fails
    /// those that still wait, and all later ones. Returns whether none waited.
    pub fn end(&self, most: Duration) -> bool {
        // Relaxed: as above.
        self.is_stopping.store(true, Ordering::Relaxed);
        self.mount.begin_stop();
        let has_ended = self.mount.wait_until_ended(most);
        // Even if none waits: nobody takes the next one, of a program that has a file open. It
        // would wait for the end of the process, which the kernel may keep (`Lower::abort`).
        self.mount.abort();
        has_ended
    }

    /// Unmounts it, and waits until its files are written and closed, at most for this long.
    /// Returns the errors of files that could not be written, or `None` if it takes longer.
    pub fn remove(&self, most: Duration) -> Option<Vec<String>> {
        self.end(most);
        self.wait_until_closed(most)
    }

    /// Waits until its files are written and closed, at most for this long, after it has ended.
    /// Returns the errors of files that could not be written, or `None` if it takes longer.
    pub fn wait_until_closed(&self, most: Duration) -> Option<Vec<String>> {
        lock(&self.closed).recv_timeout(most).ok()
    }
}
