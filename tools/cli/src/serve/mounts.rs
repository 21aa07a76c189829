//! [`Mounts`]: the directories that the server has mounted now. The catalog's lock serializes
//! changes; reports may look at any time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use octavo::{Cache, Partition, disk};
use octavo_fuse::MountOptions;

use crate::config::mount::{MountSection, Pattern};
use crate::control::report::MountReport;
use crate::lock::lock;
use crate::mount::served::{Rules, Served};
use crate::mount::threads_of;
use crate::process;
use crate::remotes::Remotes;

/// A mounted directory, and what describes it.
#[derive(Clone)]
pub struct Mounted {
    /// Its section in the file.
    pub section: MountSection,
    /// The directory.
    pub served: Arc<Served>,
}

/// All of them, oldest first.
#[derive(Default)]
pub struct Mounts(Mutex<Vec<Mounted>>);

impl Mounts {
    /// Those that are mounted now.
    pub fn list(&self) -> Vec<Mounted> {
        lock(&self.0).clone()
    }

    /// Adds one, in place of one of the same path.
    pub fn put(&self, mounted: Mounted) {
        let mut list = lock(&self.0);
        list.retain(|other| other.section.path.get_ref() != mounted.section.path.get_ref());
        list.push(mounted);
    }

    /// Forgets one.
    pub fn forget(&self, served: &Arc<Served>) {
        lock(&self.0).retain(|mounted| !Arc::ptr_eq(&mounted.served, served));
    }

    /// The path of a mount whose files may be in a partition.
    pub fn user_of(&self, partition: &str) -> Option<String> {
        let list = lock(&self.0);
        let uses = |mounted: &&Mounted| mounted.served.partitions().iter().any(|name| name == partition);
        list.iter().find(uses).map(|mounted| mounted.served.path().display().to_string())
    }

    /// Unmounts all, and waits for their requests, at most for this long. The newest first: it may
    /// be mounted below an older one.
    pub fn end(&self, most: Duration) {
        for mounted in self.list().into_iter().rev() {
            if !mounted.served.end(most) {
                let (path, source) = (mounted.served.path().display(), mounted.served.source().display());
                log::warn!("{path}: {source} does not answer: the requests that wait for it have failed");
            }
        }
    }

    /// Waits until the files of all, which have ended, are closed, at most for this long each.
    /// Returns the errors of files that could not be written.
    pub fn close(&self, most: Duration) -> Vec<String> {
        let lost = |mounted: &Mounted| mounted.served.wait_until_closed(most).unwrap_or_default();
        self.list().iter().flat_map(lost).collect()
    }

    /// The objects of their files, by the stores, which do not move while the objects are open.
    pub fn stores(&self) -> HashSet<*const disk::Store> {
        let list = self.list();
        let objects = list.iter().flat_map(|mounted| mounted.served.objects());
        objects.map(|(_, object)| std::ptr::from_ref(object.store())).collect()
    }

    /// Their figures.
    pub fn report(&self) -> Vec<MountReport> {
        let list = self.list();
        let report = |mounted: &Mounted| {
            let served = &mounted.served;
            let stat = served.stat();
            MountReport {
                path: served.path().display().to_string(),
                source: served.source().display().to_string(),
                partitions: served.partitions(),
                read_only: mounted.section.read_only,
                is_mounted: !served.has_ended(),
                nodes: stat.nodes as u64,
                files: stat.files as u64,
                unwritten_files: stat.unwritten_files as u64,
                unwritten_bytes: stat.unwritten_bytes,
                descriptors: stat.descriptors as u64,
                descriptors_max: stat.descriptors_max as u64,
                refused: stat.refused,
            }
        };
        list.iter().map(report).collect()
    }
}

/// Ends the mounts of a server whose start fails: it would leave dead ones behind.
pub struct Undo<'m>(pub Option<&'m Mounts>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(mounts) = self.0 {
            mounts.end(Duration::ZERO);
        }
    }
}

/// The rules of a section; `None` if a partition could not be made, which has been reported.
pub fn rules(section: &MountSection, partition: impl Fn(&str) -> Option<Partition>) -> Option<Rules> {
    let mut tenants = Vec::new();
    for tenant in &section.tenants {
        let pattern = tenant.pattern.as_ref().map(|text| Pattern::parse(text.get_ref()));
        let pattern = pattern.transpose().ok()?;
        tenants.push((pattern, partition(tenant.partition.get_ref())?));
    }
    Some(Rules { tenants, rest: partition(section.partition.get_ref())? })
}

/// Mounts the directory of a section. The error is a sentence.
pub fn start(
    section: &MountSection,
    cache: &Cache,
    remotes: &Remotes,
    rules: Rules,
) -> Result<Mounted, String> {
    // Each cached file takes two descriptors.
    process::raise_fds_max();
    let defaults = MountOptions::default();
    let options = MountOptions {
        read_only: section.read_only,
        allow_other: section.allow_other.unwrap_or(defaults.allow_other),
        coherence: section.coherence.as_ref().map_or(defaults.coherence, |mode| mode.0),
        valid: section.attr_timeout.as_ref().map(|timeout| timeout.0),
        // At most 256.
        threads: section.threads.as_ref().map_or_else(
            || threads_of(cache.stat().memory_max_bytes),
            |threads| threads.get_ref().0 as usize,
        ),
        suid: section.suid,
        dev: section.dev,
        ..defaults
    };
    let served =
        Served::start(cache, remotes, section.source.get_ref(), section.path.get_ref(), &options, rules)?;
    Ok(Mounted { section: section.clone(), served })
}
