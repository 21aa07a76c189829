//! The tests of both versions, for object_store 0.13.

use octavo_object_store_13 as cached;

#[path = "../../tests/store.rs"]
mod store;
