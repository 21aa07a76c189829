//! Which page sits in which slot: the page sets of the Octavo page cache.
//!
//! Start with [`slot`]: one word per page and the thirteen rules that make reads free of locks and
//! stores. A *set* is sixteen slots that look after themselves; a [`Table`] is a directory of
//! segments of sets, one table per partition. Policies are state machines inside one set
//! ([`policy`]).
//!
//! What is not here: bytes of pages, I/O, clocks, threads, waiting for a page. The engine owns
//! those; the simulator and the model checkers run this crate without them.

mod away;
pub mod broken;
mod ghost;
mod layout;
mod lock;
mod lookup;
mod memory;
mod miniature;
mod monitor;
mod nodes;
pub mod policy;
mod probe;
mod resize;
mod set;
mod shards;
pub mod slot;
mod sync;
mod table;
mod tag;
mod touch;
mod twin;

pub use away::Switch;
pub use ghost::{Ghosts, ghosts_of};
pub use layout::{
    ENTRIES_PER_SEGMENT, METADATA_BYTES_PER_PAGE_MAX, SEGMENTS_MAX, SETS_PER_SEGMENT_MAX, Shape,
};
pub use lookup::Glance;
pub use monitor::{Late, MissCurve, Monitor};
pub use nodes::{CLOCKS, NODES_MAX, NodeId};
pub use policy::{Learned, PolicyKind};
pub use probe::ProbeKind;
pub use resize::{Move, MoveStep, Mover, NoBytes, Pass};
pub use set::{Claim, SetGuard};
pub use shards::{Shards, ShardsOptions, Stack};
pub use slot::{EndedWriteback, PINS_MAX, Slot, State, Word};
pub use table::{Found, SegmentIndex, SlotIndex, Table};
pub use tag::{Begun, Mixer, Tag};
pub use twin::Copying;

#[cfg(all(test, loom))]
mod models;
