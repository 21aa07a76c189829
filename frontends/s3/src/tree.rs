//! [`Tree`]: keys with slashes as directories and files.
//!
//! A directory is what one listing told. The tree numbers what the kernel has looked up, and
//! forgets it when the kernel does.
//!
//! - **D1** A listing is believed for [`Tree::valid`] after it has ended, and at least for as long
//!   as it took. One that began after a request came answers that request in any case.
//! - **D2** At most one listing of a directory is in flight. Requests that come meanwhile wait for
//!   it. Only if `valid` is zero they wait for the next one: the first may have passed their names
//!   before they came.
//! - **D3** If memory for a listing is missing, others are forgotten, the least recently used
//!   first.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use octavo::LineRate;
use octavo_objects::{Error, ErrorKind, Fetcher, Meta};

use crate::client::Client;
use crate::files::lock;
use crate::listing::{Kind, LeftOut, Listing};

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

/// Most directories whose listings are kept.
const LISTINGS_MAX: usize = 256;

/// Most directories whose odd keys are remembered, so that each is logged once.
const NOTED_MAX: usize = 4096;

/// What the kernel has looked up.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The key, or the prefix without a slash at its end.
    pub key: Arc<str>,
    pub kind: Kind,
    /// How often the kernel has looked it up.
    pub lookups: u64,
}

/// The objects below a prefix, as directories and files.
#[derive(Debug)]
pub(crate) struct Tree {
    fetcher: Fetcher,
    client: Client,
    prefix: String,
    /// How long a listing is believed (D1).
    pub valid: Duration,
    warnings: LineRate,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    nodes: HashMap<u64, Node>,
    numbers: HashMap<Arc<str>, u64>,
    next: u64,
    listings: lru::LruCache<Arc<str>, Kept>,
    /// By directory (D2).
    flights: HashMap<Arc<str>, Arc<Flight>>,
    /// The keys that were left out, by directory.
    noted: lru::LruCache<Arc<str>, u64>,
}

impl State {
    /// The listing that answers a request which came at this time (D1).
    fn believed(&mut self, key: &Arc<str>, came: Instant) -> Option<Arc<Listing>> {
        let kept = self.listings.get(key)?;
        (kept.begun >= came || Instant::now() < kept.until).then(|| kept.listing.clone())
    }
}

/// A listing that is kept.
#[derive(Debug)]
struct Kept {
    begun: Instant,
    /// When it ceases to be believed (D1).
    until: Instant,
    listing: Arc<Listing>,
}

/// A listing in flight.
#[derive(Debug)]
struct Flight {
    begun: Instant,
    ended: Mutex<Option<Result<Arc<Listing>, Error>>>,
    end: Condvar,
}

impl Flight {
    fn wait(&self) -> Result<Arc<Listing>, Error> {
        let mut ended = lock(&self.ended);
        loop {
            if let Some(result) = &*ended {
                return result.clone();
            }
            // The fetcher bounds the time of every listing.
            ended = self.end.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Tree {
    pub fn new(fetcher: Fetcher, client: Client, prefix: &str, valid: Duration) -> Tree {
        let root = Node { key: prefix.into(), kind: Kind::Directory, lookups: 1 };
        let state = State {
            numbers: HashMap::from([(root.key.clone(), ROOT)]),
            nodes: HashMap::from([(ROOT, root)]),
            next: ROOT + 1,
            listings: lru::LruCache::new(LISTINGS_MAX.try_into().expect("not zero")),
            flights: HashMap::new(),
            noted: lru::LruCache::new(NOTED_MAX.try_into().expect("not zero")),
        };
        Tree {
            fetcher,
            client,
            prefix: prefix.into(),
            valid,
            warnings: LineRate::default(),
            state: Mutex::new(state),
        }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Writes a warning about a listing or a read, unless there were many just now.
    pub fn warn(&self, what: fmt::Arguments<'_>) {
        let Some(suppressed) = self.warnings.admit(Instant::now()) else { return };
        if suppressed > 0 {
            log::warn!("{suppressed} warnings about listings and reads were suppressed");
        }
        log::warn!("{what}");
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

    /// The last listing of a directory, if it is believed now (D1). Waits for nothing.
    pub fn believed(&self, key: &Arc<str>) -> Option<Arc<Listing>> {
        lock(&self.state).believed(key, Instant::now())
    }

    /// The entries of a directory. Asks the server if the last listing is too old.
    ///
    /// # Errors
    /// Those of the server; [`ErrorKind::Engine`] if there is no memory for the listing.
    pub fn entries(&self, key: &Arc<str>) -> Result<Arc<Listing>, Error> {
        let came = Instant::now();
        loop {
            let flight = {
                let mut state = lock(&self.state);
                if let Some(listing) = state.believed(key, came) {
                    return Ok(listing);
                }
                match state.flights.get(key) {
                    Some(flight) => flight.clone(),
                    None => {
                        let begun = Instant::now();
                        let flight = Arc::new(Flight { begun, ended: Mutex::default(), end: Condvar::new() });
                        state.flights.insert(key.clone(), flight.clone());
                        drop(state);
                        return self.list(key, flight);
                    }
                }
            };
            let ended = flight.wait();
            if flight.begun >= came || !self.valid.is_zero() {
                return ended;
            }
        }
    }

    /// Asks the server for a listing, for all who wait for it.
    fn list(&self, key: &Arc<str>, flight: Arc<Flight>) -> Result<Arc<Listing>, Error> {
        let mut landing = Landing { tree: self, key, flight, listed: None };
        // D3.
        let mut make_room = || lock(&self.state).listings.pop_lru().is_some();
        let listed = self.client.list(&self.fetcher, key, &mut make_room).map(Arc::new);
        match &listed {
            Ok(listing) => self.note_left_out(key, &listing.left_out),
            Err(error) => self.warn(format_args!("cannot list the directory: {error}")),
        }
        landing.listed = Some(listed.clone());
        listed
    }

    /// Counts the keys that a listing has left out, and logs them once.
    fn note_left_out(&self, key: &Arc<str>, left_out: &LeftOut) {
        let before = lock(&self.state).noted.get(key).copied().unwrap_or(0);
        let Some(more) = left_out.count.checked_sub(before).filter(|more| *more > 0) else { return };
        lock(&self.state).noted.put(key.clone(), left_out.count);
        self.fetcher.note_left_out(more);
        if before == 0 {
            let example =
                left_out.example.as_ref().map(|key| format!(", such as {key:?}")).unwrap_or_default();
            let keys = if more == 1 { "1 key".to_owned() } else { format!("{more} keys") };
            log::warn!("{key:?}: left out {keys} that cannot be names of files{example}");
        }
    }

    /// Forgets the listing of the directory that has a key: it told a version that the server does
    /// not have.
    pub fn doubt(&self, key: &str) {
        lock(&self.state).listings.pop(split(key).0);
    }

    /// Looks up a name in a directory. Returns its number, which the kernel forgets later.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn look_up(&self, parent: &str, name: &str, entries: &Listing) -> Result<(u64, Node), Error> {
        let key: Arc<str> = join(parent, name).into();
        let missing = || Error::new(ErrorKind::NotFound, &key, "is not there");
        let kind = entries.get(name).ok_or_else(missing)?;
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

    /// The node of a file as the listing of its directory has it, or as it was looked up last if
    /// the directory no longer has it.
    pub fn refreshed(&self, number: u64, node: Node, entries: &Listing) -> Node {
        let (_, name) = split(&node.key);
        let kind = entries.get(name).unwrap_or(node.kind);
        let mut state = lock(&self.state);
        if let Some(known) = state.nodes.get_mut(&number) {
            known.kind = kind.clone();
        }
        Node { kind, ..node }
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

/// The end of a flight: a listing, or a panic, which must not leave others waiting.
struct Landing<'t> {
    tree: &'t Tree,
    key: &'t Arc<str>,
    flight: Arc<Flight>,
    listed: Option<Result<Arc<Listing>, Error>>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let failed = || Err(Error::new(ErrorKind::Other, self.key, "its listing was given up"));
        let listed = self.listed.take().unwrap_or_else(failed);
        let valid = self.tree.valid;
        let took = self.flight.begun.elapsed();
        let mut state = lock(&self.tree.state);
        state.flights.remove(self.key);
        if let Ok(listing) = &listed {
            let lasts = if valid.is_zero() { valid } else { valid.max(took) };
            let now = Instant::now();
            // An absurdly long time would overflow.
            let until = now.checked_add(lasts).unwrap_or(now + Duration::from_secs(1 << 30));
            let kept = Kept { begun: self.flight.begun, until, listing: listing.clone() };
            state.listings.put(self.key.clone(), kept);
        }
        drop(state);
        *lock(&self.flight.ended) = Some(listed);
        self.flight.end.notify_all();
    }
}

#[cfg(test)]
mod tests;

/// The key of an entry of a directory.
fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// The directory of a key, and its name there.
pub(crate) fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('/').unwrap_or(("", key))
}
