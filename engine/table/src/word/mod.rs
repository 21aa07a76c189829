//! The bottom floor: one page's identity, one slot, one lock, and the comparison of a few bytes.
//!
//! Nothing here knows sets, tables or policies.

pub(crate) mod ghost;
pub(crate) mod lock;
pub(crate) mod prefetch;
pub(crate) mod probe;
pub mod slot;
pub(crate) mod state;
pub(crate) mod tag;
