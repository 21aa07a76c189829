//! How memory is shared out among partitions: arithmetic, and nothing else.
//!
//! [`Limits`] are what an operator promises, [`Curve`]s what more memory would save, [`State`] a
//! picture of all partitions and their groups. [`State::targets`] says what each should have,
//! [`State::plan`] the next bounded steps on the way there. The engine's reaper and the simulator
//! act on the same plan.
//!
//! What is not here: I/O, clocks, threads, memory; and where curves come from
//! (`octavo_table::Monitor`).

#![forbid(unsafe_code)]

mod allocate;
mod curve;
mod limits;
mod plan;
mod spread;
mod state;

pub use curve::{Curve, Seen, Stretch};
pub use limits::{Limits, UNLIMITED, WEIGHT_DEFAULT};
pub use plan::Resize;
pub use state::{Leaf, Node, Pace, State, Trend};
