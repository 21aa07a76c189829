//! The bottom floor: a page's identity (`tag`), one slot (`slot`, `state`), a set's lock, ghosts,
//! and the probe, which compares fingerprints; and atomic words as operands.
//!
//! Nothing here knows sets, tables or policies.

pub(crate) mod ghost;
pub(crate) mod lock;
pub(crate) mod operand;
pub(crate) mod prefetch;
pub(crate) mod probe;
pub mod slot;
pub(crate) mod state;
pub(crate) mod tag;
