//! The bottom floor: what one page, one slot and one lock are, in a few bytes each.
//!
//! Nothing here knows of sets, tables or policies.

pub(crate) mod ghost;
pub(crate) mod lock;
pub(crate) mod prefetch;
pub(crate) mod probe;
pub mod slot;
pub(crate) mod state;
pub(crate) mod tag;
