//! What a cache would do: page accesses from traces or generators, run through the real page sets
//! without their frames, and through other people's policies for comparison.
//!
//! Data flows one way: a [`Source`] yields the numbers of the pages that are accessed, in order; a
//! [`Cache`] says of each whether it was there. What is not here: bytes of pages, I/O to a store,
//! time. Traces are streamed and never held in memory as a whole.

#![forbid(unsafe_code)]

mod cache;
mod distinct;
mod footprint;
pub mod generate;
pub mod mrc;
pub mod plan;
pub mod recording;
pub mod reference;
pub mod report;
pub mod room;
pub mod simulate;
mod source;
pub mod tenants;
pub mod trace;

pub use cache::{Cache, SetCache};
pub use distinct::Distinct;
pub use footprint::Footprint;
pub use source::{CHUNK, Sample, Source, SourceError};
