//! The memory of a table: which byte lies where, and whose the parts of it are.

pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod nodes;
