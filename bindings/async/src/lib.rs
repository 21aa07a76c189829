//! Octavo for async Rust, on any runtime: the calls of an [`Object`](octavo::Object) as futures.
//!
//! ```
//! use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
//! use octavo_async::Driver;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), octavo::Error> {
//! let cache = Cache::new(CacheConfig::default())?;
//! let partition = cache.partition(PartitionConfig::new("app"))?;
//! let driver = Driver::new(&cache)?; // one thread, for all tasks and objects
//! let object = driver.object(partition.open(Store::memory("disk", 1 << 20), "disk")?);
//! let mut record = [0; 128];
//! object.read_at(4096, &mut record).await?; // a hit is ready at the first poll
//! # Ok(())
//! # }
//! ```
//!
//! - **Runtime-neutral.** Futures use wakers only. One [`Driver`] thread sleeps in the engine's
//!   queue; there is no thread per request.
//! - **Hits stay in the task.** They take no lock and make no system call, as in the engine. After
//!   128 calls in a row that were ready at once, a call yields once, so that a task that only hits
//!   does not starve others.
//! - **Futures may be dropped** at any time: [`AsyncObject`] says what becomes of their work.
//! - **Bounded.** At most [`DriverConfig::requests_max`] requests run, and the memory of reads is
//!   charged to the cache. Calls beyond wait in the table of the driver. Memory of writes, and of
//!   reads that have ended, is the caller's.
//! - **Forks.** In a child of `fork`, calls fail with [`Error::Forked`](octavo::Error::Forked)
//!   unless they hit, and none hangs.
//!
//! Errors are those of the engine. Not here: opening, closing and resizing objects, which wait for
//! their stores; make these calls on a thread that may block.
#![warn(missing_debug_implementations)]

mod bell;
mod broken;
mod call;
mod driver;
mod fair;
mod handover;
mod object;
mod reader;
mod sync;

pub use driver::{Driver, DriverConfig, DriverStat};
pub use object::AsyncObject;
pub use reader::Reader;

/// The examples of the documentation are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/ASYNC.md")]
struct Page;
