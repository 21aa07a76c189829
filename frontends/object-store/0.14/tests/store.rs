//! The tests of both versions, for object_store 0.14.

use octavo_object_store_14 as cached;

#[path = "../../tests/store.rs"]
mod store;
