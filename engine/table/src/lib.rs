//! Which page sits in which slot: the page sets of the Octavo page cache.
//!
//! Start with [`slot`]: one word per page and the thirteen rules that make reads free of locks and
//! stores. A *set* is sixteen slots that look after themselves; a [`Table`] is a directory of
//! segments of sets, one table per partition. Policies are state machines inside one set
//! ([`policy`]).
//!
//! What is not here: bytes of pages, I/O, clocks, threads, waiting for a page. The engine owns
//! those; the simulator and the model checkers run this crate without them.

pub mod broken;
mod index;
mod learning;
mod memory;
mod moves;
pub mod policy;
mod set;
mod shards;
mod sync;
mod table;
mod word;

pub use index::{Found, NODES_MAX, NodeId, SegmentIndex, SlotIndex};
pub use learning::learner::Learned;
pub use learning::monitor::{Late, MissCurve, Monitor};
pub use memory::layout::{
    ENTRIES_PER_SEGMENT, METADATA_BYTES_PER_PAGE_MAX, SEGMENTS_MAX, SETS_PER_SEGMENT_MAX, Shape,
};
pub use moves::away::Switch;
pub use moves::resize::{MoveStep, Mover, NoBytes, Pass};
pub use moves::twin::Copying;
pub use policy::PolicyKind;
pub use set::guard::{Claim, SetGuard};
pub use shards::{Shards, ShardsOptions, Stack};
pub use table::Table;
pub use table::directory::Move;
pub use table::lookup::Glance;
pub use table::nodes::CLOCKS;
pub use word::ghost::{Ghosts, ghosts_of};
pub use word::probe::ProbeKind;
pub use word::slot;
pub use word::slot::{EndedWriteback, PINS_MAX, Slot, State, Word};
pub use word::tag::{Begun, Mixer, Tag};

#[cfg(all(test, loom))]
mod models;
