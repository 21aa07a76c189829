//! Octavo in front of object storage: reads of remote objects through the page cache.
//!
//! A client library implements [`Origin`] for its store. [`Objects`] keeps the pages of the objects
//! of any number of stores; a [`Scope`] reads them.
//!
//! - **Identity.** Pages belong to a scope, a path, a version and a size. An object that changes is
//!   another one: its old bytes are never mixed with new ones.
//! - **Fresh by default.** A read asks the server for the version first, unless
//!   [`ObjectsConfig::meta_ttl`] says how old an answer may be.
//! - **One fill for all.** A miss fetches a whole unit of [`ObjectsConfig::fill_bytes`]. Others who
//!   want its pages wait for the same fetch. It belongs to the cache: whoever waits may leave.
//! - **Nothing is believed.** Version, range, size and length of every answer are checked before a
//!   byte becomes visible; see the rules O1 to O7 in `source.rs`.
//! - **Bounded.** Fetches in flight, attempts, time and objects are limited, and all memory is
//!   charged to the cache, except what the client library itself allocates.
//!
//! | file | idea |
//! |---|---|
//! | `scope.rs` | [`Scope`]: reads of objects; metadata |
//! | `core.rs` | [`Objects`]: which objects are kept |
//! | `fetcher.rs` | [`Fetcher`]: threads, bounds and metadata |
//! | `entry.rs` | a kept object, and how a range of it is read |
//! | `remote.rs` | one version of an object as a store of the engine |
//! | `source.rs` | its fetches, their checks and attempts (O1 to O7) |
//! | `tier.rs`, `tier/` | [`tier::Tier`]: blocks in files on a local disk |
//! | `reading.rs` | [`Reading`]: an answer while it is read |
//! | `pauses.rs` | pauses between attempts |
//! | `shared.rs` | what fetches need: bounds and counters |
//! | `origin.rs` | [`Origin`]: what a client library provides |
//! | `config.rs`, `stat.rs`, `error.rs` | settings and hints; figures; errors |
#![warn(missing_debug_implementations)]

mod config;
mod core;
mod entry;
mod error;
mod fetcher;
mod origin;
mod pauses;
mod reading;
mod remote;
mod scope;
mod shared;
mod source;
mod stat;
pub mod tier;

pub use config::{Hint, ObjectsConfig, Route, Usage};
pub use core::Objects;
pub use error::{Error, ErrorKind};
pub use fetcher::Fetcher;
pub use origin::{Answer, Meta, Origin, Version};
pub use reading::Reading;
pub use scope::{Got, Scope};
pub use stat::ObjectsStat;
