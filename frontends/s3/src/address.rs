//! [`Address`]: where an object is, as `s3://bucket/key`.

use std::fmt;

/// Where an object, or all objects below a prefix, are.
///
/// # Examples
/// ```
/// use octavo_s3::Address;
/// let address = Address::parse("s3://images/debian/trixie.raw").unwrap()?;
/// assert_eq!((address.bucket.as_str(), address.key.as_str()), ("images", "debian/trixie.raw"));
/// assert!(Address::parse("/var/lib/images/vm1.raw").is_none());
/// assert!(Address::parse("s3:///key").unwrap().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The bucket.
    pub bucket: String,
    /// The key, or the prefix, without slashes at its ends. Empty for a whole bucket.
    pub key: String,
}

/// What an address begins with.
const SCHEME: &str = "s3://";

impl Address {
    /// Parses an address. Returns `None` for text that is none, such as the path of a file. The
    /// error is the rest of a sentence that begins with the text.
    pub fn parse(text: &str) -> Option<Result<Address, String>> {
        let rest = text.strip_prefix(SCHEME)?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let key = key.trim_matches('/');
        let is_bucket = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let problem = if bucket.is_empty() {
            "names no bucket; expected s3://bucket/key"
        } else if !bucket.chars().all(is_bucket) {
            "has a bucket with characters that no bucket's name has; credentials do not belong here"
        } else if key.split('/').any(|part| part == "." || part == "..") {
            "has a key with `.` or `..` between slashes"
        } else if key.contains("//") {
            "has a key with two slashes in a row, which cannot be read"
        } else {
            return Some(Ok(Address { bucket: bucket.into(), key: key.into() }));
        };
        Some(Err(problem.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_refused_with_reasons() {
        let parsed = |text| Address::parse(text).unwrap();
        assert_eq!(parsed("s3://b/a/b.img").unwrap().to_string(), "s3://b/a/b.img");
        assert_eq!(parsed("s3://b").unwrap(), parsed("s3://b/").unwrap());
        assert_eq!(parsed("s3://b/data/").unwrap().key, "data");
        for (text, why) in [
            ("s3://", "no bucket"),
            ("s3:///k", "no bucket"),
            ("s3://key:secret@b/k", "credentials"),
            ("s3://b/a/../k", "`..`"),
            ("s3://b/a//k", "two slashes"),
        ] {
            assert!(parsed(text).unwrap_err().contains(why), "{text}");
        }
        assert_eq!(Address::parse("s3/b/k"), None);
    }
}
