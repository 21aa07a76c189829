//! Which bytes a store has: [`Store::identity`] tells it from all others, and [`Store::stamp`]
//! whether its content was changed in between. Not here: changes while a store is open
//! (`watch.rs`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::{major, minor};

use super::{Kind, Store};
use crate::identity::Identity;
use crate::io::Channel;

/// The fields of a device's `stat` that count sectors which were written and discarded.
const WRITTEN_AND_DISCARDED: [usize; 2] = [6, 13];

impl Store {
    /// Returns what tells the bytes of this store from those of every other. A file that is
    /// removed and created again has another identity, if its file system has file handles or
    /// generation numbers. None for memory, simulated disks, and back ends that have none.
    pub fn identity(&self) -> Option<Identity> {
        match self.kind() {
            Kind::File(file) => Some(file.identity()),
            Kind::Target(target) => target.identity(),
        }
    }

    /// Returns bytes that differ after every change of the store's content, whoever makes it:
    /// compare them with those that the same store had earlier. `None` if nothing tells.
    ///
    /// - Of a file, the times of its last change.
    /// - Of a device, the numbers of sectors that the kernel has written to it and discarded.
    /// - Empty for a back end: its [`identity`](Store::identity) tells one content from another.
    ///
    /// # Examples
    /// ```
    /// # use octavo_disk::{OpenOptions, Store};
    /// # let path = std::env::temp_dir().join(format!("octavo-stamp-{}", std::process::id()));
    /// std::fs::write(&path, "one")?;
    /// let store = Store::open(&path, &OpenOptions::default())?;
    /// let before = store.stamp();
    /// # let past = std::time::SystemTime::UNIX_EPOCH;
    /// # std::fs::File::options().write(true).open(&path)?.set_modified(past)?;
    /// # let before = store.stamp();
    /// assert_eq!(store.stamp(), before);
    /// std::fs::write(&path, "two")?;
    /// assert_ne!(store.stamp(), before);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stamp(&self) -> Option<Vec<u8>> {
        let Kind::File(file) = self.kind() else { return Some(Vec::new()) };
        if file.is_device {
            return stamp_of_device(file.numbers.0);
        }
        let found = file.descriptor(Channel::Tail).metadata().ok().filter(|_| !file.is_closed())?;
        let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
        Some(times.into_iter().flat_map(i64::to_le_bytes).collect())
    }
}

fn stamp_of_device(device: u64) -> Option<Vec<u8>> {
    let folder = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    // Whether the kernel counts. The queue of a partition is that of its disk.
    let queue = ["queue/iostats", "../queue/iostats"];
    let counts = queue.iter().find_map(|name| fs::read_to_string(folder.join(name)).ok())?;
    if counts.trim() != "1" {
        return None;
    }
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let fields: Vec<&str> = stat.split_whitespace().collect();
    let counted: Option<Vec<&str>> =
        WRITTEN_AND_DISCARDED.iter().map(|at| fields.get(*at).copied()).collect();
    Some(counted?.join(" ").into_bytes())
}
