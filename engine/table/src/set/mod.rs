//! A set under its lock: all that changes which page sits in which slot.

pub(crate) mod guard;
pub(crate) mod locking;
