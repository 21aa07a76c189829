//! Octavo's page cache behind `object_store` 0.14: [`CachedStore`] is any
//! [`ObjectStore`](object_store::ObjectStore), with its reads cached.
//!
//! The crates for versions 0.13 and 0.14 of `object_store` share their source. Pages are those of
//! `octavo-objects`, so both versions can share one cache.
//!
//! - Reads go through the cache, and are checked: version, range and length.
//! - Writes, copies and deletes go to the store, and forget what was cached of their objects.
//! - Listings go to the store.
//! - A read of a version by name (`GetOptions::version`) goes to the store.
//!
//! Hints travel in `GetOptions::extensions`: put a [`Hint`] there.
//!
//! Build the store without retries of its own (`RetryConfig { max_retries: 0, .. }`), as far as it
//! has any: the cache tries again itself, and checks the answer of every attempt.
#![warn(missing_debug_implementations)]

#[path = "../../src/origin.rs"]
mod origin;
#[path = "../../src/store.rs"]
mod store;
#[path = "../../src/uncached.rs"]
mod uncached;

use std::ops::Range;

use object_store::{Attributes, GetResult, GetResultPayload, ObjectMeta};

pub use octavo_objects::{Hint, Usage};
pub use origin::{StoreOrigin, error_of, meta_of_listed};
pub use store::CachedStore;

/// The result of a read, whose fields differ between versions of `object_store`.
fn get_result(
    payload: GetResultPayload,
    meta: ObjectMeta,
    range: Range<u64>,
    attributes: Attributes,
) -> GetResult {
    GetResult { payload, meta, range, attributes, extensions: Default::default() }
}
