//! A set under its lock. A page is put into a slot, or removed from one, only under the guard of
//! this floor.

pub(crate) mod guard;
pub(crate) mod locking;
