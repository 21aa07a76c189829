//! [`Page`]: one page of a listing, as a server of S3 sends it (ListObjectsV2).
//!
//! The parser believes nothing: a key that it cannot read does not spoil the others, entities are
//! not expanded, and elements do not nest deeply.

use std::time::SystemTime;

use chrono::DateTime;
use octavo_objects::{Error, ErrorKind};
use quick_xml::Reader;
use quick_xml::events::{BytesRef, Event};

/// Most elements inside one another. A listing has four.
const DEPTH_MAX: usize = 16;

/// The longest token: some servers send the last key with figures of their own. With each byte
/// escaped as three, a request with it has far fewer than the 64 KiB that an address may have.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// One page of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub objects: Vec<Found>,
    /// Common prefixes, with the slash at their ends.
    pub prefixes: Vec<String>,
    /// Where the next page begins.
    pub token: Option<String>,
    /// Objects and prefixes whose keys or sizes cannot be read.
    pub unreadable: u64,
}

/// An object in a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub key: String,
    pub size: u64,
    pub e_tag: Option<String>,
    pub modified: Option<SystemTime>,
}

/// The texts of an object or a common prefix. `None` for one that is missing or cannot be read.
#[derive(Default)]
struct Fields {
    key: Option<String>,
    prefix: Option<String>,
    size: Option<String>,
    e_tag: Option<String>,
    modified: Option<String>,
}

/// The text of an element, collected from pieces. `None` once a piece cannot be read.
type Text = Option<String>;

impl Page {
    /// Parses the body of an answer. The error has no path.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] for an error of the server's in place of a listing;
    /// [`ErrorKind::Wrong`] for anything else that is no listing.
    pub fn parse(body: &[u8]) -> Result<Page, Error> {
        let mut reader = Reader::from_reader(body);
        reader.config_mut().expand_empty_elements = true;
        let mut page = Page::default();
        let mut open: Vec<Vec<u8>> = Vec::new();
        let mut text: Text = Some(String::new());
        let mut fields = Fields::default();
        let mut is_truncated = None;
        let mut is_listing = false;
        loop {
            let event = reader.read_event().map_err(|error| wrong(error.to_string()))?;
            match event {
                Event::Start(start) => {
                    let name = start.local_name().as_ref().to_vec();
                    if open.is_empty() {
                        is_listing = begin(&name, is_listing)?;
                    }
                    if open.len() == DEPTH_MAX {
                        return Err(wrong("elements nest too deeply"));
                    }
                    open.push(name);
                    text = Some(String::new());
                    if open.len() == 2 {
                        fields = Fields::default();
                    }
                }
                Event::Text(piece) => push(&mut text, piece.decode().ok().as_deref()),
                Event::CData(piece) => push(&mut text, piece.decode().ok().as_deref()),
                Event::GeneralRef(piece) => push(&mut text, resolve(&piece).as_deref()),
                Event::End(_) => {
                    let text = text.replace(String::new());
                    let parts: Vec<&[u8]> = open.iter().skip(1).map(Vec::as_slice).collect();
                    match parts[..] {
                        [b"NextContinuationToken"] => page.token = text.filter(|text| !text.is_empty()),
                        [b"IsTruncated"] => is_truncated = text.map(|text| text.trim() == "true"),
                        [b"Contents"] => page.add_object(std::mem::take(&mut fields)),
                        [b"CommonPrefixes"] => page.add_prefix(std::mem::take(&mut fields)),
                        [b"Contents", b"Key"] => fields.key = text,
                        [b"Contents", b"Size"] => fields.size = text,
                        [b"Contents", b"ETag"] => fields.e_tag = text,
                        [b"Contents", b"LastModified"] => fields.modified = text,
                        [b"CommonPrefixes", b"Prefix"] => fields.prefix = text,
                        _ => {}
                    }
                    open.pop();
                }
                Event::Eof if is_listing && open.is_empty() => break,
                Event::Eof => return Err(wrong("it ends too early")),
                Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
            }
        }
        match (is_truncated, &page.token) {
            // Files would be missing without a word.
            (Some(true), None) => return Err(wrong("more pages follow, and the server does not say where")),
            (Some(false), _) => page.token = None,
            (_, Some(token)) if token.len() > TOKEN_BYTES_MAX => {
                let len = token.len();
                return Err(wrong(format!("its token has {len} bytes; {TOKEN_BYTES_MAX} are allowed")));
            }
            _ => {}
        }
        Ok(page)
    }

    fn add_object(&mut self, fields: Fields) {
        // The kernel refuses longer files.
        let size =
            fields.size.and_then(|size| size.trim().parse().ok()).filter(|size| *size <= i64::MAX as u64);
        let modified = fields.modified.and_then(|time| DateTime::parse_from_rfc3339(time.trim()).ok());
        match (fields.key, size) {
            (Some(key), Some(size)) => {
                // Of a GET, the epoch says that there is no date.
                let modified = modified.map(SystemTime::from).filter(|time| *time != SystemTime::UNIX_EPOCH);
                self.objects.push(Found { key, size, e_tag: fields.e_tag, modified });
            }
            _ => self.unreadable += 1,
        }
    }

    fn add_prefix(&mut self, fields: Fields) {
        match fields.prefix {
            Some(prefix) => self.prefixes.push(prefix),
            None => self.unreadable += 1,
        }
    }
}

fn wrong(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Wrong, "", format!("the answer is no listing of S3: {why}"))
}

/// Begins the outermost element. Returns whether it is a listing.
fn begin(name: &[u8], had_one: bool) -> Result<bool, Error> {
    match name {
        b"ListBucketResult" if !had_one => Ok(true),
        b"Error" => {
            Err(Error::new(ErrorKind::Unavailable, "", "the server sent an error in place of a listing"))
        }
        _ => Err(wrong(format!("it begins with {:?}", String::from_utf8_lossy(name)))),
    }
}

fn push(text: &mut Text, piece: Option<&str>) {
    match piece {
        Some(piece) => {
            if let Some(text) = text {
                text.push_str(piece);
            }
        }
        None => *text = None,
    }
}

/// Returns what an entity stands for. An answer cannot define any of its own.
fn resolve(entity: &BytesRef<'_>) -> Option<String> {
    if let Some(letter) = entity.resolve_char_ref().ok()? {
        return Some(letter.into());
    }
    let letter = match &**entity {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        _ => return None,
    };
    Some(letter.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(inner: &str) -> Result<Page, Error> {
        Page::parse(
            format!("<?xml version=\"1.0\"?>\n<ListBucketResult>{inner}</ListBucketResult>").as_bytes(),
        )
    }

    fn contents(key: &str, size: &str) -> String {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-27T00:00:00.000Z</LastModified>\
             <ETag>&quot;e&quot;</ETag><Size>{size}</Size></Contents>"
        )
    }

    #[test]
    fn a_page_has_objects_and_prefixes() {
        let page = listing(&format!(
            "<IsTruncated>true</IsTruncated><Prefix>d/</Prefix>{}<CommonPrefixes><Prefix>d/s/</Prefix>\
             </CommonPrefixes><NextContinuationToken>a&amp;b</NextContinuationToken>",
            contents("d/a &#x26; b&lt;c&gt;", "7")
        ));
        let page = page.unwrap();
        let found = &page.objects[0];
        assert_eq!((&*found.key, found.size, found.e_tag.as_deref()), ("d/a & b<c>", 7, Some("\"e\"")));
        let since = found.modified.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.as_secs(), 1_795_737_600);
        assert_eq!((&page.prefixes[..], page.token.as_deref()), (&["d/s/".to_owned()][..], Some("a&b")));
    }

    #[test]
    fn what_cannot_be_read_does_not_spoil_the_rest() {
        let entity = "<!DOCTYPE l [<!ENTITY x SYSTEM \"file:///etc/passwd\">]>";
        let bad = ["&x;", "&#0;", "&nbsp;"].map(|key| contents(key, "5")).concat();
        let sizes = ["-5", "x", "9223372036854775808"].map(|size| contents("k", size)).concat();
        let text = format!(
            "{entity}<ListBucketResult>{bad}{sizes}<Contents/><CommonPrefixes/>{}</ListBucketResult>",
            contents("good", "1")
        );
        let page = Page::parse(text.as_bytes()).unwrap();
        assert_eq!((page.objects.len(), &*page.objects[0].key, page.unreadable), (1, "good", 8));
        let mut bytes = text.into_bytes();
        let at = bytes.windows(4).position(|bytes| bytes == b"good").unwrap();
        bytes[at] = 0xFF;
        assert_eq!(Page::parse(&bytes).unwrap().unreadable, 9);
    }

    #[test]
    fn what_is_no_listing_is_an_error() {
        for body in ["", "hello", "<a/>", "<ListBucketResult><Contents>", "<ListBucketResult></a>"] {
            assert_eq!(Page::parse(body.as_bytes()).unwrap_err().kind(), ErrorKind::Wrong, "{body}");
        }
        let nested = "<a>".repeat(3_000_000);
        assert_eq!(listing(&nested).unwrap_err().kind(), ErrorKind::Wrong);
        let error = Page::parse(b"<Error><Code>SlowDown</Code></Error>").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(listing("<IsTruncated>true</IsTruncated>").unwrap_err().kind(), ErrorKind::Wrong);
    }

    #[test]
    fn the_last_page_has_no_token() {
        let token = "<NextContinuationToken>x</NextContinuationToken>";
        let last = format!("<IsTruncated>false</IsTruncated>{token}");
        assert_eq!(listing(&last).unwrap().token, None);
        assert_eq!(listing(token).unwrap().token.as_deref(), Some("x"));
        assert_eq!(listing("").unwrap(), Page::default());
    }

    #[test]
    fn a_token_that_is_too_long_for_a_request_is_refused() {
        let token = |len: usize| {
            listing(&format!("<NextContinuationToken>{}</NextContinuationToken>", "x".repeat(len)))
        };
        assert!(token(TOKEN_BYTES_MAX).is_ok());
        let error = token(70_000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Wrong);
        assert!(error.to_string().contains("its token has 70000 bytes"), "{error}");
    }
}
