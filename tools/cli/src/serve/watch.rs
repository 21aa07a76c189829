//! Logs changes that other programs make to the files and devices of exports, every five seconds.
//!
//! The engine also keeps these changes, for `octavo ctl stat` and the metrics
//! ([`octavo::disk::Store::noticed`]). A check asks the file system, which may hang. So each file
//! system has a thread of its own: one that hangs does not delay the checks of the others. The
//! threads hold no store: an export that is removed is closed at once.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use octavo::disk::{Change, Store, Watch, WeakStore};

use crate::lock::lock;

/// Time between two checks. A check takes one or two system calls per export, so that an idle
/// server stays idle.
const PERIOD: Duration = Duration::from_secs(5);

/// A file system, by its device number. Files whose file system is unknown form one group.
type FileSystem = Option<u64>;

/// An export and its store.
type Watched = (String, WeakStore);

/// The threads, by the file system that they check. A thread lives as long as the process.
#[derive(Default)]
pub struct Watches(Mutex<HashMap<FileSystem, Sender<Watched>>>);

impl Watches {
    /// Watches the store of an export until it is closed.
    pub fn add(&self, export: &str, store: &Store) {
        let file_system = file_system_of(Path::new(store.name()));
        let mut threads = lock(&self.0);
        let thread = threads.entry(file_system).or_insert_with(|| {
            let (sender, receiver) = channel();
            let started =
                std::thread::Builder::new().name("octavo-watch".into()).spawn(move || look_after(&receiver));
            if let Err(error) = started {
                log::warn!("cannot start a thread that watches files: {error}");
            }
            sender
        });
        // Fails only if the thread could not be started, which has been logged.
        let _ = thread.send((export.to_owned(), store.downgrade()));
    }
}

fn look_after(added: &Receiver<Watched>) {
    let mut watch = Watch::new();
    let mut names: HashMap<usize, Watched> = HashMap::new();
    let mut due = Instant::now();
    loop {
        // A thread without stores sleeps until one is added. Stores that are added in quick
        // succession do not postpone the check, which also forgets those that were closed.
        let next = match names.is_empty() {
            true => {
                due = Instant::now() + PERIOD;
                added.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
            false => match due.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Err(RecvTimeoutError::Timeout),
                left => added.recv_timeout(left),
            },
        };
        match next {
            Ok((name, weak)) => {
                if let Some(store) = weak.upgrade() {
                    names.insert(watch.add(&store), (name, weak));
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => due = Instant::now() + PERIOD,
        }
        for (number, change) in watch.look() {
            let Some((name, store)) = names.get(&number) else { continue };
            let Some(store) = store.upgrade() else { continue };
            let store = store.name();
            let remedy = match change {
                Change::Length { .. } => "; `octavo ctl export resize` adopts the new length",
                _ => "",
            };
            match change.is_alarming() {
                true => {
                    log::warn!("\"{name}\": {store}: {change}{remedy} (octavo-serve(1), CHANGES BY OTHERS)")
                }
                false => log::info!("\"{name}\": {store}: {change}"),
            }
        }
        names.retain(|_, (_, store)| store.upgrade().is_some());
    }
}

fn file_system_of(path: &Path) -> FileSystem {
    std::fs::metadata(path).ok().map(|metadata| metadata.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one hung file system stopped the checks of all files.
    #[test]
    fn files_are_grouped_by_file_system() {
        let [version, missing, stat, null] = ["/proc/version", "/no/such/file", "/proc/stat", "/dev/null"]
            .map(|path| file_system_of(Path::new(path)));
        assert_eq!((version, missing), (stat, None));
        assert!(version.is_some() && null.is_some() && version != null);
    }
}
