//! [`Contents`]: the objects of a server, and their versions.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;

/// Versions of an object that are kept without identifiers: the present one and the one before.
const VERSIONS_KEPT: usize = 2;

/// The objects of a server by their paths (`bucket/key`).
#[derive(Debug)]
pub struct Contents {
    objects: Mutex<BTreeMap<String, Object>>,
    directory: Option<PathBuf>,
    version_ids: bool,
    /// Numbers versions.
    versions: AtomicU64,
}

#[derive(Debug, Default)]
struct Object {
    /// The oldest first.
    versions: Vec<Arc<Version>>,
    deleted: bool,
}

/// One version of an object.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub data: Data,
    pub size: u64,
    /// With its quotes.
    pub e_tag: String,
    pub id: Option<String>,
    pub modified: SystemTime,
    /// Headers that the writer sent and readers get back.
    pub headers: Vec<(String, String)>,
}

/// Where the bytes of a version are.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Memory(Bytes),
    File(Arc<File>),
}

impl Version {
    /// Returns the bytes of a range, which lies inside the object.
    ///
    /// # Errors
    /// Those of the file, also if it has become shorter.
    pub fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        match &self.data {
            Data::Memory(bytes) => Ok(bytes.slice(range.start as usize..range.end as usize)),
            Data::File(file) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                file.read_exact_at(&mut bytes, range.start)?;
                Ok(bytes.into())
            }
        }
    }
}

/// Why an object was not written.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A condition does not hold.
    Condition,
    /// The directory is read only.
    ReadOnly,
}

/// When a write is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Always,
    /// Only if there is no object.
    Absent,
    /// Only if the object has this entity tag.
    Tag(String),
}

impl Contents {
    pub(crate) fn new(directory: Option<PathBuf>, version_ids: bool) -> Contents {
        Contents { objects: Mutex::default(), directory, version_ids, versions: AtomicU64::new(0) }
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Object>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates or replaces an object in memory. Returns its entity tag.
    pub fn put(&self, path: &str, bytes: impl Into<Bytes>) -> String {
        self.write(path, bytes.into(), Vec::new(), &Condition::Always).expect("no condition").e_tag.clone()
    }

    /// Removes an object from memory, if there is one.
    pub fn delete(&self, path: &str) {
        let mut objects = self.objects();
        match objects.get_mut(path) {
            Some(object) if self.version_ids => object.deleted = true,
            Some(_) => drop(objects.remove(path)),
            None => {}
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.directory.is_some()
    }

    pub(crate) fn write(
        &self,
        path: &str,
        bytes: Bytes,
        headers: Vec<(String, String)>,
        condition: &Condition,
    ) -> Result<Arc<Version>, Refused> {
        if self.is_read_only() {
            return Err(Refused::ReadOnly);
        }
        let mut objects = self.objects();
        let present = objects.get(path).filter(|object| !object.deleted);
        let present = present.and_then(|object| object.versions.last());
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => present.is_none(),
            Condition::Tag(tag) => present.is_some_and(|version| version.e_tag == *tag),
        };
        if !holds {
            return Err(Refused::Condition);
        }
        // Relaxed: any unused number will do.
        let number = self.versions.fetch_add(1, Ordering::Relaxed) + 1;
        let version = Arc::new(Version {
            size: bytes.len() as u64,
            data: Data::Memory(bytes),
            e_tag: format!("\"{number:032x}\""),
            id: self.version_ids.then(|| format!("version-{number}")),
            modified: SystemTime::now(),
            headers,
        });
        let object = objects.entry(path.to_owned()).or_default();
        object.deleted = false;
        object.versions.push(version.clone());
        if !self.version_ids && object.versions.len() > VERSIONS_KEPT {
            object.versions.remove(0);
        }
        Ok(version)
    }

    /// Returns the present version of an object.
    pub(crate) fn find(&self, path: &str) -> Option<Arc<Version>> {
        if let Some(directory) = &self.directory {
            return open_file(directory, path);
        }
        let objects = self.objects();
        let object = objects.get(path).filter(|object| !object.deleted)?;
        object.versions.last().cloned()
    }

    /// Returns the version with this identifier.
    pub(crate) fn find_version(&self, path: &str, id: &str) -> Option<Arc<Version>> {
        let objects = self.objects();
        let mut versions = objects.get(path)?.versions.iter();
        versions.find(|version| version.id.as_deref() == Some(id)).cloned()
    }

    /// Returns the version before the present one.
    pub(crate) fn find_old(&self, path: &str) -> Option<Arc<Version>> {
        let objects = self.objects();
        objects.get(path)?.versions.iter().rev().nth(1).cloned()
    }

    /// Returns all objects of a bucket in the order of their keys, whose names are returned without
    /// the bucket.
    pub(crate) fn list(&self, bucket: &str) -> Vec<(String, Arc<Version>)> {
        if let Some(directory) = &self.directory {
            let mut keys = Vec::new();
            collect_files(&directory.join(bucket), "", &mut keys);
            keys.sort();
            let found = |key: String| {
                let version = open_file(directory, &format!("{bucket}/{key}"))?;
                Some((key, version))
            };
            return keys.into_iter().filter_map(found).collect();
        }
        let start = format!("{bucket}/");
        let objects = self.objects();
        let present = objects.range(start.clone()..).take_while(|(path, _)| path.starts_with(&start));
        present
            .filter(|(_, object)| !object.deleted)
            .filter_map(|(path, object)| {
                Some((path[start.len()..].to_owned(), object.versions.last()?.clone()))
            })
            .collect()
    }
}

/// Opens a file below the directory. Its version is its inode, its size and its time.
fn open_file(directory: &Path, path: &str) -> Option<Arc<Version>> {
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return None;
    }
    let file = File::open(directory.join(path)).ok()?;
    let told = file.metadata().ok().filter(|told| told.is_file())?;
    Some(Arc::new(Version {
        size: told.len(),
        data: Data::File(Arc::new(file)),
        e_tag: format!("\"{:x}-{:x}-{:x}.{:x}\"", told.ino(), told.len(), told.mtime(), told.mtime_nsec()),
        id: None,
        modified: told.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        headers: Vec::new(),
    }))
}

/// Adds the keys of all files below a directory.
fn collect_files(directory: &Path, prefix: &str, keys: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let key = format!("{prefix}{name}");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect_files(&entry.path(), &format!("{key}/"), keys),
            Ok(_) => keys.push(key),
            Err(_) => {}
        }
    }
}
