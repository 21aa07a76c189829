//! A set under its lock. Every change of which page sits in which slot happens under the guard of
//! this floor.

pub(crate) mod guard;
pub(crate) mod locking;
