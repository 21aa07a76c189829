//! [`Tree`]: keys with slashes as directories and files.
//!
//! A directory is what one listing told, and is believed for as long as [`Tree::valid`] says. The
//! tree numbers what the kernel has looked up, and forgets it when the kernel does.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use octavo_objects::{Error, ErrorKind, Fetcher, Meta};

use crate::client::{Client, Listed};
use crate::files::lock;

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

/// Most directories whose listings are kept.
const LISTINGS_MAX: usize = 256;

/// An entry of a directory.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Directory,
    File(Meta),
}

/// What the kernel has looked up.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The key, or the prefix without a slash at its end.
    pub key: Arc<str>,
    pub kind: Kind,
    /// How often the kernel has looked it up.
    pub lookups: u64,
}

/// A directory's entries by name.
pub(crate) type Entries = Arc<BTreeMap<String, Kind>>;

/// The objects below a prefix, as directories and files.
#[derive(Debug)]
pub(crate) struct Tree {
    fetcher: Fetcher,
    client: Client,
    prefix: String,
    /// How long a listing is believed.
    pub valid: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    nodes: HashMap<u64, Node>,
    numbers: HashMap<Arc<str>, u64>,
    next: u64,
    /// By key, with the time when the server was asked.
    listings: lru::LruCache<Arc<str>, (Instant, Entries)>,
}

impl Tree {
    pub fn new(fetcher: Fetcher, client: Client, prefix: &str, valid: Duration) -> Tree {
        let root = Node { key: prefix.into(), kind: Kind::Directory, lookups: 1 };
        let state = State {
            numbers: HashMap::from([(root.key.clone(), ROOT)]),
            nodes: HashMap::from([(ROOT, root)]),
            next: ROOT + 1,
            listings: lru::LruCache::new(LISTINGS_MAX.try_into().expect("not zero")),
        };
        Tree { fetcher, client, prefix: prefix.into(), valid, state: Mutex::new(state) }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    pub fn nodes_count(&self) -> usize {
        lock(&self.state).nodes.len()
    }

    pub fn node(&self, number: u64) -> Option<Node> {
        lock(&self.state).nodes.get(&number).cloned()
    }

    /// The path of a key below the prefix.
    pub fn path_of<'k>(&self, key: &'k str) -> &'k str {
        key.strip_prefix(&self.prefix).unwrap_or(key).trim_start_matches('/')
    }

    /// The entries of a directory. Asks the server if the last listing is too old.
    ///
    /// # Errors
    /// Those of the server.
    pub fn entries(&self, key: &Arc<str>) -> Result<Entries, Error> {
        if let Some((asked, entries)) = lock(&self.state).listings.get(key)
            && asked.elapsed() < self.valid
        {
            return Ok(entries.clone());
        }
        let asked = Instant::now();
        let mut entries = BTreeMap::new();
        for listed in self.client.list(&self.fetcher, key)? {
            match listed {
                Listed::Directory(name) => drop(entries.insert(name, Kind::Directory)),
                // A key that is a prefix of others, too: its file cannot be reached.
                Listed::Object(name, meta) => drop(entries.entry(name).or_insert(Kind::File(meta))),
            }
        }
        let entries = Arc::new(entries);
        lock(&self.state).listings.put(key.clone(), (asked, entries.clone()));
        Ok(entries)
    }

    /// Looks up a name. Returns its number, which the kernel forgets later.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; those of the server.
    pub fn look_up(&self, parent: u64, name: &str) -> Result<(u64, Node), Error> {
        let missing = |key: &str| Error::new(ErrorKind::NotFound, key, "is not there");
        let parent = self.node(parent).ok_or_else(|| missing(""))?;
        let entries = self.entries(&parent.key)?;
        let key: Arc<str> = join(&parent.key, name).into();
        let kind = entries.get(name).cloned().ok_or_else(|| missing(&key))?;
        let mut state = lock(&self.state);
        let next = state.next;
        let number = *state.numbers.entry(key.clone()).or_insert(next);
        if number == next {
            state.next += 1;
        }
        let node = state.nodes.entry(number).or_insert(Node { key, kind: kind.clone(), lookups: 0 });
        node.kind = kind;
        node.lookups += 1;
        Ok((number, node.clone()))
    }

    /// The node of a number as the last listing has it, or as it was looked up last if the
    /// directory no longer has it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a number that the kernel has forgotten; those of the server.
    pub fn refreshed(&self, number: u64) -> Result<Node, Error> {
        let missing = || Error::new(ErrorKind::NotFound, "", "is not there");
        let node = self.node(number).ok_or_else(missing)?;
        let Kind::File(_) = node.kind else { return Ok(node) };
        let (parent, name) = node.key.rsplit_once('/').unwrap_or(("", &node.key));
        let entries = self.entries(&parent.into())?;
        let kind = entries.get(name).cloned().unwrap_or(node.kind);
        let mut state = lock(&self.state);
        if let Some(known) = state.nodes.get_mut(&number) {
            known.kind = kind.clone();
        }
        Ok(Node { kind, ..node })
    }

    /// Notes what the server has told of a file.
    pub fn note(&self, number: u64, meta: &Meta) {
        if let Some(node) = lock(&self.state).nodes.get_mut(&number) {
            node.kind = Kind::File(meta.clone());
        }
    }

    /// Forgets lookups of the kernel.
    pub fn forget(&self, number: u64, lookups: u64) {
        let mut state = lock(&self.state);
        let Some(node) = state.nodes.get_mut(&number).filter(|_| number != ROOT) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0
            && let Some(node) = state.nodes.remove(&number)
        {
            state.numbers.remove(&node.key);
        }
    }
}

/// The key of an entry of a directory.
fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}
