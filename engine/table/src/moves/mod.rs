//! Pages that move or are copied: copies on other nodes, mains away from home, and entries that
//! move to another segment.

pub(crate) mod away;
pub(crate) mod resize;
pub(crate) mod twin;
