//! A page cache in user space: set-associative, partitioned by tenant.
//!
//! A [`Cache`] has a hard bound on memory. Each tenant gets a [`Partition`] of it, with its own
//! size, policy and mode of writing. A store (a file, a device) is opened in a partition as an
//! [`Object`] and read and written through it, by blocking calls or by a batch [`Queue`].
//!
//! What a user may rely on:
//!
//! 1. A read returns bytes that the store held, or that a write which has started put there. A read
//!    that starts after a write completed sees it, from any thread; once a read saw a write's
//!    bytes, no later read sees older ones.
//! 2. Acknowledged is not durable, in either mode; after [`Object::sync`] it is.
//! 3. A dirty page leaves only when it was written, or by a discard or a cut. While it cannot be
//!    written, it stays, and syncs fail.
//! 4. Memory of I/O in flight belongs to the engine until it is over, whatever the caller does.
//! 5. Everything that is held is charged to the cache's bound; an idle cache uses no CPU.
//!
//! What is not here: protocols, configuration files, metrics. Time, randomness and I/O come in from
//! outside ([`disk`]).

// The floors, from the roof down. Imports point down only: `cargo xtask tidy` checks it.
mod api;
mod config;
mod control;
mod error;
mod flight;
mod memory;
mod name;
pub mod numa;
mod pages;
pub mod pressure;
mod request;
mod stat;
mod state;
mod sync;
mod wait;
mod ways;

pub use octavo_disk as disk;
pub use octavo_recording as recording;
pub use octavo_share::UNLIMITED;
pub use octavo_table::MissCurve;

pub use api::cache::Cache;
pub use api::pin::Pin;
pub use api::queue::Queue;
pub use api::recording::{Recording, Taken};
pub use config::{CacheConfig, CacheMode, Limits, PartitionConfig, PolicyName};
pub use control::{Owed, Partition, ReaperStat};
pub use error::Error;
pub use flight::Object;
pub use memory::Buffer;
pub use name::{check_name, is_visible};
pub use request::{Advice, Completion, Interest, Op, Read, Request};
pub use stat::{CacheStat, Evictions, ObjectStat, PartitionStat};
pub use state::tape::{RecordingEnd, RecordingStat};
pub use ways::WAYS;

/// The example of the README is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
