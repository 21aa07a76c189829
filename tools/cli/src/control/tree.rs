//! The content of the control file system: directories and files by number, reading and writing.
//!
//! A partition `host/vm1` is the directory `vm1` in `host`; the directories above partitions are
//! groups. Each file is a setting of `keys`, under its name there. If a part of a partition's name
//! is also a file's name, or cannot be a file name, its first byte is encoded, as `%6D`. Not here:
//! FUSE, which is in `mount`.
//!
//! The tree stores nothing about a partition. Every request looks the partition up by name, so new
//! and removed partitions take effect at once. A directory keeps its number for as long as the
//! server lives.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use octavo::{Cache, Owed, Partition};

use super::groups;
use super::keys::{self, KEYS, Key};
use crate::limits;
use crate::lock::lock;

/// How many numbers a directory takes: its own first, then those of its files.
const NUMBERS: u64 = 64;
const _: () = assert!(KEYS.len() < NUMBERS as usize);

/// The longest value that can be written, in bytes.
const VALUE_BYTES_MAX: usize = 4096;

/// The only file of a group that is not a limit.
const CURRENT: &str = "current";

/// The number of the root.
pub const ROOT: u64 = 1;

/// The tree of a cache.
pub struct Tree {
    cache: Cache,
    paths: Mutex<Paths>,
}

/// The paths of directories. A directory's index here determines its number.
struct Paths {
    by_place: Vec<String>,
    places: HashMap<String, u64>,
}

/// A directory or a file.
pub struct Node {
    /// Its number.
    pub number: u64,
    /// The permissions of a file; `None`: it is a directory.
    pub file: Option<u16>,
}

/// What a directory represents.
enum Directory {
    Root,
    Partition(Partition),
    /// A group's name.
    Group(String),
}

/// The entries of a directory, by name.
type Entries = BTreeMap<String, Node>;

impl Tree {
    /// The tree of a cache.
    pub fn new(cache: Cache) -> Tree {
        let root = String::new();
        let paths = Paths { by_place: vec![root.clone()], places: HashMap::from([(root, 0)]) };
        Tree { cache, paths: Mutex::new(paths) }
    }

    /// The node of that number, if it still exists.
    pub fn node(&self, number: u64) -> Option<Node> {
        let (path, key) = self.place(number)?;
        let directory = self.directory(&path)?;
        match key {
            None => Some(Node { number, file: None }),
            Some(key) => directory.has(key).then_some(Node { number, file: Some(mode(key)) }),
        }
    }

    /// The entries of a directory; `None` if the number is not a directory's.
    pub fn entries(&self, number: u64) -> Option<Entries> {
        let (path, None) = self.place(number)? else { return None };
        let directory = self.directory(&path)?;
        let mut entries = Entries::new();
        for (at, key) in KEYS.iter().enumerate().filter(|(_, key)| directory.has(key)) {
            let node = Node { number: number + 1 + at as u64, file: Some(mode(key)) };
            entries.insert(key.name.into(), node);
        }
        let below = if path.is_empty() { String::new() } else { path + "/" };
        for name in self.names() {
            let path = path_of(&name);
            let Some(rest) = path.strip_prefix(&below).filter(|rest| !rest.is_empty()) else { continue };
            let name = rest.split('/').next().unwrap_or(rest);
            let path = format!("{below}{name}");
            entries.entry(name.into()).or_insert_with(|| Node { number: self.number(path), file: None });
        }
        Some(entries)
    }

    /// The text of a file now; `None` if the number is not a readable file's.
    pub fn read(&self, number: u64) -> Option<String> {
        let (path, Some(key)) = self.place(number)? else { return None };
        let directory = self.directory(&path)?;
        let mut text = match directory {
            Directory::Partition(partition) => key.text(&partition)?,
            Directory::Group(_) if key.name == CURRENT => self.current(&path).to_string(),
            Directory::Group(group) => limits::text(&groups::limits(&self.cache, &group), key.name)?,
            Directory::Root => return None,
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Some(text)
    }

    /// Writes a value to a file. The error is a sentence.
    pub fn write(&self, number: u64, value: &[u8]) -> Result<(), String> {
        let gone = || "it no longer exists".to_owned();
        let (path, Some(key)) = self.place(number).ok_or_else(gone)? else {
            return Err("it is a directory".into());
        };
        let named = |why: String| format!("{path}/{}: {why}", key.name);
        let text = Some(value).filter(|value| value.len() <= VALUE_BYTES_MAX);
        let text = text.and_then(|value| std::str::from_utf8(value).ok()).map(str::trim);
        let text = text.filter(|text| !text.contains(char::is_control));
        let text = text.ok_or_else(|| named("a value is one line of text".into()))?;
        let directory = self.directory(&path).ok_or_else(gone)?;
        // The write returns at once. The log and `current` show memory that a store keeps from
        // being freed.
        let told = |owed: Owed| {
            keys::go_on_with(&owed, &self.cache);
            if !owed.is_nothing() {
                let bytes = owed.bytes;
                log::warn!(
                    "{path}/{}: {bytes} bytes are still to be given back: its store does not answer",
                    key.name
                );
            }
        };
        match directory {
            Directory::Partition(partition) => {
                keys::set(&self.cache, &partition, key.name, text).map(told).map_err(named)
            }
            Directory::Group(group) => {
                let mut limits = groups::limits(&self.cache, &group);
                limits::change(&mut limits, key.name, text).map_err(named)?;
                let set = format!("{}={text}", key.name);
                groups::change(&self.cache, &group, limits, &set).map(told).map_err(named)
            }
            Directory::Root => Err(gone()),
        }
    }

    /// The names of all partitions and groups.
    fn names(&self) -> Vec<String> {
        let partitions = self.cache.partitions();
        let groups = self.cache.groups().into_iter().map(|(name, _)| name);
        partitions.iter().map(|partition| partition.name().to_owned()).chain(groups).collect()
    }

    fn directory(&self, path: &str) -> Option<Directory> {
        if path.is_empty() {
            return Some(Directory::Root);
        }
        let partitions = self.cache.partitions();
        let partition = partitions.into_iter().find(|partition| path_of(partition.name()) == path);
        partition.map(Directory::Partition).or_else(|| {
            let group = self.names().into_iter().find_map(|name| {
                let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
                ends.map(|end| &name[..end]).find(|name| path_of(name) == path).map(str::to_owned)
            });
            group.map(Directory::Group)
        })
    }

    /// The total of the bytes charged to the partitions below a directory.
    fn current(&self, path: &str) -> u64 {
        let partitions = self.cache.partitions().into_iter();
        let below = partitions.filter(|partition| path_of(partition.name()).starts_with(&format!("{path}/")));
        below.map(|partition| partition.stat().charged_bytes).sum()
    }

    /// The directory that a number belongs to, and the file in it.
    fn place(&self, number: u64) -> Option<(String, Option<&'static Key>)> {
        let place = number.checked_sub(ROOT)?;
        let paths = lock(&self.paths);
        let path = paths.by_place.get(usize::try_from(place / NUMBERS).ok()?)?.clone();
        match (place % NUMBERS) as usize {
            0 => Some((path, None)),
            at => Some((path, Some(KEYS.get(at - 1)?))),
        }
    }

    /// The number of a directory.
    fn number(&self, path: String) -> u64 {
        let mut paths = lock(&self.paths);
        let next = paths.by_place.len() as u64;
        let place = *paths.places.entry(path.clone()).or_insert(next);
        if place == next {
            paths.by_place.push(path);
        }
        place * NUMBERS + ROOT
    }
}

impl Directory {
    fn has(&self, key: &Key) -> bool {
        match self {
            Directory::Partition(_) => true,
            Directory::Group(_) => key.name == CURRENT || limits::NAMES.contains(&key.name),
            Directory::Root => false,
        }
    }
}

/// The path of a partition or group of that name.
pub fn path_of(name: &str) -> String {
    let parts = name.split('/').filter(|part| !part.is_empty()).map(|part| {
        let mut part = part.replace('%', "%25").replace('\0', "%00");
        if part == "." || part == ".." || KEYS.iter().any(|key| key.name == part) {
            let first = format!("%{:02X}", part.as_bytes()[0]);
            part.replace_range(..1, &first);
        }
        part
    });
    parts.collect::<Vec<_>>().join("/")
}

fn mode(key: &Key) -> u16 {
    match (key.is_readable(), key.is_writable()) {
        (_, false) => 0o444,
        (true, true) => 0o644,
        (false, true) => 0o200,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::{CacheConfig, PartitionConfig};

    #[test]
    fn names_are_directories_and_settings_are_files() {
        let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() }).unwrap();
        for name in ["host/vm1/disk0", "/host/vm2", "host/min", "alone"] {
            cache
                .partition(PartitionConfig { max_bytes: Some(4 << 20), ..PartitionConfig::new(name) })
                .unwrap();
        }
        let tree = Tree::new(cache);
        let names = |number| tree.entries(number).unwrap().into_keys().collect::<Vec<_>>();
        let find = |path: &str| {
            path.split('/').fold(ROOT, |number, name| tree.entries(number).unwrap()[name].number)
        };
        assert_eq!(names(ROOT), ["alone", "host"]);
        let host = ["%6Din", "current", "high", "low", "max", "min", "vm1", "vm2", "weight"];
        assert_eq!(names(find("host")), host);
        assert_eq!(names(find("alone")).len(), KEYS.len());
        assert_eq!(tree.read(find("alone/max")).unwrap(), "4194304\n");
        tree.write(find("alone/max"), b" 8MiB\n").unwrap();
        assert_eq!(tree.read(find("alone/max")).unwrap(), "8388608\n");
        for (file, value, why) in [
            ("alone/max", &b"much"[..], "alone/max: \"much\" does not begin with a number"),
            ("alone/max", b"1\n2", "a value is one line"),
            ("alone/max", &[b'1'; VALUE_BYTES_MAX + 1], "a value is one line"),
            ("alone/max", b"\xff", "a value is one line"),
            ("alone/current", b"1", "can only be read"),
            ("host/current", b"1", "can only be read"),
            ("host/weight", b"0", "weight is 0"),
            ("host", b"0", "it is a directory"),
        ] {
            let error = tree.write(find(file), value).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(tree.read(find("host/max")).unwrap(), "max\n");
        tree.write(find("host/max"), b"64MiB").unwrap();
        assert_eq!(tree.read(find("host/max")).unwrap(), "67108864\n");
        assert!(tree.read(find("host/current")).unwrap().trim().parse::<u64>().unwrap() > 0);
        assert!(tree.node(ROOT + 63).is_none() && tree.node(0).is_none() && tree.node(u64::MAX).is_none());
    }
}
