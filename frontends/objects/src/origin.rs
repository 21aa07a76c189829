//! [`Origin`]: where objects come from. The only thing that a client library has to provide.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::error::{Error, ErrorKind};

/// A store of remote objects, with the credentials that reach it. A client library implements it
/// for its own store; the core asks it for metadata and ranges, and checks every answer.
///
/// Requests run on the core's own runtime, so they outlive the task and the runtime that caused
/// them. An implementation makes one attempt: the core tries again.
pub trait Origin: Send + Sync + 'static {
    /// Asks for the metadata of the object that is at `path` now.
    fn head<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Meta, Error>>;

    /// Asks for the bytes of a range, on the condition that the object is still `version`. `range`
    /// is not empty and lies inside the object.
    fn get<'a>(
        &'a self,
        path: &'a str,
        range: Range<u64>,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Answer, Error>>;
}

/// What the server says of an object.
#[derive(Clone)]
pub struct Meta {
    /// Length in bytes.
    pub size: u64,
    /// Which version it is.
    pub version: Version,
    /// What the client library wants back with the metadata, such as headers.
    pub details: Option<Arc<dyn Any + Send + Sync>>,
}

impl Meta {
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the version is not known.
    pub(crate) fn must_be_known(&self, path: &str) -> Result<(), Error> {
        let text = "the server tells no entity tag (ETag), no version and no date (Last-Modified): without \
                    any of them, reads could mix versions";
        self.version.is_known().then_some(()).ok_or_else(|| Error::new(ErrorKind::Unsupported, path, text))
    }
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meta").field("size", &self.size).field("version", &self.version).finish()
    }
}

/// What tells one version of an object from another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// The entity tag, with its quotes, as the server sends it.
    pub e_tag: Option<String>,
    /// The version of a store that keeps old ones.
    pub id: Option<String>,
    /// When the object was last changed. Only used if there is no entity tag and no version.
    pub modified: Option<SystemTime>,
}

/// For people: the entity tag, or what else tells the version.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = self.modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        match (&self.e_tag, &self.id, age) {
            (Some(tag), _, _) => write!(f, "{:?}", tag.trim_matches('"')),
            (None, Some(id), _) => write!(f, "{id:?}"),
            (None, None, Some(age)) => write!(f, "of Unix time {}", age.as_secs()),
            (None, None, None) => f.write_str("unknown"),
        }
    }
}

impl Version {
    /// Whether the version is known well enough to cache by it.
    pub fn is_known(&self) -> bool {
        self.e_tag.is_some() || self.id.is_some() || self.modified.is_some()
    }

    /// The entity tag for an `If-Match` condition. A weak tag cannot be one (RFC 9110, 13.1.1).
    pub fn if_match(&self) -> Option<&str> {
        self.e_tag.as_deref().filter(|tag| !tag.starts_with("W/"))
    }

    /// Whether the version stands for the same bytes for all time: it has a strong entity tag (RFC
    /// 9110, 8.8.1), or the store keeps old versions. A date may stand for two objects that were
    /// written within its resolution.
    pub fn is_strong(&self) -> bool {
        match &self.e_tag {
            Some(_) => self.if_match().is_some(),
            None => self.id.is_some(),
        }
    }

    /// Whether an answer with version `other` has the bytes of this version. A server may leave a
    /// version out of some answers, such as listings, but not the entity tag.
    pub fn is_same(&self, other: &Version) -> bool {
        let ids = match (&self.id, &other.id) {
            (Some(one), Some(two)) => one == two,
            _ => true,
        };
        let tags = self.e_tag == other.e_tag;
        let times = self.e_tag.is_some() || self.id.is_some() || self.modified == other.modified;
        ids && tags && times
    }

    /// The bytes that stand for the version in an identity.
    pub(crate) fn write_to(&self, into: &mut Vec<u8>) {
        let mut part = |part: Option<&[u8]>| {
            into.push(u8::from(part.is_some()));
            let part = part.unwrap_or_default();
            into.extend_from_slice(&(part.len() as u64).to_le_bytes());
            into.extend_from_slice(part);
        };
        part(self.e_tag.as_deref().map(str::as_bytes));
        if self.e_tag.is_none() {
            part(self.id.as_deref().map(str::as_bytes));
            let since = self.modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            part(since.map(|since| since.as_nanos().to_le_bytes()).as_ref().map(|bytes| &bytes[..]));
        }
    }
}

/// A server's answer to [`Origin::get`]. The core believes nothing in it without a check.
pub struct Answer {
    /// Size and version of the object, as the answer tells them.
    pub meta: Meta,
    /// The range of the object that the body has, as the answer tells it.
    pub range: Range<u64>,
    /// The bytes, in order.
    pub body: BoxStream<'static, Result<Bytes, Error>>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("meta", &self.meta).field("range", &self.range).finish_non_exhaustive()
    }
}
