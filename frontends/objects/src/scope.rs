//! [`Scope`]: the objects of one store, as one holder of credentials sees them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};

use crate::config::{Hint, Usage};
use crate::core::{Inner, Objects};
use crate::entry::{Entry, Key};
use crate::error::{Error, ErrorKind};
use crate::origin::{Meta, Origin};
use crate::stat::add;

/// Pieces of one read that are in flight together.
const PIECES_TOGETHER: usize = 4;

/// The objects of one store, as one holder of credentials sees them, from [`Objects::scope`]. Cheap
/// to clone.
#[derive(Clone)]
pub struct Scope {
    objects: Objects,
    name: Arc<str>,
    origin: Arc<dyn Origin>,
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An object as the server has confirmed it, and its bytes.
pub struct Got {
    /// The object's metadata.
    pub meta: Meta,
    /// The range of the object that follows.
    pub range: Range<u64>,
    /// The bytes in order, all of the version in `meta`. If the object changes meanwhile, the
    /// stream ends with [`ErrorKind::Changed`].
    pub body: BoxStream<'static, Result<Bytes, Error>>,
}

impl fmt::Debug for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Got").field("meta", &self.meta).field("range", &self.range).finish_non_exhaustive()
    }
}

impl Objects {
    /// Returns the objects of one store, as one holder of credentials sees them. Pages are shared
    /// by all scopes of one name, and by no others: give each set of credentials a name of its
    /// own, such as `s3://bucket as reports`.
    pub fn scope(&self, name: &str, origin: Arc<dyn Origin>) -> Scope {
        Scope { objects: self.clone(), name: name.into(), origin }
    }
}

impl Scope {
    /// Returns the cache of all objects.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.objects.0
    }

    /// Asks the server for the size and version of an object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and the other errors of the server; [`ErrorKind::Unavailable`] after
    /// several attempts.
    pub async fn head(&self, path: &str) -> Result<Meta, Error> {
        self.inner().fetcher.head(&self.origin, path).await
    }

    /// Notes what a listing told of an object, so that a read within `meta_ttl` need not ask again.
    pub fn note(&self, path: &str, meta: &Meta, asked: Instant) {
        if self.objects.config().meta_ttl.is_zero() || asked.elapsed() >= self.objects.config().meta_ttl {
            return;
        }
        let Ok(key) = self.key(path, &Hint::default()) else { return };
        if let Some(entry) = self.inner().find(&key).filter(|entry| entry.is_version(meta)) {
            entry.confirm(Some(asked));
        }
    }

    /// Forgets an object, which this process has changed: its pages are dropped, and the next read
    /// asks the server.
    pub fn forget(&self, path: &str) {
        self.inner().forget(&self.name, path);
    }

    fn key(&self, path: &str, hint: &Hint) -> Result<Key, Error> {
        let partition = self.inner().partition_of(path, hint)?;
        Ok(Key { scope: self.name.clone(), partition, path: path.into() })
    }

    /// Returns the present version of an object: from memory if it was confirmed within `meta_ttl`,
    /// else by a HEAD.
    async fn open(&self, key: &Key, must_ask: bool) -> Result<Arc<Entry>, Error> {
        let inner = self.inner();
        let ttl = self.objects.config().meta_ttl;
        if let Some(entry) = inner.find(key).filter(|entry| !must_ask && entry.is_fresh(ttl)) {
            entry.source.use_origin(&self.origin);
            return Ok(entry);
        }
        let asked = (Instant::now(), inner.forgets());
        let meta = match self.head(&key.path).await {
            Ok(meta) => meta,
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    inner.forget(&self.name, &key.path);
                }
                return Err(error);
            }
        };
        meta.must_be_known(&key.path)?;
        inner.keep(key, &meta, &self.origin, Some(asked))
    }

    /// Reads a part of an object. `choose` gets the metadata, and returns the range to read, or an
    /// error, such as that of a condition that the object does not meet. Called once more if the
    /// object turns out to have changed before the first byte.
    ///
    /// # Errors
    /// The errors of `choose`; [`ErrorKind::NotFound`] and the other errors of the server;
    /// [`ErrorKind::Range`] if the range does not lie inside the object; [`ErrorKind::Changed`] if
    /// the object changes again and again.
    pub async fn get<E: From<Error>>(
        &self,
        path: &str,
        hint: &Hint,
        choose: impl Fn(&Meta) -> Result<Range<u64>, E> + Send,
    ) -> Result<Got, E> {
        let key = self.key(path, hint)?;
        add(&self.inner().shared().counters.reads, 1);
        let mut must_ask = false;
        loop {
            let entry = self.open(&key, must_ask).await?;
            let range = choose(entry.meta())?;
            self.check(&entry, &range)?;
            let usage = hint.usage;
            // A short range is read whole, so that it may begin again if the object has changed.
            let unit = u64::from(self.objects.config().fill_bytes);
            let whole = range.end <= range.start.saturating_add(PIECES_TOGETHER as u64 * unit);
            let begin = if whole { range.end } else { (range.start / unit + 1) * unit };
            let first = read_range(&entry, range.start..begin, usage).await;
            let pieces = entry.source.units(begin..range.end);
            match first {
                Ok(first) => {
                    let (meta, reader) = (entry.meta().clone(), entry.clone());
                    let later = stream::iter(pieces)
                        .map(move |piece| {
                            let entry = reader.clone();
                            async move { entry.read(piece, usage).await }
                        })
                        .buffered(PIECES_TOGETHER);
                    let scope = self.clone();
                    let first = stream::once(async move { Ok(first) });
                    let body = first.chain(later).inspect_err(move |error| scope.note_error(&entry, error));
                    return Ok(Got { meta, range, body: body.boxed() });
                }
                Err(error) => {
                    self.note_error(&entry, &error);
                    if error.kind() != ErrorKind::Changed || must_ask {
                        return Err(error.into());
                    }
                    must_ask = true;
                }
            }
        }
    }

    /// Reads several ranges of an object, all of one version.
    ///
    /// # Errors
    /// Those of [`get`](Scope::get).
    pub async fn get_ranges<E: From<Error>>(
        &self,
        path: &str,
        hint: &Hint,
        choose: impl Fn(&Meta) -> Result<Vec<Range<u64>>, E> + Send,
    ) -> Result<Vec<Bytes>, E> {
        let key = self.key(path, hint)?;
        add(&self.inner().shared().counters.reads, 1);
        let mut must_ask = false;
        loop {
            let entry = self.open(&key, must_ask).await?;
            let ranges = choose(entry.meta())?;
            for range in &ranges {
                self.check(&entry, range)?;
            }
            match read_all(&entry, ranges, hint.usage).await {
                Ok(parts) => return Ok(parts),
                Err(error) => {
                    self.note_error(&entry, &error);
                    if error.kind() != ErrorKind::Changed || must_ask {
                        return Err(error.into());
                    }
                    must_ask = true;
                }
            }
        }
    }

    fn check(&self, entry: &Entry, range: &Range<u64>) -> Result<(), Error> {
        let size = entry.meta().size;
        if range.start <= range.end && range.end <= size {
            return Ok(());
        }
        let text = format!("bytes {range:?} do not lie inside its {size} bytes");
        Err(Error::new(ErrorKind::Range, &entry.key.path, text))
    }

    /// Drops an entry whose version is gone.
    fn note_error(&self, entry: &Arc<Entry>, error: &Error) {
        if error.kind() == ErrorKind::Changed {
            self.inner().forget_entry(&entry.key, entry);
        }
    }
}

/// Reads ranges, several at a time.
async fn read_all(entry: &Arc<Entry>, ranges: Vec<Range<u64>>, usage: Usage) -> Result<Vec<Bytes>, Error> {
    let read = |range| {
        let entry = entry.clone();
        async move { read_range(&entry, range, usage).await }
    };
    stream::iter(ranges.into_iter().map(read)).buffered(2 * PIECES_TOGETHER).try_collect().await
}

/// Reads a range as a whole.
async fn read_range(entry: &Arc<Entry>, range: Range<u64>, usage: Usage) -> Result<Bytes, Error> {
    let mut pieces = entry.source.units(range.clone());
    let (first, rest) = (pieces.next(), pieces);
    let Some(first) = first else { return Ok(Bytes::new()) };
    if first == range {
        return entry.read(range, usage).await;
    }
    let pieces = stream::iter(std::iter::once(first).chain(rest));
    let mut parts = pieces
        .map(|piece| {
            let entry = entry.clone();
            async move { entry.read(piece, usage).await }
        })
        .buffered(PIECES_TOGETHER);
    let mut whole = BytesMut::with_capacity((range.end - range.start) as usize);
    while let Some(part) = parts.try_next().await? {
        whole.extend_from_slice(&part);
    }
    Ok(whole.freeze())
}
