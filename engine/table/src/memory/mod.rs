//! The memory of a table: its layout, typed access to it, and its division among nodes.

pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod nodes;
