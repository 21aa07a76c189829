//! The memory of a table: where each object lies, how the memory is reached, and how it is divided
//! among nodes.

pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod nodes;
