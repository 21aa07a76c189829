//! The division of memory among partitions. This crate does arithmetic only.
//!
//! [`Limits`] are set by an operator, a [`Curve`] says how many misses a partition has at each
//! size, and a [`State`] describes all partitions and their groups at one moment.
//! [`State::targets`] returns the size that each should have, and [`State::plan`] returns the next
//! bounded steps towards these sizes. The engine's reaper and the simulator follow the same plan.
//!
//! Not here: I/O, clocks, threads, the memory itself, and the source of curves
//! (`octavo_table::Monitor`).
//!
//! # Examples
//!
//! ```
//! use octavo_share::{Curve, Leaf, Node, Pace, State};
//! let partition = |curve| Node {
//!     leaf: Some(Leaf { current_bytes: 50 << 20, curve, ..Leaf::default() }),
//!     ..Node::default()
//! };
//! // Of 1000 references, the first partition misses 900 with 50 MiB and none with 80 MiB.
//! let steep = Curve::new(1000.0, [(50 << 20, 900.0), (80 << 20, 0.0)]);
//! let flat = Curve::new(1000.0, [(50 << 20, 900.0)]);
//! let state = State {
//!     total_bytes: 100 << 20,
//!     granule_bytes: 2 << 20,
//!     nodes: vec![partition(steep), partition(flat)],
//! };
//! let targets = state.targets(&Pace::default());
//! assert!(targets[0] >= 80 << 20 && targets[0] + targets[1] <= 100 << 20);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod allocate;
mod bytes;
mod curve;
mod limits;
mod plan;
mod spread;
mod state;

pub use bytes::Bytes;
pub use curve::{Curve, Seen, Stretch};
pub use limits::{Limits, UNLIMITED, WEIGHT_DEFAULT};
pub use plan::Resize;
pub use spread::spread;
pub use state::{Leaf, Node, Pace, State, Trend};
