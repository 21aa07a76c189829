//! The page sets of the Octavo page cache: they determine which page is in which slot.
//!
//! Start with [`slot`]: one word per page, and the protocol P1 to P14, by which a read takes no
//! lock and stores nothing. A *set* is sixteen slots that are managed together and independently of
//! all other sets. A [`Table`] is a directory of segments of sets, one table per partition.
//! Policies are state machines inside one set ([`policy`]).
//!
//! The floors, lowest first. A file imports only from lower floors, which come earlier in this
//! list, and from files of its own floor that do not import it:
//!
//! - `sync`, `broken`: atomics, and switches that break a step for the tests
//! - `word`: tag, state word and its protocol, lock, probe, ghosts
//! - `index`: numbers of slots, sets, segments and nodes
//! - `memory`: layout of a table's bytes, and their division among nodes
//! - `policy`: eviction policies
//! - `learning`: miniatures, the learner of the default policy, the monitor of miss curves
//! - `table`: the directory, the lookup without a lock, marks, counts of dirty pages
//! - `set`: changes under a set's lock
//! - `moves`: copies on other nodes, mains away from home, growing and shrinking
//!
//! Not here: bytes of pages, I/O, clocks, threads, and waiting for a page. Those belong to the
//! engine; the simulator and the model checkers run this crate without them.

pub mod broken;
mod index;
mod learning;
mod memory;
mod moves;
pub mod policy;
mod set;
mod sync;
mod table;
mod word;

pub use index::{Found, NODES_MAX, NodeId, SegmentIndex, SlotIndex};
pub use learning::learner::Learned;
pub use learning::monitor::{Late, MissCurve, Monitor};
pub use memory::layout::{
    METADATA_BYTES_PER_PAGE_MAX, SEGMENTS_MAX, SETS_PER_SEGMENT_MAX, Shape, entries_per_segment,
};
pub use moves::away::Switch;
pub use moves::resize::{MoveStep, Mover, NoBytes, Pass};
pub use moves::twin::Copying;
pub use policy::PolicyKind;
pub use set::guard::{Claim, SetGuard};
pub use table::Table;
pub use table::directory::Move;
pub use table::lookup::{Candidate, Glance};
pub use table::nodes::CLOCKS;
pub use table::occupancy::Occupancy;
pub use word::ghost::{Ghosts, ghosts_of};
pub use word::probe::ProbeKind;
pub use word::slot;
pub use word::slot::{EndedWriteback, PINS_MAX, Slot, State, Word};
pub use word::tag::{Begun, Mixer, Tag};

#[cfg(all(test, loom))]
mod models;
