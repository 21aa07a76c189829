//! A page cache in user space: set-associative, partitioned by tenant.
//!
//! A [`Cache`] has a hard memory limit. Each tenant gets a [`Partition`] with its own size,
//! eviction policy and write mode. A store (a file, a device) is opened in a partition as an
//! [`Object`], and read and written by blocking calls or through a batch [`Queue`].
//!
//! ```
//! use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
//!
//! let cache = Cache::new(CacheConfig::default())?;
//! let partition = cache.partition(PartitionConfig::new("app"))?;
//! let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
//! object.write_at(4096, b"octavo")?;
//! object.sync()?;
//! # Ok::<(), octavo::Error>(())
//! ```
//!
//! Guarantees:
//!
//! 1. A read returns bytes that the store held, or bytes of a write that has started. A read
//!    that starts after a write completed sees that write, on any thread. Once a read has
//!    returned a write's bytes, no later read returns older ones. [`Object::invalidate`] says what
//!    holds if something else changes the store.
//! 2. An acknowledged write is not durable, in either mode; after [`Object::sync`] it is.
//! 3. A dirty page leaves the cache only after it was written back, or by a discard, a zeroing,
//!    a shorter length or a new generation. While it cannot be written, it stays, and syncs fail.
//! 4. Memory of I/O in flight belongs to the engine until the I/O ends, whatever the caller
//!    does.
//! 5. All memory held is charged to the cache's limit; an idle cache uses no CPU.
//!
//! Threads and blocking:
//!
//! - All handles may be used by any thread at the same time, except a [`Queue`], which has one user
//!   at a time.
//! - These may wait for a store: all calls that read, write, sync or clear an object or pin a page
//!   of it; opening, closing and changing its length; resizing, evicting and removing a partition;
//!   [`Queue::wait`], [`Queue::wait_next`], [`Queue::wait_or`], and dropping a queue with requests
//!   in flight.
//! - These never wait for a store: [`Object::try_read_at`], [`Object::try_read_raw_at`],
//!   [`Object::try_read_raw_batch`], [`Object::try_pin`], [`Queue::take_next`], [`Queue::wait`]
//!   with `min` 0, dropping a pin or an object, all statistics, and [`Queue::submit`], except of
//!   advice that runs during the call.
//! - [`Cache::buffer`], [`Cache::queue`] and [`Partition::record`] may evict pages, if the cache
//!   has a reaper and the memory that they need holds pages. They wait about a second at most for
//!   stores that must take dirty pages, and then return what they return without memory.
//! - No lock is held while a queue's callback runs, so the callback may call anything but that
//!   queue. To submit between completions, take them with [`Queue::take_next`].
//!
//! Offsets and lengths are in bytes everywhere.
//!
//! Not here: protocols, configuration files, metrics. Time, randomness and I/O come in from
//! outside; stores are in [`disk`].

// The floors, from the roof down. Imports point down only: `cargo xtask tidy` checks it.
#![warn(missing_debug_implementations)]

mod api;
#[doc(hidden)]
pub mod broken;
mod config;
mod control;
mod error;
mod evacuation;
mod flight;
mod line_rate;
mod memory;
mod name;
pub mod numa;
mod pages;
mod position;
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
pub use octavo_table::{MissCurve, Occupancy};

pub use api::cache::Cache;
pub use api::charge::Charge;
pub use api::owned_pin::OwnedPin;
pub use api::pin::{Pin, PinOrCopy};
pub use api::planned::{Proposal, Proposed};
pub use api::queue::{Queue, QueueWaker};
pub use api::recording::{Recording, Taken};
pub use api::sizing::Sizing;
pub use config::{CacheConfig, CacheMode, Limits, PartitionConfig, PolicyName};
pub use control::{Owed, Partition, ReaperStat};
pub use error::Error;
pub use evacuation::{Cold, Evacuated, Refused, Restored, WarmPages};
pub use flight::Object;
pub use line_rate::LineRate;
pub use memory::{Buffer, Memory, Piece};
pub use name::{check_name, display_name, groups_of, is_visible};
pub use request::{Advice, Completion, Interest, Op, RawRead, Read, Request};
pub use stat::{CacheStat, Evictions, ObjectStat, PartitionStat};
pub use state::events::{CacheEvent, EVENTS_TARGET, Happened, MoveReason};
pub use state::faults::ObjectFaults;
pub use state::latency::{PartitionLatency, Times};
pub use state::tape::{RecordingEnd, RecordingStat};
pub use ways::WAYS;

/// The example of the README is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
