//! Simulates caches: runs page accesses from traces or generators through the engine's page sets
//! without their frames, and through policies of other authors for comparison.
//!
//! Data flows one way: a [`Source`] yields the numbers of the pages that are accessed, in order; a
//! [`Cache`] tells for each whether it was resident. Traces are streamed and never held in memory
//! as a whole.
//!
//! | to do this | start here |
//! |---|---|
//! | read or write a trace | [`trace`], [`generate`] |
//! | run policies over traces | [`mod@simulate`], [`plan`], [`reference`](mod@reference) |
//! | get a miss-ratio curve | [`mrc`] |
//! | share memory between tenants | [`tenants`] |
//! | write, read or replay a recording | [`recording`] |
//!
//! What is not here: bytes of pages, I/O to a store, and time.

#![forbid(unsafe_code)]

mod cache;
mod distinct;
mod feed;
mod footprint;
pub mod generate;
pub mod mrc;
pub mod plan;
mod reading;
pub mod recording;
pub mod reference;
pub mod report;
pub mod room;
mod row;
pub mod simulate;
pub mod size;
mod source;
pub mod tenants;
pub mod trace;

pub use cache::{Cache, SetCache};
pub use distinct::Distinct;
pub use source::{CHUNK, Pages, Sample, Source, SourceError};
