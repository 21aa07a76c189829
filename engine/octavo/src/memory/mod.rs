//! Memory: what it is charged to, where frames and buffers lie, how bytes are copied. Copies by
//! raw pointers end here.
//!
//! Not here: which page a frame holds (`octavo_table`), what a partition pays for
//! (`state/costs.rs`).

mod bounce;
mod budget;
mod buffer;
pub(crate) mod copy;
mod frames;
mod owned;
mod pieces;
mod reserve;

pub(crate) use bounce::{Bounce, BouncePool, BouncePools, BounceShare};
pub(crate) use budget::{Budget, Charge};
pub use buffer::Buffer;
pub(crate) use buffer::BufferPool;
pub(crate) use frames::{Frames, Mapping};
pub use owned::Memory;
pub use pieces::Piece;
pub(crate) use pieces::{Lent, PieceList};
pub(crate) use reserve::{Reserve, Room};
