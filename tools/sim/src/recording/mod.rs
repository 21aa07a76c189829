//! Recordings: files of what a partition did, written by a server and read here.
//!
//! `octavo_recording` says what events are; [`block`] how blocks of them lie in a file, so
//! that an end that was torn off is noticed and everything before it is read; [`writer`] how files
//! follow each other; [`reader`] gives the events back; [`mod@replay`] takes a table through them
//! again. What is not here: who records, and when (the engine, the server).

pub mod block;
pub mod reader;
pub mod replay;
#[cfg(test)]
mod tests;
pub mod writer;

pub use block::{About, Ending};
pub use reader::{Reader, about, parts};
pub use replay::{Difference, Replayed, replay};
pub use writer::{Rotation, Writer, is_named_so};

/// How a recording's file is called.
pub const ENDING: &str = ".octr";
