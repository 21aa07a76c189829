//! The recording of a partition: the accesses to its pages, and every step of its table that
//! affects whether a later access hits.
//!
//! A table that makes the same steps in the same order holds the same pages. A replay therefore
//! reproduces the hits and misses by repeating the steps; it does not read them from the recording.
//! The outcome of each access is recorded too, so that a replay can be compared with the original,
//! access by access. The accesses alone form a trace, which other kinds of caches can replay.
//!
//! An event consists of one byte and its operands. The byte's upper half says what happened. The
//! lower half holds the distance from the previous page if it is small; otherwise it says that the
//! distance follows. Most hits take one to four bytes. The bytes form *blocks*, each of which can
//! be decoded alone ([`Encoder::take`], [`Decoder::new`]).
//!
//! Not here: files, checksums, compression, time, and the effect of an event on a table
//! (`octavo-sim`); when an event is recorded (the engine).
//!
//! # Examples
//!
//! ```
//! use octavo_recording::{Decoder, Encoder, Event};
//! let mut encoder = Encoder::new(Vec::new());
//! encoder.access(7, false, true);
//! let block = encoder.take(Vec::new());
//! let events: Result<Vec<_>, _> = Decoder::new(block).collect();
//! assert_eq!(events.unwrap(), [Event::Access { key: 7, write: false, hit: true }]);
//! ```

#![warn(missing_debug_implementations)]

mod code;
mod decoder;
mod encoder;
mod event;
mod header;
// Not under miri: no unsafe code runs here, and the tests do much work.
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests;

pub use decoder::{Decoder, Malformed};
pub use encoder::Encoder;
pub use event::{Event, PAGE_BITS, Place, Step, Totals, WHOLE};
pub use header::{Header, Secret};
