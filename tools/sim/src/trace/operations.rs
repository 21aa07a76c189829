//! The words for operations in tables: which of them access data.
//!
//! The words of block traces, of key-value stores (memcached, as in Twitter's traces; CacheLib's),
//! and of logs of object stores (`REST.GET.OBJECT`). An operation is an access if it reads or
//! writes the data of its block, key or object. Discards, flushes, deletions and requests of
//! metadata are not.

use crate::trace::fields::shown;

const ACCESSES: [&str; 39] = [
    "rs",
    "ws",
    "ra",
    "r",
    "w",
    "read",
    "write",
    "0",
    "1",
    "0.0",
    "1.0",
    "get",
    "gets",
    "gat",
    "gats",
    "mget",
    "getrange",
    "get_lease",
    "getset",
    "put",
    "set",
    "set_lease",
    "setex",
    "setnx",
    "setrange",
    "add",
    "replace",
    "cas",
    "append",
    "prepend",
    "incr",
    "decr",
    "incrby",
    "decrby",
    "update",
    "insert",
    "rmw",
    "post",
    "copy",
];

const OTHERS: [&str; 23] = [
    "d",
    "n",
    "f",
    "discard",
    "trim",
    "unmap",
    "flush",
    "sync",
    "fsync",
    "fdatasync",
    "open",
    "close",
    "delete",
    "del",
    "remove",
    "unlink",
    "evict",
    "invalidate",
    "expire",
    "touch",
    "exists",
    "head",
    "stat",
];

/// Returns whether an operation reads or writes data; case does not matter.
pub fn is_access(field: &[u8]) -> Result<bool, String> {
    if is_among(field, &ACCESSES) {
        return Ok(true);
    }
    if is_among(field, &OTHERS) {
        return Ok(false);
    }
    of_object_store(field).or_else(|| of_block_layer(field)).ok_or_else(|| {
        format!(
            "\"{}\" is not an operation; known: r, w, read, write, get, put, set, delete, other words of key-value \
             stores, REST.GET.OBJECT, 0 (read), 1 (write)",
            shown(field)
        )
    })
}

fn is_among(field: &[u8], words: &[&str]) -> bool {
    words.iter().any(|word| field.eq_ignore_ascii_case(word.as_bytes()))
}

/// Reads `REST.verb.resource`, as the logs of S3 and IBM's object store have it. Only objects and
/// their parts have data; listings, tags and settings do not count.
fn of_object_store(field: &[u8]) -> Option<bool> {
    let mut parts = field.split(|byte| *byte == b'.');
    let is_log = is_among(parts.next()?, &["rest", "s3", "batch", "website", "soap"]);
    let verb = parts.next().filter(|_| is_log)?;
    let resource = parts.next()?;
    if parts.next().is_some() {
        return None;
    }
    let has_data = is_among(resource, &["object", "part"]);
    if is_among(verb, &["get", "put", "post", "copy"]) {
        return Some(has_data);
    }
    is_among(verb, &["head", "delete", "options", "create", "expire", "transition", "restore"])
        .then_some(false)
}

/// Reads the kinds of the kernel's block layer, as blktrace and `bpftrace` write them: an `F` in
/// front asks for a flush first, `R`, `W`, `D` or `N` is the operation, and letters behind are
/// details. They are upper case there, which tells them from words.
fn of_block_layer(field: &[u8]) -> Option<bool> {
    const KIND_BYTES_MAX: usize = 8;
    if field.len() > KIND_BYTES_MAX {
        return None;
    }
    let (operation, details) = field.strip_prefix(b"F").unwrap_or(field).split_first()?;
    let are_details = details.iter().all(|letter| b"FASM".contains(letter));
    match operation {
        b'R' | b'W' if are_details => Some(true),
        b'D' | b'N' | b'F' if are_details => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_key_value_stores_object_stores_and_the_block_layer_are_known() {
        for access in [
            "get",
            "GETS",
            "cas",
            "incr",
            "decr",
            "prepend",
            "GET_LEASE",
            "SET_LEASE",
            "REST.GET.OBJECT",
            "rest.put.object",
            "REST.PUT.PART",
            "REST.COPY.OBJECT",
            "R",
            "ws",
            "RA",
            "FWFSM",
            "WFS",
            "1.0",
        ] {
            assert_eq!(is_access(access.as_bytes()), Ok(true), "{access}");
        }
        for other in [
            "delete",
            "DEL",
            "touch",
            "REST.HEAD.OBJECT",
            "REST.DELETE.OBJECT",
            "REST.GET.BUCKET",
            "REST.GET.OBJECT_TAGGING",
            "DS",
            "FN",
            "flush",
        ] {
            assert_eq!(is_access(other.as_bytes()), Ok(false), "{other}");
        }
        for unknown in
            ["", "q", "2", "REST", "REST.GET", "REST.GET.OBJECT.x", "REST.SING.OBJECT", "x.y.z", "rx"]
        {
            assert!(is_access(unknown.as_bytes()).unwrap_err().contains("known: r, w"), "{unknown}");
        }
    }
}
