//! Recordings: files that a server writes, with a partition's accesses and the steps of its table.
//!
//! | module | does |
//! |---|---|
//! | `octavo_recording` | encodes and decodes events |
//! | [`block`] | packs events into blocks, so that a torn end of a file is noticed |
//! | [`writer`] | writes files that follow each other |
//! | [`reader`] | reads the events back |
//! | `lives` | tells apart objects that had one number one after the other |
//! | [`mod@replay`] | takes a table through the events again |
//!
//! What is not here: when and what to record, which the engine and the server decide.

pub mod block;
mod lives;
pub mod reader;
pub mod replay;
#[cfg(test)]
mod tests;
pub mod writer;

pub use block::{About, Ending};
pub use reader::{Reader, about, parts};
pub use replay::{Difference, Replayed, replay};
pub use writer::{Rotation, Writer, is_named_so};

/// The ending of a recording's file name.
pub const ENDING: &str = ".octr";
