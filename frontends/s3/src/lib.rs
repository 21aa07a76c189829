//! Objects of S3 in front of the Octavo page cache: one object as a read-only disk, and the objects
//! below a prefix as a read-only directory.
//!
//! [`Client`] reaches a bucket with the usual credentials. What it fetches, `octavo-objects` checks
//! and the engine caches; this crate only knows S3.
//!
//! - **Versions.** A disk or an open file has the bytes of one version of its object. If the object
//!   changes, reads of what is not cached fail; they never mix two versions.
//! - **Credentials** stay in [`Client`]. They are in no message, no name and no `Debug` output.
//!
//! | file | idea |
//! |---|---|
//! | `address.rs` | [`Address`]: `s3://bucket/key` |
//! | `client.rs` | [`Client`]: a bucket, as one holder of credentials sees it |
//! | `http.rs` | how requests reach servers, and the limits of answers |
//! | `page.rs`, `listing.rs` | a page of a listing; a directory's entries (L1 to L5) |
//! | `profile.rs` | credentials and settings in `~/.aws` |
//! | `tree.rs` | keys with slashes as directories, from listings (D1 to D3) |
//! | `files.rs` | open files, and the pages of closed ones |
//! | `requests.rs` | the requests of the kernel |
//! | `waiting.rs`, `killed.rs` | requests that wait for the server (Q1 to Q5); the killed |
//! | `mount.rs`, `mounting.rs` | [`Prefix`]: the file system, and how it is mounted and unmounted |
#![warn(missing_debug_implementations)]

mod address;
mod client;
mod files;
mod http;
mod killed;
mod listing;
mod mount;
mod mounting;
mod page;
mod profile;
mod requests;
mod tree;
mod waiting;

pub use address::Address;
pub use client::{Client, Settings};
pub use mount::{Prefix, PrefixOptions, PrefixStat};
