//! [`Transport`]: how requests reach servers, and the limits of their answers.
//!
//! - **Bodies.** Only a GET of a range streams its body, which the fetcher counts. Of an error, the
//!   first [`ERROR_BYTES_MAX`] are read. A page of a listing has at most [`PAGE_BYTES_MAX`],
//!   charged to the cache while they are read; any other answer, such as credentials, at most
//!   [`OTHER_BYTES_MAX`]. Headers are limited by the client library, to about 400 KiB.
//! - **Headers** are checked before `object_store` sees them: it calculates with ranges, and sends
//!   entity tags back.
//! - **Redirects** are followed to the host that was asked, or to one of
//!   [`Settings::redirect_hosts`](crate::Settings), at most [`REDIRECTS_MAX`] times and never to
//!   the same place again. Another host gets no credentials.
//! - **`Retry-After`** of an answer that may pass becomes a part of its error.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, HeaderMap};
use octavo_objects::{Error, ErrorKind, Reading};
use reqwest::Url;
use reqwest::redirect::Policy;

use crate::page::Page;

/// The longest body of an error that is read.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// The characters of an error's body that its message has.
const SHOWN_CHARS_MAX: usize = 200;

/// The longest entity tag or version: versions of S3 have up to 1,024 bytes.
const VERSION_BYTES_MAX: usize = 1024;

/// The longest page of a listing: 1,000 keys of 1,024 bytes, with some that are escaped.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// The longest of all other answers.
const OTHER_BYTES_MAX: usize = 1 << 20;

/// Redirects of one request that are followed.
const REDIRECTS_MAX: usize = 3;

/// Marks a request for a page of a listing. The answer then has the [`Page`] among its extensions,
/// and an empty listing as its body: `object_store` refuses a page for one key that it cannot
/// parse.
#[derive(Clone, Debug)]
pub(crate) struct WantsPage(pub Reading);

/// Makes clients of HTTP for `object_store`.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    /// Hosts to which a server may redirect, besides itself: `host` or `host:port`.
    pub redirect_hosts: Arc<[String]>,
}

impl HttpConnector for Transport {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let value = |key| options.get_config_value(&key);
        let seconds =
            value(ClientConfigKey::ConnectTimeout).and_then(|time| time.strip_suffix('s')?.parse().ok());
        let client = reqwest::Client::builder()
            .user_agent(concat!("octavo/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            // The fetcher bounds the time of every request.
            .connect_timeout(Duration::from_secs(seconds.unwrap_or(5)))
            .https_only(value(ClientConfigKey::AllowHttp).as_deref() != Some("true"))
            .build()
            .map_err(|error| object_store::Error::Generic { store: "HTTP", source: Box::new(error) })?;
        Ok(HttpClient::new(Service { client, redirect_hosts: self.redirect_hosts.clone() }))
    }
}

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    redirect_hosts: Arc<[String]>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let wants = request.extensions().get::<WantsPage>().cloned();
        let mut visited = Vec::new();
        let response = loop {
            let response = self.client.call(request.clone()).await?;
            if !response.status().is_redirection() || response.status().as_u16() == 304 {
                break response;
            }
            let present = Url::parse(&request.uri().to_string()).map_err(failed)?;
            visited.push(present.clone());
            let next = self.next(&visited, &present, response.headers()).map_err(failed)?;
            if !is_same_host(&present, &next) {
                strip_credentials(request.headers_mut());
            }
            *request.uri_mut() = next.as_str().parse().map_err(failed)?;
        };
        let status = response.status();
        if !status.is_success() && status.as_u16() != 304 {
            return error_answer(response, wants.is_some()).await;
        }
        check_headers(response.headers()).map_err(failed)?;
        match wants {
            Some(WantsPage(reading)) => page_answer(response, &reading).await,
            None if request.headers().contains_key("range") => Ok(response),
            None => {
                let (parts, body) = response.into_parts();
                let body = read(body, OTHER_BYTES_MAX, |_| Ok(())).await?;
                let body = body.map_err(|most| failed(too_long(most)))?;
                Ok(HttpResponse::from_parts(parts, body.into()))
            }
        }
    }
}

impl Service {
    /// Returns where a redirect leads.
    ///
    /// # Errors
    /// [`ErrorKind::Other`], which is not tried again, if it is not to be followed.
    fn next(&self, visited: &[Url], present: &Url, headers: &HeaderMap) -> Result<Url, Error> {
        let refuse = |why: String| Error::new(ErrorKind::Other, "", format!("the server redirects {why}"));
        let location = headers.get("location").and_then(|location| location.to_str().ok());
        let Some(location) = location else {
            return Err(refuse("without saying where; perhaps the region is wrong".into()));
        };
        let next = present.join(location).map_err(|error| refuse(format!("to no URL: {error}")))?;
        let host = next.host_str().unwrap_or_default();
        let with_port = format!("{host}:{}", next.port_or_known_default().unwrap_or(0));
        let is_listed = self.redirect_hosts.iter().any(|listed| *listed == host || *listed == with_port);
        if !is_same_host(&visited[0], &next) && !is_listed {
            return Err(refuse(format!("to {with_port}, which is not among redirect_hosts")));
        }
        if !matches!(next.scheme(), "http" | "https")
            || (present.scheme() == "https" && next.scheme() == "http")
        {
            return Err(refuse(format!("to the scheme {:?}", next.scheme())));
        }
        if visited.contains(&next) {
            return Err(refuse("in a circle".into()));
        }
        if visited.len() > REDIRECTS_MAX {
            return Err(refuse(format!("more than {REDIRECTS_MAX} times")));
        }
        Ok(next)
    }
}

/// Whether two URLs name one server.
fn is_same_host(one: &Url, other: &Url) -> bool {
    one.host_str() == other.host_str() && one.port_or_known_default() == other.port_or_known_default()
}

/// Removes what only the server that was asked may see.
fn strip_credentials(headers: &mut HeaderMap) {
    let names: Vec<_> = headers.keys().cloned().collect();
    for name in names {
        if name == "authorization" || name == "cookie" || name.as_str().starts_with("x-amz-") {
            headers.remove(name);
        }
    }
}

/// An error that `object_store` does not try again, and `error_of` finds in its error.
fn failed(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

fn too_long(most: usize) -> Error {
    Error::new(ErrorKind::Other, "", format!("the answer has more than {most} bytes"))
}

/// Reads a body of at most `most` bytes. A longer one is the inner error. `note` gets the number
/// of bytes that there will be, before they are kept.
async fn read(
    body: HttpResponseBody,
    most: usize,
    mut note: impl FnMut(u64) -> Result<(), Error>,
) -> Result<Result<Vec<u8>, usize>, HttpError> {
    let mut bytes = Vec::new();
    let mut pieces = body.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        if piece.len() > most - bytes.len() {
            return Ok(Err(most));
        }
        note((bytes.len() + piece.len()) as u64).map_err(failed)?;
        bytes.extend_from_slice(&piece);
    }
    Ok(Ok(bytes))
}

/// Returns an error of the server with the beginning of its body. `object_store` knows what a
/// status means for an object, but not for a listing: 404 says that its bucket is missing, and not
/// that a name is.
async fn error_answer(response: HttpResponse, is_listing: bool) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let mut text = Vec::new();
    let mut pieces = body.bytes_stream();
    while text.len() < ERROR_BYTES_MAX
        && let Some(Ok(piece)) = pieces.next().await
    {
        text.extend_from_slice(&piece[..piece.len().min(ERROR_BYTES_MAX - text.len())]);
    }
    let text = shown(&text);
    let status = parts.status;
    let may_pass = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
    let asked = retry_after(&parts.headers, Utc::now()).filter(|_| may_pass);
    if asked.is_none() && !is_listing {
        return Ok(HttpResponse::from_parts(parts, text.into()));
    }
    let kind = match status.as_u16() {
        401 => ErrorKind::Unauthenticated,
        403 => ErrorKind::Denied,
        _ if may_pass => ErrorKind::Unavailable,
        _ => ErrorKind::Other,
    };
    let error = Error::new(kind, "", format!("the server answered {status}: {text}"));
    Err(failed(asked.into_iter().fold(error, Error::with_retry_after)))
}

/// The beginning of a body as a message has it.
fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let letter = |letter: char| {
        if octavo::is_visible(letter) { letter.to_string() } else { letter.escape_default().to_string() }
    };
    let mut shown: String = text.trim().chars().take(SHOWN_CHARS_MAX).map(letter).collect();
    if text.trim().chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push_str("..");
    }
    shown
}

/// Checks what `object_store` believes without a check.
///
/// # Errors
/// [`ErrorKind::Wrong`] with what the server did.
fn check_headers(headers: &HeaderMap) -> Result<(), Error> {
    let wrong = |text: String| Err(Error::new(ErrorKind::Wrong, "", format!("the server sent {text}")));
    for name in ["etag", "x-amz-version-id"] {
        let value = headers.get(name).map_or(&[][..], |value| value.as_bytes());
        if value.len() > VERSION_BYTES_MAX {
            let len = value.len();
            return wrong(format!("a header {name} of {len} bytes; {VERSION_BYTES_MAX} are allowed"));
        }
        if !value.iter().copied().all(is_of_header) {
            return wrong(format!("a header {name} with characters that it cannot have: {}", shown(value)));
        }
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(range) = text("content-range").filter(|range| !may_be_range(range)) {
        return wrong(format!("the range {:?}, which is outside of its object", shown(range.as_bytes())));
    }
    match text("content-length").and_then(|len| len.parse::<u64>().ok()) {
        Some(len) if len > i64::MAX as u64 => wrong(format!("a length of {len} bytes, which no file has")),
        _ => Ok(()),
    }
}

/// Whether a character of a header may be sent back in another one.
pub(crate) fn is_of_header(letter: u8) -> bool {
    matches!(letter, b' '..=b'~')
}

/// Whether the range of a `Content-Range` ends inside of its object, or is none at all, which
/// `object_store` refuses.
fn may_be_range(text: &str) -> bool {
    let numbers = || {
        let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (_, last) = range.split_once('-')?;
        Some((last.parse::<u64>().ok()?, size.parse::<u64>().ok()?))
    };
    numbers().is_none_or(|(last, size)| last < size)
}

/// Returns a page of a listing as an extension of its answer.
async fn page_answer(response: HttpResponse, reading: &Reading) -> Result<HttpResponse, HttpError> {
    let (mut parts, body) = response.into_parts();
    let body = read(body, PAGE_BYTES_MAX, |bytes| reading.note(bytes)).await?;
    let body = body.map_err(|most| failed(too_long(most)))?;
    let page = Page::parse(&body).map_err(failed)?;
    parts.extensions.insert(Arc::new(page));
    Ok(HttpResponse::from_parts(parts, "<ListBucketResult/>".to_owned().into()))
}

/// The time that a server asks to wait: seconds, or until a date (RFC 9110, 10.2.3).
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = DateTime::parse_from_rfc2822(text).ok()?;
    Some((date.with_timezone(&Utc) - now).to_std().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(hosts: &[&str]) -> Service {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let redirect_hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        Service { client: reqwest::Client::new(), redirect_hosts }
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    /// Follows a redirect from the last of `visited`. Returns the URL or the refusal.
    fn next(service: &Service, visited: &[&str], location: &str) -> Result<String, String> {
        let visited: Vec<Url> = visited.iter().map(|text| url(text)).collect();
        let mut headers = HeaderMap::new();
        headers.insert("location", location.parse().unwrap());
        let next = service.next(&visited, visited.last().unwrap(), &headers);
        next.map(String::from).map_err(|error| error.to_string())
    }

    #[test]
    fn a_redirect_leads_to_the_same_host_unless_another_is_allowed() {
        let alone = service(&[]);
        let from = ["http://a:9000/b/k"];
        assert_eq!(next(&alone, &from, "/b/other").unwrap(), "http://a:9000/b/other");
        for (location, why) in [
            ("http://a:9001/b/k", "a:9001"),
            ("http://169.254.169.254/", "169.254.169.254:80"),
            ("https://a/b/k", "a:443"),
            ("file:///etc/passwd", "redirect_hosts"),
            ("ftp://a:9000/x", "scheme"),
            ("/b/k", "circle"),
        ] {
            let refused = next(&alone, &from, location).unwrap_err();
            assert!(refused.contains(why), "{location}: {refused}");
        }
        let open = service(&["mirror", "c:9001"]);
        assert!(next(&open, &from, "http://mirror/b/k").is_ok());
        assert!(next(&open, &from, "http://c:9001/b/k").is_ok());
        assert!(next(&open, &from, "http://c:9002/b/k").is_err());
        assert!(next(&open, &["https://a/b"], "http://mirror/b").is_err());
        let far = ["http://a/1", "http://a/2", "http://a/3", "http://a/4"];
        assert!(next(&alone, &far[..3], "/9").is_ok());
        assert!(next(&alone, &far, "/9").unwrap_err().contains("more than 3 times"));
        let nowhere = alone.next(&[url("http://a/")], &url("http://a/"), &HeaderMap::new());
        assert!(nowhere.unwrap_err().to_string().contains("region"));
    }

    #[test]
    fn another_host_gets_no_credentials() {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "x-amz-security-token", "x-amz-date", "range", "if-match"] {
            headers.insert(name, "x".parse().unwrap());
        }
        strip_credentials(&mut headers);
        let mut left: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, ["if-match", "range"]);
    }

    #[test]
    fn headers_that_object_store_could_not_take_are_refused() {
        let refused = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            check_headers(&headers).err().map(|error| error.to_string())
        };
        let most = u64::MAX;
        for range in ["bytes 0-9/10", "bytes 5-9/*", "bytes */10", "lines 1-2/3", ""] {
            assert_eq!(refused("content-range", range), None, "{range}");
        }
        for range in ["bytes 0-10/10", &format!("bytes 0-{most}/{most}"), "bytes 7-+9/9"] {
            assert!(refused("content-range", range).unwrap().contains("outside of its object"), "{range}");
        }
        assert_eq!(refused("etag", "W/\"a b~\""), None);
        assert!(refused("etag", "\"\u{e9}\"").unwrap().contains("characters that it cannot have"));
        let long = "x".repeat(VERSION_BYTES_MAX + 1);
        assert_eq!(refused("x-amz-version-id", &long[1..]), None);
        for name in ["x-amz-version-id", "etag"] {
            assert!(refused(name, &long).unwrap().contains("of 1025 bytes"));
        }
        assert_eq!(refused("content-length", &i64::MAX.to_string()), None);
        assert!(refused("content-length", &most.to_string()).unwrap().contains("which no file has"));
    }

    #[test]
    fn a_message_has_the_beginning_of_a_body_without_control_characters() {
        assert_eq!(
            shown(b" <Error a=\"b\">\x1b[2J\r\n</Error>\n"),
            "<Error a=\"b\">\\u{1b}[2J\\r\\n</Error>"
        );
        let long = "\u{e9}".repeat(SHOWN_CHARS_MAX);
        assert_eq!(shown(long.as_bytes()), long);
        assert_eq!(shown((long.clone() + "x").as_bytes()), long + "..");
    }

    #[test]
    fn servers_ask_for_time_in_seconds_or_until_a_date() {
        let now = DateTime::parse_from_rfc3339("2026-11-27T00:00:00Z").unwrap().to_utc();
        let asked = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", text.parse().unwrap());
            retry_after(&headers, now).map(|time| time.as_secs())
        };
        assert_eq!(asked("120"), Some(120));
        assert_eq!(asked("Fri, 27 Nov 2026 00:01:00 GMT"), Some(60));
        assert_eq!(asked("Thu, 26 Nov 2026 00:01:00 GMT"), Some(0));
        assert_eq!(asked("soon"), None);
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
