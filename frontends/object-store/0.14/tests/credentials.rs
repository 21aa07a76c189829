//! The test of credentials, for object_store 0.14.

use octavo_object_store_14 as cached;

#[path = "../../tests/credentials.rs"]
mod credentials;
