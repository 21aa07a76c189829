//! The directories of a mount: whether they can be mounted, and mounts that others left there.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use octavo_s3::Address;

use crate::mounts;

/// The type of our mounts in the table of mounts.
const KIND: &str = "fuse.octavo";

/// Most dead mounts, on top of each other at one path, that are removed.
const DEAD_MAX: usize = 8;

/// Checks the directory or the prefix to mount. Returns its path without links. The error is a
/// sentence.
pub fn source(path: &Path) -> Result<PathBuf, String> {
    let shown = path.display();
    if let Some(address) = path.to_str().and_then(Address::parse) {
        let known = address.map(|address| address.to_string().into());
        return known.map_err(|why| format!("cannot mount {shown}: it {why}"));
    }
    let resolved = path.canonicalize().map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("there is no directory {shown} to mount"),
        _ => format!("cannot mount {shown}: {error}"),
    })?;
    if let Some(system) = mounts::kernel_view(&resolved) {
        return Err(format!(
            "cannot mount {shown}: it is a view of the kernel's own state ({system}), without contents to cache"
        ));
    }
    if !resolved.is_dir() {
        return Err(format!("cannot mount {shown}: it is not a directory (for a disk image: octavo serve)"));
    }
    Ok(resolved)
}

/// Checks the directory where `source`, which has no links, is to be mounted, and removes dead
/// mounts of ours there. Returns its path without links. The error is a sentence.
pub fn target(source: &Path, path: &Path) -> Result<PathBuf, String> {
    let shown = path.display();
    for _ in 0..DEAD_MAX {
        let metadata = match std::fs::metadata(path) {
            Err(error) if mounts::is_dead(&error) && is_ours(path) => {
                log::info!("removing the dead mount at {shown}, left by a program that was killed");
                mounts::detach(&mounts::resolved(path));
                continue;
            }
            Err(error) if mounts::is_dead(&error) => {
                return Err(format!("there is a dead mount of another program at {shown}: unmount it"));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(format!(
                    "cannot mount at {shown}: there is no such directory (mkdir -p {shown})"
                ));
            }
            metadata => metadata.map_err(|error| format!("cannot mount at {shown}: {error}"))?,
        };
        if !metadata.is_dir() {
            return Err(format!("cannot mount at {shown}: it is not a directory"));
        }
        let resolved = mounts::resolved(path);
        if is_ours(&resolved) {
            return Err(format!("there is an octavo mount at {shown} already: umount {shown}"));
        }
        is_outside(source, &resolved)?;
        return Ok(resolved);
    }
    Err(format!("the dead mounts at {shown} cannot be removed: unmount them"))
}

/// Removes the dead mount of a program of ours that has ended while it started.
pub fn remove_dead(path: &Path) {
    if std::fs::metadata(path).is_err_and(|error| mounts::is_dead(&error)) && is_ours(path) {
        mounts::detach(&mounts::resolved(path));
    }
}

/// Checks directories that may be mounted already. The error is a sentence.
pub fn rehearse(source: &Path, path: &Path) -> Result<(), String> {
    let source = self::source(source)?;
    let resolved = mounts::resolved(path);
    if is_ours(&resolved) { is_outside(&source, &resolved) } else { target(&source, path).map(drop) }
}

/// Refuses a directory inside the one that is mounted there. The error is a sentence.
fn is_outside(source: &Path, path: &Path) -> Result<(), String> {
    if path == source || !path.starts_with(source) {
        return Ok(());
    }
    let (source, shown) = (source.display(), path.display());
    Err(format!(
        "cannot mount at {shown}: it is inside {source}, and would contain itself; name a directory outside, or \
         {source} itself"
    ))
}

/// Whether the uppermost mount at this path is one of ours.
fn is_ours(path: &Path) -> bool {
    mounts::uppermost(path).is_some_and(|(kind, _)| kind == KIND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_cannot_be_mounted_are_refused() {
        let missing = Path::new("/no/such/directory");
        assert!(source(missing).unwrap_err().contains("there is no directory /no/such/directory"));
        assert!(source(Path::new("/etc/passwd")).unwrap_err().contains("it is not a directory"));
        for path in ["/proc", "/proc/self", "/proc/version", "/sys/kernel"] {
            assert!(source(Path::new(path)).unwrap_err().contains("it is a view of the kernel's own state"));
        }
        let usr = source(Path::new("/usr/bin/..")).unwrap();
        assert_eq!(usr, Path::new("/usr"));
        assert!(target(&usr, missing).unwrap_err().contains("mkdir -p /no/such/directory"));
        assert!(target(&usr, Path::new("/proc/version")).unwrap_err().contains("it is not a directory"));
        assert!(target(&usr, Path::new("/usr/share")).unwrap_err().contains("it is inside /usr"));
        assert_eq!(target(&usr, Path::new("/usr")).unwrap(), usr);
    }
}
