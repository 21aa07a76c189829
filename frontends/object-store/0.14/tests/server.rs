//! The tests with a server of S3, for object_store 0.14.

use octavo_object_store_14 as cached;

#[path = "../../tests/server/mod.rs"]
mod server;
