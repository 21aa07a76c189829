//! What a request asks for.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use hyper::header::AsHeaderName;
use hyper::{HeaderMap, Method, Uri};

/// Kinds of requests, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Metadata of an object.
    Head,
    /// An object or a part of it.
    Get,
    /// A write of an object, of a part of one, or a copy.
    Put,
    /// A removal of one or several objects.
    Delete,
    /// A listing of a bucket.
    List,
    /// Any other request.
    Other,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 6] = [
        Operation::Head,
        Operation::Get,
        Operation::Put,
        Operation::Delete,
        Operation::List,
        Operation::Other,
    ];

    /// Returns the name of its count.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Head => "heads",
            Operation::Get => "gets",
            Operation::Put => "puts",
            Operation::Delete => "deletes",
            Operation::List => "lists",
            Operation::Other => "others",
        }
    }
}

/// A request that has arrived.
#[derive(Debug)]
pub(crate) struct Request {
    pub method: Method,
    pub operation: Operation,
    pub bucket: String,
    /// Empty in requests about a bucket.
    pub key: String,
    /// `bucket/key`, or the bucket.
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The range that a request asks for, before the size of the object is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Bounded(u64, u64),
    From(u64),
    Last(u64),
}

impl Request {
    pub fn new(method: Method, uri: &Uri, headers: HeaderMap, body: Bytes) -> Request {
        let path = decode(uri.path().trim_start_matches('/'), false);
        let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let query = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let query: BTreeMap<String, String> = query
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decode(name, true), decode(value, true)))
            .collect();
        let operation = match (&method, key.is_empty()) {
            (&Method::GET, true) => Operation::List,
            (&Method::HEAD, false) => Operation::Head,
            (&Method::GET, false) => Operation::Get,
            (&Method::PUT, false) => Operation::Put,
            (&Method::DELETE, false) if !query.contains_key("uploadId") => Operation::Delete,
            (&Method::POST, true) if query.contains_key("delete") => Operation::Delete,
            _ => Operation::Other,
        };
        let path = if key.is_empty() { bucket.clone() } else { path };
        Request { method, operation, bucket, key, path, query, headers, body }
    }

    /// Returns the text of a header.
    pub fn header(&self, name: impl AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// Returns the range that is asked for. A range that cannot be parsed is ignored, as RFC 9110
    /// (14.2) demands.
    pub fn range(&self) -> Option<Wanted> {
        let (from, to) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        match (from.parse(), to.parse::<u64>()) {
            (Ok(from), Ok(to)) if from <= to => Some(Wanted::Bounded(from, to.saturating_add(1))),
            (Ok(from), Err(_)) if to.is_empty() => Some(Wanted::From(from)),
            (Err(_), Ok(last)) if from.is_empty() => Some(Wanted::Last(last)),
            _ => None,
        }
    }
}

impl Wanted {
    /// Returns the range inside an object of `size` bytes, or `None` if it has no byte there.
    pub fn within(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            Wanted::Bounded(from, to) => from..to.min(size),
            Wanted::From(from) => from..size,
            Wanted::Last(last) => size.saturating_sub(last)..size,
        };
        (range.start < range.end).then_some(range)
    }

    /// Returns the range as far as it is known without the size.
    pub fn known(self) -> Option<Range<u64>> {
        match self {
            Wanted::Bounded(from, to) => Some(from..to),
            _ => None,
        }
    }
}

/// Decodes `%41`, and `+` where it stands for a space.
pub(crate) fn decode(text: &str, plus_is_space: bool) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = match (first, after) {
            (b'%', [high, low, ..]) => digit(*high).zip(digit(*low)),
            _ => None,
        };
        (rest, _) = match hex {
            Some((high, low)) => (&after[2..], bytes.push(high << 4 | low)),
            None if *first == b'+' && plus_is_space => (after, bytes.push(b' ')),
            None => (after, bytes.push(*first)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, uri: &str) -> Request {
        Request::new(method, &uri.parse().unwrap(), HeaderMap::new(), Bytes::new())
    }

    #[test]
    fn a_path_is_a_bucket_and_a_key() {
        let get = request(Method::GET, "/bucket/a%20b/c+d%2F?versionId=x%2By+z");
        assert_eq!((get.operation, &*get.bucket, &*get.key), (Operation::Get, "bucket", "a b/c+d/"));
        assert_eq!((&*get.path, get.query("versionId")), ("bucket/a b/c+d/", Some("x+y z")));
        for uri in ["/bucket", "/bucket/", "/bucket?list-type=2"] {
            let list = request(Method::GET, uri);
            assert_eq!((list.operation, &*list.path), (Operation::List, "bucket"));
        }
        assert_eq!(request(Method::POST, "/bucket?delete").operation, Operation::Delete);
        assert_eq!(request(Method::POST, "/bucket/key?uploads").operation, Operation::Other);
    }

    #[test]
    fn ranges_lie_inside_the_object() {
        let range = |text: &str| {
            let mut get = request(Method::GET, "/bucket/key");
            get.headers.insert("range", text.parse().unwrap());
            get.range().map(|wanted| wanted.within(100))
        };
        assert_eq!(range("bytes=10-19"), Some(Some(10..20)));
        assert_eq!(range("bytes=90-1000"), Some(Some(90..100)));
        assert_eq!(range("bytes=90-"), Some(Some(90..100)));
        assert_eq!(range("bytes=-7"), Some(Some(93..100)));
        assert_eq!(range("bytes=-1000"), Some(Some(0..100)));
        assert_eq!(range("bytes=100-"), Some(None));
        assert_eq!(range("bytes=-0"), Some(None));
        for none in ["bytes=5-4", "bytes=-", "bytes=x-y", "lines=1-2"] {
            assert_eq!(range(none), None, "{none}");
        }
    }
}
