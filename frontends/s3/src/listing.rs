//! [`Listing`]: the entries of a directory, from the pages of a listing.
//!
//! Rules, by which keys become names. `docs/OBJECTS.md` has them as a table.
//!
//! - **L1** A key below the prefix is a file if the rest of it is a name. A rest with a slash is a
//!   directory, by its first part.
//! - **L2** The key that is the prefix itself, with its slash, marks a directory. It is no entry.
//! - **L3** A name is not empty, not `.` or `..`, and has no control character. `object_store` can
//!   ask for its key, which has at most [`KEY_BYTES_MAX`] bytes.
//! - **L4** Of a file and a directory with one name, the directory is the entry.
//! - **L5** Every other key, and one without a version, or with an entity tag that no header can
//!   have, is left out and counted. No key makes the listing fail.
//!
//! A directory may have many entries, and all of its listing is in memory. Therefore an entry takes
//! little: its name, 24 bytes, and 16 more for the usual entity tag. They are charged to the cache.

use std::cmp::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::path::Path;
use octavo::Charge;
use octavo_objects::{Error, ErrorKind, Fetcher, Meta, Version};

use crate::http::is_of_header;
use crate::page::{Found, Page};

/// The longest key of S3, which is also the longest name that the kernel takes from a FUSE server.
const KEY_BYTES_MAX: usize = 1024;

/// The longest entity tag that is kept. Those of S3 have up to about 40 bytes.
const TAG_BYTES_MAX: usize = 250;

/// The usual entity tag: 32 hexadecimal digits in quotes, kept as 16 bytes.
const TAG_PACKED: u8 = u8::MAX;

/// There is no entity tag.
const TAG_NONE: u8 = u8::MAX - 1;

/// There is no date.
const DATE_NONE: i64 = i64::MIN;

/// The first room for entries and for their names. It grows by an eighth.
const ROOM: usize = 64;

/// An entry of a directory.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Directory,
    File(Meta),
}

/// Keys that are no names of files, and are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub count: u64,
    /// The first one.
    pub example: Option<String>,
}

/// The entries of a directory.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Names and entity tags.
    bytes: Vec<u8>,
    /// By name.
    entries: Vec<Entry>,
    pub left_out: LeftOut,
    charge: Charge,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    size: u64,
    modified_ns: i64,
    /// Where the name is. The entity tag follows it.
    name_at: u32,
    name_len: u16,
    tag_len: u8,
    is_directory: bool,
}

const _: () = assert!(size_of::<Entry>() == 24);

impl Listing {
    /// An empty one, which grows.
    ///
    /// # Errors
    /// [`ErrorKind::Engine`] if the cache has no memory left.
    pub fn new(fetcher: &Fetcher, prefix: &str) -> Result<Listing, Error> {
        let charge = fetcher.charge(prefix, 0, "the listing of a directory")?;
        Ok(Listing { bytes: Vec::new(), entries: Vec::new(), left_out: LeftOut::default(), charge })
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the name of an entry, and whether it is a directory.
    pub fn entry(&self, number: usize) -> Option<(&str, bool)> {
        self.entries.get(number).map(|entry| (self.text(entry), entry.is_directory))
    }

    /// Returns what a name is.
    pub fn get(&self, name: &str) -> Option<Kind> {
        let found = self.entries.binary_search_by(|entry| self.name(entry).cmp(name.as_bytes()));
        let entry = &self.entries[found.ok()?];
        if entry.is_directory {
            return Some(Kind::Directory);
        }
        let version = Version { e_tag: self.tag(entry), id: None, modified: modified(entry.modified_ns) };
        Some(Kind::File(Meta { size: entry.size, version, details: None }))
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        name_in(&self.bytes, entry)
    }

    fn text(&self, entry: &Entry) -> &str {
        str::from_utf8(self.name(entry)).expect("names are text")
    }

    fn tag(&self, entry: &Entry) -> Option<String> {
        let begin = entry.name_at as usize + usize::from(entry.name_len);
        match entry.tag_len {
            TAG_NONE => None,
            TAG_PACKED => Some(unpack(&self.bytes[begin..begin + 16])),
            len => {
                let tag = &self.bytes[begin..begin + usize::from(len)];
                Some(str::from_utf8(tag).expect("entity tags are text").to_owned())
            }
        }
    }

    /// Adds a page of the listing of `prefix`, which ends in a slash or is empty. `make_room` gives
    /// memory back to the cache, or returns false.
    ///
    /// # Errors
    /// [`ErrorKind::Engine`] if the cache has no memory left.
    pub fn add(
        &mut self,
        prefix: &str,
        page: &Page,
        make_room: &mut dyn FnMut() -> bool,
    ) -> Result<(), Error> {
        let rest = |key: &str| key.len().saturating_sub(prefix.len());
        let names = page.objects.iter().map(|found| rest(&found.key) + found.tag_bytes());
        let bytes = names.chain(page.prefixes.iter().map(|key| rest(key))).sum();
        self.reserve(prefix, page.objects.len() + page.prefixes.len(), bytes, make_room)?;
        self.left_out.count += page.unreadable;
        for key in &page.prefixes {
            match key.strip_prefix(prefix).and_then(|rest| rest.split_once('/')) {
                Some((name, _)) if is_name(name, key) => self.push(name, None),
                _ => self.leave_out(key),
            }
        }
        for found in &page.objects {
            self.add_object(prefix, found);
        }
        Ok(())
    }

    fn add_object(&mut self, prefix: &str, found: &Found) {
        let key = &found.key;
        match key.strip_prefix(prefix) {
            // L2.
            Some("") => {}
            Some(rest) => match rest.split_once('/') {
                // A server without delimiters, or with another one.
                Some((name, _)) if is_name(name, key) => self.push(name, None),
                None if is_name(rest, key) && found.has_version() => self.push(rest, Some(found)),
                _ => self.leave_out(key),
            },
            None => self.leave_out(key),
        }
    }

    fn leave_out(&mut self, key: &str) {
        self.left_out.count += 1;
        self.left_out.example.get_or_insert_with(|| key.chars().take(80).collect());
    }

    /// Adds an entry, for which there is room. A directory has no object.
    fn push(&mut self, name: &str, found: Option<&Found>) {
        // A server without delimiters tells a directory once for each key below it.
        if found.is_none()
            && self.entries.last().is_some_and(|last| last.is_directory && self.name(last) == name.as_bytes())
        {
            return;
        }
        let name_at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name.as_bytes());
        let tag_len = match found.and_then(|found| found.e_tag.as_deref()) {
            None => TAG_NONE,
            Some(tag) => match pack(tag) {
                Some(packed) => {
                    self.bytes.extend_from_slice(&packed);
                    TAG_PACKED
                }
                None => {
                    self.bytes.extend_from_slice(tag.as_bytes());
                    tag.len() as u8
                }
            },
        };
        let modified = found.and_then(|found| found.modified);
        self.entries.push(Entry {
            size: found.map_or(0, |found| found.size),
            modified_ns: modified.and_then(nanoseconds).unwrap_or(DATE_NONE),
            name_at,
            name_len: name.len() as u16,
            tag_len,
            is_directory: found.is_none(),
        });
    }

    /// Makes room for more entries and bytes, which are charged first.
    fn reserve(
        &mut self,
        prefix: &str,
        entries: usize,
        bytes: usize,
        make_room: &mut dyn FnMut() -> bool,
    ) -> Result<(), Error> {
        let grown = |len: usize, more: usize, capacity: usize| {
            if len + more <= capacity {
                capacity
            } else {
                (len + more).max(capacity + capacity / 8).max(ROOM)
            }
        };
        let entries = grown(self.entries.len(), entries, self.entries.capacity());
        let bytes = grown(self.bytes.len(), bytes, self.bytes.capacity());
        if u32::try_from(bytes).is_err() {
            return Err(Error::new(ErrorKind::Engine, prefix, "has too many keys for a directory"));
        }
        let needed = (entries * size_of::<Entry>() + bytes) as u64;
        while let Err(error) = self.charge.resize(needed) {
            if !make_room() {
                let text = format!("the directory's {} keys and more need memory: {error}", self.len());
                return Err(Error::new(ErrorKind::Engine, prefix, text));
            }
        }
        self.entries.reserve_exact(entries - self.entries.len());
        self.bytes.reserve_exact(bytes - self.bytes.len());
        Ok(())
    }

    /// Ends the listing: puts the entries in order, and gives back what they do not need.
    pub fn finish(mut self) -> Listing {
        let bytes = &self.bytes;
        self.entries.sort_unstable_by(|one, other| {
            let names = name_in(bytes, one).cmp(name_in(bytes, other));
            names.then(match (one.is_directory, other.is_directory) {
                (true, false) => Ordering::Less,
                (false, true) => Ordering::Greater,
                _ => Ordering::Equal,
            })
        });
        let mut hidden: Option<Entry> = None;
        let mut hidden_count = 0;
        self.entries.dedup_by(|later, first| {
            let is_again = name_in(bytes, later) == name_in(bytes, first);
            if is_again && !later.is_directory {
                hidden.get_or_insert(*later);
                hidden_count += 1;
            }
            is_again
        });
        let example = hidden.map(|entry| self.text(&entry).to_owned());
        self.left_out.count += hidden_count;
        self.left_out.example = self.left_out.example.take().or(example);
        self.entries.shrink_to_fit();
        self.bytes.shrink_to_fit();
        let needed = self.entries.capacity() * size_of::<Entry>() + self.bytes.capacity();
        // Less cannot fail.
        let _ = self.charge.resize(self.charge.bytes().min(needed as u64));
        self
    }
}

impl Found {
    /// The bytes that the entity tag takes in a listing.
    fn tag_bytes(&self) -> usize {
        match &self.e_tag {
            Some(tag) if pack(tag).is_some() => 16,
            Some(tag) => tag.len().min(TAG_BYTES_MAX),
            None => 0,
        }
    }

    /// Whether the object can be told from its other versions.
    fn has_version(&self) -> bool {
        match &self.e_tag {
            Some(tag) => tag.len() <= TAG_BYTES_MAX && tag.bytes().all(is_of_header),
            None => self.modified.and_then(nanoseconds).is_some(),
        }
    }
}

fn name_in<'b>(bytes: &'b [u8], entry: &Entry) -> &'b [u8] {
    let begin = entry.name_at as usize;
    &bytes[begin..begin + usize::from(entry.name_len)]
}

/// Whether a part of a key can be a name (L3).
fn is_name(name: &str, key: &str) -> bool {
    key.len() <= KEY_BYTES_MAX && !name.is_empty() && Path::parse(name).is_ok()
}

/// The bytes of an entity tag of 32 hexadecimal digits in quotes.
fn pack(tag: &str) -> Option<[u8; 16]> {
    let digits = tag.strip_prefix('"')?.strip_suffix('"')?.as_bytes();
    let mut packed = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in packed.iter_mut().zip(digits.as_chunks::<2>().0) {
        let digit = |letter: u8| match letter {
            b'0'..=b'9' => Some(letter - b'0'),
            b'a'..=b'f' => Some(letter - b'a' + 10),
            _ => None,
        };
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(packed)
}

fn unpack(packed: &[u8]) -> String {
    let digits: String = packed.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digits}\"")
}

fn nanoseconds(time: SystemTime) -> Option<i64> {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).ok(),
        Err(before) => i64::try_from(before.duration().as_nanos()).ok().map(|before| -before),
    }
}

fn modified(nanoseconds: i64) -> Option<SystemTime> {
    if nanoseconds == DATE_NONE {
        return None;
    }
    let since = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) }
}

#[cfg(test)]
mod tests {
    use octavo::{Cache, CacheConfig};
    use octavo_objects::ObjectsConfig;

    use super::*;

    fn fetcher(memory_max_bytes: u64) -> (Cache, Fetcher) {
        let cache = Cache::new(CacheConfig { memory_max_bytes, ..CacheConfig::default() }).unwrap();
        let fetcher = Fetcher::new(&cache, ObjectsConfig::default()).unwrap();
        (cache, fetcher)
    }

    fn object(key: &str) -> Found {
        Found { key: key.into(), size: 5, e_tag: Some("\"e\"".into()), modified: None }
    }

    fn page(keys: &[&str], prefixes: &[&str]) -> Page {
        let objects = keys.iter().map(|key| object(key)).collect();
        Page { objects, prefixes: prefixes.iter().map(|&key| key.into()).collect(), ..Page::default() }
    }

    fn no_room() -> bool {
        false
    }

    fn listing(prefix: &str, pages: &[Page]) -> Listing {
        let (_cache, fetcher) = fetcher(64 << 20);
        let mut listing = Listing::new(&fetcher, prefix).unwrap();
        for page in pages {
            listing.add(prefix, page, &mut no_room).unwrap();
        }
        listing.finish()
    }

    fn names(listing: &Listing) -> Vec<String> {
        let names = (0..listing.len()).map(|number| listing.entry(number).unwrap());
        names
            .map(|(name, is_directory)| if is_directory { format!("{name}/") } else { name.into() })
            .collect()
    }

    #[test]
    fn an_odd_key_is_left_out_and_counted_and_the_others_are_there() {
        let long = format!("d/{}", "n".repeat(1100));
        let odd = [
            "d/.",
            "d/..",
            "d/ctl\u{1}",
            "d/tab\there",
            "d/new\nline",
            "d/del\u{7f}",
            "d//x",
            "d/./y",
            "/x",
            "other/z",
            "dx",
            &long,
        ];
        for key in odd {
            let listing = listing("d/", &[page(&["d/good", key], &["d/sub/"])]);
            assert_eq!(names(&listing), ["good", "sub/"], "{key:?}");
            assert_eq!(listing.left_out.count, 1, "{key:?}");
            assert_eq!(listing.left_out.example.as_deref(), Some(&key[..key.len().min(80)]));
        }
        for prefix in ["d//", "d/./", "d/../", "/", "../", "d/\u{1}/", "other/", "d/"] {
            let listing = listing("d/", &[page(&["d/good"], &["d/sub/", prefix])]);
            assert_eq!((names(&listing).len(), listing.left_out.count), (2, 1), "{prefix:?}");
        }
        let unreadable = Page { unreadable: 3, ..Page::default() };
        assert_eq!(listing("d/", &[unreadable]).left_out, LeftOut { count: 3, example: None });
        let mut without_version = object("d/a");
        without_version.e_tag = None;
        let page = Page { objects: vec![without_version], ..Page::default() };
        assert_eq!(listing("d/", &[page]).left_out.count, 1);
    }

    #[test]
    fn strange_names_that_can_be_opened_are_there() {
        let strange = ["a b", "a+b", "%2e%2e", "a#b?c", "*", "~", "\\back", "\u{e9}\u{4e2d}\u{1f600}", "..."];
        let keys: Vec<String> = strange.iter().map(|name| format!("d/{name}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let listing = listing("d/", &[page(&keys, &[])]);
        assert_eq!((listing.len(), listing.left_out.count), (strange.len(), 0));
        for name in strange {
            assert!(matches!(listing.get(name), Some(Kind::File(_))), "{name}");
        }
    }

    #[test]
    fn a_marker_is_a_directory_and_hides_a_file_of_its_name() {
        let inside = listing("d/", &[page(&["d/", "d/a"], &[])]);
        assert_eq!((names(&inside), inside.left_out.count), (vec!["a".to_owned()], 0));
        let both = listing("", &[page(&["d", "e"], &["d/"])]);
        assert_eq!((names(&both), both.left_out.count), (vec!["d/".to_owned(), "e".to_owned()], 1));
        assert_eq!(both.left_out.example.as_deref(), Some("d"));
        // A server that ignores the delimiter.
        let deep =
            listing("d/", &[page(&["d/s/", "d/s/a", "d/s/b", "d/z"], &[]), page(&["d/s/c"], &["d/s/"])]);
        assert_eq!((names(&deep), deep.left_out.count), (vec!["s/".to_owned(), "z".to_owned()], 0));
    }

    #[test]
    fn an_entry_has_what_the_server_told() {
        let tags = [
            "\"0123456789abcdef0123456789abcdef\"",
            "\"0123456789ABCDEF0123456789ABCDEF\"",
            "\"x-2\"",
            "W/\"y\"",
        ];
        let time = UNIX_EPOCH + Duration::from_millis(1_795_737_600_123);
        for (tag, modified) in
            tags.iter().map(Some).chain([None]).zip([Some(time), None, Some(time)].into_iter().cycle())
        {
            let Some(modified) = modified.or(tag.map(|_| UNIX_EPOCH)) else { continue };
            let e_tag = tag.map(|&tag| tag.to_owned());
            let found =
                Found { key: "a".into(), size: 1 << 40, e_tag: e_tag.clone(), modified: Some(modified) };
            let page = Page { objects: vec![object("b"), found], ..Page::default() };
            let listing = listing("", &[page]);
            let Some(Kind::File(meta)) = listing.get("a") else { panic!("no file") };
            assert_eq!((meta.size, &meta.version.e_tag), (1 << 40, &e_tag));
            assert_eq!(meta.version.modified, Some(modified));
        }
        assert!(listing("", &[]).get("a").is_none());
    }

    #[test]
    fn a_listing_without_end_is_bounded_by_the_memory_of_the_cache() {
        let (cache, fetcher) = fetcher(64 << 20);
        let before = cache.stat().buffers_used_bytes;
        let mut listing = Listing::new(&fetcher, "d").unwrap();
        let mut rooms = 2;
        let mut make_room = || {
            rooms -= 1;
            rooms > 0
        };
        let ended = (0..10_000).find_map(|number| {
            let keys: Vec<String> =
                (0..1000).map(|key| format!("d/{number}-{key}-{}", "x".repeat(200))).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            listing.add("d/", &page(&keys, &[]), &mut make_room).err()
        });
        let error = ended.expect("memory has an end");
        assert_eq!((error.kind(), rooms), (ErrorKind::Engine, 0), "{error}");
        let used = cache.stat().buffers_used_bytes;
        assert!(used <= cache.stat().buffers_max_bytes && used > before, "{used}");
        drop(listing);
        assert_eq!(cache.stat().buffers_used_bytes, before);
    }
}
