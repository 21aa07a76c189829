//! A small S3 server over a directory, which counts what it serves and waits before it answers.
//!
//! It serves GET and HEAD with `Range` and `If-Match`, and ListObjectsV2. Nothing is written. The
//! header `x-client` says which client a request is counted for. Control: `GET /_stats`,
//! `POST /_reset`, `POST /_delay?ms=30`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use axum::{Router, response::IntoResponse};

use crate::error::Result;
use crate::figures::{ClientCounts, Counts, ServerStat};

/// The bucket that the directory appears as.
pub const BUCKET: &str = "tpch";

/// The header that names a client.
pub const CLIENT: &str = "x-client";

/// The client name of a coordinator, which reads footers to plan: it is no worker.
pub const COORDINATOR: &str = "coordinator";

/// Distinct bytes are counted in blocks of this many bytes.
const BLOCK_BYTES: u64 = 4096;

struct Shared {
    root: PathBuf,
    /// Wait before the first byte of every answer, in milliseconds.
    delay_ms: AtomicU64,
    clients: Mutex<BTreeMap<String, Client>>,
}

#[derive(Default)]
struct Client {
    counts: Counts,
    /// For each key, its length in bytes and which blocks were sent.
    sent: BTreeMap<String, (u64, Vec<bool>)>,
}

/// Serves the directory `root` on a free port of the loopback interface. Prints the port.
pub async fn serve(root: &Path, delay: Duration) -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    let shared = Arc::new(Shared {
        root: root.to_owned(),
        delay_ms: AtomicU64::new(delay.as_millis() as u64),
        clients: Mutex::default(),
    });
    let app = Router::new().fallback(answer).with_state(shared);
    tokio::select! {
        served = axum::serve(listener, app) => Ok(served?),
        () = crate::processes::parent_gone() => Ok(()),
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let uri = request.uri().clone();
    let (method, headers) = (request.method().clone(), request.headers().clone());
    match (&method, uri.path()) {
        (&Method::GET, "/_stats") => {
            return serde_json::to_string(&shared.stat()).unwrap_or_default().into_response();
        }
        (&Method::POST, "/_reset") => {
            shared.clients.lock().unwrap_or_else(PoisonError::into_inner).clear();
            return StatusCode::OK.into_response();
        }
        (&Method::POST, "/_delay") => {
            let ms = uri.query().and_then(|query| query.strip_prefix("ms=")).and_then(|ms| ms.parse().ok());
            // Relaxed: a figure alone.
            shared.delay_ms.store(ms.unwrap_or(0), Ordering::Relaxed);
            return StatusCode::OK.into_response();
        }
        _ => {}
    }
    let client = headers.get(CLIENT).and_then(|name| name.to_str().ok()).unwrap_or("unnamed").to_owned();
    let delay = Duration::from_millis(shared.delay_ms.load(Ordering::Relaxed));
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let path = uri.path().trim_start_matches('/');
    let key = path.strip_prefix(BUCKET).unwrap_or(path).trim_matches('/').to_owned();
    let served = match (&method, key.as_str()) {
        (&Method::GET, "") => shared.list(&client, uri.query().unwrap_or("")),
        (&Method::GET | &Method::HEAD, _) => shared.object(&client, &method, &key, &headers),
        _ => Err(StatusCode::METHOD_NOT_ALLOWED),
    };
    served.unwrap_or_else(IntoResponse::into_response)
}

impl Shared {
    fn with_client<R>(&self, client: &str, change: impl FnOnce(&mut Client) -> R) -> R {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        change(clients.entry(client.to_owned()).or_default())
    }

    fn stat(&self) -> ServerStat {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let mut union: BTreeMap<&str, (u64, Vec<bool>)> = BTreeMap::new();
        let mut stat = ServerStat::default();
        for (name, client) in clients.iter() {
            let counts = ClientCounts {
                counts: client.counts,
                files: client.sent.len() as u64,
                distinct_bytes: client.sent.values().map(sent_bytes).sum(),
            };
            stat.clients.insert(name.clone(), counts);
            if !name.starts_with(COORDINATOR) {
                for (key, (len, sent)) in &client.sent {
                    let all = union.entry(key).or_insert_with(|| (*len, vec![false; sent.len()]));
                    all.1.iter_mut().zip(sent).for_each(|(all, sent)| *all |= sent);
                }
            }
        }
        stat.distinct_bytes = union.values().map(sent_bytes).sum();
        stat
    }

    fn object(
        &self,
        client: &str,
        method: &Method,
        key: &str,
        headers: &HeaderMap,
    ) -> std::result::Result<Response, StatusCode> {
        if key.split('/').any(|part| part == "..") {
            return Err(StatusCode::BAD_REQUEST);
        }
        let file = std::fs::File::open(self.root.join(key)).map_err(|_| StatusCode::NOT_FOUND)?;
        let meta = file.metadata().ok().filter(|meta| meta.is_file()).ok_or(StatusCode::NOT_FOUND)?;
        let tag = tag_of(&meta);
        if headers.get(header::IF_MATCH).is_some_and(|wanted| wanted.as_bytes() != tag.as_bytes()) {
            return Err(StatusCode::PRECONDITION_FAILED);
        }
        let len = meta.len();
        let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
        let (from, to) = match range {
            Some(range) => range_of(range, len).ok_or(StatusCode::RANGE_NOT_SATISFIABLE)?,
            None => (0, len),
        };
        let body = match *method {
            Method::HEAD => {
                self.with_client(client, |client| client.counts.heads += 1);
                Vec::new()
            }
            _ => {
                let mut bytes = vec![0; (to - from) as usize];
                file.read_exact_at(&mut bytes, from).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
                self.with_client(client, |client| client.note(key, len, from, to));
                bytes
            }
        };
        let answer = Response::builder()
            .status(if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK })
            .header(header::ETAG, HeaderValue::from_str(&tag).expect("hexadecimal"))
            .header(header::LAST_MODIFIED, "Thu, 01 Jan 2026 00:00:00 GMT")
            .header(header::ACCEPT_RANGES, "bytes")
            .header(header::CONTENT_LENGTH, to - from);
        let answer = match range {
            Some(_) => answer.header(header::CONTENT_RANGE, format!("bytes {from}-{}/{len}", to - 1)),
            None => answer,
        };
        answer.body(Body::from(body)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn list(&self, client: &str, query: &str) -> std::result::Result<Response, StatusCode> {
        self.with_client(client, |client| client.counts.lists += 1);
        let prefix = query.split('&').find_map(|part| part.strip_prefix("prefix=")).unwrap_or("");
        let prefix = prefix.replace("%2F", "/");
        let mut found = Vec::new();
        collect(&self.root, &self.root, &mut found).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        found.retain(|(key, ..)| key.starts_with(&prefix));
        found.sort();
        let mut xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><Name>{BUCKET}</Name>\
             <Prefix>{prefix}</Prefix><KeyCount>{}</KeyCount><IsTruncated>false</IsTruncated>",
            found.len()
        );
        for (key, len, tag) in found {
            let _ = write!(
                xml,
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{len}</Size></Contents>",
                tag.replace('"', "&quot;")
            );
        }
        xml.push_str("</ListBucketResult>");
        Ok(([(header::CONTENT_TYPE, "application/xml")], xml).into_response())
    }
}

impl Client {
    fn note(&mut self, key: &str, len: u64, from: u64, to: u64) {
        self.counts.gets += 1;
        self.counts.bytes += to - from;
        let blocks = len.div_ceil(BLOCK_BYTES) as usize;
        let (_, sent) = self.sent.entry(key.to_owned()).or_insert_with(|| (len, vec![false; blocks]));
        sent[(from / BLOCK_BYTES) as usize..to.div_ceil(BLOCK_BYTES) as usize].fill(true);
    }
}

/// Bytes of the blocks that were sent; the last block of an object may be short.
fn sent_bytes((len, sent): &(u64, Vec<bool>)) -> u64 {
    let blocks = sent.iter().filter(|sent| **sent).count() as u64;
    let short = match sent.last() {
        Some(true) => blocks.min(1) * (len.next_multiple_of(BLOCK_BYTES) - len),
        _ => 0,
    };
    blocks * BLOCK_BYTES - short
}

fn tag_of(meta: &std::fs::Metadata) -> String {
    format!("\"{:x}-{:x}-{:x}\"", meta.ino(), meta.len(), meta.mtime_nsec() ^ (meta.mtime() << 20))
}

/// The bounds of a `Range` header, of which only the single kinds are served.
fn range_of(range: &str, len: u64) -> Option<(u64, u64)> {
    let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (from, to) = match (from, to) {
        ("", suffix) => (len.saturating_sub(suffix.parse().ok()?), len),
        (from, "") => (from.parse().ok()?, len),
        (from, to) => (from.parse().ok()?, (to.parse::<u64>().ok()? + 1).min(len)),
    };
    (from < to).then_some((from, to))
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<(String, u64, String)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = path.metadata()?;
        if meta.is_dir() {
            collect(root, &path, found)?;
        } else if let Ok(key) = path.strip_prefix(root) {
            found.push((key.display().to_string(), meta.len(), tag_of(&meta)));
        }
    }
    Ok(())
}
