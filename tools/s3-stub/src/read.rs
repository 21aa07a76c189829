//! Answers to GET and HEAD of an object, right and wrong ones.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::Method;

use crate::contents::{Contents, Version};
use crate::lies::Lie;
use crate::reply::{Part, Reply, broken};
use crate::request::Request;

/// An entity tag that no object has.
const OTHER_TAG: &str = "\"ffffffffffffffffffffffffffffffff\"";

/// The most bytes that a body has beyond its range.
const LONG_BYTES: u64 = 1000;

/// Returns the answer, and whether it is the lie: not every object allows every lie.
pub(crate) fn answer(request: &Request, contents: &Contents, lie: Option<&Lie>) -> (Reply, bool) {
    let present = match request.query("versionId") {
        Some(id) => contents.find_version(&request.path, id),
        None => contents.find(&request.path),
    };
    let old = match lie {
        Some(Lie::OldVersion) => contents.find_old(&request.path),
        _ => None,
    };
    let Some(version) = old.clone().or(present) else {
        return (Reply::error(404, "NoSuchKey", "The specified key does not exist."), false);
    };
    let failed = failed_condition(request, &version);
    let ignored = old.is_some() || lie == Some(&Lie::IfMatchIgnored);
    if let Some(status) = failed.filter(|_| !ignored) {
        let reply = match status {
            304 => Reply::empty(304),
            _ => Reply::error(412, "PreconditionFailed", "A condition does not hold."),
        };
        return (reply.with("etag", &version.e_tag), false);
    }
    let (reply, mut lies) = match request.method == Method::HEAD {
        true => (Reply { len: version.size, ..Reply::empty(200) }, false),
        false => body(request, &version, lie),
    };
    lies |= ignored && failed.is_some() || old.is_some();
    let other_tag = lie == Some(&Lie::OtherTag);
    let tag = if other_tag { OTHER_TAG } else { &version.e_tag };
    (describe(reply, &version).with("etag", tag), lies || other_tag)
}

/// Adds what an answer tells of the object, except its tag.
fn describe(mut reply: Reply, version: &Version) -> Reply {
    reply = reply.with("accept-ranges", "bytes").with("content-type", "binary/octet-stream");
    for (name, value) in &version.headers {
        reply = reply.with(name, value);
    }
    if let Some(id) = &version.id {
        reply = reply.with("x-amz-version-id", id);
    }
    reply.with("last-modified", &httpdate::fmt_http_date(version.modified))
}

/// Returns the status for the first condition that does not hold (RFC 9110, 13.2.2).
fn failed_condition(request: &Request, version: &Version) -> Option<u16> {
    let has =
        |tags: &str| tags.split(',').any(|tag| matches!(tag.trim(), "*") || tag.trim() == version.e_tag);
    // Dates of HTTP have seconds.
    let seconds =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let changed_since = |date: &str| {
        httpdate::parse_http_date(date).is_ok_and(|date| seconds(version.modified) > seconds(date))
    };
    match request.header("if-match") {
        Some(tags) if !has(tags) => return Some(412),
        None if request.header("if-unmodified-since").is_some_and(changed_since) => return Some(412),
        _ => {}
    }
    match request.header("if-none-match") {
        Some(tags) => has(tags).then_some(304),
        None => request.header("if-modified-since").is_some_and(|date| !changed_since(date)).then_some(304),
    }
}

/// Returns the answer to a GET without what it tells of the object, and whether it is the lie.
fn body(request: &Request, version: &Arc<Version>, lie: Option<&Lie>) -> (Reply, bool) {
    let wanted = request.range().map(|wanted| wanted.within(version.size));
    let wanted = match (wanted, lie) {
        (Some(Some(range)), Some(Lie::WholeObject)) if range != (0..version.size) => {
            let (whole, _) = told(0..version.size, version, None);
            return (Reply { status: 200, ..whole }, true);
        }
        (Some(None), _) => {
            let reply = Reply::error(416, "InvalidRange", "The range has no byte of the object.");
            return (reply.with("content-range", &format!("bytes */{}", version.size)), false);
        }
        (Some(Some(range)), _) => Some(range),
        (None, _) => None,
    };
    let range = wanted.clone().unwrap_or(0..version.size);
    let other = wanted.is_some() && lie == Some(&Lie::OtherRange);
    let other = if other { neighbour(&range, version.size) } else { None };
    let lies_about_range = other.is_some();
    let range = other.unwrap_or(range);
    let (reply, lies) = told(range.clone(), version, lie);
    let reply = match wanted {
        Some(_) => {
            let text = format!("bytes {}-{}/{}", range.start, range.end - 1, version.size);
            Reply { status: 206, ..reply }.with("content-range", &text)
        }
        None => reply,
    };
    (reply, lies || lies_about_range)
}

/// Returns another range of the same length, or a shorter one.
fn neighbour(range: &Range<u64>, size: u64) -> Option<Range<u64>> {
    let len = range.end - range.start;
    if range.end + len <= size {
        return Some(range.end..range.end + len);
    }
    match range.start.checked_sub(len) {
        Some(start) => Some(start..range.start),
        None => (len > 1).then(|| range.start + 1..range.end),
    }
}

/// Returns an answer with the bytes of a range, and whether it is the lie.
fn told(range: Range<u64>, version: &Arc<Version>, lie: Option<&Lie>) -> (Reply, bool) {
    let len = range.end - range.start;
    let (first, second) = (range.start..range.start + len / 2, range.start + len / 2..range.end);
    let stored = |range: Range<u64>| Part::Stored(version.clone(), range);
    let reply = |len: u64, parts: Vec<Part>| Reply { len, parts, ..Reply::empty(200) };
    match lie {
        Some(Lie::ClosedEarly) if len > 0 => (reply(len, broken(version, first, false)), true),
        Some(Lie::ResetInside) if len > 0 => (reply(len, broken(version, first, true)), true),
        Some(Lie::Short) if len > 0 => (reply(len / 2, vec![stored(first)]), true),
        Some(Lie::Long) if len > 0 => {
            let more = len.min(LONG_BYTES);
            let more_bytes = vec![0xEE; more as usize].into();
            (reply(len + more, vec![stored(range), Part::Bytes(more_bytes)]), true)
        }
        Some(Lie::StallInside(time)) if len > 0 => {
            (reply(len, vec![stored(first), Part::Wait(*time), stored(second)]), true)
        }
        _ => (reply(len, vec![stored(range)]), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_is_another_range_inside_the_object() {
        for size in 1..12 {
            for start in 0..size {
                for end in start + 1..=size {
                    let range = start..end;
                    match neighbour(&range, size) {
                        Some(other) => assert!(other != range && other.end <= size && !other.is_empty()),
                        None => assert_eq!(size, 1, "{range:?}"),
                    }
                }
            }
        }
    }
}
