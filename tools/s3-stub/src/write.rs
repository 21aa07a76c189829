//! Answers to PUT, copies, DELETE and multipart uploads.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use hyper::Method;

use crate::contents::{Condition, Contents, Refused, Version};
use crate::list::{iso_8601, unescape};
use crate::reply::Reply;
use crate::request::{Request, decode};

/// Headers of a write that readers get back, besides `x-amz-meta-*`.
const KEPT_HEADERS: [&str; 5] =
    ["cache-control", "content-disposition", "content-encoding", "content-language", "content-type"];

/// The multipart uploads that are not complete.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    uploads: BTreeMap<String, Upload>,
    begun: u64,
}

#[derive(Debug)]
struct Upload {
    path: String,
    headers: Vec<(String, String)>,
    parts: BTreeMap<u32, Bytes>,
}

impl Uploads {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers a request that is neither a read nor a listing.
pub(crate) fn answer(request: &Request, contents: &Contents, uploads: &Uploads) -> Reply {
    let upload = request.query("uploadId");
    match (&request.method, upload) {
        _ if contents.is_read_only() => refused(&Refused::ReadOnly),
        // A bucket: all are there.
        (&Method::PUT | &Method::HEAD, _) if request.key.is_empty() => Reply::empty(200),
        (&Method::POST, _) if request.query("delete").is_some() => delete_many(request, contents),
        (&Method::POST, None) if request.query("uploads").is_some() => begin(request, uploads),
        (&Method::POST, Some(upload)) => complete(request, contents, uploads, upload),
        (&Method::PUT, Some(upload)) => put_part(request, contents, uploads, upload),
        (&Method::PUT, None) => put(request, contents),
        (&Method::DELETE, Some(upload)) => {
            uploads.open().uploads.remove(upload);
            Reply::empty(204)
        }
        (&Method::DELETE, None) => {
            contents.delete(&request.path);
            Reply::empty(204)
        }
        _ => Reply::error(405, "MethodNotAllowed", "The method is not allowed here."),
    }
}

fn refused(why: &Refused) -> Reply {
    match why {
        Refused::Condition => Reply::error(412, "PreconditionFailed", "A condition does not hold."),
        Refused::ReadOnly => Reply::error(405, "MethodNotAllowed", "The objects are read only."),
    }
}

fn no_such_key() -> Reply {
    Reply::error(404, "NoSuchKey", "The specified key does not exist.")
}

fn no_such_upload() -> Reply {
    Reply::error(404, "NoSuchUpload", "The specified upload does not exist.")
}

fn kept_headers(request: &Request) -> Vec<(String, String)> {
    let kept = |name: &str| KEPT_HEADERS.contains(&name) || name.starts_with("x-amz-meta-");
    let headers = request.headers.iter().filter(|(name, _)| kept(name.as_str()));
    headers.filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned()))).collect()
}

fn condition(request: &Request) -> Condition {
    match (request.header("if-match"), request.header("if-none-match")) {
        (Some(tag), _) => Condition::Tag(tag.to_owned()),
        (None, Some("*")) => Condition::Absent,
        _ => Condition::Always,
    }
}

/// Returns the object that a copy reads, and its answer if it is not there.
fn source(request: &Request, contents: &Contents) -> Option<Result<std::sync::Arc<Version>, Reply>> {
    let path = decode(request.header("x-amz-copy-source")?.trim_start_matches('/'), false);
    Some(contents.find(&path).ok_or_else(no_such_key))
}

fn put(request: &Request, contents: &Contents) -> Reply {
    let condition = condition(request);
    // As S3 does.
    if matches!(condition, Condition::Tag(_)) && contents.find(&request.path).is_none() {
        return no_such_key();
    }
    let (bytes, headers, copies) = match source(request, contents) {
        Some(Err(reply)) => return reply,
        Some(Ok(source)) => match source.read(0..source.size) {
            Ok(bytes) => (bytes, source.headers.clone(), true),
            Err(_) => return no_such_key(),
        },
        None => (request.body.clone(), kept_headers(request), false),
    };
    let version = match contents.write(&request.path, bytes, headers, &condition) {
        Ok(version) => version,
        Err(why) => return refused(&why),
    };
    let reply = if copies { copied("CopyObjectResult", &version) } else { Reply::empty(200) };
    written(reply, &version)
}

fn written(reply: Reply, version: &Version) -> Reply {
    let reply = reply.with("etag", &version.e_tag);
    match &version.id {
        Some(id) => reply.with("x-amz-version-id", id),
        None => reply,
    }
}

fn copied(element: &str, version: &Version) -> Reply {
    let (tag, modified) = (version.e_tag.replace('"', "&quot;"), iso_8601(version.modified));
    let text = format!("<ETag>{tag}</ETag><LastModified>{modified}</LastModified>");
    Reply::xml(200, &format!("<{element}>{text}</{element}>"))
}

fn begin(request: &Request, uploads: &Uploads) -> Reply {
    let mut open = uploads.open();
    open.begun += 1;
    let id = format!("upload-{}", open.begun);
    let upload =
        Upload { path: request.path.clone(), headers: kept_headers(request), parts: BTreeMap::new() };
    open.uploads.insert(id.clone(), upload);
    let text = format!("<UploadId>{id}</UploadId>");
    Reply::xml(200, &format!("<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>"))
}

fn put_part(request: &Request, contents: &Contents, uploads: &Uploads, id: &str) -> Reply {
    let Some(number) = request.query("partNumber").and_then(|number| number.parse().ok()) else {
        return Reply::error(400, "InvalidArgument", "A part needs a number.");
    };
    let source = match source(request, contents) {
        Some(Err(reply)) => return reply,
        Some(Ok(source)) => Some(source),
        None => None,
    };
    let bytes = match &source {
        None => request.body.clone(),
        Some(source) => match source.read(0..source.size) {
            Ok(bytes) => bytes,
            Err(_) => return no_such_key(),
        },
    };
    match uploads.open().uploads.get_mut(id) {
        Some(upload) => upload.parts.insert(number, bytes),
        None => return no_such_upload(),
    };
    match source {
        Some(source) => copied("CopyPartResult", &source),
        None => Reply::empty(200).with("etag", &format!("\"{id}-{number}\"")),
    }
}

fn complete(request: &Request, contents: &Contents, uploads: &Uploads, id: &str) -> Reply {
    let text = String::from_utf8_lossy(&request.body).into_owned();
    let numbers: Vec<u32> = elements(&text, "PartNumber").filter_map(|number| number.parse().ok()).collect();
    let (bytes, headers) = {
        let open = uploads.open();
        let Some(upload) = open.uploads.get(id).filter(|upload| upload.path == request.path) else {
            return no_such_upload();
        };
        let mut whole = BytesMut::new();
        for number in &numbers {
            match upload.parts.get(number) {
                Some(part) => whole.extend_from_slice(part),
                None => return Reply::error(400, "InvalidPart", "A part was not uploaded."),
            }
        }
        (whole.freeze(), upload.headers.clone())
    };
    let version = match contents.write(&request.path, bytes, headers, &condition(request)) {
        Ok(version) => version,
        Err(why) => return refused(&why),
    };
    uploads.open().uploads.remove(id);
    let tag = version.e_tag.replace('"', "&quot;");
    let text = format!("<ETag>{tag}</ETag>");
    let text = format!("<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>");
    written(Reply::xml(200, &text), &version)
}

fn delete_many(request: &Request, contents: &Contents) -> Reply {
    let text = String::from_utf8_lossy(&request.body).into_owned();
    let mut deleted = String::new();
    for key in elements(&text, "Key") {
        contents.delete(&format!("{}/{}", request.bucket, unescape(key)));
        deleted.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
    }
    Reply::xml(200, &format!("<DeleteResult>{deleted}</DeleteResult>"))
}

/// Returns the texts of all elements of one name, which have no attributes.
fn elements<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&begin)?;
        let (inner, after) = after.split_once(&end)?;
        rest = after;
        Some(inner)
    })
}
