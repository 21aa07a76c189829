//! The files of mounts whose pages are cached: which parts of them are resident, and eviction.
//!
//! Files are named by their paths, byte for byte: a name that is listed evicts its file. JSON has
//! no bytes, so a path that is not UTF-8 travels in hexadecimal beside its nearest text.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use octavo::{Advice, Cache, Object};
use serde_json::{Value, json};

use super::mounts::Mounts;
use crate::control::protocol;

/// Most files of an answer: those with the most resident bytes.
const FILES_MAX: usize = 1000;

/// Parts of a file whose residency is shown.
const PARTS: u64 = 40;

/// The files below a path, or of all mounts.
pub fn list(cache: &Cache, mounts: &Mounts, below: Option<&Path>) -> Result<Value, String> {
    let found = find(mounts, below)?;
    let (count, mut resident_bytes, mut files) = (found.len(), 0, Vec::new());
    for (path, object) in found {
        let resident = resident_of(&object, 0, object.len_bytes());
        resident_bytes += resident;
        files.push((resident, path, object));
    }
    files.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    files.truncate(FILES_MAX);
    // Stores of objects do not move while their objects are open.
    let place = |object: &Object| std::ptr::from_ref(object.store());
    let mut partitions = HashMap::new();
    for partition in cache.partitions() {
        let objects = partition.objects();
        partitions.extend(objects.iter().map(|object| (place(object), partition.name().to_owned())));
    }
    let objects: Vec<Object> = files.iter().map(|(_, _, object)| object.clone()).collect();
    let stats = Object::stats_of(&objects);
    let files = files.iter().zip(stats).map(|((resident, path, object), stat)| {
        let mut file = json!({
            "path": path.to_string_lossy(),
            "partition": partitions.get(&place(object)),
            "len_bytes": object.len_bytes(),
            "resident_bytes": resident,
            "dirty_bytes": stat.dirty_bytes,
            "parts": parts(object),
        });
        if path.to_str().is_none() {
            file["path_hex"] = protocol::hex(path.as_os_str().as_bytes()).into();
        }
        file
    });
    Ok(json!({"count": count, "resident_bytes": resident_bytes, "files": files.collect::<Vec<_>>()}))
}

/// Evicts the pages of a file, or of all files below a directory.
pub fn evict(mounts: &Mounts, below: &Path) -> Result<Value, String> {
    let found = find(mounts, Some(below))?;
    let mut evicted = 0;
    for (path, object) in &found {
        let len = object.len_bytes();
        let before = resident_of(object, 0, len);
        match object.advise(0, len, Advice::DontNeed) {
            // It was closed or cut meanwhile.
            Ok(()) | Err(octavo::Error::Closed { .. } | octavo::Error::PastEnd { .. }) => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
        evicted += before.saturating_sub(resident_of(object, 0, object.len_bytes()));
    }
    Ok(json!({"count": found.len(), "evicted_bytes": evicted}))
}

/// The cached files at or below a path, with their paths.
fn find(mounts: &Mounts, below: Option<&Path>) -> Result<Vec<(PathBuf, Object)>, String> {
    let list = mounts.list();
    let is_in_a_mount = |below: &Path| list.iter().any(|mounted| is_related(mounted.served.path(), below));
    if let Some(below) = below.filter(|below| !is_in_a_mount(below)) {
        let paths: Vec<String> =
            list.iter().map(|mounted| mounted.served.path().display().to_string()).collect();
        if paths.is_empty() {
            return Err("this server has no mounts".into());
        }
        let (below, paths) = (below.display(), paths.join(", "));
        return Err(format!("{below} is in no mount of this server; mounts: {paths}"));
    }
    let mut found = Vec::new();
    for mounted in list {
        for (path, object) in mounted.served.objects() {
            let path = mounted.served.path().join(path);
            if below.is_none_or(|below| path.starts_with(below)) {
                found.push((path, object));
            }
        }
    }
    Ok(found)
}

/// Whether one of two paths is below the other.
fn is_related(mount: &Path, below: &Path) -> bool {
    mount.starts_with(below) || below.starts_with(mount)
}

/// Resident bytes of a range; none of a file that was closed or cut meanwhile.
fn resident_of(object: &Object, offset: u64, len: u64) -> u64 {
    object.resident_bytes(offset, len).unwrap_or(0)
}

/// A letter for each part of a file: `O` if all of it is resident, `o` if some is, else a dot.
fn parts(object: &Object) -> String {
    let len = object.len_bytes();
    let count = PARTS.min(len.div_ceil(object.page_bytes()));
    let bound = |part: u64| (u128::from(len) * u128::from(part) / u128::from(count.max(1))) as u64;
    let letter = |part| {
        let (begin, end) = (bound(part), bound(part + 1));
        match resident_of(object, begin, end - begin) {
            0 => '.',
            resident if resident == end - begin => 'O',
            _ => 'o',
        }
    };
    (0..count).map(letter).collect()
}
