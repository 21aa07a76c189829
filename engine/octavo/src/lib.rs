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

mod ahead;
mod alarm;
mod bounce;
mod budget;
mod buffer;
mod cache;
mod clean;
mod cleaner;
mod clear;
mod config;
mod copy;
mod counters;
mod error;
mod frames;
mod lane;
mod name;
pub mod numa;
mod object;
mod partition;
mod pin;
pub mod pressure;
mod queue;
mod range;
mod read;
mod reaper;
mod record;
mod stat;
mod sync;
mod task;
mod waiters;
mod write;

pub use octavo_disk as disk;
pub use octavo_share::UNLIMITED;
pub use octavo_table::MissCurve;
pub use octavo_table::recording;

pub use buffer::Buffer;
pub use cache::{Cache, Owed};
pub use config::{CacheConfig, CacheMode, Limits, PartitionConfig, PolicyName};
pub use error::Error;
pub use name::{check_name, is_visible};
pub use object::{Advice, Object, Read};
pub use partition::Partition;
pub use pin::Pin;
pub use queue::{Completion, Interest, Op, Queue, Request};
pub use reaper::ReaperStat;
pub use record::{Recording, RecordingEnd, RecordingStat, Taken};
pub use stat::{CacheStat, Evictions, ObjectStat, PartitionStat};

/// Pages to a set.
pub const WAYS: usize = if cfg!(octavo_ways = "8") {
    8
} else if cfg!(octavo_ways = "32") {
    32
} else {
    16
};
