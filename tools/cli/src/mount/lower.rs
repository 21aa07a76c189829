//! [`Lower`]: what is mounted, a directory or a prefix of a bucket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use octavo::{Cache, Object, Partition};
use octavo_fuse::{Mount, MountOptions, MountStat, Opened};
use octavo_s3::{Prefix, PrefixOptions};

use crate::own;
use crate::remotes::Remotes;

/// How long the end of a prefix is waited for, when its files are to be closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file as rules for partitions see it.
pub struct Asked<'f> {
    /// Its path below what is mounted.
    pub path: &'f Path,
    /// The partition that its extended attributes ask for.
    pub wanted: &'f dyn Fn() -> Option<String>,
}

/// What is mounted.
pub enum Lower {
    /// A directory, and the file systems that are mounted for it.
    Directory { mount: Mount, _own: Vec<own::Entry> },
    /// The objects below a prefix.
    Prefix { prefix: Prefix, _own: own::Entry },
}

impl Lower {
    /// Mounts `source` at `path`. The error is a sentence.
    pub fn start(
        cache: &Cache,
        remotes: &Remotes,
        source: &Path,
        path: &Path,
        options: &MountOptions,
        choose: impl Fn(&Asked<'_>) -> Partition + Send + Sync + 'static,
    ) -> Result<Lower, String> {
        let Some(address) = Remotes::address(source) else {
            let choose = move |file: &Opened<'_>| {
                let wanted = || file.partition_wanted().map(|name| name.to_owned());
                Some(choose(&Asked { path: file.path(), wanted: &wanted }))
            };
            let mount = Mount::start(cache.clone(), source, path, options, choose)?;
            let own = std::iter::once(path).chain(mount.paths_below()).map(own::Entry::add).collect();
            return Ok(Lower::Directory { mount, _own: own });
        };
        let address = address?;
        let (fetcher, client) = remotes.reach(&address)?;
        let defaults = PrefixOptions::default();
        let prefix_options = PrefixOptions {
            allow_other: options.allow_other,
            valid: options.valid.unwrap_or(defaults.valid),
            threads: options.threads.max(defaults.threads),
            ..defaults
        };
        let choose = move |path: &Path| choose(&Asked { path, wanted: &|| None });
        let prefix = Prefix::start(fetcher, client, &address, path, &prefix_options, choose)?;
        Ok(Lower::Prefix { prefix, _own: own::Entry::add(path) })
    }

    /// Whether it was unmounted.
    pub fn has_ended(&self) -> bool {
        match self {
            Lower::Directory { mount, .. } => mount.has_ended(),
            Lower::Prefix { prefix, .. } => prefix.has_ended(),
        }
    }

    /// Waits until it is unmounted, at most for this long.
    pub fn wait_until_ended(&self, most: Duration) -> bool {
        match self {
            Lower::Directory { mount, .. } => mount.wait_until_ended(most),
            Lower::Prefix { prefix, .. } => prefix.wait_until_ended(most),
        }
    }

    /// What it has at the moment.
    pub fn stat(&self) -> MountStat {
        match self {
            Lower::Directory { mount, .. } => mount.stat(),
            Lower::Prefix { prefix, .. } => {
                let stat = prefix.stat();
                MountStat { nodes: stat.nodes, files: stat.files, ..MountStat::default() }
            }
        }
    }

    /// The objects of its files, and their paths below what is mounted.
    pub fn objects(&self) -> Vec<(PathBuf, Object)> {
        match self {
            Lower::Directory { mount, .. } => mount.objects(),
            Lower::Prefix { prefix, .. } => prefix.objects(),
        }
    }

    /// Gives back the space that is reserved for its open files. Call it after it has ended.
    pub fn free_reserved(&self) {
        if let Lower::Directory { mount, .. } = self {
            mount.free_reserved();
        }
    }

    /// Begins to unmount it.
    pub fn begin_stop(&self) {
        match self {
            Lower::Directory { mount, .. } => mount.begin_stop(),
            Lower::Prefix { prefix, .. } => prefix.begin_stop(),
        }
    }

    /// After the beginning of the end: fails the requests that still wait, and all later ones, for
    /// programs to go on. The kernel may keep the process, whose thread waits for a lower file
    /// system, and with it the connection.
    pub fn abort(&self) {
        match self {
            Lower::Directory { mount, .. } => mount.abort(),
            // Its requests have deadlines.
            Lower::Prefix { .. } => {}
        }
    }

    /// Unmounts it, and writes and closes its files. Returns the errors of those that could not be
    /// written.
    pub fn stop(&self) -> Vec<String> {
        match self {
            Lower::Directory { mount, .. } => mount.stop(),
            Lower::Prefix { prefix, .. } => {
                prefix.stop(PATIENCE);
                Vec::new()
            }
        }
    }
}
