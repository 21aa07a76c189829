//! Logs changes that other programs make to the files and devices of exports, every five seconds.
//!
//! The engine also keeps these changes, for `octavo ctl stat` and the metrics
//! ([`octavo::disk::Store::noticed`]). A check asks the file system, which may hang. So each file
//! system has a thread of its own: one that hangs does not delay the checks of the others.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use octavo::disk::Watch;
use octavo_block::Export;

use crate::error::Error;

/// Time between two checks. A check takes one or two system calls per export, so that an idle
/// server stays idle.
const PERIOD: Duration = Duration::from_secs(5);

/// Starts to watch the stores of exports, until the process ends.
pub fn start(exports: &[Export]) -> Result<(), Error> {
    for exports in by_file_system(exports, |export| Path::new(export.object.store().name())) {
        let names: Vec<String> = exports.iter().map(|export| export.name.clone()).collect();
        let watch = Watch::new(exports.iter().map(|export| export.object.store().clone()));
        let stores = exports.iter().map(|export| export.object.store().name().to_owned()).collect();
        let started = std::thread::Builder::new()
            .name("octavo-watch".into())
            .spawn(move || look_after(watch, &names, stores));
        started.map_err(|error| Error::failed(format!("cannot start a thread: {error}")))?;
    }
    Ok(())
}

fn look_after(mut watch: Watch, names: &[String], stores: Vec<String>) {
    loop {
        std::thread::sleep(PERIOD);
        for (number, change) in watch.look() {
            let (name, store) = (&names[number], &stores[number]);
            match change.is_alarming() {
                true => log::warn!("\"{name}\": {store}: {change} (octavo-serve(1), CHANGES BY OTHERS)"),
                false => log::info!("\"{name}\": {store}: {change}"),
            }
        }
    }
}

/// Files grouped by file system. Files whose file system is unknown form one group.
fn by_file_system<T>(files: &[T], path: impl Fn(&T) -> &Path) -> Vec<Vec<&T>> {
    let mut groups: BTreeMap<Option<u64>, Vec<&T>> = BTreeMap::new();
    for file in files {
        let device = std::fs::metadata(path(file)).ok().map(|metadata| metadata.dev());
        groups.entry(device).or_default().push(file);
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one hung file system stopped the checks of all files.
    #[test]
    fn files_are_grouped_by_file_system() {
        let files = ["/proc/version", "/no/such/file", "/proc/stat", "/dev/null"].map(Path::new);
        let groups = by_file_system(&files, |path| path);
        assert_eq!(groups.len(), 3, "{groups:?}");
        assert!(groups.contains(&vec![&files[0], &files[2]]), "{groups:?}");
    }
}
